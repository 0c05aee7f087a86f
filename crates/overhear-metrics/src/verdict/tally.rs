// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a constraint so far: judged cases, offences, and what is uncertain.
//!
//! A gap may become known after an offence that it excuses: the missing answer may be among the
//! missed elements. Such an offence is retracted. The first offences are kept with the gaps that
//! could excuse them; for the others, only the times between which a gap could.
//!
//! An event of which no stream exists is not absent: an offence because of an absent event waits
//! until a stream of this event exists, since before that no element of it can have come. If none
//! ever exists, nothing is known.

use overhear_event::{Gap, Timestamp};

use super::offence::Offence;

/// Offences that are kept one by one.
const REMEMBERED: usize = 64;

/// Offences that wait until a stream of the absent event exists.
const WAITING: usize = 1_024;

/// What could excuse an offence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Excuse {
    /// Nothing: elements prove it.
    None,
    /// A missed element between these times.
    Missed(Timestamp, Timestamp),
    /// A missed element in the measurement with this number.
    Measurement(u64),
    /// A missed element in one of these two measurements.
    Measurements(u64, u64),
}

impl Excuse {
    /// Two cases together: both must be certain.
    pub(super) const fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Measurement(one), Self::Measurement(two)) => Self::Measurements(one, two),
            (Self::None, other) => other,
            (own, _) => own,
        }
    }
}

/// Events of a demand of which no element came: the index of the first one, and their number; after
/// the last index follows the first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absent {
    pub(super) first: usize,
    pub(super) count: usize,
    /// Number of events of the demand.
    pub(super) of: usize,
}

impl Absent {
    fn indices(self) -> impl Iterator<Item = usize> {
        (self.first..self.first + self.count).map(move |index| index % self.of)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Judged cases: values, distances, windows, answers.
    pub(super) judged: u64,
    /// Offences that stand: all, and the kept ones.
    standing: Vec<(Offence, Excuse)>,
    further: u64,
    /// Times between which a gap could excuse one of the offences that are not kept; `None` if one
    /// of them cannot be excused.
    further_hull: Option<(Timestamp, Timestamp)>,
    further_is_certain: bool,
    /// Retracted offences.
    pub(super) retracted: u64,
    /// Missed elements of its events.
    pub(super) missed: u64,
    /// Those of them that a budget left out.
    pub(super) left_out: u64,
    /// Elements of its events that a budget left out, if it judges a sample.
    pub(super) sampled_out: u64,
    /// Orders and deadlines within the clock error.
    pub(super) uncertain: u64,
    /// Cases that a gap excused before they were judged, and measurements with missed elements.
    pub(super) excused: u64,
    /// Elements for whose group there was no room.
    pub(super) refused: u64,
    /// Time from which on a stream of its events is unreadable.
    cut: Option<Timestamp>,
    /// Indexed by event of the demand: whether a stream of it exists; false beyond the end.
    has_stream: Vec<bool>,
    /// Offences because of an absent event of which no stream exists yet.
    waiting: Vec<(Absent, Offence, Excuse)>,
    /// Offences that the judge has not got yet.
    pub(super) fresh: Vec<Offence>,
}

impl Tally {
    /// Counts an offence.
    pub(super) fn offend(&mut self, offence: Offence, excuse: Excuse) {
        if matches!(excuse, Excuse::Missed(_, to) if self.is_cut_before(to)) {
            self.retracted += 1;
            return;
        }
        self.fresh.push(offence);
        if self.standing.len() < REMEMBERED {
            self.standing.push((offence, excuse));
            return;
        }
        self.further += 1;
        let (from, to) = match excuse {
            Excuse::None => {
                self.further_is_certain = true;
                return;
            }
            Excuse::Missed(from, to) => (from, to),
            Excuse::Measurement(_) | Excuse::Measurements(..) => (offence.begin, offence.end),
        };
        let (begin, end) = self.further_hull.unwrap_or((from, to));
        self.further_hull = Some((begin.min(from), end.max(to)));
    }

    /// Judges that these events did not come, and counts the offence if a stream of one of them
    /// exists.
    pub(super) fn offend_without(&mut self, absent: Absent, offence: Offence, excuse: Excuse) {
        let exists = |index: usize| self.has_stream.get(index) == Some(&true);
        if absent.indices().any(exists) {
            self.judged += 1;
            self.offend(offence, excuse);
        } else if self.waiting.len() < WAITING {
            self.waiting.push((absent, offence, excuse));
        } else {
            self.refused += 1;
        }
    }

    /// A stream of the event with this index exists from now on: no element of it can have come
    /// before.
    pub(super) fn note_stream(&mut self, role: usize) {
        if self.has_stream.len() <= role {
            self.has_stream.resize(role + 1, false);
        }
        if std::mem::replace(&mut self.has_stream[role], true) {
            return;
        }
        for (absent, offence, excuse) in std::mem::take(&mut self.waiting) {
            self.offend_without(absent, offence, excuse);
        }
    }

    /// A stream of its events is unreadable after this time: nothing later is absent, and no later
    /// measurement is certain. Returns whether the constraint was violated and is no longer.
    pub(super) fn cut(&mut self, at: Timestamp) -> bool {
        self.cut = Some(self.cut.map_or(at, |cut| cut.min(at)));
        self.drop(
            |offence, excuse| match excuse {
                Excuse::None => false,
                Excuse::Missed(_, to) => to > at,
                Excuse::Measurement(_) | Excuse::Measurements(..) => offence.end > at,
            },
            |_, to| to > at,
        )
    }

    /// Whether something before this time is unknown.
    pub(super) fn is_cut_before(&self, time: Timestamp) -> bool {
        self.cut.is_some_and(|cut| time > cut)
    }

    pub(super) const fn is_violated(&self) -> bool {
        !self.standing.is_empty() || self.further > 0
    }

    /// Number of offences that stand.
    pub(super) fn offences(&self) -> u64 {
        self.standing.len() as u64 + self.further
    }

    /// The first offence that stands.
    pub(super) fn first(&self) -> Option<&Offence> {
        self.standing.first().map(|(offence, _)| offence)
    }

    /// Elements of an event were missed whose absence is an offence. Returns whether the constraint
    /// was violated and is no longer.
    pub(super) fn retract(&mut self, gap: &Gap) -> bool {
        let overlaps = |from: Timestamp, to: Timestamp| gap.from < to && gap.to > from;
        let excused = |excuse| matches!(excuse, Excuse::Missed(from, to) if overlaps(from, to));
        self.waiting.retain(|(.., excuse)| !excused(*excuse));
        self.drop(|_, excuse| excused(excuse), overlaps)
    }

    /// Elements were missed in a measurement that was judged already.
    pub(super) fn retract_measurement(&mut self, number: u64, gap: &Gap) -> bool {
        self.drop(
            |_, excuse| match excuse {
                Excuse::Measurement(of) => of == number,
                Excuse::Measurements(one, two) => one == number || two == number,
                _ => false,
            },
            |from, to| gap.from < to && gap.to > from,
        )
    }

    fn drop(
        &mut self,
        excused: impl Fn(&Offence, Excuse) -> bool,
        further: impl Fn(Timestamp, Timestamp) -> bool,
    ) -> bool {
        let was_violated = self.is_violated();
        let before = self.standing.len();
        self.standing
            .retain(|(offence, excuse)| !excused(offence, *excuse));
        self.retracted += (before - self.standing.len()) as u64;
        let hull = self.further_hull.filter(|_| !self.further_is_certain);
        if hull.is_some_and(|(from, to)| further(from, to)) {
            self.retracted += self.further;
            (self.further, self.further_hull) = (0, None);
        }
        was_violated && !self.is_violated()
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Gap, GapCause, StreamId, Timestamp};

    use super::{Excuse, Tally, REMEMBERED};
    use crate::verdict::{Offence, OffenceKind};

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn offence(begin: u64) -> Offence {
        Offence {
            kind: OffenceKind::Happened,
            begin: at(begin),
            end: at(begin + 10),
            task: None,
            elements: [None; 2],
        }
    }

    fn gap(from: u64, to: u64) -> Gap {
        Gap {
            stream: StreamId::from_raw(1),
            first: 0,
            missed: 1,
            from: at(from),
            to: at(to),
            cause: GapCause::Overwritten,
        }
    }

    #[test]
    fn gap_excuses_only_offences_that_it_touches() {
        let mut tally = Tally::default();
        tally.offend(offence(100), Excuse::Missed(at(100), at(110)));
        tally.offend(offence(200), Excuse::Missed(at(200), at(210)));
        assert!(!tally.retract(&gap(110, 200)));
        assert_eq!(tally.offences(), 2);
        assert!(!tally.retract(&gap(90, 105)));
        assert_eq!(tally.first().map(|first| first.begin), Some(at(200)));
        assert!(tally.retract(&gap(205, 300)));
        assert_eq!((tally.offences(), tally.retracted), (0, 2));
        // An offence that elements prove stands.
        tally.offend(offence(400), Excuse::None);
        assert!(!tally.retract(&gap(0, 1_000)));
        assert!(tally.is_violated());
    }

    #[test]
    fn offences_that_are_not_kept_are_excused_together() {
        let mut tally = Tally::default();
        let many = REMEMBERED as u64 + 5;
        for index in 0..many {
            let begin = index * 100;
            tally.offend(offence(begin), Excuse::Missed(at(begin), at(begin + 10)));
        }
        assert_eq!(tally.offences(), many);
        assert!(!tally.retract(&gap(many * 100 - 95, many * 100)));
        assert_eq!(tally.offences(), REMEMBERED as u64);
        assert!(tally.retract(&gap(0, many * 100)));
        assert_eq!(tally.retracted, many);
    }
}
