// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary content of the files: no panic, a message with file and place, and the other streams.

mod support;

use std::fs;
use std::path::Path;

use overhear_event::{ElementView, GapCause, Nanos, Origin, StreamDescriptor};
use overhear_trace::{repair, ReadError, TraceReader, TraceWriter};

use support::plan::gap;
use support::{
    at, babeltrace_events, descriptor, has_babeltrace, identity, pair, pair_payload, program,
    Memory, Owned,
};

/// Sizes of the parts of a sampler's packet, in bytes.
const HEAD: usize = 60;
const TRAILER: usize = 40;
const RECORD: usize = 24;

fn streams() -> [StreamDescriptor; 2] {
    [
        descriptor(1, "a", Origin::Sampler, pair()),
        descriptor(2, "b", program(), pair()),
    ]
}

/// Stream 1 has an empty packet, ten packets with four elements each, and a gap after five. It has
/// no checksums, so that everything else is checked; `checksums.rs` has the tests with them.
fn record(dir: &Path) {
    let streams = streams();
    let mut writer = TraceWriter::create(dir, identity())
        .unwrap()
        .without_checksums()
        .with_packet_bytes(HEAD + 4 * RECORD + TRAILER);
    for sequence in 0..40 {
        if sequence == 20 {
            let missed = gap(streams[0].id, 20, 2, 190, 200, GapCause::Late);
            writer.gap(&streams[0], &missed).unwrap();
        }
        for stream in 1..=2 {
            let item = Owned::Element {
                stream,
                sequence: sequence + 2 * u64::from(sequence >= 20),
                time: at(sequence * 10),
                payload: pair_payload(sequence).to_vec(),
            };
            item.give(&mut writer, &streams);
        }
    }
    writer
        .attach_document("run", &serde_json::json!({"x": 1}))
        .unwrap();
    writer.finish().unwrap();
}

/// Begin of packet `number` of stream 1, before the gap.
fn packet(number: usize) -> usize {
    match number {
        0 => 0,
        n => HEAD + TRAILER + (n - 1) * (HEAD + 4 * RECORD + TRAILER),
    }
}

fn change(file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    change(&mut bytes);
    fs::write(file, bytes).unwrap();
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_ne_bytes());
}

#[test]
fn metadata_that_was_damaged_is_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path());
    let metadata = dir.path().join("trace/metadata");
    let whole = fs::read(&metadata).unwrap();
    assert_eq!(repair(dir.path()).unwrap().restored, None);
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 4] = [
        Vec::clear,
        |bytes| bytes.truncate(bytes.len() - 10),
        |bytes| bytes[0] = b' ',
        |bytes| bytes[100] = 0,
    ];
    for damage in damages {
        change(&metadata, damage);
        let repaired = repair(dir.path()).unwrap();
        let restored = repaired.restored.expect("it was damaged");
        assert!(restored.ends_with("trace/metadata"), "{restored:?}");
        assert_eq!(fs::read(&metadata).unwrap(), whole);
    }
    // Metadata of another version must not be changed.
    change(&metadata, |bytes| bytes.extend(b"// another version\n"));
    assert_eq!(repair(dir.path()).unwrap().restored, None);
}

#[test]
fn damage_costs_its_packet_at_a_named_place() {
    type Damage = fn(&mut Vec<u8>, usize);
    let cases: [(Damage, &str); 14] = [
        (|b, p| b[p] ^= 1, "magic"),
        (|b, p| b[p + 4] ^= 1, "class"),
        (|b, p| b[p + 8] = 9, "belongs to stream 9"),
        (|b, p| put(b, p + 16, 1 << 63), "it lasts from"),
        (
            |b, p| {
                put(b, p + 16, 0);
                put(b, p + HEAD, 0);
            },
            "before the end of the one before",
        ),
        (|b, p| put(b, p + 32, 1 << 40), "content of"),
        (|b, p| put(b, p + 40, u64::MAX), "more than any packet has"),
        (|b, p| put(b, p + 40, 8), "less than an empty one has"),
        (|b, p| put(b, p + 48, 77), "77 discarded events"),
        (|b, p| b[p + 56] ^= 1, "another origin"),
        (|b, p| put(b, p + HEAD, 3), "its records last"),
        // Times that would fit the adjacent packets and the records before the last one.
        (
            |b, p| put(b, p + HEAD + 3 * RECORD, 105),
            "its records last",
        ),
        (|b, p| put(b, p + 24, 115), "its records last"),
        (|b, p| put(b, p + HEAD + 4 * RECORD, 0), "comes again"),
    ];
    for (damage, reason) in cases {
        let dir = tempfile::tempdir().unwrap();
        record(dir.path());
        let file = dir.path().join("trace/stream-1");
        change(&file, |bytes| damage(bytes, packet(3)));
        let reader = TraceReader::open(dir.path()).unwrap();
        assert!(reader.torn().is_empty());
        let [corrupt] = reader.corrupt() else {
            panic!("{reason}: {:?}", reader.corrupt());
        };
        assert_eq!(corrupt.file, file);
        assert_eq!(corrupt.offset, packet(3) as u64, "{reason}");
        let text = corrupt.to_string();
        assert!(text.contains(reason), "{text}, not {reason}");
        assert_eq!(
            (corrupt.packet, corrupt.missed),
            (Some(3), Some(4)),
            "{reason}"
        );
        assert_eq!(corrupt.bytes, (packet(4) - packet(3)) as u64, "{reason}");
        assert_eq!(reader.count(streams()[0].id), Some((36, 6)));
        assert_eq!(reader.count(streams()[1].id), Some((40, 0)));
        let mut memory = Memory::default();
        let replayed = reader.replay(&mut [&mut memory]);
        assert_eq!(replayed.corrupt, []);
        assert_eq!((replayed.events, replayed.discarded), (76, 6), "{reason}");
        let lost = gap(streams()[0].id, 8, 4, 70, 120, GapCause::Corrupt);
        assert!(memory.items.contains(&Owned::Gap(lost)), "{reason}");
        let report = repair(dir.path()).unwrap();
        assert_eq!(report.corrupt, reader.corrupt());
    }
}

#[test]
fn times_that_go_back_inside_a_packet_cost_the_rest_of_it() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path());
    let file = dir.path().join("trace/stream-1");
    let bad = packet(3) + HEAD + 2 * RECORD;
    change(&file, |bytes| put(bytes, bad, 1));
    let reader = TraceReader::open(dir.path()).unwrap();
    let mut memory = Memory::default();
    let replayed = reader.replay(&mut [&mut memory]);
    assert_eq!(replayed.corrupt.len(), 1);
    assert_eq!(replayed.corrupt[0].offset, bad as u64);
    assert_eq!(replayed.corrupt[0].missed, Some(2));
    assert_eq!((replayed.events, replayed.discarded), (78, 4));
}

/// Packets of a file: the begin of each, its bytes, and those of its content.
fn packets(bytes: &[u8]) -> Vec<[usize; 3]> {
    let mut all = Vec::new();
    let mut begin = 0;
    while begin < bytes.len() {
        let bits = |at: usize| u64::from_ne_bytes(bytes[begin + at..][..8].try_into().unwrap());
        let [content, whole] = [32, 40].map(|at| (bits(at) / 8) as usize);
        all.push([begin, whole, content]);
        begin += whole;
    }
    all
}

#[test]
fn packets_of_pages_end_with_blocks_of_the_file_and_lose_nothing() {
    const PAGES: usize = 8_192;
    let dir = tempfile::tempdir().unwrap();
    let streams = streams();
    let writer = TraceWriter::create(dir.path(), identity()).unwrap();
    let mut writer = writer.without_checksums().with_packet_bytes(PAGES);
    let (mut given, mut next) = (Vec::new(), 0);
    for number in 0..4_000 {
        // A packet that has waited too long is written as it is, and a gap is a packet of its own.
        if number % 1_500 == 700 {
            let last = at(number * 10 - 1);
            writer.advance(last.plus(Nanos::from_ms(300))).unwrap();
        }
        if number == 2_000 {
            let missed = gap(streams[0].id, next, 3, 19_995, 19_999, GapCause::Late);
            writer.gap(&streams[0], &missed).unwrap();
            given.push(Owned::Gap(missed));
            next += 3;
        }
        let item = Owned::Element {
            stream: 1,
            sequence: next,
            time: at(number * 10),
            payload: pair_payload(number).to_vec(),
        };
        next += 1;
        item.give(&mut writer, &streams);
        given.push(item);
    }
    writer.finish().unwrap();
    let file = dir.path().join("trace/stream-1");
    let good = fs::read(&file).unwrap();
    let all = packets(&good);
    let is_padded = |[_, whole, content]: &[usize; 3]| *whole > content + TRAILER;
    // Independent of other writes in between: from the next block on they are as before.
    for block in 1..good.len() / PAGES {
        assert!(
            all.iter().any(|[begin, ..]| *begin == block * PAGES),
            "{block}"
        );
    }
    let padded: Vec<_> = all.iter().filter(|packet| is_padded(packet)).collect();
    assert!(padded.len() >= 5, "{all:?}");
    for [begin, whole, content] in &all {
        assert!(*whole <= PAGES && *whole < content + TRAILER + RECORD);
        assert!(whole == &(content + TRAILER) || (begin + whole) % PAGES == 0);
    }
    let reader = TraceReader::open(dir.path()).unwrap();
    assert!(reader.torn().is_empty() && reader.corrupt().is_empty());
    let mut memory = Memory::default();
    reader.replay(&mut [&mut memory]);
    assert_eq!(memory.items, given);
    if has_babeltrace() {
        assert_eq!(babeltrace_events(dir.path()), 4_000);
    }

    // Content that is shorter or longer than stated is damage, and so is a time that goes back, at
    // its position.
    let [begin, _, content] = *padded[1];
    let record = begin + content - 3 * RECORD;
    let damages = [
        (
            begin + 32,
            (content - RECORD) as u64 * 8,
            begin,
            "content of",
        ),
        (
            begin + 32,
            (content + RECORD) as u64 * 8,
            begin,
            "content of",
        ),
        (begin + 32, (content + 1) as u64 * 8, begin, "no multiple"),
        (begin + 32, content as u64 * 8 + 1, begin, "content of"),
        (record, 1, record, "comes after"),
    ];
    for (damaged_at, number, offset, reason) in damages {
        let mut bytes = good.clone();
        put(&mut bytes, damaged_at, number);
        fs::write(&file, &bytes).unwrap();
        let reader = TraceReader::open(dir.path()).unwrap();
        let replayed = reader.replay(&mut []);
        let found: Vec<_> = reader.corrupt().iter().chain(&replayed.corrupt).collect();
        assert_eq!(found.len(), 1, "{reason}: {found:?}");
        assert_eq!(found[0].offset, offset as u64, "{}", found[0]);
        assert!(found[0].to_string().contains(reason), "{}", found[0]);
    }
    // A size with room for padding does not make a whole packet unfinished either.
    let [last, whole, _] = *all.last().unwrap();
    for more in 1..2 * RECORD {
        let mut bytes = good.clone();
        put(&mut bytes, last + 40, (whole + more) as u64 * 8);
        fs::write(&file, &bytes).unwrap();
        let reader = TraceReader::open(dir.path()).unwrap();
        assert!(reader.torn().is_empty(), "{more}");
        assert_eq!(reader.corrupt()[0].offset, last as u64, "{more}");
    }
}

#[test]
fn wherever_a_packet_ends_early_later_ones_end_with_blocks() {
    const BLOCK: usize = 4_096;
    let stream = &streams()[0];
    // Numbers for which some records, or none, fit before the end of the block.
    for early in 155..172 {
        let dir = tempfile::tempdir().unwrap();
        let writer = TraceWriter::create(dir.path(), identity()).unwrap();
        let mut writer = writer.with_packet_bytes(BLOCK);
        for sequence in 0..1_000 {
            if sequence == early {
                let later = at(sequence).plus(Nanos::from_ms(300));
                writer.advance(later).unwrap();
            }
            let payload = pair_payload(sequence);
            let element = ElementView {
                stream,
                sequence,
                time: at(sequence),
                payload: &payload,
            };
            writer.element(&element).unwrap();
        }
        writer.finish().unwrap();
        let bytes = fs::read(dir.path().join("trace/stream-1")).unwrap();
        let all = packets(&bytes);
        // From the second block on after the early end.
        for block in 3..bytes.len() / BLOCK {
            let is_there = all.iter().any(|[begin, ..]| *begin == block * BLOCK);
            assert!(is_there, "{block} after {early}: {all:?}");
        }
        assert!(all.iter().all(|[_, whole, _]| *whole <= BLOCK), "{all:?}");
        let reader = TraceReader::open(dir.path()).unwrap();
        assert!(reader.torn().is_empty() && reader.corrupt().is_empty());
        assert_eq!(reader.events(), 1_000);
    }
}

#[test]
fn record_with_a_wrong_time_costs_the_rest_of_its_packet() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path());
    let file = dir.path().join("trace/stream-1");
    let good = fs::read(&file).unwrap();
    let mut whole = Memory::default();
    let reader = TraceReader::open(dir.path()).unwrap();
    reader.replay(&mut [&mut whole]);
    let (own, other): (Vec<_>, Vec<_>) = whole.items.iter().partition(|it| it.stream() == 1);
    let damaged_at = |index: usize| packet(index / 4 + 1) + HEAD + index % 4 * RECORD;
    // The head has the times of a packet's first and last record, too.
    for index in (0..20).filter(|index| matches!(index % 4, 1 | 2)) {
        let [before, after] = [index - 1, index + 1].map(|it| own[it].time().as_monotonic_ns());
        let just_before = before.saturating_sub(1);
        for time in [0, just_before, before, after, after + 1, 1 << 40, u64::MAX] {
            let mut bytes = good.clone();
            put(&mut bytes, damaged_at(index), time);
            fs::write(&file, &bytes).unwrap();
            let reader = TraceReader::open(dir.path()).unwrap();
            let mut memory = Memory::default();
            let replayed = reader.replay(&mut [&mut memory]);
            let bad = match time {
                _ if time < before || time >= 1 << 40 => Some(index),
                // The record itself may be valid, but not the one after it.
                _ if time > after => Some(index + 1),
                _ => None,
            };
            let offsets: Vec<_> = replayed.corrupt.iter().map(|it| it.offset).collect();
            let expected_offset = bad.map(|bad| damaged_at(bad) as u64);
            assert_eq!(
                offsets,
                Vec::from_iter(expected_offset),
                "{index} at {time}"
            );
            let mut expected: Vec<_> = own.iter().copied().cloned().collect();
            if bad != Some(index) {
                if let Some(Owned::Element { time: changed, .. }) = expected.get_mut(index) {
                    *changed = at(time);
                }
            }
            if let Some(bad) = bad {
                let missed = 4 - bad % 4;
                let end = own[bad + missed - 1].time();
                let now = expected[bad - 1].time();
                let lost = overhear_event::Gap {
                    stream: streams()[0].id,
                    first: bad as u64,
                    missed: missed as u64,
                    from: now,
                    to: end.max(now),
                    cause: GapCause::Corrupt,
                };
                expected.splice(bad..bad + missed, [Owned::Gap(lost)]);
            }
            expected.extend(other.iter().copied().cloned());
            expected.sort_by_key(|item| (item.time(), item.stream()));
            assert_eq!(memory.items, expected, "{index} at {time}");
        }
    }
}

#[test]
fn invalid_trace_is_refused_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let open = || TraceReader::open(dir.path()).unwrap_err();
    assert!(matches!(open(), ReadError::NotATrace { .. }));
    assert!(open().to_string().contains("is not a trace of Overhear"));
    assert!(repair(dir.path()).is_err());
    record(dir.path());
    let catalogue = dir.path().join("trace/overhear/streams.json");
    let good = fs::read_to_string(&catalogue).unwrap();
    let with = |from: &str, to: &str| {
        assert!(good.contains(from));
        fs::write(&catalogue, good.replacen(from, to, 1)).unwrap();
        open()
    };
    // Files without padding are read as before.
    fs::write(
        &catalogue,
        good.replacen("\"format\": 2", "\"format\": 1", 1),
    )
    .unwrap();
    assert_eq!(TraceReader::open(dir.path()).unwrap().events(), 80);
    let error = with("\"format\": 2", "\"format\": 6");
    assert!(matches!(error, ReadError::OtherFormat { found: 6, .. }));
    let native = if cfg!(target_endian = "little") {
        "little"
    } else {
        "big"
    };
    let error = with(native, "middle");
    assert!(matches!(error, ReadError::OtherByteOrder { .. }));
    let error = with("\"id\": 2", "\"id\": 1");
    assert!(matches!(error, ReadError::TwiceInCatalogue { .. }));
    let at = good.find("\"offset\": 8").unwrap() as u64;
    let ReadError::BadJson { offset, .. } = with("\"offset\": 8", "\"offset\": x") else {
        panic!("no BadJson");
    };
    assert_eq!(offset, at + 10);
    // Fields that do not cover the payload: the schema's own check refuses them.
    let error = with("\"offset\": 8", "\"offset\": 9").to_string();
    assert!(
        error.contains("streams.json") && error.contains("pair"),
        "{error}"
    );
}

#[test]
fn schemas_and_streams_that_do_not_fit_are_named() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path());
    fs::write(dir.path().join("trace/stream-9"), "x").unwrap();
    fs::write(dir.path().join("trace/stream-1.orig"), "").unwrap();
    fs::remove_file(dir.path().join("trace/stream-2")).unwrap();
    fs::create_dir(dir.path().join("trace/stream-2")).unwrap();
    let catalogue = dir.path().join("trace/overhear/streams.json");
    change(&catalogue, |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        let text = text.replacen("\"size\": 16", "\"size\": 8", 1);
        let (start, _) = text.match_indices(",\n            {\n").next().unwrap();
        let end = start + text[start..].find("          ]").unwrap();
        *bytes = format!("{}\n{}", &text[..start], &text[end..]).into_bytes();
    });
    let reader = TraceReader::open(dir.path()).unwrap();
    let texts: Vec<_> = reader.corrupt().iter().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 4, "{texts:#?}");
    assert!(
        texts[0].contains("stream-1 ") && texts[0].contains("have 24 bytes"),
        "{}",
        texts[0]
    );
    assert!(texts[1].contains("stream-2 ") && texts[1].contains("regular file"));
    assert!(texts[2].contains("stream-1.orig"));
    assert!(texts[3].contains("stream-9 ") && texts[3].contains("does not list"));
}

#[test]
fn thousands_of_mutations_never_panic() {
    let dir = tempfile::tempdir().unwrap();
    record(dir.path());
    let trace = dir.path().join("trace");
    let files: Vec<_> = [
        "stream-1",
        "stream-2",
        "overhear/streams.json",
        "overhear/summary.json",
        "overhear/run.json",
        "metadata",
    ]
    .iter()
    .map(|name| (trace.join(name), fs::read(trace.join(name)).unwrap()))
    .collect();
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut below = |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % bound as u64) as usize
    };
    let (mut refused, mut partial, mut whole) = (0, 0, 0);
    for round in 0..3_000 {
        // Streams are changed twice as often as the rest.
        let (file, good) = &files[[0, 0, 0, 1, 1, 2, 2, 3, 4, 5][below(10)]];
        let mut bytes = good.clone();
        for _ in 0..=below(3) {
            let damaged_at = below(bytes.len().max(1));
            match below(5) {
                0 => bytes.truncate(damaged_at),
                1 => bytes
                    .splice(damaged_at..damaged_at, [below(256) as u8; 3])
                    .for_each(drop),
                2 => drop(bytes.drain(damaged_at..bytes.len().min(damaged_at + 5))),
                _ => {
                    if let Some(byte) = bytes.get_mut(damaged_at) {
                        *byte ^= 1 << below(8);
                    }
                }
            }
        }
        fs::write(file, &bytes).unwrap();
        match TraceReader::open(dir.path()) {
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains(".json"), "{error}");
            }
            Ok(reader) => {
                let mut memory = Memory::default();
                let replayed = reader.replay(&mut [&mut memory]);
                assert_eq!(replayed.events + replayed.gaps, memory.items.len() as u64);
                let _ = reader.document("run").map_err(|error| error.to_string());
                let hit = file.ends_with("stream-1");
                if hit {
                    let other = memory.items.iter().filter(|item| item.stream() == 2);
                    assert_eq!(other.count(), 40, "round {round}");
                }
                if replayed.events < 80 {
                    partial += 1;
                } else {
                    whole += 1;
                }
            }
        }
        if round % 10 == 0 {
            let _ = repair(dir.path()).map_err(|error| error.to_string());
        }
        fs::write(file, good).unwrap();
    }
    println!("{refused} refused, {partial} read in part, {whole} read whole");
    assert!(refused > 100 && partial > 100 && whole > 100);
    assert_eq!(TraceReader::open(dir.path()).unwrap().events(), 80);
}
