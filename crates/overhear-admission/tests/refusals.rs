// SPDX-License-Identifier: MIT OR Apache-2.0
//! Invalid parameters, one at a time: each is refused with one message, which names the parameter
//! and the remedy.

use overhear_admission::{
    choose, reserve, AdmissionRequest, ArrivalBound, Parameters, PeriodicTask, Ratio, SensorLoad,
    Span,
};
use overhear_event::Nanos;

const fn ns(ns: u64) -> Nanos {
    Nanos::from_ns(ns)
}

/// One message that names the error, a semicolon, and the remedy.
fn assert_message(error: &dyn std::error::Error, words: &[&str]) {
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert!(message.contains("; "), "what is to be done: {message}");
    assert!(
        !message.contains('\n') && !message.ends_with('.'),
        "{message}"
    );
}

#[test]
fn each_parameter_of_a_stream_is_refused_by_name() {
    let right = Parameters {
        period_ns: 10,
        distance_ns: 2,
        earliness_ns: 7,
        lateness_ns: 3,
    };
    assert!(ArrivalBound::from_parameters(&right).is_ok());
    let too_long = i128::from(u64::MAX) + 1;
    let wrong: [(Parameters, &[&str]); 10] = [
        (
            Parameters {
                period_ns: 0,
                distance_ns: 0,
                ..right
            },
            &["the period T is 0 ns"],
        ),
        (
            Parameters {
                period_ns: -1,
                ..right
            },
            &["the period T is -1 ns"],
        ),
        (
            Parameters {
                distance_ns: -2,
                ..right
            },
            &["the least distance D is -2 ns"],
        ),
        (
            Parameters {
                distance_ns: 11,
                ..right
            },
            &["D = 11 ns exceeds the period T = 10 ns"],
        ),
        (
            Parameters {
                earliness_ns: -7,
                ..right
            },
            &["the earliness tau is -7 ns"],
        ),
        // A larger tau must not hide it.
        (
            Parameters {
                lateness_ns: -3,
                ..right
            },
            &["the lateness tau' is -3 ns"],
        ),
        (
            Parameters {
                period_ns: too_long,
                ..right
            },
            &["T exceeds 2^64 - 1 ns"],
        ),
        (
            Parameters {
                period_ns: i128::MAX,
                distance_ns: i128::MAX,
                ..right
            },
            &["exceeds 2^64 - 1 ns"],
        ),
        (
            Parameters {
                earliness_ns: too_long,
                ..right
            },
            &["tau + tau' exceeds 2^64 - 1 ns"],
        ),
        (
            Parameters {
                earliness_ns: i128::MAX,
                lateness_ns: i128::MAX,
                ..right
            },
            &["tau + tau'"],
        ),
    ];
    for (given, words) in wrong {
        assert_message(&ArrivalBound::from_parameters(&given).unwrap_err(), words);
    }
    for (given, words) in [
        ((0, 1), "the monitor's period T_M is 0 ns"),
        ((5, 0), "the monitor's relative deadline d is 0 ns"),
        ((5, 6), "d = 6 ns exceeds its period T_M = 5 ns"),
    ] {
        let (period, deadline) = given;
        assert_message(
            &PeriodicTask::new(ns(period), ns(deadline)).unwrap_err(),
            &[words],
        );
    }
}

#[test]
fn loads_and_latencies_that_cannot_be_are_refused_by_name() {
    let load = |wcet| SensorLoad {
        stream: ArrivalBound::new(ns(1_000), ns(100), ns(3_000), Nanos::ZERO).unwrap(),
        wcet: ns(wcet),
        copy: Nanos::ZERO,
        buffer: None,
    };
    let task = PeriodicTask::new(ns(5_000), ns(4_000)).unwrap();
    // l_min = T_M + d.
    let reserved = reserve(&[load(10)], task, Span::from_ns(8_999), Nanos::ZERO);
    assert_message(
        &reserved.unwrap_err(),
        &["the latency 9.00 us is below", "T_M + d = 9.00 us"],
    );
    assert!(reserve(&[load(10)], task, Span::from_ns(9_000), Nanos::ZERO).is_ok());
    let small = SensorLoad {
        buffer: Some(3),
        ..load(10)
    };
    let reserved = reserve(&[load(10), small], task, Span::from_ns(9_000), Nanos::ZERO);
    assert_message(
        &reserved.unwrap_err(),
        &["the buffer of sensor 1 holds 3 elements"],
    );

    let request = AdmissionRequest {
        latency: Span::from_ns(100_000),
        least_period: ns(1_000),
        largest_period: ns(50_000),
        overhead: Nanos::ZERO,
        lateness: Nanos::ZERO,
        density: Ratio::whole(1),
        joint_bound: false,
    };
    assert!(choose(&[load(10), load(990)], &request).is_ok());
    // A WCET above the period, even by one.
    let chosen = choose(&[load(10), load(1_001)], &request);
    assert_message(
        &chosen.unwrap_err(),
        &[
            "sensor 1 is evaluated for 1.00 us",
            "its period T = 1.00 us",
        ],
    );
    let huge = choose(&[load(u64::MAX)], &request);
    assert_message(&huge.unwrap_err(), &["sensor 0 is evaluated for "]);
    let short = AdmissionRequest {
        latency: Span::from_ns(900),
        ..request
    };
    assert_message(
        &choose(&[load(10)], &short).unwrap_err(),
        &["keeps the latency below 900 ns"],
    );
    for density in [Ratio::whole(0), Ratio::whole(2)] {
        let wrong = AdmissionRequest { density, ..request };
        assert_message(&choose(&[load(10)], &wrong).unwrap_err(), &["the density "]);
    }
}
