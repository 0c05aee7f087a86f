// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state of a thread while its elements are moved.

use overhear_event::kernel::Wake;
use overhear_event::{Nanos, Timestamp};

/// A time, as recorded and compensated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) at: Timestamp,
    pub(super) moved: Timestamp,
}

impl Point {
    pub(super) const fn delay(self) -> Nanos {
        self.at.since(self.moved)
    }

    /// The time when both have happened: the later recorded time, and the later compensated one.
    pub(super) fn later(self, other: Self) -> Self {
        Self {
            at: self.at.max(other.at),
            moved: self.moved.max(other.moved),
        }
    }
}

/// Number of its newest elements that a thread remembers: an interval can begin at a waking that
/// lies two elements back.
const REMEMBERED: usize = 4;

/// A thread, tracked or not. On a CPU its delay is the CPU's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadDelay {
    pub(super) pid: u32,
    /// Nanoseconds by which its runs have become shorter.
    pub(super) shrunk_ns: i64,
    // The newest elements that concern it, the newest first.
    points: [Point; REMEMBERED],
    count: usize,
    entered: Option<Point>,
    left: Option<Point>,
    // If it was displaced: the time by which its work would be ahead.
    ahead: Option<Nanos>,
    // A waking that has not led to a run; the recorded time is after the cost of the wake-up.
    waking: Option<Point>,
}

impl ThreadDelay {
    /// The compensated time of the newest element that concerns it.
    pub(super) const fn last(&self) -> Timestamp {
        self.points[0].moved
    }

    pub(super) const fn waking(&self) -> Option<Point> {
        self.waking
    }

    pub(super) fn note(&mut self, point: Point) {
        self.points.rotate_right(1);
        self.points[0] = point;
        self.count = (self.count + 1).min(REMEMBERED);
    }

    /// The compensated time of a recorded one.
    pub(super) fn moved(&self, at: Timestamp) -> Timestamp {
        let known = &self.points[..self.count];
        let before = known.iter().find(|point| point.at <= at);
        match before.or(known.last()) {
            Some(point) => at.minus(point.delay()).max(point.moved.min(at)),
            None => at,
        }
    }

    /// Time from which on it could run, if known.
    pub(super) fn ready(&self) -> Option<Point> {
        match (self.left, self.ahead, self.waking) {
            (Some(left), Some(_), _) => Some(left),
            (Some(left), None, Some(waking)) => Some(left.later(waking)),
            (None, _, waking) => waking,
            (Some(_), None, None) => None,
        }
    }

    /// It gets a CPU. Returns the time by which its work is ahead.
    pub(super) fn enter(&mut self, point: Point) -> Nanos {
        self.entered = Some(point);
        self.left = None;
        self.waking = None;
        self.note(point);
        self.ahead.take().unwrap_or_default()
    }

    /// It leaves its CPU: displaced, with its work `ahead` by this time, or voluntarily. Returns
    /// the time by which its run was shorter.
    pub(super) fn leave(&mut self, point: Point, ahead: Option<Nanos>) -> i64 {
        let entered = self.entered.take();
        let less = entered.map_or(0, |entered| shrinkage(entered, point));
        self.shrunk_ns += less;
        self.left = Some(point);
        self.ahead = ahead;
        self.note(point);
        less
    }

    /// Time by which its runs until now have become shorter.
    pub(super) fn shrunk_so_far(&self, now: Point) -> i64 {
        self.shrunk_ns + self.entered.map_or(0, |entered| shrinkage(entered, now))
    }

    /// It is woken by an element with this cost before it can run.
    pub(super) fn wake(&mut self, point: Point, kind: u32, cost: Nanos) {
        self.note(point);
        let behind = Point {
            at: point.at.plus(cost),
            ..point
        };
        let runs = self.left.is_none() && self.entered.is_some();
        match (kind, &mut self.waking) {
            // The waking cancels a sleep that has not begun.
            (Wake::WAKEUP, waking) if runs => *waking = None,
            (Wake::WAKEUP, Some(waking)) => waking.at = waking.at.plus(cost),
            (_, waking) => *waking = Some(behind),
        }
    }
}

fn shrinkage(from: Point, to: Point) -> i64 {
    let length = |to: Timestamp, from: Timestamp| to.since(from).as_ns().cast_signed();
    length(to.at, from.at) - length(to.moved, from.moved)
}
