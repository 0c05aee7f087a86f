// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets that were cut out of a stream's file: each is a gap at its position, with the number of
//! its elements.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use overhear_event::{Gap, GapCause, Timestamp};
use overhear_trace::{repair, CorruptStream, ReplaySummary, TraceReader, TraceWriter};

use support::packets::packets;
use support::plan::gap;
use support::small_packets::{record_in_packets, streams, HEAD, WRITTEN};
use support::{at, babeltrace_events, has_babeltrace, identity, Memory, Owned};

/// Sequence of the first element of stream 1.
const FIRST: u64 = 100;
/// Index of the packet that is the gap.
const GAP: usize = 6;

/// A recording, and the file of its stream 1.
fn recorded() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let writer = TraceWriter::create(dir.path(), identity()).unwrap();
    record_in_packets(writer, FIRST).finish().unwrap();
    let file = dir.path().join("trace/stream-1");
    (dir, file)
}

/// Writes the file without these packets.
fn cut(file: &Path, good: &[u8], without: impl Fn(usize) -> bool) {
    let left = packets(good).into_iter().enumerate();
    let left = left.filter(|(number, _)| !without(*number));
    let left: Vec<&[u8]> = left.map(|(_, range)| &good[range]).collect();
    fs::write(file, left.concat()).unwrap();
}

/// All damage, and the items of a replay.
fn read(dir: &Path) -> (Vec<CorruptStream>, ReplaySummary, Memory) {
    let reader = TraceReader::open(dir).unwrap();
    let mut memory = Memory::default();
    let replayed = reader.replay(&mut [&mut memory]);
    let damage = [reader.corrupt(), &replayed.corrupt].concat();
    let counts = reader.count(streams()[0].id).unwrap();
    let delivered = (replayed.events - 40, replayed.discarded);
    assert_eq!(counts, delivered);
    (damage, replayed, memory)
}

fn gaps(memory: &Memory) -> Vec<Gap> {
    let items = memory.items.iter();
    let gaps = items.filter_map(|item| match item {
        Owned::Gap(gap) => Some(*gap),
        Owned::Element { .. } => None,
    });
    gaps.collect()
}

/// Number of elements in a packet, sequence of the first one, and end of the packet.
fn held(packet: usize) -> (u64, u64, Timestamp) {
    let before = 4 * (packet as u64).saturating_sub(1);
    match packet {
        0 => (0, FIRST, at(1_000)),
        1..GAP => (4, FIRST + before, at(1_000 + 10 * (before + 3))),
        GAP => (2, FIRST + 20, at(1_199)),
        _ => (4, FIRST + before - 2, at(1_000 + 10 * (before - 4 + 3))),
    }
}

#[test]
fn missing_packet_is_a_gap_at_its_position() {
    let (dir, file) = recorded();
    let good = fs::read(&file).unwrap();
    let all = packets(&good);
    assert_eq!(all.len(), 12);
    for (number, range) in all.iter().enumerate() {
        cut(&file, &good, |it| it == number);
        let (damage, replayed, memory) = read(dir.path());
        let [found] = &damage[..] else {
            panic!("{number}: {damage:?}");
        };
        let (count, first, end) = held(number);
        assert_eq!(found.offset, range.start as u64, "{number}");
        assert_eq!((found.bytes, found.packet), (0, Some(number as u64)));
        let text = found.to_string();
        let expected = format!("packet {number} of the stream is missing");
        assert!(text.contains(&expected), "{text}");
        assert_eq!(found.missed, (count > 0).then_some(count), "{text}");
        let events = 40 - if number == GAP { 0 } else { count };
        assert_eq!(replayed.events - 40, events, "{number}");
        assert_eq!(events + replayed.discarded, WRITTEN, "{number}");
        let lost = gaps(&memory).into_iter();
        let lost: Vec<Gap> = lost.filter(|gap| gap.cause == GapCause::Corrupt).collect();
        if count == 0 {
            assert_eq!(lost, [], "{number}");
            continue;
        }
        let [lost] = lost[..] else {
            panic!("{number}: {lost:?}");
        };
        assert_eq!((lost.first, lost.missed), (first, count), "{number}");
        // From the last element before it to the first one after it, or to the end.
        let before = held(number - 1).2;
        assert_eq!(lost.from, before, "{number}");
        assert!(lost.to >= end && lost.to <= at(1_390), "{number}: {lost:?}");
        assert_eq!(repair(dir.path()).unwrap().corrupt, damage);
    }
    fs::write(&file, &good).unwrap();
    assert_eq!(read(dir.path()).0, []);
}

#[test]
fn missing_packets_are_counted_together() {
    let (dir, file) = recorded();
    let good = fs::read(&file).unwrap();
    for begin in 0..12 {
        for end in begin + 2..=12 {
            cut(&file, &good, |it| (begin..end).contains(&it));
            let (damage, replayed, _) = read(dir.path());
            let [found] = &damage[..] else {
                panic!("{begin}..{end}: {damage:?}");
            };
            let text = found.to_string();
            let last = end - 1;
            let expected = format!("packets {begin} to {last} of the stream are missing");
            assert!(text.contains(&expected), "{text}");
            let lost: u64 = (begin..end).map(|packet| held(packet).0).sum();
            // Without packet 0, only the end of the recording states the first sequence.
            let is_known = begin > 0 || end == 12;
            if is_known {
                assert_eq!(found.missed, Some(lost), "{text}");
                assert_eq!(replayed.events - 40 + replayed.discarded, WRITTEN, "{text}");
            }
        }
    }
    fs::remove_file(&file).unwrap();
    let (damage, replayed, _) = read(dir.path());
    assert_eq!((damage.len(), damage[0].missed), (1, Some(WRITTEN)));
    assert_eq!((replayed.events, replayed.discarded), (40, WRITTEN));
}

#[test]
fn missing_packet_of_a_killed_recorder_is_noticed_before_the_last_one() {
    let (dir, file) = recorded();
    let good = fs::read(&file).unwrap();
    let own = dir.path().join("trace/overhear");
    fs::remove_file(own.join("summary.json")).unwrap();
    for number in 0..12 {
        cut(&file, &good, |it| it == number);
        assert_eq!(read(dir.path()).0.len(), usize::from(number < 11));
    }
    // The document counts only if the recorder has finished and the document is intact.
    fs::remove_file(own.join("ends.json")).unwrap();
    cut(&file, &good, |it| it == 11);
    assert_eq!(read(dir.path()).0, []);
}

#[test]
fn missing_packet_next_to_a_damaged_one_is_one_damage() {
    let (dir, file) = recorded();
    let good = fs::read(&file).unwrap();
    let all = packets(&good);
    for (missing, damaged) in [(3, 4), (4, 3), (11, 10)] {
        let mut bytes = good.clone();
        bytes[all[damaged].start + HEAD + 9] ^= 1;
        cut(&file, &bytes, |it| it == missing);
        let (damage, replayed, _) = read(dir.path());
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert_eq!(damage[0].missed, Some(8), "{}", damage[0]);
        assert_eq!(replayed.events - 40 + replayed.discarded, WRITTEN);
    }
}

#[test]
fn numbers_in_the_ends_cost_no_time_and_no_memory() {
    let (dir, file) = recorded();
    let good = fs::read(&file).unwrap();
    let ends = dir.path().join("trace/overhear/ends.json");
    let text = fs::read_to_string(&ends).unwrap();
    let (covered, _) = text.rsplit_once(",\"checksum\"").unwrap();
    for (field, number, missed) in [
        ("\"packets\":12", "\"packets\":18446744073709551615", None),
        ("\"packets\":12", "\"packets\":3", Some(0)),
        ("\"end\":1390", "\"end\":18446744073709551615", Some(4)),
        (
            "\"end_sequence\":142",
            "\"end_sequence\":18446744073709551615",
            Some(0),
        ),
        ("\"end_sequence\":142", "\"end_sequence\":0", Some(0)),
    ] {
        let changed = covered.replacen(field, number, 1);
        assert_ne!(changed, covered, "{field}");
        fs::write(&ends, changed + "}").unwrap();
        cut(&file, &good, |it| it == 11);
        let (damage, replayed, _) = read(dir.path());
        assert!(damage.len() <= 1, "{damage:?}");
        assert_eq!(replayed.events, 76);
        if let Some(missed) = missed {
            assert_eq!(replayed.discarded, 2 + missed, "{number}");
        }
        assert!(replayed.advanced_to <= at(1_390));
    }
}

#[test]
fn recording_of_format_3_is_read_as_ever() {
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/format-3/trace");
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("trace");
    fs::create_dir_all(copy.join("overhear")).unwrap();
    for name in [
        "metadata",
        "stream-1",
        "stream-2",
        "overhear/list.json",
        "overhear/run.json",
        "overhear/streams.json",
        "overhear/summary.json",
    ] {
        fs::copy(good.join(name), copy.join(name)).unwrap();
    }
    let reader = TraceReader::open(dir.path()).unwrap();
    let mut memory = Memory::default();
    let replayed = reader.replay(&mut [&mut memory]);
    assert_eq!(
        (reader.corrupt(), &replayed.corrupt[..]),
        (&[][..], &[][..])
    );
    assert_eq!((replayed.events, replayed.discarded), (24, 2));
    let missed = gap(streams()[0].id, 6, 2, 1_050, 1_060, GapCause::Late);
    assert_eq!(gaps(&memory), [missed]);
    let list = reader.document("list").unwrap();
    assert_eq!(list, Some(serde_json::json!([1, {"a": 2}])));
    assert_eq!(repair(dir.path()).unwrap(), Default::default());
    if has_babeltrace() {
        assert_eq!(babeltrace_events(dir.path()), 24);
    }
    // Its checksums are compared, too; packets have no numbers.
    let file = copy.join("stream-1");
    let bytes = fs::read(&file).unwrap();
    let mut flipped = bytes.clone();
    flipped[150] ^= 1;
    fs::write(&file, &flipped).unwrap();
    let reader = TraceReader::open(dir.path()).unwrap();
    assert_eq!(reader.corrupt().len(), 1);
    assert_eq!(reader.corrupt()[0].missed, Some(4));
}

#[test]
fn babeltrace_reports_missing_packets() {
    if !has_babeltrace() {
        return;
    }
    let (dir, file) = recorded();
    let good = fs::read(&file).unwrap();
    cut(&file, &good, |it| it == 3 || it == 4);
    let output = std::process::Command::new("babeltrace2")
        .arg(dir.path().join("trace"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("discarded 2 packets"), "{errors}");
}

/// Writes the items of the recording of format 4.
fn record_sample(dir: &Path) {
    let writer = TraceWriter::create(dir, identity()).unwrap();
    let mut writer = writer.with_packet_bytes(300);
    let streams = streams();
    for round in 0..13_u64 {
        let now = 1_000 + 10 * round;
        for stream in &streams[..2] {
            let id = stream.id.as_raw();
            if id == 1 && round == 6 {
                let missed = gap(stream.id, 6, 2, 1_050, 1_060, GapCause::Late);
                writer.gap(stream, &missed).unwrap();
                continue;
            }
            let item = Owned::Element {
                stream: id,
                sequence: round + u64::from(id == 1 && round > 6),
                time: at(now),
                payload: support::pair_payload(round).to_vec(),
            };
            item.give(&mut writer, &streams);
        }
        writer.advance(at(now)).unwrap();
    }
    let list = serde_json::json!([1, {"a": 2}]);
    writer.attach_document("list", &list).unwrap();
    let run = serde_json::json!({"a": 1});
    writer.attach_document("run", &run).unwrap();
    writer.finish().unwrap();
}

/// A recorder of the version that introduced the format wrote the recording. Today's recorders
/// write the same bytes if there are no limits, so that version reads them.
#[test]
fn recording_of_format_4_is_read_and_written_as_ever() {
    let good = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/format-4/trace");
    let reader = TraceReader::open(good.parent().unwrap()).unwrap();
    let mut memory = Memory::default();
    let replayed = reader.replay(&mut [&mut memory]);
    assert_eq!(reader.corrupt(), []);
    assert_eq!(replayed.corrupt, []);
    assert_eq!((replayed.events, replayed.discarded), (25, 2));
    assert_eq!(reader.limits(), overhear_trace::DiskLimits::default());
    let missed = gap(streams()[0].id, 6, 2, 1_050, 1_060, GapCause::Late);
    assert_eq!(gaps(&memory), [missed]);
    let dir = tempfile::tempdir().unwrap();
    record_sample(dir.path());
    for name in [
        "stream-1",
        "stream-2",
        "overhear/ends.json",
        "overhear/list.json",
        "overhear/streams.json",
        "overhear/summary.json",
    ] {
        let written = fs::read(dir.path().join("trace").join(name)).unwrap();
        assert_eq!(written, fs::read(good.join(name)).unwrap(), "{name}");
    }
}
