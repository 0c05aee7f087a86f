// SPDX-License-Identifier: MIT OR Apache-2.0
//! The balance: what the target permits, minus what was spent. Debt in full, surplus capped.

use crate::decay::decay;

/// Balance of a budget in ns of CPU time: `e = m C + loan - cost - expired`.
///
/// A debt is kept until it is paid. A surplus above a cap expires: what a program did not use while
/// it was idle is not there for a burst later. The loan lets the first events of a short program be
/// observed; it fades over the first windows, so over a long run nothing of it remains.
#[derive(Clone, Debug)]
pub(crate) struct Balance {
    /// m: what the target permits per ns. The monitoring percentage, or bytes per ns.
    m: f64,
    window_ns: f64,
    /// Part of a window's budget that may be saved.
    saved: f64,
    /// Surplus that was not spent in time, over the whole run.
    expired_ns: f64,
    /// e at the last tick.
    balance_ns: f64,
}

impl Balance {
    /// Horizon in windows over which the balance is evened out. Of a window's budget the part
    /// `HORIZON (1 - m / 2)` may be saved: a window costs at most 1 + 1/4 of its budget, plus what
    /// is spent before the next tick sees it. The factor is for large targets: twice the overhead o
    /// is not twice the share m = o / (1 + o).
    pub(crate) const HORIZON: f64 = 0.25;
    /// Part of a window's budget that is lent at the start: 5.7 ms for a window of 1 s at 10 %.
    pub(crate) const LOAN: f64 = 1.0 / 16.0;

    pub(crate) fn new(m: f64, window_ns: f64) -> Self {
        Self {
            saved: Self::HORIZON * (1.0 - 0.5 * m),
            ..Self::of_rate(m, window_ns)
        }
    }

    /// The balance of a rate: `m` bytes per ns of time. Its C is time, and its cost is bytes.
    pub(crate) fn of_rate(m: f64, window_ns: f64) -> Self {
        Self {
            m,
            window_ns,
            saved: Self::HORIZON,
            expired_ns: 0.0,
            balance_ns: Self::LOAN * m * window_ns,
        }
    }

    /// The balance at the CPU time C, where `quantum_ns` is the cost of one piece of observing that
    /// cannot be divided: a surplus that is saved for it does not expire.
    pub(crate) fn settle(&mut self, cpu_ns: f64, cost_ns: f64, quantum_ns: f64) -> f64 {
        let loan = Self::LOAN * self.m * self.window_ns * decay(cpu_ns / self.window_ns);
        let e = self.m * cpu_ns + loan - cost_ns - self.expired_ns;
        let cap = self.saved * self.m * self.window_ns + quantum_ns;
        self.expired_ns += (e - cap).max(0.0);
        self.balance_ns = e.min(cap);
        self.balance_ns
    }

    /// The past turns out to have cost `by_ns` more. Where it cost more, less has expired.
    pub(crate) fn revalue(&mut self, by_ns: f64) {
        let returned = by_ns.clamp(0.0, self.expired_ns);
        self.expired_ns -= returned;
        self.balance_ns -= by_ns - returned;
    }

    pub(crate) fn expired_ns(&self) -> f64 {
        self.expired_ns
    }

    pub(crate) fn balance_ns(&self) -> f64 {
        self.balance_ns
    }
}

#[cfg(test)]
mod tests {
    use super::Balance;

    #[test]
    fn surplus_is_capped_and_debt_is_not() {
        let mut balance = Balance::new(0.1, 1e9);
        let cap = 0.95 * 25e6;
        assert!((balance.settle(60e9, 0.0, 0.0) - cap).abs() < 1.0);
        assert!((balance.expired_ns() - (6e9 - cap)).abs() < 1.0);
        let debt = balance.settle(60e9, 2e9, 0.0);
        assert!((debt - (cap - 2e9)).abs() < 1.0);
        assert!((balance.settle(61e9, 2e9, 0.0) - (debt + 0.1e9)).abs() < 1.0);
    }

    #[test]
    fn dearer_past_takes_back_what_expired_before_it_makes_debt() {
        let mut balance = Balance::new(0.1, 1e9);
        balance.settle(10e9, 0.5e9, 0.0);
        let expired = balance.expired_ns();
        balance.revalue(0.2e9);
        assert!((expired - balance.expired_ns() - 0.2e9).abs() < 1.0);
        assert!((balance.settle(10e9, 0.7e9, 0.0) - 0.95 * 25e6).abs() < 1e3);
        balance.revalue(1e9);
        assert_eq!(balance.expired_ns(), 0.0);
        assert!((balance.balance_ns() - (1e9 - 1.7e9)).abs() < 1e3);
    }
}
