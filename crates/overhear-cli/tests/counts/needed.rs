// SPDX-License-Identifier: MIT OR Apache-2.0
//! What metrics require is switched on, and what they do not require can be switched off.

use std::process::Command;

use serde_json::Value;

use crate::harness::{turn, Via, OVERHEAR};
use crate::sensing;

fn report(words: &[&str], program: &[std::ffi::OsString]) -> Value {
    let mut command = Command::new(OVERHEAR);
    command.args(["run", "--quiet", "--json"]).args(words);
    let output = command.arg("--").args(program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{said}"))
}

#[test]
fn a_metric_switches_on_the_kernel_sensors_that_it_requires() {
    let _turn = turn();
    if !Via::Bpf.works() {
        return;
    }
    let report = report(
        &["--via", "bpf", "--metric", "system_call"],
        &["true".into()],
    );
    let sentence = report["sources"][0]["sentence"].as_str().unwrap();
    if sentence.contains("no sensor syscall") {
        return println!("skipped: {sentence}");
    }
    let metric = &report["metrics"]["metrics"][0];
    assert_eq!(metric["unheard"], serde_json::json!([]), "{metric}");
    assert!(metric["completed"].as_u64().unwrap() > 0, "{metric}");
    // Exactly that one: others are not heard.
    assert!(sentence.ends_with("besides syscall"), "{sentence}");
}

#[test]
fn sensors_that_nobody_needs_write_nothing() {
    let _turn = turn();
    let program = sensing::command(&std::env::current_exe().unwrap());
    let elements = |words: &[&str]| -> u64 {
        let report = report(&[&["--kernel", "off"], words].concat(), &program);
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
        elements(&["--only-needed", "--config", file.to_str().unwrap()])
    };
    assert_eq!(named("battery"), sensing::SENSORS * sensing::ELEMENTS);
    assert_eq!(named("another"), 0);
    // What the file's monitor evaluates is needed, too.
    let monitored = |sensor: &str| {
        let text = format!(
            "[monitor]\nlatency = \"1 s\"\nexecutor = \"best_effort\"\n\
             [[sensor]]\nid = \"{sensor}\"\nperiod = \"50 us\"\ncount = {}\n\
             [[update]]\nname = \"counts\"\nwcet = \"1 us\"\n",
            sensing::SENSORS
        );
        std::fs::write(&file, text).unwrap();
        elements(&["--only-needed", "--config", file.to_str().unwrap()])
    };
    assert_eq!(monitored("battery"), sensing::SENSORS * sensing::ELEMENTS);
    assert_eq!(monitored("another"), 0);
}
