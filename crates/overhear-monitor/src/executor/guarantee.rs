// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verdict on a guarantee: held, violated or inconclusive, and since when.
//!
//! A guarantee promises: as long as its assumptions hold, no element is missed and none is
//! evaluated too late. So there are two kinds of facts. A [`GuaranteeViolation`] is a missed or
//! late element. A [`Breach`] is an assumption that did not hold: the machine was later than
//! admitted, an update took longer than its WCET, a sensor exceeded its rate, another process
//! reserved CPU time. The verdict is
//!
//! - *violated* if a violation happened before any assumption may have been broken,
//! - else *inconclusive* if an assumption was broken,
//! - else *held*.
//!
//! A breach is found later than it happened, a foreign reservation up to a second later. It counts
//! from the last moment at which the assumption was known to hold.
//!
//! Nothing here allocates: facts are small, and are turned into messages on request.

use overhear_admission::Violation;
use overhear_event::{GapCause, Nanos, StreamId, Timestamp};

use super::terms::{SensorIndex, Terms, UpdateIndex};

/// The result of a guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuaranteeVerdict {
    /// Every element was evaluated in time, and every assumption held.
    Held,
    /// An element was missed or evaluated too late although every assumption held.
    Violated,
    /// An assumption did not hold, so nothing was guaranteed from then on.
    Inconclusive,
}

impl GuaranteeVerdict {
    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Violated => "violated",
            Self::Inconclusive => "inconclusive",
        }
    }
}

impl std::fmt::Display for GuaranteeVerdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// An assumption that did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach {
    /// When it was last known to hold.
    pub from: Timestamp,
    /// When it was found broken.
    pub at: Timestamp,
    /// Which one.
    pub cause: BreachCause,
}

/// Which assumption did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreachCause {
    /// The monitor woke later than J: it was stopped, or the machine was late.
    WakeUp {
        /// By how much after its activation.
        late: Nanos,
    },
    /// A period's work ended later than its deadline and the tardiness allow.
    Tardy {
        /// How long after the activation.
        after: Nanos,
    },
    /// An update took longer than its WCET.
    UpdateOverrun {
        /// Which.
        update: UpdateIndex,
        /// For an element of which sensor.
        sensor: SensorIndex,
        /// The element's position in its stream.
        element: u64,
        /// CPU time that it took, at least.
        took: Nanos,
    },
    /// A period's work took more CPU time than is reserved.
    JobOverrun {
        /// CPU time that it took.
        used: Nanos,
    },
    /// A sensor was faster than its stream (T, D, tau).
    SensorExceeds {
        /// Which.
        sensor: SensorIndex,
        /// The element that was too early.
        violation: Violation,
    },
    /// Elements were lost before the monitor could read them, or came behind the hold-back.
    Lost {
        /// Whose.
        sensor: SensorIndex,
        /// How many; 0 if that is not known.
        missed: u64,
        /// Why.
        cause: GapCause,
    },
    /// A stream is evaluated that admission did not count.
    Unadmitted {
        /// Which.
        stream: StreamId,
    },
    /// The buffer of a sensor holds less than admission assumed.
    SmallBuffer {
        /// Which.
        sensor: SensorIndex,
        /// Elements that it holds.
        holds: u64,
    },
    /// A latency watchdog woke later than assumed.
    Machine {
        /// On which CPU.
        cpu: u32,
        /// How late.
        late: Nanos,
    },
    /// The hypervisor took CPU time away.
    Stolen {
        /// From which CPU.
        cpu: u32,
        /// How much between `from` and `at`.
        stolen: Nanos,
    },
    /// Others reserved CPU time after admission.
    Foreign {
        /// How many threads.
        threads: usize,
    },
}

/// A violation of the guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuaranteeViolation {
    /// Time of the violation.
    pub at: Timestamp,
    /// The sensor of the element.
    pub sensor: SensorIndex,
    /// The kind of violation.
    pub what: ViolationKind,
}

/// The kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// Elements were overwritten before they were read.
    Missed {
        /// The position of the first.
        first: u64,
        /// How many.
        missed: u64,
    },
    /// An element's evaluation ended too late.
    Late {
        /// Its position.
        element: u64,
        /// From its stamp to the end of its evaluation.
        latency: Nanos,
    },
}

/// Kinds of breaches, for counting.
const KINDS: usize = 11;

impl BreachCause {
    const fn kind(&self) -> usize {
        match self {
            Self::WakeUp { .. } => 0,
            Self::Tardy { .. } => 1,
            Self::UpdateOverrun { .. } => 2,
            Self::JobOverrun { .. } => 3,
            Self::SensorExceeds { .. } => 4,
            Self::Lost { .. } => 5,
            Self::Unadmitted { .. } => 6,
            Self::Machine { .. } => 7,
            Self::Stolen { .. } => 8,
            Self::Foreign { .. } => 9,
            Self::SmallBuffer { .. } => 10,
        }
    }
}

/// The facts that decide about a guarantee so far.
#[derive(Clone, Debug, Default)]
pub struct Guarantee {
    /// The first breach of each kind, and how many there were.
    breaches: [(Option<Breach>, u64); KINDS],
    first_failure: Option<GuaranteeViolation>,
    failures: u64,
}

impl Guarantee {
    /// Takes note of a breach.
    pub fn breach(&mut self, breach: Breach) {
        let (first, count) = &mut self.breaches[breach.cause.kind()];
        if first.is_none_or(|first| breach.from < first.from) {
            *first = Some(breach);
        }
        *count += 1;
    }

    /// Takes note of a failure.
    pub fn fail(&mut self, failure: GuaranteeViolation) {
        if self.first_failure.is_none_or(|first| failure.at < first.at) {
            self.first_failure = Some(failure);
        }
        self.failures += 1;
    }

    /// The verdict on everything so far.
    #[must_use]
    pub fn verdict(&self) -> GuaranteeVerdict {
        match (self.first_breach(), self.first_failure) {
            (None, None) => GuaranteeVerdict::Held,
            (Some(breach), Some(failure)) if failure.at >= breach.from => {
                GuaranteeVerdict::Inconclusive
            }
            (Some(_), None) => GuaranteeVerdict::Inconclusive,
            (_, Some(_)) => GuaranteeVerdict::Violated,
        }
    }

    /// When the verdict became what it is, `None` while the guarantee holds.
    #[must_use]
    pub fn since(&self) -> Option<Timestamp> {
        match self.verdict() {
            GuaranteeVerdict::Held => None,
            GuaranteeVerdict::Violated => self.first_failure.map(|failure| failure.at),
            GuaranteeVerdict::Inconclusive => self.first_breach().map(|breach| breach.at),
        }
    }

    /// The breach that counts from the earliest moment.
    #[must_use]
    pub fn first_breach(&self) -> Option<Breach> {
        let breaches = self.breaches.iter().filter_map(|(first, _)| *first);
        breaches.min_by_key(|breach| (breach.from, breach.at))
    }

    /// The earliest failure.
    #[must_use]
    pub const fn first_failure(&self) -> Option<GuaranteeViolation> {
        self.first_failure
    }

    /// How many failures there were.
    #[must_use]
    pub const fn failures(&self) -> u64 {
        self.failures
    }

    /// The first breach of each kind that occurred, and how many of the kind there were.
    pub fn breaches(&self) -> impl Iterator<Item = (Breach, u64)> + '_ {
        self.breaches
            .iter()
            .filter_map(|(first, count)| Some(((*first)?, *count)))
    }

    /// What happened, a message for each kind of breach, earliest first, and one for the failures.
    /// Times are counted from `start`.
    #[must_use]
    pub fn messages(&self, terms: &Terms, start: Timestamp) -> Vec<String> {
        let mut breaches: Vec<(Breach, u64)> = self.breaches().collect();
        breaches.sort_by_key(|(breach, _)| (breach.from, breach.at));
        let mut messages: Vec<String> = breaches
            .into_iter()
            .map(|(breach, count)| match count {
                1 => breach.message(terms, start),
                more => format!("{} ({more} times in all)", breach.message(terms, start)),
            })
            .collect();
        if let Some(failure) = self.first_failure {
            messages.push(match self.failures {
                1 => failure.message(terms, start),
                more => format!("{} (the first of {more})", failure.message(terms, start)),
            });
        }
        messages
    }
}

impl Breach {
    /// What happened, with its instant counted from `start`.
    #[must_use]
    pub fn message(&self, terms: &Terms, start: Timestamp) -> String {
        let at = self.at.relative_to(start);
        let from = self.from.relative_to(start);
        match self.cause {
            BreachCause::WakeUp { late } => format!(
                "at {at} the monitor woke {late} late, {} were admitted: it was stopped, or the \
                 machine gave it no CPU",
                terms.lateness.wake_up
            ),
            BreachCause::Tardy { after } => format!(
                "at {at} a period's work ended {after} after its begin, the deadline of {} and \
                 lateness allow {}",
                terms.reservation.deadline,
                terms
                    .reservation
                    .deadline
                    .plus(terms.lateness.wake_up)
                    .plus(terms.lateness.tardiness)
            ),
            BreachCause::UpdateOverrun {
                update,
                sensor,
                element,
                took,
            } => format!(
                "at {at} update `{}` took {took} for element {element} of sensor `{}`, its wcet is {}",
                terms.update(update),
                terms.sensor(sensor),
                terms
                    .updates
                    .get(update.0)
                    .map_or(Nanos::ZERO, |update| update.wcet),
            ),
            BreachCause::JobOverrun { used } => format!(
                "at {at} a period's work had taken {used} of CPU time, {} are reserved",
                terms.reservation.runtime
            ),
            BreachCause::SensorExceeds { sensor, violation } => format!(
                "sensor `{}` exceeds its stream: element {} at {} {}",
                terms.sensor(sensor),
                violation.element,
                violation.at.relative_to(start),
                violation.broken
            ),
            BreachCause::Lost {
                sensor,
                missed,
                cause,
            } => {
                let elements = match missed {
                    0 => "an unknown number of elements".to_string(),
                    1 => "1 element".to_string(),
                    more => format!("{more} elements"),
                };
                let why = match cause {
                    GapCause::Late => "published later than the hold-back allows",
                    GapCause::Nested => "refused inside another write",
                    GapCause::Full => "refused for want of room",
                    GapCause::Epoch => "in a break of the clock",
                    GapCause::Corrupt => "damaged",
                    GapCause::Kernel => "lost by the kernel",
                    GapCause::Overwritten => "overwritten",
                    GapCause::Inconsistent => "never recorded, as the elements around them prove",
                    GapCause::Budget => "not written, to keep a budget",
                    GapCause::Disk => "left out of the recording",
                    GapCause::Unsampled => "not sampled in their period",
                };
                format!("at {at} {elements} of sensor `{}` were {why}", terms.sensor(sensor))
            }
            BreachCause::Unadmitted { stream } => format!(
                "from {at} on stream {stream} is evaluated, which admission did not count"
            ),
            BreachCause::Machine { cpu, late } => {
                format!("at {at} the watchdog of CPU {cpu} woke {late} late")
            }
            BreachCause::SmallBuffer { sensor, holds } => format!(
                "the buffer of sensor `{}` holds {holds} elements, admission assumed {}: give `buffer = {holds}`, \
                 or declare the rate of the file in the program",
                terms.sensor(sensor),
                terms.sensors.get(sensor.0).map_or(0, |it| it.buffer)
            ),
            BreachCause::Stolen { cpu, stolen } => format!(
                "between {from} and {at} the hypervisor took {stolen} from CPU {cpu}"
            ),
            BreachCause::Foreign { threads } => format!(
                "between {from} and {at} {} reserved CPU time that admission did not know of",
                match threads {
                    1 => "another thread".to_string(),
                    more => format!("{more} other threads"),
                }
            ),
        }
    }
}

impl GuaranteeViolation {
    /// What happened, with its instant counted from `start`.
    #[must_use]
    pub fn message(&self, terms: &Terms, start: Timestamp) -> String {
        let sensor = terms.sensor(self.sensor);
        let at = self.at.relative_to(start);
        match self.what {
            ViolationKind::Missed { first, missed } => format!(
                "at {at} {missed} elements of sensor `{sensor}` from {first} on had been overwritten \
                 before they were read"
            ),
            ViolationKind::Late { element, latency } => format!(
                "at {at} element {element} of sensor `{sensor}` had been evaluated {latency} after its \
                 stamp, the bound is {}",
                terms.latency
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};

    use super::{
        Breach, BreachCause, Guarantee, GuaranteeVerdict, GuaranteeViolation, ViolationKind,
    };
    use crate::executor::terms::SensorIndex;

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn breach(from: u64, found: u64) -> Breach {
        Breach {
            from: at(from),
            at: at(found),
            cause: BreachCause::Foreign { threads: 1 },
        }
    }

    fn failure(ns: u64) -> GuaranteeViolation {
        GuaranteeViolation {
            at: at(ns),
            sensor: SensorIndex(0),
            what: ViolationKind::Late {
                element: 3,
                latency: Nanos::from_ms(1),
            },
        }
    }

    #[test]
    fn violation_counts_only_before_the_first_breach() {
        let mut guarantee = Guarantee::default();
        assert_eq!(
            (guarantee.verdict(), guarantee.since()),
            (GuaranteeVerdict::Held, None)
        );
        guarantee.breach(breach(100, 200));
        let doubtful = (GuaranteeVerdict::Inconclusive, Some(at(200)));
        assert_eq!((guarantee.verdict(), guarantee.since()), doubtful);
        // Found at 200, but it may have begun at 100.
        guarantee.fail(failure(100));
        assert_eq!((guarantee.verdict(), guarantee.since()), doubtful);
        guarantee.fail(failure(99));
        assert_eq!(
            (guarantee.verdict(), guarantee.since()),
            (GuaranteeVerdict::Violated, Some(at(99)))
        );
        // A breach that is reported later, but began before.
        guarantee.breach(breach(50, 300));
        assert_eq!(
            (guarantee.verdict(), guarantee.since()),
            (GuaranteeVerdict::Inconclusive, Some(at(300)))
        );
        assert_eq!((guarantee.failures(), guarantee.breaches().count()), (2, 1));
    }
}
