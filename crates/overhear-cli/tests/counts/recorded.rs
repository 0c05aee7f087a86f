// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recording: it gives the report of the run, and the same counts to other tools.

use std::env;
use std::ffi::OsString;
use std::process::Command;

use serde_json::Value;

use crate::harness::{cpu_lock, has_tool, workload, Backend, Overhear, OVERHEAR};
use crate::sensing::{self, ELEMENTS, SENSORS};

/// A program with all kinds of switches, and one with sensors.
fn programs() -> [Vec<OsString>; 2] {
    [
        vec![workload().into(), "park".into()],
        sensing::command(&env::current_exe().unwrap()),
    ]
}

/// Equal to the last member: also the trace's path, because both were given the same one.
fn recorded_is_live(backend: Backend) {
    let _cpus = cpu_lock();
    if !backend.works() {
        return;
    }
    for program in programs() {
        let folder = tempfile::tempdir().unwrap();
        let overhear = Overhear::new(&folder).backend(backend);
        let live = overhear.run(&program).report;
        let output = Command::new(OVERHEAR)
            .arg("report")
            .arg(overhear.trace())
            .arg("--json")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let recorded: Value = serde_json::from_slice(&output.stdout).unwrap();
        for (member, value) in live.as_object().unwrap() {
            assert_eq!(value, &recorded[member], "{member}");
        }
        assert_eq!(live, recorded);
    }
}

#[test]
fn recorded_is_live_via_bpf() {
    recorded_is_live(Backend::Bpf);
}

#[test]
fn recorded_is_live_via_perf() {
    recorded_is_live(Backend::Perf);
}

#[test]
fn babeltrace2_counts_the_same_events() {
    let _cpus = cpu_lock();
    if !has_tool("babeltrace2") {
        return;
    }
    for program in programs() {
        let folder = tempfile::tempdir().unwrap();
        let overhear = Overhear::new(&folder);
        let found = overhear.run(&program);
        let output = Command::new("babeltrace2")
            .arg(overhear.trace().join("trace"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let events = text.lines().count() as u64;
        println!("{events} events by babeltrace2");
        assert_eq!(found.report["trace"]["events"], events);
        // Every line is an event, and all elements of the sensors are there.
        assert!(text.lines().all(|line| line.starts_with('[')));
        let sensors = found.report["sensors"].as_array().unwrap();
        if !sensors.is_empty() {
            assert_eq!(sensors.len() as u64, SENSORS);
            let levels = text.lines().filter(|line| line.contains("volts"));
            assert_eq!(levels.count() as u64, SENSORS * ELEMENTS);
        }
    }
}
