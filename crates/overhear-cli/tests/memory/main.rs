// SPDX-License-Identifier: MIT OR Apache-2.0
//! No command takes more than 128 MiB of memory, whatever the run: commands run under a limit of
//! private memory, on recordings that are larger than that, and with programs that write more
//! than that.

mod limits;
mod live;
mod recordings;
#[path = "../behaviour/support.rs"]
mod support;

use std::fs;
use std::path::Path;

use serde_json::Value;
use support::path;
use tempfile::TempDir;

use limits::{bounded, limited, run, BOUND};
use recordings::{Recording, OTHER_THREADS, TASKS};

/// The maximum size of a page.
const PAGE_BYTES: u64 = 24 << 20;

/// A folder that is removed at the end of a test. It is on the disk that the build is on: where
/// temporary files are in memory, the maps of a recording's files count as shared memory.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A recording in such a folder.
fn recorded(recording: Recording) -> TempDir {
    let folder = folder();
    recording.write(folder.path());
    folder
}

/// The report as JSON, and the page, both within the bound.
#[track_caller]
fn report(dir: &Path, status: i32) -> (Value, Value) {
    let (page, json) = (dir.join("page.html"), dir.join("report.json"));
    let json_option = format!("--json={}", json.display());
    let ended = bounded(&["report", path(dir), "--html", path(&page), &json_option]);
    assert_eq!(ended.status, status, "{ended:#?}");
    let size = fs::metadata(&page).unwrap().len();
    assert!(size < PAGE_BYTES, "{size}");
    let html = fs::read_to_string(&page).unwrap();
    let (_, rest) = html.split_once("id=\"timeline-data\">").unwrap();
    let (timeline, _) = rest.split_once("</script>").unwrap();
    let report = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let timeline: Value = serde_json::from_str(timeline).unwrap();
    for message in timeline["left_out"].as_array().unwrap() {
        let message = message.as_str().unwrap();
        let messages: Vec<&str> = ended
            .stderr
            .lines()
            .filter(|it| it.contains(message))
            .collect();
        assert_eq!(messages.len(), 1, "{ended:#?}");
    }
    (report, timeline)
}

#[test]
fn limit_of_these_tests_ends_larger_commands() {
    let folder = recorded(Recording {
        threads: 1_000,
        runs: 10_000,
        ..Recording::default()
    });
    let arguments = ["report", path(folder.path())];
    let ended = run(&mut limited(512 << 10, &arguments));
    assert_ne!(ended.status, 0, "{ended:#?}");
    assert_eq!(bounded(&arguments).status, 0);
}

#[test]
fn report_of_tens_of_millions_of_elements_is_bounded() {
    let recording = Recording {
        threads: 10_000,
        runs: 4_500_000,
        ticks: 7_000_000,
        slow_ticks: 1_000,
        ..Recording::default()
    };
    assert!(recording.elements() > 20_000_000);
    let folder = recorded(recording);
    let (report, timeline) = report(folder.path(), 0);
    assert_eq!(report["trace"]["events"], recording.elements());
    assert_eq!(report["complete"], true);
    let threads = report["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 10_000);
    // Counts are exact, and quantiles as exact as the report states.
    let woken: u64 = threads
        .iter()
        .map(|thread| thread["wakeup_latency_ns"]["count"].as_u64().unwrap())
        .sum();
    assert_eq!(woken, recording.runs);
    let error = report["quantile_error"].as_f64().unwrap();
    assert!((0.001..=0.25).contains(&error), "{error}");
    let notes = report["notes"].to_string();
    assert!(notes.contains("quantiles are exact to"), "{notes}");
    let sensors = report["sensors"].as_array().unwrap();
    let elements = sensors.iter().map(|sensor| sensor["elements"].as_u64());
    assert_eq!(elements.collect::<Vec<_>>(), [Some(7_000_000), Some(1_000)]);
    // The page has the beginning and everything slow, and states the bounds of the rest.
    let left_out = timeline["left_out"].to_string();
    for part in [
        "states of threads from",
        "elements of ticker(42)/fast from",
        "--from",
        "perfetto",
    ] {
        assert!(left_out.contains(part), "{left_out}");
    }
    assert!(!left_out.contains("slow"), "{left_out}");
}

#[test]
fn report_of_a_million_gaps_is_bounded() {
    let folder = recorded(Recording {
        threads: 4,
        runs: 1_000,
        ticks: 2_000_000,
        gaps: 1_000_000,
        ..Recording::default()
    });
    let (report, timeline) = report(folder.path(), 3);
    let losses = &report["losses"][0];
    assert_eq!(
        (&losses["gaps"], &losses["missed"]),
        (&999_999.into(), &6_999_993.into())
    );
    assert!(timeline["left_out"]
        .to_string()
        .contains("gaps, and all else, from"));
}

#[test]
fn report_of_a_thousand_sensors_is_bounded() {
    let recording = Recording {
        sensors: 1_000,
        ..Recording::default()
    };
    let folder = recorded(recording);
    let (report, timeline) = report(folder.path(), 0);
    let sensors = report["sensors"].as_array().unwrap();
    // Fast and slow sensors write nothing.
    let written = sensors.iter().filter(|sensor| sensor["elements"] == 3_000);
    assert_eq!(written.count(), 1_000);
    assert!(timeline["left_out"].to_string().contains("of 1000 sensors"));
}

#[test]
fn report_of_large_kept_documents_is_bounded() {
    let folder = recorded(Recording {
        threads: 10_000,
        runs: 300_000,
        metrics: 12,
        ..Recording::default()
    });
    let (report, _) = report(folder.path(), 0);
    let metrics = report["metrics"]["metrics"].as_array().unwrap().iter();
    let tasks = metrics.map(|metric| metric["tasks"].as_array().unwrap().len());
    assert_eq!(tasks.collect::<Vec<_>>(), [TASKS as usize; 12]);
    let count = |list: &Value| list.as_array().unwrap().len();
    assert_eq!(count(&report["other_threads"]), OTHER_THREADS as usize);
    assert_eq!(count(&report["check"]["constraints"]), 1_000);
    let ended = bounded(&["report", path(folder.path())]);
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    let size = live::viewed(limited(BOUND, &["view", path(folder.path())]));
    assert!(size < PAGE_BYTES as usize, "{size}");
}

/// Ten thousand threads.
fn crowd() -> TempDir {
    recorded(Recording {
        threads: 10_000,
        runs: 1_500_000,
        ..Recording::default()
    })
}

#[test]
fn metrics_of_ten_thousand_threads_are_bounded() {
    let folder = crowd();
    let json = folder.path().join("metrics.json");
    let option = format!("--json={}", json.display());
    let ended = bounded(&["metrics", path(folder.path()), &option]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let report: Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let latency = &report["metrics"][0];
    assert_eq!(latency["name"], "wakeup_latency");
    assert_eq!(
        (&latency["completed"], &latency["refused"]),
        (&1_500_000.into(), &0.into())
    );
    let tasks = latency["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 10_000);
    let counted: u64 = tasks
        .iter()
        .map(|task| task["count"].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 1_500_000);
}

#[test]
fn measurements_one_by_one_are_bounded() {
    let folder = crowd();
    let each = |more: &[&str]| {
        let dir = path(folder.path());
        let arguments = [
            "metrics",
            dir,
            "--metric",
            "wakeup_latency",
            "--measurements",
        ];
        bounded(&[&arguments[..], more].concat())
    };
    let json = folder.path().join("each.json");
    let ended = each(&[&format!("--json={}", json.display())]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let text = fs::read_to_string(&json).unwrap();
    assert_eq!(text.matches("\"begin_ns\"").count(), 1_500_000);
    drop(text);
    let ended = each(&[]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(ended.stdout.lines().nth(1).unwrap().contains("length"));
}

#[test]
fn checks_and_exports_are_bounded() {
    let folder = crowd();
    let dir = path(folder.path());
    let config = folder.path().join("limits.toml");
    let limits = "[[constraint]]\nname = \"woken\"\nmetric = \"wakeup_latency\"\nmax = \"1 s\"\n\
        [[constraint]]\nname = \"short\"\nmetric = \"time_slice\"\nmax = \"1 s\"\n";
    fs::write(&config, limits).unwrap();
    let ended = bounded(&["check", dir, "--config", path(&config)]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let output = folder.path().join("output");
    for format in ["csv", "perfetto"] {
        let to = ["export", dir, "--to", format, "--output", path(&output)];
        let ended = bounded(&to);
        ended.has_message(0, &["4510000 elements written"]);
    }
}

#[test]
fn page_of_two_runs_and_view_are_bounded() {
    let folder = crowd();
    let (crowd, page) = (path(folder.path()), folder.path().join("both.html"));
    let ended = bounded(&["report", crowd, "--compare", crowd, "--html", path(&page)]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(fs::metadata(&page).unwrap().len() < PAGE_BYTES);
    let size = live::viewed(limited(BOUND, &["view", crowd]));
    assert!(size < PAGE_BYTES as usize, "{size}");
}
