// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear calibrate`: what sensors cost on this machine, so that reports can say what the
//! observation has cost.
//!
//! The method is that of [MKM, section 5.5]. A loop that makes the kernel fire one kind of element
//! runs without any kernel monitor (*out*), with one that tracks somebody else (*in*), and tracked
//! (*on*), in turns. *In* less *out* is the constant cost of an event that concerns nobody, *on*
//! less *out* the cost per event. Each round gives one value, the median of short measurements
//! during which the core was undisturbed, as a yardstick beside each of them tells; and the table
//! shows their mean without outliers, and its confidence interval of 99 %. Loops fire other
//! elements, too: those are counted, and subtracted at the price that the same round has found.

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

pub use loops::{answer, Sought};
pub use store::{default_place, load_calibration, Place};

/// What sensors cost on a machine. Serialises to the document that `--json` prints and that
/// `calibration.json` keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Calibration {
    /// Version of the program that measured.
    pub overhear_version: String,
    /// Version of this document: [`Calibration::FORMAT`], and 0 before it was counted, when some
    /// prices of the kernel were assumed without a word.
    #[serde(default)]
    pub format: u32,
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
    /// What each run of a program costs besides the time that the kernel's statistics tell, less
    /// what these contain of their own clock; null if that is not known. Contained in the prices.
    #[serde(default)]
    pub entry: Option<Cost>,
    /// Per element of a context switch where perf records are heard instead; null if that is not
    /// known.
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
    /// How the loop shows it; null if the cost is assumed, and in calibrations of older versions.
    #[serde(default)]
    pub method: Option<Method>,
    /// Per element that was written.
    #[serde(alias = "firing")]
    pub cost_per_event: Cost,
    /// Per event of a thread that nobody tracks; null if it is not known.
    pub constant: Option<Cost>,
    /// How long the sensor's programs run for an element, by the kernel's statistics: a part of
    /// `cost_per_event`. Null if it does not tell.
    #[serde(default)]
    pub program: Option<Cost>,
    /// Whether it could not be measured: then it is taken to cost as much as another one.
    pub assumed: bool,
    /// Why it could not be measured, as a phrase.
    #[serde(default)]
    pub because: Option<String>,
    /// The sensor whose price stands in.
    #[serde(default)]
    pub instead: Option<String>,
}

/// How a loop shows what an element costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// By the time that it takes with its sensor out, in and on.
    Loop,
    /// By how long the sensor's programs run in it, as the kernel measures, and the way to them and
    /// back.
    Statistics,
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

/// What lies further from the median than three standard deviations, which are estimated by the
/// median of the distances from it: 1.4826 times as much where values are normally distributed.
const OUTLIER: f64 = 3.0 * 1.4826;

/// Where values are ordinary; all others are outliers, which MKM discounts, too [MKM, section 5.3]:
/// a state was disturbed from its begin to its end, and another was not.
#[must_use]
pub fn ordinary(values: &[f64]) -> RangeInclusive<f64> {
    let middle = median(values);
    let distances: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    let most = OUTLIER * median(&distances);
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

    /// The same with the kernel's prices as they are where it is heard in this way: `bpf`, `perf`
    /// or `none`. Of perf, switches alone have one.
    #[must_use]
    pub fn heard_by(mut self, active: &str) -> Self {
        if active == "perf" {
            self.kernel = (self.perf.iter())
                .map(|cost| KernelCost {
                    sensor: SCHED_SWITCH.to_string(),
                    by: Some("perf records".to_string()),
                    method: Some(Method::Loop),
                    cost_per_event: *cost,
                    constant: None,
                    program: None,
                    assumed: false,
                    because: None,
                    instead: None,
                })
                .collect();
        }
        self
    }

    /// A message about a calibration that an older version has measured; `None` if this version
    /// has.
    #[must_use]
    pub fn age(&self) -> Option<String> {
        (self.format < Self::FORMAT).then(|| {
            format!(
                "the calibration is overhear {}'s, which measured fewer sensors and no probes: run `overhear calibrate` again",
                self.overhear_version
            )
        })
    }

    /// The costs as an evaluation needs them.
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

/// Measures, in so many rounds: everything, or `only` these sensors of the kernel. `tell` gets 0,
/// then the number of each round that is done.
///
/// # Errors
/// [`SessionError`] if the loops cannot run.
pub fn calibrate(
    rounds: u64,
    only: &[Sought],
    mut tell: impl FnMut(u64),
) -> Result<Calibration, SessionError> {
    tell(0);
    let mut notes = Vec::new();
    // Programs first: their directory must not be disturbed by a thread that yields.
    let (programs, programs_reading) = if only.is_empty() {
        programs::measure(rounds)?
    } else {
        (Vec::new(), None)
    };
    let mut bench = kernel::Bench::new()?;
    let perf = only
        .is_empty()
        .then(|| kernel::measure_perf(rounds, &mut bench));
    let kernel = kernel::measure(rounds, &mut bench, only, &mut notes, &mut tell);
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
        // What is merely wide stays.
        let wide: Vec<f64> = (0..41).map(|round| f64::from(round * round)).collect();
        assert_eq!(without_outliers(&wide).len(), wide.len());
        assert_eq!(Cost::of(&[]), None);
        assert_eq!(Cost::of(&[1.0]), None);
        assert_eq!(Cost::of(&[1.0, 1.0]).unwrap().mean_ns, 1.0);
    }
}
