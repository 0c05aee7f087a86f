// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of released items, for any order of arrival.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;

use overhear_event::{
    FieldKind, GapCause, Inbox, Item, Origin, Run, StreamDescriptor, StreamId, Timestamp,
    TypeSchema,
};
use proptest::prelude::{prop, prop_assert_eq, proptest, ProptestConfig};

use super::{Merge, QueueMemory, Unlimited, MAX_AHEAD};

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

fn id(raw: u32) -> StreamId {
    StreamId::from_raw(raw)
}

fn merge(streams: u32) -> Merge {
    merge_in(QueueMemory::Growing, streams)
}

fn merge_in(room: QueueMemory, streams: u32) -> Merge {
    let schema = TypeSchema::builder("t")
        .field("value", FieldKind::U64, "")
        .build()
        .unwrap();
    let schema = Arc::new(schema);
    let mut merge = Merge::with_memory(room);
    for raw in 1..=streams {
        merge.open(Arc::new(StreamDescriptor {
            capacity: 8,
            ..StreamDescriptor::new(
                id(raw),
                Origin::Kernel { cpu: raw },
                "t",
                Arc::clone(&schema),
            )
        }));
    }
    merge
}

fn put(merge: &mut Merge, stream: u32, sequence: u64, time: u64) {
    merge.element(id(stream), sequence, at(time), &(time * 3).to_ne_bytes());
}

#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Element(u64, u32, u64),
    Gap {
        stream: u32,
        first: u64,
        missed: u64,
        from: u64,
        to: u64,
        cause: GapCause,
    },
    Advance(u64),
}

impl Seen {
    fn of(item: Item<'_>) -> Self {
        match item {
            Item::InPlace(_) => unreachable!("not requested"),
            Item::Element(e) => {
                let time = e.time.as_monotonic_ns();
                assert_eq!(e.payload, (time * 3).to_ne_bytes());
                Self::Element(time, e.stream.id.as_raw(), e.sequence)
            }
            Item::Gap(_, gap) => Self::Gap {
                stream: gap.stream.as_raw(),
                first: gap.first,
                missed: gap.missed,
                from: gap.from.as_monotonic_ns(),
                to: gap.to.as_monotonic_ns(),
                cause: gap.cause,
            },
            Item::Advance(time) => Self::Advance(time.as_monotonic_ns()),
        }
    }
}

fn release(merge: &mut Merge, until: u64) -> Vec<Seen> {
    let mut seen = Vec::new();
    merge.release(at(until), |item| seen.push(Seen::of(item)));
    seen
}

#[test]
fn equal_times_are_ordered_by_stream_then_sequence() {
    let mut merge = merge(2);
    merge.begin_round(at(100));
    put(&mut merge, 2, 0, 10);
    put(&mut merge, 1, 0, 10);
    put(&mut merge, 1, 1, 10);
    put(&mut merge, 2, 1, 11);
    put(&mut merge, 1, 2, 50);
    let seen = release(&mut merge, 50);
    let element = Seen::Element;
    let expected = [
        element(10, 1, 0),
        element(10, 1, 1),
        element(10, 2, 0),
        element(11, 2, 1),
    ];
    assert_eq!(seen[..4], expected);
    assert_eq!(seen[4..], [Seen::Advance(50)]);
    assert_eq!(release(&mut merge, 51)[0], element(50, 1, 2));
}

#[test]
fn gap_ends_with_the_next_element_or_with_its_round() {
    let mut merge = merge(2);
    merge.begin_round(at(100));
    put(&mut merge, 1, 0, 10);
    merge.gap(id(1), 1, 4, GapCause::Overwritten);
    put(&mut merge, 1, 5, 30);
    put(&mut merge, 2, 0, 20);
    merge.gap(id(2), 1, 7, GapCause::Kernel);
    let gap = |stream, first, missed, from, to, cause| Seen::Gap {
        stream,
        first,
        missed,
        from,
        to,
        cause,
    };
    assert_eq!(
        release(&mut merge, 100),
        [
            Seen::Element(10, 1, 0),
            Seen::Element(20, 2, 0),
            gap(1, 1, 4, 10, 30, GapCause::Overwritten),
            Seen::Element(30, 1, 5),
            Seen::Advance(100),
        ]
    );
    // The gap of stream 2 was found at 100; an element with the stamp 90 that was published later
    // moves its end forward.
    merge.begin_round(at(120));
    put(&mut merge, 2, 8, 105);
    assert_eq!(
        release(&mut merge, 101),
        [gap(2, 1, 7, 20, 100, GapCause::Kernel), Seen::Advance(101)]
    );
    assert_eq!(release(&mut merge, 110)[0], Seen::Element(105, 2, 8));
}

#[test]
fn late_disordered_and_future_elements_are_missed_with_their_cause() {
    let mut merge = merge(1);
    merge.begin_round(at(100));
    put(&mut merge, 1, 0, 60);
    release(&mut merge, 80);
    merge.begin_round(at(200));
    put(&mut merge, 1, 1, 70);
    put(&mut merge, 1, 2, 75);
    put(&mut merge, 1, 3, 90);
    put(&mut merge, 1, 4, 85);
    put(&mut merge, 1, 5, 200 + MAX_AHEAD.as_ns() + 1);
    put(&mut merge, 1, 6, 95);
    let causes: Vec<_> = release(&mut merge, 200)
        .into_iter()
        .filter_map(|seen| match seen {
            Seen::Gap { missed, cause, .. } => Some((cause, missed)),
            _ => None,
        })
        .collect();
    assert_eq!(causes, [(GapCause::Late, 2), (GapCause::Corrupt, 2)]);
}

#[test]
fn stamps_in_the_future_cannot_fill_the_memory() {
    let mut merge = merge(1);
    merge.begin_round(at(100));
    let limit = (super::MIN_QUEUE_LIMIT * super::QUEUED_ROUNDS) as u64;
    for sequence in 0..limit + 7 {
        put(&mut merge, 1, sequence, 5_000);
    }
    let (mut delivered, mut missed) = (0, 0);
    for seen in release(&mut merge, u64::MAX) {
        match seen {
            Seen::Element(..) => delivered += 1,
            Seen::Gap {
                missed: count,
                cause: GapCause::Corrupt,
                ..
            } => missed += count,
            _ => {}
        }
    }
    assert_eq!((delivered, missed), (limit, 7));
}

#[test]
fn limited_release_leaves_the_rest_in_order() {
    let mut merge = merge(2);
    merge.begin_round(at(100));
    for (stream, sequence, time) in [(1, 0, 10), (1, 1, 30), (2, 0, 20), (2, 1, 30), (1, 2, 30)] {
        put(&mut merge, stream, sequence, time);
    }
    let mut all = Vec::new();
    let mut advances = Vec::new();
    for _ in 0..4 {
        let calls = std::cell::Cell::new(0);
        let enough = || calls.replace(calls.get() + 1) == 2;
        merge.release_some(at(50), enough, |item| match item {
            Item::InPlace(_) => unreachable!("not requested"),
            Item::Element(element) => {
                all.push((element.stream.id.as_raw(), element.sequence));
            }
            Item::Advance(time) => advances.push(time.as_monotonic_ns()),
            Item::Gap(..) => panic!("there is none"),
        });
    }
    assert_eq!(all, [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1)]);
    assert_eq!(advances, [30, 30, 50, 50]);
}

#[test]
fn closed_streams_go_once_they_are_empty() {
    let mut merge = merge(1);
    merge.begin_round(at(100));
    put(&mut merge, 1, 0, 60);
    merge.close(id(1));
    assert_eq!(release(&mut merge, 50).len(), 1);
    assert_eq!(release(&mut merge, 100).len(), 2);
    put(&mut merge, 1, 1, 150);
    assert_eq!(merge.take_complaints().len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Runs and single elements have the same fate, for any times and any full queue, and elements
    /// that are released together are those that are released one by one.
    #[test]
    fn runs_are_elements_one_after_the_other(
        arrivals in prop::collection::vec(
            (1_u32..4, prop::collection::vec(0_u64..30, 0..40), 0_u64..40, 0..10_u8),
            1..20,
        ),
    ) {
        for room in [QueueMemory::Growing, QueueMemory::Reserved] {
            let (mut by_runs, mut one_by_one) = (merge_in(room, 3), merge_in(room, 3));
            let mut next = [0_u64; 4];
            let mut now = 0;
            for (stream, steps, pause, kind) in &arrivals {
                now += pause;
                let first = next[*stream as usize];
                next[*stream as usize] += steps.len() as u64;
                // Rarely one lies too far ahead, a payload has the wrong size, or a gap comes
                // before it.
                let times: Vec<u64> = steps.iter().map(|step| match (kind, step) {
                    (0, 7) => now + MAX_AHEAD.as_ns() + 1,
                    _ => (now + step).saturating_sub(15),
                }).collect();
                let payload = if *kind == 1 { 7 } else { 8 };
                let mut bytes = Vec::new();
                for merge in [&mut by_runs, &mut one_by_one] {
                    merge.begin_round(at(now));
                    if *kind == 2 {
                        merge.gap(id(*stream), first, 3, GapCause::Nested);
                    }
                }
                for (sequence, &time) in (first..).zip(&times) {
                    let value = &(time * 3).to_ne_bytes();
                    bytes.extend_from_slice(&time.to_ne_bytes());
                    bytes.extend_from_slice(value);
                    one_by_one.element(id(*stream), sequence, at(time), &value[..payload]);
                }
                by_runs.run(id(*stream), &Run::new(first, &bytes, 16, payload));
                let until = at(now.saturating_sub(10));
                let seen = release(&mut by_runs, until.as_monotonic_ns());
                let mut slowly = Vec::new();
                one_by_one.release_some(until, || false, |item| slowly.push(Seen::of(item)));
                prop_assert_eq!(seen, slowly);
            }
            prop_assert_eq!(release(&mut by_runs, u64::MAX), release(&mut one_by_one, u64::MAX));
            prop_assert_eq!(by_runs.memory_bytes(), one_by_one.memory_bytes());
        }
    }

    /// For any order of arrival, the released order is the sorted order of the input, and every
    /// loss has a gap.
    #[test]
    fn order_is_total_whatever_the_arrival(
        arrivals in prop::collection::vec((1_u32..5, 0_u64..40, 0_u64..60), 1..200),
    ) {
        let mut merge = merge(4);
        let mut next = [(0_u64, 0_u64); 5]; // (sequence, time) per stream
        let (mut now, mut seen, mut put_in) = (0, Vec::new(), 0_u64);
        for (stream, step, pause) in arrivals {
            now += pause;
            merge.begin_round(at(now));
            let (sequence, last) = &mut next[stream as usize];
            let time = (*last + step).min(now);
            put(&mut merge, stream, *sequence, time);
            (*sequence, *last) = (*sequence + 1, time.max(*last));
            put_in += 1;
            seen.extend(release(&mut merge, now.saturating_sub(20)));
        }
        seen.extend(release(&mut merge, u64::MAX));
        let mut elements = Vec::new();
        let mut missed = 0;
        for item in seen {
            match item {
                Seen::Element(time, stream, sequence) => elements.push((time, stream, sequence)),
                Seen::Gap { missed: count, .. } => missed += count,
                Seen::Advance(_) => {}
            }
        }
        assert!(elements.is_sorted());
        assert_eq!(elements.len() as u64 + missed, put_in);
    }
}

/// Releases; the sink panics at its element with this number.
fn release_until_panic(merge: &mut Merge, fatal: usize) -> Vec<Seen> {
    let mut seen = Vec::new();
    let released = catch_unwind(AssertUnwindSafe(|| {
        merge.release(at(u64::MAX), |item| {
            seen.push(Seen::of(item));
            if seen.len() == fatal {
                // A panic without a message.
                resume_unwind(Box::new(()));
            }
        });
    }));
    assert!(released.is_err());
    seen
}

#[test]
fn elements_of_a_panic_are_missed_in_the_next_release() {
    let mut merge = merge(2);
    merge.begin_round(at(1_000));
    for number in 0..100 {
        put(&mut merge, 1, number, 10 + 2 * number);
        put(&mut merge, 2, number, 11 + 2 * number);
    }
    // The second batch has the elements 32 to 63 of each stream.
    let seen = release_until_panic(&mut merge, 64 + 4);
    assert_eq!(seen.len(), 64 + 4);
    // More elements arrive before the next release.
    merge.begin_round(at(2_000));
    put(&mut merge, 2, 100, 1_500);
    let mut rest = Vec::new();
    merge.release(at(u64::MAX), |item| rest.push(Seen::of(item)));
    let gap = |stream, from, to| Seen::Gap {
        stream,
        first: 34,
        missed: 30,
        from,
        to,
        cause: GapCause::Late,
    };
    assert_eq!(
        rest[..2],
        [
            gap(1, 10 + 2 * 34, 10 + 2 * 63),
            gap(2, 11 + 2 * 34, 11 + 2 * 63)
        ]
    );
    let elements = rest.iter().filter(|it| matches!(it, Seen::Element(..)));
    assert_eq!(elements.count(), 36 + 36 + 1);
    // Nothing is missed twice.
    let mut again = Vec::new();
    merge.release(at(u64::MAX), |item| again.push(Seen::of(item)));
    assert_eq!(again.len(), 1, "{again:?}");
}

#[test]
fn gap_after_a_panicked_batch_is_released() {
    let mut merge = merge(1);
    merge.begin_round(at(1_000));
    for number in 0..3 {
        put(&mut merge, 1, number, 10 + number);
    }
    merge.gap(id(1), 3, 100, GapCause::Overwritten);
    put(&mut merge, 1, 103, 500);
    let released = catch_unwind(AssertUnwindSafe(|| {
        merge.release_batches(at(u64::MAX), Unlimited, |_| resume_unwind(Box::new(())));
    }));
    assert!(released.is_err());
    let mut seen = Vec::new();
    merge.release(at(u64::MAX), |item| seen.push(Seen::of(item)));
    let missed = seen.iter().filter_map(|it| match it {
        Seen::Gap { missed, cause, .. } => Some((*missed, *cause)),
        _ => None,
    });
    let expected = [(3, GapCause::Late), (100, GapCause::Overwritten)];
    assert_eq!(missed.collect::<Vec<_>>(), expected, "{seen:?}");
    let elements = seen.iter().filter(|it| matches!(it, Seen::Element(..)));
    assert_eq!(elements.count(), 1, "{seen:?}");
}

#[test]
fn all_elements_of_a_panicked_batch_are_missed() {
    let mut merge = merge(1);
    merge.begin_round(at(1_000));
    for number in 0..10 {
        put(&mut merge, 1, number, 10 + number);
    }
    let released = catch_unwind(AssertUnwindSafe(|| {
        merge.release_batches(at(u64::MAX), Unlimited, |_| resume_unwind(Box::new(())));
    }));
    assert!(released.is_err());
    let mut missed = 0;
    merge.release(at(u64::MAX), |item| match Seen::of(item) {
        Seen::Gap { missed: more, .. } => missed += more,
        Seen::Element(..) => panic!("they have left the queue"),
        Seen::Advance(_) => {}
    });
    assert_eq!(missed, 10);
}
