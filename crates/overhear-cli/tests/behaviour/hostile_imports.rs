// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear import` of traces that crash libbabeltrace2 or keep it busy: the part before is
//! imported, and the rest is a gap.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use overhear_event::{
    ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_trace::{TraceIdentity, TraceReader, TraceWriter};
use serde_json::Value;

use crate::support::{
    children, eventually, finish, folder, has_libbabeltrace, lives, overhear, path, report_json,
    send, Ended, Started,
};

/// Metadata of events with one field. A packet's head has 40 bytes.
const METADATA: &str = r#"/* CTF 1.8 */
typealias integer { size = 8; align = 8; signed = false; } := uint8_t;
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
typealias integer { size = 64; align = 8; signed = false; } := uint64_t;
trace {
    major = 1; minor = 8; byte_order = le;
    packet.header := struct { uint32_t magic; uint32_t stream_id; };
};
clock { name = "monotonic"; freq = 1000000000; };
typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := stamp_t;
stream {
    id = 0;
    packet.context := struct {
        stamp_t timestamp_begin; stamp_t timestamp_end; uint64_t content_size; uint64_t packet_size;
    };
    event.header := struct { HEADER };
};
event { name = "app:request"; id = 0; stream_id = 0; fields := struct { FIELDS }; };
"#;

const STAMPED: &str = "stamp_t timestamp;";

/// A trace with these fields in the header and the payload of its events, and these packets: begin,
/// end, content.
fn trace(dir: &Path, header: &str, fields: &str, packets: &[(u64, u64, Vec<u8>)]) {
    fs::create_dir(dir).unwrap();
    let metadata = METADATA.replace("HEADER", header).replace("FIELDS", fields);
    fs::write(dir.join("metadata"), metadata).unwrap();
    let mut stream = Vec::new();
    for (begin, end, content) in packets {
        let bits = (40 + content.len() as u64) * 8;
        stream.extend(0xC1FC_1FC1_u32.to_le_bytes());
        stream.extend(0_u32.to_le_bytes());
        for word in [*begin, *end, bits, bits] {
            stream.extend(word.to_le_bytes());
        }
        stream.extend(content);
    }
    fs::write(dir.join("channel0_0"), stream).unwrap();
}

/// Events at these times with a number of 32 bits.
fn numbers(times: &[u64]) -> Vec<u8> {
    let mut content = Vec::new();
    for (number, time) in (0_u32..).zip(times) {
        content.extend(time.to_le_bytes());
        content.extend(number.to_le_bytes());
    }
    content
}

fn import(trace: &Path, out: &Path, more: &[&str]) -> Ended {
    let arguments = [&["import", path(trace), "--out", path(out)], more].concat();
    finish(&mut overhear(&arguments))
}

/// Elements and missed elements of the only sensor of a recording that ends with a gap for damage.
#[track_caller]
fn damaged(out: &Path) -> (u64, u64) {
    let (ended, report) = report_json(out);
    assert_eq!(ended.status, 3, "{ended:#?}");
    let losses = report["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 1, "{report:#}");
    assert_eq!(losses[0]["cause"], "corrupt");
    assert_eq!(losses[0]["gaps"], 1);
    let sensor = &report["sensors"][0];
    assert_eq!(sensor["missed"], losses[0]["missed"]);
    let number = |value: &Value| value.as_u64().unwrap();
    (number(&sensor["elements"]), number(&sensor["missed"]))
}

/// All verbs that read a recording read this one, and none panics or fails.
#[track_caller]
fn every_verb_reads(out: &Path, elsewhere: &Path, status: i32) {
    let config = elsewhere.join("constraints.toml");
    let event = "of = \"user:app.request\"";
    let demands = [
        "period = \"100ns\"\njitter = \"1us\"",
        "window = \"1us\"\nat_least = 1",
        "window = \"1us\"\nat_most = 3",
        "absence = \"10us\"",
    ];
    let constraints = demands.iter().enumerate();
    let constraints = constraints.map(|(number, demand)| {
        format!("[[constraint]]\nname = \"constraint {number}\"\n{event}\n{demand}\n")
    });
    let text: String = constraints.collect();
    fs::write(&config, text).unwrap();
    let (page, csv) = (elsewhere.join("page.html"), elsewhere.join("out.csv"));
    let perfetto = elsewhere.join("out.pb");
    for arguments in [
        &["report", path(out), "--html", path(&page)][..],
        &["report", path(out), "--json"],
        &["metrics", path(out), "--json"],
        &["check", path(out), "--json", "--config", path(&config)],
        &["export", path(out), "--to", "csv", "-o", path(&csv)],
        &[
            "export",
            path(out),
            "--to",
            "perfetto",
            "-o",
            path(&perfetto),
        ],
    ] {
        // The bound of docs/memory.md.
        let ended = finish(&mut limited(arguments));
        ended.does_not_panic();
        let is_expected = match arguments[0] {
            // The events may be too rare.
            "check" => [1, status].contains(&ended.status),
            // The trace contains no events of the kernel.
            "metrics" => ended.status == 3,
            _ => ended.status == status,
        };
        assert!(is_expected, "{arguments:?} {ended:#?}");
    }
}

/// The command under a limit of private memory of 128 MiB.
fn limited(arguments: &[&str]) -> std::process::Command {
    use std::os::unix::process::CommandExt;
    let mut command = overhear(arguments);
    let limit = libc::rlimit {
        rlim_cur: 128 << 20,
        rlim_max: 128 << 20,
    };
    // SAFETY: Between fork and exec there is one system call, which takes a pointer to memory of
    // this closure.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_DATA, &limit) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    command
}

#[test]
fn trace_that_fails_an_assertion_is_imported_up_to_it() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let out = folder.path().join("out");
    // Ten packets of ten events. The ninth packet states a number of discarded events that the
    // library interprets as "unknown"; then an assertion of the library fails.
    let hostile = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/behaviour/hostile");
    let ended = import(&hostile.join("unknown-discarded"), &out, &[]);
    let has_message = [
        "inconclusive: the process that reads",
        "signal 6 (abort: an assertion of the library failed) ended it",
        "at least 1 event after the last imported one is missing",
    ];
    ended.has_message(3, &has_message);
    let (elements, missed) = damaged(&out);
    // The library delivers events in batches of 15.
    assert!((60..=80).contains(&elements), "{elements}");
    assert_eq!(missed, 1);
    every_verb_reads(&out, folder.path(), 3);
}

#[test]
fn trace_that_crashes_the_library_at_once_is_refused() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let out = folder.path().join("out");
    let hostile = folder.path().join("hostile");
    // An array whose elements exceed the memory of the library.
    let packet = (0, 1_000, vec![0; 64]);
    trace(&hostile, STAMPED, "uint32_t all[4000000000];", &[packet]);
    let ended = import(&hostile, &out, &[]);
    ended.has_only_message(
        2,
        &["the process that reads", path(&hostile), "failed: signal"],
    );
    assert!(!out.exists());
}

#[test]
fn trace_with_a_length_that_no_array_has_is_imported_up_to_it() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (hostile, out) = (folder.path().join("hostile"), folder.path().join("out"));
    let mut content = Vec::new();
    for number in 0..100_u32 {
        content.extend(u64::from(number).to_le_bytes());
        // Number of the following bytes: 2^32 - 1 in the last event.
        let length = if number == 99 { u32::MAX } else { 1 };
        content.extend(length.to_le_bytes());
        content.push(0);
    }
    let fields = "uint32_t length; uint8_t all[length];";
    trace(&hostile, STAMPED, fields, &[(0, 1_000, content)]);
    let ended = import(&hostile, &out, &[]);
    ended.has_message(3, &["inconclusive: ", "at least 1 event after"]);
    let (elements, missed) = damaged(&out);
    assert!((80..=99).contains(&elements), "{elements}");
    assert_eq!(missed, 1);
}

#[test]
fn trace_of_events_without_bits_has_an_end() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (hostile, out) = (folder.path().join("hostile"), folder.path().join("out"));
    // The library never reaches the end of the packet.
    trace(
        &hostile,
        "",
        "uint32_t none[0];",
        &[(0, 1_000, vec![0; 16])],
    );
    let ended = import(&hostile, &out, &["--timeout", "2s"]);
    ended.does_not_panic();
    assert!([2, 3].contains(&ended.status), "{ended:#?}");
    let reasons = [
        "it sent more events than the trace has bits",
        "no event came from it for 2 s",
    ];
    let is_named = reasons.iter().any(|reason| ended.stderr.contains(reason));
    assert!(is_named, "{ended:#?}");
}

/// Events of the traces for the tests that kill readers.
const EVENTS: u64 = 200_000;

/// A trace with this number of events.
fn large(dir: &Path) -> PathBuf {
    let schema = TypeSchema::builder("sample").field("number", FieldKind::U64, "");
    let stream = StreamDescriptor::new(
        StreamId::from_raw(1),
        Origin::program(400, "server"),
        "request",
        schema.build().unwrap(),
    );
    let mut writer = TraceWriter::create(dir, TraceIdentity::default()).unwrap();
    for sequence in 0..EVENTS {
        let element = ElementView {
            stream: &stream,
            sequence,
            time: Timestamp::from_monotonic_ns(1_000 * (sequence + 1)),
            payload: &sequence.to_ne_bytes(),
        };
        writer.element(&element).unwrap();
    }
    writer.finish().unwrap();
    dir.join("trace")
}

/// Starts an import of a large trace into `out`, waits until `is_so` holds for its process id, and
/// signals its reader in the middle of the work. Returns the reader, too.
fn disturbed(
    out: &Path,
    options: &[&str],
    signal: i32,
    is_so: impl Fn(i32) -> bool,
) -> (Ended, i32) {
    let trace = large(&out.with_file_name("large"));
    let arguments = [&["import", path(&trace), "--out", path(out)], options].concat();
    let import = Started::spawn(&mut overhear(&arguments));
    let pid = import.pid();
    eventually("the import has come so far", || is_so(pid));
    // Neither process ends while the test examines the other one.
    import.signal(libc::SIGSTOP);
    let readers = children(pid);
    let [reader] = readers[..] else {
        panic!("{readers:?}");
    };
    assert!(lives(reader));
    send(reader, signal);
    import.signal(libc::SIGCONT);
    (import.end(), reader)
}

/// Bytes that a process has read, from files and pipes.
fn bytes_read(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.map_or(0, |number| number.parse().unwrap())
}

#[test]
fn reader_killed_in_the_second_pass_loses_a_known_number() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let out = folder.path().join("out");
    let is_writing = |_| {
        let stream = fs::metadata(out.join("trace/stream-1"));
        stream.is_ok_and(|about| about.len() > 1_000)
    };
    let (ended, reader) = disturbed(&out, &[], libc::SIGKILL, is_writing);
    assert!(!lives(reader));
    ended.has_message(3, &["failed: signal 9 (kill) ended it"]);
    let (elements, missed) = damaged(&out);
    assert!(elements > 0 && missed > 0);
    assert_eq!(elements + missed, EVENTS);
    let has_message = format!("; {missed} events after the last imported one are missing");
    ended.has_message(3, &[&has_message]);
    // The recording has the begin of the trace, and the gap reaches to its end.
    let reader = TraceReader::open(&out).unwrap();
    assert_eq!(reader.corrupt(), []);
    let (first, last) = reader.times().unwrap();
    assert_eq!(first.as_monotonic_ns(), 1_000);
    assert_eq!(last.as_monotonic_ns(), 1_000 * EVENTS);
    every_verb_reads(&out, folder.path(), 3);
}

#[test]
fn reader_killed_in_the_first_pass_leaves_its_events() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let out = folder.path().join("out");
    let (ended, _) = disturbed(&out, &[], libc::SIGKILL, |pid| bytes_read(pid) > 1 << 20);
    let has_message = ["signal 9 (kill) ended it", "; at least 1 event after"];
    ended.has_message(3, &has_message);
    let (elements, missed) = damaged(&out);
    assert!(elements > 1_000 && elements < EVENTS, "{elements}");
    assert_eq!(missed, 1);
}

#[test]
fn reader_that_hangs_is_ended() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let out = folder.path().join("out");
    let options = ["--timeout", "3s"];
    let (ended, reader) = disturbed(&out, &options, libc::SIGSTOP, |pid| {
        bytes_read(pid) > 1 << 20
    });
    assert!(!lives(reader));
    ended.has_message(
        3,
        &[
            "failed: no event came from it for 3 s",
            "at least 1 event after",
        ],
    );
    assert_eq!(damaged(&out).1, 1);
}

#[test]
fn reader_has_no_more_rights_than_it_needs() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let trace = large(&folder.path().join("large"));
    // No process reads its output, so it waits without its rights.
    let mut command = overhear(&["import", "--send", path(&trace)]);
    let mut reader = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let about = |file: &str| {
        fs::read_to_string(format!("/proc/{}/{file}", reader.id())).unwrap_or_default()
    };
    let has = |file: &str, name: &str, value: &str| {
        let text = about(file);
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.is_some_and(|line| line.trim_start().starts_with(value))
    };
    eventually("the reader gives up rights", || {
        has("status", "NoNewPrivs:", "1")
    });
    eventually("the reader gives up capabilities", || {
        // CAP_DAC_READ_SEARCH, or none.
        ["CapPrm:", "CapEff:"].iter().all(|name| {
            has("status", name, "0000000000000000") || has("status", name, "0000000000000004")
        })
    });
    for name in ["Max core file size", "Max file size"] {
        assert!(has("limits", name, "0"), "{}", about("limits"));
    }
    assert!(
        has("limits", "Max data size", "1073741824"),
        "{}",
        about("limits")
    );
    reader.kill().unwrap();
    reader.wait().unwrap();
}

#[test]
fn far_times_take_no_time_and_no_memory() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let begin = 1_700_000_000_000_000_000_u64;
    let usual: Vec<u64> = (0..50).map(|event| begin + 1_000 * event).collect();
    let usual_end = *usual.last().unwrap();
    // Times of one event, in a packet of its own: 1970, 2106, and the end of all recordings in
    // 2116.
    for (number, far) in [0, 1, 4_300_000_000_000_000_000, 1 << 62, (1 << 62) + 1]
        .into_iter()
        .enumerate()
    {
        let (early, late) = match far < begin {
            true => (vec![far], Vec::new()),
            false => (Vec::new(), vec![far]),
        };
        let mixed = [&early[..], &usual, &late].concat();
        let one = (mixed[0], *mixed.last().unwrap(), numbers(&mixed));
        let alone = (far, far, numbers(&[far]));
        let usual = (begin, usual_end, numbers(&usual));
        let several = match far < begin {
            true => vec![alone, usual],
            false => vec![usual, alone],
        };
        for (packets, kind) in [(vec![one], "event"), (several, "packet")] {
            let case = folder.path().join(format!("{kind}-{number}"));
            fs::create_dir(&case).unwrap();
            let (dir, out) = (case.join("trace"), case.join("out"));
            trace(&dir, STAMPED, "uint32_t number;", &packets);
            let ended = import(&dir, &out, &[]);
            ended.does_not_panic();
            // No recording has times after the year 2116.
            let is_valid = far <= 1 << 62;
            assert_eq!(
                ended.status,
                if is_valid { 0 } else { 3 },
                "{far} {ended:#?}"
            );
            let reader = TraceReader::open(&out).unwrap();
            let (events, discarded) = (reader.events(), reader.discarded());
            assert_eq!(
                (events, discarded),
                if is_valid { (51, 0) } else { (50, 1) }
            );
            if !is_valid {
                ended.has_message(
                    3,
                    &[
                        "events are later than the year 2116",
                        "1 event after the last imported",
                    ],
                );
            }
            every_verb_reads(&out, &case, ended.status);
        }
    }
}

#[test]
fn counters_that_go_back_are_losses_of_an_unknown_number() {
    if !has_libbabeltrace() {
        return;
    }
    let folder = folder();
    let (dir, out) = (folder.path().join("trace"), folder.path().join("out"));
    let counted = "uint64_t packet_size; uint64_t events_discarded;";
    // The number of events discarded before the first packet is not known either.
    let packets: Vec<_> = [5_u64, 3, 2, 1]
        .iter()
        .zip(0..)
        .map(|(discarded, number)| {
            let begin = 1_000 * number;
            let times: Vec<u64> = (begin..begin + 10).collect();
            let content = [discarded.to_le_bytes().to_vec(), numbers(&times)].concat();
            (begin, begin + 9, content)
        })
        .collect();
    trace(&dir, STAMPED, "uint32_t number;", &packets);
    let metadata = fs::read_to_string(dir.join("metadata")).unwrap();
    let metadata = metadata.replace("uint64_t packet_size;", counted);
    fs::write(dir.join("metadata"), metadata).unwrap();
    let ended = import(&dir, &out, &[]);
    ended.has_message(3, &["the tracer had discarded at least 4 events"]);
    let (_, report) = report_json(&out);
    assert_eq!(report["sensors"][0]["elements"], 40);
    assert_eq!(report["sensors"][0]["missed"], 4);
    every_verb_reads(&out, folder.path(), 3);
}
