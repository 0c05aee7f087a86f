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
                (
                    metric.name().to_owned(),
                    unheard.cloned().collect(),
                    statistics,
                )
            })
            .collect();
        let all = statistics.into_iter().map(|(name, unheard, statistics)| {
            let (results, gaps, refused) = engine.metrics.sink_mut().take(&name);
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
