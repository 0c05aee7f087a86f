// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of the monitors of `overhear.toml`, also as JSON.

use overhear_event::{Nanos, Timestamp};
use overhear_monitor::executor::{DeadlineRun, Guarantee, Terms};
use serde::{Deserialize, Serialize};

use super::suggestion::{self, Suggestion};
use crate::admission::{self, MemoryBytes};
use crate::conclusion::Conclusion;
use crate::config::selection::Selection;
use crate::config::{Config, UpdateConfig};
use crate::quantities::{HistogramReport, ValueQuantiles};
use crate::updates::UpdateReport;

/// The report of the monitors of a file (`docs/executors.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MonitorReport {
    /// `deadline`, `bandwidth`, `buffered` or `best_effort`; of several, the one with a guarantee.
    pub executor: String,
    /// `held`, `violated` or `inconclusive`; null without a guarantee.
    pub verdict: Option<String>,
    /// The time from which the verdict is not `held`, by `CLOCK_MONOTONIC`.
    pub since_ns: Option<u64>,
    /// Reasons of the verdict, a message for each kind.
    pub reasons: Vec<String>,
    /// `exclusive` or `shared`.
    pub level: Option<String>,
    /// The CPU that was set apart for it; null without one.
    #[serde(default)]
    pub cpu: Option<u32>,
    /// The guaranteed latency.
    pub latency_ns: Option<u64>,
    /// T_M, the period.
    pub period_ns: Option<u64>,
    /// Reserved CPU time per period.
    pub runtime_ns: Option<u64>,
    /// The begin of the guarantee, by `CLOCK_MONOTONIC`.
    pub begun_ns: Option<u64>,
    /// The end of the guarantee.
    pub ended_ns: Option<u64>,
    /// Number of periods with a round.
    pub rounds: u64,
    /// Number of periods that were skipped because the previous round had not ended.
    pub left_out: u64,
    /// The largest lateness of a wake-up.
    pub wake_up_ns: u64,
    /// The longest CPU time of a period.
    pub longest_period_ns: u64,
    /// Page faults of the monitor's thread during the guarantee.
    pub page_faults: u64,
    /// Number of times the kernel stopped the monitor because the CPU time of a period was used up,
    /// as a confirmation of overruns. Null if the kernel does not report them.
    #[serde(default)]
    pub kernel_overruns: Option<u64>,
    /// Memory of the monitor: its maps of the sensors' buffers, the queues that it copies to, the
    /// distributions that it counts, and the memory of plug-ins.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The upper bound that admission stated; null without a guarantee.
    #[serde(default)]
    pub stated_memory_bytes: Option<u64>,
    /// Number of missed elements, of all causes.
    pub missed: u64,
    /// Other messages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Reasons of monitors with other executors: sensors that never appeared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// One per sensor, in the order of the file. The figures of a sensor with several monitors are
    /// those of the first, which is the one with a guarantee if there is one.
    pub sensors: Vec<MonitoredSensor>,
    /// One per update, in the order of the file.
    pub updates: Vec<MeasuredUpdate>,
    /// The suggested reservation, if execution times were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<Suggestion>,
}

/// The figures of a sensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MonitoredSensor {
    /// Its id in the file.
    pub id: String,
    /// Labels of the sensors that the entry stood for.
    #[serde(default)]
    pub sensors: Vec<String>,
    /// Elements evaluated.
    pub elements: u64,
    /// Elements missed.
    pub missed: u64,
    /// The largest time from a stamp to the end of the evaluation.
    pub latency_ns: u64,
    /// Number of elements that exceeded the declared rate.
    pub exceeding: u64,
}

/// The figures and results of an update.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MeasuredUpdate {
    /// Its name in the file.
    pub name: String,
    /// Its executor: `deadline`, `bandwidth`, `buffered` or `best_effort`.
    #[serde(default)]
    pub executor: String,
    /// The latency that the file requests for it; null if it states none.
    #[serde(default, alias = "wished_latency_ns")]
    pub requested_latency_ns: Option<u64>,
    /// `finished`, or `stopped` by its missed policy.
    #[serde(default)]
    pub state: String,
    /// The reason that it was stopped; null if it has finished.
    #[serde(default)]
    #[serde(alias = "sentence")]
    pub message: Option<String>,
    /// Number of elements that it evaluated.
    pub elements: u64,
    /// Number of elements of its sensors that it missed until its end.
    #[serde(default)]
    pub missed: u64,
    /// Number of elements for which it took longer than its WCET.
    #[serde(default)]
    pub overruns: u64,
    /// Its longest execution time for one element.
    pub longest_ns: u64,
    /// The sensor of that element.
    pub longest_sensor: Option<String>,
    /// The sequence of that element.
    pub longest_element: Option<u64>,
    /// Its WCET in the file.
    pub wcet_ns: Option<u64>,
    /// The longest execution time with a margin; null without elements.
    pub suggested_wcet_ns: Option<u64>,
    /// The values of its field, or the lengths of its metric's measurements in nanoseconds.
    pub values: Option<ValueQuantiles>,
    /// The distribution of these values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<HistogramReport>,
    /// Messages about sensors without the field, values that are no numbers, and incomplete
    /// measurements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub complaints: Vec<String>,
    /// Bytes that the updates of its plug-in had allocated at their begin or at their end,
    /// whichever is more; null without a plug-in.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// The reports of its plug-in's updates, as in `updates` of the report.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plugin: Vec<UpdateReport>,
}

/// The longest observed time and half of it as a margin, rounded up to two digits, in nanoseconds.
/// It is no bound: the worst case may not have occurred.
pub(super) fn wcet_with_margin(longest: Nanos) -> u64 {
    let with_margin = longest.as_ns() + longest.as_ns().div_ceil(2);
    let mut unit = 1;
    while with_margin / unit >= 100 {
        unit *= 10;
    }
    // Below a microsecond the resolution of the clock is too coarse.
    (with_margin.div_ceil(unit) * unit).max(1_000)
}

impl MonitorReport {
    /// The report of a monitor that could not run.
    pub fn failed() -> Self {
        Self {
            verdict: Some("inconclusive".to_string()),
            reasons: vec!["the monitor could not run".to_string()],
            ..Self::default()
        }
    }

    /// The suggested file, as text; empty without a suggestion.
    pub fn suggested_file(&self) -> String {
        let suggestion = self.suggestion.as_ref();
        suggestion.map_or_else(String::new, suggestion::file)
    }

    /// The distributions of its updates.
    pub fn histograms(&self) -> Vec<HistogramReport> {
        let counted = self.updates.iter().filter_map(|it| it.histogram.clone());
        let reported = self.plugins().flat_map(UpdateReport::histograms);
        counted.chain(reported).collect()
    }

    /// The conclusion from the guarantee and the updates.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        match self.verdict.as_deref() {
            Some("violated") => Conclusion::Violated,
            Some("inconclusive") => Conclusion::Inconclusive,
            // A sensor that never appeared.
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
    /// Adds the figures of a guaranteed run, whose program was released at `start`.
    pub(super) fn add_run(
        &mut self,
        run: &DeadlineRun,
        guarantee: &Guarantee,
        terms: &Terms,
        start: Timestamp,
    ) {
        self.verdict = Some(guarantee.verdict().to_string());
        self.since_ns = guarantee.since().map(|at| at.as_monotonic_ns());
        self.reasons = guarantee.messages(terms, start);
        self.level = Some(admission::level_name(terms.level).to_string());
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
                "the kernel reports no overruns, because no handler of SIGXCPU could be installed: the \
                 executor finds them by its own clock alone"
                    .to_string(),
            );
        }
    }

    /// Makes a held guarantee inconclusive if the kernel did not record this number of elements.
    pub(super) fn add_kernel_losses(&mut self, lost: u64) {
        if lost == 0 || self.verdict.as_deref() != Some("held") {
            return;
        }
        self.verdict = Some("inconclusive".to_string());
        self.since_ns = self.begun_ns;
        self.reasons.push(format!(
            "the kernel did not enter its programs for up to {lost} elements, and does not report when, and of which thread"
        ));
    }

    /// Compares the memory of the monitor with the stated bound. More memory is a breach from the
    /// begin of the guarantee on.
    pub(super) fn check_memory(
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

    /// The reports of all plug-ins.
    pub fn plugins(&self) -> impl Iterator<Item = &UpdateReport> {
        self.updates.iter().flat_map(|update| &update.plugin)
    }
}

/// One report of the monitors of a file, each with its selection. The first one has the guarantee,
/// if there is one; the others add their sensors, updates and messages.
pub(super) fn merged<'a>(
    config: &Config,
    monitors: impl Iterator<Item = (&'a Selection, MonitorReport)>,
) -> MonitorReport {
    let mut merged: Option<MonitorReport> = None;
    let mut sensors: Vec<Option<MonitoredSensor>> = vec![None; config.sensors.len()];
    let mut updates: Vec<Option<MeasuredUpdate>> = vec![None; config.updates.len()];
    for (selection, mut report) in monitors {
        let own = std::mem::take(&mut report.sensors).into_iter();
        let indices = (0..sensors.len()).filter(|&index| selection.has_sensor(index));
        for (index, sensor) in indices.zip(own) {
            sensors[index].get_or_insert(sensor);
        }
        let own = std::mem::take(&mut report.updates).into_iter();
        let indices = (0..updates.len()).filter(|&index| selection.has_update(index));
        for (index, update) in indices.zip(own) {
            updates[index] = Some(update);
        }
        match &mut merged {
            None => merged = Some(report),
            Some(merged) => {
                merged.missed = merged.missed.saturating_add(report.missed);
                merged.memory_bytes += report.memory_bytes;
                // `reasons` are those of the verdict.
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

    use super::wcet_with_margin;

    #[test]
    fn margin_of_half_is_rounded_up_to_two_digits() {
        for (longest, expected) in [(0, 1_000), (800, 1_200), (1_001, 1_600), (66_667, 110_000)] {
            assert_eq!(wcet_with_margin(Nanos::from_ns(longest)), expected);
        }
    }
}
