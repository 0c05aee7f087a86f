// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares fit and conformance with brute force over all pairs of elements.

mod simulator;

use overhear_admission::{
    fit_monitor, fit_strip, fit_strip_stream, AfterViolation, Broken, ConformanceCheck, FitError,
    ParetoFront, Ratio, SingleSensor, Span, StreamingFit,
};
use overhear_event::{Nanos, Timestamp};
use proptest::prelude::*;
use simulator::{stream, task, Plain};

fn times(elements: &[i64]) -> Vec<Timestamp> {
    let times = elements.iter().map(|&at| u64::try_from(at).unwrap());
    times.map(Timestamp::from_monotonic_ns).collect()
}

fn trace() -> impl Strategy<Value = Vec<i64>> {
    let gap = prop_oneof![2 => Just(0_i64), 3 => 0_i64..4, 3 => 0_i64..30, 1 => 0_i64..400];
    (0_i64..10, prop::collection::vec(gap, 1..40)).prop_map(|(start, gaps)| {
        let mut trace = vec![start];
        for gap in gaps {
            trace.push(trace[trace.len() - 1] + gap);
        }
        trace
    })
}

/// tau(T) over all pairs: the largest earliness.
fn least_jitter(trace: &[i64], t: i64) -> i64 {
    let pairs = (0..trace.len()).flat_map(|i| (i..trace.len()).map(move |j| (i, j)));
    pairs
        .map(|(i, j)| (j - i) as i64 * t - (trace[j] - trace[i]))
        .max()
        .unwrap()
}

fn ratio(a: i64, b: i64) -> Ratio {
    Ratio::new(a.into(), b.into()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn front_is_minimal_and_covers(trace in trace(), t in 1_u64..200, tau in 0_u64..80) {
        let front = ParetoFront::of_trace(&times(&trace)).unwrap();
        let period = Nanos::from_ns(t);
        let least = least_jitter(&trace, t as i64);
        prop_assert_eq!(front.least_jitter(period).unwrap(), i128::from(least));
        let fitted = front.stream(period).unwrap();
        let plain = Plain::of(fitted);
        prop_assert!(plain.admits(&trace));
        // A smaller jitter, or a larger distance, does not cover it.
        if plain.tau > 0 {
            let tighter = Plain { d: 0, tau: plain.tau - 1, ..plain };
            prop_assert!(!tighter.admits(&trace));
        }
        if plain.d < plain.t {
            let wider = Plain { d: plain.d + 1, ..plain };
            prop_assert!(!wider.admits(&trace));
        }
        // No larger period is possible with this jitter.
        let mut counted: Option<Ratio> = None;
        for i in 0..trace.len() {
            for j in i + 1..trace.len() {
                let longest = ratio(trace[j] - trace[i] + tau as i64, (j - i) as i64);
                counted = Some(counted.map_or(longest, |least| least.min(longest)));
            }
        }
        prop_assert_eq!(front.largest_period(Nanos::from_ns(tau)).ok(), counted);
        // The vertices are the convex ones of G, in order.
        let vertices: Vec<(u64, Nanos)> = front.vertices().collect();
        for &(m, g) in &vertices {
            let spans = trace.windows(m as usize + 1).map(|w| w[w.len() - 1] - w[0]);
            prop_assert_eq!(spans.min().unwrap(), g.as_ns() as i64);
        }
        let slopes: Vec<Ratio> = front.slopes().collect();
        prop_assert!(slopes.windows(2).all(|pair| pair[0] < pair[1]));
        let whole = (trace[trace.len() - 1] - trace[0]) as u64;
        prop_assert_eq!(vertices[vertices.len() - 1], (trace.len() as u64 - 1, Nanos::from_ns(whole)));
    }

    #[test]
    fn streaming_finds_the_same_at_every_element(trace in trace(), periods in prop::collection::vec(1_u64..300, 1..5)) {
        let periods: Vec<Nanos> = periods.into_iter().map(Nanos::from_ns).collect();
        let mut streaming = StreamingFit::new(&periods);
        prop_assert!(streaming.streams().is_err());
        let times = times(&trace);
        for (i, &at) in times.iter().enumerate() {
            streaming.push(at).unwrap();
            if i > 0 {
                let front = ParetoFront::of_trace(&times[..=i]).unwrap();
                for (found, &period) in streaming.streams().unwrap().into_iter().zip(&periods) {
                    prop_assert_eq!(found, front.stream(period).unwrap());
                }
            }
        }
    }

    #[test]
    fn fit_for_a_monitor_needs_least_of_its_candidates(trace in trace(), t_m in 1_u64..200, more in 0_u64..200) {
        let front = ParetoFront::of_trace(&times(&trace)).unwrap();
        let m = task(t_m, t_m);
        let l = Span::from_ns(2 * t_m + more);
        match fit_monitor(&front, m, l, ratio(9, 10)) {
            Ok(found) => {
                let found = found.unwrap();
                prop_assert!(Plain::of(found.stream).admits(&trace));
                let sensor = SingleSensor::new(found.stream, m);
                prop_assert_eq!(sensor.least_r(l).unwrap(), Some(found.r));
                prop_assert_eq!(sensor.b_max(found.r).unwrap(), Some(found.b_max));
                // No integer period up to the margin needs fewer evaluations.
                let longest = front.mean_gap().numerator() * 9 / (front.mean_gap().denominator() * 10);
                for t in 1..=longest as u64 {
                    let other = SingleSensor::new(front.stream(Nanos::from_ns(t)).unwrap(), m);
                    prop_assert!(other.least_r(l).unwrap().unwrap() >= found.r, "T = {}", t);
                }
            }
            Err(error) => prop_assert_eq!(error, FitError::NoPeriod),
        }
    }

    #[test]
    fn strip_is_the_narrowest(trace in trace()) {
        prop_assume!(trace[0] < trace[trace.len() - 1]);
        let points = || trace.iter().enumerate().map(|(i, &at)| (i as i64, at));
        // Width for T = p/q, multiplied by q.
        let width = |p: i64, q: i64| {
            let left = || points().map(|(i, at)| at * q - i * p);
            left().max().unwrap() - left().min().unwrap()
        };
        let mut narrowest: Option<Ratio> = None;
        for (i, at) in points() {
            for (j, later) in points().skip(i as usize + 1) {
                let (p, q) = (later - at, j - i);
                let this = ratio(width(p, q), q);
                narrowest = Some(narrowest.map_or(this, |least| least.min(this)));
            }
        }
        match fit_strip(&times(&trace)) {
            Ok(strip) => {
                prop_assert_eq!(Some(strip.jitter), narrowest);
                let (p, q) = (strip.period.numerator() as i64, strip.period.denominator() as i64);
                prop_assert_eq!(ratio(width(p, q), q), strip.jitter);
            }
            Err(error) => prop_assert_eq!(error, FitError::NoPeriod),
        }
        if let Ok(fitted) = fit_strip_stream(&times(&trace)) {
            let plain = Plain::of(fitted);
            prop_assert!(plain.admits(&trace));
            prop_assert_eq!(width(plain.t, 1), plain.tau);
            let longest = trace[trace.len() - 1] + 1;
            prop_assert!((1..=longest).all(|t| width(t, 1) >= plain.tau));
        }
    }

    #[test]
    fn first_offender_is_found(
        (t, d, tau) in (1_u64..12).prop_flat_map(|t| (Just(t), 0..=t, 0_u64..40)),
        nudges in prop::collection::vec(prop_oneof![6 => Just(0_i64), 2 => 0_i64..15, 1 => -6_i64..0], 30),
    ) {
        let s = stream(t, d, tau);
        let plain = Plain::of(s);
        let mut elements: Vec<i64> = vec![100];
        for nudge in nudges {
            let from = elements[elements.len() - 1];
            // Mostly as early as the constraint allows, sometimes too early, or out of order.
            let earliest = (from..).find(|&at| plain.may_follow(&elements, at));
            elements.push(earliest.unwrap_or(from) + nudge);
            if !plain.admits(&elements) {
                break;
            }
        }
        let first = (1..=elements.len()).find(|&n| !plain.admits(&elements[..n])).map(|n| n - 1);
        for after in [AfterViolation::Ignore, AfterViolation::Restart, AfterViolation::Keep] {
            let mut check = ConformanceCheck::new(s, after);
            let found = times(&elements).into_iter().find_map(|at| check.push(at));
            prop_assert_eq!(found.map(|violation| violation.element as usize), first);
            if let (Some(violation), Some(first)) = (found, first) {
                let gap = elements[first] - elements[first - 1];
                let named = match violation.broken {
                    Broken::Order => gap < 0,
                    Broken::Distance { gap: reported, least } => {
                        gap >= 0 && reported.as_ns() as i64 == gap && least == s.distance() && gap < plain.d
                    }
                    Broken::Jitter { early, allowed } => {
                        let worst = least_jitter(&elements[..=first], plain.t);
                        gap >= plain.d && early.as_ns() as i64 == worst && allowed == s.jitter()
                    }
                };
                prop_assert!(named, "{}", violation);
            }
        }
    }

    #[test]
    fn elements_passed_by_the_policer_conform(
        (t, d, tau) in (1_u64..12).prop_flat_map(|t| (Just(t), 0..=t, 0_u64..40)),
        trace in trace(),
    ) {
        let s = stream(t, d, tau);
        let plain = Plain::of(s);
        let mut check = ConformanceCheck::new(s, AfterViolation::Ignore);
        let mut passed: Vec<i64> = Vec::new();
        for (&at, stamp) in trace.iter().zip(times(&trace)) {
            let refused = check.push(stamp).is_some();
            prop_assert_eq!(refused, !plain.may_follow(&passed, at));
            if !refused {
                passed.push(at);
            }
        }
        prop_assert!(plain.admits(&passed));
    }

    /// Lost elements never turn a valid stream into an invalid one, and they are counted in its
    /// place.
    #[test]
    fn losses_cause_no_false_offender(
        (t, d, tau) in (1_u64..12).prop_flat_map(|t| (Just(t), 0..=t, 0_u64..40)),
        seen in prop::collection::vec(any::<bool>(), 40),
    ) {
        let s = stream(t, d, tau);
        let elements = Plain::of(s).dense(300, |_| 0);
        let mut check = ConformanceCheck::new(s, AfterViolation::Keep);
        let mut lost = 0;
        for (at, seen) in times(&elements).into_iter().zip(seen) {
            if seen {
                prop_assert_eq!(check.push_after_loss(at, lost), None);
                lost = 0;
            } else {
                lost += 1;
            }
        }
    }
}

#[test]
fn losses_count_instead_of_an_offender() {
    let mut check = ConformanceCheck::new(stream(10, 4, 0), AfterViolation::Ignore);
    assert_eq!(check.push(Timestamp::from_monotonic_ns(0)), None);
    let at = Timestamp::from_monotonic_ns(35);
    let violation = check.push_after_loss(at, 3).unwrap();
    assert_eq!(violation.element, 4);
    assert_eq!(
        violation.to_string(),
        "element 4 at 0.000000035 came 5 ns early against the period T, but tau allows 0 ns"
    );
}

#[test]
fn long_trace_is_fitted_in_one_go() {
    // 100,000 elements: quadratic work would not end.
    let mut at = 0_u64;
    let mut random = 1_u64;
    let trace: Vec<Timestamp> = (0..100_000)
        .map(|_| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695);
            at += random >> 54;
            Timestamp::from_monotonic_ns(at)
        })
        .collect();
    let front = ParetoFront::of_trace(&trace).unwrap();
    let period = Nanos::from_ns(400);
    let mut streaming = StreamingFit::new(&[period]);
    for &at in &trace {
        streaming.push(at).unwrap();
    }
    assert_eq!(
        streaming.streams().unwrap()[0],
        front.stream(period).unwrap()
    );
}

#[test]
fn unfittable_traces_have_an_error() {
    let at = Timestamp::from_monotonic_ns;
    assert_eq!(
        ParetoFront::of_trace(&[]),
        Err(FitError::TooShort { elements: 0 })
    );
    assert_eq!(
        ParetoFront::of_trace(&[at(5)]),
        Err(FitError::TooShort { elements: 1 })
    );
    let disordered = [at(5), at(7), at(6)];
    assert_eq!(
        ParetoFront::of_trace(&disordered),
        Err(FitError::OutOfOrder { element: 2 })
    );
    assert_eq!(fit_strip(&[at(5), at(5)]), Err(FitError::NoPeriod));
    let front = ParetoFront::of_trace(&[at(5), at(5)]).unwrap();
    assert_eq!(front.stream(Nanos::ZERO), Err(FitError::NoPeriod));
    let fit = fit_monitor(&front, task(1, 1), Span::from_ns(2), ratio(9, 10));
    assert_eq!(fit, Err(FitError::NoPeriod));
    let mut streaming = StreamingFit::new(&[Nanos::from_ns(1)]);
    streaming.push(at(5)).unwrap();
    assert_eq!(
        streaming.push(at(4)),
        Err(FitError::OutOfOrder { element: 1 })
    );
}
