// SPDX-License-Identifier: MIT OR Apache-2.0
//! A foreign reader gives equal results: babeltrace2 prints every element with its fields, and
//! reports the same discarded events at the same positions.

mod support;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use overhear_event::{FieldKind, GapCause, Origin, StreamDescriptor, Value};
use overhear_trace::{TraceReader, TraceWriter};
use proptest::prelude::{proptest, ProptestConfig};

use support::plan::{gap, plan, printable};
use support::{
    at, babeltrace, babeltrace_events, descriptor, every_kind, has_babeltrace, identity, pair,
    program, Memory, Owned,
};

/// The line of babeltrace2 for an element.
fn line(item: &Owned, streams: &[StreamDescriptor]) -> Option<String> {
    let Owned::Element {
        stream,
        time,
        payload,
        ..
    } = item
    else {
        return None;
    };
    let stream = streams.iter().find(|s| s.id.as_raw() == *stream).unwrap();
    let time = time.as_monotonic_ns();
    let mut line = format!("[{time:020}] test\"host\\ {}: ", stream.sensor);
    let _ = match &stream.origin {
        Origin::Program(task) => write!(
            line,
            "{{ stream = {}, pid = {}, comm = \"{}\" }}, {{ ",
            stream.id, task.pid, task.comm
        ),
        Origin::Kernel { cpu } => write!(line, "{{ stream = {}, cpu_id = {cpu} }}, {{ ", stream.id),
        Origin::Sampler => write!(line, "{{ stream = {} }}, {{ ", stream.id),
    };
    let fields: Vec<_> = stream
        .schema
        .fields()
        .iter()
        .enumerate()
        .map(
            |(index, field)| match stream.schema.read(index, payload).unwrap() {
                Value::Text(text) => format!("{} = \"{text}\"", field.name),
                number => format!("{} = {number}", field.name),
            },
        )
        .collect();
    line.push_str(&fields.join(", "));
    line.push_str(if fields.is_empty() { "}" } else { " }" });
    Some(line)
}

fn by_stream(lines: impl Iterator<Item = String>) -> BTreeMap<String, Vec<String>> {
    let mut streams: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in lines {
        let context = line.split("{ stream = ").nth(1).unwrap();
        let id: String = context.chars().take_while(char::is_ascii_digit).collect();
        streams.entry(id).or_default().push(line);
    }
    streams
}

/// A loss: number of elements of its stream before it, its begin and end, and the number of missed
/// elements.
type Missed = (u64, u64, u64, u64);

/// The missed elements by our reader. The interval that babeltrace2 reports begins at the end of
/// the packet before, so of two gaps at one place the second has no duration.
fn missed(items: &[Owned]) -> BTreeMap<u32, Vec<Missed>> {
    let mut missed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut positions: BTreeMap<u32, (u64, Option<u64>)> = BTreeMap::new();
    for item in items {
        let place = positions.entry(item.stream()).or_default();
        let now = item.time().as_monotonic_ns();
        match item {
            Owned::Element { .. } => place.0 += 1,
            Owned::Gap(gap) => {
                let from = place.1.unwrap_or(gap.from.as_monotonic_ns());
                if gap.missed > 0 {
                    let found = (place.0, from, now, gap.missed);
                    missed.entry(item.stream()).or_default().push(found);
                }
            }
        }
        place.1 = Some(now);
    }
    missed
}

fn number(text: &str) -> u64 {
    let digits: String = text
        .chars()
        .filter(|&c| c != ',')
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

/// The same from the messages of babeltrace2.
fn missed_by_babeltrace(dir: &Path) -> BTreeMap<u32, Vec<Missed>> {
    let mut missed: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let mut events: BTreeMap<u32, u64> = BTreeMap::new();
    let text = babeltrace(dir, &["--component=sink.text.details"]);
    for block in text.split("\n\n") {
        let lines: Vec<_> = block.lines().collect();
        let Some(place) = lines.iter().position(|l| l.starts_with("{Trace ")) else {
            continue;
        };
        let Some((_, id)) = lines[place].split_once(", Stream ID ") else {
            continue;
        };
        let id = number(id) as u32;
        let what = lines.get(place + 1).copied().unwrap_or_default();
        if what.starts_with("Event `") {
            *events.entry(id).or_default() += 1;
        } else if let Some(count) = what.strip_prefix("Discarded events (") {
            assert_eq!(place, 2, "no interval: {block}");
            let found = (
                events.get(&id).copied().unwrap_or_default(),
                number(lines[0].split(" cycles").next().unwrap()),
                number(lines[1].split(" cycles").next().unwrap()),
                number(count),
            );
            missed.entry(id).or_default().push(found);
        }
    }
    missed
}

fn compare(dir: &Path, streams: &[StreamDescriptor]) {
    let mut memory = Memory::default();
    let reader = TraceReader::open(dir).unwrap();
    reader.replay(&mut [&mut memory]);
    // Warnings about discarded events go to the other output.
    let text = babeltrace(dir, &["--clock-cycles", "--no-delta"]);
    let theirs = by_stream(text.lines().map(str::to_owned));
    let ours = by_stream(memory.items.iter().filter_map(|item| line(item, streams)));
    assert_eq!(theirs, ours);
    let times: Vec<_> = text.lines().map(|line| number(&line[..22])).collect();
    assert!(times.is_sorted());
    assert_eq!(babeltrace_events(dir), reader.events());
    assert_eq!(missed_by_babeltrace(dir), missed(&memory.items));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_recording_reads_the_same(plan in plan()) {
        if !has_babeltrace() {
            return Ok(());
        }
        let dir = tempfile::tempdir().unwrap();
        plan.record(dir.path());
        compare(dir.path(), &plan.descriptors());
    }
}

#[test]
fn every_kind_of_field_and_gap_reads_the_same() {
    if !has_babeltrace() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let streams = [
        descriptor(
            1,
            "trace;\"x\" µ\\",
            Origin::Kernel { cpu: 3 },
            every_kind(),
        ),
        descriptor(2, "phase", program(), every_kind()),
        descriptor(3, "quiet", Origin::Sampler, pair()),
        descriptor(4, "lost", Origin::Sampler, pair()),
    ];
    let mut writer = TraceWriter::create(dir.path(), identity())
        .unwrap()
        .with_packet_bytes(700);
    writer.open(&streams[2]).unwrap();
    let element = |stream: u32, sequence: u64| Owned::Element {
        stream,
        sequence,
        time: at(1_000 * sequence),
        payload: printable(&every_kind(), sequence * 77 + u64::from(stream)),
    };
    let id = |index: usize| streams[index].id;
    let mut items = vec![
        // At the start; two causes at one place; at the end; only a gap; nothing missed.
        Owned::Gap(gap(id(0), 0, 5, 10, 5_000, GapCause::Overwritten)),
        element(1, 5),
        Owned::Gap(gap(id(0), 6, 3, 5_000, 10_000, GapCause::Overwritten)),
        Owned::Gap(gap(id(0), 9, 1, 5_000, 10_000, GapCause::Late)),
        element(1, 10),
        Owned::Gap(gap(id(0), 11, 12_345_678, 10_000, 90_000, GapCause::Kernel)),
        Owned::Gap(gap(id(3), 0, 1, 0, 95_000, GapCause::Nested)),
        Owned::Gap(gap(id(1), 40, 0, 40_000, 96_000, GapCause::Epoch)),
    ];
    let many: Vec<_> = (1..40).map(|sequence| element(2, sequence)).collect();
    items.splice(1..1, many);
    for item in &items {
        item.give(&mut writer, &streams);
    }
    let summary = writer.finish().unwrap();
    assert_eq!(summary.discarded, 5 + 3 + 1 + 12_345_678 + 1);
    compare(dir.path(), &streams);
    assert_eq!(missed(&items)[&1].len(), 4);
    assert!(every_kind()
        .fields()
        .iter()
        .any(|field| matches!(field.kind, FieldKind::Text(_))));

    // The wall clock is shown, all warnings are about discarded events, and our own files in the
    // folder disturb no reader.
    let mut writer = TraceWriter::create(dir.path().join("b"), identity()).unwrap();
    writer
        .attach_document("run", &serde_json::json!({}))
        .unwrap();
    element(2, 1).give(&mut writer, &streams);
    writer.finish().unwrap();
    for place in ["b", "b/trace"] {
        let output = Command::new("babeltrace2")
            .arg("--clock-seconds")
            .arg(dir.path().join(place))
            .output()
            .unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.starts_with("[1700000000.123457789]"), "{text}");
    }
}

#[test]
fn empty_trace_is_readable() {
    if !has_babeltrace() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
    assert_eq!(babeltrace(dir.path(), &[]), "");
    writer
        .open(&descriptor(1, "s", Origin::Sampler, pair()))
        .unwrap();
    writer.advance(at(1)).unwrap();
    assert_eq!(babeltrace(dir.path(), &[]), "");
    std::fs::write(dir.path().join("trace/stream-1"), "").unwrap();
    assert_eq!(babeltrace(dir.path(), &[]), "");
    assert_eq!(TraceReader::open(dir.path()).unwrap().events(), 0);
}
