// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors in programs, from registration to the report: a C program linked with liboverhear
//! (`program.c`) and one in Rust (`rust.rs`) write elements under `overhear run`, and the report
//! must contain exactly the written elements.

mod budget;
mod budget_kernel;
mod damage;
mod directory;
mod disk;
mod document;
mod guaranteed;
mod messages;
mod mistakes;
mod pacing;
mod processes;
mod program;
mod reactions;
mod recorded;
mod rust;
mod sampled;
#[path = "../behaviour/support.rs"]
mod support;
mod system_calls;
mod trust;
mod updates;
mod verdicts;
#[path = "../../../overhear-monitor/tests/support/witness.rs"]
mod witness;

use serde_json::Value;

use program::{evaluated, number, only_sensor, program, run_program};
use support::{babeltrace, finish, has_babeltrace, is_root, overhear, path, report_json, run_json};

#[test]
fn paced_program_is_read_element_by_element() {
    let (ended, report) = run_program(&["paced", "300"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let sensor = only_sensor(&report);
    assert_eq!(number(sensor, "elements"), 300);
    assert_eq!(number(sensor, "missed"), 0);
    assert_eq!(sensor["id"], "pace");
    assert_eq!(sensor["instance"], "first");
    assert_eq!(sensor["type"], "sample");
    let pid = number(sensor, "pid");
    assert_eq!(sensor["task"], format!("program({pid})"));
    let declared = &sensor["declared"];
    assert_eq!(number(declared, "period_ns"), 1_000_000);
    assert_eq!(number(declared, "distance_ns"), 100_000);
    assert_eq!(number(declared, "jitter_ns"), 5_000_000);
    // Each pause is at least a millisecond: a bound that holds on any machine.
    let rate = sensor["rate_hz"].as_f64().unwrap();
    assert!(rate > 0.0 && rate <= 1_000.0, "{rate}");
    assert!(number(&sensor["interval_ns"], "min") >= 1_000_000);
    assert_eq!(number(&sensor["interval_ns"], "count"), 299);
    // The numeric fields with their units, and the values the program computes.
    let fields = sensor["fields"].as_array().unwrap();
    let named: Vec<(&str, &str)> = fields
        .iter()
        .map(|field| {
            (
                field["name"].as_str().unwrap(),
                field["unit"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(named, [("number", ""), ("load", "%"), ("change", "K")]);
    let values = |field: &Value| ["min", "mean", "max"].map(|name| field[name].as_f64().unwrap());
    assert_eq!(values(&fields[0]), [0.0, 149.5, 299.0]);
    assert_eq!(values(&fields[1]), [0.0, 74.75, 149.5]);
    assert_eq!(values(&fields[2]), [-10.0, 139.5, 289.0]);
    assert_eq!(report["complete"], true);
    assert_eq!(number(&report, "missed_total"), 0);
}

#[test]
fn report_of_the_trace_equals_that_of_the_run() {
    let folder = support::folder();
    let out = folder.path().join("out");
    let (ended, live) = run_json(
        &["--kernel", "off", "--out", path(&out)],
        &[path(program()), "paced", "100"],
    );
    assert_eq!(ended.status, 0, "{ended:#?}");
    let (ended, replayed) = report_json(&out);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(live["sensors"], replayed["sensors"]);
    assert_eq!(live["threads"], replayed["threads"]);
    assert_eq!(number(&live["trace"], "events"), 100);
    if has_babeltrace() {
        assert_eq!(babeltrace(&out), (100, 0));
    }
}

#[test]
fn sensor_can_unregister_and_register_again() {
    let (ended, report) = run_program(&["again"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let elements: Vec<u64> = evaluated(&report, "again");
    assert_eq!(elements, [100, 50]);
    assert_eq!(report["complete"], true);
}

#[test]
fn sensors_of_one_program_are_distinguished() {
    let (ended, report) = run_program(&["two"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert_eq!(
        (evaluated(&report, "a"), evaluated(&report, "b")),
        (vec![300], vec![200])
    );
}

#[test]
fn second_sensor_of_the_same_name_is_refused_with_a_message() {
    let (ended, report) = run_program(&["twin"]);
    // All elements of the second one are missing.
    assert_eq!(ended.status, 3, "{ended:#?}");
    assert_eq!(
        (&report["not_connected"], &report["complete"]),
        (&1.into(), &false.into())
    );
    assert!(ended.stdout.contains("heard-twin 0"), "{ended:#?}");
    assert!(
        ended
            .stdout
            .contains("why: the directory refused sensor `twin`"),
        "{ended:#?}"
    );
    assert_eq!(evaluated(&report, "twin"), [100]);
    let notes = report["notes"].as_array().unwrap();
    let note = notes[0].as_str().unwrap();
    assert!(
        notes.len() == 1 && note.contains("sensor `twin` of program"),
        "{notes:?}"
    );
    assert!(
        note.contains("is not connected") && note.contains("instance"),
        "{note}"
    );
}

#[test]
fn padding_is_refused_by_the_library() {
    let (ended, report) = run_program(&["padding"]);
    assert!(ended.stdout.contains("einval 1"), "{ended:#?}");
    assert!(ended.stdout.contains("sensor `padded`") && ended.stdout.contains("padding"));
    assert_eq!(report["sensors"], Value::Array(Vec::new()));
    assert_eq!(report["complete"], true);
}

#[test]
fn losses_of_a_tight_loop_are_counted_exactly() {
    const WRITTEN: u64 = 10_000_000;
    let folder = support::folder();
    let out = folder.path().join("out");
    let (ended, report) = run_json(
        &["--kernel", "off", "--out", path(&out)],
        &[path(program()), "tight", &WRITTEN.to_string()],
    );
    ended.does_not_panic();
    let sensor = only_sensor(&report);
    let (elements, missed) = (number(sensor, "elements"), number(sensor, "missed"));
    assert_eq!(elements + missed, WRITTEN, "{sensor}");
    assert_eq!(number(&report["trace"], "events"), elements);
    assert_eq!(number(&report, "missed_total"), missed);
    let (status, complete) = if missed == 0 { (0, true) } else { (3, false) };
    assert_eq!(
        (ended.status, &report["complete"]),
        (status, &Value::Bool(complete))
    );
    let lost = report["losses"].as_array().unwrap().iter();
    let by_cause: u64 = lost.map(|loss| number(loss, "missed")).sum();
    assert_eq!(by_cause, missed);
    let (again, replayed) = report_json(&out);
    assert_eq!(again.status, status);
    assert_eq!(replayed["sensors"][0]["missed"], sensor["missed"]);
    if has_babeltrace() {
        assert_eq!(babeltrace(&out), (elements, missed));
    }
}

#[test]
fn program_that_drops_its_privileges_is_read() {
    if !is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    // The directory of root serves the program and its descendants, whatever their user.
    let (ended, report) = run_json(
        &["--kernel", "off"],
        &[
            "setpriv",
            "--reuid=65534",
            "--clear-groups",
            path(program()),
            "two",
        ],
    );
    if ended.status == 127 || ended.status == 126 {
        println!("skipped: setpriv is not there, or the user cannot execute the program");
        return;
    }
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(ended.stdout.contains("heard-a 1"), "{ended:#?}");
    assert_eq!(evaluated(&report, "a"), [300]);
    assert_eq!(report["complete"], true);
}

#[test]
fn table_names_sensors_and_fields_with_units() {
    let ended = finish(&mut overhear(&[
        "run",
        "--kernel",
        "off",
        "--",
        path(program()),
        "paced",
        "20",
    ]));
    assert_eq!(ended.status, 0, "{ended:#?}");
    for words in [
        "pace#first",
        "pace#first.load [%]",
        "1.00 kHz",
        "complete: nothing missed",
    ] {
        assert!(ended.stderr.contains(words), "{words}: {ended:#?}");
    }
    assert_eq!(ended.stdout, "");
}
