// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import`: a trace in the format of LTTng, of the kernel and of a program, becomes a
//! recording for metrics and constraints.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{finish, folder, has_libbabeltrace, overhear, path, report_json};

/// LTTng's metadata, shortened to the events of these traces.
const METADATA: &str = r#"/* CTF 1.8 */
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
typealias integer { size = 64; align = 8; signed = true; } := int64_t;
trace {
    major = 1; minor = 8; byte_order = le;
    packet.header := struct { uint32_t magic; uint32_t stream_id; };
};
env { domain = "kernel"; tracer_name = "lttng-modules"; };
clock { name = "monotonic"; freq = 1000000000; offset_s = 1700000000; };
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := stamp_t;
stream {
    id = 0;
    packet.context := struct {
        stamp_t timestamp_begin; stamp_t timestamp_end;
        uint64_t content_size; uint64_t packet_size; uint64_t packet_seq_num; uint64_t events_discarded; uint32_t cpu_id;
    };
    event.header := struct { uint32_t id; stamp_t timestamp; };
};
event { name = "sched_switch"; id = 0; stream_id = 0; fields := struct {
    string prev_comm; uint32_t prev_tid; int64_t prev_state; string next_comm; uint32_t next_tid; }; };
event { name = "sched_waking"; id = 1; stream_id = 0; fields := struct {
    string comm; uint32_t tid; uint32_t target_cpu; }; };
event { name = "sched_wakeup"; id = 2; stream_id = 0; fields := struct {
    string comm; uint32_t tid; uint32_t target_cpu; }; };
event { name = "app:request"; id = 3; stream_id = 0;
    context := struct { uint32_t vpid; uint32_t vtid; string procname; };
    fields := struct { int64_t number; string kind; }; };
"#;

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(text.as_bytes());
    bytes.push(0);
}

fn event(bytes: &mut Vec<u8>, id: u32, us: u64) {
    bytes.extend(id.to_le_bytes());
    bytes.extend((us * 1_000).to_le_bytes());
}

fn switch(bytes: &mut Vec<u8>, us: u64, (prev, state): (u32, i64), next: u32) {
    let name =
        |tid| ["worker", "other", "swapper/0"][[7, 9, 0].iter().position(|t| *t == tid).unwrap()];
    event(bytes, 0, us);
    text(bytes, name(prev));
    bytes.extend(prev.to_le_bytes());
    bytes.extend(state.to_le_bytes());
    text(bytes, name(next));
    bytes.extend(next.to_le_bytes());
}

/// Thread 7 is woken, runs after 100 us, is displaced for 50 us, and sleeps; in each period the
/// program writes one event for a request.
fn period(bytes: &mut Vec<u8>, period: u64) {
    let us = 1_000 * (period + 1);
    for (id, later) in [(1, 0), (2, 10)] {
        event(bytes, id, us + later);
        text(bytes, "worker");
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
    }
    switch(bytes, us + 100, (0, 0), 7);
    // The state of a displaced thread in newer kernels.
    switch(bytes, us + 200, (7, 0x100), 9);
    switch(bytes, us + 250, (9, 1), 7);
    request(bytes, period);
    switch(bytes, us + 400, (7, 1), 0);
}

/// The program's event of a period.
fn request(bytes: &mut Vec<u8>, period: u64) {
    event(bytes, 3, 1_000 * (period + 1) + 260);
    bytes.extend(7_u32.to_le_bytes());
    bytes.extend(7_u32.to_le_bytes());
    text(bytes, "worker");
    bytes.extend((period as i64 - 5).to_le_bytes());
    text(bytes, "a \"quoted\", } word");
}

/// Two packets of ten periods. Before the second one, `discarded` events and `packets` packets were
/// discarded.
fn foreign(dir: &Path, discarded: u64, packets: u64) {
    foreign_of(dir, discarded, packets, period);
}

/// Like [`foreign`], with these events in each period.
fn foreign_of(dir: &Path, discarded: u64, packets: u64, period: impl Fn(&mut Vec<u8>, u64)) {
    let mut stream = Vec::new();
    for (packet, number, lost) in [(0, 0, 0), (1, 1 + packets, discarded)] {
        let mut events = Vec::new();
        (packet * 10..packet * 10 + 10).for_each(|number| period(&mut events, number));
        let begin = 1_000 * (packet * 10 + 1);
        stream.extend(packet_of(
            0,
            (begin, begin + 9_400),
            (number, lost),
            &events,
        ));
    }
    trace_of(dir, &[stream]);
}

/// A packet of a CPU between two times in microseconds, with its number and the number of events
/// discarded until then.
fn packet_of(
    cpu: u32,
    (begin, end): (u64, u64),
    (number, lost): (u64, u64),
    events: &[u8],
) -> Vec<u8> {
    let mut packet = Vec::new();
    let bits = (8 + 6 * 8 + 4 + events.len() as u64) * 8;
    packet.extend(0xC1FC_1FC1_u32.to_le_bytes());
    packet.extend(0_u32.to_le_bytes());
    for word in [1_000 * begin, 1_000 * end, bits, bits, number, lost] {
        packet.extend(word.to_le_bytes());
    }
    packet.extend(cpu.to_le_bytes());
    packet.extend(events);
    packet
}

fn trace_of(dir: &Path, streams: &[Vec<u8>]) {
    fs::create_dir(dir).unwrap();
    fs::write(dir.join("metadata"), METADATA).unwrap();
    for (cpu, stream) in streams.iter().enumerate() {
        fs::write(dir.join(format!("channel0_{cpu}")), stream).unwrap();
    }
}

/// Switches on two CPUs: time in microseconds, leaving thread, entering thread.
fn two_cpus(dir: &Path, switches: [&[(u64, u32, u32)]; 2]) {
    let streams = [0, 1].map(|cpu: u32| {
        let mut events = Vec::new();
        for &(us, prev, next) in switches[cpu as usize] {
            switch(&mut events, us, (prev, 1), next);
        }
        packet_of(cpu, (1_000, 9_000_000), (0, 0), &events)
    });
    trace_of(dir, &streams);
}

fn json(arguments: &[&str], status: i32) -> Value {
    let ended = finish(&mut overhear(arguments));
    assert_eq!(ended.status, status, "{ended:#?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn metrics_and_constraints_run_on_a_trace_of_lttng() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    foreign(&trace, 0, 0);
    let ended = finish(&mut overhear(&[
        "import",
        path(&trace),
        "--out",
        path(&out),
    ]));
    // 140 events; and the names of two threads.
    ended.has_message(0, &["142 elements in 4 streams", "140 events"]);
    let metrics = ["wakeup_latency", "run_delay", "response_time"];
    let options = metrics.map(|name| ["--metric", name]).concat();
    let report = json(
        &[&["metrics", path(&out), "--json"], &options[..]].concat(),
        0,
    );
    for (index, (count, longest)) in [(20, 100_000), (40, 90_000), (19, 400_000)]
        .into_iter()
        .enumerate()
    {
        let tasks = report["metrics"][index]["tasks"].as_array().unwrap();
        let row = tasks.iter().find(|row| row["comm"] == "worker").unwrap();
        assert_eq!(
            (&row["task"], &row["count"]),
            (&7.into(), &count.into()),
            "{row}"
        );
        assert_eq!(row["max_ns"], longest, "{row}");
    }
    let config = folder.path().join("overhear.toml");
    let constraints = "[[constraint]]\nname = \"numbers\"\nof = \"user:app.request\"\nfield = \"number\"\n\
        min = -5\nmax = 14\n[[constraint]]\nname = \"period\"\nof = \"user:app.request [kind != \\\"x\\\"]\"\n\
        each = \"task\"\nperiod = \"1ms\"\njitter = \"1us\"\n";
    fs::write(&config, constraints).unwrap();
    let report = json(
        &["check", path(&out), "--config", path(&config), "--json"],
        0,
    );
    assert_eq!(report["constraints"][0]["judged"], 20);
    assert_eq!(report["constraints"][1]["judged"], 19);
    // It is an ordinary recording.
    let report = json(&["report", path(&out), "--json"], 0);
    assert_eq!(report["sensors"][0]["task"], "worker(7)");
    assert_eq!(report["sensors"][0]["elements"], 20);
}

#[test]
fn discarded_events_are_missed_by_metrics() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    foreign(&trace, 3, 0);
    let ended = finish(&mut overhear(&[
        "import",
        path(&trace),
        "--out",
        path(&out),
    ]));
    ended.has_message(3, &["inconclusive: the tracer had discarded 3 events"]);
    let arguments = [
        "metrics",
        path(&out),
        "--metric",
        "wakeup_latency",
        "--json",
    ];
    let report = json(&arguments, 3);
    // In each of its two subscribed streams.
    assert_eq!(report["metrics"][0]["missed"], 6);
}

#[test]
fn discarded_packets_count_as_one_event_each_at_least() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    foreign(&trace, 3, 2);
    let import = ["import", path(&trace), "--out", path(&out)];
    let ended = finish(&mut overhear(&import));
    ended.has_message(3, &["the tracer had discarded at least 5 events"]);
    let report = json(&["report", path(&out), "--json"], 3);
    assert_eq!(report["sensors"][0]["missed"], 5, "{report:#}");
}

#[test]
fn traces_below_a_folder_are_one_recording() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (traces, out) = (folder.path().join("session"), folder.path().join("out"));
    fs::create_dir_all(traces.join("deeper")).unwrap();
    foreign(&traces.join("kernel"), 0, 0);
    foreign_of(&traces.join("deeper/ust"), 0, 0, request);
    let import = ["import", path(&traces), "--out", path(&out)];
    let ended = finish(&mut overhear(&import));
    ended.has_message(0, &["from 160 events"]);
    // They are listed, because the folder may contain traces of several sessions.
    ended.has_message(
        0,
        &[
            "2 traces in",
            path(&traces),
            ": deeper/ust, kernel; name one of these folders",
        ],
    );
    let (_, report) = report_json(&out);
    let source = report["sources"][0]["message"].as_str().unwrap();
    assert!(source.ends_with(": deeper/ust, kernel"), "{source}");
    // A trace below the folder is named by its relative path; a trace that the user names itself is
    // not listed.
    fs::remove_dir_all(traces.join("kernel")).unwrap();
    let out = folder.path().join("one");
    let import = ["import", path(&traces), "--out", path(&out)];
    finish(&mut overhear(&import)).has_only_message(0, &["from 20 events"]);
    let (_, report) = report_json(&out);
    let source = report["sources"][0]["message"].as_str().unwrap();
    assert!(source.ends_with(": deeper/ust"), "{source}");
}

/// Imports a trace and reports on it, both with this status.
fn reported(trace: &Path, out: &Path, status: i32, has_message: &[&str]) -> Value {
    let ended = finish(&mut overhear(&["import", path(trace), "--out", path(out)]));
    ended.has_message(status, has_message);
    json(&["report", path(out), "--json"], status)
}

/// The running time of a thread.
fn run_ns(report: &Value, tid: u32) -> u64 {
    let threads = report["threads"].as_array().unwrap();
    let row = threads.iter().find(|row| row["tid"] == tid).unwrap();
    row["run_ns"].as_u64().unwrap()
}

#[test]
fn unrecorded_switches_are_missed() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    // The sixth period lacks its last switch: 7 would run until the next period.
    foreign_of(&trace, 0, 0, |bytes, number| {
        let before = bytes.len();
        period(bytes, number);
        if number == 5 {
            let mut last = Vec::new();
            switch(&mut last, 1_000 * (number + 1) + 400, (7, 1), 0);
            assert!(bytes.len() - before > last.len());
            bytes.truncate(bytes.len() - last.len());
        }
    });
    let has_message = ["at least 1 context switches were never recorded"];
    let report = reported(&trace, &out, 3, &has_message);
    let losses = report["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 1, "{losses:?}");
    assert_eq!(losses[0]["cause"], "inconsistent");
    assert_eq!(
        (&losses[0]["missed"], &losses[0]["gaps"]),
        (&1.into(), &1.into())
    );
    // 250 us in each of the 19 complete periods, and 100 in the other one.
    assert_eq!(run_ns(&report, 7), 19 * 250_000 + 100_000);
    let arguments = ["metrics", path(&out), "--metric", "run_delay", "--json"];
    assert_eq!(json(&arguments, 3)["metrics"][0]["missed"], 1);
    let ended = finish(&mut overhear(&["report", path(&out)]));
    let table = &ended.stdout;
    assert!(
        table.contains("sched_switch@0: 1 inconsistent in 1 gap"),
        "{ended:#?}"
    );
}

#[test]
fn run_that_never_was_is_not_counted() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    // Thread 7 has left CPU 0 without an event, and CPU 0 has no further events. The report must
    // not show that it ran for 3.7 s on CPU 0.
    let elsewhere: &[_] = &[(3_702_000, 0, 7), (3_702_100, 7, 0)];
    two_cpus(&trace, [&[(1_500, 9, 0), (2_000, 0, 7)], elsewhere]);
    let report = reported(&trace, &out, 3, &["at least 1 context switches"]);
    assert_eq!(report["losses"][0]["cause"], "inconsistent", "{report:#}");
    assert_eq!(run_ns(&report, 7), 100_000);
}

#[test]
fn clocks_of_cpus_that_disagree_prove_nothing() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    // The clock of CPU 1 is late: thread 7 enters it before it has left CPU 0.
    let first: &[_] = &[(1_500, 9, 0), (2_000, 0, 7), (3_000, 7, 0), (4_000, 0, 9)];
    two_cpus(&trace, [first, &[(2_990, 0, 7), (3_990, 7, 0)]]);
    let report = reported(&trace, &out, 0, &["elements in"]);
    assert_eq!(report["losses"], Value::Array(Vec::new()));
    // A loss that only its own CPU proves is found as well, at the end at the latest.
    let (trace, out) = (folder.path().join("second"), folder.path().join("again"));
    let second: &[_] = &[(2_990, 0, 7), (3_990, 7, 0), (4_500, 0, 9)];
    two_cpus(&trace, [first, second]);
    let report = reported(&trace, &out, 3, &["at least 1 context switches"]);
    assert_eq!(report["losses"][0]["cause"], "inconsistent");
}

#[test]
fn missing_library_is_named_with_its_package() {
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    foreign(&trace, 0, 0);
    fs::write(folder.path().join("libbabeltrace2.so.0"), "no library").unwrap();
    let mut import = overhear(&["import", path(&trace), "--out", path(&out)]);
    import.env("LD_LIBRARY_PATH", folder.path());
    let ended = finish(&mut import);
    ended.has_message(
        5,
        &["cannot load libbabeltrace2", "Debian: libbabeltrace2-0"],
    );
    assert!(!out.exists());
}

#[test]
fn folder_without_trace_is_refused() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (empty, out) = (folder.path().join("empty"), folder.path().join("out"));
    fs::create_dir(&empty).unwrap();
    let ended = finish(&mut overhear(&[
        "import",
        path(&empty),
        "--out",
        path(&out),
    ]));
    ended.has_message(2, &["is no trace", "metadata", path(&empty)]);
    // An absent folder, and a file.
    let file = folder.path().join("file");
    fs::write(&file, METADATA).unwrap();
    let absent = folder.path().join("absent");
    for (trace, message) in [
        (&absent, &["is no trace", "metadata"]),
        (&file, &["is a file", "no POSIX trace log"]),
    ] {
        let import = ["import", path(trace), "--out", path(&out)];
        let ended = finish(&mut overhear(&import));
        ended.has_only_message(2, &[message, [path(trace)].as_slice()].concat());
    }
    // A trace with empty metadata, and one with metadata that are cut off.
    let (bare, cut) = (folder.path().join("bare"), folder.path().join("cut"));
    fs::create_dir(&bare).unwrap();
    fs::write(bare.join("metadata"), "/* CTF 1.8 */ nothing").unwrap();
    foreign(&cut, 0, 0);
    let stream = fs::read(cut.join("channel0_0")).unwrap();
    fs::write(cut.join("channel0_0"), &stream[..stream.len() - 100]).unwrap();
    for trace in [bare, cut] {
        let import = ["import", path(&trace), "--out", path(&out)];
        let ended = finish(&mut overhear(&import));
        ended.has_message(2, &["libbabeltrace2 cannot read", path(&trace)]);
    }
    assert!(!out.exists());
}

#[test]
fn fifo_in_a_trace_does_not_block() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let trace = folder.path().join("trace");
    fs::create_dir(&trace).unwrap();
    let fifo = |name: &str| {
        use rustix::fs::{mknodat, FileType, Mode, CWD};
        let mode = Mode::from_raw_mode(0o666);
        mknodat(CWD, trace.join(name), FileType::Fifo, mode, 0).unwrap();
    };
    let import = || {
        let out = folder.path().join("out");
        finish(&mut overhear(&[
            "import",
            path(&trace),
            "--out",
            path(&out),
        ]))
    };
    fifo("metadata");
    import().has_only_message(2, &["`metadata` in it is no regular file"]);
    fs::remove_file(trace.join("metadata")).unwrap();
    fs::write(trace.join("metadata"), METADATA).unwrap();
    fifo("channel0_0");
    import().has_only_message(2, &["`channel0_0` in it is no regular file"]);
    fs::remove_file(trace.join("channel0_0")).unwrap();
    let metadata = fs::File::options().write(true).open(trace.join("metadata"));
    metadata.unwrap().set_len(3 << 30).unwrap();
    import().has_only_message(2, &["`metadata`: it has 3221225472 bytes, more than the"]);
}
