// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear metrics`, from a recording to exit statuses and numbers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use overhear_event::kernel::{Switch, Wake, SCHED_SWITCH, SCHED_WAKE};
use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_trace::{TraceIdentity, TraceWriter};
use serde_json::Value;

use crate::support::{finish, folder, overhear, path};

pub(crate) const TID: u32 = 4_242;

pub(crate) fn stream(id: u32, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor::new(
        StreamId::from_raw(id),
        Origin::Kernel { cpu: 0 },
        sensor,
        schema,
    )
}

pub(crate) fn switch(arrives: bool, state: u16, ran: u32) -> [u8; 24] {
    let voluntary = if state == 0 {
        Switch::PREEMPTED
    } else {
        Switch::VOLUNTARY
    };
    let (prev_tid, next_tid, flags) = if arrives {
        (0, TID, Switch::NEXT_TRACKED)
    } else {
        (TID, 0, Switch::PREV_TRACKED | voluntary)
    };
    Switch {
        prev_tid,
        next_tid,
        prev_pid: prev_tid,
        next_pid: next_tid,
        prev_state: state,
        flags,
        prev_run_ns: if arrives { 0 } else { ran },
    }
    .to_payload()
}

pub(crate) fn wake(kind: u32) -> [u8; 24] {
    Wake {
        tid: TID,
        pid: TID,
        waker_tid: 1,
        waker_pid: 1,
        target_cpu: 0,
        kind,
    }
    .to_payload()
}

/// A thread that is woken, displaced and asleep repeatedly, with growing latencies; without
/// wake-ups if they are not recorded, and with a gap in the tenth period if elements are `missed`.
pub(crate) fn record(dir: &Path, records_wakeups: bool, missed: u64) {
    let switches = stream(1, SCHED_SWITCH, Switch::schema());
    let wakes = stream(2, SCHED_WAKE, Wake::schema());
    let mut writer = TraceWriter::create(dir, TraceIdentity::default()).unwrap();
    writer.open(&Arc::new(switches.clone())).unwrap();
    if records_wakeups {
        writer.open(&Arc::new(wakes.clone())).unwrap();
    }
    let mut sequences = [0, 0];
    let mut write = |index: usize, ns: u64, payload: [u8; 24]| {
        let stream = [&switches, &wakes][index];
        if index == 1 && !records_wakeups {
            return;
        }
        let element = ElementView {
            stream,
            sequence: sequences[index],
            time: Timestamp::from_monotonic_ns(ns),
            payload: &payload,
        };
        Analysis::element(&mut writer, &element);
        sequences[index] += 1;
        if missed > 0 && index == 1 && sequences[1] == 20 {
            let gap = Gap {
                stream: switches.id,
                first: sequences[0],
                missed,
                from: Timestamp::from_monotonic_ns(ns),
                to: Timestamp::from_monotonic_ns(ns + 10),
                cause: GapCause::Overwritten,
            };
            Analysis::gap(&mut writer, &switches, &gap);
            sequences[0] += missed;
        }
    };
    for period in 0..200_u64 {
        let begin = 1_000_000 + period * 100_000;
        write(1, begin, wake(Wake::WAKING));
        write(1, begin + 300, wake(Wake::WAKEUP));
        write(0, begin + 1_000 + period * 7, switch(true, 0, 0));
        write(
            0,
            begin + 10_000,
            switch(false, 0, (9_000 - period * 7) as u32),
        );
        write(0, begin + 12_000 + period * 3, switch(true, 0, 0));
        write(
            0,
            begin + 40_000,
            switch(false, 1, (28_000 - period * 3) as u32),
        );
    }
    writer.finish().unwrap();
}

fn json(arguments: &[&str], status: i32) -> Value {
    let ended = finish(&mut overhear(arguments));
    assert_eq!(ended.status, status, "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn metrics_equal_those_of_the_report() {
    let folder = folder();
    let dir = folder.path().join("whole");
    record(&dir, true, 0);
    let report = json(&["report", path(&dir), "--json"], 3);
    let threads = report["threads"].as_array().unwrap();
    let thread = threads.iter().find(|thread| thread["tid"] == TID).unwrap();
    let metrics = json(
        &[
            "metrics",
            path(&dir),
            "--metric",
            "wakeup_latency",
            "--metric",
            "run_delay",
            "--json",
        ],
        0,
    );
    let row = |index: usize| &metrics["metrics"][index]["tasks"][0];
    assert_eq!(
        (&row(0)["task"], &row(0)["count"]),
        (&TID.into(), &200.into())
    );
    for (metric, report) in [
        ("count", "count"),
        ("min_ns", "min"),
        ("median_ns", "median"),
        ("p99_ns", "p99"),
        ("max_ns", "max"),
    ] {
        assert_eq!(
            row(0)[metric],
            thread["wakeup_latency_ns"][report],
            "{metric}"
        );
    }
    assert_eq!(row(1)["count"], 400);
    assert_eq!(row(1)["total_ns"], thread["runnable_ns"]);
    let text = finish(&mut overhear(&["metrics", path(&dir)]));
    assert_eq!(text.status, 0, "{text:?}");
    for name in [
        "wakeup_latency: ",
        "time_slice: ",
        "preemption: ",
        "blocked: ",
    ] {
        assert!(text.stdout.contains(name), "{text:?}");
    }
}

#[test]
fn measurements_are_listed_with_the_values_of_the_paper() {
    let folder = folder();
    let dir = folder.path().join("torn");
    record(&dir, true, 3);
    let measure = ["metrics", path(&dir), "--metric", "wakeup_latency"];
    let sums = json(&[&measure[..], &["--json"]].concat(), 3);
    assert!(sums["metrics"][0].get("measurements").is_none(), "{sums}");
    let report = json(&[&measure[..], &["--measurements", "--json"]].concat(), 3);
    let each = report["metrics"][0]["measurements"].as_array().unwrap();
    assert_eq!(each.len() as u64, report["metrics"][0]["completed"]);
    for (member, value) in [
        ("task", TID.into()),
        ("length_ns", 1_007.into()),
        ("begin_ns", 1_100_000.into()),
        ("end_ns", 1_101_007.into()),
        // The wake-up element after the waking element.
        ("intermediate_events", 1.into()),
        ("own_events", 1.into()),
        ("missed", 0.into()),
        ("gaps", Value::Array(Vec::new())),
        ("key", Value::Null),
    ] {
        assert_eq!(each[1][member], value, "{member}");
    }
    let missed = each.iter().filter(|one| one["missed"] == 3);
    assert_eq!(
        missed.clone().count() as u64,
        report["metrics"][0]["incomplete"]
    );
    for one in missed {
        let [gap] = &one["gaps"].as_array().unwrap()[..] else {
            panic!("{one}");
        };
        assert_eq!(
            (&gap["missed"], &gap["cause"]),
            (&3.into(), &"overwritten".into())
        );
        let inside = gap["to_ns"].as_u64() > one["begin_ns"].as_u64();
        assert!(
            inside && gap["from_ns"].as_u64() < one["end_ns"].as_u64(),
            "{one}"
        );
    }
    // The demanded length is subtracted.
    let less = ["--measurements", "--element-cost", "100ns", "--json"];
    let less = json(&[&measure[..], &less].concat(), 3);
    assert_eq!(less["metrics"][0]["measurements"][1]["length_ns"], 907);

    let text = finish(&mut overhear(&[&measure[..], &["--measurements"]].concat()));
    let heads = " task  name   length        begin          end  events  own  missed";
    // Counted from the first element, if there is no run.
    let row = " 4242        1.01 us  0.000100000 s  0.000101007 s       1    1       0";
    for line in [heads, row] {
        let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut lines = text.stdout.lines();
        assert!(
            lines.any(|report| squeeze(report) == squeeze(line)),
            "{text:?}"
        );
    }
    assert!(text.stdout.contains("inconclusive: 3 elements were missed"));
}

#[test]
fn kinds_have_their_names() {
    let folder = folder();
    let dir = folder.path().join("whole");
    record(&dir, true, 0);
    let measure = ["metrics", path(&dir), "--metric", "off_cpu"];
    let report = json(&[&measure[..], &["--json"]].concat(), 0);
    let rows = report["metrics"][0]["tasks"].as_array().unwrap();
    let kinds: Vec<_> = rows
        .iter()
        .map(|row| (row["key"].as_u64(), row["key_name"].as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            (Some(0), Some("runnable")),
            (Some(1), Some("interruptible"))
        ]
    );
    for options in [&[][..], &["--measurements"]] {
        let text = finish(&mut overhear(&[&measure[..], options].concat()));
        assert!(text.stdout.contains("  interruptible  "), "{text:?}");
    }
}

#[test]
fn missed_and_unrecorded_events_are_named_and_set_the_status() {
    let folder = folder();
    let (torn, without_wake_ups) = (
        folder.path().join("torn"),
        folder.path().join("without-wake-ups"),
    );
    record(&torn, true, 3);
    let metrics = json(
        &[
            "metrics",
            path(&torn),
            "--metric",
            "wakeup_latency",
            "--json",
        ],
        3,
    );
    let metric = &metrics["metrics"][0];
    assert_eq!(
        (&metric["missed"], &metric["incomplete"]),
        (&3.into(), &1.into())
    );
    record(&without_wake_ups, false, 0);
    let ended = finish(&mut overhear(&[
        "metrics",
        path(&without_wake_ups),
        "--metric",
        "wakeup_latency",
    ]));
    assert_eq!(ended.status, 3, "{ended:?}");
    assert!(
        ended
            .stdout
            .contains("inconclusive: no stream of kernel:sched_wake"),
        "{ended:?}"
    );
    let ended = finish(&mut overhear(&[
        "metrics",
        path(&without_wake_ups),
        "--metric",
        "time_slice",
    ]));
    assert_eq!(ended.status, 0, "{ended:?}");
    // A killed recorder has not written its newest elements; their number is unknown.
    fs::remove_file(without_wake_ups.join("trace/overhear/summary.json")).unwrap();
    let metrics = [
        "metrics",
        path(&without_wake_ups),
        "--metric",
        "time_slice",
        "--json",
    ];
    let notes = &json(&metrics, 3)["notes"];
    assert_eq!(notes[0], "the recorder did not finish", "{notes}");
}

#[test]
fn automata_are_drawn_without_a_recording() {
    let folder = folder();
    let file = folder.path().join("mine.metric");
    let own = "metric mine\nevent in = user:a\nstate 0 out\nstate 1 begin\nstate 2 end\n\
        0 -> 1: in, i\n1 -> 2: in, i\n";
    fs::write(&file, own).unwrap();
    let draw = |options: &[&str]| finish(&mut overhear(&[&["metrics", "--dot"], options].concat()));
    let drawn = draw(&["--metric", path(&file), "--metric", "time_slice"]);
    assert_eq!(drawn.status, 0, "{drawn:?}");
    let metric = overhear_metrics::automaton::system_metric("time_slice").unwrap();
    let built_in = metric.specification().to_graphviz();
    assert!(drawn.stdout.starts_with("digraph mine {\n"), "{drawn:?}");
    assert!(drawn.stdout.ends_with(&built_in), "{drawn:?}");
    // A mistake is found without a recording, too.
    fs::write(&file, own.replace("2 end", "2 ends")).unwrap();
    draw(&["--metric", path(&file)]).has_only_message(2, &["line 5, column 9: expected `begin`"]);
    draw(&[]).has_only_message(
        2,
        &["there is no metric to draw; name one (--dot, --metric, --config)"],
    );
    assert_eq!(draw(&["--metric", "time_slice", "DIR"]).status, 2);
    assert_eq!(finish(&mut overhear(&["metrics"])).status, 2);
}

#[test]
fn metrics_of_files_are_read_or_refused_with_their_location() {
    let folder = folder();
    let dir = folder.path().join("whole");
    record(&dir, true, 0);
    let file = folder.path().join("mine.metric");
    let own = "metric mine\nevent in = kernel:sched_switch [flags has 4] task next_tid\n\
        state 0 out\nstate 1 begin\nstate 2 end\n0 -> 1: in, i\n1 -> 2: in, i\n2 -> 0: lambda\n";
    fs::write(&file, own).unwrap();
    let measure = |name: &str| finish(&mut overhear(&["metrics", path(&dir), "--metric", name]));
    assert_eq!(measure(path(&file)).status, 0);
    fs::write(&file, own.replace("1 -> 2: in", "1 -> 2: out")).unwrap();
    let location = format!("{}: line 7, column 9: unknown event `out`", path(&file));
    measure(path(&file)).has_only_message(2, &[&location]);
    measure("wakeup").has_only_message(
        2,
        &["there is no system metric `wakeup`; there are wakeup_latency,"],
    );
    measure("no/such.metric").has_only_message(2, &["cannot read no/such.metric"]);
}

#[test]
fn run_without_events_for_its_metrics_is_incomplete() {
    let run = [
        "run",
        "--kernel",
        "off",
        "--metric",
        "run_delay",
        "--metric",
    ];
    let run = [&run[..], &["time_slice", "--", "true"]].concat();
    let ended = finish(&mut overhear(&run));
    assert_eq!(ended.status, 3, "{ended:?}");
    let messages = format!("{}{}", ended.stdout, ended.stderr);
    assert!(
        messages.contains("inconclusive: no stream of kernel:sched_switch"),
        "{messages}"
    );
    let message = "not all events that metrics require were recorded: run_delay, time_slice";
    assert!(messages.contains(message), "{messages}");
    assert!(!messages.contains("complete: nothing missed"), "{messages}");
}

#[test]
fn metrics_can_be_named_in_a_file_without_a_monitor() {
    let folder = folder();
    let dir = folder.path().join("whole");
    record(&dir, true, 0);
    let file = folder.path().join("overhear.toml");
    fs::write(&file, "[[metric]]\nname = \"time_slice\"\n").unwrap();
    let measure = ["metrics", path(&dir), "--config", path(&file), "--json"];
    let ended = finish(&mut overhear(&measure));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let metrics = report["metrics"].as_array().unwrap();
    assert_eq!(
        (metrics.len(), &metrics[0]["name"]),
        (1, &"time_slice".into())
    );
    // The same file works for a run.
    let run = [
        "run",
        "--quiet",
        "--kernel",
        "off",
        "--config",
        path(&file),
        "--json",
        "--",
        "true",
    ];
    let ended = finish(&mut overhear(&run));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["metrics"]["metrics"][0]["name"], "time_slice");
    let twice = [
        "metrics",
        path(&dir),
        "--config",
        path(&file),
        "--metric",
        "time_slice",
    ];
    finish(&mut overhear(&twice)).has_only_message(2, &["two metrics are called time_slice"]);
}
