// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that metrics require are switched on, and others can be switched off.

use std::process::Command;

use serde_json::Value;

use crate::harness::{cpu_lock, Backend, OVERHEAR};
use crate::sensing;

fn report(arguments: &[&str], program: &[std::ffi::OsString]) -> Value {
    let mut command = Command::new(OVERHEAR);
    command.args(["run", "--quiet", "--json"]).args(arguments);
    let output = command.arg("--").args(program).output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{messages}"))
}

#[test]
fn metric_enables_its_kernel_sensors() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let report = report(
        &["--backend", "bpf", "--metric", "system_call"],
        &["true".into()],
    );
    let message = report["sources"][0]["message"].as_str().unwrap();
    if message.contains("no sensor syscall") {
        return println!("skipped: {message}");
    }
    let metric = &report["metrics"]["metrics"][0];
    assert_eq!(metric["absent_events"], serde_json::json!([]), "{metric}");
    assert!(metric["completed"].as_u64().unwrap() > 0, "{metric}");
    // Exactly this sensor: no others are recorded.
    assert!(message.ends_with("besides syscall"), "{message}");
}

/// The recorded kernel sensors.
fn recorded(report: &Value) -> Vec<&str> {
    let sensors = report["sources"][0]["sensors"].as_array().unwrap();
    sensors.iter().map(|name| name.as_str().unwrap()).collect()
}

#[test]
fn unneeded_wake_ups_are_not_recorded() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let program = ["sh".into(), "-c".into(), "sleep 0.01; true".into()];
    let run = |arguments: &[&str]| report(&[&["--backend", "bpf"], arguments].concat(), &program);
    let all = ["sched_switch", "sched_wake", "task_life"];
    let few = ["sched_switch", "task_life"];

    let switches = run(&["--disable-unused", "--metric", "time_slice"]);
    assert_eq!(recorded(&switches), few);
    let metric = &switches["metrics"]["metrics"][0];
    assert_eq!(metric["absent_events"], serde_json::json!([]), "{metric}");
    assert!(metric["completed"].as_u64().unwrap() > 0, "{metric}");
    // Times that need wake-ups are unknown, and never zero.
    let threads = switches["threads"].as_array().unwrap();
    assert!(!threads.is_empty());
    for thread in threads {
        for unknown in ["runnable_ns", "blocked_ns", "wakeup_latency_ns"] {
            assert!(thread[unknown].is_null(), "{unknown} of {thread}");
        }
    }
    let message = switches["sources"][0]["message"].as_str().unwrap();
    assert!(message.contains("without wake-ups"), "{message}");

    assert_eq!(
        recorded(&run(&["--disable-unused", "--metric", "wakeup_latency"])),
        all
    );
    assert_eq!(recorded(&run(&["--metric", "time_slice"])), all);
    // Named sensors and required sensors are on.
    let named = ["--kernel-sensors", "sched_switch", "--metric"];
    assert_eq!(recorded(&run(&[&named[..], &["time_slice"]].concat())), few);
    assert_eq!(
        recorded(&run(&[&named[..], &["wakeup_latency"]].concat())),
        all
    );
    let named = ["--disable-unused", "--kernel-sensors", "sched_wake"];
    assert_eq!(recorded(&run(&named)), all);
}

#[test]
fn recording_without_wake_ups_has_a_note() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kept_path = folder.path().join("kept");
    let out = kept_path.to_str().unwrap();
    let program = ["sh".into(), "-c".into(), "sleep 0.01; true".into()];
    let arguments = [
        "--backend",
        "bpf",
        "--kernel-sensors",
        "sched_switch",
        "--out",
        out,
    ];
    let live = report(&arguments, &program);
    let overhear = |arguments: &[&str]| {
        let output = Command::new(OVERHEAR).args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), text)
    };
    let (status, text) = overhear(&["report", out, "--json"]);
    // 3 if the machine was busy and elements were missed.
    assert!(matches!(status, Some(0 | 3)), "{text}");
    let kept: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(kept["sources"], live["sources"]);
    assert_eq!(kept["threads"], live["threads"]);
    let (_, text) = overhear(&["report", out]);
    assert!(text.contains("without wake-ups"), "{text}");
    // A metric without its required sensors is inconclusive.
    let (status, text) = overhear(&["metrics", out, "--metric", "wakeup_latency", "--json"]);
    assert_eq!(status, Some(3), "{text}");
    let found: Value = serde_json::from_str(&text).unwrap();
    let metric = &found["metrics"][0];
    assert_eq!(
        metric["absent_events"],
        serde_json::json!(["kernel:sched_wake"])
    );
    assert_eq!(metric["completed"], 0);
    // A compensation names its missing sensors.
    let prices = folder.path().join("prices.json");
    let cost = serde_json::json!({ "mean_ns": 100.0, "deviation_ns": 1.0, "within_ns": 1.0, "samples": 41 });
    let sensor = serde_json::json!({
        "sensor": "sched_switch", "by": "hand", "cost_per_event": cost, "constant": null, "assumed": false
    });
    let calibration = serde_json::json!({
        "overhear_version": "0.1.0", "measured_at": 1, "cpu": "another", "release": "another",
        "rounds": 41, "kernel": [sensor], "programs": [], "reading": [], "notes": [],
    });
    std::fs::write(&prices, calibration.to_string()).unwrap();
    let prices = prices.to_str().unwrap();
    let compensated = ["report", out, "--compensate", "--calibration", prices];
    let (_, text) = overhear(&compensated);
    assert!(
        text.contains("without wake-ups no delay is carried"),
        "{text}"
    );
    let (_, text) = overhear(&[&compensated[..], &["--json"]].concat());
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["compensation"]["along_wakeups"], false);
}

#[test]
fn unneeded_sensors_write_nothing() {
    let _cpus = cpu_lock();
    let program = sensing::command(&std::env::current_exe().unwrap());
    let elements = |arguments: &[&str]| -> u64 {
        let report = report(&[&["--kernel", "off"], arguments].concat(), &program);
        let sensors = report["sensors"].as_array().unwrap();
        assert_eq!(sensors.len() as u64, sensing::SENSORS, "{sensors:?}");
        let each = sensors
            .iter()
            .map(|sensor| sensor["elements"].as_u64().unwrap());
        each.sum()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overhear.toml");
    let named = |sensor: &str| {
        let text = format!("[[metric]]\nname = \"own\"\ninitial = \"{sensor}\"\n");
        std::fs::write(&file, text).unwrap();
        elements(&["--disable-unused", "--config", file.to_str().unwrap()])
    };
    assert_eq!(named("battery"), sensing::SENSORS * sensing::ELEMENTS);
    assert_eq!(named("another"), 0);
    // Sensors of the file's monitor are needed, too.
    let monitored = |sensor: &str| {
        let text = format!(
            "[monitor]\nlatency = \"1 s\"\nexecutor = \"best_effort\"\n\
             [[sensor]]\nid = \"{sensor}\"\nperiod = \"50 us\"\ncount = {}\n\
             [[update]]\nname = \"counts\"\nwcet = \"1 us\"\n",
            sensing::SENSORS
        );
        std::fs::write(&file, text).unwrap();
        elements(&["--disable-unused", "--config", file.to_str().unwrap()])
    };
    assert_eq!(monitored("battery"), sensing::SENSORS * sensing::ELEMENTS);
    assert_eq!(monitored("another"), 0);
}
