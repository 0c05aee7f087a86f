// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of other programs have names if they displaced or woke a thread of the program.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{finish, folder, overhear, path, report_json, run_json, Started};

/// Runs in one of which a thread must be displaced.
const RUNS: usize = 3;

/// Loops without a system call, on one CPU, which it shares with other threads.
fn busy(rounds: &str) -> String {
    format!("i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done")
}

#[test]
fn displacing_thread_outside_the_program_has_a_name() {
    let has_taskset = Command::new("taskset").arg("--version").output();
    if !has_taskset.is_ok_and(|output| output.status.success()) {
        println!("skipped: taskset is not installed");
        return;
    }
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = (0..1024)
        .find(|&cpu| allowed.is_set(cpu))
        .unwrap()
        .to_string();
    let folder = folder();
    // A name that no other thread has.
    let passer = folder.path().join("oh-passer");
    fs::copy(fs::canonicalize("/bin/sh").unwrap(), &passer).unwrap();
    let long = busy("20000000");
    let passer =
        Started::spawn(Command::new("taskset").args(["-c", &cpu, path(&passer), "-c", &long]));
    let prices = folder.path().join("prices.json");
    let sensors = ["sched_switch", "sched_wake", "task_life"];
    crate::calibrate::calibration(&prices, &sensors);
    let options = [
        "--metric",
        "preemption",
        "--calibration",
        path(&prices),
        "--out",
    ];
    // On a busy machine the passer may have its turns only while the program waits.
    let was_displaced = |report: &Value| {
        let others = report["other_threads"].as_array().into_iter().flatten();
        let mut names = others.map(|other| &other["comm"]);
        names.any(|comm| comm == "oh-passer")
    };
    let (mut out, mut ended, mut report);
    let mut runs = 0;
    loop {
        out = folder.path().join(format!("out-{runs}"));
        let options = [&options[..], &[path(&out)]].concat();
        (ended, report) = run_json(
            &options,
            &["taskset", "-c", &cpu, "sh", "-c", &busy("200000")],
        );
        runs += 1;
        if was_displaced(&report) || runs == RUNS {
            break;
        }
    }
    passer.signal(libc::SIGKILL);
    let tid = passer.pid();
    passer.end();
    if report["sources"][0]["active"] != "bpf" {
        println!("skipped: {}", report["sources"][0]["message"]);
        return;
    }
    let others = report["other_threads"].as_array().unwrap();
    let found = others.iter().find(|other| other["comm"] == "oh-passer");
    assert_eq!(
        found.map(|found| &found["tid"]),
        Some(&Value::from(tid)),
        "{others:?}"
    );
    let kinds = report["metrics"]["metrics"][0]["tasks"].as_array().unwrap();
    let name = format!("{tid} oh-passer");
    assert!(
        kinds.iter().any(|kind| kind["key_name"] == *name),
        "{kinds:?}"
    );
    // No thread of the program is among them, and every payer with a known name has it.
    let threads = report["threads"].as_array().unwrap();
    let is_other = |thread: &&Value| others.iter().any(|other| other["tid"] == thread["tid"]);
    assert_eq!(threads.iter().find(is_other), None);
    let payers = report["overhead"]["threads"].as_array().unwrap().iter();
    let mut nameless = payers.filter(|payer| payer["comm"] == "").filter(is_other);
    assert_eq!(nameless.next(), None, "{ended:#?}");
    // The recording keeps the names, for the report and for metrics.
    assert_eq!(report_json(&out).1, report);
    let words = ["metrics", path(&out), "--metric", "preemption", "--json"];
    let measured: Value = serde_json::from_str(&finish(&mut overhear(&words)).stdout).unwrap();
    assert_eq!(measured, report["metrics"]);
    let perfetto = folder.path().join("trace.pb");
    let words = [
        "export",
        path(&out),
        "--to",
        "perfetto",
        "--output",
        path(&perfetto),
    ];
    finish(&mut overhear(&words)).does_not_panic();
    let bytes = fs::read(&perfetto).unwrap();
    assert!(bytes.windows(9).any(|some| some == b"oh-passer"));
}
