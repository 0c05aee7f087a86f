// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader against honest, fast and hostile writers.

use alloc::vec::Vec;

use overhear_event::{Ticks, Timestamp};
use proptest::prelude::{any, prop, proptest, ProptestConfig};

use super::{ReadItem, ReadRun, Reader};
use crate::layout::{counter, Geometry, LayoutError};
use crate::sync::Ordering;
use crate::words::{OwnedWords, Words};
use crate::writer::SimpleWriter;

fn stream(payload: u32, capacity: u64) -> (SimpleWriter<OwnedWords>, Reader<OwnedWords>) {
    let geometry = Geometry::new(payload, capacity).unwrap();
    let memory = OwnedWords::zeroed(geometry.words());
    let writer = SimpleWriter::new(memory.share(), geometry).unwrap();
    (writer, Reader::from_start(memory, geometry).unwrap())
}

fn write(writer: &mut SimpleWriter<OwnedWords>, times: u64) {
    for _ in 0..times {
        let count = writer.count();
        writer.write(&count.to_ne_bytes(), || Ticks::from_raw(count * 10));
    }
}

fn read(reader: &mut Reader<OwnedWords>, limit: usize) -> (Vec<u64>, u64) {
    let mut seen = Vec::new();
    let report = reader.poll(limit, |element| {
        let value = u64::from_ne_bytes(element.payload.try_into().unwrap());
        assert_eq!(
            (element.sequence, element.stamp.as_raw()),
            (value, value * 10)
        );
        seen.push(value);
    });
    (seen, report.unwrap().missed)
}

#[test]
fn lapped_reader_keeps_the_newest_and_counts_the_rest() {
    let (mut writer, mut reader) = stream(8, 4);
    write(&mut writer, 3);
    assert_eq!(read(&mut reader, 9), ([0, 1, 2].to_vec(), 0));
    write(&mut writer, 4);
    assert_eq!(read(&mut reader, 9), ([4, 5, 6].to_vec(), 1));
    write(&mut writer, 1_000);
    assert_eq!(read(&mut reader, 2), ([1_004, 1_005].to_vec(), 997));
    assert_eq!(read(&mut reader, 9), ([1_006].to_vec(), 0));
    assert_eq!(read(&mut reader, 9), ([].to_vec(), 0));
}

#[test]
fn bound_counts_elements_that_can_be_delivered() {
    let (mut writer, mut reader) = stream(8, 4);
    let poll = |reader: &mut Reader<OwnedWords>, elements| {
        let end = reader.published();
        let bound = reader.bound_within(end, elements);
        let mut delivered = 0;
        let report = reader.poll_until(bound, |found| {
            delivered += u64::from(matches!(found, ReadItem::Element(_)));
        });
        (delivered, report.unwrap().missed, bound == end)
    };
    write(&mut writer, 3);
    assert_eq!(poll(&mut reader, 2), (2, 0, false));
    assert_eq!(poll(&mut reader, 1), (1, 0, true));
    assert_eq!(poll(&mut reader, 0), (0, 0, true));
    // Lapped elements need no memory, in any number.
    write(&mut writer, 1_000_000);
    let (delivered, missed, is_all) = poll(&mut reader, 2);
    assert!(delivered <= 2 && missed >= 999_996 && !is_all);
    let (rest, _, is_all) = poll(&mut reader, 9);
    assert_eq!((delivered + rest, is_all), (3, true));
    // The poll detects a counter that goes back.
    let position = reader.published();
    assert_eq!(reader.bound_within(position - 1, 0), position - 1);
}

#[test]
fn every_stride_is_read_alike_across_the_wrap() {
    // With no words between the elements, with a few, and with a number that makes the reader omit
    // them.
    for (payload, stride) in [(8, 16), (8, 24), (20, 32), (8, 128), (72, 128)] {
        let geometry = Geometry::with_stride(payload, stride, 16).unwrap();
        let memory = OwnedWords::zeroed(geometry.words());
        let mut writer = SimpleWriter::new(memory.share(), geometry).unwrap();
        let mut reader = Reader::from_start(memory, geometry).unwrap();
        for round in 0..20_u64 {
            let body = |count: u64| alloc::vec![(count + 1) as u8; payload as usize];
            let begin = writer.count();
            for count in begin..begin + 1 + round % 15 {
                writer.write(&body(count), || Ticks::from_raw(count));
            }
            let mut next = begin;
            let report = reader.poll(usize::MAX, |element| {
                assert_eq!((element.sequence, element.stamp.as_raw()), (next, next));
                assert_eq!(element.payload, body(next));
                next += 1;
            });
            assert_eq!((report.unwrap().missed, next), (0, writer.count()));
        }
    }
}

/// The elements read until `end`, and (first, count) of the missed ones.
fn read_until(reader: &mut Reader<OwnedWords>, end: u64) -> (Vec<u64>, Vec<(u64, u64)>) {
    let (mut seen, mut gaps, mut next) = (Vec::new(), Vec::new(), reader.position());
    let report = reader.poll_until(end, |found| match found {
        ReadItem::Element(element) => {
            assert_eq!(element.sequence, next, "no holes");
            next += 1;
            seen.push(element.sequence);
        }
        ReadItem::Missed { first, count } => {
            assert_eq!(first, next, "no holes");
            next += count;
            gaps.push((first, count));
        }
    });
    let report = report.unwrap();
    assert_eq!(report.delivered, seen.len() as u64);
    assert_eq!(report.missed, gaps.iter().map(|gap| gap.1).sum::<u64>());
    assert_eq!(next, reader.position());
    (seen, gaps)
}

#[test]
fn poll_keeps_its_bound_whatever_the_writer_does() {
    let (mut writer, mut reader) = stream(8, 8);
    write(&mut writer, 5);
    assert_eq!(
        read_until(&mut reader, 3),
        ([0, 1, 2].to_vec(), [].to_vec())
    );
    assert_eq!(read_until(&mut reader, 3), ([].to_vec(), [].to_vec()));
    assert_eq!(read_until(&mut reader, 2), ([].to_vec(), [].to_vec()));
    assert_eq!(read_until(&mut reader, 99), ([3, 4].to_vec(), [].to_vec()));
    write(&mut writer, 95);
    // All elements before the bound are overwritten: one gap, and nothing after the bound.
    assert_eq!(
        read_until(&mut reader, 50),
        ([].to_vec(), [(5, 45)].to_vec())
    );
    assert_eq!(
        read_until(&mut reader, 95),
        ([93, 94].to_vec(), [(50, 43)].to_vec())
    );
}

#[test]
fn elements_overwritten_during_a_poll_are_missed() {
    let (mut writer, mut reader) = stream(8, 512);
    write(&mut writer, 511);
    let (mut seen, mut gaps) = (Vec::new(), Vec::new());
    let report = reader.poll_until(511, |found| match found {
        ReadItem::Element(element) => {
            if element.sequence == 0 {
                write(&mut writer, 300);
            }
            seen.push(element.sequence);
        }
        ReadItem::Missed { first, count } => gaps.push((first, count)),
    });
    // The first batch was copied before; of the second, 256 to 299 are overwritten.
    assert_eq!((seen[255], seen[256], seen.len()), (255, 300, 467));
    assert_eq!(gaps, [(256, 44)]);
    assert_eq!(report.unwrap().missed, 44);
}

#[test]
fn elements_missed_before_the_damage_are_reported() {
    let (mut writer, mut reader) = stream(8, 512);
    write(&mut writer, 600);
    let counter_of = reader.words().share();
    let mut gaps = Vec::new();
    let result = reader.poll_until(600, |found| match found {
        ReadItem::Element(_) => counter(&counter_of).store(7, Ordering::Relaxed),
        ReadItem::Missed { first, count } => gaps.push((first, count)),
    });
    assert!(matches!(result, Err(LayoutError::CounterBackwards { .. })));
    assert_eq!(gaps, [(0, 89)]);
}

#[test]
fn counter_may_wrap_around() {
    let geometry = Geometry::new(0, 4).unwrap();
    let memory = OwnedWords::zeroed(geometry.words());
    counter(&memory).store(u64::MAX - 1, Ordering::Relaxed);
    let mut writer = SimpleWriter::new(memory.share(), geometry).unwrap();
    let mut reader = Reader::from_now(memory, geometry).unwrap();
    for stamp in 0..3 {
        writer.write(&[], || Ticks::from_raw(stamp));
    }
    let mut seen = Vec::new();
    let report = reader.poll(9, |element| {
        seen.push((element.sequence, element.stamp.as_raw()))
    });
    assert_eq!(report.unwrap().missed, 0);
    assert_eq!(seen, [(u64::MAX - 1, 0), (u64::MAX, 1), (0, 2)]);
}

#[test]
fn backwards_counter_is_an_error() {
    let (mut writer, mut reader) = stream(8, 4);
    write(&mut writer, 3);
    read(&mut reader, 9);
    counter(reader.words()).store(1, Ordering::Relaxed);
    let error = reader.poll(9, |_| ()).unwrap_err();
    assert_eq!(error, LayoutError::CounterBackwards { before: 3, now: 1 });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn delivered_and_missed_add_up(
        steps in prop::collection::vec((0_u64..40, 0_usize..40), 1..30),
        power in 1_u32..6,
    ) {
        let (mut writer, mut reader) = stream(8, 1 << power);
        let (mut delivered, mut missed) = (0, 0);
        for (writes, limit) in steps {
            write(&mut writer, writes);
            let (seen, lost) = read(&mut reader, limit);
            delivered += seen.len() as u64;
            missed += lost;
            assert_eq!(delivered + missed, reader.position());
        }
        let (seen, lost) = read(&mut reader, usize::MAX);
        assert_eq!(delivered + missed + lost + seen.len() as u64, writer.count());
    }

    /// The reference: of the positions before the bound, those in the ring are read and the others
    /// are one gap.
    #[test]
    fn bounded_polls_are_those_of_the_reference(
        steps in prop::collection::vec((0_u64..40, 0_u64..2_000), 1..30),
        power in 1_u32..6,
    ) {
        let (mut writer, mut reader) = stream(8, 1 << power);
        for (writes, bound) in steps {
            write(&mut writer, writes);
            let from = reader.position();
            let end = bound.min(writer.count()).max(from);
            let held = writer.count().saturating_sub((1 << power) - 1).clamp(from, end);
            let (seen, gaps) = read_until(&mut reader, bound);
            assert_eq!(seen, (held..end).collect::<Vec<_>>());
            let expected = (held > from).then_some((from, held - from));
            assert_eq!(gaps, expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn arbitrary_memory_never_panics(
        words in prop::collection::vec(any::<u64>(), 640),
        counters in prop::collection::vec(any::<u64>(), 1..8),
        power in 1_u32..5,
        payload in 0_u32..40,
    ) {
        let geometry = Geometry::new(payload, 1 << power).unwrap();
        let memory = OwnedWords::zeroed(geometry.words().max(640));
        for (index, word) in words.into_iter().enumerate() {
            memory.word(index).store(word, Ordering::Relaxed);
        }
        let mut reader = Reader::from_start(memory.share(), geometry).unwrap();
        for value in counters {
            counter(&memory).store(value, Ordering::Relaxed);
            let mut seen = 0;
            if let Ok(report) = reader.poll(usize::MAX, |_| seen += 1) {
                assert_eq!(report.delivered, seen);
                assert!(seen < geometry.capacity());
            }
        }
    }

    /// Any content of the memory, with void elements of lanes.
    #[test]
    fn runs_equal_single_elements(
        words in prop::collection::vec(any::<u64>(), 640),
        counters in prop::collection::vec(0_u64..60, 1..8),
        power in 1_u32..5,
        payload in 0_u32..40,
        is_signed: bool,
        heads: bool,
    ) {
        let geometry = match is_signed {
            true => Geometry::with_writer(payload, 1 << power).unwrap(),
            false => Geometry::new(payload, 1 << power).unwrap(),
        };
        let memory = OwnedWords::zeroed(geometry.words().max(640));
        for (index, word) in words.into_iter().enumerate() {
            memory.word(index).store(word, Ordering::Relaxed);
        }
        let mut single = Reader::from_start(memory.share(), geometry).unwrap();
        let mut whole = Reader::from_start(memory.share(), geometry).unwrap();
        if heads {
            single.heads_only();
            whole.heads_only();
        }
        for value in counters {
            counter(&memory).store(value, Ordering::Relaxed);
            let (mut found, mut in_runs) = (Vec::new(), Vec::new());
            let report = single.poll_until(value, |it| found.push(match it {
                ReadItem::Element(it) => (it.sequence, it.stamp.as_raw(), it.payload.to_vec()),
                ReadItem::Missed { first, count } => (first, count, Vec::new()),
            }));
            let of_runs = whole.poll_runs(value, |it| match it {
                ReadRun::Elements(run) => {
                    let run = run.timed(|stamp| Timestamp::from_monotonic_ns(!stamp.as_raw()));
                    assert!(!run.is_empty());
                    let each = run.sequenced();
                    in_runs.extend(each.map(|(sequence, time, payload)| {
                        (sequence, !time.as_monotonic_ns(), payload.to_vec())
                    }));
                }
                ReadRun::Missed { first, count } => in_runs.push((first, count, Vec::new())),
            });
            assert_eq!(found, in_runs);
            assert_eq!(report, of_runs);
            assert_eq!(single.position(), whole.position());
        }
    }
}
