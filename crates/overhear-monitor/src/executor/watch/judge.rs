// SPDX-License-Identifier: MIT OR Apache-2.0
//! Judgement of steps and elements: execution times, latencies, declared rates.

use overhear_event::{Nanos, Timestamp};

use super::accounts::{Known, LongestStep};
use super::Watch;
use crate::clock::Clock;
use crate::executor::guarantee::{Breach, BreachCause, GuaranteeViolation, ViolationKind};
use crate::executor::terms::{SensorIndex, UpdateIndex};
use crate::reaction::{Measure, Occurrence};

impl<C: Clock> Watch<'_, C> {
    pub(super) fn occurred(&mut self, at: Timestamp, occurrence: &Occurrence) {
        if let Some(decider) = &mut self.decider {
            decider.occurred(at, occurrence);
        }
    }

    /// Reads both clocks before the first step after a sleep, in which time passed and no CPU time.
    pub(super) fn wake(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.slept) {
            self.reading = (now, self.clock.cpu_time());
        }
    }

    /// Lower bound of the CPU time of a step that ended at `end` and took this long by the clock:
    /// CPU time since the last reading, less the whole time outside the step.
    fn cpu_time_of_step(&mut self, took: Nanos, end: Timestamp) -> Nanos {
        let cpu = self.clock.cpu_time();
        let (read_at, read) = self.reading;
        let passed = cpu.as_ns().saturating_sub(read.as_ns());
        let outside = end.since(read_at).as_ns().saturating_sub(took.as_ns());
        self.reading = (end, cpu);
        // Never more than the time that passed: the reading itself takes time as well.
        Nanos::from_ns(passed.saturating_sub(outside).min(took.as_ns()))
    }

    /// How long a step took, by the clock, or by the CPU's where that is measured.
    pub(super) fn length_of_step(&mut self, (begin, end): (Timestamp, Timestamp)) -> Nanos {
        let took = end.since(begin);
        match self.measuring {
            true => self.cpu_time_of_step(took, end),
            false => took,
        }
    }

    /// Judges what an update took for an element: the step from `begin` to `end`, and what it
    /// `prepared` before that.
    pub(super) fn judge_step(
        &mut self,
        index: usize,
        sensor: Option<SensorIndex>,
        element: u64,
        prepared: Nanos,
        (begin, end): (Timestamp, Timestamp),
    ) {
        let mut took = prepared.plus(self.length_of_step((begin, end)));
        let wcet = self
            .terms
            .updates
            .get(index)
            .map_or(Nanos::ZERO, |u| u.wcet);
        if !self.measuring && self.judging && took > wcet {
            took = self.cpu_time_of_step(took, end);
        }
        let longest = &mut self.updates[index].longest;
        longest.elements += 1;
        if took > longest.took {
            *longest = LongestStep {
                took,
                element,
                sensor,
                ..*longest
            };
        }
        if self.judging && took > wcet {
            self.updates[index].fate.overruns += 1;
            let update = UpdateIndex(index);
            let cause = BreachCause::UpdateOverrun {
                update,
                sensor: sensor.unwrap_or(SensorIndex(usize::MAX)),
                element,
                took,
            };
            self.guarantee.breach(Breach {
                from: begin,
                at: end,
                cause,
            });
            let occurrence = Occurrence::Overrun {
                update,
                sensor,
                element,
                took,
                wcet,
            };
            self.occurred(end, &occurrence);
        }
    }

    /// Judges an element that was evaluated at `end`.
    pub(super) fn judge_latency(
        &mut self,
        known: Known,
        element: u64,
        time: Timestamp,
        end: Timestamp,
    ) {
        let Some(account) = known.account else { return };
        let latency = end.since(time);
        let account = &mut self.accounts[account];
        let (sensor, figures) = (account.sensor, &mut account.figures);
        figures.elements += 1;
        if !self.judging {
            return;
        }
        figures.latency = figures.latency.max(latency);
        if latency > self.terms.latency {
            self.guarantee.fail(GuaranteeViolation {
                at: end,
                sensor,
                what: ViolationKind::Late { element, latency },
            });
        }
    }

    /// Checks an element against its sensor's declared rate; of a kernel sensor also against its
    /// ring.
    pub(super) fn judge_conformance(
        &mut self,
        (account, ring): (usize, Option<usize>),
        element: u64,
        at: Timestamp,
    ) {
        let account = &mut self.accounts[account];
        let sensor = account.sensor;
        let lost = std::mem::take(&mut account.lost);
        let last = std::mem::replace(&mut account.last, at);
        let of_sensor = account.check.push_after_loss(at, lost);
        let of_ring = ring.map(|ring| &mut self.rings[ring]).and_then(|ring| {
            let lost = std::mem::take(&mut ring.lost);
            let last = std::mem::replace(&mut ring.last, at);
            let violation = ring.check.push_after_loss(at, lost)?;
            Some((last, violation))
        });
        let of_sensor = of_sensor.map(|violation| (last, violation));
        // Where both are broken the ring's was kept to for longer ago, and counts from there.
        let Some((last, violation)) = of_ring.or(of_sensor) else {
            return;
        };
        account.figures.exceeding += 1;
        if self.judging {
            self.guarantee.breach(Breach {
                from: last.min(at),
                at,
                cause: BreachCause::SensorExceeds { sensor, violation },
            });
            let broken = violation.broken;
            let measure = Measure::of_lengths(broken.observed(), broken.bound());
            let occurrence = Occurrence::Exceeded {
                sensor,
                element,
                measure,
            };
            self.occurred(at, &occurrence);
        }
    }
}
