// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gaps that streams of context switches prove.

use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};
use std::sync::Arc;

use overhear_event::kernel::{Life, Switch, SCHED_SWITCH, TASK_LIFE};
use overhear_event::{
    GapCause, Inbox, Item, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};

use super::{Merge, QueueMemory, Unlimited};
use crate::batch::Released;

/// Switches of CPU 0 and CPU 1 are the streams 1 and 2.
const CPUS: u32 = 2;
const LIVES: u32 = 9;

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

fn id(raw: u32) -> StreamId {
    StreamId::from_raw(raw)
}

fn stream(raw: u32, sensor: &str, schema: TypeSchema) -> Arc<StreamDescriptor> {
    Arc::new(StreamDescriptor {
        capacity: 64,
        ..StreamDescriptor::new(id(raw), Origin::Kernel { cpu: raw - 1 }, sensor, schema)
    })
}

/// The streams of a kernel monitor whose numbers begin with `first`.
fn open(merge: &mut Merge, source: u32, first: u32) {
    merge.begin_source(source);
    for raw in first..first + CPUS {
        merge.open(stream(raw, SCHED_SWITCH, Switch::schema()));
    }
    merge.open(stream(first - 1 + LIVES, TASK_LIFE, Life::schema()));
}

fn merge(room: QueueMemory) -> Merge {
    let mut merge = Merge::with_memory(room);
    open(&mut merge, 0, 1);
    merge.begin_round(at(1_000));
    merge
}

fn switch(prev: u32, next: u32) -> [u8; 24] {
    let flag = |tid, flag| if tid == 0 { 0 } else { flag };
    let switch = Switch {
        prev_tid: prev,
        next_tid: next,
        prev_pid: 7,
        next_pid: 7,
        prev_state: 1,
        flags: flag(prev, Switch::PREV_TRACKED) | flag(next, Switch::NEXT_TRACKED),
        prev_run_ns: Switch::UNKNOWN,
    };
    switch.to_payload()
}

fn put(merge: &mut Merge, stream: u32, sequence: u64, time: u64, (prev, next): (u32, u32)) {
    merge.element(id(stream), sequence, at(time), &switch(prev, next));
}

/// Time or times, stream, sequence, and the number of missing elements with their cause.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Seen {
    Element(u64, u32, u64),
    Gap((u64, u64), u32, u64, u64, GapCause),
}

impl Seen {
    fn of(item: Item<'_>) -> Option<Self> {
        Some(match item {
            Item::Element(element) => Self::Element(
                element.time.as_monotonic_ns(),
                element.stream.id.as_raw(),
                element.sequence,
            ),
            Item::Gap(stream, gap) => {
                assert_eq!(stream.id, gap.stream);
                let times = (gap.from.as_monotonic_ns(), gap.to.as_monotonic_ns());
                Self::Gap(times, gap.stream.as_raw(), gap.first, gap.missed, gap.cause)
            }
            Item::Advance(_) => return None,
            Item::InPlace(_) => unreachable!("not requested"),
        })
    }

    const fn is_gap(&self) -> bool {
        matches!(self, Self::Gap(..))
    }
}

fn release(merge: &mut Merge, until: u64) -> Vec<Seen> {
    let mut seen = Vec::new();
    merge.release(at(until), |item| seen.extend(Seen::of(item)));
    seen
}

const INCONSISTENT: GapCause = GapCause::Inconsistent;

#[test]
fn proof_is_released_before_the_element_in_the_stream_that_lacks_the_switch() {
    for room in [QueueMemory::Growing, QueueMemory::Reserved] {
        let mut merge = merge(room);
        put(&mut merge, 1, 0, 10, (0, 5));
        put(&mut merge, 2, 0, 20, (0, 6));
        put(&mut merge, 2, 1, 30, (6, 0));
        // Thread 5 has left CPU 0 without an element; positions of that stream move.
        put(&mut merge, 2, 2, 40, (0, 5));
        put(&mut merge, 1, 1, 50, (0, 6));
        put(&mut merge, 1, 2, 60, (6, 0));
        let expected = [
            Seen::Element(10, 1, 0),
            Seen::Element(20, 2, 0),
            Seen::Element(30, 2, 1),
            Seen::Gap((10, 40), 1, 1, 1, INCONSISTENT),
            Seen::Element(40, 2, 2),
            Seen::Element(50, 1, 2),
            Seen::Element(60, 1, 3),
        ];
        assert_eq!(release(&mut merge, 1_000), expected, "{room:?}");
        // The positions of gaps that the source counts move, too.
        merge.begin_round(at(2_000));
        merge.gap(id(1), 3, 4, GapCause::Overwritten);
        put(&mut merge, 1, 7, 1_500, (0, 8));
        let expected = [
            Seen::Gap((60, 1_500), 1, 4, 4, GapCause::Overwritten),
            Seen::Element(1_500, 1, 8),
        ];
        assert_eq!(release(&mut merge, 2_000), expected, "{room:?}");
    }
}

#[test]
fn proof_reaches_over_rounds() {
    let mut merge = merge(QueueMemory::Growing);
    put(&mut merge, 1, 0, 10, (0, 5));
    assert_eq!(release(&mut merge, 1_000).len(), 1);
    merge.begin_round(at(2_000));
    put(&mut merge, 2, 0, 1_500, (5, 0));
    let expected = [
        Seen::Gap((10, 1_500), 1, 1, 1, INCONSISTENT),
        Seen::Gap((0, 1_500), 2, 0, 1, INCONSISTENT),
        Seen::Element(1_500, 2, 1),
    ];
    assert_eq!(release(&mut merge, 2_000), expected);
}

#[test]
fn element_by_element_is_released_alike() {
    let mut merge = merge(QueueMemory::Growing);
    put(&mut merge, 1, 0, 10, (0, 5));
    put(&mut merge, 1, 1, 20, (0, 6));
    put(&mut merge, 1, 2, 30, (6, 0));
    let mut seen = Vec::new();
    for enough in [1, 1, 0, 2] {
        let count = std::cell::Cell::new(0);
        merge.release_some(
            at(1_000),
            || count.replace(count.get() + 1) == enough,
            |item| seen.extend(Seen::of(item)),
        );
    }
    let expected = [
        Seen::Element(10, 1, 0),
        Seen::Gap((10, 20), 1, 1, 1, INCONSISTENT),
        Seen::Element(20, 1, 2),
        Seen::Element(30, 1, 3),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn counted_loss_is_not_proven_besides() {
    let mut merge = merge(QueueMemory::Growing);
    put(&mut merge, 1, 0, 10, (0, 5));
    // It was counted, but is released with the next element.
    merge.gap(id(1), 1, 3, GapCause::Nested);
    put(&mut merge, 1, 4, 90, (0, 6));
    put(&mut merge, 2, 0, 20, (0, 5));
    let seen = release(&mut merge, 1_000);
    let gaps: Vec<_> = seen.iter().filter(|seen| seen.is_gap()).collect();
    assert_eq!(gaps, [&Seen::Gap((10, 90), 1, 1, 3, GapCause::Nested)]);
}

#[test]
fn lives_are_used_and_lost_lives_prove_nothing() {
    let life = |kind, tid| Life {
        tid,
        pid: 7,
        parent_tid: 0,
        parent_pid: 0,
        kind,
        code: 0,
        cpu_ns: 0,
        comm: [0; 16],
    };
    let mut merge = merge(QueueMemory::Growing);
    put(&mut merge, 1, 0, 10, (0, 5));
    let exit = life(Life::EXIT, 5).to_payload();
    merge.element(id(LIVES), 0, at(20), &exit);
    put(&mut merge, 1, 1, 30, (0, 6));
    assert!(!release(&mut merge, 500).iter().any(Seen::is_gap));
    merge.gap(id(LIVES), 1, 1, GapCause::Kernel);
    put(&mut merge, 1, 2, 1_500, (0, 5));
    merge.begin_round(at(2_000));
    let gaps = release(&mut merge, 3_000);
    let gaps: Vec<_> = gaps.iter().filter(|seen| seen.is_gap()).collect();
    assert_eq!(
        gaps,
        [&Seen::Gap((20, 1_000), LIVES, 1, 1, GapCause::Kernel)]
    );
}

#[test]
fn monitors_that_track_the_same_thread_do_not_contradict_each_other() {
    let mut merge = merge(QueueMemory::Growing);
    open(&mut merge, 1, 101);
    for (sequence, (prev, next)) in [(0, 5), (5, 0), (0, 5), (5, 0)].into_iter().enumerate() {
        for first in [1, 101] {
            let time = 10 * sequence as u64 + u64::from(first);
            put(&mut merge, first, sequence as u64, time, (prev, next));
        }
    }
    let seen = release(&mut merge, 1_000);
    assert_eq!(seen.len(), 8);
    assert!(!seen.iter().any(Seen::is_gap), "{seen:?}");
}

#[test]
fn streams_of_a_source_that_has_ended_are_given_back() {
    let mut merge = merge(QueueMemory::Growing);
    for round in 1..100 {
        let first = 100 * round;
        open(&mut merge, round, first);
        for raw in [first, first + 1, first - 1 + LIVES] {
            merge.close(id(raw));
        }
        merge.begin_round(at(1_000 * u64::from(round)));
        assert_eq!(release(&mut merge, 1_000 * u64::from(round)), []);
    }
    assert_eq!(merge.watches.len(), 2);
    put(&mut merge, 1, 0, 99_100, (0, 5));
    put(&mut merge, 1, 1, 99_200, (0, 6));
    let seen = release(&mut merge, 100_000);
    assert_eq!(seen[1], Seen::Gap((99_100, 99_200), 1, 1, 1, INCONSISTENT));
}

#[test]
fn proof_after_a_panicking_batch_is_released_later() {
    let mut merge = merge(QueueMemory::Growing);
    put(&mut merge, 1, 0, 10, (0, 5));
    put(&mut merge, 2, 0, 20, (0, 6));
    put(&mut merge, 2, 1, 30, (0, 7));
    let released = catch_unwind(AssertUnwindSafe(|| {
        merge.release_batches(at(1_000), Unlimited, |_: Released<'_>| {
            resume_unwind(Box::new(()));
        });
    }));
    assert!(released.is_err());
    let expected = [
        Seen::Gap((10, 10), 1, 0, 1, GapCause::Late),
        Seen::Gap((20, 20), 2, 0, 1, GapCause::Late),
        Seen::Element(30, 2, 1),
    ];
    // The lost element would have contradicted it: the loss explains the same.
    assert_eq!(release(&mut merge, 1_000), expected);
}
