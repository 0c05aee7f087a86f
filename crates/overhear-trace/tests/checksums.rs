// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings with checksums and time bounds: every change in them is found, at its position, and
//! costs the packet that contains it.

mod support;

use std::fs;
use std::fs::{File, FileTimes};
use std::path::Path;
use std::time::{Duration, SystemTime};

use overhear_event::Nanos;
use overhear_trace::{repair, TraceIdentity, TraceReader, TraceWriter};

use support::packets::packets;
use support::small_packets::{record_in_packets, streams, HEAD, RECORD, TRAILER, WRITTEN};
use support::{at, babeltrace_events, has_babeltrace, identity, pair_payload, Memory, Owned};

/// Position of the first sequence in the trailer of a packet, from the end.
const FIRST_SEQUENCE: usize = 44;

/// Writes a recording with documents.
fn record(dir: &Path, writer: TraceWriter) {
    let mut writer = record_in_packets(writer, 0);
    for (name, document) in documents() {
        writer.attach_document(name, &document).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(TraceReader::open(dir).unwrap().corrupt(), []);
}

/// Documents of each kind: an object, an array, and an empty one.
fn documents() -> [(&'static str, serde_json::Value); 3] {
    [
        ("run", serde_json::json!({"command": ["x"], "start_ns": 1})),
        ("list", serde_json::json!([17, 4])),
        ("empty", serde_json::json!([])),
    ]
}

fn recorded() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let writer = TraceWriter::create(dir.path(), identity()).unwrap();
    record(dir.path(), writer);
    dir
}

/// Gives a packet the checksum of its bytes.
fn seal(packet: &mut [u8]) {
    let (covered, stored) = packet.split_last_chunk_mut().unwrap();
    *stored = crc32c::crc32c(covered).to_ne_bytes();
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_ne_bytes());
}

#[test]
fn every_flipped_bit_is_found_and_costs_its_packet() {
    let dir = recorded();
    let file = dir.path().join("trace/stream-1");
    let good = fs::read(&file).unwrap();
    let all = packets(&good);
    assert_eq!(all.len(), 12);
    let last = all.len() - 1;
    // One bit of each byte: CRC-32C finds every one.
    for bit in (0..good.len()).map(|place| place * 8 + place % 8) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&file, &bytes).unwrap();
        let hit = all.iter().position(|it| it.contains(&(bit / 8))).unwrap();
        let reader = TraceReader::open(dir.path()).unwrap();
        let mut memory = Memory::default();
        let replayed = reader.replay(&mut [&mut memory]);
        let found: Vec<_> = reader.corrupt().iter().chain(&replayed.corrupt).collect();
        let elements = match hit {
            0 | 6 => 0,
            _ => 4,
        };
        assert_eq!(replayed.events, 80 - elements, "bit {bit}");
        if !reader.torn().is_empty() {
            // A killed recorder leaves a packet that claims more bytes than the file has; this one
            // has finished.
            let [found] = found[..] else {
                panic!("bit {bit}: {found:?}");
            };
            assert_eq!((hit, found.missed), (last, Some(4)), "bit {bit}: {found}");
            assert_eq!(replayed.events - 40 + replayed.discarded, WRITTEN);
            continue;
        }
        let [found] = found[..] else {
            panic!("bit {bit}: {found:?}");
        };
        assert_eq!(found.offset, all[hit].start as u64, "bit {bit}");
        assert_eq!(found.bytes, all[hit].len() as u64, "bit {bit}");
        assert_eq!(found.packet, Some(hit as u64), "bit {bit}");
        let text = found.to_string();
        assert!(text.contains("stream-1 is damaged at byte"), "{text}");
        let lost = match hit {
            0 => None,
            6 => Some(2),
            _ => Some(4),
        };
        assert_eq!(found.missed, lost, "bit {bit}: {text}");
        let discarded = replayed.discarded;
        assert_eq!(replayed.events - 40 + discarded, WRITTEN, "bit {bit}");
    }
}

#[test]
fn changed_byte_of_a_large_packet_is_found_by_the_replay() {
    let dir = tempfile::tempdir().unwrap();
    let streams = streams();
    let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
    for sequence in 0..40_000 {
        let item = Owned::Element {
            stream: 1,
            sequence,
            time: at(sequence),
            payload: pair_payload(sequence).to_vec(),
        };
        item.give(&mut writer, &streams);
    }
    writer.finish().unwrap();
    let file = dir.path().join("trace/stream-1");
    let good = fs::read(&file).unwrap();
    let all = packets(&good);
    let hit = &all[2];
    assert!(hit.len() > 100_000, "{all:?}");
    let count = ((hit.len() - HEAD - TRAILER) / RECORD) as u64;
    let trailer = |from_end: usize| hit.end - from_end;
    // A payload, the time of an inner record, the first sequence, padding.
    let places = [
        hit.start + HEAD + 100 * RECORD + 9,
        hit.start + HEAD + 100 * RECORD,
        trailer(FIRST_SEQUENCE),
        trailer(TRAILER + 1),
    ];
    for place in places {
        let mut bytes = good.clone();
        bytes[place] ^= 0x10;
        fs::write(&file, &bytes).unwrap();
        let reader = TraceReader::open(dir.path()).unwrap();
        let mut memory = Memory::default();
        let replayed = reader.replay(&mut [&mut memory]);
        let [found] = &replayed.corrupt[..] else {
            panic!("{place}: {:?}", replayed.corrupt);
        };
        assert_eq!(found.offset, hit.start as u64);
        assert_eq!(found.missed, Some(count));
        assert_eq!(replayed.events + replayed.discarded, 40_000);
        assert_eq!(replayed.discarded, count);
    }
}

#[test]
fn swapped_doubled_and_foreign_packets_are_damage() {
    let dir = recorded();
    let other = tempfile::tempdir().unwrap();
    let writer = TraceWriter::create(other.path(), identity()).unwrap();
    record(other.path(), writer);
    let file = dir.path().join("trace/stream-1");
    let good = fs::read(&file).unwrap();
    let of_other = fs::read(other.path().join("trace/stream-2")).unwrap();
    let all = packets(&good);
    let packet = |number: usize| good[all[number].clone()].to_vec();
    let swapped = [
        &good[..all[3].start],
        &packet(4),
        &packet(3),
        &good[all[4].end..],
    ]
    .concat();
    let doubled = [&good[..all[4].start], &packet(3), &good[all[4].start..]].concat();
    let foreign = packets(&of_other)[3].clone();
    let spliced = [
        &good[..all[3].start],
        &of_other[foreign],
        &good[all[3].start..],
    ]
    .concat();
    // Of the swapped ones, the first is missing before the second, and comes again after it.
    for (bytes, elements, places) in [(swapped, 36, 2), (doubled, 40, 1), (spliced, 40, 1)] {
        fs::write(&file, &bytes).unwrap();
        let reader = TraceReader::open(dir.path()).unwrap();
        let replayed = reader.replay(&mut []);
        assert_eq!(reader.corrupt().len(), places, "{:?}", reader.corrupt());
        assert_eq!(replayed.events, 40 + elements);
        assert_eq!(elements + replayed.discarded, WRITTEN);
    }
}

#[test]
fn times_outside_the_recording_are_damage() {
    // The least is a day and a half: the time of a file is exact to a day.
    for power in [47, 48, 56, 60, 61] {
        for is_killed in [false, true] {
            let dir = recorded();
            let file = dir.path().join("trace/stream-1");
            let mut bytes = fs::read(&file).unwrap();
            let hit = packets(&bytes)[3].clone();
            let packet = &mut bytes[hit.clone()];
            // The last record and the packet's end, as a broken writer would leave them.
            let far = 1 << power;
            put(packet, 24, far);
            put(packet, HEAD + 3 * RECORD, far);
            seal(packet);
            fs::write(&file, &bytes).unwrap();
            if is_killed {
                fs::remove_file(dir.path().join("trace/overhear/summary.json")).unwrap();
                // The wall clock that the recording states, and some seconds.
                let written = Duration::from_nanos(identity().realtime_offset.as_ns());
                let written = SystemTime::UNIX_EPOCH + written + Duration::from_secs(9);
                let file = File::options().write(true).open(&file).unwrap();
                let times = FileTimes::new().set_modified(written);
                file.set_times(times).unwrap();
            }
            let reader = TraceReader::open(dir.path()).unwrap();
            let mut memory = Memory::default();
            let replayed = reader.replay(&mut [&mut memory]);
            let [found] = reader.corrupt() else {
                panic!("2^{power}: {:?}", reader.corrupt());
            };
            let bounds = match is_killed {
                true => "by the time of the file it was written",
                false => "by summary.json the recording lasts",
            };
            assert!(found.reason.contains(bounds), "{found}");
            assert_eq!(found.offset, hit.start as u64);
            assert_eq!((replayed.events, replayed.discarded), (76, 6), "{found}");
            let (_, last) = reader.times().unwrap();
            assert_eq!(last, at(1_390));
        }
    }
}

#[test]
fn copy_with_an_older_file_time_is_read_completely() {
    let dir = recorded();
    fs::remove_file(dir.path().join("trace/overhear/summary.json")).unwrap();
    for seconds in [0, 1_000] {
        for stream in ["stream-1", "stream-2"] {
            let file = dir.path().join("trace").join(stream);
            let file = File::options().write(true).open(file).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
        }
        let reader = TraceReader::open(dir.path()).unwrap();
        assert_eq!(reader.corrupt(), []);
        assert_eq!(reader.replay(&mut []).events, 80);
    }
}

#[test]
fn summary_that_ends_after_it_was_written_is_damage() {
    for (power, is_damage) in [(47, true), (60, true), (62, true), (64, false)] {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let offset = Nanos::from_ns(now.unwrap().as_nanos() as u64 - 1_000_000_000);
        let identity = TraceIdentity {
            realtime_offset: offset,
            ..identity()
        };
        let mut writer = TraceWriter::create(dir.path(), identity).unwrap();
        // All sources have ended.
        let last = 1_u64.checked_shl(power).map_or(u64::MAX, |time| time);
        writer.advance(at(last)).unwrap();
        let mut writer = writer.with_packet_bytes(400);
        let item = Owned::Element {
            stream: 1,
            sequence: 0,
            time: at(7),
            payload: pair_payload(1).to_vec(),
        };
        item.give(&mut writer, &streams());
        writer.finish().unwrap();
        let reader = TraceReader::open(dir.path()).unwrap();
        assert_eq!(reader.corrupt().len(), usize::from(is_damage), "2^{power}");
        assert_eq!(reader.summary().is_none(), is_damage);
        if is_damage {
            let text = reader.corrupt()[0].to_string();
            assert!(text.contains("summary.json") && text.contains("recording ended at"));
        }
        assert_eq!(reader.replay(&mut []).events, 1);
    }
}

#[test]
fn every_changed_byte_of_a_document_is_found() {
    let dir = recorded();
    let own = dir.path().join("trace/overhear");
    let files = [
        own.join("run.json"),
        own.join("list.json"),
        own.join("empty.json"),
        own.join("ends.json"),
        own.join("summary.json"),
        own.join("streams.json"),
        dir.path().join("trace/metadata"),
    ];
    for file in files {
        let good = fs::read(&file).unwrap();
        // The checksum itself, and the end of the document.
        let covered = good.len().saturating_sub(34).max(1);
        for place in 0..covered {
            let mut bytes = good.clone();
            bytes[place] ^= 4;
            fs::write(&file, &bytes).unwrap();
            match TraceReader::open(dir.path()) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("streams.json"), "{place}: {text}");
                }
                Ok(reader) => {
                    let mut found = reader.corrupt().iter().map(ToString::to_string);
                    let name = file.file_name().unwrap().to_string_lossy().into_owned();
                    assert!(found.any(|it| it.contains(&name)), "{place}: {name}");
                }
            }
        }
        fs::write(&file, &good).unwrap();
    }
    let reader = TraceReader::open(dir.path()).unwrap();
    assert_eq!(reader.corrupt(), []);
    for (name, document) in documents() {
        assert_eq!(reader.document(name).unwrap(), Some(document));
    }
    let list: Vec<u64> = reader.document_as("list").unwrap().unwrap();
    assert_eq!(list, [17, 4]);
}

#[test]
fn metadata_with_a_wrong_checksum_is_written_anew() {
    let dir = recorded();
    let file = dir.path().join("trace/metadata");
    let good = fs::read(&file).unwrap();
    let mut bytes = good.clone();
    bytes[200] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let repaired = repair(dir.path()).unwrap();
    assert!(repaired.restored.is_some());
    // A restored file is not damaged any more.
    assert_eq!(repaired.corrupt, []);
    assert_eq!(fs::read(&file).unwrap(), good);
    assert_eq!(TraceReader::open(dir.path()).unwrap().corrupt(), []);
}

#[test]
fn repair_keeps_the_bounds_of_times() {
    let dir = recorded();
    let file = dir.path().join("trace/stream-1");
    let mut bytes = fs::read(&file).unwrap();
    // A day and a half after the recording, and a torn tail.
    let all = packets(&bytes);
    let packet = &mut bytes[all[3].clone()];
    put(packet, 24, 1 << 47);
    put(packet, HEAD + 3 * RECORD, 1 << 47);
    seal(packet);
    bytes.truncate(all[11].end - 1);
    fs::write(&file, &bytes).unwrap();
    // A killed recorder: the time of the file bounds the times.
    fs::remove_file(dir.path().join("trace/overhear/summary.json")).unwrap();
    let written = Duration::from_nanos(identity().realtime_offset.as_ns());
    let written = SystemTime::UNIX_EPOCH + written + Duration::from_secs(9);
    let times = FileTimes::new().set_modified(written);
    let opened = File::options().write(true).open(&file).unwrap();
    opened.set_times(times).unwrap();
    let found = || {
        let reader = TraceReader::open(dir.path()).unwrap();
        let replayed = reader.replay(&mut []);
        let damage = [reader.corrupt(), &replayed.corrupt].concat();
        assert_eq!((reader.torn().len(), damage.len()), (1, 1), "{damage:?}");
        (damage, reader.torn().to_vec(), replayed.events)
    };
    let before = found();
    let repaired = repair(dir.path()).unwrap();
    assert_eq!(
        (repaired.cut, repaired.corrupt),
        (before.1.clone(), before.0.clone())
    );
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), written);
    assert_eq!(found(), before);
    // The list of repairs has a checksum, too.
    let list = dir.path().join("trace/overhear/repairs.json");
    let mut bytes = fs::read(&list).unwrap();
    let digit = bytes.iter().position(u8::is_ascii_digit).unwrap();
    bytes[digit] ^= 1;
    fs::write(&list, &bytes).unwrap();
    let reader = TraceReader::open(dir.path()).unwrap();
    let damaged = |it: &overhear_trace::CorruptStream| it.file == list;
    assert_eq!(reader.corrupt().iter().filter(|it| damaged(it)).count(), 1);
}

#[test]
fn places_that_look_like_packets_are_searched_in_bounded_time() {
    let dir = recorded();
    let file = dir.path().join("trace/stream-1");
    let good = fs::read(&file).unwrap();
    let first = packets(&good)[1].clone();
    // A packet of two records, with the next one right after it. The head of each claims the
    // maximum size of a packet, and another packet ends at the end of that size. Only the checksum
    // shows that it is not one packet.
    const UNIT: usize = HEAD + 2 * RECORD + TRAILER;
    const LARGE: usize = 26_212 * UNIT;
    let mut unit = good[first.start..][..HEAD + 2 * RECORD].to_vec();
    unit.extend(&good[first.end - TRAILER..first.end]);
    put(&mut unit, 24, 1_010);
    put(&mut unit, 32, (LARGE - TRAILER) as u64 * 8);
    put(&mut unit, 40, LARGE as u64 * 8);
    let mut bytes = good[..first.start].to_vec();
    while bytes.len() < 8 << 20 {
        bytes.extend(&unit);
    }
    bytes.extend(&good[first]);
    fs::write(&file, &bytes).unwrap();
    let reader = TraceReader::open(dir.path()).unwrap();
    let replayed = reader.replay(&mut []);
    let [found] = &replayed.corrupt[..] else {
        panic!("{:?}", replayed.corrupt);
    };
    assert!(found.reason.contains("only looks like packets"), "{found}");
    assert_eq!(replayed.events, 40);
}

#[test]
fn babeltrace_reads_recordings_with_and_without_checksums() {
    if !has_babeltrace() {
        return;
    }
    for has_checksums in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TraceWriter::create(dir.path(), TraceIdentity::default()).unwrap();
        if !has_checksums {
            writer = writer.without_checksums();
        }
        record(dir.path(), writer.with_pending(Nanos::from_ms(1)));
        let catalogue = fs::read_to_string(dir.path().join("trace/overhear/streams.json")).unwrap();
        assert_eq!(catalogue.contains("crc32c"), has_checksums);
        assert_eq!(babeltrace_events(dir.path()), 80);
    }
}
