// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes out: measurements, and who takes them.

use overhear_event::{ElementView, EventName, Gap, Nanos, StreamId, Timestamp};

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

/// Elements of one event type that lie in the segments of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intermediate {
    /// All of them, whatever their task.
    pub all: u64,
    /// Those that belong to the task of the measurement.
    pub own: u64,
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
    /// The elements in its segments, in the order of [`Metric::sources`]; empty where the sink does
    /// without them ([`Sink::counts_intermediate`]).
    pub intermediate: &'a [Intermediate],
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

    /// The number of elements in its segments: the seed's *Intermediate Events*.
    #[must_use]
    pub fn intermediate_events(&self) -> u64 {
        self.intermediate.iter().map(|count| count.all).sum()
    }

    /// The length less what the observation itself took: `cost` per element of each event type,
    /// for the elements that `counts` chooses. Not less than zero.
    ///
    /// On one CPU every intermediate element costs the measured task time; on several, those of
    /// other tasks may have been written elsewhere, and [`Intermediate::own`] is the safe choice.
    #[must_use]
    pub fn adjusted(
        &self,
        cost: impl Fn(&EventName) -> Nanos,
        counts: impl Fn(&Intermediate) -> u64,
    ) -> Nanos {
        let sources = self.metric.sources().iter();
        self.less(sources.map(cost).zip(self.intermediate.iter().map(counts)))
    }

    /// The length less these elements of the task itself: what one of each event type costs, in the
    /// order of [`Metric::sources`].
    #[inline(always)]
    pub(super) fn less_own(&self, prices: &[Nanos]) -> Nanos {
        if prices.is_empty() {
            return self.length;
        }
        let own = self.intermediate.iter().map(|count| count.own);
        self.less(prices.iter().copied().zip(own))
    }

    fn less(&self, priced: impl Iterator<Item = (Nanos, u64)>) -> Nanos {
        let total = priced.fold(0_u64, |sum, (price, count)| {
            sum.saturating_add(price.as_ns().saturating_mul(count))
        });
        Nanos::from_ns(self.length.as_ns().saturating_sub(total))
    }
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
    /// Whether the elements in the segments of this metric's measurements are to be counted, which
    /// doubles what an element costs. Asked when the metric is added.
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        let _ = metric;
        true
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

    use super::{Intermediate, Measurement, Missed, Position};
    use crate::automaton::system_metric;

    #[test]
    fn lengths_are_adjusted_by_the_cost_of_each_event() {
        // Its events are those of sched_wake and of sched_switch, in this order.
        let metric = system_metric("wakeup_latency").unwrap();
        let intermediate = [
            Intermediate { all: 3, own: 1 },
            Intermediate { all: 10, own: 2 },
        ];
        let position = |sequence| Position {
            stream: StreamId::from_raw(1),
            sequence,
        };
        let measurement = Measurement {
            metric: &metric,
            metric_index: 0,
            number: 0,
            task: 7,
            begin: Timestamp::from_monotonic_ns(100),
            end: Timestamp::from_monotonic_ns(2_100),
            begin_at: position(4),
            end_at: position(9),
            length: Nanos::from_ns(2_000),
            intermediate: &intermediate,
            key: None,
            missed: &Missed::default(),
        };
        assert_eq!(measurement.intermediate_events(), 13);
        let cost = |event: &overhear_event::EventName| match event.as_str() {
            "kernel:sched_wake" => Nanos::from_ns(100),
            _ => Nanos::from_ns(70),
        };
        let all = measurement.adjusted(cost, |count| count.all);
        assert_eq!(all, Nanos::from_ns(2_000 - 3 * 100 - 10 * 70));
        let own = measurement.adjusted(cost, |count| count.own);
        assert_eq!(own, Nanos::from_ns(2_000 - 100 - 2 * 70));
        let nothing = measurement.adjusted(|_| Nanos::from_us(1), |count| count.all);
        assert_eq!(nothing, Nanos::ZERO);
    }
}
