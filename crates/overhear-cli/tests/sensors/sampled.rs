// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples in the report: a C program writes samples with known counts (`sampled.c`).

use std::path::Path;
use std::sync::OnceLock;

use serde_json::Value;

use crate::document::{agree, members_of};
use crate::program::{compiled, number};
use crate::support::{finish, folder, overhear, path, report_json, run_json};

const JOBS: u64 = 600;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<std::path::PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("tests/sensors/sampled.c", "sampled"))
}

#[track_caller]
fn sampler<'a>(report: &'a Value, id: &str, instance: &str) -> &'a Value {
    let samplers = report["samplers"].as_array().unwrap();
    let mut found = samplers.iter();
    let found = found.find(|it| it["id"] == id && it["instance"] == instance);
    found.unwrap_or_else(|| panic!("no sampler {id} {instance} in {report:#}"))
}

#[track_caller]
fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let mut all = list.as_array().unwrap().iter();
    let found = all.find(|it| it["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list:#}"))
}

/// The cycles that the program counted in its jobs and at the end of the thread.
fn cycles(first_slow: u64, slow: u64) -> u64 {
    let job = |job: u64| {
        let is_slow = (first_slow..first_slow + slow).contains(&job);
        (150_000 + job % 11 * 10) * if is_slow { 4 } else { 1 }
    };
    (1..=JOBS).map(job).sum::<u64>() + 11
}

#[test]
fn samples_are_in_the_report_with_exact_sums_and_the_planted_anomalies() {
    let folder = folder();
    let out = folder.path().join("out");
    let jobs = JOBS.to_string();
    let options = ["--kernel", "off", "--out", path(&out), "--no-page"];
    let (ended, report) = run_json(&options, &[path(program()), &jobs, "50", "steady"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(report["samplers"], report_json(&out).1["samplers"]);

    for (instance, first_slow, slow) in [("one", 400, 1), ("two", 300, 10)] {
        let sampler = sampler(&report, "jobs", instance);
        assert_eq!(number(sampler, "samples"), JOBS + 1);
        assert_eq!(
            (number(sampler, "missed"), &sampler["complete"]),
            (0, &Value::Bool(true))
        );
        let [task] = sampler["tasks"].as_array().unwrap().as_slice() else {
            panic!("{sampler:#}");
        };
        assert_ne!(task["tid"], task["pid"]);
        let total = named(&task["totals"], "cycles");
        assert_eq!(number(total, "total"), cycles(first_slow, slow));
        let instructions = number(named(&task["totals"], "instructions"), "total");
        let ipc = instructions as f64 / number(total, "total") as f64;
        assert!(
            (task["ipc"].as_f64().unwrap() - ipc).abs() < 1e-12,
            "{task:#}"
        );
        let of_misses = named(&task["totals"], "llc_misses");
        let misses = number(of_misses, "total") as f64;
        let per_thousand = of_misses["per_1000_instructions"].as_f64().unwrap();
        assert!((per_thousand - 1e3 * misses / instructions as f64).abs() < 1e-9);
        let of_jobs = &task["jobs"];
        assert_eq!(
            (number(of_jobs, "count"), &task["samples"]),
            (JOBS, &Value::Null)
        );
        let cycles = named(&of_jobs["values"], "cycles");
        assert_eq!(number(cycles, "count"), JOBS);
        assert_eq!(number(cycles, "min"), 150_000);
        assert!(
            (600_000..=600_400).contains(&number(cycles, "max")),
            "{cycles:#}"
        );
        assert!(
            (150_000..=150_250).contains(&number(cycles, "median")),
            "{cycles:#}"
        );
        agree("`samplers[].tasks[]`", std::slice::from_ref(task));
        agree("`samplers[].tasks[].totals[]`", std::slice::from_ref(total));
        let values = of_jobs["values"].as_array().unwrap();
        agree("`samplers[].tasks[].jobs`", std::slice::from_ref(of_jobs));
        agree("`samplers[].tasks[].jobs.values[]`", values);
        agree(
            "`samplers[].tasks[].judged`",
            std::slice::from_ref(&task["judged"]),
        );
        let anomalies = sampler["anomalies"].as_array().unwrap();
        let [planted] = anomalies.as_slice() else {
            panic!("{anomalies:#?}");
        };
        assert_eq!(number(planted, "job"), first_slow);
        assert_eq!(number(planted, "jobs"), slow);
        let message = planted["message"].as_str().unwrap();
        assert!(
            message.contains("cycles 60") && message.contains("instead of 150"),
            "{message}"
        );
        agree("`samplers[].anomalies[]`", std::slice::from_ref(planted));
        let deviations = planted["deviations"].as_array().unwrap();
        agree("`samplers[].anomalies[].deviations[]`", deviations);
    }
    let process = sampler(&report, "process", "");
    let task = &process["tasks"][0];
    assert_eq!((number(task, "tid"), &task["jobs"]), (0, &Value::Null));
    assert_eq!(number(&task["samples"], "count"), JOBS / 20);
    let resident = named(&task["samples"]["values"], "resident");
    assert_eq!(number(resident, "max"), (JOBS / 20 - 1) * 4096);
    assert_eq!(number(task, "duration_ns"), JOBS / 20 * 1_000_000);
    agree("`samplers[]`", report["samplers"].as_array().unwrap());
    assert!(members_of(&report).contains("samplers"));
}

#[test]
fn samples_are_printed_as_tables() {
    let jobs = JOBS.to_string();
    let program = path(program());
    let ended = finish(&mut overhear(&[
        "run", "--kernel", "off", "--", program, &jobs, "50", "steady",
    ]));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let text = &ended.stderr;
    for expected in [
        "sampler jobs#one of sampled(",
        "sampler process of sampled(",
        ": 601 samples, 0 missed",
        "per 1000 instructions",
        "a thread is judged from its job 83 on",
        "  job 400 of thread ",
        "  jobs 300 to 309 (10 jobs) of thread ",
        "(process)",
    ] {
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
    // Statistics of thread ids have no meaning.
    assert!(!text.contains("jobs#one.tid"), "{text}");
    // The sum of the cycles of the first thread.
    let sum = cycles(400, 1).to_string();
    let row = text
        .lines()
        .find(|line| line.contains("cycles ") && line.contains(&sum));
    assert!(row.is_some(), "no {sum} in {text}");
}

#[test]
fn anomalies_are_constraints() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let jobs = JOBS.to_string();
    let check = |most: u32| {
        let text =
            format!("[[constraint]]\nname = \"usual\"\nof = \"user:jobs\"\nanomalies = {most}\n");
        std::fs::write(&file, text).unwrap();
        let options = ["run", "--kernel", "off", "--check", path(&file), "--"];
        finish(overhear(&options).args([path(program()), &jobs, "50", "steady"]))
    };
    let held = check(2);
    assert_eq!(held.status, 0, "{held:#?}");
    let violated = check(1);
    violated.has_message(1, &["violated: usual: job ", "2 anomalies, 1 permitted"]);
}
