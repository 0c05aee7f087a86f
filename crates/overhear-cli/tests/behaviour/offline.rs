// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear admit`, `overhear fit-rate` and `overhear export`, from files to exit statuses.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_trace::{TraceIdentity, TraceWriter};
use serde_json::Value;

use crate::support::{as_nobody, finish, folder, overhear, path, wait};

/// A recording of one sensor `queue` in two lanes; `missed` elements are missing in the middle.
fn record(dir: &Path, times_us: &[u64], missed: u64) {
    let lanes = [0, 1].map(|lane| StreamDescriptor {
        id: StreamId::from_raw(7 + lane),
        origin: Origin::program(42, "server"),
        sensor: "queue".to_string(),
        instance: "disk".to_string(),
        lane: Some(lane),
        schema: Arc::new(TypeSchema::builder("nothing").build().unwrap()),
        rate: None,
        capacity: 64,
    });
    let mut writer = TraceWriter::create(dir, TraceIdentity::default()).unwrap();
    for lane in &lanes {
        writer.open(&Arc::new(lane.clone())).unwrap();
    }
    let mut next = [0, 0];
    for (index, &us) in times_us.iter().enumerate() {
        let (lane, time) = (index % 2, Timestamp::from_monotonic_ns(us * 1_000));
        if missed > 0 && index == times_us.len() / 2 {
            let before = Timestamp::from_monotonic_ns(times_us[index - 1] * 1_000);
            let gap = Gap {
                stream: lanes[lane].id,
                first: next[lane],
                missed,
                from: before,
                to: time,
                cause: GapCause::Overwritten,
            };
            Analysis::gap(&mut writer, &lanes[lane], &gap);
            next[lane] += missed;
        }
        let element = ElementView {
            stream: &lanes[lane],
            sequence: next[lane],
            time,
            payload: &[],
        };
        Analysis::element(&mut writer, &element);
        next[lane] += 1;
    }
    writer.finish().unwrap();
}

/// 0.9 ms apart in the mean, in pairs 100 us apart.
fn pairs() -> Vec<u64> {
    (0..50).flat_map(|k| [k * 1_800, k * 1_800 + 100]).collect()
}

#[test]
fn fit_covers_the_recording_or_fails() {
    let folder = folder();
    let (whole, torn) = (folder.path().join("whole"), folder.path().join("torn"));
    record(&whole, &pairs(), 0);
    let fit = |dir: &Path, arguments: &[&str]| {
        let all = [&["fit-rate", path(dir)][..], arguments].concat();
        finish(&mut overhear(&all))
    };
    let ended = fit(&whole, &["queue#disk", "--period", "800us", "--json"]);
    assert_eq!(ended.status, 0, "{ended:?}");
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(json["sensor"], "server(42)/queue#disk");
    assert_eq!(
        (json["elements"].as_u64(), json["missed"].as_u64()),
        (Some(100), Some(0))
    );
    // Within a pair 100 us instead of 800 us: 700 us early.
    assert_eq!(json["period_ns"], 800_000);
    assert_eq!(
        (json["distance_ns"].as_u64(), json["jitter_ns"].as_u64()),
        (Some(100_000), Some(700_000))
    );
    let text = fit(&whole, &["queue"]);
    assert_eq!(text.status, 0, "{text:?}");
    assert!(text.stdout.contains("period = \""), "{text:?}");

    // Each element comes 10 us later than its predecessor: the number of covering streams equals
    // that of the elements, and each is a bend.
    let slower = folder.path().join("slower");
    let times: Vec<u64> = (0..=40).map(|k| k * (k + 1) * 5).collect();
    record(&slower, &times, 0);
    let ended = fit(&slower, &["queue", "--json"]);
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    let front = json["front"].as_array().unwrap();
    let periods = front.iter().map(|it| it["period_ns"].as_u64().unwrap());
    assert!(periods.eq((1..=40).map(|k| k * 10_000)), "{front:?}");
    for point in front {
        // The k-th distance equals the period; earlier ones are shorter by 10 us each.
        let k = point["period_ns"].as_u64().unwrap() / 10_000;
        assert_eq!(point["jitter_ns"], k * (k - 1) * 5_000, "{point}");
    }
    let text = fit(&slower, &["queue"]).stdout;
    assert!(text.contains("(30 more points: --json has"), "{text}");
    assert!(text.contains("400 us"), "{text}");

    fit(&whole, &["stack"])
        .has_only_message(2, &["there is no sensor `stack`", "server(42)/queue#disk"]);
    assert_eq!(fit(folder.path(), &["queue"]).status, 2);
    record(&torn, &pairs(), 3);
    let ended = fit(&torn, &["queue"]);
    assert_eq!(ended.status, 3, "{ended:?}");
    assert!(ended.stdout.contains("3 elements were missed"), "{ended:?}");
}

#[test]
fn admission_is_an_exit_status_a_message_and_a_document() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    record(&folder.path().join("whole"), &pairs(), 0);
    record(&folder.path().join("torn"), &pairs(), 3);
    let write = |latency: &str, recording: &str| {
        let text = format!(
            "[monitor]\nlatency = \"{latency}\"\nlevel = \"shared\"\n[[sensor]]\nid = \"queue\"\n\
             fitted = \"{recording}\"\n[[update]]\nname = \"count\"\nwcet = \"3us\"\n"
        );
        fs::write(&file, text).unwrap();
    };
    let admit = |arguments: &[&str]| {
        let all = [&["admit", "--config", path(&file)][..], arguments].concat();
        finish(&mut overhear(&all))
    };
    write("40ms", "whole");
    let ended = admit(&["--json"]);
    let json: Value = serde_json::from_str(&ended.stdout).unwrap();
    let lacking = json["lacking"].as_str();
    assert_eq!(
        ended.status,
        if lacking.is_some() { 5 } else { 0 },
        "{ended:?}"
    );
    assert_eq!(json["accepted"], true);
    assert!(json["latency_ns"].as_u64().unwrap() <= 40_000_000);
    for key in [
        "level",
        "period_ns",
        "deadline_ns",
        "runtime_ns",
        "utilisation",
        "kernel",
    ] {
        assert!(!json[key].is_null(), "{key}");
    }
    for key in [
        "id",
        "burst_length",
        "r_min",
        "r_max",
        "r",
        "buffer_elements",
        "backlog",
        "latency_ns",
    ] {
        assert!(!json["sensors"][0][key].is_null(), "{key}");
    }
    // A user without the right to reserve gets the hypothetical result, and the message that the
    // kernel would refuse it.
    if let Some(mut command) = as_nobody(&["admit", "--json", "--config", "/dev/stdin"]) {
        let text = fs::read_to_string(&file).unwrap();
        let text = text.replace("fitted = \"whole\"", "period = \"1ms\"");
        let input = folder.path().join("input");
        fs::write(&input, text).unwrap();
        command.stdin(fs::File::open(&input).unwrap());
        let ended = finish(&mut command);
        let json: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(
            (ended.status, json["kernel"].as_str()),
            (5, Some("not_permitted"))
        );
        assert_eq!(json["accepted"], true);
        let lacking = json["lacking"].as_str().unwrap();
        assert!(lacking.contains("may not reserve"), "{lacking}");
    } else {
        println!(
            "skipped: the part of an ordinary user needs root, and a binary that others may run"
        );
    }

    write("2500us", "whole");
    let refused = admit(&[]);
    assert_eq!(refused.status, 4, "{refused:?}");
    assert!(refused.stdout.contains("REFUSED: ") && refused.stdout.contains("would fit"));
    write("40ms", "torn");
    admit(&[]).has_only_message(2, &["sensor `queue`", "3 elements were missed"]);
    write("40 parsecs", "whole");
    admit(&[]).has_only_message(2, &["overhear.toml: line 2", "40 parsecs"]);
    fs::remove_file(&file).unwrap();
    admit(&[]).has_only_message(2, &["cannot read", "overhear.toml", "docs/admission.md"]);
}

#[test]
fn exports_contain_gaps_and_close_without_a_message() {
    let folder = folder();
    let (whole, torn) = (folder.path().join("whole"), folder.path().join("torn"));
    record(&whole, &pairs(), 0);
    record(&torn, &pairs(), 3);
    let out = folder.path().join("out");
    let export = |dir: &Path, arguments: &[&str]| {
        let all = [
            &["export", path(dir), "-o", path(&out), "--to"][..],
            arguments,
        ]
        .concat();
        finish(&mut overhear(&all))
    };
    export(&whole, &["perfetto"]).has_only_message(0, &["100 elements written to", "complete"]);
    assert!(fs::metadata(&out).unwrap().len() > 1_000);
    export(&torn, &["csv"]).has_only_message(3, &["3 elements are missing in 1 gaps"]);
    let rows = fs::read_to_string(&out).unwrap();
    assert_eq!(rows.lines().count(), 1 + 100 + 1);
    assert!(
        rows.contains(",server(42)/queue#disk[0],,25,3,overwritten,"),
        "{rows}"
    );
    export(&whole, &["csv", "--sensor", "queue"]).has_message(0, &["100 elements"]);
    export(&whole, &["perfetto", "--sensor", "queue"]).has_only_message(2, &["--sensor chooses"]);
    export(&whole, &["csv", "--sensor", "stack"])
        .has_only_message(2, &["there is no sensor `stack`"]);
    export(folder.path(), &["csv"]).has_message(2, &["is not a trace of Overhear"]);
    let full = finish(&mut overhear(&[
        "export",
        path(&whole),
        "--to",
        "csv",
        "-o",
        "/dev/full",
    ]));
    full.has_only_message(3, &["/dev/full", "cannot write the export"]);
}

#[test]
fn closed_export_prints_its_number_of_elements() {
    let folder = folder();
    let dir = folder.path().join("long");
    let times: Vec<u64> = (1..=50_000).collect();
    record(&dir, &times, 0);
    for format in ["csv", "perfetto"] {
        let mut command = overhear(&["export", path(&dir), "--to", format, "--output", "-"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut export = command.spawn().unwrap();
        let mut first = [0; 10_000];
        export
            .stdout
            .take()
            .unwrap()
            .read_exact(&mut first)
            .unwrap();
        assert_eq!(wait(&mut export), 0);
        let mut messages = String::new();
        export
            .stderr
            .unwrap()
            .read_to_string(&mut messages)
            .unwrap();
        let elements = messages
            .strip_suffix(" elements written to standard output until its reader closed it\n");
        let elements: usize = elements
            .unwrap_or_else(|| panic!("{messages}"))
            .parse()
            .unwrap();
        // Without the line of headings and the line that is cut.
        let read = String::from_utf8_lossy(&first).lines().count() - 2;
        assert!(elements < 50_000, "{messages}");
        assert!(format != "csv" || elements >= read, "{read}: {messages}");
    }
}
