// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loom explores every interleaving of small runs of the event ring, up to a number of preemptions,
//! and every value that the memory model allows.

use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;

use super::model::{Run, Seen};
use super::WhenFull::{self, Overwrite, Refuse};

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// After `before` events of thread 1, threads 2, 3, ... write this number of events each; the
/// model's own thread consumes meanwhile and afterwards.
fn race(
    preemptions: usize,
    when_full: WhenFull,
    before: u64,
    writes: &'static [u64],
    looks: usize,
) {
    explore(preemptions, move || {
        let run = Arc::new(Run::new(2, when_full));
        let (mut consumer, mut seen) = (run.consumer(), Seen::default());
        let mut written = run.write(1, 0..before);
        let threads: Vec<_> = (2..)
            .zip(writes)
            .map(|(tid, &times)| {
                let run = run.clone();
                thread::spawn(move || run.write(tid, 0..times))
            })
            .collect();
        seen.look_often(&mut consumer, looks);
        for thread in threads {
            written += thread.join().expect("the writer ends");
        }
        let all = before + writes.iter().sum::<u64>();
        match when_full {
            Overwrite => assert_eq!(written, all, "none is refused"),
            Refuse => assert!(written >= all.min(2), "the capacity is used"),
        }
        let seen = seen.conclude(&mut consumer, written);
        match when_full {
            Refuse => assert_eq!(seen.missed, 0, "none is overwritten"),
            Overwrite if all <= 2 => assert_eq!(seen.missed, 0, "all fit"),
            Overwrite => {}
        }
    });
}

#[test]
fn loom_event_ring_two_writers_lose_nothing_that_fits() {
    race(3, Overwrite, 0, &[1, 1], 1);
    race(3, Refuse, 0, &[1, 1], 1);
}

#[test]
fn loom_event_ring_two_writers_overwrite_under_the_consumer() {
    race(2, Overwrite, 1, &[1, 1], 1);
}

#[test]
fn loom_event_ring_consumer_rejects_overwritten_events() {
    race(3, Overwrite, 1, &[2], 1);
    race(2, Overwrite, 2, &[2], 2);
}

#[test]
fn loom_event_ring_two_writers_refuse_until_the_consumer_frees() {
    race(2, Refuse, 1, &[1, 1], 2);
    race(2, Refuse, 2, &[1, 1], 2);
}

#[test]
fn loom_event_ring_freed_slots_are_filled_after_their_copy() {
    race(3, Refuse, 2, &[2], 2);
}

/// A write that is interrupted by another at each of its steps in turn, as by a signal handler,
/// while the consumer reads.
fn nest(when_full: WhenFull, inner: u64) {
    for step in 0..3 {
        explore(2, move || {
            let run = Arc::new(Run::new(2, when_full));
            let (mut consumer, mut seen) = (run.consumer(), Seen::default());
            let other = run.clone();
            let thread = thread::spawn(move || {
                let mut written = 0;
                let mut interrupt = |at| {
                    if at == step {
                        written = other.write(3, 0..inner);
                    }
                };
                let claimed = other.claim().expect("the ring is empty");
                interrupt(0);
                other.ring.begin(claimed);
                interrupt(1);
                other.fill(claimed, 2, 7);
                interrupt(2);
                other.ring.publish(claimed);
                written + 1
            });
            seen.look_often(&mut consumer, 1);
            let mut written = thread.join().expect("the writer ends");
            // The slot of a write that was late by a lap is usable again.
            while seen.look(&mut consumer, false) {}
            written += run.write(4, 0..2);
            let seen = seen.conclude(&mut consumer, written);
            assert!(
                seen.delivered.ends_with(&[(4, 0), (4, 1)]),
                "the capacity is used"
            );
        });
    }
}

#[test]
fn loom_event_ring_nested_writes_overwrite() {
    nest(Overwrite, 2);
}

#[test]
fn loom_event_ring_nested_writes_are_refused() {
    nest(Refuse, 2);
}

#[test]
fn loom_event_ring_abandoned_event_is_delivered_or_lost() {
    for when_full in [Overwrite, Refuse] {
        explore(3, move || {
            let run = Arc::new(Run::new(2, when_full));
            let (mut consumer, mut seen) = (run.consumer(), Seen::default());
            let claimed = run.claim().expect("the ring is empty");
            let other = run.clone();
            let thread = thread::spawn(move || {
                other.ring.begin(claimed);
                other.fill(claimed, 2, 0);
                other.ring.publish(claimed);
            });
            let mut written = 1 + run.write(3, 0..1);
            // At least one is delivered, the other one abandoned or delivered.
            while seen.look(&mut consumer, true) {}
            assert!(seen.delivered.contains(&(3, 0)));
            // One slot may still belong to the late writer.
            written += run.write(3, 1..3);
            while seen.look(&mut consumer, true) {}
            thread.join().expect("the writer ends");
            written += run.write(3, 3..5);
            let seen = seen.conclude(&mut consumer, written);
            assert!(
                seen.delivered.ends_with(&[(3, 3), (3, 4)]),
                "the capacity is used"
            );
        });
    }
}

#[test]
fn loom_event_ring_late_owner_and_two_that_void_its_slot() {
    explore(2, || {
        let run = Arc::new(Run::new(2, Overwrite));
        let claimed = run.claim().expect("the ring is empty");
        run.ring.begin(claimed);
        run.fill(claimed, 1, 0);
        let threads = [2, 3].map(|tid| {
            let run = run.clone();
            thread::spawn(move || run.write(tid, 0..2))
        });
        run.ring.publish(claimed);
        let mut written = 1;
        for thread in threads {
            written += thread.join().expect("the writer ends");
        }
        // A write is refused where the late owner and the other thread have both slots, or the
        // other thread has voided a position and not yet counted it.
        assert!(written >= 2, "one of the two goes on");
        written += run.write(4, 0..2);
        let seen = Seen::default().conclude(&mut run.consumer(), written);
        assert_eq!(seen.delivered, [(4, 0), (4, 1)], "the capacity is used");
    });
}

#[test]
fn loom_event_ring_reader_passes_void_positions_under_their_writer() {
    explore(2, || {
        let run = Arc::new(Run::new(2, Overwrite));
        let claimed = run.claim().expect("the ring is empty");
        run.ring.begin(claimed);
        let other = run.clone();
        // Position 1, and 3 after the void position 2.
        let thread = thread::spawn(move || other.write(2, 0..2));
        let (mut consumer, mut seen) = (run.consumer(), Seen::default());
        for _ in 0..3 {
            seen.look(&mut consumer, true);
        }
        run.fill(claimed, 1, 0);
        run.ring.publish(claimed);
        let written = 1 + thread.join().expect("the writer ends");
        assert_eq!(written, 3, "none is refused");
        let _ = seen.conclude(&mut consumer, written);
    });
}

#[test]
fn loom_event_ring_observer_counts_exactly_beside_the_consumer() {
    for when_full in [Overwrite, Refuse] {
        explore(2, move || {
            let run = Arc::new(Run::new(2, when_full));
            let written = run.write(1, 0..2);
            let other = run.clone();
            let writer = thread::spawn(move || other.write(2, 0..1));
            let mut consumer = run.consumer();
            let reader = thread::spawn(move || {
                let mut seen = Seen::default();
                seen.look_often(&mut consumer, 1);
                (consumer, seen)
            });
            let (mut observer, mut watched) = (run.observer(), Seen::default());
            watched.look_often(&mut observer, 1);
            let (mut consumer, seen) = reader.join().expect("the consumer ends");
            let written = written + writer.join().expect("the writer ends");
            let _ = seen.conclude(&mut consumer, written);
            let _ = watched.conclude(&mut observer, written);
        });
    }
}
