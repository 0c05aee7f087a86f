// SPDX-License-Identifier: MIT OR Apache-2.0
//! POSIX trace logs are recordings: every verb that reads a recording reads a log, and an import
//! makes a folder of it that babeltrace2 reads.

use std::fs::{self, File};
use std::path::Path;

use overhear_event::kernel::Switch;
use overhear_event::{GapCause, Timestamp};
use overhear_posixtrace::{
    Attributes, EventId, FinalStatus, LogFullPolicy, LogHeader, LogWriter, LostEvents, TraceEvent,
    Truncation,
};

use serde_json::Value;

use crate::support::{babeltrace, finish, folder, has_babeltrace, overhear, path, report_json};

const PID: u32 = 4_100_000;

fn header(log_full: LogFullPolicy, log_size: usize) -> LogHeader {
    LogHeader {
        attributes: Attributes {
            name: b"demo".to_vec(),
            log_full,
            log_size,
            ..Attributes::default()
        },
        pid: PID,
        comm: "worker".to_owned(),
        realtime_offset_ns: 1_700_000_000_000_000_000,
        clock_resolution_ns: 1,
    }
}

/// Starts a log with names for two user event types and one of Linux.
fn begin(log: &Path, header: &LogHeader) -> LogWriter {
    let mut options = File::options();
    let options = options.create(true).truncate(true).read(true).write(true);
    let file = options.open(log).unwrap();
    let mut writer = LogWriter::create(file.into(), header).unwrap();
    writer
        .define(EventId::user(1).unwrap(), b"job_begin")
        .unwrap();
    writer
        .define(EventId::user(2).unwrap(), b"job_end")
        .unwrap();
    let switch = EventId::from_raw(16).unwrap();
    writer.define(switch, b"sched_switch").unwrap();
    writer
}

fn record(writer: &mut LogWriter, ms: u64, event: EventId, data: &[u8]) {
    let event = TraceEvent {
        time: Timestamp::from_monotonic_ns(ms * 1_000_000),
        event,
        pid: PID,
        tid: PID + 1,
        thread: 5,
        address: 0x1234,
        truncation: Truncation::None,
        data,
    };
    let _ = writer.event(&event).unwrap();
}

/// Ten jobs of 3 ms, one each 10 ms, and a context switch.
fn jobs(writer: &mut LogWriter) {
    for job in 0..10_u64 {
        let [first, second] = [1, 2].map(|index| EventId::user(index).unwrap());
        record(writer, 100 + 10 * job, first, &job.to_ne_bytes());
        record(writer, 103 + 10 * job, second, b"done");
    }
    let switch = Switch {
        prev_tid: PID + 1,
        next_tid: 0,
        prev_pid: PID,
        next_pid: 0,
        prev_state: 1,
        flags: Switch::VOLUNTARY,
        prev_run_ns: 3_000_000,
    };
    let data = [switch.to_payload().as_slice(), &1_u32.to_ne_bytes()].concat();
    record(writer, 200, EventId::from_raw(16).unwrap(), &data);
}

const METRIC: &str = r#"
metric job_time "A job"
event begins = user:job_begin
event ends   = user:job_end
state idle out
state first begin
state works in
state done end
idle  -> first: begins, i
first -> works: lambda
works -> done:  ends, i
done  -> idle:  lambda
"#;

const CONSTRAINT: &str = r#"
[[constraint]]
name = "jobs end"
after = "user:job_begin"
of = "user:job_end"
within = "4 ms"

[[constraint]]
name = "few jobs"
of = "user:job_begin"
field = "value"
max = 8
"#;

#[test]
fn verbs_read_a_log_as_a_recording() {
    let folder = folder();
    let temporary = folder.path().join("temporary");
    fs::create_dir(&temporary).unwrap();
    let overhear = |arguments: &[&str]| {
        let mut command = overhear(arguments);
        command.env("TMPDIR", &temporary);
        command
    };
    let log = folder.path().join("log");
    let mut writer = begin(&log, &header(LogFullPolicy::Append, 0));
    jobs(&mut writer);
    writer.finish(&FinalStatus::default()).unwrap();

    let ended = finish(&mut overhear(&["report", "--json", path(&log)]));
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let streams = report["sensors"].as_array().unwrap();
    let counted: Vec<(&str, u64)> = streams
        .iter()
        .map(|it| {
            (
                it["id"].as_str().unwrap_or("?"),
                it["elements"].as_u64().unwrap_or(0),
            )
        })
        .collect();
    assert_eq!(report["trace"]["directory"], path(&log));
    assert!(counted.contains(&("job_begin", 10)), "{counted:?}");
    assert!(counted.contains(&("job_end", 10)), "{counted:?}");

    let csv = folder.path().join("out.csv");
    let to = [
        "export",
        "--to",
        "csv",
        "--sensor",
        "job_end",
        "-o",
        path(&csv),
        path(&log),
    ];
    let ended = finish(&mut overhear(&to));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let csv = fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 11, "{csv}");
    assert!(csv.lines().next().unwrap().contains("data_len"), "{csv}");
    assert!(csv.lines().nth(1).unwrap().contains("done"), "{csv}");

    let page = folder.path().join("page.html");
    let html = [
        "report",
        "--html",
        path(&page),
        "--compare",
        path(&log),
        path(&log),
    ];
    let ended = finish(&mut overhear(&html));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains(path(&log)) && !page.contains("/recording"));

    let perfetto = folder.path().join("out.perfetto");
    let to = [
        "export",
        "--to",
        "perfetto",
        "-o",
        path(&perfetto),
        path(&log),
    ];
    let ended = finish(&mut overhear(&to));
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(fs::metadata(&perfetto).unwrap().len() > 1_000);

    let config = folder.path().join("overhear.toml");
    fs::write(&config, CONSTRAINT).unwrap();
    let ended = finish(&mut overhear(&[
        "check",
        "--config",
        path(&config),
        path(&log),
    ]));
    assert_eq!(ended.status, 1, "{ended:#?}");
    let lines: Vec<String> = ended
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert!(
        lines.contains(&"jobs end held 10 0".to_owned()),
        "{lines:?}"
    );
    assert!(
        lines.contains(&"few jobs violated 10 1".to_owned()),
        "{lines:?}"
    );

    let text = folder.path().join("job.metric");
    fs::write(&text, METRIC).unwrap();
    let of = ["metrics", "--metric", path(&text), "--json", path(&log)];
    let ended = finish(&mut overhear(&of));
    let metrics: Value = serde_json::from_str(&ended.stdout).unwrap();
    let task = &metrics["metrics"][0]["tasks"][0];
    assert_eq!(
        (&task["task"], &task["count"]),
        (&(PID + 1).into(), &10.into())
    );
    assert_eq!(task["max_ns"], 3_000_000, "{metrics:#}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn imported_log_is_read_by_babeltrace() {
    let folder = folder();
    let (log, out) = (folder.path().join("log"), folder.path().join("out"));
    let mut writer = begin(&log, &header(LogFullPolicy::Append, 0));
    jobs(&mut writer);
    let [from, to] = [201, 202].map(|ms| Timestamp::from_monotonic_ns(ms * 1_000_000));
    let _ = writer
        .lost(LostEvents {
            from,
            to,
            missed: 7,
            cause: GapCause::Overwritten,
        })
        .unwrap();
    record(&mut writer, 203, EventId::UNNAMED, b"");
    writer.finish(&FinalStatus::default()).unwrap();
    let ended = finish(&mut overhear(&["import", path(&log), "-o", path(&out)]));
    ended.has_message(3, &["22 events in 5 streams"]);
    ended.has_message(3, &["inconclusive: 7 events are not in the log"]);
    // The 7 events are missing in each stream, because their types are not known.
    if has_babeltrace() {
        assert_eq!(babeltrace(&out.join("trace")), (22, 5 * 7));
    }
    let (_, report) = report_json(&out);
    assert_eq!(report["complete"], false);
}

#[test]
fn damaged_and_growing_logs_have_messages() {
    let folder = folder();
    let log = folder.path().join("log");
    let mut writer = begin(&log, &header(LogFullPolicy::Loop, 2_000));
    for _ in 0..30 {
        jobs(&mut writer);
    }
    writer.flush().unwrap();
    // This process still writes it.
    let ended = finish(&mut overhear(&["report", path(&log)]));
    assert_eq!(ended.status, 3, "{ended:#?}");
    assert!(
        ended.stdout.contains("is still being written by process"),
        "{ended:#?}"
    );
    assert!(!ended.stdout.contains("/recording"), "{ended:#?}");

    let other = folder.path().join("text");
    fs::write(&other, "hello").unwrap();
    for verb in ["report", "export --to csv -o -", "view"] {
        let mut arguments: Vec<&str> = verb.split(' ').collect();
        arguments.push(path(&other));
        let ended = finish(&mut overhear(&arguments));
        ended.has_message(2, &[path(&other), "is a file, and no POSIX trace log"]);
    }
    let ended = finish(&mut overhear(&["repair", path(&log)]));
    ended.has_only_message(2, &["is a trace log, which needs no repair"]);

    let log = folder.path().join("linear");
    let mut writer = begin(&log, &header(LogFullPolicy::Append, 0));
    jobs(&mut writer);
    writer.finish(&FinalStatus::default()).unwrap();
    let mut bytes = fs::read(&log).unwrap();
    let middle = bytes.len() - 600;
    bytes[middle] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let ended = finish(&mut overhear(&["report", path(&log)]));
    assert_eq!(ended.status, 3, "{ended:#?}");
    assert!(
        ended.stdout.contains("is damaged in one place"),
        "{ended:#?}"
    );
}
