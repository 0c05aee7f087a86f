// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is known of a constraint so far: how much was judged, what offended, what is uncertain.
//!
//! A gap may become known after an offence was found that it excuses: the answer that did not come may
//! be among the elements that were missed. Such an offence is put in doubt. The first offences are
//! remembered with what could excuse them, the others by the times between which something could.

use overhear_event::{Gap, Timestamp};

use super::offence::Offence;

/// How many offences are remembered one by one.
const REMEMBERED: usize = 64;

/// What could excuse an offence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Excuse {
    /// Nothing: elements show it.
    None,
    /// A missed element between these times.
    Missed(Timestamp, Timestamp),
    /// Anything missed in the measurement of this number.
    Measurement(u64),
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
    /// Offences that nobody has been told of yet.
    pub(super) fresh: Vec<Offence>,
}

impl Tally {
    /// Counts an offence.
    pub(super) fn offend(&mut self, offence: Offence, excuse: Excuse) {
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
            Excuse::Measurement(_) => (offence.begin, offence.end),
        };
        let (begin, end) = self.further_hull.unwrap_or((from, to));
        self.further_hull = Some((begin.min(from), end.max(to)));
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
        self.drop(
            |excuse| matches!(excuse, Excuse::Missed(from, to) if overlaps(from, to)),
            overlaps,
        )
    }

    /// Something was missed in a measurement that was judged already.
    pub(super) fn doubt_measurement(&mut self, number: u64, gap: &Gap) -> bool {
        self.drop(
            |excuse| excuse == Excuse::Measurement(number),
            |from, to| gap.from < to && gap.to > from,
        )
    }

    fn drop(
        &mut self,
        excused: impl Fn(Excuse) -> bool,
        further: impl Fn(Timestamp, Timestamp) -> bool,
    ) -> bool {
        let was_violated = self.is_violated();
        let before = self.standing.len();
        self.standing.retain(|(_, excuse)| !excused(*excuse));
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
