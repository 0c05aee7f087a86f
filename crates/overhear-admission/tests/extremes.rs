// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameters of any size: every function returns a result or an error, none panics or wraps. Tests
//! are built with overflow checks, so an unchecked operation would panic.

use overhear_admission::{
    choose, fit_strip, fit_strip_stream, largest_period, reserve, runtime_for_whole_evaluations,
    AdmissionRequest, AfterViolation, ArrivalBound, ConformanceCheck, CopyPlan,
    DeadlineReservation, JobEnd, KernelLimits, Lateness, Parameters, ParetoFront, PeriodicTask,
    Pool, Ratio, SensorLoad, SingleSensor, Span, StreamingFit,
};
use overhear_event::{Nanos, Rate, Timestamp};
use proptest::prelude::*;

/// Numbers near the limits are as frequent as others.
fn any_u64() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..4,
        Just(u64::MAX),
        Just(1 << 62),
        Just(u64::MAX / 2),
        (0_u32..64).prop_map(|bits| 1 << bits),
        any::<u64>(),
        0_u64..1_000_000,
    ]
}

fn any_nanos() -> impl Strategy<Value = Nanos> {
    any_u64().prop_map(Nanos::from_ns)
}

fn any_u128() -> impl Strategy<Value = u128> {
    prop_oneof![
        2 => any_u64().prop_map(u128::from),
        1 => Just(u128::MAX),
        1 => Just(i128::MAX as u128),
        1 => any::<u128>(),
    ]
}

fn any_span() -> impl Strategy<Value = Span> {
    prop_oneof![
        3 => any_u64().prop_map(Span::from_ns),
        1 => Just(Span::MAX),
        1 => (0..=i128::MAX).prop_map(|ns| Span::from_signed_ns(ns).unwrap()),
    ]
}

prop_compose! {
    fn any_stream()(
        t in any_nanos(), d in any_nanos(), tau in any_nanos(), any_d in any::<bool>(),
    ) -> ArrivalBound {
        let t = t.max(Nanos::from_ns(1));
        let d = if any_d { d.min(t) } else { t };
        ArrivalBound::new(t, d, tau, Nanos::ZERO).unwrap()
    }
}

prop_compose! {
    fn any_task()(t_m in any_nanos(), d in any_nanos()) -> PeriodicTask {
        let least = Nanos::from_ns(1);
        PeriodicTask::late(t_m.max(least), d.max(least)).unwrap()
    }
}

prop_compose! {
    fn any_load()(
        stream in any_stream(), wcet in any_nanos(), copy in any_nanos(),
        buffer in prop::option::of(any_u64()),
    ) -> SensorLoad {
        SensorLoad { stream, wcet, copy, buffer }
    }
}

/// One nanosecond less, or 0.
fn less_than(span: Span) -> Option<Span> {
    Span::from_signed_ns(span.as_ns().checked_sub(1)?).filter(|less| *less >= Span::ZERO)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(1_000))]

    #[test]
    fn constructors_never_panic(
        [t, d, tau, tau_late] in prop::array::uniform4(prop_oneof![any::<i128>(), any_u64().prop_map(i128::from), Just(i128::MAX)]),
        delay in any_nanos(),
    ) {
        let given = Parameters { period_ns: t, distance_ns: d, earliness_ns: tau, lateness_ns: tau_late };
        match ArrivalBound::from_parameters(&given) {
            Ok(s) => {
                prop_assert!(t > 0 && (0..=t).contains(&d) && tau >= 0 && tau_late >= 0);
                prop_assert_eq!(i128::from(s.jitter().as_ns()), tau + tau_late);
                let _ = s.with_publication_delay(delay);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
        let _ = PeriodicTask::from_signed_ns(t, d);
        let rate = Rate { period: delay, distance: delay, jitter: delay };
        let _ = ArrivalBound::from_rate(&rate);
    }

    #[test]
    fn single_sensor_never_panics(
        s in any_stream(), m in any_task(), r in any_u128(), l in any_span(), t in any_span(),
    ) {
        let sensor = SingleSensor::new(s, m);
        prop_assert!(sensor.r_min() >= 1 && sensor.r_min() <= sensor.r_max());
        prop_assert_eq!(s.elements_within(t) == 0, t == Span::ZERO);
        prop_assert!(s.elements_in_closed(t) >= s.elements_within(t));
        prop_assert_eq!(s.canonical().elements_within(t), s.elements_within(t));
        let _ = s.least_span(r);
        let _ = s.burst_length();
        let _ = s.directory_buffer(m.period(), m.deadline(), u64::MAX);
        if let Ok(Some(latency)) = sensor.latency(r) {
            prop_assert!(latency >= m.l_min());
            prop_assert!(latency.as_ns() - m.l_min().as_ns() <= i128::from(s.jitter().as_ns()));
        }
        if let Ok(Some(least)) = sensor.least_r(l) {
            prop_assert!(sensor.latency(least).is_ok_and(|reached| reached.is_some_and(|x| x <= l)));
        }
        if let Ok(Some(b)) = sensor.b_max(r) {
            prop_assert!(b >= s.elements_within(m.l_min()));
        }
        let _ = sensor.least_copy_rate(r);
        let _ = CopyPlan::of_rate(sensor, r, 7);
        let _ = CopyPlan::least(sensor, r, 1_000);
        let _ = largest_period(s, m.deadline(), r, l);
        let _ = (s.to_string(), m.to_string(), l.to_string());
    }

    #[test]
    fn kernel_mapping_never_panics(
        m in any_task(), runtime in any_span(), [wake_up, tardiness, hold_back, x, y, z] in prop::array::uniform6(any_nanos()), cpus in any::<u32>(),
    ) {
        let lateness = Lateness { wake_up, tardiness, hold_back };
        for end in [JobEnd::Sleep, JobEnd::Yield] {
            if let Ok(r) = DeadlineReservation::new(m, runtime, lateness, end) {
                prop_assert!(r.runtime <= r.deadline && r.deadline <= r.period);
                let back = r.effective_task(lateness).unwrap();
                prop_assert!(back.deadline() <= m.deadline());
            }
        }
        let r = DeadlineReservation { runtime: x, deadline: y, period: z };
        let _ = r.effective_task(lateness);
        let _ = r.effective_drifting_task(lateness);
        let _ = r.bandwidth();
        let _ = KernelLimits::usual(cpus).admit(&[r, r]);
        let open = KernelLimits {
            least_runtime: Nanos::ZERO,
            least_period: Nanos::ZERO,
            largest_period: Nanos::from_ns(u64::MAX),
            bandwidth: Ratio::new(i128::MAX, i128::MAX - 1).unwrap(),
            cpus,
        };
        let _ = open.admit(&[r, r]);
    }

    #[test]
    fn traces_never_panic(
        mut trace in prop::collection::vec(any_u64(), 0..20), period in any_nanos(), tau in any_nanos(),
        s in any_stream(), lost in any_u64(), m in any_task(), l in any_span(),
        margin in (any::<i128>(), 1..i128::MAX),
    ) {
        let times = |trace: &[u64]| -> Vec<Timestamp> {
            trace.iter().copied().map(Timestamp::from_monotonic_ns).collect()
        };
        for after in [AfterViolation::Ignore, AfterViolation::Restart, AfterViolation::Keep] {
            let mut check = ConformanceCheck::new(s, after);
            for at in times(&trace) {
                let _ = check.push_after_loss(at, lost).map(|violation| violation.to_string());
            }
        }
        let _ = ParetoFront::of_trace(&times(&trace));
        trace.sort_unstable();
        let times = times(&trace);
        let _ = fit_strip(&times);
        let _ = fit_strip_stream(&times);
        let mut streaming = StreamingFit::new(&[period]);
        for &at in &times {
            prop_assert!(streaming.push(at).is_ok());
        }
        let _ = streaming.streams();
        if let Ok(front) = ParetoFront::of_trace(&times) {
            let _ = front.least_jitter(period);
            let _ = front.largest_period(tau);
            let _ = front.stream(period);
            for margin in [Ratio::new(9, 10), Ratio::new(margin.0, margin.1)] {
                let _ = overhear_admission::fit_monitor(&front, m, l, margin.unwrap());
            }
        }
    }
}

proptest! {
    #![proptest_config(config(100))]

    #[test]
    fn several_sensors_never_panic(
        loads in prop::collection::vec(any_load(), 0..4), m in any_task(), l in any_span(), q in any_span(),
    ) {
        let reservation = reserve(&loads, m, l, m.deadline());
        if let Ok(whole) = runtime_for_whole_evaluations(&loads, q) {
            let longest = loads.iter().map(|load| load.wcet.as_ns()).max().unwrap_or(0);
            prop_assert_eq!(whole.as_ns() - q.as_ns(), i128::from(longest.saturating_sub(1)));
        }
        if let Ok(pool) = Pool::new(&loads, m) {
            let pool = pool.with_steps(500);
            // An exact result keeps the latency, and a smaller one would not.
            let latency = |q: Span| match pool.latency(q) {
                Ok(Some(bound)) if bound.exact => Some(bound.value),
                _ => None,
            };
            if let Ok(shared) = &reservation {
                prop_assert_eq!(shared.shares.len(), loads.len());
                prop_assert!(shared.runtime >= shared.evaluations);
                let found = latency(shared.evaluations).filter(|_| !loads.is_empty());
                prop_assert!(found.is_none_or(|found| found <= l));
            }
            match pool.least_runtime(l) {
                Ok(None) => prop_assert!(l < m.l_min()),
                Ok(Some(least)) => {
                    prop_assert!(l >= m.l_min());
                    prop_assert!(latency(least.value).is_none_or(|found| found <= l));
                    if let (true, Some(less)) = (least.exact, less_than(least.value)) {
                        prop_assert!(latency(less).is_none_or(|found| found > l));
                    }
                }
                Err(_) => {}
            }
            for place in [0, 9] {
                if let Ok(Some(backlog)) = pool.backlog(place, q) {
                    // There is no tenth sensor; each of the others may have one waiting element.
                    prop_assert_eq!(backlog.value > 0, place < loads.len(), "{:?}", backlog);
                }
            }
        }
    }

    // The searches are bounded, so each case returns in a fraction of a second.
    #[test]
    fn plans_never_panic(
        loads in prop::collection::vec(any_load(), 0..3), latency in any_span(),
        [least_period, largest_period, overhead, lateness] in prop::array::uniform4(any_nanos()),
        density in (any::<i64>(), 1..i64::MAX), joint_bound in any::<bool>(),
    ) {
        let density = Ratio::new(density.0.into(), density.1.into()).unwrap();
        let request = AdmissionRequest { latency, least_period, largest_period, overhead, lateness, density, joint_bound };
        match choose(&loads, &request) {
            Ok(plan) => prop_assert!(plan.latency <= latency),
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
