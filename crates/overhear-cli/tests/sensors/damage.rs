// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that overwrite their own streams: one message that names the stream and the damage, a
//! correct status, and no crash.

use serde_json::Value;

use crate::program::{evaluated, number, only_sensor, program, run_program};
use crate::support::{folder, path, report_json, run_json};

/// Damages the stream after 50 elements and asserts that one note contains these words.
#[track_caller]
fn damage(what: &str, words: &[&str]) -> Value {
    let (ended, report) = run_program(&["damage", what]);
    assert_eq!(ended.status, 3, "{ended:#?}");
    assert_eq!(report["complete"], false, "{report:#}");
    let notes = report["notes"].as_array().unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    let note = notes[0].as_str().unwrap();
    assert!(note.starts_with("program("), "{note}");
    assert!(
        note.contains("/damaged: ") && !note.contains('\n'),
        "{note}"
    );
    for word in words {
        assert!(note.contains(word), "{word}: {note}");
    }
    let losses = report["losses"].as_array().unwrap();
    assert!(
        losses.iter().any(|loss| loss["cause"] == "corrupt"),
        "{losses:?}"
    );
    report
}

#[test]
fn overwritten_header_is_named_field_by_field() {
    for (what, words) in [
        ("magic", ["begins with", "OVHRSTR1"]),
        ("version", ["layout version 77", "version 1"]),
        ("header-size", ["header size 64", "recorded 4096"]),
        ("payload-size", ["payload size 4000", "recorded 24"]),
        ("stride", ["stride 0", "recorded 32"]),
        ("capacity", ["capacity 18446744073709551615", "recorded"]),
        ("clock", ["clock 99", "recorded"]),
    ] {
        let report = damage(what, &words);
        // Readers use the directory's numbers, so a false header loses nothing.
        assert_eq!(number(only_sensor(&report), "elements"), 100, "{what}");
    }
}

#[test]
fn decreasing_counter_ends_the_stream() {
    for (what, now) in [("backwards", " to 7"), ("wrapped", "18446744073709551615")] {
        let report = damage(what, &["counter went back", now]);
        let elements = number(only_sensor(&report), "elements");
        assert!((1..=50).contains(&elements), "{elements}");
    }
}

#[test]
fn overwritten_page_ends_the_stream() {
    damage("everything", &["/damaged: "]);
}

#[test]
fn counter_far_ahead_counts_as_missed() {
    let (ended, report) = run_program(&["damage", "ahead"]);
    assert_eq!(ended.status, 3, "{ended:#?}");
    ended.does_not_panic();
    let sensor = only_sensor(&report);
    let note = report["notes"][0].to_string();
    assert!(
        note.contains("jumped ahead") && note.contains("damaged its stream"),
        "{note}"
    );
    // Nevertheless every position is counted. The jump overwrites what was not read before it.
    let (elements, missed) = (number(sensor, "elements"), number(sensor, "missed"));
    assert!((50..=102).contains(&elements), "{sensor}");
    assert_eq!(elements + missed, 100 + (1 << 60), "{sensor}");
}

#[test]
fn stamps_from_nowhere_are_missed_as_corrupt() {
    let (ended, report) = run_program(&["damage", "stamps"]);
    assert_eq!(ended.status, 3, "{ended:#?}");
    let sensor = only_sensor(&report);
    assert_eq!(
        (number(sensor, "elements"), number(sensor, "missed")),
        (100, 4)
    );
    let losses = report["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert_eq!(losses[0]["cause"], "corrupt");
    assert!(losses[0]["stream"].as_str().unwrap().ends_with("/damaged"));
}

#[test]
fn overwritten_memory_is_reported_recorded_and_replayed() {
    for seed in ["1", "2", "3"] {
        let folder = folder();
        let out = folder.path().join("out");
        let command = [path(program()), "rubbish", seed];
        let (ended, report) = run_json(&["--kernel", "off", "--out", path(&out)], &command);
        ended.does_not_panic();
        assert_eq!(ended.status, 3, "{ended:#?}");
        assert_eq!(
            evaluated(&report, "sound"),
            [3_000],
            "the sensor beside it is whole"
        );
        // A damaged page is one note for each of the three, and not one for each of its words.
        let notes = report["notes"].as_array().unwrap();
        assert!((3..100).contains(&notes.len()), "{notes:#?}");
        for kind in ["simple", "laned", "concurrent"] {
            let name = format!("/rubbish#{kind}");
            let is_about = |note: &Value| note.as_str().is_some_and(|note| note.contains(&name));
            assert!(notes.iter().any(is_about), "{kind}: {notes:#?}");
        }
        // Its recorded elements can be read.
        let (again, replayed) = report_json(&out);
        again.does_not_panic();
        assert_eq!(again.status, 3, "{again:#?}");
        assert_eq!(evaluated(&replayed, "sound"), [3_000]);
    }
}
