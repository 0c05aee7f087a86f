// SPDX-License-Identifier: MIT OR Apache-2.0
//! Duty cycle: a share of time as a sequence of on and off.

use overhear_event::{Nanos, Timestamp};

/// Switches a source so that it is on for a given share of its units: of its writes if they are
/// counted, else of the CPU time. Units are counted because an interval that is on has fewer of
/// them than one that is off: a part of its CPU time is cost.
///
/// The debt of on-time is carried from decision to decision (error feedback), so the share is met
/// within about one quantum. A random [`Thresholds`] keeps the decision apart from periods of the
/// program; a fixed one would observe the same phase of a periodic program again and again. Time
/// without CPU use counts for nothing and decides nothing.
#[derive(Clone, Debug)]
pub(crate) struct DutyCycle {
    is_on: bool,
    /// Units in which the source was on less than it should have been; below 0: more.
    owed: f64,
    /// Units since the last decision.
    elapsed: f64,
    /// Units between the last two decisions: the estimate of the next number.
    quantum: f64,
    decided: Option<Timestamp>,
    /// Share in force since the last call.
    share: f64,
}

/// Units since the last call of [`DutyCycle::decide`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Elapsed {
    /// In which the source was on.
    pub(crate) on: f64,
    pub(crate) all: f64,
}

impl DutyCycle {
    pub(crate) fn new() -> Self {
        Self {
            is_on: false,
            owed: 0.0,
            elapsed: 0.0,
            quantum: 0.0,
            decided: None,
            share: 0.0,
        }
    }

    /// Units of one decision, as last measured.
    pub(crate) fn quantum(&self) -> f64 {
        self.quantum
    }

    /// Books what happened since the last call, and decides until the next one. `permitted` is
    /// whether all sources that this one requires are on.
    pub(crate) fn decide(
        &mut self,
        share: f64,
        elapsed: Elapsed,
        now: Timestamp,
        dwell: Nanos,
        permitted: bool,
        threshold: f64,
    ) -> bool {
        self.owed += self.share * elapsed.all - elapsed.on;
        self.share = share;
        self.elapsed += elapsed.all;
        let is_due = self.decided.is_none_or(|at| now.since(at) >= dwell);
        // What is not permitted has no use: it is switched off at once, dwell or not.
        if self.is_on && !permitted {
            self.is_on = false;
            self.decided = Some(now);
        } else if is_due && (self.elapsed > 0.0 || share <= 0.0 || share >= 1.0) {
            if self.elapsed > 0.0 {
                self.quantum = self.elapsed;
                self.elapsed = 0.0;
            }
            self.is_on = permitted && self.choose(share, threshold);
            self.decided = Some(now);
        }
        self.is_on
    }

    /// The decision for the next quantum. On average over the threshold, the debt is paid within
    /// one quantum: on if `owed / quantum + share > threshold`.
    fn choose(&mut self, share: f64, threshold: f64) -> bool {
        if share <= 0.0 || share >= 1.0 {
            self.owed = 0.0;
            return share >= 1.0;
        }
        // More than some quanta come from a share that could not be met, for example because a
        // required source was off. They are not caught up with.
        let most = 3.0 * self.quantum;
        self.owed = self.owed.clamp(-most, most);
        self.owed / self.quantum.max(1.0) + share > threshold
    }
}

/// Random thresholds, one for all sources at each tick.
///
/// So sources with equal shares are on in the same intervals: what begins at one sensor and ends at
/// another one is observed as a whole, and intervals that differ in many sources show what these
/// cost.
#[derive(Clone, Debug)]
pub(crate) struct Thresholds {
    /// State of xorshift64*. Not 0.
    random: u64,
}

impl Thresholds {
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }
    }

    /// A number from [0, 1) [Marsaglia-2003].
    pub(crate) fn draw(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let word = self.random.wrapping_mul(0x2545_F491_4F6C_DD1D);
        (word >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};
    use proptest::prelude::{prop_assert, proptest};

    use super::{DutyCycle, Elapsed, Thresholds};

    /// Share of time on, switches, and the shortest time between two switches in ms, over 10 s.
    fn run(share: f64, dwell_ms: u64, seed: u64, permitted: impl Fn(u64) -> bool) -> [f64; 3] {
        let (mut duty, mut thresholds) = (DutyCycle::new(), Thresholds::new(seed));
        let (mut on, mut switches, mut shortest, mut last) = (0, 0, u64::MAX, None);
        for tick in 0..1000 {
            let now = Timestamp::from_monotonic_ns(tick * 10_000_000);
            let before = duty.is_on;
            let dwell = Nanos::from_ms(dwell_ms);
            let elapsed = Elapsed {
                on: if before { 10e6 } else { 0.0 },
                all: 10e6,
            };
            let is_on = duty.decide(
                share,
                elapsed,
                now,
                dwell,
                permitted(tick),
                thresholds.draw(),
            );
            if is_on != before {
                shortest = last.map_or(shortest, |last| shortest.min((tick - last) * 10));
                (switches, last) = (switches + 1, Some(tick));
            }
            on += u32::from(is_on);
        }
        [f64::from(on) / 1000.0, f64::from(switches), shortest as f64]
    }

    #[test]
    fn whole_shares_never_switch_after_the_first_decision() {
        assert_eq!(run(1.0, 0, 1, |_| true)[..2], [1.0, 1.0]);
        assert_eq!(run(0.0, 0, 1, |_| true)[..2], [0.0, 0.0]);
    }

    #[test]
    fn forbidden_source_is_off() {
        assert_eq!(run(1.0, 50, 1, |tick| tick < 300)[0], 0.3);
    }

    #[test]
    fn sleeping_program_leaves_the_decision_in_place() {
        let (mut duty, mut thresholds) = (DutyCycle::new(), Thresholds::new(3));
        duty.decide(
            0.5,
            Elapsed { on: 0.0, all: 10e6 },
            Timestamp::from_monotonic_ns(0),
            Nanos::ZERO,
            true,
            thresholds.draw(),
        );
        let is_on = duty.is_on;
        for tick in 1..6000 {
            let now = Timestamp::from_monotonic_ns(tick * 10_000_000);
            assert_eq!(
                duty.decide(
                    0.5,
                    Elapsed::default(),
                    now,
                    Nanos::ZERO,
                    true,
                    thresholds.draw()
                ),
                is_on
            );
        }
    }

    /// With everything on, a unit takes four times as long: a share of the time would be far less
    /// of the units.
    #[test]
    fn share_is_one_of_units() {
        let (mut duty, mut thresholds) = (DutyCycle::new(), Thresholds::new(5));
        let (mut is_on, mut on, mut all) = (false, 0.0, 0.0);
        for tick in 0..2_000 {
            let units = if is_on { 250.0 } else { 1_000.0 };
            let elapsed = Elapsed {
                on: if is_on { units } else { 0.0 },
                all: units,
            };
            (on, all) = (on + elapsed.on, all + elapsed.all);
            let now = Timestamp::from_monotonic_ns(tick * 10_000_000);
            is_on = duty.decide(0.5, elapsed, now, Nanos::ZERO, true, thresholds.draw());
        }
        assert!((on / all - 0.5).abs() < 0.01, "{}", on / all);
    }

    proptest! {
        #[test]
        fn share_is_met_and_dwell_is_kept(share in 0.001..0.999, dwell in 0_u64..200, seed: u64) {
            let [on, switches, shortest] = run(share, dwell, seed, |_| true);
            let quantum = dwell.max(10) as f64 / 10_000.0;
            prop_assert!((on - share).abs() <= 3.0 * quantum + 0.002, "{} {} {}", on, share, switches);
            prop_assert!(shortest >= dwell as f64);
        }
    }
}
