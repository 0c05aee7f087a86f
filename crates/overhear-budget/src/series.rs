// SPDX-License-Identifier: MIT OR Apache-2.0
//! The course of the overhead: windows over the whole run in bounded memory.

use overhear_event::{Nanos, Timestamp};

/// Points that a series keeps at most. When it is full, neighbours are merged, so a point of a long
/// run holds a power of two of windows.
pub(crate) const MAX_SERIES_POINTS: usize = 512;

/// One piece of the run: whole windows of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverheadPoint {
    /// Time of the first tick of the piece.
    pub from: Timestamp,
    /// Time of the last tick of the piece.
    pub to: Timestamp,
    /// CPU time of the program in the piece, with the cost of observing.
    pub cpu: Nanos,
    /// Cost of observing in ns, by the prices that were known at the end of each window.
    pub cost_ns: f64,
    /// Windows in the piece.
    pub windows: u32,
    /// Largest overhead of a single window of the piece.
    pub worst_window: f64,
}

impl OverheadPoint {
    /// Overhead of the piece, a fraction of the program's own time.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        overhead(self.cost_ns, self.cpu.as_ns() as f64)
    }

    fn join(&mut self, later: &Self) {
        self.to = later.to;
        self.cpu = self.cpu.plus(later.cpu);
        self.cost_ns += later.cost_ns;
        self.windows += later.windows;
        self.worst_window = self.worst_window.max(later.worst_window);
    }
}

/// M / R [SMCO, section 2]: the cost against the rest of the CPU time.
pub(crate) fn overhead(cost_ns: f64, cpu_ns: f64) -> f64 {
    let plain = cpu_ns - cost_ns;
    if plain > 0.0 {
        cost_ns.max(0.0) / plain
    } else if cost_ns > 0.0 {
        f64::INFINITY
    } else {
        0.0
    }
}

/// Collects points.
#[derive(Clone, Debug)]
pub(crate) struct OverheadSeries {
    window: Nanos,
    points: Vec<OverheadPoint>,
    /// Windows of a point since the last merge.
    windows_per_point: u32,
    /// The window that is not full yet: its begin, and the totals at its begin.
    from: Option<Timestamp>,
    cpu: Nanos,
    cost_ns: f64,
}

impl OverheadSeries {
    pub(crate) fn new(window: Nanos) -> Self {
        Self {
            window,
            points: Vec::new(),
            windows_per_point: 1,
            from: None,
            cpu: Nanos::ZERO,
            cost_ns: 0.0,
        }
    }

    /// The totals at a tick.
    pub(crate) fn push(&mut self, now: Timestamp, cpu: Nanos, cost_ns: f64) {
        let from = *self.from.get_or_insert(now);
        let length = Nanos::from_ns(cpu.as_ns().saturating_sub(self.cpu.as_ns()));
        if length < self.window {
            return;
        }
        let cost = cost_ns - self.cost_ns;
        let point = OverheadPoint {
            from,
            to: now,
            cpu: length,
            cost_ns: cost,
            windows: 1,
            worst_window: overhead(cost, length.as_ns() as f64),
        };
        (self.from, self.cpu, self.cost_ns) = (Some(now), cpu, cost_ns);
        match self.points.last_mut() {
            Some(last) if last.windows < self.windows_per_point => last.join(&point),
            _ => self.points.push(point),
        }
        if self.points.len() > MAX_SERIES_POINTS {
            self.merge_neighbours();
        }
    }

    fn merge_neighbours(&mut self) {
        self.windows_per_point = self.windows_per_point.saturating_mul(2);
        let mut merged: Vec<OverheadPoint> = Vec::with_capacity(MAX_SERIES_POINTS + 1);
        for point in self.points.drain(..) {
            match merged.last_mut() {
                Some(last) if last.windows < self.windows_per_point => last.join(&point),
                _ => merged.push(point),
            }
        }
        self.points = merged;
    }

    pub(crate) fn points(&self) -> &[OverheadPoint] {
        &self.points
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};

    use super::{OverheadSeries, MAX_SERIES_POINTS};

    #[test]
    fn long_run_keeps_its_sums_and_its_worst_window() {
        let mut series = OverheadSeries::new(Nanos::from_ms(1));
        let mut cost = 0.0;
        for window in 0..100_000_u64 {
            let at = Timestamp::from_monotonic_ns(window * 2_000_000);
            series.push(at, Nanos::from_ms(window), cost);
            cost += if window == 777 { 500_000.0 } else { 1000.0 };
        }
        let points = series.points();
        assert!(points.len() <= MAX_SERIES_POINTS && points.len() > MAX_SERIES_POINTS / 4);
        let windows: u32 = points.iter().map(|it| it.windows).sum();
        assert_eq!(windows, 99_999);
        let worst = points.iter().map(|it| it.worst_window).fold(0.0, f64::max);
        assert_eq!(worst, 1.0);
        let sum: f64 = points.iter().map(|it| it.cost_ns).sum();
        assert_eq!(sum, 99_998.0 * 1000.0 + 500_000.0);
        assert!(points.windows(2).all(|two| two[0].to == two[1].from));
    }
}
