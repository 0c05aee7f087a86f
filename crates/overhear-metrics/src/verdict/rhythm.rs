// SPDX-License-Identifier: MIT OR Apache-2.0
//! Constraints on the times of events: rates, periods, absences.
//!
//! A window begins after an element and ends with its length. So the windows of all elements are
//! judged, not those of a fixed grid. An event that is due and does not come is decided as soon as
//! nothing older can still come.

use std::collections::VecDeque;

use overhear_event::{Nanos, Timestamp};

use super::groups::{Groups, Hit};
use super::offence::{Offence, OffenceKind};
use super::tally::{Excuse, Tally};

#[derive(Debug, Default)]
pub(super) struct RateGroup {
    /// The newest elements; the first of them has the number `first`.
    hits: VecDeque<Hit>,
    first: u64,
    /// Windows that begin with elements before this number are decided.
    decided: u64,
}

impl RateGroup {
    fn end(&self) -> u64 {
        self.first + self.hits.len() as u64
    }

    fn hit(&self, number: u64) -> Option<&Hit> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.hits.get(index)
    }
}

/// Bounds on the number of elements in every window of a length.
#[derive(Debug)]
pub(super) struct Rates {
    groups: Groups<RateGroup>,
    window: Nanos,
    at_least: u64,
    at_most: Option<u64>,
}

impl Rates {
    pub(super) fn new(window: Nanos, at_least: Option<u64>, at_most: Option<u64>) -> Self {
        Self {
            groups: Groups::default(),
            window,
            at_least: at_least.unwrap_or(0),
            at_most,
        }
    }

    pub(super) fn take(&mut self, hit: &Hit, tally: &mut Tally) {
        let (window, at_least, at_most) = (self.window, self.at_least, self.at_most);
        let Some(group) = self.groups.of(hit, tally) else {
            return;
        };
        if let Some(bound) = at_most {
            tally.judged += 1;
            let index = group.hits.len().checked_sub(bound as usize);
            let oldest = match bound {
                0 => Some(hit),
                _ => index.and_then(|index| group.hits.get(index)),
            };
            let oldest = oldest.filter(|oldest| hit.time.since(oldest.time) < window);
            if let Some(oldest) = oldest {
                let kind = OffenceKind::TooMany {
                    bound,
                    within: hit.time.since(oldest.time),
                };
                let end = (bound > 0).then_some(hit.position);
                tally.offend(
                    Offence {
                        kind,
                        begin: oldest.time,
                        end: hit.time,
                        task: hit.task,
                        elements: [Some(oldest.position), end],
                    },
                    // More elements can only raise the number.
                    Excuse::None,
                );
            }
        }
        let kept = at_least.max(at_most.unwrap_or(0)).max(1);
        group.hits.push_back(*hit);
        if group.hits.len() as u64 > kept {
            group.hits.pop_front();
            group.first += 1;
        }
        if at_least > 0 {
            // The element completes the window that began that number of elements before it.
            let completed = group.end().checked_sub(1 + at_least);
            if let Some(number) = completed.filter(|&number| number >= group.decided) {
                tally.judged += 1;
                group.decided = number + 1;
            }
            let due = group.hit(group.decided).map(|hit| hit.time.plus(window));
            if let Some(due) = due {
                self.groups.arm(hit.group, due);
            }
        }
    }

    pub(super) fn expire(&mut self, now: Timestamp, tally: &mut Tally) {
        let (window, bound) = (self.window, self.at_least);
        self.groups.expire(now, |group| loop {
            let begin = *group.hit(group.decided)?;
            let end = begin.time.plus(window);
            if end >= now {
                return Some(end);
            }
            tally.judged += 1;
            let later = group
                .hits
                .iter()
                .filter(|hit| hit.position != begin.position);
            let count = later
                .filter(|hit| hit.time > begin.time && hit.time <= end)
                .count();
            group.decided += 1;
            let kind = OffenceKind::TooFew {
                count: count as u64,
                bound,
                window,
            };
            tally.offend(
                Offence {
                    kind,
                    begin: begin.time,
                    end,
                    task: begin.task,
                    elements: [Some(begin.position), None],
                },
                Excuse::Missed(begin.time, end),
            );
        });
    }

    /// Windows that are open when elements are missed are not judged.
    pub(super) fn gap(&mut self, only: Option<u64>, tally: &mut Tally) {
        self.groups.each(only, |group| {
            tally.excused += group.end() - group.decided.min(group.end());
            group.decided = group.end();
        });
    }

    /// Nothing more comes from a task that has ended.
    pub(super) fn end(&mut self, task: u32) {
        self.groups.end(task, |_| true);
    }
}

#[derive(Debug, Default)]
pub(super) struct DistanceGroup {
    last: Option<Hit>,
    // That the next element is late was reported already.
    is_late: bool,
}

/// Bounds on the distance of neighbouring elements.
#[derive(Debug)]
pub(super) struct Distances {
    groups: Groups<DistanceGroup>,
    least: Nanos,
    most: Nanos,
}

impl Distances {
    pub(super) fn new(least: Nanos, most: Nanos) -> Self {
        Self {
            groups: Groups::default(),
            least,
            most,
        }
    }

    pub(super) fn take(&mut self, hit: &Hit, tally: &mut Tally) {
        let (bound, most) = (self.least, self.most);
        let Some(group) = self.groups.of(hit, tally) else {
            return;
        };
        if let Some(last) = group.last.filter(|_| !group.is_late) {
            tally.judged += 1;
            let distance = hit.time.since(last.time);
            if distance < bound {
                let offence = Offence {
                    kind: OffenceKind::TooClose { distance, bound },
                    begin: last.time,
                    end: hit.time,
                    task: hit.task,
                    elements: [Some(last.position), Some(hit.position)],
                };
                // Another element between them would be closer still.
                tally.offend(offence, Excuse::None);
            }
        }
        (group.last, group.is_late) = (Some(*hit), false);
        self.groups.arm(hit.group, hit.time.plus(most));
    }

    pub(super) fn expire(&mut self, now: Timestamp, tally: &mut Tally) {
        let bound = self.most;
        self.groups.expire(now, |group| {
            let last = group.last.filter(|_| !group.is_late)?;
            let due = last.time.plus(bound);
            if due >= now {
                return Some(due);
            }
            tally.judged += 1;
            group.is_late = true;
            let offence = Offence {
                kind: OffenceKind::Absent { bound },
                begin: last.time,
                end: due,
                task: last.task,
                elements: [Some(last.position), None],
            };
            tally.offend(offence, Excuse::Missed(last.time, due));
            None
        });
    }

    /// A distance across a gap is not judged.
    pub(super) fn gap(&mut self, only: Option<u64>, tally: &mut Tally) {
        self.groups.each(only, |group| {
            let open = group.last.take().filter(|_| !group.is_late);
            tally.excused += u64::from(open.is_some());
        });
    }

    /// Nothing more comes from a task that has ended.
    pub(super) fn end(&mut self, task: u32) {
        self.groups.end(task, |_| true);
    }
}
