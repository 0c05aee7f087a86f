// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes out: measurements, and who takes them.

use overhear_event::{ElementView, Gap, Nanos, StreamDescriptor, StreamId, Timestamp};

use super::intermediate::Intermediate;
use super::metric::Metric;

/// How many gaps a measurement names; further ones are counted.
pub(super) const GAPS: usize = 4;

/// Where an element stands: enough to find it again in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Its stream.
    pub stream: StreamId,
    /// Its position in the stream since the stream's start.
    pub sequence: u64,
}

impl Position {
    /// Of no element.
    pub const NONE: Self = Self {
        stream: StreamId::from_raw(0),
        sequence: u64::MAX,
    };

    /// Where this element stands.
    #[must_use]
    pub const fn of(element: &ElementView<'_>) -> Self {
        Self {
            stream: element.stream.id,
            sequence: element.sequence,
        }
    }
}

/// Elements that were missed while a measurement was running.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    /// The first gaps, at most four.
    pub gaps: Vec<Gap>,
    /// How many gaps there were.
    pub count: u64,
    /// How many elements they stand for.
    pub elements: u64,
}

impl Missed {
    pub(super) const NOTHING: Self = Self {
        gaps: Vec::new(),
        count: 0,
        elements: 0,
    };

    /// Nothing, with room for all gaps that are named.
    pub(super) fn with_room() -> Self {
        Self {
            gaps: Vec::with_capacity(GAPS),
            ..Self::NOTHING
        }
    }

    /// Forgets all, and keeps the room.
    pub(super) fn clear(&mut self) {
        self.gaps.clear();
        (self.count, self.elements) = (0, 0);
    }

    /// Becomes what another one is, in the room that there is.
    pub(super) fn copy(&mut self, other: &Self) {
        self.clear();
        self.gaps.extend_from_slice(&other.gaps);
        (self.count, self.elements) = (other.count, other.elements);
    }

    pub(super) fn add(&mut self, gap: &Gap) {
        if self.gaps.len() < GAPS {
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

/// One completed measurement, lent to a [`Sink`]: the five values of the seed, and what was missed.
#[derive(Clone, Copy, Debug)]
pub struct Measurement<'a> {
    /// What was measured.
    pub metric: &'a Metric,
    /// The how many-th metric of its [`Metrics`](super::Metrics) that is, from 0 on.
    pub metric_index: usize,
    /// The how many-th measurement of this metric it is, from 0 on.
    pub number: u64,
    /// The thread, or the process where the sensor does not name threads.
    pub task: u32,
    /// When it began.
    pub begin: Timestamp,
    /// When it was completed.
    pub end: Timestamp,
    /// The element that began it; [`Position::NONE`] where the sink does without ([`Sink::wants_positions`]).
    pub begin_at: Position,
    /// The element that completed it; [`Position::NONE`] where the sink does without.
    pub end_at: Position,
    /// The sum of its segments; at most `end - begin`.
    pub length: Nanos,
    /// The elements in its segments, of whatever streams; `None` where the sink does without them
    /// ([`Sink::counts_intermediate`]).
    pub intermediate: Option<Intermediate>,
    /// The value that says of which kind it is, where the metric divides them.
    pub key: Option<u64>,
    /// What was missed while it was running. Gaps that become known only after its end come
    /// through [`Sink::doubt`].
    pub missed: &'a Missed,
}

impl Measurement<'_> {
    /// Whether nothing was missed, as far as is known at its end.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.missed.count == 0
    }

    /// The length less what writing the task's own elements has cost; not less than zero. On several CPUs the elements
    /// of others were written elsewhere, or while the task did not run.
    #[inline(always)]
    #[must_use]
    pub fn adjusted(&self) -> Nanos {
        match self.intermediate {
            None => self.length,
            Some(counted) => less(self.length, counted.own_cost),
        }
    }

    /// The length less what writing all elements in its segments has cost: the paper's adjustment. It holds on one CPU,
    /// which writes nothing while it does something else.
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

/// A gap that became known after a measurement it falls into was reported.
#[derive(Clone, Copy, Debug)]
pub struct Doubt<'a> {
    /// What was measured.
    pub metric: &'a Metric,
    /// The how many-th metric of its [`Metrics`](super::Metrics) that is, from 0 on.
    pub metric_index: usize,
    /// The number of the measurement.
    pub number: u64,
    /// Its task.
    pub task: u32,
    /// The value that says of which kind it is.
    pub key: Option<u64>,
    /// Whether it was complete so far.
    pub was_complete: bool,
    /// The gap.
    pub gap: &'a Gap,
}

/// Takes the results. If it panics, what the same elements have completed besides is lost.
pub trait Sink {
    /// Whether the elements in the segments of this metric's measurements are to be counted. Then an element costs
    /// several times as much, whether the metric requires its stream or not. Asked when the metric is added.
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        let _ = metric;
        true
    }

    /// What an element of this stream costs who writes it, in nanoseconds. Asked once per stream, if elements are counted.
    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        let _ = stream;
        0.0
    }

    /// Whether this metric's measurements are to say by which elements they began and were completed, which is to be
    /// kept for each one that runs. Asked when the metric is added.
    fn wants_positions(&self, metric: &Metric) -> bool {
        let _ = metric;
        true
    }

    /// A measurement was completed.
    fn measurement(&mut self, measurement: &Measurement<'_>);

    /// Measurements of the how many-th metric were completed, in this order: for sinks that can do better than to take
    /// them [one by one](Sink::measurement). Each counts as reported once it is taken from here; those that are not
    /// taken are lost.
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

    /// A measurement that was reported is incomplete after all: a gap that begins before its end
    /// became known later.
    fn doubt(&mut self, doubt: &Doubt<'_>) {
        let _ = doubt;
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

    fn doubt(&mut self, doubt: &Doubt<'_>) {
        (**self).doubt(doubt);
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, StreamId, Timestamp};

    use super::{Measurement, Missed, Position};
    use crate::automaton::{system_metric, Intermediate};

    #[test]
    fn lengths_are_adjusted_by_what_elements_cost() {
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
