// SPDX-License-Identifier: MIT OR Apache-2.0
//! What came of a monitor of `overhear.toml`, for people and as JSON.

use overhear_event::{Nanos, Timestamp};
use overhear_monitor::executor::{DeadlineRun, Guarantee, Terms};
use serde::{Deserialize, Serialize};

use super::suggestion::{self, Suggestion};
use crate::admit::{self, MemoryBytes};
use crate::conclusion::Conclusion;
use crate::config::selection::Selection;
use crate::config::{Config, UpdateConfig};
use crate::quantities::{HistogramReport, ValueQuantiles};
use crate::updates::UpdateReport;

/// What came of a monitor (`docs/executors.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MonitorReport {
    /// `deadline`, `bandwidth`, `buffered` or `best_effort`: of several, that which guarantees.
    pub executor: String,
    /// `held`, `violated` or `inconclusive`; null where nothing was guaranteed.
    pub verdict: Option<String>,
    /// Since when the verdict is not `held`, on `CLOCK_MONOTONIC`.
    pub since_ns: Option<u64>,
    /// What happened, a message for each kind.
    pub reasons: Vec<String>,
    /// `exclusive` or `shared`.
    pub level: Option<String>,
    /// The CPU that was set apart for it; null where none was.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// The bound.
    pub latency_ns: Option<u64>,
    /// T_M.
    pub period_ns: Option<u64>,
    /// CPU time that was reserved per period.
    pub runtime_ns: Option<u64>,
    /// When the guarantee began, on `CLOCK_MONOTONIC`.
    pub begun_ns: Option<u64>,
    /// When it ended.
    pub ended_ns: Option<u64>,
    /// Periods with a round.
    pub rounds: u64,
    /// Periods that were left out because the one before was not over.
    pub left_out: u64,
    /// The latest wake-up.
    pub wake_up_ns: u64,
    /// The most CPU time that a period took.
    pub longest_period_ns: u64,
    /// Page faults of the monitor's thread while it guaranteed.
    pub page_faults: u64,
    /// How often the kernel stopped the monitor because the period's CPU time was used up: it
    /// confirms overruns. Null where it was not asked to tell.
    #[serde(default)]
    pub kernel_overruns: Option<u64>,
    /// Memory that it took: its maps of the sensors' buffers, what it copies to, the distributions
    /// that it counts, and what plug-ins had.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The most that admission stated; null where nothing was guaranteed.
    #[serde(default)]
    pub stated_memory_bytes: Option<u64>,
    /// Elements missed, for whatever cause.
    pub missed: u64,
    /// What should be known besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What happened in monitors of other executors: sensors that never appeared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// One per sensor, in the order of the file. What several monitors read is as the first of them
    /// saw it: the one that guarantees, if there is one.
    pub sensors: Vec<MonitoredSensor>,
    /// One per update, in the order of the file.
    pub updates: Vec<MeasuredUpdate>,
    /// What to reserve, with `--measure-wcet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<Suggestion>,
}

/// What came of a sensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MonitoredSensor {
    /// Its id in the file.
    pub id: String,
    /// What the sensors are called that it stood for.
    #[serde(default)]
    pub sensors: Vec<String>,
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
    /// The largest latency, from stamp to evaluated.
    pub latency_ns: u64,
    /// Elements that were faster than the sensor's stream.
    pub exceeding: u64,
}

/// What an update took, and what it found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasuredUpdate {
    /// Its name in the file.
    pub name: String,
    /// Who ran it: `deadline`, `bandwidth`, `buffered` or `best_effort`.
    #[serde(default)]
    pub executor: String,
    /// The latency that it wishes in the file; null where it says none.
    #[serde(default)]
    pub wished_latency_ns: Option<u64>,
    /// `finished`, or `stopped`: it missed elements and does not go on then.
    #[serde(default)]
    pub state: String,
    /// Why it was stopped; null if it has finished.
    #[serde(default)]
    #[serde(alias = "sentence")]
    pub message: Option<String>,
    /// Elements that reached it.
    pub elements: u64,
    /// Elements of its sensors that it missed, until it ended.
    #[serde(default)]
    pub missed: u64,
    /// Elements for which it took longer than its WCET.
    #[serde(default)]
    pub overruns: u64,
    /// The longest it took for one.
    pub longest_ns: u64,
    /// For an element of which sensor.
    pub longest_sensor: Option<String>,
    /// Which element of it.
    pub longest_element: Option<u64>,
    /// Its WCET in the file.
    pub wcet_ns: Option<u64>,
    /// A WCET with a margin; null without elements.
    pub suggested_wcet_ns: Option<u64>,
    /// The values of its field, or the lengths that its metric has measured, in nanoseconds.
    pub values: Option<ValueQuantiles>,
    /// The same as a distribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<HistogramReport>,
    /// Messages: sensors that do not have the field, values that are no numbers, measurements in
    /// which something was missed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<String>,
    /// What the updates of its plug-in had of the allocator's memory, at their begin or at their
    /// end, whichever is more; null without a plug-in.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// What the updates of its plug-in found, as in `updates` of the report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugin: Vec<UpdateReport>,
}

/// Half as much again as the longest that was seen, rounded up to two digits. What was seen is no
/// bound: the worst case may not have come, and the machine may have other moods.
pub(super) fn suggested(longest: Nanos) -> u64 {
    let with_margin = longest.as_ns() + longest.as_ns().div_ceil(2);
    let mut unit = 1;
    while with_margin / unit >= 100 {
        unit *= 10;
    }
    // A clock that did not move between two readings says nothing below a microsecond.
    (with_margin.div_ceil(unit) * unit).max(1_000)
}

impl MonitorReport {
    /// A monitor that could not run at all: nothing is known.
    pub fn failed() -> Self {
        Self {
            verdict: Some("inconclusive".to_string()),
            reasons: vec!["the monitor could not run".to_string()],
            ..Self::default()
        }
    }

    /// The file that `--measure-wcet` suggests; empty without it.
    pub fn suggested_file(&self) -> String {
        let suggestion = self.suggestion.as_ref();
        suggestion.map_or_else(String::new, suggestion::file)
    }

    /// The distributions that its updates found.
    pub fn histograms(&self) -> Vec<HistogramReport> {
        let counted = self.updates.iter().filter_map(|it| it.histogram.clone());
        let told = self.plugins().flat_map(UpdateReport::histograms);
        counted.chain(told).collect()
    }

    /// What the guarantee amounts to.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        match self.verdict.as_deref() {
            Some("violated") => Conclusion::Violated,
            Some("inconclusive") => Conclusion::Inconclusive,
            // A sensor that never appeared, a field that is not there.
            None if !self.reasons.is_empty() => Conclusion::Inconclusive,
            _ if !self.others.is_empty() => Conclusion::Inconclusive,
            _ if self.updates.iter().any(|it| !it.complaints.is_empty()) => {
                Conclusion::Inconclusive
            }
            _ if self.missed > 0 => Conclusion::Inconclusive,
            _ if !self.plugins().all(UpdateReport::is_complete) => Conclusion::Inconclusive,
            _ => Conclusion::Complete,
        }
    }
}

impl MonitorReport {
    /// What the executor knows of a guaranteed run, whose program was released at `start`.
    pub(super) fn of_run(
        &mut self,
        run: &DeadlineRun,
        guarantee: &Guarantee,
        terms: &Terms,
        start: Timestamp,
    ) {
        self.verdict = Some(guarantee.verdict().to_string());
        self.since_ns = guarantee.since().map(|at| at.as_monotonic_ns());
        self.reasons = guarantee.messages(terms, start);
        self.level = Some(admit::level_name(terms.level).to_string());
        self.latency_ns = Some(terms.latency.as_ns());
        self.period_ns = Some(terms.reservation.period.as_ns());
        self.runtime_ns = Some(terms.reservation.runtime.as_ns());
        self.begun_ns = Some(run.begun.as_monotonic_ns());
        self.ended_ns = Some(run.ended.as_monotonic_ns());
        self.rounds = run.rounds;
        self.left_out = run.left_out;
        self.wake_up_ns = run.wake_up.as_ns();
        self.longest_period_ns = run.longest_job.as_ns();
        self.page_faults = run.faults.minor + run.faults.major;
        self.kernel_overruns = run.kernel_overruns;
        if run.kernel_overruns.is_none() {
            self.notes.push(
                "the kernel tells of no overruns, because no handler of SIGXCPU could be had: the \
                 executor's own clock alone finds them"
                    .to_string(),
            );
        }
    }

    /// Holds it against a guarantee that the kernel did not record so many elements: whatever was
    /// promised, they were evaluated by nobody.
    pub(super) fn hear_kernel_losses(&mut self, lost: u64) {
        if lost == 0 || self.verdict.as_deref() != Some("held") {
            return;
        }
        self.verdict = Some("inconclusive".to_string());
        self.since_ns = self.begun_ns;
        self.reasons.push(format!(
            "the kernel did not enter its programs for up to {lost} elements, and does not say when or whose"
        ));
    }

    /// Holds the memory that the monitor has taken against what had been stated: more than that is
    /// an assumption that did not hold, from the guarantee's begin on.
    pub(super) fn account(
        &mut self,
        taken: &MemoryBytes,
        stated: Option<&MemoryBytes>,
        updates: &[UpdateConfig],
    ) {
        self.memory_bytes = taken.total();
        let Some(stated) = stated else { return };
        self.stated_memory_bytes = Some(stated.total());
        let excess = taken.excess_over(stated, updates);
        if !excess.is_empty() && self.verdict.as_deref() == Some("held") {
            self.verdict = Some("inconclusive".to_string());
            self.since_ns = self.begun_ns;
        }
        self.reasons.extend(excess);
    }

    /// What plug-ins computed.
    pub fn plugins(&self) -> impl Iterator<Item = &UpdateReport> {
        self.updates.iter().flat_map(|update| &update.plugin)
    }
}

/// One report of the monitors of a file, each with its selection: the first says who guarantees,
/// the others add what they ran.
pub(super) fn merged<'a>(
    config: &Config,
    monitors: impl Iterator<Item = (&'a Selection, MonitorReport)>,
) -> MonitorReport {
    let mut merged: Option<MonitorReport> = None;
    let mut sensors: Vec<Option<MonitoredSensor>> = vec![None; config.sensors.len()];
    let mut updates: Vec<Option<MeasuredUpdate>> = vec![None; config.updates.len()];
    for (selection, mut report) in monitors {
        let own = std::mem::take(&mut report.sensors).into_iter();
        let places = (0..sensors.len()).filter(|&index| selection.has_sensor(index));
        for (place, sensor) in places.zip(own) {
            sensors[place].get_or_insert(sensor);
        }
        let own = std::mem::take(&mut report.updates).into_iter();
        let places = (0..updates.len()).filter(|&index| selection.has_update(index));
        for (place, update) in places.zip(own) {
            updates[place] = Some(update);
        }
        match &mut merged {
            None => merged = Some(report),
            Some(merged) => {
                merged.missed = merged.missed.saturating_add(report.missed);
                merged.memory_bytes += report.memory_bytes;
                // A verdict has reasons of its own.
                let executor = report.executor;
                let own = |message| format!("{executor}: {message}");
                merged.others.extend(report.reasons.into_iter().map(own));
                merged.notes.extend(report.notes.into_iter().map(own));
            }
        }
    }
    let mut merged = merged.unwrap_or_default();
    merged.sensors = sensors.into_iter().flatten().collect();
    merged.updates = updates.into_iter().flatten().collect();
    merged
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::suggested;

    #[test]
    fn margin_of_half_is_rounded_up_to_two_digits() {
        for (longest, expected) in [(0, 1_000), (800, 1_200), (1_001, 1_600), (66_667, 110_000)] {
            assert_eq!(suggested(Nanos::from_ns(longest)), expected);
        }
    }
}
