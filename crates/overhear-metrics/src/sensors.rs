// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accounts per sensor: of programs, and of the kernel except scheduling.

use std::collections::BTreeMap;
use std::sync::Arc;

use overhear_event::kernel::{SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, Field, Gap, Origin, StreamDescriptor, StreamId, Timestamp, Value,
    SAMPLE_TYPE,
};

use crate::distribution::Distribution;
use crate::histogram::{Bounded, Histogram, HistogramMemory};
use crate::samples::SampleStatistics;

/// Statistics of one numeric field, over all values except NaN.
#[derive(Clone, Debug, Default)]
pub struct FieldStatistics {
    /// The finite values.
    pub values: Distribution,
    /// Number of values that are minus infinity.
    pub negative_infinities: u64,
    /// Number of values that are infinity.
    pub infinities: u64,
}

impl FieldStatistics {
    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.values.count() + self.negative_infinities + self.infinities
    }

    /// Smallest value; `None` without values.
    #[must_use]
    pub fn min(&self) -> Option<f64> {
        match self.negative_infinities {
            0 => self.values.min().or(self.infinity()),
            _ => Some(f64::NEG_INFINITY),
        }
    }

    /// Largest value; `None` without values.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        let least = (self.negative_infinities > 0).then_some(f64::NEG_INFINITY);
        self.infinity().or(self.values.max()).or(least)
    }

    fn infinity(&self) -> Option<f64> {
        (self.infinities > 0).then_some(f64::INFINITY)
    }

    /// Mean of the finite values; `None` without any.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        self.values.mean()
    }

    #[inline]
    fn record(&mut self, value: Value<'_>, memory: &mut HistogramMemory) {
        if let Some(value) = value.as_f64() {
            if !self.values.record_within(value, memory) {
                self.infinities += u64::from(value == f64::INFINITY);
                self.negative_infinities += u64::from(value == f64::NEG_INFINITY);
            }
        }
    }
}

/// The account of one sensor.
#[derive(Clone, Debug)]
pub struct SensorAccount {
    /// The sensor's stream.
    pub stream: Arc<StreamDescriptor>,
    /// Number of evaluated elements.
    pub elements: u64,
    /// Number of missed elements.
    pub missed: u64,
    /// Time of the first element; `None` without elements.
    pub first: Option<Timestamp>,
    /// Time of the last element.
    pub last: Option<Timestamp>,
    /// Distances of neighbouring elements, in nanoseconds; not across gaps.
    pub intervals: Histogram,
    /// One per field of the schema. Those of text fields stay empty, and so do ids and kinds of the
    /// kernel: of its fields only quantities, which have a unit, and the fields of probes are
    /// counted.
    pub fields: Vec<FieldStatistics>,
    // The fields that are counted.
    counted: Vec<usize>,
    // Whether the elements are samples, which have accounts by thread, too.
    is_of_samples: bool,
    // Whether elements were missed since the last one: only distances of neighbours count.
    interrupted: bool,
}

impl SensorAccount {
    fn new(stream: Arc<StreamDescriptor>) -> Self {
        let fields = stream
            .schema
            .fields()
            .iter()
            .map(|_| FieldStatistics::default())
            .collect();
        let is_of_samples = stream.schema.id() == SAMPLE_TYPE;
        let all = stream.schema.fields().iter().enumerate();
        let counted = all.filter(|(_, field)| stream.is_quantity(field));
        let counted = counted.map(|(index, _)| index).collect();
        Self {
            stream,
            elements: 0,
            missed: 0,
            first: None,
            last: None,
            intervals: Histogram::new(),
            fields,
            counted,
            is_of_samples,
            interrupted: false,
        }
    }

    /// The counted fields with their statistics; texts have none.
    pub fn counted(&self) -> impl Iterator<Item = (&Field, &FieldStatistics)> {
        let fields = self.stream.schema.fields();
        let counted = self.counted.iter();
        let both = counted.filter_map(|index| fields.get(*index).zip(self.fields.get(*index)));
        both.filter(|(field, _)| field.kind.is_number())
    }

    fn element(&mut self, element: &ElementView<'_>, memory: &mut HistogramMemory) {
        self.elements += 1;
        self.first.get_or_insert(element.time);
        let interrupted = std::mem::take(&mut self.interrupted);
        if let Some(last) = self.last.filter(|_| !interrupted) {
            let interval = element.time.since(last).as_ns();
            self.intervals.record_within(interval, memory);
        }
        self.last = Some(element.time);
        for &index in &self.counted {
            if let Some(value) = element.stream.schema.read(index, element.payload) {
                self.fields[index].record(value, memory);
            }
        }
    }

    fn histograms(&mut self) -> impl Iterator<Item = &mut dyn Bounded> {
        let values = self.fields.iter_mut();
        let values = values.map(|field| &mut field.values as &mut dyn Bounded);
        values.chain([&mut self.intervals as &mut dyn Bounded])
    }

    /// Largest relative error of a quantile of its intervals and values.
    fn quantile_error(&self) -> f64 {
        let values = self.fields.iter().map(|field| field.values.error());
        values.fold(self.intervals.error(), f64::max)
    }

    /// Elements per second between the first and the last one, missed ones included; `None` for
    /// fewer than two elements.
    #[must_use]
    pub fn rate_hz(&self) -> Option<f64> {
        let span = self.last?.since(self.first?).as_ns();
        let steps = self.elements.saturating_add(self.missed).saturating_sub(1);
        (span > 0 && steps > 0).then(|| steps as f64 * 1e9 / span as f64)
    }
}

/// Keeps an account of every sensor of every program, and of the kernel's sensors except
/// scheduling. The lanes of a sensor share an account, and so do the CPUs of a kernel sensor.
///
/// The values of samples are in accounts of their own, see [`SensorStatistics::samples`].
#[derive(Clone, Debug, Default)]
pub struct SensorStatistics {
    accounts: Accounts,
    /// Memory of the intervals and values of all sensors.
    memory: HistogramMemory,
    samples: SampleStatistics,
}

#[derive(Clone, Debug, Default)]
struct Accounts {
    programs: BTreeMap<StreamId, SensorAccount>,
    kernel: Vec<SensorAccount>,
    /// Index of the kernel's accounts by stream.
    of_kernel: BTreeMap<StreamId, usize>,
}

impl SensorStatistics {
    /// Bounds the memory of the histograms of all sensors; the default is 24 MiB. Samples have as
    /// much again.
    #[must_use]
    pub fn with_histogram_bytes(mut self, bytes: usize) -> Self {
        self.memory = HistogramMemory::bytes(bytes);
        self.samples = self.samples.with_histogram_bytes(bytes);
        self
    }

    /// The accounts of samplers.
    #[must_use]
    pub const fn samples(&self) -> &SampleStatistics {
        &self.samples
    }

    /// The accounts of programs' sensors in the order of registration.
    pub fn accounts(&self) -> impl Iterator<Item = &SensorAccount> {
        self.accounts.programs.values()
    }

    /// The accounts of the kernel's sensors except scheduling, probes included, in the order of
    /// their first streams, which does not depend on the first writer.
    pub fn kernel_accounts(&self) -> impl Iterator<Item = &SensorAccount> {
        let Accounts {
            kernel, of_kernel, ..
        } = &self.accounts;
        let mut seen = vec![false; kernel.len()];
        let indices = of_kernel.values().copied();
        let indices = indices.filter(move |&index| !std::mem::replace(&mut seen[index], true));
        indices.map(|index| &kernel[index])
    }

    /// Largest relative error of a quantile.
    #[must_use]
    pub fn quantile_error(&self) -> f64 {
        let all = self.accounts().chain(self.kernel_accounts());
        let samples = self.samples.quantile_error();
        all.map(SensorAccount::quantile_error)
            .fold(samples, f64::max)
    }

    /// Announces a sensor, so that it is listed even if it never writes.
    pub fn announce(&mut self, stream: &Arc<StreamDescriptor>) {
        self.accounts.of(stream, || Arc::clone(stream));
        self.samples.announce(stream);
    }

    /// Coarsens the largest histograms until all fit.
    #[cold]
    fn fit(&mut self) {
        let Accounts {
            programs, kernel, ..
        } = &mut self.accounts;
        self.memory.fit(|bound| {
            let all = programs.values_mut().chain(&mut *kernel);
            all.flat_map(SensorAccount::histograms)
                .for_each(&mut *bound);
        });
    }
}

impl Accounts {
    /// The account of a stream's sensor; `None` if the accounts of threads contain it.
    fn of(
        &mut self,
        stream: &StreamDescriptor,
        shared: impl FnOnce() -> Arc<StreamDescriptor>,
    ) -> Option<&mut SensorAccount> {
        match stream.origin {
            Origin::Program(_) => {
                let account = self.programs.entry(stream.first_stream());
                Some(account.or_insert_with(|| SensorAccount::new(shared())))
            }
            Origin::Kernel { .. } if !is_of_scheduling(stream) => {
                let index = match self.of_kernel.get(&stream.id) {
                    Some(&index) => index,
                    None => self.index_of(stream, shared),
                };
                self.kernel.get_mut(index)
            }
            Origin::Kernel { .. } | Origin::Sampler => None,
        }
    }

    /// Index of the account of a new stream: another CPU's stream may have one.
    fn index_of(
        &mut self,
        stream: &StreamDescriptor,
        shared: impl FnOnce() -> Arc<StreamDescriptor>,
    ) -> usize {
        let mut known = self.kernel.iter();
        let known = known.position(|known| known.stream.is_same_sensor(stream));
        let index = known.unwrap_or_else(|| {
            self.kernel.push(SensorAccount::new(shared()));
            self.kernel.len() - 1
        });
        self.of_kernel.insert(stream.id, index);
        index
    }
}

/// Whether the accounts of threads contain the elements.
fn is_of_scheduling(stream: &StreamDescriptor) -> bool {
    [SCHED_SWITCH, SCHED_WAKE, TASK_LIFE].contains(&stream.sensor.as_str())
}

impl Analysis for SensorStatistics {
    fn element(&mut self, element: &ElementView<'_>) {
        let shared = || Arc::new(element.stream.clone());
        let mut is_of_samples = matches!(element.stream.origin, Origin::Sampler);
        if let Some(account) = self.accounts.of(element.stream, shared) {
            account.element(element, &mut self.memory);
            is_of_samples = account.is_of_samples;
            if self.memory.is_exceeded() {
                self.fit();
            }
        }
        if is_of_samples {
            self.samples.element(element);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if let Some(account) = self.accounts.of(stream, || Arc::new(stream.clone())) {
            account.missed = account.missed.saturating_add(gap.missed);
            account.interrupted = true;
        }
        self.samples.gap(stream, gap);
    }

    fn advance(&mut self, _: Timestamp) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use overhear_event::kernel::{events, Switch, SCHED_SWITCH};
    use overhear_event::{
        Analysis, ElementView, FieldKind, Gap, GapCause, Origin, StreamDescriptor, StreamId,
        Timestamp, TypeSchema,
    };

    use super::SensorStatistics;

    #[test]
    fn intervals_do_not_span_gaps_and_rates_include_missed_elements() {
        let schema = TypeSchema::builder("t")
            .field("value", FieldKind::I32, "m")
            .build()
            .unwrap();
        let stream =
            StreamDescriptor::new(StreamId::from_raw(4), Origin::program(1, "p"), "s", schema);
        let mut statistics = SensorStatistics::default();
        statistics.announce(&Arc::new(stream.clone()));
        assert_eq!(statistics.accounts().next().unwrap().rate_hz(), None);
        let at = Timestamp::from_monotonic_ns;
        for (sequence, ns, value) in [(0, 100, -5_i32), (1, 110, 7), (4, 140, 1)] {
            if sequence == 4 {
                let gap = Gap {
                    stream: stream.id,
                    first: 2,
                    missed: 2,
                    from: at(110),
                    to: at(140),
                    cause: GapCause::Overwritten,
                };
                statistics.gap(&stream, &gap);
            }
            let payload = &value.to_ne_bytes();
            let element = ElementView {
                stream: &stream,
                sequence,
                time: at(ns),
                payload,
            };
            statistics.element(&element);
        }
        let account = statistics.accounts().next().unwrap();
        assert_eq!((account.elements, account.missed), (3, 2));
        assert_eq!(account.intervals.count(), 1);
        assert_eq!(account.rate_hz(), Some(1e8));
        let field = &account.fields[0];
        assert_eq!((field.min(), field.max()), (Some(-5.0), Some(7.0)));
        assert_eq!((field.mean(), field.count()), (Some(1.0), 3));
        let quantiles = [0.3, 0.5, 1.0].map(|it| field.values.quantile(it));
        assert_eq!(quantiles, [Some(-5.0), Some(1.0), Some(7.0)]);

        // Two lanes of a second sensor: one account, with intervals in the order of time.
        let lanes = [0, 1].map(|lane| StreamDescriptor {
            id: StreamId::from_raw(10 + lane),
            lane: Some(lane),
            ..stream.clone()
        });
        for (lane, ns) in [(1, 200), (0, 210), (1, 230)] {
            let element = ElementView {
                stream: &lanes[lane],
                sequence: 0,
                time: at(ns),
                payload: &1_i32.to_ne_bytes(),
            };
            statistics.element(&element);
        }
        assert_eq!(statistics.accounts().count(), 2);
        let account = statistics.accounts().last().unwrap();
        assert_eq!((account.elements, account.intervals.count()), (3, 2));
        assert_eq!(account.intervals.max(), Some(20));
    }

    #[test]
    fn kernel_accounts_are_in_the_order_of_streams() {
        let stream = |id, cpu, sensor: &str| {
            StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::Kernel { cpu },
                sensor,
                events::ipc_schema(),
            )
        };
        let streams = [stream(1, 0, "a"), stream(2, 1, "a"), stream(3, 0, "b")];
        // The order of streams, not of writers.
        for order in [[2, 1, 0], [0, 1, 2], [1, 2, 0]] {
            let mut statistics = SensorStatistics::default();
            for index in order {
                statistics.announce(&Arc::new(streams[index].clone()));
            }
            let accounts = statistics.kernel_accounts();
            let names: Vec<_> = accounts.map(|it| it.stream.sensor.as_str()).collect();
            assert_eq!(names, ["a", "b"]);
        }
    }

    #[test]
    fn cpus_share_an_account_and_ids_are_no_quantities() {
        let stream = |id, cpu, sensor: &str, schema| {
            StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::Kernel { cpu },
                sensor,
                schema,
            )
        };
        let probes = [0, 1].map(|cpu| stream(2 + cpu, cpu, "probe/f", events::probe_schema()));
        let bytes = stream(1, 0, "ipc", events::ipc_schema());
        let switches = stream(0, 0, SCHED_SWITCH, Switch::schema());
        let mut statistics = SensorStatistics::default();
        statistics.announce(&Arc::new(bytes.clone()));
        statistics.announce(&Arc::new(switches.clone()));
        let payload = |argument: i64| {
            let mut payload = vec![7, 0, 0, 0, 7, 0, 0, 0];
            payload.extend(argument.to_ne_bytes());
            payload.resize(8 + 6 * 8, 0);
            payload
        };
        for (cpu, ns, argument) in [(0, 100, -3), (1, 150, 5), (0, 300, 4)] {
            statistics.element(&ElementView {
                stream: &probes[cpu],
                sequence: 0,
                time: Timestamp::from_monotonic_ns(ns),
                payload: &payload(argument),
            });
        }
        assert_eq!(statistics.accounts().count(), 0);
        let all: Vec<_> = statistics.kernel_accounts().collect();
        let of = |account: &super::SensorAccount| {
            let names = account.counted().map(|(field, _)| field.name.clone());
            (account.elements, names.collect::<Vec<_>>())
        };
        assert_eq!(of(all[0]), (0, vec!["bytes".to_string()]));
        let (elements, names) = of(all[1]);
        assert_eq!((elements, names.len(), all.len()), (3, 6, 2));
        assert_eq!(names[0], "argument_1");
        let first = all[1].counted().next().unwrap().1;
        assert_eq!((first.min(), first.max()), (Some(-3.0), Some(5.0)));
        assert_eq!(first.mean(), Some(2.0));
        assert_eq!(all[1].intervals.max(), Some(150));
    }

    #[test]
    fn histograms_stay_within_their_memory() {
        const BYTES: usize = 2 << 20;
        const SENSORS: u32 = 60;
        let schema = TypeSchema::builder("t").field("value", FieldKind::U64, "ns");
        let schema = Arc::new(schema.build().unwrap());
        let stream = |id| {
            StreamDescriptor::new(
                StreamId::from_raw(id),
                Origin::program(1, "p"),
                format!("s{id}"),
                Arc::clone(&schema),
            )
        };
        let streams: Vec<_> = (1..=SENSORS).map(stream).collect();
        let mut statistics = SensorStatistics::default().with_histogram_bytes(BYTES);
        for index in 0..2_000_u64 {
            for stream in &streams {
                let value = (index * 48_271 % 65_537) << (index % 9);
                statistics.element(&ElementView {
                    stream,
                    sequence: index,
                    time: Timestamp::from_monotonic_ns(index * index * 1_000),
                    payload: &value.to_ne_bytes(),
                });
            }
        }
        let accounts = statistics.accounts.programs.values_mut();
        let bytes: usize = accounts
            .flat_map(|account| account.histograms())
            .map(|histogram| histogram.bytes())
            .sum();
        assert!(bytes <= BYTES, "{bytes}");
        let error = statistics.quantile_error();
        assert!((0.001..0.2).contains(&error), "{error}");
        for account in statistics.accounts() {
            let intervals = &account.intervals;
            assert_eq!((account.elements, intervals.count()), (2_000, 1_999));
            assert_eq!(
                (intervals.min(), intervals.max()),
                (Some(1_000), Some(3_997_000))
            );
            // The distances grow from 1 us in steps of 2 us.
            let median = intervals.quantile(0.5).unwrap() as f64;
            assert!(
                (median - 1_999_000.0).abs() <= 1_999_000.0 * error,
                "{median}"
            );
        }
    }
}
