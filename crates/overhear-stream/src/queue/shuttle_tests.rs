// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shuttle runs the queue with more threads and writes than loom can explore, by random schedules.
//! It does not model weak memory: loom does that.

use std::sync::Arc;
use std::vec::Vec;

use shuttle::thread;

use super::model::{payload, Run, Seen};

const WRITERS: u32 = 4;
const WRITES: u64 = 5;

/// Writers that put, hold, abandon, nest and die, one of each kind, against a reader.
fn race(capacity: u64) {
    let run = Arc::new(Run::new(capacity));
    let (mut reader, mut seen) = (run.reader(), Seen::default());
    let threads: Vec<_> = (1..=WRITERS)
        .map(|tid| {
            let run = run.clone();
            thread::spawn(move || {
                for number in 0..WRITES {
                    let mut taken = run.writer.take().expect("an element is free");
                    taken.fill(&payload(tid, number));
                    match (tid, number) {
                        // The inner element is committed first, and has the name of another thread.
                        (2, 3) => run.write(9, 1),
                        (3, 1 | 4) => {
                            drop(taken);
                            continue;
                        }
                        (4, 4) => {
                            core::mem::forget(taken);
                            return;
                        }
                        _ => {}
                    }
                    taken.commit(tid, || run.stamp());
                }
            })
        })
        .collect();
    for _ in 0..4 {
        seen.poll(&mut reader);
    }
    for thread in threads {
        thread.join().expect("the writer ends");
    }
    // One write was nested, one died.
    let written = u64::from(WRITERS) * WRITES;
    let seen = seen.conclude(&run, reader, written);
    assert!(seen.void <= 2);
    let left: Vec<_> = std::iter::from_fn(|| run.writer.take().ok()).collect();
    assert_eq!(left.len() as u64, capacity - 1, "the dead keeps one");
    left.into_iter().for_each(core::mem::forget);
}

#[test]
fn shuttle_queue_by_random_schedules() {
    shuttle::check_random(|| race(8), 3_000);
}

#[test]
fn shuttle_queue_survives_few_preemptions_at_the_worst_steps() {
    shuttle::check_pct(|| race(8), 3_000, 4);
}
