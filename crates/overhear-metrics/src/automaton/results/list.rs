// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements one by one: `Metric_Result` of [POSIX-metrics, section 2], a list of
//! `Metric_Result_Element`.

use overhear_event::{Gap, Nanos, StreamDescriptor, Timestamp};

use crate::automaton::compile::metric::Metric;
use crate::automaton::engine::{LateGap, Measurement, Sink};
use crate::overhead::Costs;

/// Largest number of measurements per metric, unless [`Results::with_limit`] sets another one:
/// about 80 MB, and 50 MB for the gaps in them.
const MEASUREMENTS: usize = 1_000_000;

/// One measurement: the five values of [POSIX-metrics, section 2], its kind, and what was missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricResult {
    /// The thread, or the process if the sensor does not name threads.
    pub task: u32,
    /// Measured time, less the cost of observation if [`Results::minus_costs`] subtracts it.
    pub length: Nanos,
    /// Time at which it began.
    pub begin: Timestamp,
    /// Time at which it was completed.
    pub end: Timestamp,
    /// Number of elements in its segments, of all streams.
    pub intermediate_events: u64,
    /// Of these, the elements of the task itself.
    pub own_events: u64,
    /// Kind of the measurement: value of the metric's key; `None` without a key.
    pub key: Option<u64>,
    /// Number of elements missed during it, as far as is known now.
    pub missed: u64,
}

/// A gap that falls into a kept measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementGap {
    /// Index of the measurement among the kept ones of its metric, from 0 on.
    pub measurement: usize,
    /// The gap.
    pub gap: Gap,
}

/// A [`Sink`] that keeps every measurement, in the order in which they were completed.
#[derive(Clone, Debug)]
pub struct Results {
    /// Indexed by metric.
    metrics: Vec<Option<Kept>>,
    limit: usize,
    costs: Costs,
    refused: u64,
}

/// The measurements of one metric.
#[derive(Clone, Debug)]
struct Kept {
    /// Number of measurements so far.
    seen: u64,
    /// Number of the first measurement in `results`.
    first: u64,
    /// Number of measurements that found no room.
    refused: u64,
    results: Vec<MetricResult>,
    gaps: Vec<MeasurementGap>,
}

impl Kept {
    /// Lists the gaps of a kept measurement, at most as many as there may be measurements.
    fn name(&mut self, measurement: usize, gaps: &[Gap], limit: usize) {
        let room = limit.saturating_sub(self.gaps.len());
        let gaps = gaps.iter().take(room);
        let named = gaps.map(|&gap| MeasurementGap { measurement, gap });
        self.gaps.extend(named);
    }
}

impl Default for Results {
    fn default() -> Self {
        Self {
            metrics: Vec::new(),
            limit: MEASUREMENTS,
            costs: Costs::default(),
            refused: 0,
        }
    }
}

impl Results {
    /// Sets the largest number of measurements that are kept per metric; further ones are counted.
    #[must_use]
    pub const fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Subtracts the cost of observation: the price of each element of the task itself that lies in
    /// a measurement. Elements without a price cost nothing.
    #[must_use]
    pub fn minus_costs(mut self, costs: impl Into<Costs>) -> Self {
        self.costs = costs.into();
        self
    }

    /// The measurements of a metric, by its index in [`Metrics`](crate::automaton::Metrics). Names
    /// may repeat; indices do not.
    #[must_use]
    pub fn of(&self, metric_index: usize) -> &[MetricResult] {
        self.kept(metric_index).map_or(&[], |kept| &kept.results)
    }

    /// The gaps in the kept measurements of a metric, in the order in which they became known: the
    /// first four of each measurement that were known when it was completed, and all that became
    /// known later. The list is as long as the [limit](Results::with_limit) at most;
    /// [`MetricResult::missed`] counts all.
    #[must_use]
    pub fn gaps_of(&self, metric_index: usize) -> &[MeasurementGap] {
        self.kept(metric_index).map_or(&[], |kept| &kept.gaps)
    }

    fn kept(&self, metric_index: usize) -> Option<&Kept> {
        self.metrics.get(metric_index)?.as_ref()
    }

    /// Takes the kept measurements of a metric and the gaps in them, which makes room for others.
    /// The third value is the number of its measurements so far that found no room.
    pub fn take(&mut self, metric_index: usize) -> (Vec<MetricResult>, Vec<MeasurementGap>, u64) {
        let kept = self.metrics.get_mut(metric_index);
        let Some(kept) = kept.and_then(Option::as_mut) else {
            return (Vec::new(), Vec::new(), 0);
        };
        kept.first = kept.seen;
        let gaps = std::mem::take(&mut kept.gaps);
        (std::mem::take(&mut kept.results), gaps, kept.refused)
    }

    /// Number of measurements that found no room.
    #[must_use]
    pub const fn refused(&self) -> u64 {
        self.refused
    }
}

/// The entry at this index, which is made if it does not exist.
fn at_index<T>(all: &mut Vec<Option<T>>, index: usize, make: impl FnOnce() -> T) -> &mut T {
    if all.len() <= index {
        all.resize_with(index + 1, || None);
    }
    all[index].get_or_insert_with(make)
}

impl Sink for Results {
    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.costs.of_stream_ns(stream)
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let kept = at_index(&mut self.metrics, measurement.metric_index, || Kept {
            seen: 0,
            first: 0,
            refused: 0,
            results: Vec::new(),
            gaps: Vec::new(),
        });
        kept.seen += 1;
        if kept.results.len() >= self.limit {
            kept.refused += 1;
            self.refused += 1;
            return;
        }
        kept.name(kept.results.len(), &measurement.missed.gaps, self.limit);
        let intermediate = measurement.intermediate.unwrap_or_default();
        kept.results.push(MetricResult {
            task: measurement.task,
            length: measurement.adjusted(),
            begin: measurement.begin,
            end: measurement.end,
            intermediate_events: intermediate.all,
            own_events: intermediate.own,
            key: measurement.key,
            missed: measurement.missed.elements,
        });
    }

    fn late_gap(&mut self, late: &LateGap<'_>) {
        let kept = self.metrics.get_mut(late.metric_index);
        let Some(kept) = kept.and_then(Option::as_mut) else {
            return;
        };
        // Numbers count from 0 on, and the kept measurements are the first ones since the last
        // `take`.
        let index = late.number.checked_sub(kept.first);
        let Some(index) = index.and_then(|index| usize::try_from(index).ok()) else {
            return;
        };
        if let Some(result) = kept.results.get_mut(index) {
            result.missed = result.missed.saturating_add(late.gap.missed);
            kept.name(index, std::slice::from_ref(late.gap), self.limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::{
        kernel, Analysis, ElementView, EventName, FieldKind, Gap, GapCause, Nanos, Origin,
        StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    use super::{MeasurementGap, Results};
    use crate::automaton::{events_required_by, new_user_metric, Catalogue, Metrics, Pattern};
    use crate::overhead::Costs;

    #[test]
    fn user_metric_has_the_five_values_of_a_measurement() {
        let (initial, r#final) = (EventName::user("begins"), EventName::user("ends"));
        let [first, last] = [&initial, &r#final].map(|event| Pattern::from(event.clone()));
        let metric = new_user_metric("mine", &first, &last, true, &Catalogue::linux()).unwrap();
        let required = events_required_by(&metric);
        assert!(required.contains(&initial) && required.contains(&r#final));

        let schema = TypeSchema::builder("t").field("n", FieldKind::U32, "");
        let schema = Arc::new(schema.build().unwrap());
        let stream = |id: u32, sensor: &str| {
            StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::program(7, "p"),
                sensor,
                Arc::clone(&schema),
            )
        };
        let streams = [stream(1, "begins"), stream(2, "ends")];
        let at = Timestamp::from_monotonic_ns;
        let results = Results::default()
            .with_limit(2)
            .minus_costs(Nanos::from_ns(3));
        let mut metrics = Metrics::new(results);
        metrics.add(metric);
        for (round, ns) in (0..).zip([10, 110, 210]) {
            for (stream, offset) in streams.iter().zip([0, 50]) {
                metrics.element(&ElementView {
                    stream,
                    sequence: round,
                    time: at(ns + offset),
                    payload: &[0; 4],
                });
            }
        }
        let gap = Gap {
            stream: streams[1].id,
            first: 3,
            missed: 4,
            from: at(155),
            to: at(300),
            cause: GapCause::Overwritten,
        };
        metrics.gap(&streams[1], &gap);
        let results = metrics.sink();
        let [first, second] = results.of(0) else {
            panic!("{results:?}");
        };
        assert_eq!((first.task, first.begin, first.end), (7, at(10), at(60)));
        // The final event lies in the last state of the segment, as in figure 2 of the paper.
        assert_eq!((first.intermediate_events, first.own_events), (1, 1));
        assert_eq!((first.length, first.missed), (Nanos::from_ns(47), 0));
        assert_eq!((second.begin, second.missed), (at(110), 4));
        let named = |measurement, gap| [MeasurementGap { measurement, gap }];
        assert_eq!(results.gaps_of(0), named(1, gap));
        assert_eq!(results.gaps_of(1), []);
        assert_eq!(results.refused(), 1);
        assert_eq!(results.of(1), []);
        // Taken measurements make room, and a gap no longer reaches them.
        let (taken, gaps, refused) = metrics.sink_mut().take(0);
        assert_eq!((taken.len(), taken[1].missed, refused), (2, 4, 1));
        assert_eq!(gaps, named(1, gap));
        for (stream, ns) in streams.iter().zip([400, 420]) {
            metrics.element(&ElementView {
                stream,
                sequence: 7,
                time: at(ns),
                payload: &[0; 4],
            });
        }
        let late = Gap { to: at(500), ..gap };
        metrics.gap(&streams[1], &late);
        let [third] = metrics.sink().of(0) else {
            panic!("{:?}", metrics.sink());
        };
        assert_eq!((third.begin, third.missed), (at(400), 4));
        assert_eq!(metrics.sink().gaps_of(0), named(0, late));
    }

    /// Between begin and end, thread 7 writes one element of each kind of sensor, and each is
    /// subtracted at its own price.
    #[test]
    fn elements_are_subtracted_at_the_price_of_their_sensor() {
        let schema = || {
            let schema = TypeSchema::builder("t").field("n", FieldKind::U32, "");
            schema.build().unwrap()
        };
        let stream = |id: u32, sensor: &str, lane, schema: TypeSchema| StreamDescriptor {
            lane,
            capacity: 8,
            ..StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::program(7, "p"),
                sensor,
                schema,
            )
        };
        let of_kernel = |id: u32, sensor: &str, schema| StreamDescriptor {
            origin: Origin::Kernel { cpu: 0 },
            ..stream(id, sensor, None, schema)
        };
        let streams = [
            stream(1, "edge", None, schema()),
            stream(2, "simple", None, schema()),
            stream(3, "laned", Some(0), schema().with_writer().unwrap()),
            stream(4, "concurrent", None, schema().with_writer().unwrap()),
            of_kernel(5, "syscall", kernel::events::syscall_schema()),
            of_kernel(6, "futex", kernel::events::futex_schema()),
        ];
        let mut costs = Costs::default();
        costs.simple(8.6);
        costs.laned(20.2);
        costs.concurrent(100.2);
        costs.kernel("syscall", 233.0);
        let metric = "metric m\nevent edge = user:edge\nstate 0 out\nstate 1 begin\nstate 2 in\nstate 3 end\n\
                      0 -> 1: edge, i\n1 -> 2: lambda\n2 -> 3: edge, i\n3 -> 0: lambda\n";
        let mut metrics = Metrics::new(Results::default().minus_costs(costs));
        metrics.add(metric.parse().unwrap());
        // Each element begins with its writer; a futex has no price, and the last system call is of
        // another thread.
        for (ns, index, thread) in [
            (1_000, 0, 7_u32),
            (1_100, 1, 7),
            (1_200, 2, 7),
            (1_300, 3, 7),
            (1_400, 4, 7),
            (1_500, 5, 7),
            (1_600, 4, 8),
            (2_000, 0, 7),
        ] {
            let stream = &streams[index];
            let mut payload = thread.to_ne_bytes().to_vec();
            payload.resize(stream.schema.size() as usize, 0);
            metrics.element(&ElementView {
                stream,
                sequence: 0,
                time: Timestamp::from_monotonic_ns(ns),
                payload: &payload,
            });
        }
        let [measured] = metrics.sink().of(0) else {
            panic!("{:?}", metrics.sink());
        };
        assert_eq!((measured.intermediate_events, measured.own_events), (6, 5));
        // 8.6 + 20.2 + 100.2 + 233.0
        assert_eq!(measured.length, Nanos::from_ns(1_000 - 362));
    }
}
