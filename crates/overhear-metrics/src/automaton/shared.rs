// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics that a monitor's thread evaluates while another one takes the results.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overhear_event::{ElementView, EventName, EventSet, Gap, StreamDescriptor, Timestamp, Update};

use super::engine::Metrics;
use super::metric::Metric;
use super::results::{MeasurementGap, MetricResult, Results};

/// What a metric has measured since it was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The measurements, in the order in which they were completed.
    pub results: Vec<MetricResult>,
    /// The gaps that fell into them.
    pub gaps: Vec<MeasurementGap>,
    /// Elements of its events that were missed so far: measurements may be missing.
    pub missed: u64,
    /// Measurements that were running when their task ended, so far.
    pub unfinished: u64,
    /// Elements and measurements that found no room so far.
    pub refused: u64,
    /// Events that it needs and of which there was no stream so far.
    pub unheard: Vec<EventName>,
}

/// Metrics of which copies share one engine: the [`Update`] that a monitor calls, and who asks for results.
///
/// The evaluating thread waits for whoever asks, for as long as it takes to move the results out: this is for
/// monitors of best effort.
#[derive(Clone, Debug)]
pub struct SharedMetrics(Arc<Mutex<Engine>>);

#[derive(Debug)]
struct Engine {
    metrics: Metrics<Results>,
    heard: EventSet,
}

impl SharedMetrics {
    /// These metrics, whose results are kept by `results` until they are taken.
    #[must_use]
    pub fn new(metrics: impl IntoIterator<Item = Metric>, results: Results) -> Self {
        let mut engine = Metrics::new(results);
        metrics.into_iter().for_each(|metric| engine.add(metric));
        Self(Arc::new(Mutex::new(Engine {
            metrics: engine,
            heard: EventSet::new(),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Engine> {
        // A panic inside of the engine ends the update; what was found until then is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What each metric, in the order in which they were given, has measured since the last call. A gap that
    /// becomes known later is no longer counted in measurements that were taken, but in what was missed.
    #[must_use]
    pub fn take(&self) -> Vec<Taken> {
        let engine = &mut *self.lock();
        let statistics: Vec<_> = engine
            .metrics
            .statistics()
            .map(|(metric, statistics)| {
                let unheard = metric.sources().iter();
                let unheard = unheard.filter(|event| !engine.heard.contains(*event));
                (unheard.cloned().collect(), statistics)
            })
            .collect();
        let all = statistics.into_iter().enumerate();
        let all = all.map(|(index, (unheard, statistics))| {
            let (results, gaps, refused) = engine.metrics.sink_mut().take(index);
            Taken {
                results,
                gaps,
                missed: statistics.missed,
                unfinished: statistics.unfinished,
                refused: refused + statistics.refused,
                unheard,
            }
        });
        all.collect()
    }

    /// Sentences about streams that bear the name of a required event but lack a field.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        self.lock().metrics.complaints().to_vec()
    }
}

impl Update for SharedMetrics {
    fn requires(&self) -> EventSet {
        self.lock().metrics.requires()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        let mut engine = self.lock();
        engine.heard.insert(stream.event());
        engine.metrics.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.lock().metrics.element(element);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        // One lock for all of them: who asks for results gets those of whole batches.
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
    use std::sync::Arc;

    use overhear_event::{
        ElementView, FieldKind, Origin, StreamDescriptor, StreamId, Task, Timestamp, TypeSchema,
        Update,
    };

    use super::SharedMetrics;
    use crate::automaton::{Metric, Results};

    /// From an element with the number 1 to one with the last number.
    fn metric(last: u32) -> Metric {
        let text = format!(
            "metric twin\nevent a = user:s [n == 1]\nevent b = user:s [n == {last}]\nstate 0 out\n\
             state 1 begin\nstate 2 in\nstate 3 end\n0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: b, i\n3 -> 0: lambda\n"
        );
        text.parse().unwrap()
    }

    #[test]
    fn metrics_of_one_name_have_results_of_their_own() {
        let schema = TypeSchema::builder("t").field("n", FieldKind::U32, "");
        let stream = StreamDescriptor {
            id: StreamId::from_raw(1),
            origin: Origin::Program(Task {
                pid: 7,
                start: Timestamp::ZERO,
                comm: "p".to_owned(),
            }),
            sensor: "s".to_owned(),
            instance: String::new(),
            lane: None,
            schema: Arc::new(schema.build().unwrap()),
            rate: None,
            capacity: 8,
        };
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
