// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear calibrate`: what sensors cost on this machine, so that reports can say what the
//! observation has cost.
//!
//! The method is that of seed 003, section 5.5. A loop that makes the kernel fire one kind of element
//! runs without any kernel monitor (*out*), with one that tracks somebody else (*in*), and tracked
//! (*on*), in turns. *In* less *out* is the constant cost of an event that concerns nobody, *on* less
//! *out* the cost of firing. Each round gives one value, the lower quartile of short measurements, so that what
//! else the machine does stays out; and the table shows their mean without outliers, and its confidence
//! interval of 99 %.
//! Loops fire other elements, too: those are counted, and subtracted at the price that the same round
//! has found.

mod kernel;
mod loops;
mod programs;
mod store;
mod text;

use overhear_event::kernel::SCHED_SWITCH;
use overhear_metrics::{Costs, Estimate};
use serde::{Deserialize, Serialize};

use crate::exit::Failure;

pub use loops::answer;
pub use store::{default_place, recall, Place};
pub use text::render;

/// What sensors cost on a machine. Serialises to the document that `--json` prints and that
/// `calibration.json` keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the program that measured.
    pub overhear_version: String,
    /// When, in seconds since 1970.
    pub measured_at: u64,
    /// The CPU's name. Costs of another one are not used.
    pub cpu: String,
    /// The kernel's release. Costs of another one are not used.
    pub release: String,
    /// How many rounds.
    pub rounds: u64,
    /// Kernel sensors; empty where BPF is not permitted.
    pub kernel: Vec<KernelCost>,
    /// Per element of a context switch where perf records are heard instead; null if that is not known.
    #[serde(default)]
    pub perf: Option<Cost>,
    /// Sensors of programs, by kind.
    pub programs: Vec<ProgramCost>,
    /// What a monitor pays.
    pub reading: Vec<ReadingCost>,
    /// What could not be measured, and why.
    pub notes: Vec<String>,
}

/// What one event of a kernel sensor costs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KernelCost {
    /// The sensor, without `kernel:`.
    pub sensor: String,
    /// What was looped; null if the cost is assumed.
    pub by: Option<String>,
    /// Per element that was written.
    pub firing: Cost,
    /// Per event of a thread that nobody tracks; null if it is not known.
    pub constant: Option<Cost>,
    /// Whether nothing fires it in a loop: then it is taken to cost as the dearest that was measured.
    pub assumed: bool,
}

/// What one write of a program's sensor costs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ProgramCost {
    /// `simple`, `laned` or `concurrent`.
    pub kind: String,
    /// Per element of 8 bytes.
    pub write: Cost,
    /// Per write while the sensor is switched off.
    pub switched_off: Cost,
}

/// What reading costs the monitor, not the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReadingCost {
    /// `kernel` or `programs`.
    pub of: String,
    /// Per element.
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
    /// How many rounds.
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
    /// From the values of the rounds, without the outliers; `None` for fewer than two.
    fn of(values: &[f64]) -> Option<Self> {
        Estimate::of(&without_outliers(values)).map(Self::from)
    }
}

/// What lies further from the median than three standard deviations, which are estimated by the median of the
/// distances from it: 1.4826 times as much where values are normally distributed.
const OUTLIER: f64 = 3.0 * 1.4826;

/// The values without outliers, which the seed discounts, too (section 5.3): rounds in which a state was
/// disturbed from its begin to its end, and another was not.
fn without_outliers(values: &[f64]) -> Vec<f64> {
    let Some(middle) = median(values.to_vec()) else {
        return Vec::new();
    };
    let distances = values.iter().map(|value| (value - middle).abs());
    let usual = median(distances.collect()).unwrap_or(0.0);
    let near = |value: &&f64| (*value - middle).abs() <= OUTLIER * usual;
    values.iter().filter(near).copied().collect()
}

/// `None` of nothing.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Calibration {
    /// The same with the kernel's prices as they are where it is heard in this way: `bpf`, `perf` or
    /// `none`. Of perf, switches alone have one.
    #[must_use]
    pub fn heard_by(mut self, active: &str) -> Self {
        if active == "perf" {
            self.kernel = (self.perf.iter())
                .map(|firing| KernelCost {
                    sensor: SCHED_SWITCH.to_string(),
                    by: Some("perf records".to_string()),
                    firing: *firing,
                    constant: None,
                    assumed: false,
                })
                .collect();
        }
        self
    }

    /// The costs as an evaluation needs them.
    #[must_use]
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::default();
        for cost in &self.kernel {
            costs.kernel(&cost.sensor, cost.firing.mean_ns);
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

/// A measurement is made so many times, each of about a millisecond. They are short and many rather than
/// long and few, because where two CPUs share a core whatever runs on the other one slows the loop down:
/// only a measurement that fits between two disturbances is free of them.
const REPEATS: usize = 15;

/// What a quarter of the measurements do not exceed. Disturbances only add, so that the low ones are those that are
/// looked for; but the least of all would be the lower the more there are, and the more they vary, and
/// states are compared that do not vary alike.
#[must_use]
pub fn lower_quartile(measurements: &[f64]) -> f64 {
    let mut sorted = measurements.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quarter = sorted.len().saturating_sub(1) / 4;
    sorted.get(quarter).copied().unwrap_or(0.0)
}

fn undisturbed(mut measure: impl FnMut() -> f64) -> f64 {
    let measurements: Vec<f64> = (0..REPEATS).map(|_| measure()).collect();
    lower_quartile(&measurements)
}

/// Measures, in so many rounds. `tell` hears of each that is done.
///
/// # Errors
/// [`Failure`] if the loops cannot run.
pub fn calibrate(rounds: u64, mut tell: impl FnMut(u64)) -> Result<Calibration, Failure> {
    let mut notes = Vec::new();
    // Programs first: their directory must not be disturbed by a thread that yields.
    let (programs, programs_reading) = programs::measure(rounds)?;
    let perf = kernel::measure_perf(rounds)?;
    let (kernel, kernel_reading) = kernel::measure(rounds, &mut notes, &mut tell)?;
    let reading = [("kernel", kernel_reading), ("programs", programs_reading)];
    Ok(Calibration {
        overhear_version: env!("CARGO_PKG_VERSION").to_string(),
        measured_at: store::now(),
        cpu: store::cpu(),
        release: store::release(),
        rounds,
        kernel,
        perf,
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
    use super::{lower_quartile, without_outliers, Cost};

    #[test]
    fn a_quarter_is_not_longer() {
        assert_eq!(lower_quartile(&[]), 0.0);
        assert_eq!(lower_quartile(&[3.0]), 3.0);
        assert_eq!(lower_quartile(&[9.0, 2.0, 8.0, 1.0, 7.0]), 2.0);
    }

    #[test]
    fn disturbed_rounds_are_discounted() {
        let mut rounds: Vec<f64> = (0..40).map(|round| 200.0 + f64::from(round % 5)).collect();
        let calm = Cost::of(&rounds).unwrap();
        rounds.extend([900.0, -400.0]);
        assert_eq!(Cost::of(&rounds).unwrap(), calm);
        assert_eq!(calm.samples, 40);
        // What is merely wide stays.
        let wide: Vec<f64> = (0..41).map(|round| f64::from(round * round)).collect();
        assert_eq!(without_outliers(&wide).len(), wide.len());
        assert_eq!(Cost::of(&[]), None);
        assert_eq!(Cost::of(&[1.0]), None);
        assert_eq!(Cost::of(&[1.0, 1.0]).unwrap().mean_ns, 1.0);
    }
}
