// SPDX-License-Identifier: MIT OR Apache-2.0
//! The statistics against a slow reference that keeps all samples.

use std::collections::BTreeMap;

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Origin, SamplePoint, SampleSchema, StreamDescriptor,
    StreamId, Timestamp, TypeSchema,
};
use proptest::prelude::*;

use super::{Derived, SampleSeries, SampleStatistics, SampledTask, MAX_TASKS};

fn schema() -> TypeSchema {
    let schema = SampleSchema::new().count("cycles", "");
    let schema = schema.count("instructions", "").count("llc_misses", "");
    let schema = schema.count("cpu_time", "ns").level("rss", "B");
    schema.real_level("load", "").build().expect("valid")
}

#[derive(Clone, Debug)]
struct Sample {
    tid: u32,
    pid: u32,
    point: u32,
    duration: u64,
    counts: [u64; 4],
    rss: i64,
    load: f64,
    cpu: u32,
}

impl Sample {
    fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for word in [self.tid, self.pid, self.point, self.cpu] {
            payload.extend(word.to_ne_bytes());
        }
        for word in [self.duration].iter().chain(&self.counts) {
            payload.extend(word.to_ne_bytes());
        }
        payload.extend(self.rss.to_ne_bytes());
        payload.extend(self.load.to_ne_bytes());
        payload
    }
}

fn streams(origin: impl Fn(u32) -> Origin) -> [StreamDescriptor; 2] {
    [0, 1].map(|cpu| StreamDescriptor::new(StreamId::from_raw(4 + cpu), origin(cpu), "s", schema()))
}

fn kernel_streams() -> [StreamDescriptor; 2] {
    streams(|cpu| Origin::Kernel { cpu })
}

fn feed(statistics: &mut SampleStatistics, samples: &[Sample], streams: &[StreamDescriptor; 2]) {
    for (place, sample) in samples.iter().enumerate() {
        statistics.element(&ElementView {
            stream: &streams[sample.cpu as usize],
            sequence: place as u64,
            time: Timestamp::from_monotonic_ns(1_000 * place as u64),
            payload: &sample.payload(),
        });
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    let small = prop_oneof![0_u64..4, 0_u64..2_000_000_000, Just(u64::MAX / 2)];
    let point = prop_oneof![Just(1_u32), Just(8), Just(8), Just(9), Just(10), Just(77)];
    let counts = [small.clone(), small.clone(), small.clone(), small];
    (1_u32..4, point, 0_u64..50_000, counts, -9_i64..9, 0_u32..2).prop_map(
        |(tid, point, duration, counts, rss, cpu)| Sample {
            tid,
            pid: 1,
            point,
            duration,
            counts,
            rss,
            load: if rss == 7 { f64::NAN } else { rss as f64 / 4.0 },
            cpu,
        },
    )
}

/// The exact quantile of these values: the rank that the distribution takes.
fn quantile(values: &mut [f64], fraction: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (fraction * values.len() as f64).ceil().max(1.0);
    values[rank as usize - 1]
}

/// The slow reference of one series.
fn check_series(found: &SampleSeries, series: &[Sample]) {
    assert_eq!(found.count, series.len() as u64);
    let duration: u64 = series.iter().map(|it| it.duration).sum();
    assert_eq!(found.duration_ns, duration);
    for (index, quantity) in found.quantities.iter().enumerate() {
        let value = |sample: &Sample| match index {
            4 => sample.rss as f64,
            5 => sample.load,
            count => sample.counts[count] as f64,
        };
        let all = series.iter().map(value);
        let mut all: Vec<f64> = all.filter(|it| it.is_finite()).collect();
        assert_eq!(quantity.values.count(), all.len() as u64);
        assert_eq!(quantity.not_finite, (series.len() - all.len()) as u64);
        if index < 4 {
            let total: u128 = series.iter().map(|it| u128::from(it.counts[index])).sum();
            assert_eq!(quantity.total, total);
        }
        if all.is_empty() {
            assert_eq!(quantity.values.mean(), None);
            continue;
        }
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let close = (quantity.values.mean().unwrap() - mean).abs() <= 1e-9 * mean.abs().max(1.0);
        assert!(close, "mean of {index}");
        for fraction in [0.0, 0.5, 0.9, 0.99, 1.0] {
            let exact = quantile(&mut all, fraction);
            let found = quantity.values.quantile(fraction).unwrap();
            let error = quantity.values.error() * exact.abs();
            assert!((found - exact).abs() <= error, "{found} is not {exact}");
        }
    }
}

proptest! {
    #[test]
    fn series_and_totals_equal_the_reference(
        samples in proptest::collection::vec(sample(), 0..300),
        is_in_kernel in any::<bool>(),
    ) {
        let mut statistics = SampleStatistics::default();
        let streams = match is_in_kernel {
            true => kernel_streams(),
            // The lanes of a sensor in a program.
            false => streams(|_| Origin::program(1, "p")).map(|stream| {
                let lane = stream.id.as_raw() - 4;
                StreamDescriptor { lane: Some(lane), ..stream }
            }),
        };
        feed(&mut statistics, &samples, &streams);
        let mut by_task: BTreeMap<u32, Vec<&Sample>> = BTreeMap::new();
        for sample in &samples {
            by_task.entry(sample.tid).or_default().push(sample);
        }
        // The streams of two CPUs, or lanes, are one sampler.
        prop_assert_eq!(statistics.samplers().count(), usize::from(!samples.is_empty()));
        for account in statistics.samplers() {
            prop_assert_eq!(account.samples, samples.len() as u64);
            prop_assert!(account.is_complete());
            prop_assert_eq!(account.tasks().count(), by_task.len());
            for task in account.tasks() {
                let own = &by_task[&task.tid];
                let jobs = own.iter().filter(|it| it.point == 8).map(|it| (*it).clone());
                check_series(&task.jobs, &jobs.collect::<Vec<Sample>>());
                let is_other = |it: &&Sample| it.point != 8 && it.point != 9;
                let others = own.iter().filter(|it| is_other(it)).map(|it| (*it).clone());
                let others: Vec<Sample> = others.collect();
                check_series(&task.samples, &others);
                let is_total = |it: &&&Sample| {
                    it.point == 9 || (it.point == 8) == others.is_empty()
                };
                for quantity in 0..4 {
                    let total: u128 = own.iter().filter(is_total)
                        .map(|it| u128::from(it.counts[quantity])).sum();
                    prop_assert_eq!(task.total(quantity), Some(total));
                }
                prop_assert_eq!(task.total(4), None);
                let duration: u64 = own.iter().filter(is_total).map(|it| it.duration).sum();
                prop_assert_eq!(task.duration_ns(), duration);
            }
        }
    }
}

#[test]
fn distributions_stay_within_their_memory() {
    const BYTES: usize = 1 << 19;
    for seed in 1..=3_u64 {
        let mut number = seed;
        let mut next = move || {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            number
        };
        let mut sample = || Sample {
            tid: 1 + (next() % 8) as u32,
            pid: 1,
            point: if next() % 2 == 0 { 8 } else { 2 },
            duration: next() >> 40,
            counts: [next() >> 20, next() >> 30, next() >> 45, next() >> 40],
            rss: (next() >> 33).cast_signed(),
            load: (next() >> 20) as f64 / 7.0,
            cpu: (next() % 2) as u32,
        };
        let samples: Vec<Sample> = (0..20_000).map(|_| sample()).collect();
        let mut statistics = SampleStatistics::default().with_histogram_bytes(BYTES);
        feed(&mut statistics, &samples, &kernel_streams());
        let error = statistics.quantile_error();
        assert!((0.001..=0.25).contains(&error), "{error}");
        let accounts = statistics.accounts.iter_mut();
        let tasks = accounts.flat_map(|it| it.tasks.values_mut());
        let distributions = tasks.flat_map(SampledTask::distributions);
        let bytes: usize = distributions.map(|it| it.bytes()).sum();
        // The value that exceeds the bound is recorded before all are made to fit.
        assert!(bytes <= BYTES + BYTES / 100, "{bytes}");
    }
}

#[test]
fn gaps_are_counted_by_cause_and_sums_become_lower_bounds() {
    let streams = kernel_streams();
    let mut statistics = SampleStatistics::default();
    let at = Timestamp::from_monotonic_ns;
    for (stream, missed, cause) in [
        (0, 3, GapCause::Overwritten),
        (1, 4, GapCause::Overwritten),
        (1, 1, GapCause::Full),
    ] {
        let gap = Gap {
            stream: streams[stream].id,
            first: 0,
            missed,
            from: at(0),
            to: at(1),
            cause,
        };
        statistics.gap(&streams[stream], &gap);
    }
    let account = statistics.samplers().next().expect("one sampler");
    assert_eq!(account.missed_total(), 8);
    assert_eq!(account.missed[&GapCause::Overwritten], 7);
    assert!(!account.is_complete());
}

#[test]
fn threads_beyond_the_limit_are_counted_as_refused() {
    let streams = streams(|_| Origin::Sampler);
    let mut statistics = SampleStatistics::default();
    let more = 7;
    let samples: Vec<Sample> = (0..MAX_TASKS as u32 + more)
        .map(|tid| Sample {
            tid,
            pid: 1,
            point: 9,
            duration: 1,
            counts: [1; 4],
            rss: 0,
            load: 0.0,
            cpu: 0,
        })
        .collect();
    feed(&mut statistics, &samples, &streams);
    let account = statistics.samplers().next().expect("one sampler");
    assert_eq!(account.tasks().count(), MAX_TASKS);
    assert_eq!(account.refused, u64::from(more));
    assert!(!account.is_complete());
}

#[test]
fn ratios_come_from_the_counts_that_exist() {
    let statistics = |schema: TypeSchema| {
        let layout = overhear_event::SampleLayout::of(&schema).expect("a sample");
        Derived::of(layout.quantities())
    };
    let all = statistics(schema());
    let counts = |index: usize| Some([2_000.0, 3_000.0, 6.0, 500.0, 1.0, 1.0][index]);
    assert_eq!(all.ipc(counts), Some(1.5));
    assert_eq!(all.per_thousand_instructions(2, counts), Some(2.0));
    assert_eq!(all.per_thousand_instructions(0, counts), None);
    assert_eq!(all.share(3, 1_000, counts), Some(0.5));
    assert_eq!(all.share(3, 0, counts), None);
    assert_eq!(all.share(2, 1_000, counts), None);
    assert_eq!(all.ipc(|_| Some(0.0)), None);
    let few = SampleSchema::new()
        .count("llc_misses", "")
        .level("cycles", "");
    let few = statistics(few.build().expect("valid"));
    assert_eq!(few.ipc(counts), None);
    assert_eq!(few.per_thousand_instructions(0, counts), None);
}

#[test]
fn other_elements_are_no_samples() {
    let schema = TypeSchema::builder("t").field("value", overhear_event::FieldKind::U64, "");
    let schema = schema.build().expect("valid");
    let stream = StreamDescriptor::new(StreamId::from_raw(1), Origin::Sampler, "x", schema);
    let mut statistics = SampleStatistics::default();
    statistics.element(&ElementView {
        stream: &stream,
        sequence: 0,
        time: Timestamp::ZERO,
        payload: &[0; 8],
    });
    assert_eq!(statistics.samplers().count(), 0);
    assert_eq!(SamplePoint::JobEnd.as_raw(), 8);
}
