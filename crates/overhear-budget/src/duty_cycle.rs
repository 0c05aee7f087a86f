// SPDX-License-Identifier: MIT OR Apache-2.0
//! Duty cycle: a share of time as a sequence of on and off.

use overhear_event::{Nanos, Timestamp};

/// Switches a source so that it is on for a given share of the CPU time.
///
/// The debt of on-time is carried from decision to decision (error feedback), so the share is met
/// within about one quantum. A random threshold keeps the decision apart from periods of the
/// program and of other sources; a fixed one would observe the same phase of a periodic program
/// again and again. Time without CPU use counts for nothing and decides nothing.
#[derive(Clone, Debug)]
pub(crate) struct DutyCycle {
    is_on: bool,
    /// CPU time in ns that the source was on less than it should have been; below 0: more.
    owed_ns: f64,
    /// CPU time since the last decision in ns.
    elapsed_ns: f64,
    /// CPU time between the last two decisions in ns: the estimate of the next one.
    quantum_ns: f64,
    decided: Option<Timestamp>,
    /// Share in force since the last call.
    share: f64,
    /// State of xorshift64*. Not 0.
    random: u64,
}

impl DutyCycle {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            is_on: false,
            owed_ns: 0.0,
            elapsed_ns: 0.0,
            quantum_ns: 0.0,
            decided: None,
            share: 0.0,
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        }
    }

    /// CPU time of one decision in ns, as last measured.
    pub(crate) fn quantum_ns(&self) -> f64 {
        self.quantum_ns
    }

    /// A number from [0, 1) [Marsaglia-2003].
    fn draw(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        let word = self.random.wrapping_mul(0x2545_F491_4F6C_DD1D);
        (word >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Books `cpu_ns` of CPU time since the last call, and decides until the next one. `permitted`
    /// is whether all sources that this one requires are on.
    pub(crate) fn decide(
        &mut self,
        share: f64,
        cpu_ns: f64,
        now: Timestamp,
        dwell: Nanos,
        permitted: bool,
    ) -> bool {
        let is_on = f64::from(u8::from(self.is_on));
        self.owed_ns += (self.share - is_on) * cpu_ns;
        self.share = share;
        self.elapsed_ns += cpu_ns;
        let is_due = self.decided.is_none_or(|at| now.since(at) >= dwell);
        // What is not permitted has no use: it is switched off at once, dwell or not.
        if self.is_on && !permitted {
            self.is_on = false;
            self.decided = Some(now);
        } else if is_due && (self.elapsed_ns > 0.0 || share <= 0.0 || share >= 1.0) {
            if self.elapsed_ns > 0.0 {
                self.quantum_ns = self.elapsed_ns;
                self.elapsed_ns = 0.0;
            }
            self.is_on = permitted && self.choose(share);
            self.decided = Some(now);
        }
        self.is_on
    }

    /// The decision for the next quantum. On average over the threshold, the debt is paid within
    /// one quantum: on if `owed / quantum + share > threshold`.
    fn choose(&mut self, share: f64) -> bool {
        if share <= 0.0 || share >= 1.0 {
            self.owed_ns = 0.0;
            return share >= 1.0;
        }
        // More than some quanta come from a share that could not be met, for example because a
        // required source was off. They are not caught up with.
        let most = 3.0 * self.quantum_ns;
        self.owed_ns = self.owed_ns.clamp(-most, most);
        let threshold = self.draw();
        self.owed_ns / self.quantum_ns.max(1.0) + share > threshold
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};
    use proptest::prelude::{prop_assert, proptest};

    use super::DutyCycle;

    /// Share of time on, switches, and the shortest time between two switches in ms, over 10 s.
    fn run(share: f64, dwell_ms: u64, seed: u64, permitted: impl Fn(u64) -> bool) -> [f64; 3] {
        let mut duty = DutyCycle::new(seed);
        let (mut on, mut switches, mut shortest, mut last) = (0, 0, u64::MAX, None);
        for tick in 0..1000 {
            let now = Timestamp::from_monotonic_ns(tick * 10_000_000);
            let before = duty.is_on;
            let dwell = Nanos::from_ms(dwell_ms);
            let is_on = duty.decide(share, 10e6, now, dwell, permitted(tick));
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
        let mut duty = DutyCycle::new(3);
        duty.decide(
            0.5,
            10e6,
            Timestamp::from_monotonic_ns(0),
            Nanos::ZERO,
            true,
        );
        let is_on = duty.is_on;
        for tick in 1..6000 {
            let now = Timestamp::from_monotonic_ns(tick * 10_000_000);
            assert_eq!(duty.decide(0.5, 0.0, now, Nanos::ZERO, true), is_on);
        }
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
