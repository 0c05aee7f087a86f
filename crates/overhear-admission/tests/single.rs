// SPDX-License-Identifier: MIT OR Apache-2.0
//! One sensor: the bounds hold for every stream and monitor, and the dense stream attains them.

mod simulator;

use overhear_admission::{largest_period, CopyPlan, SingleSensor, Span};
use overhear_event::Nanos;
use proptest::prelude::*;
use simulator::{run, run_rate, run_slow, run_window, stream, task, Plain};

fn ns(value: i64) -> Span {
    Span::from_signed_ns(value.into()).unwrap()
}

/// Every stream up to a number of instants, for every tiny set of parameters: none exceeds a bound.
/// The dense stream is among them, so E is also attained.
#[test]
fn bounds_hold_for_all_streams_of_few_instants() {
    const UNTIL: i64 = 8;
    for t in 1..=3 {
        for d in 0..=t {
            for tau in [0, 1, 2, 4] {
                let s = stream(t, d, tau);
                let plain = Plain::of(s);
                let mut most = [0; UNTIL as usize + 1];
                let mut monitors = Vec::new();
                for t_m in 1..=3 {
                    for deadline in 1..=t_m {
                        let sensor = SingleSensor::new(s, task(t_m, deadline));
                        for r in sensor.r_min()..=sensor.r_max() + 1 {
                            let l = sensor.latency(r).unwrap().unwrap().as_ns();
                            let b = sensor.b_max(r).unwrap().unwrap();
                            monitors.push((t_m as i64, deadline as i64, r as usize, l, b));
                        }
                    }
                }
                plain.every_stream(UNTIL, &mut |elements| {
                    for (length, most) in most.iter_mut().enumerate() {
                        let within = |&&at: &&i64| at < length as i64;
                        *most = elements.iter().filter(within).count().max(*most);
                    }
                    for &(t_m, d, r, l, b) in &monitors {
                        let worst = run_slow(elements, (t_m, d), r);
                        assert!(i128::from(worst.latency) <= l, "{s}: {elements:?}");
                        assert!(worst.backlog as u128 <= b, "{s}: {elements:?}");
                    }
                });
                for (length, &most) in most.iter().enumerate() {
                    let e = s.elements_within(ns(length as i64));
                    assert_eq!(e, most as u128, "{s}: E({length})");
                }
            }
        }
    }
}

prop_compose! {
    fn small()(t in 1_u64..20)(
        t in Just(t), d in prop_oneof![Just(0), Just(t), 0..=t],
        tau in prop_oneof![Just(0_u64), 0_u64..10, 0_u64..120],
        t_m in 1_u64..40, deadline in 0.0..1.0, r in 0.0..1.1,
    ) -> (SingleSensor, Plain, (i64, i64), usize) {
        let deadline = 1 + ((t_m - 1) as f64 * deadline) as u64;
        let s = stream(t, d, tau);
        let sensor = SingleSensor::new(s, task(t_m, deadline));
        let (low, high) = (sensor.r_min() as f64, sensor.r_max() as f64);
        let r = (low + (high - low) * r) as usize;
        (sensor, Plain::of(s), (t_m as i64, deadline as i64), r)
    }
}

/// Long enough for the burst and some periods after it.
fn long_enough(plain: Plain, (t_m, _): (i64, i64)) -> i64 {
    let burst = if plain.d < plain.t {
        plain.tau * plain.d / (plain.t - plain.d)
    } else {
        0
    };
    burst + 6 * t_m + 2 * plain.t
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dense_stream_attains_latency_and_backlog((sensor, plain, m, r) in small()) {
        let elements = plain.dense(long_enough(plain, m), |_| 0);
        let worst = run_slow(&elements, m, r);
        let latency = sensor.latency(r as u128).unwrap().unwrap().as_ns();
        prop_assert_eq!(i128::from(worst.latency), latency);
        let backlog = sensor.b_max(r as u128).unwrap().unwrap();
        prop_assert_eq!(worst.backlog as u128, backlog);
        // Between the neighbours that the page names.
        let (l_min, s) = (sensor.task().l_min(), sensor.stream());
        prop_assert!(s.elements_within(l_min) <= backlog);
        prop_assert!(backlog <= s.elements_within(Span::from_signed_ns(latency).unwrap()));
        prop_assert!(latency <= l_min.as_ns() + i128::from(plain.tau));
    }

    #[test]
    fn other_streams_and_monitors_stay_below(
        (sensor, plain, m, r) in small(),
        start in 0_i64..40,
        pauses in prop::collection::vec(prop_oneof![4 => Just(0_i64), 2 => 0_i64..20, 1 => 0_i64..150], 60),
        moods in prop::collection::vec((0.0..1.0, 0.0..1.0), 64),
    ) {
        let mut elements: Vec<i64> = Vec::new();
        for pause in pauses {
            let from = elements.last().copied().unwrap_or(start);
            elements.push(plain.earliest(&elements, from) + pause);
        }
        prop_assert!(plain.admits(&elements));
        let worst = run(&elements, m, r, |k| {
            let (check, end): (f64, f64) = moods[k as usize % moods.len()];
            let check = (check * m.1 as f64) as i64;
            (check, check + 1 + (end * (m.1 - check - 1) as f64).round() as i64)
        });
        let latency = sensor.latency(r as u128).unwrap().unwrap().as_ns();
        prop_assert!(i128::from(worst.latency) <= latency);
        prop_assert!(worst.backlog as u128 <= sensor.b_max(r as u128).unwrap().unwrap());
    }

    #[test]
    fn searches_agree_with_counting((sensor, _, m, _) in small(), more in 0_i64..150) {
        let l = Span::from_signed_ns(sensor.task().l_min().as_ns() + i128::from(more)).unwrap();
        let counted = (1..).find(|&r| sensor.latency(r).unwrap().is_some_and(|x| x <= l));
        prop_assert_eq!(sensor.least_r(l).unwrap(), counted);
        let buffer = sensor.stream().elements_within(sensor.task().l_min()) + more as u128 / 10;
        let counted = (1..).find(|&c| sensor.b_max(c).unwrap().is_some_and(|b| b <= buffer));
        prop_assert_eq!(sensor.least_copy_rate(buffer).unwrap(), counted);
        // The largest period: one nanosecond more needs more evaluations, or exceeds R*T.
        for r in 1..=sensor.r_max() + 1 {
            let d = Nanos::from_ns(m.1 as u64);
            let fits = |t_m: i64| {
                let task = overhear_admission::PeriodicTask::late(Nanos::from_ns(t_m as u64), d);
                let other = SingleSensor::new(sensor.stream(), task.unwrap());
                other.latency(r).unwrap().is_some_and(|reached| reached <= l)
            };
            let counted = (1..=l.as_ns() as i64).rev().find(|&t_m| fits(t_m));
            let found = largest_period(sensor.stream(), d, r, l).unwrap();
            prop_assert_eq!(found.map(|x| x.as_ns()), counted.map(i128::from));
        }
    }

    #[test]
    fn copying_keeps_the_buffer((sensor, plain, m, r) in small(), part in 0.0..1.0) {
        let low = sensor.stream().elements_within(sensor.task().l_min());
        let backlog = sensor.b_max(r as u128).unwrap().unwrap();
        let buffer = low + ((backlog - low) as f64 * part) as u128;
        let rate = CopyPlan::of_rate(sensor, backlog, buffer).unwrap();
        let least = CopyPlan::least(sensor, backlog, buffer).unwrap();
        prop_assert!(least.copies() <= rate.copies());
        prop_assert_eq!(rate == CopyPlan::Direct, backlog <= buffer);
        let gap = m.0 * 3 + plain.tau;
        for slow in [0, gap] {
            let wait = |i: usize| if i > 12 { slow * (i as i64 / 12) } else { 0 };
            let elements = plain.dense(long_enough(plain, m) + 4 * slow, wait);
            for plan in [rate, least] {
                let copied = match plan {
                    CopyPlan::Rate { copies, .. } => run_rate(&elements, m, r, copies as usize),
                    CopyPlan::Window { window } => run_window(&elements, m, r, window as usize),
                    CopyPlan::Direct => continue,
                    CopyPlan::Infeasible => unreachable!("the buffer is never below E(T_M + d)"),
                };
                prop_assert!(copied.shared as u128 <= buffer, "{:?} {:?}", plan, copied);
                prop_assert!(copied.private as u128 <= plan.private(), "{:?} {:?}", plan, copied);
                prop_assert!(copied.copies as u128 <= plan.copies(), "{:?} {:?}", plan, copied);
            }
        }
    }

    #[test]
    fn canonical_stream_admits_the_same(t in 1_u64..20, d in 0_u64..20, tau in 0_u64..60) {
        let s = stream(t, d.min(t), tau);
        let canonical = s.canonical();
        for length in 0..300 {
            let counts = [s, canonical].map(|s| s.elements_within(ns(length)));
            prop_assert_eq!(counts[0], counts[1]);
        }
        prop_assert_eq!(canonical.canonical(), canonical);
        // t_S is the inverse of E.
        for b in 1..20 {
            let longest = s.least_span(b).unwrap().as_ns() as i64;
            prop_assert!(s.elements_within(ns(longest)) <= b);
            prop_assert!(s.elements_within(ns(longest + 1)) > b);
        }
    }

    /// Elements that become visible late keep the constraint for late publication.
    #[test]
    fn late_publications_keep_their_own_constraint(
        t in 1_u64..20, d in 0_u64..20, tau in 0_u64..60, delay in 0_u64..15,
        delays in prop::collection::vec(0.0..=1.0, 40),
    ) {
        let s = stream(t, d.min(t), tau);
        let late = s.with_publication_delay(Nanos::from_ns(delay)).unwrap();
        let mut published: Vec<i64> = Vec::new();
        for (at, part) in Plain::of(s).dense(200, |_| 0).into_iter().zip(delays) {
            let at = at + (part * delay as f64) as i64;
            // One writer publishes in order.
            published.push(published.last().map_or(at, |&last| last.max(at)));
        }
        prop_assert!(Plain::of(late).admits(&published));
    }
}
