// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dense streams exactly as admitted, while hogs, forks, files and real-time threads load every CPU.
//!
//! While the sentinels are within the assumed lateness nothing may be missed and no element may be
//! later than the bound. Best effort over the same streams under the same load exceeds the bound: the
//! load is real. The same for ten minutes:
//! `cargo test --release -p overhear-monitor --test executors -- --ignored --nocapture ten_minutes`.

use std::time::Duration;

use overhear_admission::Lateness;
use overhear_event::{Nanos, StreamDescriptor};
use overhear_monitor::executor::{SensorFigures, SensorIndex, Terms, Verdict, Watch, Watched};
use overhear_monitor::{best_effort, Monitor, Room, Sentinel, SystemClock};

use crate::alone;
use crate::deadline::{lasting, may_reserve, run, streams, terms, Sum};
use crate::load::{Load, RealTimeHogs};
use crate::rings::{now, rings, Producer, Rings};

/// Of each try.
const LENGTH: Nanos = Nanos::from_ms(20_000);
/// Best effort needs less: the real-time threads come twice a second and more.
const BEST_EFFORT: Nanos = Nanos::from_ms(2_000);

/// Producers on all rings.
fn produce() -> (Vec<Producer>, Rings) {
    let (writers, source) = rings(&[("a", 512), ("b", 512)]);
    let all = writers.into_iter().zip(streams().into_iter().zip([8, 5]));
    let producers = all.map(|(ring, (stream, burst))| Producer::start(ring, stream, burst));
    (producers.collect(), source)
}

/// What best effort does with the same streams: its figures.
fn without_guarantee(terms: &Terms) -> Vec<SensorFigures> {
    let (producers, source) = produce();
    let mut monitor = Monitor::with_room(terms.lateness.hold_back, Room::Reserved);
    monitor.add_source(Box::new(source));
    let mut sum = Sum(0, |_| ());
    let watched = Watched {
        update: &mut sum,
        sensors: None,
    };
    let sensor_of = |stream: &StreamDescriptor| {
        let mut names = terms.sensors.iter();
        names
            .position(|sensor| sensor.name == stream.sensor)
            .map(SensorIndex)
    };
    let mut watch = Watch::new(terms, vec![watched], SystemClock, sensor_of).judging();
    let begun = now();
    best_effort(&mut monitor, &mut watch, now, std::thread::sleep, |_| {
        now().since(begun) < BEST_EFFORT
    });
    drop(
        producers
            .into_iter()
            .map(Producer::stop)
            .collect::<Vec<_>>(),
    );
    watch.figures().collect()
}

#[test]
fn every_element_is_evaluated_in_time_under_load() {
    stress(LENGTH);
}

#[test]
#[ignore = "takes ten minutes"]
fn ten_minutes_of_load() {
    stress(Nanos::from_ms(600_000));
}

fn stress(length: Nanos) {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let ms = Nanos::from_ms;
    // What a virtual machine among others does now and then; /proc/stat counts in 10 ms.
    let lateness = Lateness {
        wake_up: ms(20),
        tardiness: ms(10),
        hold_back: ms(5),
    };
    let terms = terms(ms(70), lateness);
    // A sentinel is late by the executor's own work, which is no lateness of the machine.
    let allowed = terms.lateness.wake_up.plus(terms.reservation.runtime);
    // All on which best effort could escape.
    let cpus = overhear_monitor::scheduler::allowed_cpus().len();
    let load = Load::start(cpus);
    let hogs = RealTimeHogs::start(cpus, Duration::from_millis(90), Duration::from_millis(400));
    let mut worst = String::new();
    for _ in 0..3 {
        let (producers, source) = produce();
        let sentinel = match Sentinel::start(allowed) {
            Ok(sentinel) => sentinel,
            Err(error) => return println!("skipped: {error}"),
        };
        let mut sum = Sum(0, |_| ());
        let mut last = lasting(length);
        let ended = run(&terms, source, &mut sum, |monitor, guarantee| {
            // What is decided need not go on.
            guarantee.verdict() == Verdict::Held && last(monitor, guarantee)
        });
        let ended = ended.unwrap();
        let seen = sentinel.stop();
        let written: u64 = producers.into_iter().map(Producer::stop).sum();
        let mut guarantee = ended.guarantee;
        seen.breaches
            .iter()
            .for_each(|&breach| guarantee.breach(breach));
        let sentences = guarantee.sentences(&terms).join("; ");
        assert_ne!(guarantee.verdict(), Verdict::Violated, "{sentences}");
        if guarantee.verdict() == Verdict::Held {
            let figures = &ended.figures;
            assert!(
                figures.iter().all(|sensor| sensor.missed == 0),
                "{figures:?}"
            );
            assert!(figures.iter().all(|sensor| sensor.latency <= terms.latency));
            let evaluated: u64 = figures.iter().map(|sensor| sensor.elements).sum();
            assert!(
                evaluated > 0 && evaluated <= written,
                "{evaluated} of {written}"
            );
            // The load is real: the same streams without a guarantee.
            let figures = without_guarantee(&terms);
            let exceeded =
                |sensor: &SensorFigures| sensor.missed > 0 || sensor.latency > terms.latency;
            if !hogs.are_real() {
                return println!("skipped: no real-time load here, so best effort may be in time");
            }
            assert!(
                figures.iter().any(exceeded),
                "{figures:?}, bound {}",
                terms.latency
            );
            return;
        }
        // The verdict names an instant.
        assert!(guarantee.since().is_some() && !sentences.is_empty());
        let late = seen.worst().max(ended.run.wake_up);
        worst = format!("{late} > {} ({sentences})", terms.lateness.wake_up);
    }
    drop(load);
    println!("skipped: machine lateness {worst}");
}
