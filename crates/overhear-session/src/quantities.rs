// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts that reports of several kinds share: quantiles, distributions, declared rates,
//! sources, traces.

use overhear_event::ClockId;
use overhear_kernel::{ActiveBackend, Status};
use overhear_metrics::{Distribution, Histogram};
use serde::{Deserialize, Serialize, Serializer};

/// One kind of source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceReport {
    /// `kernel` or `programs`.
    pub name: String,
    /// `bpf`, `perf`, `none`; for programs the clock of their stamps.
    pub active: String,
    /// Message about the active backend or clock, and the reason.
    #[serde(alias = "sentence")]
    pub message: String,
    /// Of the kernel: the recorded sensors, without probes.
    #[serde(default)]
    pub sensors: Vec<String>,
}

impl SourceReport {
    /// The report on kernel sensors with this status.
    pub fn of_kernel(status: &Status) -> Self {
        let active = match status.active {
            ActiveBackend::Bpf => "bpf",
            ActiveBackend::Perf => "perf",
            ActiveBackend::None => "none",
        };
        let names = status
            .sensors
            .iter()
            .map(|sensor| sensor.name().to_string());
        Self {
            name: "kernel".to_string(),
            active: active.to_string(),
            message: status.message.clone(),
            sensors: names.collect(),
        }
    }

    /// The report on samplers with these names; `None` if there are none.
    pub(crate) fn of_samplers(names: &[String], notes: &[String]) -> Option<Self> {
        let message = match names {
            [] => return None,
            [one] => format!("sampler: {one}"),
            several => format!("samplers: {}", several.join(", ")),
        };
        let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
        let message = message + &notes;
        Some(Self {
            name: "samplers".to_string(),
            active: "periodic".to_string(),
            sensors: names.to_vec(),
            message,
        })
    }

    /// The report on sensors of programs, with the clock of their stamps.
    pub(crate) fn of_programs() -> Self {
        let (active, message) = match overhear_directory::sensor_clock() {
            ClockId::X86Tsc => (
                "x86_tsc",
                "the time stamp counter, which the kernel trusts as its clock",
            ),
            ClockId::ArmCntvct => ("arm_cntvct", "the virtual counter of the CPU"),
            ClockId::Monotonic => (
                "monotonic",
                "CLOCK_MONOTONIC, because the kernel does not trust the CPU's counter as its clock",
            ),
        };
        Self {
            name: "programs".to_string(),
            active: active.to_string(),
            sensors: Vec::new(),
            message: format!(
                "program sensors: an embedded directory listens; stamps come from {message}"
            ),
        }
    }
}

/// The trace of a recording.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TraceReport {
    /// Its folder; null if the run has no recording.
    pub directory: Option<String>,
    /// Number of its elements.
    pub events: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Elements that were left out, to keep the limits of the recording.
    #[serde(default)]
    pub left_out: u64,
    /// Elements that could not be written, for instance on a full disk.
    pub unrecorded: u64,
}

/// A distribution in few numbers. Its quantiles are exact to a thousandth unless memory is bounded
/// ([`Report::quantile_error`](crate::report::Report::quantile_error)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Number of values.
    pub count: u64,
    /// The smallest.
    pub min: u64,
    /// Half of the values do not exceed this.
    pub median: u64,
    /// 99 of 100 values do not exceed this.
    pub p99: u64,
    /// The largest.
    pub max: u64,
}

impl Quantiles {
    /// `None` for an empty histogram.
    #[must_use]
    pub fn of(histogram: &Histogram) -> Option<Self> {
        Some(Self {
            count: histogram.count(),
            min: histogram.min()?,
            median: histogram.quantile(0.5)?,
            p99: histogram.quantile(0.99)?,
            max: histogram.max()?,
        })
    }
}

/// Relative error of quantiles whose histograms are not bounded.
const USUAL_ERROR: f64 = 0.001;

/// A message if the quantiles of these are less exact than usual.
pub fn quantile_message(of: &str, error: f64) -> Option<String> {
    (error > USUAL_ERROR).then(|| {
        let percent = crate::format::number(error * 100.0);
        format!("quantiles are exact to {percent} % only: the histograms of all {of} together would not fit into memory")
    })
}

/// (T, D, tau) as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredReport {
    /// T, the period.
    pub period_ns: u64,
    /// D, the least distance.
    pub distance_ns: u64,
    /// tau, the jitter.
    pub jitter_ns: u64,
}

/// A distribution for display.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistogramReport {
    /// Title of the display.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Counts, by ascending values. A bucket includes `low` and `high`, unless values are
    /// fractions.
    pub buckets: Vec<BucketReport>,
    /// Whether values are fractions. Then a bucket includes `high` only if it is the last one, or
    /// if `high` equals `low`.
    #[serde(default)]
    pub fractions: bool,
}

impl HistogramReport {
    /// The report on lengths, in buckets between preferred numbers.
    #[must_use]
    pub fn new(title: &str, unit: &str, histogram: &Histogram) -> Self {
        let buckets = histogram.buckets().into_iter();
        let buckets = buckets.map(|bucket| BucketReport {
            low: bucket.low as f64,
            high: bucket.high as f64,
            count: bucket.count,
        });
        Self {
            title: title.to_string(),
            unit: unit.to_string(),
            buckets: buckets.collect(),
            fractions: false,
        }
    }

    /// The report on values of either sign, fractions or not.
    #[must_use]
    pub fn of_values(title: &str, unit: &str, values: &Distribution) -> Self {
        let buckets = values.buckets().into_iter();
        let buckets = buckets.map(|bucket| BucketReport {
            low: bucket.low,
            high: bucket.high,
            count: bucket.count,
        });
        Self {
            title: title.to_string(),
            unit: unit.to_string(),
            buckets: buckets.collect(),
            fractions: !values.is_whole(),
        }
    }
}

/// One bucket of a distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketReport {
    /// Smallest value.
    #[serde(serialize_with = "as_number")]
    pub low: f64,
    /// Largest value.
    #[serde(serialize_with = "as_number")]
    pub high: f64,
    /// Number of values.
    pub count: u64,
}

/// The values of a field in few numbers. Its quantiles are exact to the error of the
/// [`Distribution`](overhear_metrics::Distribution::error): a thousandth, or up to 0.25 where
/// memory is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueQuantiles {
    /// Number of values.
    pub count: u64,
    /// The smallest.
    #[serde(serialize_with = "as_number")]
    pub min: f64,
    /// Half of the values do not exceed this.
    #[serde(serialize_with = "as_number")]
    pub median: f64,
    /// 99 of 100 values do not exceed this.
    #[serde(serialize_with = "as_number")]
    pub p99: f64,
    /// The largest.
    #[serde(serialize_with = "as_number")]
    pub max: f64,
}

impl ValueQuantiles {
    /// `None` without values.
    #[must_use]
    pub fn of(values: &Distribution) -> Option<Self> {
        Some(Self {
            count: values.count(),
            min: values.min()?,
            median: values.quantile(0.5)?,
            p99: values.quantile(0.99)?,
            max: values.max()?,
        })
    }
}

impl From<Quantiles> for ValueQuantiles {
    fn from(lengths: Quantiles) -> Self {
        Self {
            count: lengths.count,
            min: lengths.min as f64,
            median: lengths.median as f64,
            p99: lengths.p99 as f64,
            max: lengths.max as f64,
        }
    }
}

/// Writes whole numbers without a point, up to the limit of exact integers in a double.
pub(crate) fn as_number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    const MAX_EXACT: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    if value.trunc() == *value && value.abs() <= MAX_EXACT {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f64(*value)
    }
}
