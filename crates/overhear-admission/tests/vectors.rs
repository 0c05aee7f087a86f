// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reference vectors: 201 sets of parameters with the integer results of an independent
//! implementation in exact fractions. Every result in the file is compared; an unknown field is an
//! error, so that none is ignored.
//!
//! Conventions of the file: `null` is none, unbounded or infinite; work of a period ends strictly
//! before d.

use overhear_admission::{
    fit_strip, fit_strip_stream, largest_period, reserve, AfterViolation, ArrivalBound, Broken,
    ConformanceCheck, CopyPlan, Parameters, ParetoFront, PeriodicTask, Pool, Ratio, ReserveError,
    SensorLoad, SingleSensor, Span, StreamingFit,
};
use overhear_event::{Nanos, Timestamp};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)]
struct File {
    unit: String,
    note: String,
    convention: String,
    vectors: Vec<Vector>,
}

/// The union of all kinds: serde reads 128-bit numbers only without look-ahead, so the kind cannot
/// choose the type.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct Vector {
    kind: String,
    name: String,
    id: usize,
    #[serde(rename = "width")]
    _width: String,
    input: Option<Input>,
    normalised: Option<Triple>,
    canonical: Option<Triple>,
    L: Option<u128>,
    R_min: Option<u128>,
    R_max: Option<u128>,
    l_min: Option<i128>,
    directory_buffer: Option<u128>,
    #[serde(default)]
    E: Vec<Counts>,
    #[serde(default)]
    t_S: Vec<LeastSpan>,
    #[serde(default)]
    by_R: Vec<ByR>,
    #[serde(default)]
    by_latency: Vec<ByLatency>,
    #[serde(default)]
    by_buffer: Vec<ByBuffer>,
    TM: Option<i128>,
    d: Option<i128>,
    l: Option<i128>,
    #[serde(default)]
    sensors: Vec<Load>,
    #[serde(default)]
    R: Vec<u128>,
    runtime_eval: Option<i128>,
    runtime_paper: Option<i128>,
    plans_paper: Option<Vec<Plan>>,
    #[serde(default)]
    E_l: Vec<u128>,
    #[serde(default)]
    backlog_exact: Vec<u128>,
    #[serde(default)]
    plans_best: Vec<Plan>,
    pool_latency: Option<i128>,
    pool_min_runtime: Option<i128>,
    #[serde(default)]
    trace: Vec<u64>,
    min_gap: Option<u64>,
    #[serde(default)]
    front: Vec<(u64, u64)>,
    #[serde(default)]
    tau_of_T: Vec<TauOfT>,
    #[serde(default)]
    max_T_of_tau: Vec<TOfTau>,
    strip: Option<StripOf>,
    strip_integer: Option<Triple>,
    T: Option<i128>,
    D: Option<i128>,
    tau: Option<i128>,
    first_violation: Option<u64>,
    #[serde(default)]
    ignore: Vec<Option<String>>,
    #[serde(default)]
    keep: Vec<Option<String>>,
    #[serde(default)]
    restart: Vec<Option<String>>,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct Input {
    T: i128,
    D: i128,
    tau: i128,
    tau_late: i128,
    TM: i128,
    d: i128,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct Triple {
    T: i128,
    D: i128,
    tau: i128,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    t: i128,
    half_open: u128,
    closed: u128,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LeastSpan {
    e: u128,
    t: i128,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct ByR {
    R: u128,
    latency: Option<i128>,
    b_max: Option<u128>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct ByLatency {
    l: i128,
    min_R: Option<u128>,
    B: u128,
    max_TM: Vec<MaxTm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct MaxTm {
    R: u128,
    TM: Option<i128>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct ByBuffer {
    buffer: u128,
    R: u128,
    min_copy_rate: Option<u128>,
    paper: Plan,
    best: Plan,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
struct Plan {
    kind: String,
    copies: u128,
    private: u128,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct Load {
    T: i128,
    D: i128,
    tau: i128,
    wcet: u64,
    copy: u64,
    buffer: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct TauOfT {
    T: u64,
    tau: i128,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TOfTau {
    tau: u64,
    num: i128,
    den: i128,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(non_snake_case)]
struct StripOf {
    T_num: i128,
    T_den: i128,
    tau_num: i128,
    tau_den: i128,
}

fn constraint(t: i128, d: i128, tau: i128, tau_late: i128) -> ArrivalBound {
    parameters(t, d, tau, tau_late).unwrap()
}

fn parameters(
    t: i128,
    d: i128,
    tau: i128,
    tau_late: i128,
) -> Result<ArrivalBound, overhear_admission::ArrivalBoundError> {
    ArrivalBound::from_parameters(&Parameters {
        period_ns: t,
        distance_ns: d,
        earliness_ns: tau,
        lateness_ns: tau_late,
    })
}

fn triple(s: ArrivalBound) -> Triple {
    Triple {
        T: s.period().as_ns().into(),
        D: s.distance().as_ns().into(),
        tau: s.jitter().as_ns().into(),
    }
}

fn span(ns: i128) -> Span {
    Span::from_signed_ns(ns).unwrap()
}

fn plan(plan: CopyPlan) -> Plan {
    let kind = match plan {
        CopyPlan::Direct => "none",
        CopyPlan::Rate { .. } => "rate",
        CopyPlan::Window { .. } => "window",
        CopyPlan::Infeasible => "infeasible",
    };
    Plan {
        kind: kind.into(),
        copies: plan.copies(),
        private: plan.private(),
    }
}

fn times(trace: &[u64]) -> Vec<Timestamp> {
    let times = trace.iter().copied();
    times.map(Timestamp::from_monotonic_ns).collect()
}

impl Vector {
    fn check_single(&self) {
        let input = self.input.as_ref().unwrap();
        let s = constraint(input.T, input.D, input.tau, input.tau_late);
        let m = PeriodicTask::from_signed_ns(input.TM, input.d).unwrap();
        let sensor = SingleSensor::new(s, m);
        assert_eq!(Some(triple(s)), self.normalised);
        assert_eq!(Some(triple(s.canonical())), self.canonical);
        assert_eq!(s.burst_length(), self.L);
        assert_eq!(Some(sensor.r_min()), self.R_min);
        assert_eq!(Some(sensor.r_max()), self.R_max);
        assert_eq!(Some(m.l_min().as_ns()), self.l_min);
        let directory = s.directory_buffer(m.period(), Nanos::ZERO, 0);
        assert_eq!(Some(directory), self.directory_buffer);
        for row in &self.E {
            assert_eq!(s.elements_within(span(row.t)), row.half_open);
            assert_eq!(s.canonical().elements_within(span(row.t)), row.half_open);
            assert_eq!(s.elements_in_closed(span(row.t)), row.closed);
            assert_eq!(s.elements_within(span(row.t + 1)), row.closed);
        }
        for row in &self.t_S {
            assert_eq!(s.least_span(row.e), Ok(span(row.t)));
        }
        for row in &self.by_R {
            assert_eq!(sensor.latency(row.R), Ok(row.latency.map(span)));
            assert_eq!(sensor.b_max(row.R), Ok(row.b_max));
        }
        for row in &self.by_latency {
            assert_eq!(sensor.least_r(span(row.l)), Ok(row.min_R));
            assert_eq!(s.buffer_for_latency(span(row.l)), row.B);
            for max in &row.max_TM {
                let largest = largest_period(s, m.deadline(), max.R, span(row.l));
                assert_eq!(largest, Ok(max.TM.map(span)));
            }
        }
        for row in &self.by_buffer {
            let backlog = sensor.b_max(row.R).unwrap().unwrap();
            assert_eq!(sensor.least_copy_rate(row.buffer), Ok(row.min_copy_rate));
            let rate = CopyPlan::of_rate(sensor, backlog, row.buffer).unwrap();
            assert_eq!(plan(rate), row.paper);
            let least = CopyPlan::least(sensor, backlog, row.buffer).unwrap();
            assert_eq!(plan(least), row.best);
        }
    }

    fn check_several(&self) {
        let m = PeriodicTask::from_signed_ns(self.TM.unwrap(), self.d.unwrap()).unwrap();
        let l = span(self.l.unwrap());
        let loads: Vec<SensorLoad> = self
            .sensors
            .iter()
            .map(|x| SensorLoad {
                stream: constraint(x.T, x.D, x.tau, 0),
                wcet: Nanos::from_ns(x.wcet),
                copy: Nanos::from_ns(x.copy),
                buffer: x.buffer,
            })
            .collect();
        match reserve(&loads, m, l, Nanos::ZERO) {
            Ok(reserved) => {
                assert_eq!(Some(reserved.runtime.as_ns()), self.runtime_paper);
                assert_eq!(Some(reserved.evaluations.as_ns()), self.runtime_eval);
                let plans = reserved.shares.iter().map(|share| plan(share.plan));
                assert_eq!(Some(plans.collect()), self.plans_paper);
                let rs: Vec<u128> = reserved.shares.iter().map(|share| share.r).collect();
                assert_eq!(rs, self.R);
            }
            Err(ReserveError::BufferTooSmall { .. }) => {
                assert_eq!((self.runtime_paper, &self.plans_paper), (None, &None));
            }
            Err(other) => panic!("{other}"),
        }
        let pool = Pool::new(&loads, m).unwrap();
        let q = span(self.runtime_eval.unwrap());
        for (i, load) in loads.iter().enumerate() {
            let sensor = SingleSensor::new(load.stream, m);
            assert_eq!(sensor.least_r(l), Ok(Some(self.R[i])));
            assert_eq!(load.stream.elements_within(l), self.E_l[i]);
            let backlog = pool.backlog(i, q).unwrap().unwrap();
            assert_eq!(
                (backlog.value, backlog.exact),
                (self.backlog_exact[i], true)
            );
            let buffer = u128::from(load.buffer.unwrap());
            let best = CopyPlan::least(sensor, backlog.value, buffer).unwrap();
            assert_eq!(plan(best), self.plans_best[i]);
        }
        let latency = pool.latency(q).unwrap().unwrap();
        assert_eq!(Some(latency.value.as_ns()), self.pool_latency);
        let least = pool.least_runtime(l).unwrap().unwrap();
        assert_eq!(Some(least.value.as_ns()), self.pool_min_runtime);
        assert!(latency.exact && least.exact);
    }

    fn check_fit(&self) {
        let trace = times(&self.trace);
        let front = ParetoFront::of_trace(&trace).unwrap();
        assert_eq!(Some(front.least_gap().as_ns()), self.min_gap);
        let vertices: Vec<(u64, u64)> = front.vertices().map(|(m, g)| (m, g.as_ns())).collect();
        assert_eq!(vertices, self.front);
        let periods: Vec<Nanos> = self.tau_of_T.iter().map(|x| Nanos::from_ns(x.T)).collect();
        let mut streaming = StreamingFit::new(&periods);
        for &at in &trace {
            streaming.push(at).unwrap();
        }
        let streams = streaming.streams().unwrap();
        for (row, stream) in self.tau_of_T.iter().zip(streams) {
            let period = Nanos::from_ns(row.T);
            assert_eq!(front.least_jitter(period), Ok(row.tau));
            assert_eq!(i128::from(stream.jitter().as_ns()), row.tau);
            assert_eq!(front.stream(period), Ok(stream));
        }
        for row in &self.max_T_of_tau {
            let largest = front.largest_period(Nanos::from_ns(row.tau)).unwrap();
            assert_eq!(
                (largest.numerator(), largest.denominator()),
                (row.num, row.den)
            );
        }
        let (strip, of_file) = (fit_strip(&trace).unwrap(), self.strip.as_ref().unwrap());
        assert_eq!(Some(strip.period), Ratio::new(of_file.T_num, of_file.T_den));
        assert_eq!(
            Some(strip.jitter),
            Ratio::new(of_file.tau_num, of_file.tau_den)
        );
        assert_eq!(
            Some(triple(fit_strip_stream(&trace).unwrap())),
            self.strip_integer
        );
    }

    fn check_conformance(&self) {
        let s = constraint(self.T.unwrap(), self.D.unwrap(), self.tau.unwrap(), 0);
        for (after, expected) in [
            (AfterViolation::Ignore, &self.ignore),
            (AfterViolation::Keep, &self.keep),
            (AfterViolation::Restart, &self.restart),
        ] {
            let mut check = ConformanceCheck::new(s, after);
            let mut first = None;
            let mut found = Vec::new();
            for (i, at) in times(&self.trace).into_iter().enumerate() {
                let violation = check.push(at);
                if let Some(violation) = violation {
                    assert_eq!((violation.element, violation.at), (i as u64, at));
                    first = first.or(Some(violation.element));
                }
                found.push(violation.map(|violation| {
                    let part = match violation.broken {
                        Broken::Order => "time",
                        Broken::Distance { .. } => "D",
                        Broken::Jitter { .. } => "tau",
                    };
                    String::from(part)
                }));
            }
            assert_eq!(&found, expected, "{after:?}");
            assert_eq!(first, self.first_violation);
            let violations = found.iter().flatten().count();
            assert_eq!(check.violations(), violations as u64);
        }
    }

    fn check_invalid(&self) {
        let input = self.input.as_ref().unwrap();
        let stream = parameters(input.T, input.D, input.tau, input.tau_late);
        let task = PeriodicTask::from_signed_ns(input.TM, input.d);
        let message = match (stream, task) {
            (Err(error), Ok(_)) => error.to_string(),
            (Ok(_), Err(error)) => error.to_string(),
            both => panic!("one of both is wrong: {both:?}"),
        };
        // The message names the parameter that the reference blames.
        let blamed: &[&str] = match self.error.as_deref().unwrap() {
            "T > 0" => &["period T "],
            "0 <= D <= T" => &["least distance D "],
            "tau, tau' >= 0" if input.tau < 0 => &["earliness tau "],
            "tau, tau' >= 0" => &["lateness tau' "],
            "T_M > 0" => &["period T_M "],
            "0 < d <= T_M" => &["deadline d "],
            other => panic!("unknown error of the reference: {other}"),
        };
        for name in blamed {
            assert!(message.contains(name), "{message}");
        }
    }
}

#[test]
fn every_result_of_every_vector_is_the_same() {
    let file: File = serde_json::from_str(include_str!("vectors.json")).unwrap();
    let mut counts = [0; 5];
    for (i, vector) in file.vectors.iter().enumerate() {
        assert_eq!(vector.id, i);
        println!("{i}: {} {}", vector.kind, vector.name);
        let kind = match vector.kind.as_str() {
            "single" => {
                vector.check_single();
                0
            }
            "several" => {
                vector.check_several();
                1
            }
            "fit" => {
                vector.check_fit();
                2
            }
            "check" => {
                vector.check_conformance();
                3
            }
            "invalid" => {
                vector.check_invalid();
                4
            }
            other => panic!("unknown kind {other}"),
        };
        counts[kind] += 1;
    }
    assert_eq!(counts, [130, 31, 15, 14, 11]);
}
