// SPDX-License-Identifier: MIT OR Apache-2.0
//! A guarantee under stress: two sensors write as densely as they were admitted, every CPU is
//! loaded by hogs, forks, writers of files and real-time threads, and a monitor is to keep what was
//! promised.
//!
//! ```sh
//! cargo bench -p overhear-monitor --bench stress -- [SECONDS [LATENESS_MS]]
//! make stress                # ten minutes
//! ```
//!
//! LATENESS_MS is how late the machine may wake a thread, 20 ms by default; the latency that is
//! guaranteed is 3.5 times that.
//!
//! Exit status 0: every element was evaluated in time. 1: one was not, although the machine was as
//! punctual as assumed, or the load was none. 3: an assumption did not hold in each of three tries,
//! and the verdict named it. 5: this user may not reserve CPU time.
#![allow(missing_docs)]

mod admitted;
mod load;
mod rings;
mod scenario;

use std::process::ExitCode;

use overhear_event::Nanos;
use overhear_monitor::executor::{SensorFigures, Terms};

use scenario::{Judgement, LoadProof, Stress, Try, ASSUMED};

/// Number of attempts while an assumption does not hold.
const TRIES: usize = 3;

fn main() -> ExitCode {
    // `cargo bench` adds an argument of its own.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    let mut number = |default| words.next().map_or(Ok(default), |word| word.parse::<u64>());
    let (seconds, assumed) = (number(20), number(ASSUMED.as_ns() / 1_000_000));
    let (Ok(seconds @ 1..1_000_000), Ok(assumed @ 1..10_000), None) =
        (seconds, assumed, words.next())
    else {
        eprintln!("stress: use stress [SECONDS [LATENESS_MS]]");
        return ExitCode::from(2);
    };
    let ms = Nanos::from_ms;
    let stress = Stress::begin(ms(1_000 * seconds), ms(assumed), true);
    println!("{}\n", admission(&stress.terms));
    for number in 1..=TRIES {
        let attempt = match stress.attempt() {
            Ok(attempt) => attempt,
            Err(reason) => {
                eprintln!("stress: {reason}");
                return ExitCode::from(5);
            }
        };
        println!(
            "try {number}, {seconds} s: {}",
            described(&attempt, &stress.terms)
        );
        match attempt.judge(&stress.terms) {
            Judgement::Broken(message) => {
                println!("broken: {message}");
                return ExitCode::FAILURE;
            }
            Judgement::Inconclusive(message) => {
                println!("inconclusive: {message}");
                if !is_load_real(&stress) {
                    return ExitCode::FAILURE;
                }
            }
            Judgement::Kept => {
                if !is_load_real(&stress) {
                    return ExitCode::FAILURE;
                }
                println!(
                    "kept: no element was missed or later than {}",
                    stress.terms.latency
                );
                return ExitCode::SUCCESS;
            }
        }
    }
    println!("inconclusive in {TRIES} tries: no statement about the guarantee");
    ExitCode::from(3)
}

/// The same without a guarantee, after each try.
fn is_load_real(stress: &Stress) -> bool {
    let (proof, figures) = stress.without_guarantee();
    let figures = sensors(&figures);
    match proof {
        LoadProof::Real => println!("best effort under the same load: {figures}"),
        LoadProof::NoRealTime => {
            println!("best effort, without real-time threads, which are not permitted: {figures}");
        }
        LoadProof::TooLight => {
            println!("best effort was in time, so the load is none: {figures}");
            return false;
        }
    }
    true
}

fn admission(terms: &Terms) -> String {
    let mut lines = Vec::new();
    for sensor in &terms.sensors {
        let stream = sensor.constraint;
        lines.push(format!(
            "sensor {}: T {}, D {}, tau {}",
            sensor.name,
            stream.period(),
            stream.distance(),
            stream.jitter()
        ));
    }
    let (reserved, lateness) = (terms.reservation, terms.lateness);
    let wcet = terms.updates.first().map_or(Nanos::ZERO, |it| it.wcet);
    lines.push(format!("the update's WCET, measured with a margin: {wcet}"));
    lines.push(format!(
        "admitted: latency {}, T_M {}, deadline {}, runtime {}; the machine may be {} late, {} tardy; hold-back {}",
        terms.latency,
        reserved.period,
        reserved.deadline,
        reserved.runtime,
        lateness.wake_up,
        lateness.tardiness,
        lateness.hold_back
    ));
    lines.join("\n")
}

fn described(attempt: &Try, terms: &Terms) -> String {
    let Try {
        ended,
        seen,
        produced,
    } = attempt;
    let written = produced.written;
    let run = &ended.run;
    format!(
        "{}; {written} elements written; {}; bound {}; latest wake-up {}, latest watchdog {}, stolen {}, \
         longest period {} of {}; {} page faults",
        ended.guarantee.verdict(),
        sensors(&ended.figures),
        terms.latency,
        run.wake_up,
        seen.worst(),
        seen.stolen(),
        run.longest_job,
        terms.reservation.runtime,
        run.faults.minor + run.faults.major
    )
}

fn sensors(figures: &[SensorFigures]) -> String {
    let sum = |of: fn(&SensorFigures) -> u64| figures.iter().map(of).sum::<u64>();
    let latency = figures.iter().map(|sensor| sensor.latency).max();
    format!(
        "{} evaluated, {} missed, largest latency {}",
        sum(|sensor| sensor.elements),
        sum(|sensor| sensor.missed),
        latency.unwrap_or_default()
    )
}
