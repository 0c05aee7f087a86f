// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import`: a trace as LTTng writes it, of the kernel and of a program, becomes a recording that
//! metrics and constraints run on.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{finish, folder, has_libbabeltrace, overhear, path, report_json};

/// What LTTng's metadata says, shortened to what these traces have.
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

/// Thread 7 is woken, runs after 100 us, is displaced for 50 us, and sleeps; per period a request is
/// noted by the program.
fn period(bytes: &mut Vec<u8>, period: u64) {
    let us = 1_000 * (period + 1);
    for (id, later) in [(1, 0), (2, 10)] {
        event(bytes, id, us + later);
        text(bytes, "worker");
        bytes.extend(7_u32.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
    }
    switch(bytes, us + 100, (0, 0), 7);
    // As newer kernels say that it was displaced.
    switch(bytes, us + 200, (7, 0x100), 9);
    switch(bytes, us + 250, (9, 1), 7);
    event(bytes, 3, us + 260);
    bytes.extend(7_u32.to_le_bytes());
    bytes.extend(7_u32.to_le_bytes());
    text(bytes, "worker");
    bytes.extend((period as i64 - 5).to_le_bytes());
    text(bytes, "a \"quoted\", } word");
    switch(bytes, us + 400, (7, 1), 0);
}

/// Two packets of ten periods; before the second so many events, and so many packets, were discarded.
fn foreign(dir: &Path, discarded: u64, packets: u64) {
    fs::create_dir(dir).unwrap();
    fs::write(dir.join("metadata"), METADATA).unwrap();
    let mut stream = Vec::new();
    for (packet, number, lost) in [(0, 0, 0), (1, 1 + packets, discarded)] {
        let mut events = Vec::new();
        (packet * 10..packet * 10 + 10).for_each(|number| period(&mut events, number));
        let bits = (8 + 6 * 8 + 4 + events.len() as u64) * 8;
        stream.extend(0xC1FC_1FC1_u32.to_le_bytes());
        stream.extend(0_u32.to_le_bytes());
        let begin = 1_000_000 * (packet * 10 + 1);
        for word in [begin, begin + 9_400_000, bits, bits, number, lost] {
            stream.extend(word.to_le_bytes());
        }
        stream.extend(0_u32.to_le_bytes());
        stream.extend(events);
    }
    fs::write(dir.join("channel0_0"), stream).unwrap();
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
    ended.says(0, &["142 elements in 4 streams", "140 events"]);
    let metrics = ["wakeup_latency", "run_delay", "response_time"];
    let options = metrics.map(|name| ["--metric", name]).concat();
    let report = json(
        &[&["metrics", path(&out), "--json"], &options[..]].concat(),
        0,
    );
    for (index, (count, longest)) in [(20, 100_000), (40, 100_000), (19, 400_000)]
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
    // It is a recording like others.
    let report = json(&["report", path(&out), "--json"], 0);
    assert_eq!(report["sensors"][0]["task"], "worker(7)");
    assert_eq!(report["sensors"][0]["elements"], 20);
}

#[test]
fn what_the_tracer_discarded_is_missed_by_metrics() {
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
    ended.says(3, &["inconclusive: the tracer had discarded 3 events"]);
    let arguments = [
        "metrics",
        path(&out),
        "--metric",
        "wakeup_latency",
        "--json",
    ];
    let report = json(&arguments, 3);
    // In each of the two streams that it listens to.
    assert_eq!(report["metrics"][0]["missed"], 6);
}

#[test]
fn packets_that_the_tracer_discarded_had_an_event_each_at_least() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    foreign(&trace, 3, 2);
    let import = ["import", path(&trace), "--out", path(&out)];
    let ended = finish(&mut overhear(&import));
    ended.says(3, &["the tracer had discarded at least 5 events"]);
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
    foreign(&traces.join("deeper/ust"), 0, 0);
    let import = ["import", path(&traces), "--out", path(&out)];
    let ended = finish(&mut overhear(&import));
    ended.says(0, &["from 280 events"]);
    // They are listed, for the folder may hold those of several sessions.
    ended.says(
        0,
        &[
            "2 traces in",
            path(&traces),
            ": deeper/ust, kernel; name a folder",
        ],
    );
    let (_, report) = report_json(&out);
    let source = report["sources"][0]["sentence"].as_str().unwrap();
    assert!(source.ends_with(": deeper/ust, kernel"), "{source}");
    // One below the folder is named by what it is part of, one that is named itself is not listed.
    fs::remove_dir_all(traces.join("kernel")).unwrap();
    let out = folder.path().join("one");
    let import = ["import", path(&traces), "--out", path(&out)];
    finish(&mut overhear(&import)).says_only(0, &["from 140 events"]);
    let (_, report) = report_json(&out);
    let source = report["sources"][0]["sentence"].as_str().unwrap();
    assert!(source.ends_with(": deeper/ust"), "{source}");
}

#[test]
fn without_the_library_a_sentence_says_what_to_install() {
    let folder = folder();
    let (trace, out) = (folder.path().join("lttng"), folder.path().join("out"));
    foreign(&trace, 0, 0);
    fs::write(folder.path().join("libbabeltrace2.so.0"), "no library").unwrap();
    let mut import = overhear(&["import", path(&trace), "--out", path(&out)]);
    import.env("LD_LIBRARY_PATH", folder.path());
    let ended = finish(&mut import);
    ended.says(
        5,
        &["cannot load libbabeltrace2", "Debian: libbabeltrace2-0"],
    );
    assert!(!out.exists());
}

#[test]
fn what_is_no_trace_is_refused() {
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
    ended.says(2, &["is no trace", "metadata", path(&empty)]);
    // One whose description says nothing, and one that was cut.
    let (bare, cut) = (folder.path().join("bare"), folder.path().join("cut"));
    fs::create_dir(&bare).unwrap();
    fs::write(bare.join("metadata"), "/* CTF 1.8 */ nothing").unwrap();
    foreign(&cut, 0, 0);
    let stream = fs::read(cut.join("channel0_0")).unwrap();
    fs::write(cut.join("channel0_0"), &stream[..stream.len() - 100]).unwrap();
    for trace in [bare, cut] {
        let import = ["import", path(&trace), "--out", path(&out)];
        let ended = finish(&mut overhear(&import));
        ended.says(2, &["libbabeltrace2 cannot read", path(&trace)]);
    }
    assert!(!out.exists());
}
