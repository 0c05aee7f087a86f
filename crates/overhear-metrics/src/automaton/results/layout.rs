// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements as programs in C get them: the structs of `include/overhear/measurement.h`, and the
//! list from which the C libraries hand them out.

use std::mem::{offset_of, size_of};

use super::list::{MeasurementGap, MetricResult, Results};
use super::shared::TakenResults;
use crate::automaton::engine::Metrics;

/// `oh_measurement`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "measurement.h describes the members")]
pub struct CMeasurement {
    pub length_ns: u64,
    pub begin_ns: u64,
    pub end_ns: u64,
    pub intermediate_events: u64,
    pub own_events: u64,
    pub key: u64,
    pub missed: u64,
    pub task: u32,
    pub has_key: u32,
}

const _: () = {
    assert!(offset_of!(CMeasurement, key) == 40);
    assert!(offset_of!(CMeasurement, task) == 56);
    assert!(size_of::<CMeasurement>() == 64);
};

impl From<&MetricResult> for CMeasurement {
    fn from(result: &MetricResult) -> Self {
        Self {
            length_ns: result.length.as_ns(),
            begin_ns: result.begin.as_monotonic_ns(),
            end_ns: result.end.as_monotonic_ns(),
            intermediate_events: result.intermediate_events,
            own_events: result.own_events,
            key: result.key.unwrap_or(0),
            missed: result.missed,
            task: result.task,
            has_key: result.key.is_some().into(),
        }
    }
}

/// `oh_measurement_gap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "measurement.h describes the members")]
pub struct CMeasurementGap {
    pub measurement: u64,
    pub first: u64,
    pub missed: u64,
    pub from_ns: u64,
    pub to_ns: u64,
    pub stream: u32,
    pub cause: u32,
}

const _: () = {
    assert!(offset_of!(CMeasurementGap, stream) == 40);
    assert!(size_of::<CMeasurementGap>() == 48);
};

impl From<&MeasurementGap> for CMeasurementGap {
    fn from(named: &MeasurementGap) -> Self {
        let gap = &named.gap;
        Self {
            measurement: named.measurement as u64,
            first: gap.first,
            missed: gap.missed,
            from_ns: gap.from.as_monotonic_ns(),
            to_ns: gap.to.as_monotonic_ns(),
            stream: gap.stream.as_raw(),
            cause: gap.cause.number(),
        }
    }
}

/// The measurements of one metric, the gaps in them, and what was missed at all.
#[derive(Clone, Debug, Default)]
pub struct MeasurementList {
    results: Vec<MetricResult>,
    gaps: Vec<MeasurementGap>,
    missed: u64,
}

impl From<TakenResults> for MeasurementList {
    fn from(taken: TakenResults) -> Self {
        Self {
            results: taken.results,
            gaps: taken.gaps,
            missed: taken.missed.saturating_add(taken.refused),
        }
    }
}

impl MeasurementList {
    /// Takes the measurements of a metric out of an engine, by the metric's index.
    pub fn take(engine: &mut Metrics<Results>, metric_index: usize) -> Self {
        let counted = engine.statistics().nth(metric_index);
        let counted = counted.map_or(0, |(_, each)| each.missed.saturating_add(each.refused));
        let (results, gaps, refused) = engine.sink_mut().take(metric_index);
        Self {
            results,
            gaps,
            missed: counted.saturating_add(refused),
        }
    }

    /// Adds the measurements of a later part of the same events. `later` counts what was missed
    /// from the begin on.
    pub fn append(&mut self, later: Self) {
        let known = self.results.len();
        self.results.extend(later.results);
        self.gaps.extend(later.gaps.into_iter().map(|mut gap| {
            gap.measurement += known;
            gap
        }));
        self.missed = later.missed;
    }

    /// Number of measurements.
    #[must_use]
    pub fn count(&self) -> usize {
        self.results.len()
    }

    /// A measurement, by its number in the order of completion.
    #[must_use]
    pub fn measurement(&self, number: usize) -> Option<CMeasurement> {
        self.results.get(number).map(CMeasurement::from)
    }

    /// Number of listed gaps in measurements.
    #[must_use]
    pub fn gaps(&self) -> usize {
        self.gaps.len()
    }

    /// A gap in a measurement, by its number in the order of detection.
    #[must_use]
    pub fn gap(&self, number: usize) -> Option<CMeasurementGap> {
        self.gaps.get(number).map(CMeasurementGap::from)
    }

    /// Number of elements of the metric's events, and of measurements, that were missed or found no
    /// room.
    #[must_use]
    pub const fn missed(&self) -> u64 {
        self.missed
    }
}
