// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear record`: of running processes, until they end.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{as_nobody, finish, overhear, Ended, Started, WATCHDOG};

/// Number of children that the shell creates.
const CHILDREN: usize = 20;

/// A shell that waits for input, and then ends by itself.
fn shell(mut command: Command) -> Child {
    let script = format!("read line; i=0; while [ $i -lt {CHILDREN} ]; do i=$((i+1)); (:); done");
    command.args(["-c", &script]).stdin(Stdio::piped());
    command.spawn().unwrap()
}

/// Records a shell that creates children; `None` if kernel sensors do not work here.
fn record(mut shell: Child, kept_path: &Path, recorder: &mut Command) -> Option<(u32, Ended)> {
    let mut recording = Started::spawn(recorder);
    // This document is written when all threads have been selected.
    let begun = Instant::now();
    while !kept_path.join("trace/overhear/run.json").exists() {
        if recording.child.try_wait().unwrap().is_some() {
            break;
        }
        assert!(begun.elapsed() < WATCHDOG, "the recorder does not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    shell.stdin.take().unwrap().write_all(b"go\n").unwrap();
    shell.wait().unwrap();
    let ended = recording.end();
    if ended.status == 5 {
        println!("skipped: {}", ended.stderr);
        return None;
    }
    Some((shell.id(), ended))
}

fn report(ended: &Ended) -> Value {
    ended.does_not_panic();
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

fn pids(report: &Value) -> Vec<u64> {
    let threads = report["threads"].as_array().unwrap();
    threads
        .iter()
        .map(|thread| thread["pid"].as_u64().unwrap())
        .collect()
}

#[test]
fn running_process_is_recorded_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let kept_path = folder.path().join("kept");
    let shell = shell(Command::new("sh"));
    let pid = shell.id().to_string();
    let out = kept_path.to_str().unwrap();
    let arguments = ["record", "--pid", &pid, "--out", out, "--json", "--quiet"];
    let metric = folder.path().join("phase.metric");
    let phase = "metric phase\nevent a = user:phase\nstate 0 out\nstate 1 begin\nstate 2 end\n\
        0 -> 1: a, i\n1 -> 2: a, i\n";
    std::fs::write(&metric, phase).unwrap();
    let sensors = [
        "--kernel-sensors",
        "page_fault",
        "--metric",
        "system_call",
        "--metric",
        "run_delay",
    ];
    let mut recorder = overhear(&arguments);
    let recorder = recorder.args(sensors).arg("--metric").arg(&metric);
    let Some((pid, ended)) = record(shell, &kept_path, recorder) else {
        return;
    };
    // There are no sensors of programs.
    assert_eq!(ended.status, 3, "{ended:#?}");
    let live = report(&ended);
    let measured = live["metrics"]["metrics"].as_array().unwrap();
    assert_eq!(
        measured[2]["absent_events"],
        serde_json::json!(["user:phase"])
    );
    let recorded = pids(&live);
    assert!(recorded.contains(&u64::from(pid)), "{recorded:?}");
    assert!(recorded.len() > CHILDREN, "{recorded:?}");
    let source = &live["sources"][0];
    let message = source["message"].as_str().unwrap();
    assert!(message.contains("page_fault"), "{message}");
    // The recording has the same counts.
    let kept = finish(&mut overhear(&["report", out, "--json"]));
    assert_eq!(kept.status, 3, "{kept:#?}");
    assert_eq!(report(&kept), live);
    let page = std::fs::read_to_string(kept_path.join("report.html")).unwrap();
    assert!(page.contains(&pid.to_string()));
    if source["active"] == "bpf" {
        let export = ["export", out, "--to", "csv", "--output", "-"];
        let rows = finish(&mut overhear(&export)).stdout;
        assert!(rows.contains("kernel:syscall") && rows.contains("kernel:page_fault"));
        assert!(rows.contains("kind=5"), "the shell is announced");
        assert!(
            measured[0]["completed"].as_u64().unwrap() > 0,
            "{measured:?}"
        );
        // Metrics of the recording equal those of the run.
        let again = [
            "metrics",
            out,
            "--metric",
            "system_call",
            "--metric",
            "run_delay",
            "--json",
        ];
        let again: Value = serde_json::from_str(&finish(&mut overhear(&again)).stdout).unwrap();
        let again = &again["metrics"].as_array().unwrap()[..];
        let missed = measured[..2].iter().any(|metric| metric["missed"] != 0);
        assert!(missed || again == &measured[..2], "{again:?}");
    }
}

#[test]
fn ordinary_user_records_own_processes() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let kept_path = folder.path().join("kept");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let Some(mut recorder) = as_nobody(&[]) else {
        return;
    };
    let mut own = Command::new("sh");
    own.uid(65_534).gid(65_534);
    let shell = shell(own);
    let pid = shell.id().to_string();
    let out = kept_path.to_str().unwrap();
    recorder.args(["record", "--pid", &pid, "--out", out, "--json", "--quiet"]);
    let Some((pid, ended)) = record(shell, &kept_path, &mut recorder) else {
        return;
    };
    let found = report(&ended);
    assert!(pids(&found).contains(&u64::from(pid)));
    for refused in [["record", "--all"].as_slice(), &["record", "--cgroup", "/"]] {
        if let Some(mut command) = as_nobody(refused) {
            let ended = finish(&mut command);
            ended.does_not_panic();
            assert_eq!(ended.status, 5, "{ended:#?}");
            assert!(ended.stderr.contains("BPF"), "{ended:#?}");
        }
    }
}

#[test]
fn unavailable_named_kernel_sensors_are_refused_before_the_start() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let (ran, out) = (folder.path().join("ran"), folder.path().join("out"));
    let pid = std::process::id().to_string();
    let run = ["run", "--out", out.to_str().unwrap(), "--kernel-sensors"];
    let program = ["--", "touch", ran.to_str().unwrap()];
    for sensor in ["syscall", "all", "sched_wake"] {
        for backend in [&[][..], &["--backend", "perf"]] {
            let words = [&run[..], &[sensor], backend, &program].concat();
            let Some(mut command) = as_nobody(&words) else {
                return;
            };
            finish(&mut command).has_only_message(5, &["--kernel-sensors", sensor, "doctor"]);
            let words = [
                &["record", "--pid", &pid, "--kernel-sensors", sensor],
                backend,
            ]
            .concat();
            let ended = finish(&mut as_nobody(&words).unwrap());
            assert_eq!(ended.status, 5, "{ended:#?}");
        }
    }
    // If the command line names all of them.
    let words = [&run[..], &["syscall", "--kernel", "off"], &program].concat();
    finish(&mut overhear(&words)).has_only_message(2, &["--kernel off", "--kernel-sensors"]);
    assert!(!ran.exists() && !out.exists());
    // Sensors that perf records always have may be named.
    let words = [
        "run",
        "--kernel-sensors",
        "sched_switch,task_life",
        "--",
        "true",
    ];
    let ended = finish(&mut as_nobody(&words).unwrap());
    let has_perf = ended.stderr.contains("perf context-switch records");
    assert_eq!(ended.status, if has_perf { 0 } else { 5 }, "{ended:#?}");
}

#[test]
fn unrecordable_target_is_refused_in_one_message() {
    let unused = i32::MAX.to_string();
    for (arguments, words) in [
        (["--pid", &unused], "does not exist"),
        (["--tid", &unused], "does not exist"),
        (["--cgroup", "/proc"], "cgroup"),
        (["--cgroup", "/no/such/place"], "cgroup"),
    ] {
        let mut command = overhear(&["record", "--duration", "1s"]);
        let ended = finish(command.args(arguments));
        if ended.status == 5 {
            println!("skipped: {}", ended.stderr);
            continue;
        }
        ended.has_only_message(2, &[words]);
    }
    for (flag, kept_path, words) in [
        ("--probe", "/bin/sh", "FILE:SYMBOL"),
        ("--usdt", "/bin/sh:name", "FILE:PROVIDER:NAME"),
        ("--probe", "/etc/passwd:main", "not ELF"),
        ("--probe", "/no/such/file:main", "cannot be probed"),
    ] {
        let ended = finish(&mut overhear(&["record", "--all", flag, kept_path]));
        ended.has_message(2, &[words]);
        let ended = finish(&mut overhear(&["run", flag, kept_path, "--", "true"]));
        ended.has_message(2, &[words]);
    }
    let ended = finish(&mut overhear(&["record"]));
    assert_eq!(ended.status, 2);
    let ended = finish(&mut overhear(&[
        "record",
        "--all",
        "--kernel-sensors",
        "nonsense",
    ]));
    ended.has_message(2, &["no kernel sensor", "page_fault"]);
}

#[test]
fn documentation_describes_each_kernel_sensor() {
    let page = include_str!("../../../../docs/kernel-sensors.md");
    for sensor in overhear_kernel::Sensor::all() {
        let name = sensor.name();
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}` |")));
        let row = row.unwrap_or_else(|| panic!("docs/kernel-sensors.md lacks {name}"));
        for field in sensor.schema().fields() {
            let threads =
                matches!(&*field.name, "tid" | "pid") || row.contains(&format!("`{}`", field.name));
            assert!(
                threads,
                "docs/kernel-sensors.md lacks {} of {name}",
                field.name
            );
        }
    }
}

#[test]
fn budget_of_a_running_process() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut copy = Command::new("dd");
    let copy = copy.args(["if=/dev/zero", "of=/dev/null", "bs=1"]);
    let mut copy = copy.stderr(Stdio::null()).spawn().unwrap();
    let pid = copy.id().to_string();
    let options = [
        "record",
        "--pid",
        &pid,
        "--kernel-sensors",
        "syscall",
        "--duration",
        "3s",
    ];
    let more = [
        "--budget",
        "1%",
        "--json",
        "--no-page",
        "--out",
        out.to_str().unwrap(),
    ];
    let ended = finish(&mut overhear(&[&options[..], &more].concat()));
    copy.kill().unwrap();
    copy.wait().unwrap();
    if ended.status == 5 {
        println!("skipped: {}", ended.stderr);
        return;
    }
    assert_eq!(ended.status, 3, "{ended:#?}");
    let report = report(&ended);
    let budget = &report["budget"];
    assert_eq!(budget["target"], 0.01, "{report:#}");
    // The CPU time is that of the children, too: the shell itself only waits.
    assert!(
        budget["cpu_ns"].as_u64().unwrap() > 500_000_000,
        "{budget:#}"
    );
    let all = budget["sensors"].as_array().unwrap();
    let calls = all
        .iter()
        .find(|it| it["name"] == "kernel:syscall")
        .unwrap();
    assert!(calls["share_on"].as_f64().unwrap() < 0.9, "{budget:#}");
    let losses = report["losses"].as_array().unwrap();
    assert!(
        losses.iter().any(|loss| loss["cause"] == "budget"),
        "{losses:#?}"
    );
    let recorded = finish(&mut overhear(&["report", out.to_str().unwrap(), "--json"]));
    let recorded: Value = serde_json::from_str(&recorded.stdout).unwrap();
    assert_eq!(recorded["budget"], *budget);
}

#[test]
fn budget_that_nothing_can_keep_is_refused() {
    for (options, message) in [
        (
            ["--backend", "perf", "--budget", "5%"],
            "the budget has no source that can be switched",
        ),
        (
            ["--backend", "auto", "--budget", "-1%"],
            "an overhead of -1 % is not possible",
        ),
    ] {
        let pid = std::process::id().to_string();
        let ended = finish(&mut overhear(
            &[&["record", "--pid", &pid], &options[..]].concat(),
        ));
        ended.has_message(2, &[message]);
    }
}
