// SPDX-License-Identifier: MIT OR Apache-2.0
//! The document that `--json` prints has the members that `docs/report.md` describes, and no
//! others.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::program::{program, run_program};
use crate::support::{folder, path, report_json, run_json};

/// Members of every document. Others are present if their option was given.
const ALWAYS: [&str; 15] = [
    "overhear_version",
    "command",
    "exit",
    "duration_ns",
    "sources",
    "trace",
    "threads",
    "sensors",
    "updates",
    "losses",
    "missed_total",
    "not_connected",
    "complete",
    "notes",
    "histograms",
];

/// The names in the first column of a section's table of members.
#[track_caller]
fn described(head: &str) -> BTreeSet<&'static str> {
    let page = include_str!("../../../../docs/report.md");
    let section = page
        .split("\n## ")
        .find(|section| section.lines().next() == Some(head))
        .unwrap_or_else(|| panic!("the page has no section {head}"));
    let table = section
        .lines()
        .skip_while(|line| !line.starts_with("| member "));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

pub(crate) fn members_of(document: &Value) -> BTreeSet<&str> {
    let members = document.as_object().unwrap().keys();
    members.map(String::as_str).collect()
}

/// Each of these documents has exactly the members that the section describes.
#[track_caller]
pub(crate) fn agree(head: &str, documents: &[Value]) {
    assert!(!documents.is_empty(), "nothing to compare {head} with");
    for document in documents {
        assert_eq!(
            members_of(document),
            described(head),
            "{head}: {document:#}"
        );
    }
}

fn list<'a>(report: &'a Value, name: &str) -> &'a [Value] {
    report[name].as_array().unwrap()
}

#[test]
fn json_report_has_the_documented_members() {
    let folder = folder();
    let out = folder.path().join("out");
    let (ended, live) = run_json(&["--out", path(&out)], &[path(program()), "paced", "50"]);
    ended.does_not_panic();
    for report in [live, report_json(&out).1] {
        let page = described("Top level");
        let unknown: Vec<_> = members_of(&report).difference(&page).copied().collect();
        assert_eq!(unknown, [""; 0], "the page does not list them");
        for name in ALWAYS {
            assert!(
                members_of(&report).contains(name) && page.contains(name),
                "{name}"
            );
        }
        agree("`sources[]`", list(&report, "sources"));
        agree("`trace`", std::slice::from_ref(&report["trace"]));
        agree("`sensors[]`", list(&report, "sensors"));
        agree("`histograms[]`", list(&report, "histograms"));
        if report["sources"][0]["active"] == "none" {
            println!("skipped: without kernel sensors there are no threads to look at");
        } else {
            agree("`threads[]`", list(&report, "threads"));
        }
        // A missing value is null; the member is present.
        let sensor = &list(&report, "sensors")[0];
        assert!(sensor["declared"]["period_ns"].is_u64(), "{sensor:#}");
        for name in ["count", "min", "median", "p99", "max"] {
            assert!(sensor["interval_ns"][name].is_u64(), "{name}: {sensor:#}");
        }
        for thread in list(&report, "threads") {
            let latency = &thread["wakeup_latency_ns"];
            assert!(
                latency.is_null() || latency["median"].is_u64(),
                "{thread:#}"
            );
        }
    }
    let (_, report) = run_program(&["damage", "backwards"]);
    agree("`losses[]`", list(&report, "losses"));
}
