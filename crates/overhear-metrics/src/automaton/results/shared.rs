// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics that one thread evaluates while another one takes the results.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overhear_event::{
    Analysis, ElementView, EventName, EventSet, Gap, StreamDescriptor, Timestamp,
};

use super::list::{MeasurementGap, MetricResult, Results};
use crate::automaton::compile::metric::Metric;
use crate::automaton::engine::Metrics;

/// The results of a metric since the last call of [`SharedMetrics::take`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenResults {
    /// Measurements, in the order of their completion.
    pub results: Vec<MetricResult>,
    /// Gaps in these measurements.
    pub gaps: Vec<MeasurementGap>,
    /// Elements of its events missed so far: measurements may be missing.
    pub missed: u64,
    /// Measurements so far that were running when their task ended.
    pub unfinished: u64,
    /// Elements and measurements so far that found no room.
    pub refused: u64,
    /// Required events that have had no stream so far.
    pub absent_events: Vec<EventName>,
}

/// Metrics whose clones share one engine: one clone is the [`Analysis`] of a monitor, another one
/// takes the results.
///
/// [`SharedMetrics::take`] blocks the evaluating thread while it moves the results out. So it is
/// for best-effort monitors.
#[derive(Clone, Debug)]
pub struct SharedMetrics(Arc<Mutex<Engine>>);

#[derive(Debug)]
struct Engine {
    metrics: Metrics<Results>,
    /// Events of the streams that were opened.
    opened: EventSet,
}

impl SharedMetrics {
    /// These metrics; `results` keeps their measurements until they are taken.
    #[must_use]
    pub fn new(metrics: impl IntoIterator<Item = Metric>, results: Results) -> Self {
        let mut engine = Metrics::new(results);
        metrics.into_iter().for_each(|metric| engine.add(metric));
        Self(Arc::new(Mutex::new(Engine {
            metrics: engine,
            opened: EventSet::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic in the engine ends the update; the results until then are intact.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The results of each metric since the last call, in the order in which the metrics were
    /// given. A gap that becomes known later does not mark measurements that were taken; it counts
    /// in `missed`.
    #[must_use]
    pub fn take(&self) -> Vec<TakenResults> {
        let engine = &mut *self.lock();
        let statistics: Vec<_> = engine
            .metrics
            .statistics()
            .map(|(metric, statistics)| {
                let absent = metric.sources().iter();
                let absent = absent.filter(|event| !engine.opened.contains(*event));
                (absent.cloned().collect(), statistics)
            })
            .collect();
        let all = statistics.into_iter().enumerate();
        let all = all.map(|(index, (absent_events, statistics))| {
            let (results, gaps, refused) = engine.metrics.sink_mut().take(index);
            TakenResults {
                results,
                gaps,
                missed: statistics.missed,
                unfinished: statistics.unfinished,
                refused: refused + statistics.refused,
                absent_events,
            }
        });
        all.collect()
    }

    /// Complaints about streams that have the name of a required event but lack a field of it.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.lock().metrics.complaints().to_vec()
    }
}

impl Analysis for SharedMetrics {
    fn requires(&self) -> EventSet {
        self.lock().metrics.requires()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        let mut engine = self.lock();
        engine.opened.insert(stream.event());
        engine.metrics.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.lock().metrics.element(element);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        // One lock for all of them: results are taken between batches.
        self.lock().metrics.elements(elements);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.lock().metrics.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.lock().metrics.advance(now);
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{
        Analysis, ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::SharedMetrics;
    use crate::automaton::{Metric, Results};

    /// A measurement goes from an element with number 1 to one with number `last`.
    fn metric(last: u32) -> Metric {
        let text = format!(
            "metric twin\nevent a = user:s [n == 1]\nevent b = user:s [n == {last}]\nstate 0 out\n\
             state 1 begin\nstate 2 in\nstate 3 end\n0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: b, i\n3 -> 0: lambda\n"
        );
        text.parse().unwrap()
    }

    #[test]
    fn metrics_with_equal_names_have_separate_results() {
        let schema = TypeSchema::builder("t").field("n", FieldKind::U32, "");
        let stream = StreamDescriptor::new(
            StreamId::from_raw(1),
            Origin::program(7, "p"),
            "s",
            schema.build().unwrap(),
        );
        let mut metrics = SharedMetrics::new([metric(2), metric(3)], Results::default());
        for round in 0..2 {
            for n in 1..4_u32 {
                metrics.element(&ElementView {
                    stream: &stream,
                    sequence: 0,
                    time: Timestamp::from_monotonic_ns(100 * round + 10 * u64::from(n)),
                    payload: &n.to_ne_bytes(),
                });
            }
            let taken = metrics.take();
            let lengths: Vec<Vec<u64>> = taken
                .iter()
                .map(|taken| taken.results.iter().map(|it| it.length.as_ns()).collect())
                .collect();
            assert_eq!(lengths, [[10], [20]], "round {round}");
        }
    }
}
