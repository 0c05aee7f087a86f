// SPDX-License-Identifier: MIT OR Apache-2.0
//! The broken assumptions of a guarantee that the machine explains, by the observations of
//! witnesses.

use overhear_event::{GapCause, Nanos};
use overhear_monitor::executor::{BreachCause, DeadlineRefusal, Terms};

use crate::admitted::Ended;
use crate::rings::Produced;
use crate::witness::{Doubt, Excuse, Machine};

/// The reason for doubt in an inconclusive guarantee: each broken assumption needs its excuse.
pub(crate) fn doubt(ended: &Ended, terms: &Terms, machine: &Machine, produced: Produced) -> Doubt {
    let breaches = ended.guarantee.breaches();
    Doubt {
        excuse: Excuse::of_all(
            breaches.map(|(breach, _)| excuse(&breach.cause, terms, machine, produced)),
        ),
        reasons: ended.messages.join("; "),
    }
}

fn excuse(cause: &BreachCause, terms: &Terms, machine: &Machine, produced: Produced) -> Excuse {
    let lateness = terms.lateness;
    // The witness wakes at other times than the executor, and may observe half of the lateness.
    let was_late = |than: Nanos| machine.was_late(half(than));
    // The witness cannot see everything: see below.
    let possible = |is_true: bool, than: Nanos| match (is_true, was_late(than)) {
        (false, _) => Excuse::None,
        (true, true) => Excuse::Seen,
        (true, false) => Excuse::Unseen,
    };
    // A CPU's clock charges the running thread with interrupts and with time that a hypervisor
    // takes.
    let overran = |is_true: bool| possible(is_true, lateness.tardiness);
    // A value within the assumption breaks nothing, in any state of the machine.
    match *cause {
        BreachCause::WakeUp { late: by } | BreachCause::Machine { late: by, .. } => {
            // A reserved thread waits for its next period, and no other thread is late, if the
            // kernel has charged its runtime with time that it did not use.
            possible(by > lateness.wake_up, lateness.wake_up)
        }
        BreachCause::Tardy { after } => {
            let late = lateness.wake_up.plus(lateness.tardiness);
            let allowed = terms.reservation.deadline.plus(late);
            Excuse::seen(after > allowed && was_late(lateness.tardiness))
        }
        BreachCause::Stolen { stolen, .. } => {
            Excuse::seen(stolen > lateness.wake_up && was_late(lateness.wake_up))
        }
        BreachCause::UpdateOverrun { update, took, .. } => {
            overran(took > terms.updates[update.0].wcet)
        }
        BreachCause::JobOverrun { used } => overran(used > terms.reservation.runtime),
        BreachCause::Lost {
            cause: GapCause::Late,
            ..
        } => Excuse::seen(produced.held_up > lateness.hold_back),
        BreachCause::Foreign { threads } => Excuse::seen(threads > 0 && machine.was_reserved()),
        // Producers keep to their streams, and rings are as large as was admitted.
        BreachCause::Lost { .. }
        | BreachCause::SensorExceeds { .. }
        | BreachCause::SmallBuffer { .. }
        | BreachCause::Unadmitted { .. } => Excuse::None,
    }
}

/// The reason for doubt in a guarantee that could not begin: other reservations of CPU time may
/// leave too little.
pub(crate) fn refused(refusal: &DeadlineRefusal, machine: &Machine) -> Doubt {
    Doubt {
        excuse: Excuse::seen(machine.was_reserved()),
        reasons: refusal.to_string(),
    }
}

fn half(length: Nanos) -> Nanos {
    Nanos::from_ns(length.as_ns() / 2)
}
