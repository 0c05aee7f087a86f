// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exit statuses and their messages.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::small_disk::SmallDisk;
use crate::support::{
    as_nobody, babeltrace, finish, folder, has_babeltrace, overhear, path, report_json, run_json,
    wait, Ended,
};

#[test]
fn nonsense_on_the_command_line_is_refused_with_a_hint() {
    for (arguments, words) in [
        (&[][..], "Usage: overhear <COMMAND>"),
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["run"][..], "required arguments were not provided"),
        (&["run", "--"][..], "required arguments were not provided"),
        // A program without `--` before it could be read as an option of `overhear`.
        (&["run", "true"][..], "unexpected argument 'true'"),
        (
            &["run", "--kernel", "loud", "--", "true"][..],
            "possible values: off, sched",
        ),
        (
            &["run", "--out", "", "--", "true"][..],
            "a value is required for '--out <DIR>'",
        ),
        (&["report"][..], "required arguments were not provided"),
        (&["report", "--jsn", "x"][..], "unexpected argument '--jsn'"),
    ] {
        let ended = finish(&mut overhear(arguments));
        ended.has_message(2, &[words]);
        assert_eq!(ended.stdout, "", "{arguments:?}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for (arguments, words) in [
        (&["--help"][..], "Exit status:"),
        (&["run", "--help"][..], "--out <DIR>"),
        (&["attach", "--help"][..], "--until-ended"),
        (&["--version"][..], env!("CARGO_PKG_VERSION")),
    ] {
        let ended = finish(&mut overhear(arguments));
        assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
        assert!(ended.stdout.contains(words), "{ended:#?}");
        let widest = ended.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(80), "{ended:#?}");
    }
}

#[test]
fn programs_that_cannot_be_run_end_as_with_env() {
    let folder = folder();
    let script = folder.path().join("no-permission");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let orphan = folder.path().join("no-interpreter");
    fs::write(&orphan, "#!/nonexistent/interpreter\n").unwrap();
    fs::set_permissions(&orphan, fs::Permissions::from_mode(0o755)).unwrap();
    for (program, status, words) in [
        (
            "/nonexistent/program",
            127,
            ["/nonexistent/program", "no such program"],
        ),
        (
            "no-program-has-this-name",
            127,
            ["no-program-has-this-name", "PATH"],
        ),
        ("", 127, ["cannot run", "no such program"]),
        (path(&script), 126, ["no-permission", "not executable"]),
        (path(folder.path()), 126, ["cannot run", "directory"]),
        (path(&orphan), 127, ["no-interpreter", "no such program"]),
    ] {
        for kernel in ["off", "sched"] {
            let ended = finish(&mut overhear(&["run", "--kernel", kernel, "--", program]));
            ended.has_only_message(status, &words);
            assert_eq!(ended.stdout, "");
        }
    }
}

#[test]
fn former_names_are_usage_errors_with_the_new_name() {
    for (arguments, message) in [
        (&["rta"][..], "`rta` is called `response-times`"),
        (&["fit", "kept", "queue"], "`fit` is called `fit-rate`"),
        (
            &["switch", "*", "on"],
            "`switch` is called `enable` or `disable`",
        ),
        (
            &["metrics", "kept", "--each"],
            "`--each` is called `--measurements`",
        ),
        (
            &["report", "a", "--beside", "b", "--html", "c"],
            "`--beside` is called `--compare`",
        ),
        (
            &["attach", "*", "--only-needed"],
            "`--only-needed` is called `--disable-unused`",
        ),
        (
            &["run", "--via=bpf", "--", "true"],
            "`--via` is called `--backend`",
        ),
        (
            &["list", "--unheard"],
            "`--unheard` is called `--not-connected`",
        ),
    ] {
        let ended = finish(&mut overhear(arguments));
        assert_eq!(ended.stderr, format!("overhear: {message}\n"));
        assert_eq!((ended.status, &*ended.stdout), (2, ""), "{ended:#?}");
    }
}

#[test]
fn mistyped_program_leaves_no_recording() {
    let folder = folder();
    let out = folder.path().join("out");
    let run = |program| {
        finish(&mut overhear(&[
            "run",
            "--kernel",
            "off",
            "--out",
            path(&out),
            "--",
            program,
        ]))
    };
    run("treu").has_only_message(127, &["treu"]);
    assert!(
        !out.join("trace").exists(),
        "a recording of nothing is left"
    );
    assert_eq!(run("true").status, 0);
}

#[test]
fn own_status_of_the_program_is_passed_on() {
    let ended = finish(&mut overhear(&[
        "run", "--kernel", "off", "--", "sh", "-c", "exit 7",
    ]));
    ended.has_message(7, &["ended with status 7"]);
    for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV] {
        let script = format!("kill -{signal} $$");
        let (ended, report) = run_json(&["--kernel", "off"], &["sh", "-c", &script]);
        assert_eq!(ended.status, 128 + signal);
        assert_eq!(report["exit"]["signal"], signal);
    }
    let (ended, report) = run_json(&[], &["true"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(report["exit"]["code"], 0);
}

#[test]
fn program_keeps_its_input_and_output() {
    let mut command = overhear(&[
        "run",
        "--kernel",
        "off",
        "--",
        "sh",
        "-c",
        "cat; echo err >&2",
    ]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"in\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"in\n");
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("err\n"));
    // A document on standard output is the only output there.
    let ended = finish(&mut overhear(&[
        "run", "--kernel", "off", "--json", "--", "echo", "hello",
    ]));
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["command"], serde_json::json!(["echo", "hello"]));
    assert_eq!(ended.stderr, "hello\n");
}

#[test]
fn invalid_output_paths_are_refused_before_the_program_runs() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    let used = folder.path().join("used");
    let marker = folder.path().join("marker");
    let run = |out: &str| {
        let arguments = [
            "run",
            "--kernel",
            "off",
            "--out",
            out,
            "--",
            "touch",
            path(&marker),
        ];
        finish(&mut overhear(&arguments))
    };
    assert_eq!(run(path(&used)).status, 0);
    fs::remove_file(&marker).unwrap();
    run(path(&used)).has_only_message(2, &["used already holds a trace", "another directory"]);
    run(path(&file)).has_only_message(2, &["cannot create", "Not a directory"]);
    run("/proc/overhear").has_only_message(2, &["cannot create /proc/overhear", "may write to"]);
    assert!(!marker.exists(), "the program ran");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    // The earlier recording is unchanged.
    assert_eq!(report_json(&used).0.status, 0);
}

#[test]
fn unusable_socket_is_refused_before_the_program_runs() {
    let arguments = [
        "run",
        "--socket",
        "/nonexistent/socket",
        "--",
        "echo",
        "ran",
    ];
    let ended = finish(&mut overhear(&arguments));
    ended.has_only_message(2, &["cannot listen at /nonexistent/socket"]);
    assert_eq!(ended.stdout, "", "the program ran");
}

#[test]
fn folder_of_another_user_is_refused() {
    let folder = folder();
    let out = folder.path().join("out");
    let Some(mut command) = as_nobody(&["run", "--out", path(&out), "--", "true"]) else {
        return;
    };
    finish(&mut command)
        .has_only_message(2, &["cannot create", "Permission denied", "may write to"]);
}

#[test]
fn requested_bpf_without_permission_is_refused() {
    let Some(mut command) = as_nobody(&["run", "--backend", "bpf", "--", "echo", "ran"]) else {
        return;
    };
    let ended = finish(&mut command);
    ended.has_only_message(5, &["BPF", "CAP_BPF", "choose"]);
    assert_eq!(ended.stdout, "", "the program ran");
    // By default the same user gets the available sensors, and a message about the others.
    let ended = finish(&mut as_nobody(&["run", "--", "true"]).unwrap());
    ended.does_not_panic();
    let message = ended
        .stderr
        .lines()
        .find(|line| line.starts_with("kernel sensors: "));
    assert!(
        message.is_some_and(|line| line.contains("because")),
        "{ended:#?}"
    );
}

#[test]
fn unwritable_json_file_is_refused_before_the_program_runs() {
    let folder = folder();
    let marker = folder.path().join("marker");
    let json = "--json=/nonexistent/report.json";
    let ended = finish(&mut overhear(&[
        "run",
        "--kernel",
        "off",
        json,
        "--",
        "touch",
        path(&marker),
    ]));
    ended.has_only_message(2, &["cannot write /nonexistent/report.json"]);
    assert!(!marker.exists(), "the program ran, and its report is lost");
}

#[test]
fn json_file_on_a_full_disk_does_not_hide_the_report() {
    // Writing to this device fails as on a full disk.
    let run = |script: &str| {
        finish(&mut overhear(&[
            "run",
            "--kernel",
            "off",
            "--json=/dev/full",
            "--",
            "sh",
            "-c",
            script,
        ]))
    };
    let ended = run("exit 0");
    ended.has_message(3, &["cannot write /dev/full", "No space left"]);
    ended.has_message(3, &["sh -c 'exit 0' ended with status 0"]);
    assert_eq!(run("exit 7").status, 7);
}

#[test]
fn full_disk_ends_the_recording_and_not_the_program() {
    let folder = folder();
    let Some(disk) = SmallDisk::mount(folder.path(), "size=128k") else {
        println!("skipped: mounting a small file system needs root");
        return;
    };
    let out = folder.path().join("out");
    // Some thousand context switches; the disk has room for the first ones only.
    let script = |status| {
        format!(
            "i=0; while [ $i -lt 1500 ]; do /bin/true; i=$((i+1)); done; echo done; exit {status}"
        )
    };
    let run = |status: i32| {
        let arguments = [
            "run",
            "--out",
            path(&out),
            "--",
            "sh",
            "-c",
            &script(status),
        ];
        finish(&mut overhear(&arguments))
    };
    let ended = run(0);
    assert_eq!(ended.stdout, "done\n", "the program was harmed: {ended:#?}");
    if ended.stderr.contains("kernel sensors: none") {
        println!("skipped: without kernel sensors there is nothing to fill the disk with");
        return;
    }
    ended.has_message(3, &["No space left on device"]);
    ended.has_message(3, &["INCOMPLETE"]);
    let (reported, report) = report_json(&out);
    assert_eq!(reported.status, 3, "{reported:#?}");
    let events = report["trace"]["events"].as_u64().unwrap();
    assert!(events > 0, "{report:#}");
    if has_babeltrace() {
        assert_eq!(babeltrace(&out).0, events);
    }
    fs::remove_dir_all(&out).unwrap();
    let ended = run(9);
    assert_eq!(
        (ended.status, ended.stdout.as_str()),
        (9, "done\n"),
        "{ended:#?}"
    );
    drop(disk);
}

#[test]
fn disk_full_from_the_begin_is_reported_at_once() {
    let folder = folder();
    let Some(disk) = SmallDisk::mount(folder.path(), "size=4k,nr_inodes=4") else {
        println!("skipped: mounting a small file system needs root");
        return;
    };
    let out = folder.path().join("out");
    let arguments = [
        "run",
        "--kernel",
        "off",
        "--out",
        path(&out),
        "--",
        "echo",
        "ran",
    ];
    let ended = finish(&mut overhear(&arguments));
    ended.does_not_panic();
    assert!(ended.stderr.contains("No space left"), "{ended:#?}");
    assert!([2, 3].contains(&ended.status), "{ended:#?}");
    drop(disk);
}

#[test]
fn closed_standard_output_is_no_error() {
    let folder = folder();
    let out = folder.path().join("out");
    let arguments = ["run", "--kernel", "off", "--out", path(&out), "--", "true"];
    assert_eq!(finish(&mut overhear(&arguments)).status, 0);
    let command = env!("CARGO_BIN_EXE_overhear");
    for verb in ["report", "report --json"] {
        let script = format!(
            "{command} {verb} {} | head -n 1; exit ${{PIPESTATUS[0]}}",
            out.display()
        );
        let mut child = Command::new("bash")
            .args(["-c", &script])
            .stdout(Stdio::null())
            .spawn();
        assert_eq!(wait(child.as_mut().unwrap()), 0, "{verb}");
    }
    // The reader has closed before the first byte.
    let (read, write) = rustix::pipe::pipe().unwrap();
    drop(read);
    let mut command = overhear(&["report", path(&out)]);
    let output = command
        .stdout(write)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stderr, b"");
    // A full standard output without a terminal is an error.
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = overhear(&["report", path(&out)])
        .stdout(full)
        .output()
        .unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        message.contains("cannot write to standard output"),
        "{message}"
    );
    assert_eq!(output.status.code(), Some(2));
}

/// Runs a shell script with `$0` as the command `overhear`; the script can close or redirect
/// descriptors that a `Command` cannot.
#[track_caller]
fn by_shell(script: &str, arguments: &[&str]) -> Ended {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, env!("CARGO_BIN_EXE_overhear")])
        .args(arguments)
        .stdin(Stdio::null())
        .env_remove("OVERHEAR_DIRECTORY");
    finish(&mut command)
}

#[test]
fn unwritable_standard_error_changes_no_status() {
    let folder = folder();
    let out = folder.path().join("out");
    for lost in [
        "2>/dev/full",
        "2>&-",
        "1>&- 2>&-",
        "1>/dev/full 2>/dev/full",
    ] {
        for (program, status) in [
            ("sh -c 'exit 7'", 7),
            ("sh -c 'kill -9 $$'", 137),
            ("true", 0),
            ("/nonexistent/program", 127),
        ] {
            let run = format!("\"$0\" run --kernel off -- {program} {lost}");
            let ended = by_shell(&run, &[]);
            assert_eq!(ended.status, status, "{run}: {ended:#?}");
        }
        // The recording is complete nevertheless.
        let run = format!("\"$0\" run --kernel off --out \"$1\" -- true {lost}");
        let ended = by_shell(&run, &[path(&out)]);
        assert_eq!(ended.status, 0, "{run}: {ended:#?}");
        assert_eq!(report_json(&out).0.status, 0);
        assert!(out.join("report.html").exists());
        fs::remove_dir_all(&out).unwrap();
        // A refusal has its status, even if its message cannot be printed.
        let ended = by_shell(&format!("\"$0\" report /nonexistent {lost}"), &[]);
        assert_eq!(ended.status, 2, "{lost}: {ended:#?}");
    }
}

#[test]
fn ignored_sigchld_of_the_parent_keeps_the_status() {
    let folder = folder();
    let file = folder.path().join("report.json");
    for (program, status, exit) in [
        ("exit 4", 4, ("code", 4)),
        ("kill -TERM $$", 143, ("signal", 15)),
    ] {
        let json = format!("--json={}", file.display());
        let arguments = ["run", "--kernel", "off", &json, "--", "sh", "-c", program];
        let mut command = overhear(&arguments);
        // Ignored signals stay ignored across exec, and the kernel reaps the children of such a
        // process. Shells do not pass this signal on, even with a trap.
        let ignore = || {
            // SAFETY: in the child, a system call without memory.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: `ignore` makes one async-signal-safe call.
        unsafe { command.pre_exec(ignore) };
        let ended = finish(&mut command);
        ended.does_not_panic();
        assert_eq!(ended.status, status, "{ended:#?}");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}: {ended:#?}"));
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["exit"][exit.0], exit.1, "{report:#}");
    }
}

#[test]
fn mistyped_program_keeps_existing_files() {
    let folder = folder();
    let file = folder.path().join("report.json");
    let json = format!("--json={}", file.display());
    let run = |program| {
        let arguments = ["run", "--kernel", "off", &json, "--", program];
        finish(&mut overhear(&arguments))
    };
    // An unused new file is removed again.
    run("treu").has_only_message(127, &["treu"]);
    assert!(!file.exists());
    fs::write(&file, "precious").unwrap();
    run("treu").has_only_message(127, &["treu"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    // After the run of the program, the file contains the report and nothing else.
    assert_eq!(run("true").status, 0);
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["command"], serde_json::json!(["true"]));
}

#[test]
fn mistyped_program_keeps_existing_folders() {
    let folder = folder();
    let out = folder.path().join("out");
    let foreign = [
        out.join("trace/notes.txt"),
        out.join("trace/overhear/deep/notes.txt"),
    ];
    for file in &foreign {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "precious").unwrap();
    }
    let run = |program| {
        let out = path(&out);
        let arguments = ["run", "--kernel", "off", "--out", out, "--", program];
        finish(&mut overhear(&arguments))
    };
    let ended = run("treu");
    assert_eq!(ended.status, 127, "{ended:#?}");
    ended.does_not_panic();
    for file in &foreign {
        let content = fs::read_to_string(file);
        assert_eq!(
            content.unwrap_or_default(),
            "precious",
            "{}",
            file.display()
        );
    }
    // All new files are removed, so the command can be corrected and repeated.
    assert_eq!(fs::read_dir(out.join("trace")).unwrap().count(), 2);
    assert_eq!(fs::read_dir(out.join("trace/overhear")).unwrap().count(), 1);
    assert_eq!(run("true").status, 0);
    assert_eq!(report_json(&out).0.status, 0);
    for file in &foreign {
        assert_eq!(fs::read_to_string(file).unwrap(), "precious");
    }
}
