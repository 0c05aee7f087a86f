// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rate of false alarms over several distributions, and the detection of planted faults.

use overhear_event::{SampleHeader, SampleLayout, SamplePoint, SampleSchema, Timestamp};

use super::{AnomalyDetector, FIRST_JUDGED, KEPT_ANOMALIES, MAX_TASKS};
use crate::samples::reader::Sample;

/// Pseudo-random numbers: splitmix64.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Above 0, up to 1.
    fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

fn detector() -> AnomalyDetector {
    let schema = SampleSchema::new().count("cycles", "");
    let schema = schema.count("instructions", "").count("llc_misses", "");
    let schema = schema.level("rss", "B").level("state", "");
    let schema = schema.build().expect("valid");
    AnomalyDetector::new(SampleLayout::of(&schema).expect("a sample").quantities())
}

/// A sample with these values.
fn sample(header: SampleHeader, values: [f64; 5]) -> Sample {
    Sample {
        header,
        values: values.map(Some).to_vec(),
        counts: Vec::new(),
    }
}

fn header(tid: u32, point: SamplePoint, duration_ns: u64) -> SampleHeader {
    SampleHeader {
        tid,
        pid: 1,
        point: Some(point),
        cpu: 0,
        duration_ns,
    }
}

/// A job with these counts.
fn job(detector: &mut AnomalyDetector, duration: f64, counts: [f64; 3]) -> bool {
    let [cycles, instructions, misses] = counts;
    let header = header(1, SamplePoint::JobEnd, duration as u64);
    let job = sample(header, [cycles, instructions, misses, 4096.0, 3.0]);
    detector.judge(&job, Timestamp::ZERO).is_some()
}

type Draw = fn(&mut Random) -> f64;

/// Distributions of job lengths, from light to heavy tails.
const DISTRIBUTIONS: [(&str, Draw); 9] = [
    ("constant", |_| 1_000.0),
    ("uniform", |random| 500.0 + 1_000.0 * random.uniform()),
    ("normal", |random| 10_000.0 + 100.0 * random.normal()),
    ("exponential", |random| -1_000.0 * random.uniform().ln()),
    ("log-normal", |random| {
        1_000.0 * (1.5 * random.normal()).exp()
    }),
    ("pareto 1.1", |random| {
        1_000.0 * random.uniform().powf(-1.0 / 1.1)
    }),
    ("pareto 0.5", |random| 1_000.0 * random.uniform().powf(-2.0)),
    ("two modes", |random| match random.uniform() < 0.1 {
        true => 90_000.0 + random.normal(),
        false => 1_000.0 + random.normal(),
    }),
    ("rare counts", |random| match random.uniform() < 0.03 {
        true => 40.0 + 30.0 * random.uniform(),
        false => 0.0,
    }),
];

#[test]
fn at_most_two_percent_are_false_alarms_whatever_the_distribution() {
    for (name, draw) in DISTRIBUTIONS {
        let mut random = Random(7);
        let (mut judged, mut anomalous, mut deviating) = (0, 0, 0);
        // Several short runs: the first judged jobs have the least knowledge.
        for length in [200, 500, 3_000, 20_000, 200, 500, 3_000] {
            for _ in 0..(60_000 / length) {
                let mut detector = detector();
                for _ in 0..length {
                    let counts = [draw(&mut random), draw(&mut random), draw(&mut random)];
                    let _ = job(&mut detector, draw(&mut random), counts);
                }
                let account = *detector.tasks().next().expect("one thread");
                assert_eq!(account.judged, length - (FIRST_JUDGED - 1), "{name}");
                judged += account.judged;
                anomalous += account.anomalous;
                deviating += account.deviating;
            }
        }
        let rate = anomalous as f64 / judged as f64;
        println!("{name}: {rate:.4} of {judged}, {deviating} deviate");
        assert!(rate <= 0.02, "{name}: {rate}");
    }
}

#[test]
fn rank_limits_the_rate_where_the_threshold_does_not() {
    // A sentinel: without the rank, more than two percent of these would be alarms.
    let mut random = Random(3);
    let mut detector = detector();
    for _ in 0..20_000 {
        let counts = [(); 3].map(|()| 1_000.0 * random.uniform().powf(-2.0));
        let _ = job(&mut detector, 1_000.0, counts);
    }
    let account = detector.tasks().next().expect("one thread");
    assert!(account.deviating * 10 > account.judged, "{account:?}");
    assert!(account.anomalous * 50 <= account.judged, "{account:?}");
}

#[test]
fn planted_faults_are_found_and_explained() {
    let mut random = Random(11);
    let mut detector = detector();
    let mut usual = |scale: f64| scale * (1.0 + 0.02 * random.normal());
    for number in 1..=2_000_u64 {
        let is_fault = number == 1_000 || (1_500..1_510).contains(&number);
        // A cache thrashed by a neighbour: more cycles and misses, the same instructions.
        let (cycles, misses) = if is_fault { (3.0, 20.0) } else { (1.0, 1.0) };
        let counts = [
            usual(2_000_000.0 * cycles),
            usual(3_000_000.0),
            usual(4_000.0 * misses),
        ];
        let begins = job(&mut detector, usual(1e6 * cycles), counts);
        assert_eq!(begins, number == 1_000 || number == 1_500, "job {number}");
    }
    let account = detector.tasks().next().expect("one thread");
    assert_eq!((account.anomalies, account.anomalous), (2, 11));
    assert_eq!(
        (account.jobs, account.judged),
        (2_000, 2_001 - FIRST_JUDGED)
    );
    let [first, second] = detector.anomalies() else {
        panic!("{:?}", detector.anomalies());
    };
    assert_eq!((first.job, first.jobs), (1_000, 1));
    assert_eq!((second.job, second.jobs), (1_500, 10));
    let names: Vec<&str> = first.deviations.iter().map(|it| &*it.name).collect();
    assert!(!names.contains(&"instructions"), "{names:?}");
    assert!(names[0].starts_with("llc_misses"), "{names:?}");
    assert!(names.contains(&"cycles"), "{names:?}");
    let cycles = first
        .deviations
        .iter()
        .find(|it| it.name == "cycles")
        .unwrap();
    assert!(
        (cycles.usual / 2_000_000.0 - 1.0).abs() < 0.01,
        "{cycles:?}"
    );
    assert!(
        cycles.times() > 20.0 && cycles.value > 5_000_000.0,
        "{cycles:?}"
    );
}

#[test]
fn lasting_change_becomes_usual() {
    let mut random = Random(5);
    let mut detector = detector();
    for number in 0..4_000 {
        let scale = if number < 1_000 { 1.0 } else { 2.0 };
        let counts = [1e6, 2e6, 3e3].map(|it| it * scale * (1.0 + 0.01 * random.normal()));
        let _ = job(&mut detector, 1e6, counts);
    }
    let account = detector.tasks().next().expect("one thread");
    let first = &detector.anomalies()[0];
    assert_eq!(first.job, 1_001);
    assert!((100..600).contains(&first.jobs), "{first:?}");
    assert!(account.anomalies < 10, "{account:?}");
}

#[test]
fn nothing_is_judged_before_the_stated_job() {
    let mut detector = detector();
    for number in 1..=FIRST_JUDGED {
        let last = number == FIRST_JUDGED;
        let cycles = if last || number == FIRST_JUDGED - 1 {
            1e9
        } else {
            1e6
        };
        let begins = job(&mut detector, 1e6, [cycles, 1e6, 1e3]);
        assert!(!begins, "{number}");
    }
    // The one before reached the same score, so the rank of the last one is not improbable.
    assert_eq!(detector.tasks().next().unwrap().judged, 1);
    assert_eq!(detector.tasks().next().unwrap().deviating, 1);
}

#[test]
fn samples_are_judged_as_rates_until_there_are_job_ends() {
    let mut detector = detector();
    let mut judge = |tid, point, duration, cycles| {
        let header = header(tid, point, duration);
        let sample = sample(header, [cycles, 1e6, 1e3, 4096.0, 3.0]);
        detector.judge(&sample, Timestamp::ZERO).is_some()
    };
    for number in 0..200_u64 {
        // Twice the time, twice the cycles: the rate is the same.
        let twice = 1 + number % 2;
        let begins = judge(
            1,
            SamplePoint::Period,
            1_000_000 * twice,
            1e6 * twice as f64,
        );
        assert!(!begins, "{number}");
    }
    assert!(judge(1, SamplePoint::Period, 1_000_000, 9e6));
    // Its job ends begin anew; its other samples are not judged any more.
    assert!(!judge(1, SamplePoint::JobEnd, 1_000_000, 9e9));
    assert!(!judge(1, SamplePoint::Period, 1_000_000, 9e9));
    let account = detector.tasks().next().expect("one thread");
    assert!(account.is_of_jobs);
    assert_eq!((account.jobs, account.judged), (1, 0));
    let deviations = &detector.anomalies()[0].deviations;
    let names: Vec<&str> = deviations.iter().map(|it| &*it.name).collect();
    assert!(
        names.contains(&"cycles") && !names.contains(&"duration"),
        "{names:?}"
    );
    assert_eq!(
        deviations[0].unit,
        if names[0] == "ipc" { "" } else { "/s" }
    );
}

#[test]
fn memory_is_bounded() {
    let mut detector = detector();
    let more = 5;
    for tid in 0..MAX_TASKS as u32 + more {
        let header = header(tid, SamplePoint::JobEnd, 5);
        let _ = detector.judge(&sample(header, [1.0; 5]), Timestamp::ZERO);
    }
    assert_eq!(detector.tasks().count(), MAX_TASKS);
    assert_eq!(detector.refused(), u64::from(more));
    let mut random = Random(9);
    for _ in 0..200_000 {
        let counts = [(); 3].map(|()| 1_000.0 * random.uniform().powf(-2.0));
        let _ = job(&mut detector, 1_000.0, counts);
    }
    assert_eq!(detector.anomalies().len(), KEPT_ANOMALIES);
    assert!(detector.not_kept() > 0);
}
