// SPDX-License-Identifier: MIT OR Apache-2.0
//! When may the next element come? For producers that can wait ([GRTMon, section 3.2]:
//! "non-real-time systems can easily wait to adhere to this constraint").

use overhear_event::{Nanos, Timestamp};

use crate::{AfterViolation, ArrivalBound, ConformanceCheck};

/// The times at which a stream allows a producer's next element.
///
/// The producer waits until [`Pacer::earliest`], writes, and reports with [`Pacer::written`] a time
/// that is not before the element's stamp. Then every two elements keep equation 6, whatever
/// preempts the producer between waiting, stamping and reporting: the wait ends before the later
/// stamp, the report comes after the earlier one, and the pacer keeps the distance between these.
/// A report that is the stamp itself costs nothing; a later one delays what follows.
///
/// A monitor that converts stamps from another clock sees each by up to some error off. With a
/// margin of twice that error its [`ConformanceCheck`] finds no violation either. The margin is
/// added to the distance of every pair, not to the period: it does not accumulate.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    check: ConformanceCheck,
    margin: Nanos,
}

impl Pacer {
    /// A pacer for a stream that has not begun.
    #[must_use]
    pub const fn new(s: ArrivalBound, margin: Nanos) -> Self {
        // What was written is written: an element that came too early puts the producer in debt.
        let check = ConformanceCheck::new(s, AfterViolation::Keep);
        Self { check, margin }
    }

    /// A pacer for a stream that is under way: as if its last element, which came not after `last`,
    /// had used up all jitter. No conforming past can forbid more.
    #[must_use]
    pub const fn under_way(s: ArrivalBound, margin: Nanos, last: Timestamp) -> Self {
        let check = ConformanceCheck::exhausted(s, AfterViolation::Keep, last);
        Self { check, margin }
    }

    /// The earliest time of the next element.
    #[must_use]
    pub fn earliest(&self) -> Timestamp {
        match self.check.earliest() {
            Timestamp::ZERO => Timestamp::ZERO,
            at => at.plus(self.margin),
        }
    }

    /// An element was written, not after `at`.
    pub fn written(&mut self, at: Timestamp) {
        self.check.push(at);
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};
    use proptest::prelude::{any, prop, proptest, ProptestConfig, Strategy};
    use proptest::{prop_assert, prop_assert_eq};

    use super::Pacer;
    use crate::{AfterViolation, ArrivalBound, ConformanceCheck};

    fn constraint() -> impl Strategy<Value = ArrivalBound> {
        (1..1_000_u64, 0..1_000_u64, 0..5_000_u64).prop_map(|(t, d, tau)| {
            let [t, d, tau] = [t, d.min(t), tau].map(Nanos::from_ns);
            ArrivalBound::new(t, d, tau, Nanos::ZERO).unwrap()
        })
    }

    fn ns(time: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(time)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// A producer with nothing else to do runs along the bound of equation 6, and could not
        /// have been a nanosecond earlier.
        #[test]
        fn eager_producer_runs_along_the_bound(s in constraint(), start in 1..1_000_u64) {
            let mut pacer = Pacer::new(s, Nanos::ZERO);
            let mut check = ConformanceCheck::new(s, AfterViolation::Keep);
            prop_assert_eq!(pacer.earliest(), Timestamp::ZERO);
            let mut now = ns(start);
            for element in 0..200_u128 {
                let least = s.least_span(element).unwrap().as_ns().max(0);
                prop_assert_eq!(i128::from(now.as_monotonic_ns()), i128::from(start) + least);
                if element > 0 && now > ns(0) {
                    let mut early = check;
                    prop_assert!(early.push(now.minus(Nanos::from_ns(1))).is_some());
                }
                prop_assert_eq!(check.push(now), None);
                pacer.written(now);
                now = pacer.earliest();
            }
        }

        /// Work, preemption before the stamp, a late report, and clocks that err: what the monitor
        /// sees conforms all the same.
        #[test]
        fn paced_elements_conform(
            s in constraint(),
            error in 0..500_u64,
            turns in prop::collection::vec((any::<u16>(), 0..300_u64, 0..300_u64, any::<u16>()), 200),
        ) {
            let mut pacer = Pacer::new(s, Nanos::from_ns(2 * error));
            let mut check = ConformanceCheck::new(s, AfterViolation::Ignore);
            let mut now = ns(10_000);
            for (work, preempted, delay, off) in turns {
                let work = if work % 4 == 0 { u64::from(work) } else { 0 };
                now = now.plus(Nanos::from_ns(work)).max(pacer.earliest());
                let stamp = now.plus(Nanos::from_ns(preempted));
                now = stamp.plus(Nanos::from_ns(delay));
                pacer.written(now);
                let off = u64::from(off) % (2 * error + 1);
                let seen = stamp.minus(Nanos::from_ns(error)).plus(Nanos::from_ns(off));
                prop_assert_eq!(check.push(seen), None);
            }
        }

        /// Joining late is safe after every past that conforms.
        #[test]
        fn pacer_under_way_is_the_strictest_past(
            s in constraint(),
            gaps in prop::collection::vec(0..2_000_u64, 1..50),
        ) {
            let mut past = ConformanceCheck::new(s, AfterViolation::Ignore);
            let (mut now, mut last) = (ns(10_000), ns(0));
            for gap in gaps {
                now = now.plus(Nanos::from_ns(gap));
                if past.push(now).is_none() {
                    last = now;
                }
            }
            prop_assert!(Pacer::under_way(s, Nanos::ZERO, last).earliest() >= past.earliest());
        }
    }
}
