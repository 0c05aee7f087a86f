// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts that reports of several kinds share: quantiles, distributions, declared rates,
//! sources, traces.

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
    /// Which is active and why, in one message.
    #[serde(alias = "sentence")]
    pub message: String,
    /// Of the kernel: the sensors that are heard, without probes.
    #[serde(default)]
    pub sensors: Vec<String>,
}

impl SourceReport {
    /// How the kernel is heard.
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
}

/// The recording.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TraceReport {
    /// Where it lies; null if nothing was kept.
    pub directory: Option<String>,
    /// Elements in it.
    pub events: u64,
    /// Its size.
    pub bytes: u64,
    /// Elements that could not be written, for instance on a full disk.
    pub unrecorded: u64,
}

/// A distribution in few numbers, exact to a thousandth unless there are too many of them
/// ([`Report::quantile_error`](crate::report::Report::quantile_error)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantiles {
    /// How many values.
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

/// The error of quantiles whose histograms are not bounded.
const USUAL_ERROR: f64 = 0.001;

/// Says that the quantiles of these are less exact than usual, if they are.
pub fn quantile_message(of: &str, error: f64) -> Option<String> {
    (error > USUAL_ERROR).then(|| {
        let percent = crate::format::number(error * 100.0);
        format!("quantiles are exact to {percent} % only: the histograms of all {of} together would not fit into memory")
    })
}

/// (T, D, tau) as declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclaredReport {
    /// T.
    pub period_ns: u64,
    /// D.
    pub distance_ns: u64,
    /// tau.
    pub jitter_ns: u64,
}

/// A distribution for a picture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HistogramReport {
    /// What was counted.
    pub title: String,
    /// Unit of the values.
    pub unit: String,
    /// Counts, from the least values to the greatest. `low` and `high` are both included, unless
    /// values are fractions.
    pub buckets: Vec<BucketReport>,
    /// Whether values are fractions: then `high` is not included, but in the last bucket and where
    /// it is equal to `low`.
    #[serde(default)]
    pub fractions: bool,
}

impl HistogramReport {
    /// From lengths, in buckets between preferred numbers.
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

    /// From values of either sign, fractions or not.
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

/// One bar.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BucketReport {
    /// Smallest value.
    #[serde(serialize_with = "as_number")]
    pub low: f64,
    /// Largest value.
    #[serde(serialize_with = "as_number")]
    pub high: f64,
    /// How many.
    pub count: u64,
}

/// Values of a field in few numbers, exact to the error of the
/// [`Distribution`](overhear_metrics::Distribution::error): a thousandth, or up to 0.25 where
/// memory is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValueQuantiles {
    /// How many values.
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

/// Whole numbers are written without a point, as far as doubles have them all.
fn as_number<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    const WHOLE: f64 = (1_u64 << f64::MANTISSA_DIGITS) as f64;
    if value.trunc() == *value && value.abs() <= WHOLE {
        serializer.serialize_i64(*value as i64)
    } else {
        serializer.serialize_f64(*value)
    }
}
