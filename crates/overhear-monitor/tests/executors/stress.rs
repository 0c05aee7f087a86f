// SPDX-License-Identifier: MIT OR Apache-2.0
//! The stress scenario for 20 seconds, and the judgement of its tries. For ten minutes: `make
//! stress`.

use overhear_event::{Nanos, Timestamp};
use overhear_monitor::executor::{
    Breach, BreachCause, DeadlineRun, Guarantee, GuaranteeViolation, SensorFigures, SensorIndex,
    Terms, UpdateIndex, ViolationKind,
};
use overhear_monitor::{CpuLateness, WatchdogStats};

use crate::admitted::{terms, Ended};
use crate::alone;
use crate::deadline::{lateness, may_reserve};
use crate::excuse::doubt;
use crate::rings::Produced;
use crate::scenario::{Judgement, LoadProof, Stress, Try, ASSUMED};
use crate::witness::{keeps, Doubt, Excuse, Witness};

#[test]
fn every_element_is_evaluated_in_time_under_load() {
    let _alone = alone();
    if !may_reserve() {
        return;
    }
    let stress = Stress::begin(Nanos::from_ms(20_000), ASSUMED, false);
    keeps(|| {
        let witness = Witness::start();
        let attempt = stress.attempt();
        let machine = witness.stop();
        let attempt = attempt.map_err(|reasons| Doubt {
            excuse: Excuse::seen(machine.was_reserved()),
            reasons,
        })?;
        let doubt = match attempt.judge(&stress.terms) {
            Judgement::Broken(message) => panic!("{message}"),
            Judgement::Inconclusive(_) => Some(doubt(
                &attempt.ended,
                &stress.terms,
                &machine,
                attempt.produced,
            )),
            Judgement::Kept => None,
        };
        let (proof, figures) = stress.without_guarantee();
        if proof == LoadProof::NoRealTime {
            println!("skipped: no real-time load here, so best effort may be in time");
        }
        let bound = stress.terms.latency;
        assert_ne!(proof, LoadProof::TooLight, "{figures:?}, bound {bound}");
        doubt.map_or(Ok(()), Err)
    });
}

/// A try with these largest latencies and missed elements.
fn ended(terms: &Terms, latency: Nanos, missed: u64) -> Try {
    let figures = SensorFigures {
        elements: 10,
        missed,
        latency,
        exceeding: 0,
    };
    Try {
        ended: Ended {
            run: DeadlineRun::default(),
            guarantee: Guarantee::default(),
            figures: vec![figures; terms.sensors.len()],
            messages: Vec::new(),
        },
        seen: WatchdogStats::default(),
        produced: Produced {
            written: 20,
            held_up: Nanos::ZERO,
        },
    }
}

#[test]
fn tries_are_judged_by_the_state_of_the_machine() {
    let terms = terms(Nanos::from_ms(50), lateness());
    let at = Timestamp::from_monotonic_ns;
    let bound = terms.latency;
    let later = bound.plus(Nanos::from_ns(1));
    let is_broken = |attempt: &Try| matches!(attempt.judge(&terms), Judgement::Broken(_));
    assert_eq!(ended(&terms, bound, 0).judge(&terms), Judgement::Kept);
    assert!(is_broken(&ended(&terms, later, 0)));
    assert!(is_broken(&ended(&terms, bound, 1)));
    let mut nothing_written = ended(&terms, bound, 0);
    nothing_written.produced.written = 19;
    assert!(is_broken(&nothing_written));

    let mut violated = ended(&terms, later, 0);
    violated.ended.guarantee.fail(GuaranteeViolation {
        at: at(5),
        sensor: SensorIndex(0),
        what: ViolationKind::Late {
            element: 3,
            latency: later,
        },
    });
    assert!(is_broken(&violated));

    // The machine was later than assumed: the verdict contains that, in spite of missed elements.
    let late = terms.lateness.wake_up.plus(Nanos::from_ms(1));
    let breach = Breach {
        from: at(4),
        at: at(5),
        cause: BreachCause::Machine { cpu: 0, late },
    };
    let mut excused = ended(&terms, later, 7);
    excused.ended.guarantee.breach(breach);
    // The message is the only report of the time of the breach.
    assert!(is_broken(&excused));
    excused.ended.messages = excused.ended.guarantee.messages(&terms, Timestamp::ZERO);
    excused.seen = WatchdogStats {
        cpus: vec![CpuLateness {
            worst: late,
            ..CpuLateness::default()
        }],
        breaches: vec![breach],
    };
    let judged = |attempt: &Try| match attempt.judge(&terms) {
        Judgement::Inconclusive(message) => message,
        other => panic!("{other:?}"),
    };
    let message = judged(&excused);
    assert!(
        message.starts_with("machine lateness 6.00 ms > 5.00 ms: at "),
        "{message}"
    );
    // An update that overran before is the cause, and the machine's lateness is none.
    let mut overrun = ended(&terms, bound, 0);
    overrun.ended.guarantee.breach(Breach {
        from: at(1),
        at: at(2),
        cause: BreachCause::UpdateOverrun {
            update: UpdateIndex(0),
            sensor: SensorIndex(1),
            element: 7,
            took: Nanos::from_us(206),
        },
    });
    overrun.ended.guarantee.breach(breach);
    overrun.ended.messages = overrun.ended.guarantee.messages(&terms, Timestamp::ZERO);
    let message = judged(&overrun);
    assert!(
        message.starts_with("an update's CPU time was above its WCET: ")
            && message.contains("(machine lateness 0 ns of 5.00 ms)")
            && message.contains("element 7 of sensor `b`"),
        "{message}"
    );
    // The same on a machine without observed lateness.
    excused.seen = WatchdogStats::default();
    assert!(is_broken(&excused));
}
