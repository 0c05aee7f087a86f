// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to end, without a terminal: the program ends, and the report is written in each case.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use crate::support::{
    awaited, children, eventually, finish, folder, hangups, lives, overhear, path, report_json,
    send, Ended, Started,
};

/// A shell script that writes its process id to a file, and then runs `rest`.
fn script(started: &Path, rest: &str) -> String {
    format!("echo $$ > {}; {rest}", started.display())
}

/// Runs a script, sends the signals to `overhear` alone, and expects this status, a page and a
/// recording.
#[track_caller]
fn interrupted(rest: &str, signals: &[i32], status: i32) {
    let folder = folder();
    let (started, out) = (folder.path().join("started"), folder.path().join("out"));
    let script = script(&started, rest);
    let arguments = [
        "run",
        "--kernel",
        "off",
        "--out",
        path(&out),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let mut command = overhear(&arguments);
    hangups(&mut command, libc::SIG_DFL);
    let run = Started::spawn(&mut command);
    let program: i32 = awaited(&started).trim().parse().unwrap();
    // Time for the script to go from its first line to its wait.
    sleep(Duration::from_millis(100));
    for signal in signals {
        run.signal(*signal);
        // Two pending signals of one kind are merged.
        sleep(Duration::from_millis(100));
    }
    let ended = run.end();
    ended.does_not_panic();
    assert_eq!(ended.status, status, "{ended:#?}");
    assert!(ended.stderr.contains("report: "), "{ended:#?}");
    assert!(out.join("report.html").exists());
    assert!(!lives(program), "the program was left behind");
    let (_, report) = report_json(&out);
    assert_eq!(report["complete"], true, "{report:#}");
    assert!(!report["exit"].is_null());
}

#[test]
fn interrupt_ends_the_program_and_writes_the_report() {
    interrupted("exec sleep 50", &[libc::SIGINT], 130);
}

#[test]
fn other_requests_are_passed_on_as_they_are() {
    interrupted("exec sleep 50", &[libc::SIGTERM], 143);
    interrupted("exec sleep 50", &[libc::SIGHUP], 129);
}

/// A container that was entered without a session of its own: the leader of the session has no id
/// inside.
#[test]
fn requests_are_passed_on_where_the_leader_of_the_session_has_no_id() {
    let namespace = ["--pid", "--fork", "--mount-proc"];
    let permitted = Command::new("unshare").args(namespace).arg("true").output();
    if !permitted.is_ok_and(|output| output.status.success()) {
        println!("skipped: no permission to make a PID namespace");
        return;
    }
    for (signal, status) in [("HUP", 129), ("TERM", 143)] {
        let script = format!("kill -{signal} $PPID; exec sleep 50");
        let mut command = Command::new("unshare");
        command
            .args(namespace)
            .args([env!("CARGO_BIN_EXE_overhear"), "run", "--kernel", "off"])
            .args(["--", "sh", "-c", &script]);
        hangups(&mut command, libc::SIG_DFL);
        let ended = finish(&mut command);
        ended.does_not_panic();
        assert_eq!(ended.status, status, "{ended:#?}");
    }
}

#[test]
fn program_that_ignores_interrupts_is_terminated() {
    interrupted("trap '' INT; exec sleep 50", &[libc::SIGINT], 143);
}

#[test]
fn interrupted_program_keeps_its_own_status() {
    interrupted(
        "trap 'exit 7' TERM; while :; do sleep 0.02; done",
        &[libc::SIGTERM],
        7,
    );
}

#[test]
fn requests_escalate() {
    interrupted(
        "trap '' INT; trap 'exit 3' TERM; while :; do sleep 0.02; done",
        &[libc::SIGINT],
        3,
    );
    // The first is ignored, the second becomes SIGTERM, independent of its kind.
    interrupted(
        "trap : INT; while :; do sleep 0.02; done",
        &[libc::SIGINT, libc::SIGINT],
        143,
    );
    // The third cannot be ignored.
    let three = [libc::SIGINT, libc::SIGINT, libc::SIGINT];
    interrupted(
        "trap '' INT TERM; while :; do sleep 0.02; done",
        &three,
        137,
    );
}

#[test]
fn background_run_of_a_script_can_be_interrupted() {
    let folder = folder();
    let (started, out) = (folder.path().join("started"), folder.path().join("out"));
    // A shell without job control makes its background commands ignore SIGINT.
    let line = format!(
        "{} run --kernel off --out {} -- sh -c 'echo $$ > {}; exec sleep 50' & echo $! > {}; wait $!",
        env!("CARGO_BIN_EXE_overhear"),
        out.display(),
        started.display(),
        folder.path().join("pid").display(),
    );
    let shell = Started::spawn(Command::new("sh").args(["-c", &line]));
    let program: i32 = awaited(&started).trim().parse().unwrap();
    let run: i32 = awaited(&folder.path().join("pid")).trim().parse().unwrap();
    send(run, libc::SIGINT);
    let ended = shell.end();
    assert!([130, 143].contains(&ended.status), "{ended:#?}");
    assert!(out.join("report.html").exists());
    assert!(!lives(program));
}

#[test]
fn ignored_hangup_stays_ignored() {
    let folder = folder();
    let started = folder.path().join("started");
    let script = script(&started, "sleep 0.5; exit 4");
    // As `nohup` does: the program must survive the terminal.
    let line = format!(
        "trap '' HUP; exec {} run --kernel off -- sh -c '{script}'",
        env!("CARGO_BIN_EXE_overhear")
    );
    let run = Started::spawn(Command::new("sh").args(["-c", &line]));
    awaited(&started);
    run.signal(libc::SIGHUP);
    assert_eq!(run.end().status, 4);
}

#[test]
fn killed_program_ends_the_run() {
    let folder = folder();
    let started = folder.path().join("started");
    let script = script(&started, "exec sleep 50");
    let run = Started::spawn(&mut overhear(&[
        "run", "--kernel", "off", "--", "sh", "-c", &script,
    ]));
    send(awaited(&started).trim().parse().unwrap(), libc::SIGKILL);
    assert_eq!(run.end().status, 137);
}

#[test]
fn children_that_outlive_the_program_do_not_hold_up_the_report() {
    let folder = folder();
    let started = folder.path().join("started");
    let script = format!("sleep 50 & echo $! > {}", started.display());
    let ended = finish(&mut overhear(&[
        "run", "--kernel", "off", "--", "sh", "-c", &script,
    ]));
    let orphan: i32 = awaited(&started).trim().parse().unwrap();
    assert!(lives(orphan), "{ended:#?}");
    send(orphan, libc::SIGKILL);
    eventually("the orphan ends", || !lives(orphan));
    assert_eq!(ended.status, 0);
}

/// A program that leaves a process in a session of its own. That process writes its id to a file,
/// and then runs `rest`.
fn leaves_behind(folder: &Path, rest: &str) -> String {
    let there = folder.join("there");
    let inner = format!("echo $$ > {}; {rest}", there.display());
    // It ends after the start of the other one.
    format!(
        "setsid sh -c '{inner}' & until [ -s {} ]; do sleep 0.01; done; exit 3",
        there.display()
    )
}

/// Whether kernel sensors report processes here; prints "skipped" if not.
fn knows_processes(ended: &Ended) -> bool {
    let known = ended.status != 5;
    if !known {
        println!("skipped: {}", ended.stderr);
    }
    known
}

#[test]
fn run_until_all_ended_outlasts_its_program() {
    let folder = folder();
    let (out, late) = (folder.path().join("out"), folder.path().join("late"));
    let rest = format!("sleep 0.3; (sleep 0.3; echo > {}) &", late.display());
    let script = leaves_behind(folder.path(), &rest);
    for backend in ["auto", "perf"] {
        let _ = fs::remove_dir_all(&out);
        let _ = fs::remove_file(&late);
        let _ = fs::remove_file(folder.path().join("there"));
        let options = [
            "run",
            "--backend",
            backend,
            "--until",
            "all-ended",
            "--out",
            path(&out),
        ];
        let ended = finish(&mut overhear(
            &[&options[..], &["--", "sh", "-c", &script]].concat(),
        ));
        if !knows_processes(&ended) {
            continue;
        }
        // The program's own status, after the end of everything.
        assert_eq!(ended.status, 3, "{ended:#?}");
        assert!(late.exists(), "{ended:#?}");
        assert!(!ended.stderr.contains("still alive"), "{ended:#?}");
        let (_, report) = report_json(&out);
        assert!(
            report["duration_ns"].as_u64() > Some(600_000_000),
            "{report:#}"
        );
        let threads = report["threads"].as_array().unwrap();
        let sleeps = threads.iter().filter(|thread| thread["comm"] == "sleep");
        assert!(sleeps.count() >= 2, "{threads:#?}");
    }
}

#[test]
fn requests_go_to_the_remaining_processes() {
    let folder = folder();
    let there = folder.path().join("there");
    for (rest, signals) in [
        ("exec sleep 50", &[libc::SIGTERM][..]),
        (
            "trap \"\" TERM INT; exec sleep 50",
            &[libc::SIGINT, libc::SIGTERM, libc::SIGINT],
        ),
    ] {
        let _ = fs::remove_file(&there);
        let script = leaves_behind(folder.path(), rest);
        let options = ["run", "--until", "all-ended", "--", "sh", "-c", &script];
        let run = Started::spawn(&mut overhear(&options));
        let mut left = 0;
        eventually("the program has ended and left one behind", || {
            left = fs::read_to_string(&there)
                .unwrap_or_default()
                .trim()
                .parse()
                .unwrap_or(0);
            let programs = children(run.pid());
            left != 0 && (programs.iter().all(|&pid| !lives(pid)) || !lives(run.pid()))
        });
        for signal in signals {
            run.signal(*signal);
            // Two pending signals of one kind are merged.
            sleep(Duration::from_millis(100));
        }
        let ended = run.end();
        assert!(!lives(left), "{ended:#?}");
        if knows_processes(&ended) {
            assert_eq!(ended.status, 3, "{ended:#?}");
        }
    }
}

#[test]
fn run_until_all_ended_needs_kernel_sensors() {
    let options = [
        "run",
        "--kernel",
        "off",
        "--until",
        "all-ended",
        "--",
        "true",
    ];
    finish(&mut overhear(&options)).has_only_message(2, &["--until all-ended", "--kernel off"]);
}
