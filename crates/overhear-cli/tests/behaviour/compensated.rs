// SPDX-License-Identifier: MIT OR Apache-2.0
//! `--compensate`: reports without the cost of observing.

use std::path::Path;

use serde_json::{json, Value};

use crate::calibrate::{calibration, number};
use crate::support::{finish, overhear};

const SENSORS: [&str; 3] = ["sched_switch", "sched_wake", "task_life"];

fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn compensation_needs_a_calibration() {
    let folder = tempfile::tempdir().unwrap();
    let (out, ran) = (folder.path().join("out"), folder.path().join("ran"));
    let (out, ran) = (out.to_str().unwrap(), ran.to_str().unwrap());
    let refused = ["--compensate", "overhear calibrate", "--calibration"];
    let calls: [&[&str]; 2] = [
        &["run", "--compensate", "--out", out, "--", "touch", ran],
        &["record", "--compensate", "--pid", "1", "--out", out],
    ];
    for call in calls {
        let ended = finish(overhear(call).env("XDG_CACHE_HOME", folder.path()));
        ended.has_only_message(2, &refused);
        assert!(!Path::new(ran).exists() && !Path::new(out).exists());
    }
    let run = ["run", "--out", out, "--", "true"];
    finish(overhear(&run).env("XDG_CACHE_HOME", folder.path())).does_not_panic();
    let calls: [&[&str]; 3] = [
        &["report", "--compensate", out],
        &["metrics", "--compensate", out],
        &[
            "export",
            "--compensate",
            out,
            "--to",
            "csv",
            "--output",
            ran,
        ],
    ];
    for call in calls {
        let ended = finish(overhear(call).env("XDG_CACHE_HOME", folder.path()));
        ended.has_only_message(2, &refused);
    }
    assert!(!Path::new(ran).exists());
}

#[test]
fn live_compensation_equals_that_of_the_recording() {
    let folder = tempfile::tempdir().unwrap();
    let (prices, out) = (folder.path().join("prices.json"), folder.path().join("out"));
    calibration(&prices, &SENSORS);
    let (prices, out) = (prices.to_str().unwrap(), out.to_str().unwrap());
    let script = "for i in 1 2 3 4 5 6 7 8 9; do (:) | cat; done";
    let run = [
        "run",
        "--compensate",
        "--calibration",
        prices,
        "--out",
        out,
        "--json",
    ];
    let ended = finish(overhear(&run).args(["--", "sh", "-c", script]));
    ended.does_not_panic();
    let live = document(&ended.stdout);
    if live["sources"][0]["active"] != "bpf" {
        println!("skipped: {}", live["sources"][0]["message"]);
        return;
    }
    assert_eq!(live["compensated"], json!(true));
    let replayed = finish(&mut overhear(&["report", "--compensate", out, "--json"]));
    let replayed = document(&replayed.stdout);
    assert_eq!(live, replayed);

    let plain = document(&finish(&mut overhear(&["report", out, "--json"])).stdout);
    assert_eq!(plain["compensated"], json!(false));
    assert_eq!(plain["compensation"], Value::Null);
    let removed = number(&live["compensation"], "removed_ns");
    assert_eq!(
        number(&plain, "duration_ns") - removed,
        number(&live, "duration_ns")
    );
    assert!(removed <= number(&live["compensation"], "greatest_ns"));
    // Counts of elements stay equal; times change.
    let of = |report: &Value, member: &str| -> u64 {
        let threads = report["threads"].as_array().unwrap();
        threads.iter().map(|thread| number(thread, member)).sum()
    };
    for member in ["switches_voluntary", "switches_involuntary"] {
        assert_eq!(of(&plain, member), of(&live, member));
    }
    assert!(of(&plain, "run_ns") > of(&live, "run_ns"));
    assert!(removed <= number(&plain["overhead"], "total_ns"));

    let text = finish(&mut overhear(&["report", "--compensate", out]));
    assert!(
        text.stdout.contains("all times are compensated"),
        "{text:#?}"
    );
    // The page has both, and shows the subject of the report first.
    let page = std::fs::read_to_string(Path::new(out).join("report.html")).unwrap();
    for member in ["\"moved_end_ns\":", "\"shrinks\":", "\"compensated\":true"] {
        assert!(page.contains(member), "{member}");
    }
    exports_and_metrics_are_compensated(out, folder.path());
}

fn exports_and_metrics_are_compensated(out: &str, folder: &Path) {
    let rows = |arguments: &[&str]| -> Vec<(u64, String)> {
        let file = folder.join("rows.csv");
        let mut command = overhear(&["export", out, "--to", "csv", "--output"]);
        let ended = finish(command.arg(&file).args(arguments));
        // Incomplete is not wrong.
        ended.does_not_panic();
        let text = std::fs::read_to_string(&file).unwrap();
        let mut rows = text.lines();
        let heads = rows.next().unwrap();
        let at = heads
            .split(',')
            .position(|head| head == "time_ns")
            .unwrap_or_else(|| panic!("{heads}"));
        rows.map(|row| {
            let time = row.split(',').nth(at).unwrap().parse().unwrap();
            (time, row.to_string())
        })
        .collect()
    };
    let (plain, moved) = (rows(&[]), rows(&["--compensate"]));
    assert!(moved.is_sorted_by_key(|(time, _)| *time));
    assert!(moved.len() >= plain.len());
    assert!(moved.iter().any(|row| !plain.contains(row)));

    let total = |arguments: &[&str]| -> u64 {
        let mut command = overhear(&["metrics", out, "--metric", "time_slice", "--json"]);
        let report = document(&finish(command.args(arguments)).stdout);
        let tasks = report["metrics"][0]["tasks"].as_array().unwrap().clone();
        tasks.iter().map(|task| number(task, "total_ns")).sum()
    };
    assert!(total(&["--compensate"]) < total(&[]));
}
