// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a constraint so far: how much was judged, what offended, what is uncertain.
//!
//! A gap may become known after an offence was found that it excuses: the answer that did not come may
//! be among the elements that were missed. Such an offence is put in doubt. The first offences are
//! remembered with what could excuse them, the others by the times between which something could.
//!
//! What nobody listened for is not absent: an offence that an event has not come waits until a stream of that
//! event is heard, because before that nothing of it can have come. Where none is ever heard, nothing is known.

use overhear_event::{Gap, Timestamp};

use super::offence::Offence;

/// How many offences are remembered one by one.
const REMEMBERED: usize = 64;

/// How many offences wait until the event that did not come is heard.
const WAITING: usize = 1_024;

/// What could excuse an offence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Excuse {
    /// Nothing: elements show it.
    None,
    /// A missed element between these times.
    Missed(Timestamp, Timestamp),
    /// Anything missed in the measurement of this number.
    Measurement(u64),
    /// Anything missed in one of these two measurements.
    Measurements(u64, u64),
}

impl Excuse {
    /// Two instances together: both must be certain.
    pub(super) const fn with(self, other: Self) -> Self {
        match (self, other) {
            (Self::Measurement(one), Self::Measurement(two)) => Self::Measurements(one, two),
            (Self::None, other) => other,
            (own, _) => own,
        }
    }
}

/// Events of a demand of which none has come, by their places: so many from the first on, where the first one
/// follows the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absent {
    pub(super) first: usize,
    pub(super) count: usize,
    /// How many events the demand has.
    pub(super) of: usize,
}

impl Absent {
    fn places(self) -> impl Iterator<Item = usize> {
        (self.first..self.first + self.count).map(move |place| place % self.of)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    /// Instances that were judged: values, distances, windows, answers.
    pub(super) judged: u64,
    /// Offences that stand, those that are remembered and those that are not.
    standing: Vec<(Offence, Excuse)>,
    further: u64,
    /// Between which times something could excuse one of the further offences; `None` if one of them
    /// cannot be excused.
    further_hull: Option<(Timestamp, Timestamp)>,
    further_is_certain: bool,
    /// Offences that were put in doubt.
    pub(super) doubted: u64,
    /// Elements of its events that were missed.
    pub(super) missed: u64,
    /// Orders and deadlines inside the clock error.
    pub(super) uncertain: u64,
    /// Instances that a gap excused before they were judged, and measurements in which something was
    /// missed.
    pub(super) excused: u64,
    /// Elements for whose group there was no room.
    pub(super) refused: u64,
    /// What streams of its events told from this time on cannot be read.
    cut: Option<Timestamp>,
    /// Which of the demand's events were heard, by their places; more of them than are listed were not.
    heard: Vec<bool>,
    /// Offences that an event did not come, which has not been heard yet.
    waiting: Vec<(Absent, Offence, Excuse)>,
    /// Offences that nobody has been told of yet.
    pub(super) fresh: Vec<Offence>,
}

impl Tally {
    /// Counts an offence.
    pub(super) fn offend(&mut self, offence: Offence, excuse: Excuse) {
        if matches!(excuse, Excuse::Missed(_, to) if self.is_cut_before(to)) {
            self.doubted += 1;
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

    /// Judges that these events have not come, and counts the offence if one of them was listened for.
    pub(super) fn offend_without(&mut self, absent: Absent, offence: Offence, excuse: Excuse) {
        let is_heard = |place: usize| self.heard.get(place).is_some_and(|heard| *heard);
        if absent.places().any(is_heard) {
            self.judged += 1;
            self.offend(offence, excuse);
        } else if self.waiting.len() < WAITING {
            self.waiting.push((absent, offence, excuse));
        } else {
            self.refused += 1;
        }
    }

    /// The event at this place of the demand is heard from now on: nothing of it can have come before.
    pub(super) fn hear(&mut self, role: usize) {
        if self.heard.len() <= role {
            self.heard.resize(role + 1, false);
        }
        if std::mem::replace(&mut self.heard[role], true) {
            return;
        }
        for (absent, offence, excuse) in std::mem::take(&mut self.waiting) {
            self.offend_without(absent, offence, excuse);
        }
    }

    /// What a stream of its events told after this time cannot be read: nothing later is absent, and no later
    /// measurement is certain. Returns whether it was violated and is no longer.
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

    /// Whether something is unknown of what lies before this time.
    pub(super) fn is_cut_before(&self, time: Timestamp) -> bool {
        self.cut.is_some_and(|cut| time > cut)
    }

    pub(super) const fn is_violated(&self) -> bool {
        !self.standing.is_empty() || self.further > 0
    }

    /// How many offences stand.
    pub(super) fn offences(&self) -> u64 {
        self.standing.len() as u64 + self.further
    }

    /// The first offence that stands.
    pub(super) fn first(&self) -> Option<&Offence> {
        self.standing.first().map(|(offence, _)| offence)
    }

    /// Elements of an event whose absence offended are missing. Returns whether the constraint was
    /// violated and is no longer.
    pub(super) fn doubt(&mut self, gap: &Gap) -> bool {
        let overlaps = |from: Timestamp, to: Timestamp| gap.from < to && gap.to > from;
        let excused = |excuse| matches!(excuse, Excuse::Missed(from, to) if overlaps(from, to));
        self.waiting.retain(|(.., excuse)| !excused(*excuse));
        self.drop(|_, excuse| excused(excuse), overlaps)
    }

    /// Something was missed in a measurement that was judged already.
    pub(super) fn doubt_measurement(&mut self, number: u64, gap: &Gap) -> bool {
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
        self.doubted += (before - self.standing.len()) as u64;
        let hull = self.further_hull.filter(|_| !self.further_is_certain);
        if hull.is_some_and(|(from, to)| further(from, to)) {
            self.doubted += self.further;
            (self.further, self.further_hull) = (0, None);
        }
        was_violated && !self.is_violated()
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Gap, GapCause, StreamId, Timestamp};

    use super::{Excuse, Tally, REMEMBERED};
    use crate::verdict::{Found, Offence};

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn offence(begin: u64) -> Offence {
        Offence {
            found: Found::Happened,
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
    fn a_gap_excuses_what_it_touches_and_nothing_else() {
        let mut tally = Tally::default();
        tally.offend(offence(100), Excuse::Missed(at(100), at(110)));
        tally.offend(offence(200), Excuse::Missed(at(200), at(210)));
        assert!(!tally.doubt(&gap(110, 200)));
        assert_eq!(tally.offences(), 2);
        assert!(!tally.doubt(&gap(90, 105)));
        assert_eq!(tally.first().map(|first| first.begin), Some(at(200)));
        assert!(tally.doubt(&gap(205, 300)));
        assert_eq!((tally.offences(), tally.doubted), (0, 2));
        // What elements show stays.
        tally.offend(offence(400), Excuse::None);
        assert!(!tally.doubt(&gap(0, 1_000)));
        assert!(tally.is_violated());
    }

    #[test]
    fn offences_beyond_the_remembered_ones_are_excused_together() {
        let mut tally = Tally::default();
        let many = REMEMBERED as u64 + 5;
        for index in 0..many {
            let begin = index * 100;
            tally.offend(offence(begin), Excuse::Missed(at(begin), at(begin + 10)));
        }
        assert_eq!(tally.offences(), many);
        assert!(!tally.doubt(&gap(many * 100 - 95, many * 100)));
        assert_eq!(tally.offences(), REMEMBERED as u64);
        assert!(tally.doubt(&gap(0, many * 100)));
        assert_eq!(tally.doubted, many);
    }
}
