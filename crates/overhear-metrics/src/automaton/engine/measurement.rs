// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements, and the sink that takes them.

use overhear_event::{ElementView, Gap, Nanos, StreamDescriptor, StreamId, Timestamp};

use super::intermediate::Intermediate;
use crate::automaton::compile::metric::Metric;

/// Gaps that a measurement lists; further ones are only counted.
pub(super) const MAX_LISTED_GAPS: usize = 4;

/// Position of an element: enough to find it again in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Stream of the element.
    pub stream: StreamId,
    /// Number of the element in the stream, from the stream's start.
    pub sequence: u64,
}

impl Position {
    /// No element.
    pub const NONE: Self = Self {
        stream: StreamId::from_raw(0),
        sequence: u64::MAX,
    };

    /// The position of this element.
    #[must_use]
    pub const fn of(element: &ElementView<'_>) -> Self {
        Self {
            stream: element.stream.id,
            sequence: element.sequence,
        }
    }
}

/// Elements that were missed during a measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// The first gaps, at most four.
    pub gaps: Vec<Gap>,
    /// Number of gaps.
    pub count: u64,
    /// Number of elements missed in them.
    pub elements: u64,
}

impl Missed {
    pub(super) const NONE: Self = Self {
        gaps: Vec::new(),
        count: 0,
        elements: 0,
    };

    /// Nothing, with memory for all gaps that are listed.
    pub(super) fn with_room() -> Self {
        Self {
            gaps: Vec::with_capacity(MAX_LISTED_GAPS),
            ..Self::NONE
        }
    }

    /// Removes all gaps, and keeps the memory.
    pub(super) fn clear(&mut self) {
        self.gaps.clear();
        (self.count, self.elements) = (0, 0);
    }

    /// Copies another value, within the memory that it has.
    pub(super) fn copy(&mut self, other: &Self) {
        self.clear();
        self.gaps.extend_from_slice(&other.gaps);
        (self.count, self.elements) = (other.count, other.elements);
    }

    pub(super) fn add(&mut self, gap: &Gap) {
        if self.gaps.len() < MAX_LISTED_GAPS {
            self.gaps.push(*gap);
        }
        self.count += 1;
        self.elements = self.elements.saturating_add(gap.missed);
    }
}

impl Default for Position {
    fn default() -> Self {
        Self::NONE
    }
}

/// One completed measurement, lent to a [`Sink`]: the five values of [POSIX-metrics, section 2],
/// and what was missed.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a> {
    /// The metric.
    pub metric: &'a Metric,
    /// Index of the metric in its [`Metrics`](super::Metrics), from 0 on.
    pub metric_index: usize,
    /// Number of the measurement among those of this metric, from 0 on.
    pub number: u64,
    /// The thread, or the process if the sensor does not name threads.
    pub task: u32,
    /// Time at which it began.
    pub begin: Timestamp,
    /// Time at which it was completed.
    pub end: Timestamp,
    /// Position of the element that began it; [`Position::NONE`] if the sink does not want
    /// positions ([`Sink::wants_positions`]).
    pub begin_at: Position,
    /// Position of the element that completed it; [`Position::NONE`] if the sink does not want
    /// positions.
    pub end_at: Position,
    /// Sum of its segments; at most `end - begin`.
    pub length: Nanos,
    /// Elements in its segments, of all streams; `None` if the sink does not count them
    /// ([`Sink::counts_intermediate`]).
    pub intermediate: Option<Intermediate>,
    /// Kind of the measurement: value of the metric's key; `None` without a key.
    pub key: Option<u64>,
    /// Elements missed during the measurement. Gaps that become known after its end are reported by
    /// [`Sink::late_gap`].
    pub missed: &'a Missed,
}

impl Measurement<'_> {
    /// Whether no elements were missed, as far as is known at its end.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.missed.count == 0
    }

    /// The length less the cost of writing the task's own elements; at least zero. On several CPUs,
    /// elements of other tasks were written on other CPUs, or while the task did not run.
    #[inline(always)]
    #[must_use]
    pub fn adjusted(&self) -> Nanos {
        match self.intermediate {
            None => self.length,
            Some(counted) => less(self.length, counted.own_cost),
        }
    }

    /// The length less the cost of writing all elements in its segments: the adjustment of
    /// [POSIX-metrics, section 3]. It holds on one CPU, which does nothing else while it writes.
    #[must_use]
    pub fn adjusted_on_one_cpu(&self) -> Nanos {
        match self.intermediate {
            None => self.length,
            Some(counted) => less(self.length, counted.all_cost),
        }
    }
}

const fn less(length: Nanos, cost: Nanos) -> Nanos {
    Nanos::from_ns(length.as_ns().saturating_sub(cost.as_ns()))
}

/// A gap that became known after a measurement that it falls into was reported.
#[derive(Clone, Copy, Debug)]
pub struct LateGap<'a> {
    /// The metric.
    pub metric: &'a Metric,
    /// Index of the metric in its [`Metrics`](super::Metrics), from 0 on.
    pub metric_index: usize,
    /// Number of the measurement.
    pub number: u64,
    /// Task of the measurement.
    pub task: u32,
    /// Kind of the measurement.
    pub key: Option<u64>,
    /// Whether the measurement was complete before this gap.
    pub was_complete: bool,
    /// The gap.
    pub gap: &'a Gap,
}

/// Takes the results. If it panics, other measurements that the same elements completed are lost.
pub trait Sink {
    /// Whether the elements in the segments of this metric's measurements are counted. Then each
    /// element costs several times as much, even if no metric requires its stream. Called when the
    /// metric is added.
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        let _ = metric;
        true
    }

    /// Cost of writing an element of this stream, in nanoseconds. Called once per stream, if
    /// elements are counted.
    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        let _ = stream;
        0.0
    }

    /// Whether this metric's measurements contain the positions of the elements that began and
    /// completed them, which have to be kept during the measurement. Called when the metric is
    /// added. Return false if positions are not used.
    fn wants_positions(&self, metric: &Metric) -> bool {
        let _ = metric;
        true
    }

    /// Takes a completed measurement.
    fn measurement(&mut self, measurement: &Measurement<'_>);

    /// Takes measurements of one metric in batches, in the order of their completion. Override it
    /// if that is faster than [one by one](Sink::measurement). A measurement counts as reported
    /// once it is taken from the iterator; those that are not taken are lost.
    fn measurements<'a>(
        &mut self,
        metric_index: usize,
        measurements: impl Iterator<Item = Measurement<'a>>,
    ) where
        Self: Sized,
    {
        let _ = metric_index;
        for measurement in measurements {
            self.measurement(&measurement);
        }
    }

    /// A reported measurement is incomplete: a gap that begins before its end became known later.
    fn late_gap(&mut self, gap: &LateGap<'_>) {
        let _ = gap;
    }
}

impl<S: Sink + ?Sized> Sink for &mut S {
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        (**self).counts_intermediate(metric)
    }

    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        (**self).element_cost_ns(stream)
    }

    fn wants_positions(&self, metric: &Metric) -> bool {
        (**self).wants_positions(metric)
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        (**self).measurement(measurement);
    }

    fn late_gap(&mut self, gap: &LateGap<'_>) {
        (**self).late_gap(gap);
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, StreamId, Timestamp};

    use super::{Measurement, Missed, Position};
    use crate::automaton::{system_metric, Intermediate};

    #[test]
    fn adjusted_length_is_less_by_the_cost_of_elements() {
        let metric = system_metric("wakeup_latency").unwrap();
        let position = |sequence| Position {
            stream: StreamId::from_raw(1),
            sequence,
        };
        let (ns, missed) = (Nanos::from_ns, Missed::default());
        let measurement = |intermediate| Measurement {
            metric: &metric,
            metric_index: 0,
            number: 0,
            task: 7,
            begin: Timestamp::from_monotonic_ns(100),
            end: Timestamp::from_monotonic_ns(2_100),
            begin_at: position(4),
            end_at: position(9),
            length: ns(2_000),
            intermediate,
            key: None,
            missed: &missed,
        };
        let counted = |own, all| {
            measurement(Some(Intermediate {
                all: 13,
                own: 3,
                all_cost: ns(all),
                own_cost: ns(own),
            }))
        };
        assert_eq!(counted(170, 970).adjusted(), ns(1_830));
        assert_eq!(counted(170, 970).adjusted_on_one_cpu(), ns(1_030));
        assert_eq!(counted(2_001, 2_001).adjusted(), Nanos::ZERO);
        assert_eq!(measurement(None).adjusted(), ns(2_000));
    }
}
