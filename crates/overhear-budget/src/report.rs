// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of a budget as plain data.

use overhear_event::Nanos;

use crate::series::OverheadPoint;
use crate::{EventPrice, SourceId, ThreadKey};

/// What a thread cost a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThreadCost {
    /// Key of the thread.
    pub thread: ThreadKey,
    /// Events recorded.
    pub events: u64,
    /// Cost in ns.
    pub cost_ns: f64,
}

/// One source over the whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetSource {
    /// Handle of the source; it may have been removed.
    pub source: SourceId,
    /// Name of the source.
    pub name: Box<str>,
    /// Events recorded.
    pub events: u64,
    /// Cost in ns, by the newest prices.
    pub cost_ns: f64,
    /// Standard error of the cost in ns.
    pub cost_error_ns: f64,
    /// The newest price.
    pub price: EventPrice,
    /// Share of units in which the source was on, from 0 to 1. The unit is CPU time where the
    /// actuator counts no units. `None` before the first unit.
    pub share_on: Option<f64>,
    /// Share of CPU time that the source costs while it is on, recently; `None` if it never was.
    pub demand: Option<f64>,
    /// Threads that have not ended.
    pub threads: Vec<ThreadCost>,
}

/// The costs of the whole run in sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BudgetCosts {
    /// Cost of all events in ns, those of removed sources included.
    pub events_ns: f64,
    /// CPU time of control itself.
    pub own: Nanos,
    /// Cost of the instrumentation itself in ns, by the base overhead.
    pub base_ns: f64,
    /// Debt in ns; below 0: surplus.
    pub debt_ns: f64,
}

/// The state of a budget over the whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetReport {
    /// Target overhead, a fraction of the program's own time.
    pub target: f64,
    /// Estimated overhead over the run: all costs against the rest of the CPU time.
    pub observed: f64,
    /// Standard error of `observed` that the errors of the prices cause; sources are taken to be
    /// independent.
    pub observed_error: f64,
    /// CPU time of the program, with all costs.
    pub cpu: Nanos,
    /// Cost of all events in ns, those of removed sources included.
    pub events_ns: f64,
    /// CPU time of control itself.
    pub own: Nanos,
    /// Cost of the instrumentation itself in ns, by the base overhead.
    pub base_ns: f64,
    /// Surplus in ns that was not spent in time and expired.
    pub expired_ns: f64,
    /// Debt in ns; below 0: surplus.
    pub debt_ns: f64,
    /// Length of a window, in CPU time.
    pub window: Nanos,
    /// Overhead over time.
    pub series: Vec<OverheadPoint>,
    /// Sources in the order of their indices, without removed ones.
    pub sources: Vec<BudgetSource>,
    /// Number of removed sources.
    pub removed_sources: u64,
    /// Cost of removed sources in ns; part of `events_ns`.
    pub removed_ns: f64,
}
