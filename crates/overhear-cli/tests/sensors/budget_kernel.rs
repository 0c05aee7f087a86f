// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets on kernel sensors and probes: each event is recorded or counted, or the report states
//! that it was not counted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::budget::{lost, number, sensor};
use crate::program::compiled;
use crate::support::{finish, folder, overhear, path, report_json, run_json, Ended};

/// Calls that a program may make besides those of its loop: of `overhear` before it executes the
/// program, of the loader and of the C library.
const OTHER_CALLS: u64 = 2_000;

fn caller() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("tests/sensors/caller.c", "caller"))
}

/// Runs the program; `None` where BPF is not permitted.
fn call(options: &[&str], calls: u64, steps: u64) -> Option<(Ended, Value)> {
    call_between(options, calls, steps, 1)
}

/// As [`call`], with this multiple of the work between two calls.
fn call_between(options: &[&str], calls: u64, steps: u64, times: u64) -> Option<(Ended, Value)> {
    let has_bpf = {
        let (_, report) = run_json(&[], &["true"]);
        report["sources"][0]["active"] == "bpf"
    };
    if !has_bpf {
        println!("skipped: the machine does not permit BPF programs");
        return None;
    }
    let [calls, steps, times] = [calls, steps, times].map(|count| count.to_string());
    Some(run_json(options, &[path(caller()), &calls, &steps, &times]))
}

#[test]
fn every_event_of_a_counted_sensor_is_recorded_or_counted() {
    const CALLS: u64 = 400_000;
    let folder = folder();
    let out = folder.path().join("out");
    let tracepoint = ["--tracepoint", "raw_syscalls:sys_enter"];
    let options = [&tracepoint[..], &["--budget", "2%", "--out", path(&out)]].concat();
    let Some((ended, report)) = call(&options, CALLS, 0) else {
        return;
    };
    assert_eq!(ended.status, 3, "{ended:#?}");
    let calls = sensor(&report, "raw_syscalls/sys_enter");
    let (written, skipped) = (number(calls, "written"), number(calls, "skipped"));
    assert!(written > 0 && skipped > 0, "{calls}");
    let all = CALLS..CALLS + OTHER_CALLS;
    assert!(all.contains(&(written + skipped)), "{calls}");
    // The sensors of scheduling may have gaps as well.
    let losses = report["losses"].as_array().unwrap().iter();
    let of_calls = losses.filter(|loss| {
        let stream = loss["stream"].as_str().unwrap();
        loss["cause"] == "budget" && stream.contains("raw_syscalls/sys_enter")
    });
    let missed: u64 = of_calls.map(|loss| number(loss, "missed")).sum();
    assert_eq!(missed, skipped, "{report:#}");
    assert!(number(&report["budget"], "counting_ns") > 0);
    let (_, recorded) = report_json(&out);
    assert_eq!(recorded["budget"], report["budget"]);
    assert_eq!(recorded["losses"], report["losses"]);
}

#[test]
fn detached_probe_has_gaps_and_no_count() {
    const STEPS: u64 = 150_000;
    let probes = ["", ":return"].map(|suffix| format!("{}:budget_step{suffix}", path(caller())));
    let [entry, exit] = &probes;
    let options = ["--budget", "5%", "--probe", entry, "--probe", exit];
    let Some((ended, report)) = call(&options, 0, STEPS) else {
        return;
    };
    assert_eq!(ended.status, 3, "{ended:#?}");
    let [of_entry, of_exit] = ["", "/return"]
        .map(|suffix| sensor(&report, &format!("kernel:probe/budget_step{suffix}")).clone());
    assert_eq!(of_entry["skipped"], Value::Null, "{of_entry}");
    let [entries, exits] = [&of_entry, &of_exit].map(|sensor| number(sensor, "written"));
    assert!((1..STEPS).contains(&entries), "{of_entry}");
    // Returns without their entries have no use.
    let share = |sensor: &Value| sensor["share_on"].as_f64().unwrap();
    assert!(
        share(&of_exit) <= share(&of_entry) && exits <= STEPS,
        "{of_exit}"
    );
    assert!(lost(&report, "budget") > 0, "{report:#}");
    assert_eq!(report["complete"], false);
    let lines = finish(&mut overhear(&[
        "run",
        "--budget",
        "5%",
        "--probe",
        entry,
        "--",
        path(caller()),
        "0",
        "100000",
    ]));
    assert!(
        lines.stderr.contains("kernel:probe/budget_step"),
        "{lines:#?}"
    );
}

#[test]
fn budget_that_suffices_leaves_no_kernel_event_out() {
    const CALLS: u64 = 10_000;
    let options = ["--budget", "100000%", "--kernel-sensors", "syscall"];
    // Enough work that the events cannot take all the time, whatever their first price.
    let Some((_, report)) = call_between(&options, CALLS, 0, 100) else {
        return;
    };
    let calls = sensor(&report, "kernel:syscall");
    assert!(number(calls, "written") >= 2 * CALLS, "{calls}");
    assert_eq!(number(calls, "skipped"), 0, "{calls}");
    assert_eq!(lost(&report, "budget"), 0);
}

#[test]
fn probe_that_is_always_on_is_never_detached() {
    const STEPS: u64 = 20_000;
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let text = "[budget]\ntarget = \"2%\"\n\
                [[budget.sensor]]\nname = \"kernel:probe/*\"\nalways = true\n";
    fs::write(&file, text).unwrap();
    let probe = format!("{}:budget_step", path(caller()));
    let options = ["--config", path(&file), "--probe", &probe];
    let Some((_, report)) = call(&options, 0, STEPS) else {
        return;
    };
    let passes = sensor(&report, "kernel:probe/budget_step");
    assert_eq!(number(passes, "written"), STEPS, "{passes}");
    assert_eq!(number(passes, "skipped"), 0, "{passes}");
    let notes = report["notes"].to_string();
    // Without costs of counting the note has another form.
    let forms = [
        "the budget cannot be kept",
        "sensors that are always on cost",
    ];
    assert!(forms.iter().any(|form| notes.contains(form)), "{notes}");
}

#[test]
fn constraint_over_skipped_events_of_the_kernel_follows_the_file() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let constraint = |name: &str, more: &str| {
        format!(
            "[[constraint]]\nname = \"{name}\"\nof = \"kernel:syscall\"\nfield = \"number\"\n\
             min = 0\n{more}"
        )
    };
    let [all, sample] = [
        constraint("all", ""),
        constraint("sample", "sampled = true\n"),
    ];
    fs::write(&file, format!("[budget]\ntarget = \"2%\"\n{all}{sample}")).unwrap();
    let Some((_, report)) = call(&["--config", path(&file)], 400_000, 0) else {
        return;
    };
    let constraints = report["check"]["constraints"].as_array().unwrap();
    assert_eq!(constraints[0]["verdict"], "inconclusive", "{report:#}");
    let other = lost(&report, "overwritten") + lost(&report, "late");
    let expected = if other == 0 { "held" } else { "inconclusive" };
    assert_eq!(constraints[1]["verdict"], expected, "{report:#}");
    let reasons = constraints[1]["reasons"].to_string();
    assert!(reasons.contains("judged as a sample: "), "{reasons}");
}
