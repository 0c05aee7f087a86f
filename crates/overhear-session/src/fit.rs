// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear fit-rate`: the arrival bounds (T, D, tau) that hold for a sensor in a recording.

use std::collections::BTreeSet;
use std::path::Path;

use overhear_admission::{ArrivalBound, ParetoFront};
use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId, Timestamp,
};
use overhear_trace::TraceReader;
use serde::Serialize;

use crate::error::{ErrorKind, SessionError};

/// The arrival bounds of a recorded sensor.
#[derive(Clone, Debug, Serialize)]
pub struct FitReport {
    /// The label of the sensor, as in the report.
    pub sensor: String,
    /// Number of elements.
    pub elements: u64,
    /// Number of missed elements between them, by which the fit may be too slow.
    pub missed: u64,
    /// Number of those of them that were not observed to keep a budget.
    pub unobserved: u64,
    /// The mean distance of two elements, rounded down.
    pub mean_gap_ns: u64,
    /// The least distance of two elements.
    pub least_gap_ns: u64,
    /// T, the period of the fit.
    pub period_ns: u64,
    /// D, the largest least distance that holds in the recording.
    pub distance_ns: u64,
    /// tau, the least jitter that holds in the recording.
    pub jitter_ns: u64,
    /// The Pareto front of period and jitter: each period, in whole nanoseconds, at which the least
    /// jitter begins to grow faster. The points on the line between two neighbours hold as well.
    pub front: Vec<FrontPoint>,
}

/// A period, and the least jitter that holds with it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FrontPoint {
    /// T, the period.
    pub period_ns: u64,
    /// tau, the jitter.
    pub jitter_ns: u64,
}

impl FitReport {
    /// Whether no element between the first and the last was missed.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.missed == 0
    }
}

/// The times of the elements of one sensor, from all lanes and CPUs.
struct Times {
    // The first stream of the sensor, or of each CPU.
    streams: Vec<StreamId>,
    times: Vec<Timestamp>,
    missed: u64,
    unobserved: u64,
}

impl Analysis for Times {
    fn element(&mut self, element: &ElementView<'_>) {
        if self.streams.contains(&element.stream.first_stream()) {
            self.times.push(element.time);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if self.streams.contains(&stream.first_stream()) {
            // A gap of unknown extent is at least one element.
            let missed = gap.missed.max(1);
            self.missed = self.missed.saturating_add(missed);
            if gap.cause == GapCause::Budget {
                self.unobserved = self.unobserved.saturating_add(missed);
            }
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// Fits the elements of `sensor` in the recording `dir`. Without a `period`, T is nine tenths of
/// the mean distance: the jitter of larger ones depends on the end of the recording.
///
/// # Errors
/// [`SessionError`] if there is no such recording or sensor, or too few elements of it.
pub fn fit(dir: &Path, sensor: &str, period: Option<Nanos>) -> Result<FitReport, SessionError> {
    let usage = |message: String| SessionError::new(ErrorKind::Usage, message);
    let reader = TraceReader::open(dir).map_err(|error| usage(error.to_string()))?;
    let found = match sensor.strip_prefix("kernel:") {
        Some(name) => of_kernel(&reader, name),
        None => {
            find(&reader, sensor).map(|stream| (stream.sensor_label(), vec![stream.first_stream()]))
        }
    };
    let (label, streams) =
        found.map_err(|message| usage(format!("{}: {message}", dir.display())))?;
    let mut times = Times {
        streams,
        times: Vec::new(),
        missed: 0,
        unobserved: 0,
    };
    let _ = reader.replay(&mut [&mut times]);
    let fail = |error: &dyn std::fmt::Display| {
        usage(format!("{}: sensor {label}: {error}", dir.display()))
    };
    let front = ParetoFront::of_trace(&times.times).map_err(|error| fail(&error))?;
    let mean = u64::try_from(front.mean_gap().floor()).unwrap_or(u64::MAX);
    let period = period.unwrap_or(Nanos::from_ns((mean / 10 * 9 + mean % 10 * 9 / 10).max(1)));
    let stream = front.stream(period).map_err(|error| fail(&error))?;
    Ok(FitReport {
        elements: times.times.len() as u64,
        missed: times.missed,
        unobserved: times.unobserved,
        mean_gap_ns: mean,
        least_gap_ns: front.least_gap().as_ns(),
        period_ns: stream.period().as_ns(),
        distance_ns: stream.distance().as_ns(),
        jitter_ns: stream.jitter().as_ns(),
        front: points(&front),
        sensor: label,
    })
}

impl FitReport {
    /// The stream of the fit.
    ///
    /// # Panics
    /// Never: the numbers come from a valid bound.
    #[must_use]
    pub fn stream(&self) -> ArrivalBound {
        let [t, d, tau] = [self.period_ns, self.distance_ns, self.jitter_ns].map(Nanos::from_ns);
        ArrivalBound::new(t, d, tau, Nanos::ZERO).expect("a valid bound")
    }
}

/// The one sensor of a program with this name: `sensor`, `sensor#instance`, or with its task,
/// `comm(pid)/sensor#instance`.
pub(crate) fn find<'a>(
    reader: &'a TraceReader,
    name: &str,
) -> Result<&'a StreamDescriptor, String> {
    let mut all: Vec<&StreamDescriptor> = reader
        .streams()
        .map(AsRef::as_ref)
        .filter(|stream: &&StreamDescriptor| matches!(stream.origin, Origin::Program(_)))
        .collect();
    all.dedup_by_key(|stream| stream.first_stream());
    let labels = |streams: &[&StreamDescriptor]| {
        let labels = streams.iter().map(|stream| stream.sensor_label());
        labels.collect::<Vec<_>>().join(", ")
    };
    let found: Vec<&StreamDescriptor> = all
        .iter()
        .copied()
        .filter(|stream| {
            let label = stream.sensor_label();
            let without_task = label.split_once('/').map_or("", |(_, rest)| rest);
            [label.as_str(), without_task, &stream.sensor].contains(&name)
        })
        .collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] if all.is_empty() => Err("no sensor of a program was recorded".to_string()),
        [] => Err(format!(
            "there is no sensor `{name}`; there are {}",
            labels(&all)
        )),
        several => Err(format!(
            "`{name}` stands for several sensors; name one of {}",
            labels(several)
        )),
    }
}

/// The label of a kernel sensor, and its streams on all CPUs.
fn of_kernel(reader: &TraceReader, name: &str) -> Result<(String, Vec<StreamId>), String> {
    let all = reader.streams().map(AsRef::as_ref);
    let all = all.filter(|it: &&StreamDescriptor| matches!(it.origin, Origin::Kernel { .. }));
    let all: Vec<&StreamDescriptor> = all.collect();
    let own = all.iter().filter(|stream| stream.sensor == name);
    let streams: Vec<StreamId> = own.map(|stream| stream.id).collect();
    if !streams.is_empty() {
        return Ok((format!("kernel:{name}"), streams));
    }
    let names: BTreeSet<&str> = all.iter().map(|stream| stream.sensor.as_str()).collect();
    Err(match names.is_empty() {
        true => "no sensor of the kernel was recorded".to_string(),
        false => {
            let names: Vec<&str> = names.into_iter().collect();
            format!(
                "there is no kernel sensor `{name}`; there are {}",
                names.join(", ")
            )
        }
    })
}

/// Points of the front at which the jitter begins to grow faster, up to the mean distance.
fn points(front: &ParetoFront) -> Vec<FrontPoint> {
    let mut periods: Vec<u64> = front
        .slopes()
        .filter_map(|slope| u64::try_from(slope.floor()).ok())
        .filter(|&period| period > 0)
        .collect();
    periods.sort_unstable();
    periods.dedup();
    let point = |period_ns| {
        let jitter = front.least_jitter(Nanos::from_ns(period_ns)).ok()?;
        let jitter_ns = u64::try_from(jitter).ok()?;
        Some(FrontPoint {
            period_ns,
            jitter_ns,
        })
    };
    periods.into_iter().filter_map(point).collect()
}
