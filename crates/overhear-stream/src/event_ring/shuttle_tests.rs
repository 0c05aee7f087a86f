// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shuttle runs the event ring with more threads and writes than loom can explore, by random
//! schedules. It does not model weak memory: loom does that.

use std::sync::Arc;
use std::vec::Vec;

use shuttle::thread;

use super::model::{Run, Seen};
use super::WhenFull::{self, Overwrite, Refuse};

const WRITERS: u32 = 4;
const WRITES: u64 = 6;

/// Writers that put, nest, are late and die, one of each kind, against a consumer and an observer.
fn race(capacity: u64, when_full: WhenFull) {
    let run = Arc::new(Run::new(capacity, when_full));
    let (mut consumer, mut seen) = (run.consumer(), Seen::default());
    let (mut observer, mut watched) = (run.observer(), Seen::default());
    let threads: Vec<_> = (1..=WRITERS)
        .map(|tid| {
            let run = run.clone();
            thread::spawn(move || {
                let mut written = 0;
                for number in 0..WRITES {
                    let Ok(claimed) = run.claim() else { continue };
                    written += 1;
                    match (tid, number) {
                        (2, 2) => written += run.write(9, 0..3),
                        (3, 3) => thread::yield_now(),
                        (4, 4) => return written,
                        _ => {}
                    }
                    run.ring.begin(claimed);
                    run.fill(claimed, tid, number);
                    run.ring.publish(claimed);
                }
                written
            })
        })
        .collect();
    // Nothing is abandoned yet: a position whose writer is between the two parts of voiding it
    // would count as a lost event.
    for _ in 0..8 {
        seen.look(&mut consumer, false);
        watched.look(&mut observer, false);
    }
    let mut written = 0;
    for thread in threads {
        written += thread.join().expect("the writer ends");
    }
    while seen.look(&mut consumer, true) {}
    while watched.look(&mut observer, true) {}
    let _ = seen.conclude(&mut consumer, written);
    let _ = watched.conclude(&mut observer, written);
    // The dead writer keeps one slot at most.
    let more = run.write(5, 0..capacity - 1);
    assert_eq!(more, capacity - 1);
    assert_eq!(consumer.unread(), run.ring.written() - consumer.position());
}

#[test]
fn shuttle_event_ring_by_random_schedules() {
    for when_full in [Overwrite, Refuse] {
        shuttle::check_random(move || race(4, when_full), 2_000);
    }
}

#[test]
fn shuttle_event_ring_survives_few_preemptions_at_the_worst_steps() {
    for when_full in [Overwrite, Refuse] {
        shuttle::check_pct(move || race(4, when_full), 2_000, 4);
    }
}
