// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget in the report, as plain data.

use overhear_budget::{BudgetSource, SourceId};
use serde::{Deserialize, Serialize};

/// What a budget allowed and what was spent.
///
/// Overheads are fractions of the CPU time that the programs took without observing: 0.05 is 5 %.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetOutcome {
    /// The target.
    pub target: f64,
    /// The estimated overhead over the run.
    pub observed: f64,
    /// Its standard error, as far as it comes from the prices.
    pub observed_error: f64,
    /// Length of a window, in CPU time of the programs.
    pub window_ns: u64,
    /// CPU time of the programs.
    pub cpu_ns: u64,
    /// Cost of counting events of sensors that were off; part of `observed`.
    #[serde(default)]
    pub counting_ns: u64,
    /// The overhead over time.
    pub course: Vec<BudgetPoint>,
    /// Sensors, the dearest first.
    pub sensors: Vec<BudgetSensor>,
}

/// One piece of the run: one or more windows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetPoint {
    /// Begin, on `CLOCK_MONOTONIC`.
    pub from_ns: u64,
    /// End.
    pub to_ns: u64,
    /// The overhead.
    pub overhead: f64,
    /// The largest overhead of a window in it.
    pub worst_window: f64,
}

/// A sensor in the budget.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetSensor {
    /// Task and sensor.
    pub name: String,
    /// Elements that were written.
    pub written: u64,
    /// Writes that the budget kept from being made; null where they are not counted.
    pub skipped: Option<u64>,
    /// Share of writes that were not skipped, or of the CPU time in which the sensor was on; null
    /// if there were none.
    pub share_on: Option<f64>,
    /// Cost of the elements.
    pub cost_ns: f64,
    /// Its standard error.
    pub cost_error_ns: f64,
    /// Price of an element.
    pub price_ns: f64,
    /// Its standard error.
    pub price_error_ns: f64,
}

impl BudgetSensor {
    pub(super) fn of(source: &BudgetSource, counted: Counted) -> Self {
        Self {
            name: source.name.to_string(),
            written: counted.written,
            skipped: counted.skipped,
            share_on: source.share_on,
            cost_ns: source.cost_ns,
            cost_error_ns: source.cost_error_ns,
            price_ns: source.price.as_ns(),
            price_error_ns: source.price.error_ns(),
        }
    }
}

/// The counts of a sensor. The events that the budget charges also contain the cost of skipped
/// ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    pub(super) written: u64,
    /// `None` if not all were counted.
    pub(super) skipped: Option<u64>,
}

impl BudgetOutcome {
    /// `ended` are the accounts of sensors that are not in the budget any more.
    pub(super) fn of(
        budget: &overhear_budget::BudgetReport,
        counted: impl Fn(SourceId) -> Option<Counted>,
        ended: Vec<BudgetSensor>,
    ) -> Self {
        let course = budget.series.iter().map(|point| BudgetPoint {
            from_ns: point.from.as_monotonic_ns(),
            to_ns: point.to.as_monotonic_ns(),
            overhead: point.overhead(),
            worst_window: point.worst_window,
        });
        let counted = |source: SourceId| counted(source).unwrap_or_default();
        let sensors = budget.sources.iter();
        let sensors = sensors.map(|source| BudgetSensor::of(source, counted(source.source)));
        let mut sensors: Vec<BudgetSensor> = sensors.chain(ended).collect();
        sensors.sort_by(|one, other| other.cost_ns.total_cmp(&one.cost_ns));
        Self {
            target: budget.target,
            observed: budget.observed,
            // Without CPU time it is no number, which JSON cannot store.
            observed_error: match budget.observed_error.is_finite() {
                true => budget.observed_error,
                false => 0.0,
            },
            window_ns: budget.window.as_ns(),
            cpu_ns: budget.cpu.as_ns(),
            counting_ns: budget.own.as_ns(),
            course: course.collect(),
            sensors,
        }
    }
}
