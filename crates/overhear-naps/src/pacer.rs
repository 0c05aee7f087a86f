// SPDX-License-Identifier: MIT OR Apache-2.0
//! When an allocation is protected again.
//!
//! The secondary controller of an allocation is that of the paper [SMCO, section 2.3.2]: after an
//! access that took `p` to handle, and `tau` after the start of its protection, the allocation is
//! protected again after `d = p / m_lt - (tau + p)`. `m_lt`, here the *level*, is common to all
//! allocations. The paper's primary controller is unstable with many sources, because its gain does
//! not depend on their number; here the step is divided by the number of saturated sources.
//!
//! In addition, the pacer is an account: what was spent is paid by CPU time of the program, debt is
//! kept in full, and nothing is protected on credit. The account has a small income per second of
//! time, without which allocations of a program that sleeps would never be protected.

use overhear_budget::smco::SecondaryController;
use overhear_event::{Nanos, Timestamp};

/// Longest delay: an hour.
const MAX_DELAY_NS: u64 = 3_600_000_000_000;
/// Saved allowance, in seconds of CPU time at the target: more is forfeited.
const MAX_SAVED_S: f64 = 0.2;
/// Allowance at the start, in nanoseconds.
const START_NS: f64 = 5e6;
/// Income per nanosecond of time, in addition to that of CPU time.
const FLOOR: f64 = 0.0005;
/// Least and largest level.
const LEVELS: (f64, f64) = (1e-7, 1.0);
/// Share of the error that one tick corrects.
const STEP: f64 = 0.5;

/// The account and the level of one process.
#[derive(Clone, Debug)]
pub struct ProtectionPacer {
    /// Budget: cost / CPU time without the cost.
    budget: f64,
    /// Nanoseconds that may be spent; negative: debt.
    balance_ns: f64,
    level: f64,
    spent_ns: u64,
    spent_at_tick_ns: u64,
    time_ns: u64,
    cpu_ns: u64,
}

impl ProtectionPacer {
    /// For this budget (`0.05`), from this time on, without CPU time so far.
    #[must_use]
    pub fn new(budget: f64, time_ns: u64) -> Self {
        Self {
            budget,
            balance_ns: if budget > 0.0 { START_NS } else { 0.0 },
            level: (budget / (1.0 + budget) / 8.0).clamp(LEVELS.0, LEVELS.1),
            spent_ns: 0,
            spent_at_tick_ns: 0,
            time_ns,
            cpu_ns: 0,
        }
    }

    /// Charges a cost.
    pub fn spend(&mut self, cost_ns: u64) {
        self.spent_ns += cost_ns;
        self.balance_ns -= cost_ns as f64;
    }

    /// Whether the account covers a cost.
    #[must_use]
    pub fn affords(&self, cost_ns: u64) -> bool {
        self.balance_ns >= cost_ns as f64
    }

    /// Nanoseconds that may be spent now.
    #[must_use]
    pub fn balance_ns(&self) -> u64 {
        self.balance_ns.max(0.0) as u64
    }

    /// Sum of all costs.
    #[must_use]
    pub const fn spent_ns(&self) -> u64 {
        self.spent_ns
    }

    /// Pays in what the program's CPU time allows and adjusts the level. `cpu_ns` is the CPU time
    /// of the process with all costs, `saturated` the number of allocations that waited for their
    /// next protection since the last tick.
    pub fn tick(&mut self, time_ns: u64, cpu_ns: u64, saturated: usize) {
        let time = time_ns.saturating_sub(self.time_ns) as f64;
        let cpu = cpu_ns.saturating_sub(self.cpu_ns) as f64;
        let spent = (self.spent_ns - self.spent_at_tick_ns) as f64;
        (self.time_ns, self.cpu_ns) = (time_ns.max(self.time_ns), cpu_ns.max(self.cpu_ns));
        self.spent_at_tick_ns = self.spent_ns;
        if self.budget <= 0.0 || time <= 0.0 {
            return;
        }
        let plain = (cpu - spent).max(0.0);
        let income = self.budget * plain + FLOOR * time;
        let cap = (MAX_SAVED_S * 1e9 * self.budget).max(START_NS);
        self.balance_ns = (self.balance_ns + income).min(cap);
        // A share of the saved allowance, or of the debt, is worked off per tick.
        let want = (income + self.balance_ns.clamp(-income, income)) / time;
        let error = want - spent / time;
        let sources = saturated.max(1) as f64;
        self.level = (self.level + STEP / sources * error).clamp(LEVELS.0, LEVELS.1);
    }

    /// Time until an allocation is protected again, after an access that took `cost_ns` and came
    /// `protected_ns` after the start of its protection.
    #[must_use]
    pub fn delay_ns(&self, cost_ns: u64, protected_ns: u64) -> u64 {
        let start = Timestamp::from_monotonic_ns(0);
        let mut controller = SecondaryController::new(self.level, start);
        controller.access(Timestamp::from_monotonic_ns(protected_ns));
        let delay = controller.access_end(Nanos::from_ns(cost_ns));
        // Later the level will have changed.
        delay.map_or(MAX_DELAY_NS, |delay| delay.as_ns().min(MAX_DELAY_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::ProtectionPacer;

    const SECOND: u64 = 1_000_000_000;

    /// Programs whose `hot` allocations are accessed at once after each protection. Returns cost
    /// per plain CPU time over the whole run, and over the worst second after the first.
    fn simulate(budget: f64, hot: usize, cost_ns: u64, busy: impl Fn(u64) -> bool) -> (f64, f64) {
        let mut pacer = ProtectionPacer::new(budget, 0);
        let step = 10_000_000;
        let mut due = vec![0u64; hot];
        let (mut plain, mut spent, mut now) = (0u64, 0u64, 0u64);
        let mut worst: f64 = 0.0;
        let mut window = (0, 0);
        while now < 30 * SECOND {
            now += step;
            let mut saturated = 0;
            let runs = busy(now);
            if runs {
                plain += step;
            }
            for due in &mut due {
                if runs && *due <= now && pacer.affords(cost_ns) {
                    pacer.spend(cost_ns);
                    spent += cost_ns;
                    *due = now + pacer.delay_ns(cost_ns, 0);
                    saturated += 1;
                }
            }
            pacer.tick(now, plain + spent, saturated);
            if now % SECOND == 0 {
                if now > SECOND && plain - window.0 > SECOND / 10 {
                    worst = worst.max((spent - window.1) as f64 / (plain - window.0) as f64);
                }
                window = (plain, spent);
            }
        }
        (spent as f64 / plain as f64, worst)
    }

    #[test]
    fn cost_stays_at_the_budget_with_any_number_of_sources() {
        for hot in [5, 60, 400, 4_000] {
            for budget in [0.01, 0.05, 0.2] {
                let (share, worst) = simulate(budget, hot, 15_000, |_| true);
                assert!(share <= budget + 0.002, "{hot} {budget} {share}");
                assert!(worst <= 2.0 * budget + 0.002, "{hot} {budget} {worst}");
            }
        }
    }

    #[test]
    fn available_budget_is_used_by_many_sources() {
        for hot in [60, 400] {
            let (share, _) = simulate(0.05, hot, 15_000, |_| true);
            assert!(share > 0.035, "{hot} {share}");
        }
    }

    #[test]
    fn first_burst_after_idleness_spends_no_saved_hour() {
        let (share, worst) = simulate(0.05, 400, 15_000, |now| now > 25 * SECOND);
        assert!(worst <= 0.1 + 0.002, "{worst}");
        assert!(share < 0.1, "{share}");
    }

    #[test]
    fn budget_of_zero_affords_nothing() {
        let mut pacer = ProtectionPacer::new(0.0, 0);
        pacer.tick(100 * SECOND, 100 * SECOND, 0);
        assert!(!pacer.affords(1));
    }

    #[test]
    fn delay_follows_the_paper() {
        let mut pacer = ProtectionPacer::new(1.0, 0);
        pacer.level = 0.01;
        // d = p / m_lt - (tau + p)
        assert_eq!(pacer.delay_ns(20_000, 500_000), 2_000_000 - 520_000);
        assert_eq!(pacer.delay_ns(20_000, 5_000_000), 0);
    }

    #[test]
    fn debt_is_kept_in_full() {
        let mut pacer = ProtectionPacer::new(0.05, 0);
        pacer.spend(5_000_000 + 100_000_000);
        // The CPU time contains the cost.
        pacer.tick(SECOND, 105_000_000 + SECOND, 1);
        assert!(!pacer.affords(1));
        pacer.tick(2 * SECOND, 105_000_000 + 2 * SECOND, 1);
        assert!(!pacer.affords(2_000_000), "{}", pacer.balance_ns);
    }
}
