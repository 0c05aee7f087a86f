// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every built-in metric on a run of a program with its events.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use overhear_metrics::automaton::system_metrics;
use serde_json::Value;

use crate::harness::{cpu_lock, eventful, Backend, OVERHEAR};

/// `eventful.c` does each thing twice as often. On a busy machine a sleep can be over before it has
/// begun, for example.
const HALF: u64 = 10;

/// Minimum number of measurements of a metric, by threads.
const LEAST: [(&str, &str, u64); 25] = [
    ("wakeup_latency", "sleeps", HALF),
    ("run_delay", "sleeps", HALF),
    ("dispatch", "sleeps", HALF),
    ("off_cpu", "sleeps", HALF),
    ("blocked", "sleeps", HALF),
    ("time_slice", "sleeps", HALF),
    ("preemption", "computes", 1),
    ("response_time", "sleeps", HALF - 1),
    ("system_call", "calls", HALF),
    ("futex_wait", "waits", HALF),
    ("interrupt", "computes", 1),
    ("softirq", "computes", 1),
    ("delay_until_wakeup", "sleeps", HALF),
    ("timer_handler", "sleeps", HALF),
    ("timer_latency", "sleeps", HALF),
    ("job_system_time", "sleeps", HALF - 1),
    ("context_switch", "sleeps", HALF),
    ("schedule_and_dispatch", "sleeps", HALF),
    ("page_fault", "faults", HALF),
    ("block_io", "writes", HALF),
    ("system_blocking", "calls", HALF),
    ("lock_blocking", "holds", HALF),
    ("priority_inversion", "wants", HALF),
    ("futex_blocking", "wakes", HALF),
    ("lock_wait", "pushes", HALF),
];

/// The reason why a metric cannot measure anything here, with any program.
fn lacks(metric: &str, folder: &Path) -> Option<&'static str> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    // File systems without a device have the major number 0; the devices of those with several are
    // unknown.
    let device = std::fs::metadata(folder).unwrap().dev();
    match metric {
        "lock_wait" if cpus == 1 => Some("one CPU: nobody wants a lock while another holds it"),
        "block_io" if libc::major(device) == 0 => {
            Some("no block device is behind the test's files")
        }
        _ => None,
    }
}

fn of_threads(metric: &Value, comm: &str) -> u64 {
    let rows = metric["tasks"].as_array().unwrap().iter();
    let own = rows.filter(|row| row["comm"] == comm);
    own.map(|row| row["count"].as_u64().unwrap()).sum()
}

#[test]
fn every_built_in_metric_measures_its_program() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let named: Vec<&str> = LEAST.iter().map(|(name, ..)| *name).collect();
    let mut known: Vec<&str> = system_metrics().collect();
    known.sort_unstable_by_key(|name| named.iter().position(|other| other == name));
    assert_eq!(known, named, "a metric needs a line here");

    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(OVERHEAR);
    command.args(["run", "--quiet", "--backend", "bpf", "--json"]);
    for name in &named {
        command.args(["--metric", name]);
    }
    command.arg("--").arg(eventful());
    let output = command.arg(folder.path().join("file")).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{messages}"));
    let message = report["sources"][0]["message"].as_str().unwrap();
    if message.contains("no sensor") || message.contains("not seen") {
        // Sensors that this kernel lacks are named; the others are measured.
        println!("skipped: {message}");
    }
    let metrics = report["metrics"]["metrics"].as_array().unwrap();
    for (metric, (name, comm, least)) in metrics.iter().zip(LEAST) {
        assert_eq!(metric["name"], name);
        let absent = metric["absent_events"].as_array().unwrap();
        if absent.iter().any(|event| {
            let sensor = event.as_str().unwrap().trim_start_matches("kernel:");
            message.contains(&format!("no sensor {sensor}"))
        }) {
            continue;
        }
        assert!(absent.is_empty(), "{metric}");
        if let Some(lack) = lacks(name, folder.path()) {
            println!("skipped: {lack}");
            continue;
        }
        let found = of_threads(metric, comm);
        println!(
            "{name}: {found} of `{comm}`, {} in all",
            metric["completed"]
        );
        // Missed elements may be those of the others; a missing hook counts as well.
        let missed = metric["missed"].as_u64().unwrap();
        assert!(
            found + missed >= least,
            "{name}: {found} of {least}: {metric}"
        );
    }
    contain_each_other(metrics);
}

/// The paper's metrics by what they contain: a stretch in the kernel at least as long as a call
/// that was not displaced, the delay until a wake-up more than the handler of its timer, and a
/// job's system time that delay and the next call.
fn contain_each_other(metrics: &[Value]) {
    let median = |name: &str, comm: &str| {
        let metric = metrics
            .iter()
            .find(|metric| metric["name"] == name)
            .unwrap();
        let is_complete =
            metric["absent_events"].as_array().unwrap().is_empty() && metric["missed"] == 0;
        let rows = metric["tasks"].as_array().unwrap().iter();
        let mut rows = rows.filter(|row| row["comm"] == comm);
        let row = rows.next().filter(|_| is_complete)?;
        row["median_ns"].as_u64()
    };
    for (shorter, longer, comm) in [
        ("timer_handler", "delay_until_wakeup", "sleeps"),
        ("delay_until_wakeup", "job_system_time", "sleeps"),
    ] {
        let (Some(inner), Some(outer)) = (median(shorter, comm), median(longer, comm)) else {
            println!("skipped: {shorter} or {longer} is not whole");
            continue;
        };
        assert!(inner < outer, "{shorter} {inner} ns, {longer} {outer} ns");
    }
    // Half of the calls at least were not displaced.
    let of_calls = |name: &str, value: &str| {
        let metric = metrics
            .iter()
            .find(|metric| metric["name"] == name)
            .unwrap();
        let rows = metric["tasks"].as_array().unwrap().iter();
        let own = rows.filter(|row| row["comm"] == "calls");
        own.filter_map(|row| row[value].as_u64()).max().unwrap()
    };
    let call = of_calls("system_call", "median_ns");
    let stretch = of_calls("system_blocking", "max_ns");
    assert!(
        stretch >= call,
        "a stretch of {stretch} ns, a call of {call} ns"
    );
}
