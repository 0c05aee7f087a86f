// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol of the pool under loom: claims against claims, against the directory, and a reader
//! that polls while a lane changes its owner.

use alloc::sync::Arc;
use core::num::NonZeroU64;

use loom::thread;
use overhear_event::Ticks;

use super::{Claimant, Frame, Lane, LaneClaims};
use crate::control::{ControlLayout, ControlLine};
use crate::reader::Reader;
use crate::shape::LanePool;
use crate::words::OwnedWords;

struct Pool {
    claims: LaneClaims<OwnedWords, OwnedWords>,
    lane: Lane<OwnedWords>,
    control: ControlLine<OwnedWords>,
    words: OwnedWords,
}

/// A pool of one lane with `capacity` slots.
fn pool(capacity: u64) -> Arc<Pool> {
    let shape = LanePool::new(8, capacity, 1).expect("a valid shape");
    let words = OwnedWords::zeroed(shape.bytes() / 8);
    let lines = ControlLayout::new(ControlLayout::lines_of_sensor(1)).expect("a valid layout");
    let control = OwnedWords::zeroed(lines.bytes() / 8);
    let line = || ControlLine::new(control.share(), 0, 1).expect("enough memory");
    let part = words.part(shape.lane_offset(0) / 8, shape.lane().words());
    Arc::new(Pool {
        lane: Lane::new(part.share(), *shape.lane()).expect("enough memory"),
        claims: LaneClaims::new(words, shape, Some(line())).expect("enough memory"),
        control: line(),
        words: part,
    })
}

impl Pool {
    fn claim(&self, tid: u32, number: u64) -> bool {
        let number = NonZeroU64::new(number).expect("not 0");
        let take = |_| self.lane.take(tid);
        self.claims.claim(Claimant { tid, number }, take).is_some()
    }

    fn write(&self, value: u64) {
        let frame = Frame::from_raw(64, 0);
        let stamp = || Ticks::from_raw(value);
        let written = self
            .lane
            .write(frame, |_, _| false, &value.to_ne_bytes(), stamp);
        assert!(written.is_ok(), "nothing nests");
    }

    fn reader(&self) -> Reader<OwnedWords> {
        let geometry = *self.claims.pool().lane();
        Reader::from_start(self.words.share(), geometry).expect("enough memory")
    }
}

/// The values of a poll: intact, and equal to their positions.
fn poll(reader: &mut Reader<OwnedWords>) -> (u64, u64) {
    let report = reader
        .poll(usize::MAX, |element| {
            assert_eq!(element.stamp.as_raw(), element.sequence);
            assert_eq!(element.payload[8..], element.sequence.to_ne_bytes());
        })
        .expect("the counter never goes back");
    (report.delivered, report.missed)
}

#[test]
fn loom_the_last_lane_has_one_owner() {
    loom::model(|| {
        let pool = pool(2);
        let claiming = [1, 2].map(|id| {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.claim(100 + id, u64::from(id)))
        });
        let claimed = claiming.map(|thread| thread.join().expect("the thread ends"));
        assert!(claimed[0] != claimed[1], "one of them has it: {claimed:?}");
    });
}

#[test]
fn loom_a_reclaimed_lane_goes_on_behind_its_last_owner() {
    loom::model(|| {
        let pool = pool(4);
        let mut reader = pool.reader();
        let ending = {
            let pool = Arc::clone(&pool);
            assert!(pool.claim(7, 1));
            thread::spawn(move || {
                pool.write(0);
                // The thread ends, and the directory notices it.
                pool.control.reclaim(0, 1 << 32 | 7);
            })
        };
        let next = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                let claimed = pool.claim(8, 2);
                if claimed {
                    pool.write(1);
                }
                claimed
            })
        };
        let first = poll(&mut reader);
        ending.join().expect("the thread ends");
        let claimed = next.join().expect("the thread ends");
        let rest = poll(&mut reader);
        let sum = first.0 + first.1 + rest.0 + rest.1;
        assert_eq!(sum, 1 + u64::from(claimed));
        assert_eq!(first.1 + rest.1, 0, "nothing was lapped");
    });
}

#[test]
fn loom_lane_with_a_new_owner_is_read_intact_while_lapped() {
    loom::model(|| {
        let pool = pool(2);
        let mut reader = pool.reader();
        assert!(pool.claim(7, 1));
        pool.write(0);
        let handed_over = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                pool.write(1);
                pool.control.reclaim(0, 1 << 32 | 7);
                assert!(pool.claim(8, 2));
                pool.write(2);
            })
        };
        let first = poll(&mut reader);
        handed_over.join().expect("the thread ends");
        let rest = poll(&mut reader);
        assert_eq!(first.0 + first.1 + rest.0 + rest.1, 3);
    });
}

#[test]
fn loom_a_tid_that_comes_back_and_a_late_directory_give_one_owner() {
    loom::model(|| {
        let pool = pool(2);
        // A thread has claimed the lane and ended; the directory noticed its end.
        assert!(pool.claim(7, 1));
        let directory = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.control.reclaim(0, 1 << 32 | 7))
        };
        let same_tid = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.claim(7, 2))
        };
        let other = pool.claim(8, 3);
        directory.join().expect("the thread ends");
        let same_tid = same_tid.join().expect("the thread ends");
        assert!(!(same_tid && other), "two owners");
    });
}
