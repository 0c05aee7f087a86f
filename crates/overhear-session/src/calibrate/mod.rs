// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear calibrate`: the costs of sensors on this machine, for the monitoring overhead in
//! reports.
//!
//! The method is that of [MKM, section 5.5]. A loop causes one kind of kernel event. It runs in
//! turns in four states: *out*, without a kernel monitor; *in*, with a monitor that does not track
//! the loop; *on*, tracked; *counted*, tracked with its events counted and not written.
//!
//! - *in* less *out* is the constant cost, of an event that no monitor tracks.
//! - *on* less *out* is the cost per event.
//!
//! Each round gives one value: the median of short measurements during which the core was
//! undisturbed, by an interference probe next to each. The table has the mean of the rounds without
//! outliers, and its confidence interval of 99 %. A loop also causes elements of other sensors.
//! They are counted, and subtracted at the price of the same round.

mod kernel;
mod loops;
mod prices;
mod programs;
mod stopwatch;
mod store;

use std::ops::RangeInclusive;

use overhear_event::kernel::SCHED_SWITCH;
use overhear_metrics::{Costs, Estimate};
use overhear_monitor::interference::median;
use serde::{Deserialize, Serialize};

use crate::error::SessionError;

pub use loops::{echo, CalibratedSensor};
pub(crate) use programs::measure as measure_programs;
pub(crate) use stopwatch::Patience;
pub use store::{default_file, load_calibration, CalibrationFile};

/// The costs of sensors on a machine. Serialises to the document `calibration.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the program that measured.
    pub overhear_version: String,
    /// Version of this document: [`Calibration::FORMAT`]. It is 0 in documents without the member,
    /// which do not mark assumed prices.
    #[serde(default)]
    pub format: u32,
    /// Time of the measurement, in seconds since 1970.
    pub measured_at: u64,
    /// The CPU's name. Costs of another one are not used.
    pub cpu: String,
    /// The kernel's release. Costs of another one are not used.
    pub release: String,
    /// Number of rounds.
    pub rounds: u64,
    /// Kernel sensors; empty where BPF is not permitted.
    pub kernel: Vec<KernelCost>,
    /// Cost of a run of a BPF program besides the run time in the kernel's statistics, less the
    /// part of that run time that reading the clock takes; null if it is not known. The prices
    /// include it.
    #[serde(default)]
    pub entry: Option<Cost>,
    /// Cost per element of a context switch with perf records; null if it is not known.
    #[serde(default)]
    pub perf: Option<Cost>,
    /// Sensors of programs, by kind.
    pub programs: Vec<ProgramCost>,
    /// Costs of reading, which the monitor bears.
    pub reading: Vec<ReadingCost>,
    /// Messages about sensors that could not be measured, with the reasons.
    pub notes: Vec<String>,
}

/// The costs of a kernel sensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelCost {
    /// The sensor, without `kernel:`.
    pub sensor: String,
    /// The loop in words; null if the cost is assumed.
    pub by: Option<String>,
    /// The method; null if the cost is assumed, and in calibrations of older versions.
    #[serde(default)]
    pub method: Option<Method>,
    /// Cost of an element that is written.
    #[serde(alias = "firing")]
    pub cost_per_event: Cost,
    /// Cost of an event of a thread that no monitor tracks; null if it is not known.
    pub constant: Option<Cost>,
    /// Cost of an event that a budget has the programs count instead of writing an element; null if
    /// it is not known, and in calibrations of older versions.
    #[serde(default)]
    pub skipped: Option<Cost>,
    /// Run time of the sensor's BPF programs per element, by the kernel's statistics: a part of
    /// `cost_per_event`. Null without statistics.
    #[serde(default)]
    pub program: Option<Cost>,
    /// Whether it could not be measured, and the price of another sensor is used.
    pub assumed: bool,
    /// The reason that it could not be measured, as a phrase.
    #[serde(default)]
    pub because: Option<String>,
    /// The sensor whose price is used.
    #[serde(default)]
    pub instead: Option<String>,
}

/// The method by which a cost was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By the time of the loop in the states out, in and on.
    Loop,
    /// By the run time of the sensor's BPF programs in the loop, and the cost of entering them.
    Statistics,
}

/// The costs of a program's sensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramCost {
    /// `simple`, `laned` or `concurrent`.
    pub kind: String,
    /// Cost of a write of an element of 8 bytes.
    pub write: Cost,
    /// Cost of a write while the sensor is disabled.
    pub switched_off: Cost,
}

/// The cost of reading, which the monitor bears and not the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadingCost {
    /// `kernel` or `programs`.
    pub of: String,
    /// Cost per element.
    pub element: Cost,
}

/// A mean with its confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The mean, in nanoseconds.
    pub mean_ns: f64,
    /// The standard deviation of the rounds.
    pub deviation_ns: f64,
    /// Half the confidence interval of 99 %.
    pub within_ns: f64,
    /// Number of rounds.
    pub samples: u64,
}

impl From<Estimate> for Cost {
    fn from(estimate: Estimate) -> Self {
        Self {
            mean_ns: estimate.mean_ns,
            deviation_ns: estimate.deviation_ns,
            within_ns: estimate.within_ns,
            samples: estimate.samples,
        }
    }
}

impl Cost {
    /// The mean of the rounds without outliers; `None` for fewer than two values.
    fn of(values: &[f64]) -> Option<Self> {
        Estimate::of(&without_outliers(values)).map(Self::from)
    }
}

/// Distance of an outlier from the median, in medians of the distances: three standard deviations,
/// where one is 1.4826 medians of the distances if values are normally distributed.
const OUTLIER_DISTANCE: f64 = 3.0 * 1.4826;

/// The range of values that are not outliers. MKM discounts outliers as well [MKM, section 5.3]:
/// one state of a round was disturbed from begin to end, and another was not.
#[must_use]
pub fn ordinary(values: &[f64]) -> RangeInclusive<f64> {
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let most = OUTLIER_DISTANCE * median(&distances);
    middle - most..=middle + most
}

fn without_outliers(values: &[f64]) -> Vec<f64> {
    let ordinary = ordinary(values);
    let near = |value: &&f64| ordinary.contains(*value);
    values.iter().filter(near).copied().collect()
}

impl Calibration {
    /// The version of what this program measures.
    pub const FORMAT: u32 = 1;

    /// The calibration for this source of kernel events: `bpf`, `perf` or `none`. With `perf`, only
    /// context switches have a price.
    #[must_use]
    pub fn for_backend(mut self, backend: &str) -> Self {
        if backend == "perf" {
            self.kernel = (self.perf.iter())
                .map(|cost| KernelCost {
                    sensor: SCHED_SWITCH.to_string(),
                    by: Some("perf records".to_string()),
                    method: Some(Method::Loop),
                    cost_per_event: *cost,
                    constant: None,
                    skipped: None,
                    program: None,
                    assumed: false,
                    because: None,
                    instead: None,
                })
                .collect();
        }
        self
    }

    /// A message about a calibration of an older version; `None` if it is current.
    #[must_use]
    pub fn age(&self) -> Option<String> {
        (self.format < Self::FORMAT).then(|| {
            format!(
                "the calibration is overhear {}'s, which measured fewer sensors and no probes: run `overhear calibrate` again",
                self.overhear_version
            )
        })
    }

    /// The costs for analyses.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::default();
        for cost in &self.kernel {
            costs.kernel(&cost.sensor, cost.cost_per_event.mean_ns);
        }
        for cost in &self.programs {
            match &*cost.kind {
                "simple" => costs.simple(cost.write.mean_ns),
                "laned" => costs.laned(cost.write.mean_ns),
                "concurrent" => costs.concurrent(cost.write.mean_ns),
                _ => {}
            }
        }
        costs
    }
}

/// Measures in this number of rounds: all sensors, or `only` these kernel sensors. `progress` is
/// called with 0, then with the number of each completed round.
///
/// # Errors
/// [`SessionError`] if the loops cannot run.
pub fn calibrate(
    rounds: u64,
    only: &[CalibratedSensor],
    mut progress: impl FnMut(u64),
) -> Result<Calibration, SessionError> {
    progress(0);
    let mut notes = Vec::new();
    // Programs first: a thread that yields would disturb their directory.
    let (programs, programs_reading) = if only.is_empty() {
        programs::measure(rounds, Patience::CALIBRATION)?
    } else {
        (Vec::new(), None)
    };
    let mut bench = kernel::Bench::new()?;
    let perf = only
        .is_empty()
        .then(|| kernel::measure_perf(rounds, &mut bench));
    let kernel = kernel::measure(rounds, &mut bench, only, &mut notes, &mut progress);
    let reading = [("kernel", kernel.reading), ("programs", programs_reading)];
    Ok(Calibration {
        overhear_version: env!("CARGO_PKG_VERSION").to_string(),
        format: Calibration::FORMAT,
        measured_at: store::now(),
        cpu: store::cpu(),
        release: store::release(),
        rounds,
        kernel: kernel.costs,
        entry: kernel.entry,
        perf: perf.flatten(),
        programs,
        reading: reading
            .into_iter()
            .filter_map(|(of, element)| {
                Some(ReadingCost {
                    of: of.to_string(),
                    element: element?,
                })
            })
            .collect(),
        notes,
    })
}

#[cfg(test)]
mod tests {
    use super::{without_outliers, Cost};

    #[test]
    fn disturbed_rounds_are_discounted() {
        let mut rounds: Vec<f64> = (0..40).map(|round| 200.0 + f64::from(round % 5)).collect();
        let calm = Cost::of(&rounds).unwrap();
        rounds.extend([900.0, -400.0]);
        assert_eq!(Cost::of(&rounds).unwrap(), calm);
        assert_eq!(calm.samples, 40);
        // A wide distribution has no outliers.
        let wide: Vec<f64> = (0..41).map(|round| f64::from(round * round)).collect();
        assert_eq!(without_outliers(&wide).len(), wide.len());
        assert_eq!(Cost::of(&[]), None);
        assert_eq!(Cost::of(&[1.0]), None);
        assert_eq!(Cost::of(&[1.0, 1.0]).unwrap().mean_ns, 1.0);
    }
}
