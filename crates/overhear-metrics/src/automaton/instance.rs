// SPDX-License-Identifier: MIT OR Apache-2.0
//! The automaton of one task: its state, and the measurement that is running.

use overhear_event::{Gap, Nanos, Timestamp};

use super::measurement::{Intermediate, Missed, Position};
use super::metric::Metric;
use super::specification::StateKind;

/// The stretch of states that is a segment, or may become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stretch {
    /// Outside.
    None,
    /// Of `in` states, perhaps begun by `cond` states.
    Segment(Timestamp),
    /// Of `cond` states alone.
    Pending(Timestamp),
}

/// Which element is input, and for when it speaks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    /// The time of the symbol.
    pub(super) time: Timestamp,
    /// Counts all elements of the alphabet: names the present one.
    pub(super) ordinal: u64,
    /// Where the element stands.
    pub(super) element: Position,
}

/// An element as the instances see it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    /// Which one.
    pub(super) moment: Moment,
    /// Its source.
    pub(super) source: usize,
    /// Elements per source so far, the present one included.
    pub(super) seen: &'a [u64],
}

/// Counters of one source.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Own elements, ever.
    own: u64,
    /// Both counters when the stretch began, its first element included.
    opened: Intermediate,
}

/// The automaton of one task.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) task: u32,
    pub(super) state: u16,
    /// Its place in the list of those that heed others in this state.
    pub(super) member: u32,
    /// The element that it has seen as its own last.
    own_ordinal: u64,
    /// When the measurement began.
    begin: Option<(Timestamp, Position)>,
    length: Nanos,
    stretch: Stretch,
    /// The element by which the stretch began.
    opened: u64,
    /// The element by which it entered the last state of the stretch.
    entered: u64,
    /// The time of the last change, so that times that are told late do not go back.
    changed: Timestamp,
    pub(super) key: Option<u64>,
    /// The element that gave the key.
    keyed: u64,
    counts: Box<[Count]>,
    totals: Box<[Intermediate]>,
    pub(super) missed: Missed,
}

/// A measurement as it is when its end is entered.
pub(super) struct Finished<'a> {
    pub(super) begin: Timestamp,
    pub(super) end: Timestamp,
    pub(super) begin_at: Position,
    pub(super) end_at: Position,
    pub(super) length: Nanos,
    pub(super) key: Option<u64>,
    pub(super) intermediate: &'a [Intermediate],
    pub(super) missed: &'a Missed,
}

impl Instance {
    pub(super) fn new(sources: usize) -> Self {
        Self {
            task: 0,
            state: 0,
            member: 0,
            own_ordinal: 0,
            begin: None,
            length: Nanos::ZERO,
            stretch: Stretch::None,
            opened: 0,
            entered: 0,
            changed: Timestamp::ZERO,
            key: None,
            keyed: 0,
            counts: vec![Count::default(); sources].into(),
            totals: vec![Intermediate::default(); sources].into(),
            missed: Missed::default(),
        }
    }

    /// The automaton of a task that has not been named before: what a stranger's automaton has
    /// become by the elements that name others.
    pub(super) fn introduce(&self, task: u32) -> Self {
        Self {
            task,
            ..self.clone()
        }
    }

    pub(super) const fn measures(&self) -> bool {
        self.begin.is_some()
    }

    /// Whether a stranger's automaton could take its place unnoticed.
    pub(super) fn is_like(&self, stranger: &Self) -> bool {
        self.state == stranger.state && self.begin.is_none() && stranger.begin.is_none()
    }

    /// Counts an element of this source as its own, once.
    #[inline]
    pub(super) fn count_own(&mut self, source: usize, ordinal: u64) {
        if self.own_ordinal != ordinal {
            self.own_ordinal = ordinal;
            let count = &mut self.counts[source];
            count.own += 1;
            // The element that opened the stretch is not one of its own, even if that it belongs to
            // the task shows only by a later symbol.
            count.opened.own += u64::from(self.opened == ordinal);
        }
    }

    /// Takes the newest value of the key.
    pub(super) fn set_key(&mut self, key: Option<u64>, ordinal: u64) {
        (self.key, self.keyed) = (key, ordinal);
    }

    /// Enters this state by the input, and those behind it by lambda transitions.
    #[inline]
    pub(super) fn go(
        &mut self,
        metric: &Metric,
        mut next: u16,
        input: &Input<'_>,
        report: &mut impl FnMut(&Finished<'_>),
    ) {
        // A begin may be told late, and lie before the end of the last measurement.
        let now = match metric.kind(next) {
            StateKind::Begin => input.moment.time,
            _ => input.moment.time.max(self.changed),
        };
        self.changed = now;
        loop {
            self.enter(metric.kind(next), now, input, report);
            self.state = next;
            match metric.lambda(next) {
                Some(further) => next = further,
                None => return,
            }
        }
    }

    #[inline]
    fn enter(
        &mut self,
        kind: StateKind,
        now: Timestamp,
        input: &Input<'_>,
        report: &mut impl FnMut(&Finished<'_>),
    ) {
        // A stretch ends where a state of another kind begins; only `cond` turns into `in`.
        match (kind, self.stretch) {
            (StateKind::In, Stretch::Segment(_)) | (StateKind::Cond, Stretch::Pending(_)) => {}
            (StateKind::In, Stretch::Pending(since)) => self.stretch = Stretch::Segment(since),
            (_, Stretch::Segment(since)) => self.close(since, now, input),
            (_, Stretch::Pending(_)) => self.stretch = Stretch::None,
            (_, Stretch::None) => {}
        }
        match kind {
            StateKind::Begin => {
                self.begin = Some((now, input.moment.element));
                self.length = Nanos::ZERO;
                for total in &mut self.totals {
                    *total = Intermediate::default();
                }
                if self.missed.count > 0 {
                    self.missed = Missed::default();
                }
                if self.keyed != input.moment.ordinal {
                    self.key = None;
                }
            }
            StateKind::In | StateKind::Cond => {
                if self.stretch == Stretch::None {
                    self.open(kind, now, input);
                }
                self.entered = input.moment.ordinal;
            }
            StateKind::Out => {}
            StateKind::Cancel => self.begin = None,
            StateKind::End => {
                if let Some((begin, begin_at)) = self.begin.take() {
                    report(&Finished {
                        begin,
                        end: now,
                        begin_at,
                        end_at: input.moment.element,
                        length: self.length,
                        key: self.key,
                        intermediate: &self.totals,
                        missed: &self.missed,
                    });
                }
            }
        }
    }

    fn open(&mut self, kind: StateKind, now: Timestamp, input: &Input<'_>) {
        for (count, &all) in self.counts.iter_mut().zip(input.seen) {
            count.opened = Intermediate {
                all,
                own: count.own,
            };
        }
        self.opened = input.moment.ordinal;
        self.stretch = match kind {
            StateKind::In => Stretch::Segment(now),
            _ => Stretch::Pending(now),
        };
    }

    /// Adds a segment. The element that leaves it is not one of its own unless it has entered a
    /// state of the segment before.
    fn close(&mut self, since: Timestamp, now: Timestamp, input: &Input<'_>) {
        self.stretch = Stretch::None;
        self.length = self.length.plus(now.since(since));
        let leaves = self.entered != input.moment.ordinal;
        let counts = self.counts.iter().zip(input.seen);
        for (source, (total, (count, &all))) in self.totals.iter_mut().zip(counts).enumerate() {
            let leaving = u64::from(leaves && source == input.source);
            let leaving_own = u64::from(leaving == 1 && self.own_ordinal == input.moment.ordinal);
            total.all += all - count.opened.all - leaving;
            total.own += count.own - count.opened.own - leaving_own;
        }
    }

    /// Elements that it might have needed are missing: a measurement is incomplete, and without
    /// one it is not known where the task is.
    pub(super) fn miss(&mut self, gap: &Gap) {
        if self.measures() {
            self.missed.add(gap);
        } else {
            self.state = 0;
        }
    }
}
