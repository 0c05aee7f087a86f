// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loom explores every interleaving of small runs of the queue, up to a number of preemptions, and
//! every value that the memory model allows.

use std::vec::Vec;

use loom::sync::Arc;
use loom::thread;

use super::model::{Run, Seen};
use super::{QueuePos, TAIL_WORD};
use crate::sync::Ordering;
use crate::words::Words;

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// After `before` elements of thread 1, threads 2, 3, ... write this number of elements each; the
/// model's own thread polls meanwhile and afterwards.
fn race(preemptions: usize, before: u64, writes: &'static [u64], polls: usize) {
    explore(preemptions, move || {
        let run = Arc::new(Run::new(2));
        run.write(1, before);
        let (mut reader, mut seen) = (run.reader(), Seen::default());
        let threads: Vec<_> = (2..)
            .zip(writes)
            .map(|(tid, &times)| {
                let run = run.clone();
                thread::spawn(move || run.write(tid, times))
            })
            .collect();
        (0..polls).for_each(|_| seen.poll(&mut reader));
        for thread in threads {
            thread.join().expect("the writer ends");
        }
        let written = before + writes.iter().sum::<u64>();
        let _ = seen.conclude(&run, reader, written);
    });
}

#[test]
fn loom_queue_two_enqueue() {
    race(3, 0, &[1, 1], 0);
}

#[test]
fn loom_queue_is_not_empty_while_as_many_write_as_it_holds() {
    race(2, 0, &[2, 1], 0);
}

#[test]
fn loom_queue_reader_rejects_overwritten_elements() {
    race(3, 1, &[2], 1);
}

#[test]
fn loom_queue_reader_sees_no_count_go_back() {
    race(2, 0, &[3], 1);
}

#[test]
fn loom_queue_reader_against_two() {
    race(2, 1, &[1, 1], 1);
}

#[test]
fn loom_queue_two_dequeue() {
    explore(3, || {
        let run = Arc::new(Run::new(2));
        let other = run.clone();
        let thread = thread::spawn(move || {
            let taken = other.writer.take().expect("an element is free");
            let element = taken.element;
            core::mem::forget(taken);
            element
        });
        let mine = run.writer.take().expect("an element is free");
        let theirs = thread.join().expect("the thread ends");
        assert_ne!(mine.element, theirs, "an element has one owner");
        assert!(run.writer.take().is_err(), "none is left");
        assert_eq!(run.writer.lost_full(), 1);
    });
}

#[test]
fn loom_queue_goes_on_without_a_dead_writer() {
    explore(2, || {
        let run = Arc::new(Run::new(4));
        core::mem::forget(run.writer.take().expect("an element is free"));
        let other = run.clone();
        let thread = thread::spawn(move || other.write(2, 1));
        run.write(1, 1);
        thread.join().expect("the writer ends");
        let seen = Seen::default().conclude(&run, run.reader(), 2);
        assert_eq!(seen.missed, 0);
    });
}

#[test]
fn loom_queue_head_is_helped() {
    explore(2, || {
        let run = Arc::new(Run::new(4));
        run.die_before_advancing(3);
        let (mut reader, mut seen) = (run.reader(), Seen::default());
        let other = run.clone();
        let thread = thread::spawn(move || other.write(2, 1));
        seen.poll(&mut reader);
        assert_eq!(seen.delivered[0], (3, 0), "published although head lags");
        run.write(1, 1);
        thread.join().expect("the writer ends");
        let _ = seen.conclude(&run, reader, 3);
    });
}

#[test]
fn loom_queue_with_a_lagging_head_is_not_empty() {
    // One of two elements is free, the other was enqueued by a thread that died before it moved
    // `head`. Two threads need both, so one of them must find it after the lagging `head`.
    explore(3, || {
        let run = Arc::new(Run::new(2));
        run.die_before_advancing(3);
        let other = run.clone();
        let thread = thread::spawn(move || other.write(2, 1));
        run.write(1, 1);
        thread.join().expect("the writer ends");
        let words = run.writer.words();
        let tail = QueuePos(words.word(TAIL_WORD).load(Ordering::Relaxed));
        assert_eq!(tail.position(), 3, "three were taken, none twice");
        let _ = Seen::default().conclude(&run, run.reader(), 3);
    });
}

#[test]
fn loom_queue_with_a_lagging_head_is_read_while_overwritten() {
    // One of two elements is dead. The other was enqueued by a thread that died after that, and is
    // dequeued while the reader copies it.
    explore(3, || {
        let run = Arc::new(Run::new(2));
        core::mem::forget(run.writer.take().expect("an element is free"));
        run.die_before_advancing(3);
        let (mut reader, mut seen) = (run.reader(), Seen::default());
        let other = run.clone();
        let thread = thread::spawn(move || other.write(1, 1));
        seen.poll(&mut reader);
        thread.join().expect("the writer ends");
        let _ = seen.conclude(&run, reader, 2);
    });
}

#[test]
fn loom_queue_abandoned_elements_are_void() {
    explore(2, || {
        let run = Arc::new(Run::new(2));
        let other = run.clone();
        let thread = thread::spawn(move || drop(other.writer.take().expect("an element is free")));
        run.write(1, 1);
        thread.join().expect("the writer ends");
        let seen = Seen::default().conclude(&run, run.reader(), 2);
        assert_eq!((seen.delivered.len(), seen.void, seen.missed), (1, 1, 0));
    });
}
