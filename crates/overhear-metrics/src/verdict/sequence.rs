// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints on the order of events: orders and deadlines.
//!
//! The order of two elements of one stream is certain. That of elements of two streams is certain
//! only if their distance exceeds the error of their time stamps; otherwise the case is
//! uncertain.

use std::collections::VecDeque;

use overhear_event::{Nanos, Timestamp};

use super::groups::{Groups, Hit};
use super::offence::{Offence, OffenceKind};
use super::tally::{Absent, Excuse, Tally};

/// Largest number of events per group that wait for an answer.
const PENDING: usize = 1_024;

/// The second event of a deadline did not come.
const NO_ANSWER: Absent = Absent {
    first: 1,
    count: 1,
    of: 2,
};

#[derive(Debug)]
pub(super) struct OrderGroup {
    /// Index of the event that is due; `None` after a gap, when any may come.
    due: Option<usize>,
    last: Option<(Hit, usize)>,
    suspect: Option<Suspect>,
}

impl Default for OrderGroup {
    /// An order begins with its first event.
    fn default() -> Self {
        Self {
            due: Some(0),
            last: None,
            suspect: None,
        }
    }
}

/// An event that came where another was due. It is kept until it is certain that the other one does
/// not follow within the clock error.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    hit: Hit,
    came: usize,
    due: usize,
    before: Option<Hit>,
}

impl Suspect {
    /// Number of events in the order.
    fn convict(&self, of: usize, tally: &mut Tally) {
        let begin = self.before.unwrap_or(self.hit);
        let offence = Offence {
            kind: OffenceKind::OutOfOrder {
                came: self.came,
                due: self.due,
            },
            begin: begin.time,
            end: self.hit.time,
            task: self.hit.task,
            elements: [
                self.before.map(|before| before.position),
                Some(self.hit.position),
            ],
        };
        let since = self.before.map_or(Timestamp::ZERO, |before| before.time);
        let absent = Absent {
            first: self.due,
            count: (self.came + of - self.due) % of,
            of,
        };
        tally.offend_without(absent, offence, Excuse::Missed(since, self.hit.time));
    }

    fn decided_at(&self) -> Timestamp {
        self.hit.time.plus(self.hit.margin)
    }
}

/// Events that come in a cycle.
#[derive(Debug)]
pub(super) struct Orders {
    groups: Groups<OrderGroup>,
    length: usize,
    // Missed elements may be the first ones of groups that are not known yet.
    begins_missed: bool,
}

impl Orders {
    pub(super) fn new(length: usize) -> Self {
        Self {
            groups: Groups::default(),
            length,
            begins_missed: false,
        }
    }

    pub(super) fn take(&mut self, role: usize, hit: &Hit, tally: &mut Tally) {
        let length = self.length;
        let may_have_begun = self.begins_missed && !self.groups.contains(hit.group);
        let Some(group) = self.groups.of(hit, tally) else {
            return;
        };
        if may_have_begun {
            group.due = None;
        }
        let is_close = |other: &Hit| {
            let error = hit.error_to(other);
            error > Nanos::ZERO && hit.time.since(other.time) <= error
        };
        if let Some(suspect) = group.suspect.take() {
            if role != suspect.came && is_close(&suspect.hit) {
                tally.uncertain += 1;
                (group.due, group.last) = (None, Some((*hit, role)));
                return;
            }
            suspect.convict(length, tally);
        }
        let last = group.last.replace((*hit, role));
        let is_uncertain = last.is_some_and(|(last, of)| of != role && is_close(&last));
        let due = group.due.replace((role + 1) % length);
        let Some(due) = due else { return };
        if is_uncertain {
            tally.uncertain += 1;
            if due != role {
                group.due = None;
            }
        } else if due == role {
            tally.judged += 1;
        } else {
            let suspect = Suspect {
                hit: *hit,
                came: role,
                due,
                before: last.map(|(last, _)| last),
            };
            if hit.margin == Nanos::ZERO {
                suspect.convict(length, tally);
            } else {
                group.suspect = Some(suspect);
                self.groups.arm(hit.group, suspect.decided_at());
            }
        }
    }

    pub(super) fn expire(&mut self, now: Timestamp, tally: &mut Tally) {
        let length = self.length;
        self.groups.expire(now, |group| {
            let suspect = group.suspect?;
            if suspect.decided_at() >= now {
                return Some(suspect.decided_at());
            }
            group.suspect = None;
            suspect.convict(length, tally);
            None
        });
    }

    /// A missed element may be the event that was due, or the first of a group, which ends with its
    /// owner.
    pub(super) fn gap(&mut self, only: Option<u64>, owner: Option<u32>, tally: &mut Tally) {
        match only {
            Some(group) => self.groups.meet(group, owner),
            None => self.begins_missed = true,
        }
        self.groups.each(only, |group| {
            tally.excused += u64::from(group.suspect.take().is_some());
            group.due = None;
        });
    }

    pub(super) fn end(&mut self, task: u32) {
        self.groups.end(task, |group| group.suspect.is_none());
    }
}

#[derive(Clone, Copy, Debug)]
struct Awaited {
    hit: Hit,
    // Elements among which the answer may be were missed.
    is_excused: bool,
}

#[derive(Debug, Default)]
pub(super) struct DeadlineGroup {
    awaited: VecDeque<Awaited>,
    last_answer: Option<Hit>,
}

/// What must follow within a length. One answer answers every question before it.
#[derive(Debug)]
pub(super) struct Deadlines {
    groups: Groups<DeadlineGroup>,
    within: Nanos,
}

impl Deadlines {
    pub(super) fn new(within: Nanos) -> Self {
        Self {
            groups: Groups::default(),
            within,
        }
    }

    fn decided_at(within: Nanos, hit: &Hit) -> Timestamp {
        hit.time.plus(within).plus(hit.margin)
    }

    /// An event that must be followed by another.
    pub(super) fn begin_wait(&mut self, hit: &Hit, tally: &mut Tally) {
        let within = self.within;
        let Some(group) = self.groups.of(hit, tally) else {
            return;
        };
        // Time of an answer that may have come before or after it.
        let crossed = group.last_answer.is_some_and(|answer| {
            let error = hit.error_to(&answer);
            error > Nanos::ZERO && hit.time.since(answer.time) <= error
        });
        if crossed {
            tally.uncertain += 1;
            return;
        }
        if group.awaited.len() >= PENDING {
            tally.refused += 1;
            return;
        }
        group.awaited.push_back(Awaited {
            hit: *hit,
            is_excused: false,
        });
        let first = group.awaited.front().map(|awaited| awaited.hit);
        if let Some(first) = first {
            self.groups.arm(hit.group, Self::decided_at(within, &first));
        }
    }

    /// The event that follows.
    pub(super) fn answer(&mut self, hit: &Hit, tally: &mut Tally) {
        let within = self.within;
        let Some(group) = self.groups.of(hit, tally) else {
            return;
        };
        for awaited in group.awaited.drain(..) {
            let after = hit.time.since(awaited.hit.time);
            let error = hit.error_to(&awaited.hit);
            let is_late = after > within;
            if is_late && awaited.is_excused {
                tally.excused += 1;
                continue;
            }
            let off = after.as_ns().abs_diff(within.as_ns());
            if error > Nanos::ZERO && off <= error.as_ns() {
                tally.uncertain += 1;
                continue;
            }
            tally.judged += 1;
            if is_late {
                let offence = Offence {
                    kind: OffenceKind::TooLate { after, within },
                    begin: awaited.hit.time,
                    end: hit.time,
                    task: awaited.hit.task,
                    elements: [Some(awaited.hit.position), Some(hit.position)],
                };
                tally.offend(
                    offence,
                    Excuse::Missed(awaited.hit.time, awaited.hit.time.plus(within)),
                );
            }
        }
        group.last_answer = Some(*hit);
    }

    pub(super) fn expire(&mut self, now: Timestamp, tally: &mut Tally) {
        let within = self.within;
        self.groups.expire(now, |group| loop {
            let awaited = *group.awaited.front()?;
            let decided = Self::decided_at(within, &awaited.hit);
            if decided >= now {
                return Some(decided);
            }
            group.awaited.pop_front();
            if awaited.is_excused {
                tally.excused += 1;
                continue;
            }
            let begin = awaited.hit.time;
            let offence = Offence {
                kind: OffenceKind::Unanswered { within },
                begin,
                end: begin.plus(within),
                task: awaited.hit.task,
                elements: [Some(awaited.hit.position), None],
            };
            tally.offend_without(NO_ANSWER, offence, Excuse::Missed(begin, decided));
        });
    }

    /// Elements among which the answer may be were missed.
    pub(super) fn gap(&mut self, only: Option<u64>) {
        self.groups.each(only, |group| {
            for awaited in &mut group.awaited {
                awaited.is_excused = true;
            }
        });
    }

    pub(super) fn end(&mut self, task: u32) {
        self.groups.end(task, |group| group.awaited.is_empty());
    }
}
