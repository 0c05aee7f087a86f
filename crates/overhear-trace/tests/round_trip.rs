// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded items are replayed: the same elements and gaps, in total order.

mod support;

use overhear_event::{Analysis, GapCause, Nanos, Origin, Timestamp};
use overhear_trace::{ReadError, TraceReader, TraceWriter, WriteError};
use proptest::prelude::proptest;
use serde_json::json;

use support::plan::{gap, plan};
use support::{at, descriptor, identity, pair, pair_payload, program, Memory, Owned};

proptest! {
    #[test]
    fn any_recording_comes_back(plan in plan(), step in 1..9_u64) {
        let dir = tempfile::tempdir().unwrap();
        let items = plan.items();
        let written = plan.record(dir.path());
        let reader = TraceReader::open(dir.path()).unwrap();
        assert!(reader.torn().is_empty() && reader.corrupt().is_empty());
        let mut memory = Memory::default();
        let replayed = reader.replay(&mut [&mut memory]);
        assert_eq!(memory.items, items);
        let last = reader.times().map_or(Timestamp::ZERO, |times| times.1);
        assert_eq!(memory.advances, advances(&items, last.max(written.advanced_to)));
        assert!(replayed.corrupt.is_empty());
        let mut stepped = Memory::default();
        let mut replay = reader.begin_replay();
        while replay.step(step, &mut [&mut stepped]) {}
        assert_eq!(stepped.items, items);
        assert_eq!(stepped.advances, memory.advances);
        assert!(!replay.step(step, &mut []));
        assert_eq!(replay.into_summary(), replayed);
        let gaps = items.iter().filter(|item| matches!(item, Owned::Gap(_))).count() as u64;
        assert_eq!(replayed.gaps, gaps);
        assert_eq!(replayed.events, items.len() as u64 - gaps);
        assert_eq!((reader.events(), reader.discarded()), (replayed.events, replayed.discarded));
        assert_eq!((written.events, written.discarded), (replayed.events, replayed.discarded));
        assert_eq!(reader.summary(), Some(&written));
        let mut expected = plan.descriptors();
        expected.sort_by_key(|stream| stream.id);
        assert!(reader.streams().map(|s| &**s).eq(&expected));
        assert_eq!(reader.identity(), &identity());
    }
}

/// The advances of a replay, each with the number of items before it: before an item that comes
/// more than a millisecond after the last one, and at the end.
fn advances(items: &[Owned], end: Timestamp) -> Vec<(usize, Timestamp)> {
    let mut positions = Vec::new();
    let mut now = Timestamp::ZERO;
    for (index, item) in items.iter().enumerate() {
        if item.time() > now.plus(Nanos::from_ms(1)) {
            now = item.time();
            positions.push((index, now));
        }
    }
    positions.extend((end > now).then_some((items.len(), end)));
    positions
}

#[test]
fn updates_share_one_replay_and_end_with_the_observation() {
    let dir = tempfile::tempdir().unwrap();
    let stream = descriptor(1, "s", Origin::Sampler, pair());
    let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
    for time in [1_000_000, 5_000_000] {
        let payload = pair_payload(time);
        let item = Owned::Element {
            stream: 1,
            sequence: time,
            time: at(time),
            payload: payload.to_vec(),
        };
        item.give(&mut writer, std::slice::from_ref(&stream));
    }
    writer.advance(at(9_000_000)).unwrap();
    writer.finish().unwrap();
    let (mut one, mut two) = (Memory::default(), Memory::default());
    let reader = TraceReader::open(dir.path().join("trace")).unwrap();
    reader.replay(&mut [&mut one, &mut two]);
    assert_eq!(one.items.len(), 2);
    assert_eq!(one.items, two.items);
    assert_eq!(one.advanced_to, at(9_000_000));
    assert_eq!(reader.times(), Some((at(1_000_000), at(5_000_000))));
}

#[test]
fn extreme_gaps_keep_their_own_times() {
    let dir = tempfile::tempdir().unwrap();
    let stream = descriptor(u32::MAX, "s", program(), pair());
    let gaps = [
        gap(stream.id, 0, 3, 700, 600, GapCause::Corrupt),
        gap(stream.id, 3, u64::MAX, 5, 800, GapCause::Late),
        gap(stream.id, u64::MAX, 0, 900, u64::MAX, GapCause::Epoch),
    ];
    let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
    for gap in &gaps {
        writer.gap(&stream, gap).unwrap();
    }
    writer.advance(Timestamp::MAX).unwrap();
    writer.finish().unwrap();
    let mut memory = Memory::default();
    let replayed = TraceReader::open(dir.path())
        .unwrap()
        .replay(&mut [&mut memory]);
    assert_eq!(memory.items, gaps.map(Owned::Gap));
    assert_eq!(replayed.advanced_to, Timestamp::MAX);
}

#[test]
fn growing_trace_shows_the_written_part() {
    let dir = tempfile::tempdir().unwrap();
    let stream = descriptor(2, "s", program(), pair());
    let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
    let mut element = |sequence: u64, ms: u64| {
        let item = Owned::Element {
            stream: 2,
            sequence,
            time: at(ms * 1_000_000),
            payload: pair_payload(sequence).to_vec(),
        };
        item.give(&mut writer, std::slice::from_ref(&stream));
        Analysis::advance(&mut writer, at(ms * 1_000_000));
        TraceReader::open(dir.path()).unwrap().events()
    };
    assert_eq!(element(0, 0), 0);
    assert_eq!(element(1, 199), 0);
    assert_eq!(element(2, 200), 3);
    assert_eq!(element(3, 201), 3);
    let error = overhear_trace::repair(dir.path()).unwrap_err().to_string();
    assert!(error.contains("still being recorded"), "{error}");
    drop(writer);
    let reader = TraceReader::open(dir.path()).unwrap();
    assert_eq!(reader.events(), 4);
    assert_eq!(reader.summary().unwrap().events, 4);
}

#[test]
fn writer_refuses_disorder_in_a_stream() {
    let dir = tempfile::tempdir().unwrap();
    let stream = descriptor(5, "phase", program(), pair());
    let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
    let mut write = |sequence, time, bytes| {
        writer.element(&overhear_event::ElementView {
            stream: &stream,
            sequence,
            time: at(time),
            payload: &[0; 17][..bytes],
        })
    };
    write(4, 100, 16).unwrap();
    let error = write(5, 99, 16).unwrap_err();
    assert!(matches!(error, WriteError::Order { .. }));
    let text = error.to_string();
    assert!(text.contains("stream 5 (engine(4242)/phase)"), "{text}");
    assert!(matches!(write(4, 100, 16), Err(WriteError::Order { .. })));
    assert!(matches!(write(5, 100, 17), Err(WriteError::Payload { .. })));
    assert!(matches!(
        write(5, u64::MAX, 16),
        Err(WriteError::Range { .. })
    ));
    assert!(matches!(
        write(u64::MAX, 101, 16),
        Err(WriteError::Range { .. })
    ));
    write(5, 100, 16).unwrap();
    let other = descriptor(5, "other", program(), pair());
    assert!(matches!(
        writer.open(&other),
        Err(WriteError::Conflict { .. })
    ));
    assert_eq!(writer.error(), Some(&error));
    assert_eq!(writer.finish(), Err(error));
    assert_eq!((writer.summary().events, writer.unrecorded()), (2, 5));
    assert!(matches!(writer.open(&stream), Ok(())));
    let after = writer.gap(&stream, &gap(stream.id, 6, 1, 100, 200, GapCause::Late));
    assert!(matches!(after, Err(WriteError::Finished { .. })));
    assert_eq!(TraceReader::open(dir.path()).unwrap().events(), 2);
    assert!(matches!(
        TraceWriter::create(dir.path(), identity()),
        Err(WriteError::Exists { .. })
    ));
}

#[test]
fn documents_are_replaced_atomically() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
    writer.attach_document("run", &json!({"a": 1})).unwrap();
    writer.attach_document("run", &json!({"b": [2]})).unwrap();
    for name in ["", "..", "a/b", "streams", "summary", ".x"] {
        let refused = writer.attach_document(name, &json!(0));
        assert!(matches!(refused, Err(WriteError::DocumentName(_))));
    }
    writer.finish().unwrap();
    // Also after the end: verdicts may be known later than the last element.
    writer.attach_document("late", &json!(7)).unwrap();
    let reader = TraceReader::open(dir.path()).unwrap();
    assert_eq!(reader.document("run"), Ok(Some(json!({"b": [2]}))));
    assert_eq!(reader.document("late"), Ok(Some(json!(7))));
    assert_eq!(reader.document("none"), Ok(None));
    let error = reader.document("../x").unwrap_err();
    assert!(matches!(error, ReadError::DocumentName(_)));
    let left: Vec<_> = std::fs::read_dir(dir.path().join("trace/overhear"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
