// SPDX-License-Identifier: MIT OR Apache-2.0
//! The built-in metrics over a trace in the form of LTTng's kernel tracer, and metrics over a trace
//! of ros2_tracing in the same session.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{finish, folder, has_libbabeltrace, overhear, path};

/// LTTng's metadata before the events, shortened.
const HEAD: &str = r#"/* CTF 1.8 */
typealias integer { size = 32; align = 8; signed = false; } := u32;
typealias integer { size = 64; align = 8; signed = false; } := u64;
typealias integer { size = 64; align = 8; signed = true; } := i64;
trace { major = 1; minor = 8; byte_order = le; packet.header := struct { u32 magic; u32 stream_id; }; };
clock { name = "monotonic"; freq = 1000000000; offset_s = 1700000000; };
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := stamp;
stream {
    id = 0;
    packet.context := struct {
        stamp timestamp_begin; stamp timestamp_end; u64 content_size; u64 packet_size; u32 cpu_id; };
    event.header := struct { u32 id; stamp timestamp; };
    event.context := struct { CONTEXT }; };
"#;

/// A value of a field, which also determines the type of the field.
#[derive(Clone, Copy)]
enum Field {
    U32(u32),
    U64(u64),
    I64(i64),
    Text(&'static str),
}
use Field::{Text, I64, U32, U64};

/// A trace with a stream per CPU. The first write of an event declares it with its fields.
#[derive(Default)]
struct Tracer {
    // Number of the first fields of each event that are the stream's context.
    contexts: usize,
    context: String,
    events: Vec<(&'static str, String)>,
    streams: [Vec<u8>; 2],
}

impl Tracer {
    fn event(&mut self, cpu: usize, us: u64, name: &'static str, fields: &[(&str, Field)]) {
        let declare = |fields: &[(&str, Field)]| -> String {
            let fields = fields.iter().map(|(name, value)| match value {
                U32(_) => format!("u32 _{name};"),
                U64(_) => format!("u64 _{name};"),
                I64(_) => format!("i64 _{name};"),
                Text(_) => format!("string _{name};"),
            });
            fields.collect()
        };
        let known = self.events.iter().position(|(known, _)| *known == name);
        let id = known.unwrap_or_else(|| {
            self.context = declare(&fields[..self.contexts]);
            self.events.push((name, declare(&fields[self.contexts..])));
            self.events.len() - 1
        });
        let bytes = &mut self.streams[cpu];
        bytes.extend(u32::try_from(id).unwrap().to_le_bytes());
        bytes.extend((us * 1_000).to_le_bytes());
        for (_, value) in fields {
            match value {
                U32(value) => bytes.extend(value.to_le_bytes()),
                U64(value) => bytes.extend(value.to_le_bytes()),
                I64(value) => bytes.extend(value.to_le_bytes()),
                Text(value) => {
                    bytes.extend(value.as_bytes());
                    bytes.push(0);
                }
            }
        }
    }

    fn switch(&mut self, us: u64, (prev, state): (u32, i64), next: u32) {
        let name = |tid| match tid {
            7 => Text("worker"),
            9 => Text("other"),
            _ => Text("swapper/0"),
        };
        let fields = [
            ("prev_comm", name(prev)),
            ("prev_tid", U32(prev)),
            ("prev_state", I64(state)),
            ("next_comm", name(next)),
            ("next_tid", U32(next)),
        ];
        self.event(0, us, "sched_switch", &fields);
    }

    fn write(self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let mut metadata = HEAD.replace("CONTEXT", &self.context);
        for (id, (name, fields)) in self.events.iter().enumerate() {
            metadata.push_str(&format!(
                "event {{ name = \"{name}\"; id = {id}; stream_id = 0; fields := struct {{ {fields} }}; }};\n"
            ));
        }
        fs::write(folder.join("metadata"), metadata).unwrap();
        for (cpu, events) in (0_u32..).zip(self.streams) {
            let bits = (8 + 4 * 8 + 4 + events.len() as u64) * 8;
            let mut stream = Vec::new();
            stream.extend(0xC1FC_1FC1_u32.to_le_bytes());
            stream.extend(0_u32.to_le_bytes());
            for word in [1_000_000, 9_000_000, bits, bits] {
                stream.extend(u64::to_le_bytes(word));
            }
            stream.extend(cpu.to_le_bytes());
            stream.extend(events);
            fs::write(folder.join(format!("channel0_{cpu}")), stream).unwrap();
        }
    }
}

/// Thread 7 of process 5 reads, is interrupted, writes to a disk, and waits for a futex until a
/// timer ends the wait; then it is displaced.
fn kernel() -> Tracer {
    let mut trace = Tracer::default();
    let present = [("tid", U32(7)), ("pid", U32(5)), ("name", Text("worker"))];
    trace.event(0, 1_000, "lttng_statedump_process_state", &present);
    // Before any switch of this CPU: the first switch shows that thread 7 runs.
    trace.event(
        0,
        1_100,
        "syscall_entry_read",
        &[("fd", U32(3)), ("count", U64(100))],
    );
    trace.event(0, 1_140, "syscall_exit_read", &[("ret", I64(100))]);
    let irq = [("irq", U32(24)), ("name", Text("eth0"))];
    trace.event(0, 1_160, "irq_handler_entry", &irq);
    trace.event(
        0,
        1_165,
        "irq_handler_exit",
        &[("irq", U32(24)), ("ret", U32(1))],
    );
    trace.event(0, 1_166, "irq_softirq_entry", &[("vec", U32(3))]);
    trace.event(0, 1_176, "irq_softirq_exit", &[("vec", U32(3))]);
    let request = [
        ("dev", U32(8 << 20)),
        ("sector", U64(4096)),
        ("nr_sector", U32(8)),
        ("rwbs", U32(1)),
    ];
    trace.event(0, 1_180, "block_rq_issue", &request);
    let futex = [("uaddr", U64(0x1000)), ("op", U32(128)), ("val", U32(2))];
    trace.event(0, 1_190, "syscall_entry_futex", &futex);
    trace.switch(1_195, (7, 1), 0);
    // The thread of the other CPU is unknown, and not needed.
    trace.event(1, 1_300, "block_rq_complete", &request);
    let start = [("hrtimer", U64(0xabc)), ("expires", I64(2_000_000))];
    trace.event(0, 1_400, "timer_hrtimer_start", &start);
    let expires = [
        ("hrtimer", U64(0xabc)),
        ("now", I64(2_003_000)),
        ("function", U64(0xf00)),
    ];
    trace.event(0, 1_500, "timer_hrtimer_expire_entry", &expires);
    let wake = [
        ("comm", Text("worker")),
        ("tid", U32(7)),
        ("target_cpu", U32(0)),
    ];
    trace.event(0, 1_502, "sched_waking", &wake);
    trace.event(0, 1_503, "sched_wakeup", &wake);
    trace.event(
        0,
        1_504,
        "timer_hrtimer_expire_exit",
        &[("hrtimer", U64(0xabc))],
    );
    trace.switch(1_520, (0, 0), 7);
    trace.event(0, 1_525, "syscall_exit_futex", &[("ret", I64(-110))]);
    let fault = [("address", U64(0x2000)), ("error_code", U32(6))];
    trace.event(0, 1_530, "x86_exceptions_page_fault_user", &fault);
    trace.switch(1_550, (7, 0), 9);
    let migrate = [("tid", U32(7)), ("orig_cpu", U32(1)), ("dest_cpu", U32(0))];
    trace.event(0, 1_560, "sched_migrate_task", &migrate);
    trace.event(
        0,
        1_570,
        "signal_generate",
        &[("sig", U32(10)), ("tid", U32(7))],
    );
    trace.switch(1_600, (9, 1), 7);
    trace.event(0, 1_610, "signal_deliver", &[("sig", U32(10))]);
    trace.switch(1_750, (7, 1), 0);
    trace.event(
        0,
        1_760,
        "power_cpu_idle",
        &[("state", U32(1)), ("cpu_id", U32(0))],
    );
    trace.event(0, 1_770, "napi_poll", &[("work", U32(3))]);
    trace
}

fn json(arguments: &[&str]) -> Value {
    let ended = finish(&mut overhear(arguments));
    assert_eq!(ended.status, 0, "{ended:#?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The number of measurements of thread 7 with any keys, and the longest.
fn of_worker(metric: &Value) -> (u64, u64) {
    let rows = metric["tasks"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["task"] == 7 && row["comm"] == "worker");
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    rows.fold((0, 0), |(count, longest), row| {
        (
            count + number(row, "count"),
            longest.max(number(row, "max_ns")),
        )
    })
}

#[test]
fn built_in_metrics_measure_a_trace_of_lttngs_kernel_tracer() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (trace, out) = (folder.path().join("kernel"), folder.path().join("out"));
    kernel().write(&trace);
    let import = ["import", path(&trace), "--out", path(&out)];
    finish(&mut overhear(&import)).has_message(0, &["from 27 events"]);
    for (metric, count, longest) in [
        ("wakeup_latency", 1, 18_000),
        ("run_delay", 2, 50_000),
        ("preemption", 1, 50_000),
        ("system_call", 2, 335_000),
        ("futex_wait", 1, 335_000),
        ("interrupt", 1, 5_000),
        ("softirq", 1, 10_000),
        ("block_io", 1, 120_000),
        ("timer_latency", 1, 20_000),
        ("timer_handler", 1, 4_000),
        // The end of the page fault is not traced: it lasts until the thread leaves.
        ("system_blocking", 6, 150_000),
    ] {
        let report = json(&["metrics", path(&out), "--metric", metric, "--json"]);
        assert_eq!(
            of_worker(&report["metrics"][0]),
            (count, longest),
            "{metric}"
        );
    }
    // Fields that combine several events, or have other names.
    let config = folder.path().join("overhear.toml");
    let value = |of: &str, field: &str, value: i64| {
        format!(
            "[[constraint]]\nname = \"{of} {field}\"\nof = \"{of}\"\nfield = \"{field}\"\n\
             min = {value}\nmax = {value}\n"
        )
    };
    let constraints = [
        value("kernel:syscall [kind == 2 and number == 0]", "value", 100),
        value("kernel:syscall [kind == 1 and number == 0]", "value", 3),
        value("kernel:block_io [kind == 2]", "operation", 1),
        value("kernel:block_io", "bytes", 4096),
        value("kernel:futex [kind == 2]", "result", -110),
        value("kernel:timer [kind == 5]", "late_ns", 3_000),
        value("kernel:timer [kind == 5]", "pid", 5),
        value("kernel:page_fault", "code", 6),
        value("kernel:sched_migrate", "by_tid", 9),
        value("kernel:signal [kind == 1]", "sender_tid", 9),
        value("kernel:signal [kind == 2]", "tid", 7),
        value("kernel:irq", "number", 24),
        value("kernel:cpu_idle", "state", 1),
        value("user:napi_poll", "work", 3),
    ];
    fs::write(
        &config,
        constraints.concat().replace("number == 0", &read_call()),
    )
    .unwrap();
    let report = json(&["check", path(&out), "--config", path(&config), "--json"]);
    for constraint in report["constraints"].as_array().unwrap() {
        assert!(constraint["judged"].as_u64() > Some(0), "{constraint:#}");
    }
}

/// The number of `read`, which differs between machines.
fn read_call() -> String {
    format!("number == {}", libc::SYS_read)
}

#[test]
fn metrics_measure_callbacks_of_ros2_with_kernel_sensors() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (session, out) = (folder.path().join("session"), folder.path().join("out"));
    kernel().write(&session.join("kernel"));
    // ros2_tracing enables these three.
    let mut ros = Tracer {
        contexts: 3,
        ..Tracer::default()
    };
    let mut event = |us, name, callback: u64| {
        let context = [
            ("vpid", U32(5)),
            ("vtid", U32(7)),
            ("procname", Text("worker")),
        ];
        let fields = [("callback", U64(callback)), ("is_intra_process", U32(0))];
        let fields = &fields[..if name == "ros2:callback_start" { 2 } else { 1 }];
        ros.event(0, us, name, &[&context, fields].concat());
    };
    for (us, callback) in [(1_101, 0xa), (1_521, 0xb)] {
        event(us, "ros2:callback_start", callback);
        event(us + 25, "ros2:callback_end", callback);
    }
    ros.write(&session.join("ust/uid/1000/64-bit"));
    let import = ["import", path(&session), "--out", path(&out)];
    finish(&mut overhear(&import)).has_message(0, &["from 31 events"]);
    let metric = folder.path().join("callback.metric");
    let text = "metric callback\nevent begins = user:ros2.callback_start\n\
        event ends = user:ros2.callback_end\nby begins.callback\nstate idle out\nstate first begin\n\
        state called in\nstate done end\nidle -> first: begins, i\nfirst -> called: lambda\n\
        called -> done: ends, i\ndone -> idle: lambda\n";
    fs::write(&metric, text).unwrap();
    let both = ["--metric", path(&metric), "--metric", "wakeup_latency"];
    let report = json(&[&["metrics", path(&out), "--json"][..], &both].concat());
    for (index, (count, longest)) in [(2, 25_000), (1, 18_000)].into_iter().enumerate() {
        let metric = &report["metrics"][index];
        assert_eq!(of_worker(metric), (count, longest), "{report:#}");
    }
}
