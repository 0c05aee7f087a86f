// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reactions to findings of a monitor: decided in the evaluating thread, carried out in another
//! one.
//!
//! The input is an [`Occurrence`]: an update exceeded its WCET, a sensor its rate, elements were
//! missed, a constraint was decided, an update requests a reaction. A [`Decider`] compares it with
//! its [`Condition`]s. The output are [`Decision`]s, which [`Decisions`] yields to another thread,
//! the only one that writes files, starts programs or sends signals ([GRTMon, section 3.5]: it must
//! be simple to trigger reactions based on the result of evaluations).
//!
//! ```
//! use overhear_event::{Nanos, Timestamp};
//! use overhear_monitor::executor::{SensorIndex, UpdateIndex};
//! use overhear_monitor::reaction::{decider, Condition, Occurrence, ReactionIndex, Trigger};
//!
//! let condition = Condition {
//!     reaction: ReactionIndex(0),
//!     trigger: Trigger::Missed,
//!     of: None,
//!     after: 10,
//!     once: false,
//! };
//! let (mut decider, mut decisions) = decider(vec![condition], 64);
//! let missed = |missed| Occurrence::Missed { sensor: SensorIndex(0), first: 0, missed };
//! decider.occurred(Timestamp::from_monotonic_ns(100), &missed(9));
//! decider.occurred(Timestamp::from_monotonic_ns(200), &missed(2));
//!
//! let mut found = Vec::new();
//! decisions.take(|decision| found.push(decision));
//! assert_eq!(found.len(), 1);
//! assert_eq!((found[0].count, found[0].occurrence), (11, missed(2)));
//! assert_eq!(decisions.lost(), 0);
//! ```
//!
//! # Design constraints
//!
//! A decider works inside a round with reserved CPU time: it does not allocate, take a lock or call
//! the kernel, and it never waits for the thread that carries out. So decisions travel through a
//! private ring by the protocol of `overhear-stream`, as elements do: the newest replaces the
//! oldest, and the reader counts exactly what it was too late for. A decider has one ring and one
//! thread; a monitor with several threads, or updates with requests of their own, has several.

use overhear_event::{ClockId, Nanos, Ticks, Timestamp, WriterKind};
use overhear_stream::{Geometry, Header, OwnedWords, ReadItem, Reader, SimpleWriter};
use zerocopy::IntoBytes as _;

use crate::executor::{SensorIndex, UpdateIndex};

/// Which kind of occurrence calls for a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// An update took longer for an element than its WCET.
    Overrun,
    /// A sensor was faster than its stream (T, D, tau).
    Stream,
    /// Elements of a sensor were missed.
    Missed,
    /// An instance offends against a constraint.
    Violated,
    /// A constraint that is not violated cannot be found to hold any more.
    Inconclusive,
    /// An update requested it.
    Update,
}

impl Trigger {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Overrun,
        Self::Stream,
        Self::Missed,
        Self::Violated,
        Self::Inconclusive,
        Self::Update,
    ];

    /// The name in `overhear.toml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overrun => "overrun",
            Self::Stream => "stream",
            Self::Missed => "missed",
            Self::Violated => "violated",
            Self::Inconclusive => "inconclusive",
            Self::Update => "update",
        }
    }
}

/// A constraint, by its place among those that are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConstraintIndex(pub usize);

/// A reaction, by its place among those that a user described.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactionIndex(pub usize);

/// What was observed, and the bound that it offends against, in one unit. [`Measure::NONE`] where
/// there is neither.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measure {
    /// The value; `None` for what did not come, or must not come at all.
    pub observed: Option<f64>,
    /// The bound; `None` where there is none.
    pub bound: Option<f64>,
    /// Whether both are nanoseconds. Else they are in the unit of their field, or counts.
    pub in_nanoseconds: bool,
}

impl Measure {
    /// Neither a value nor a bound.
    pub const NONE: Self = Self {
        observed: None,
        bound: None,
        in_nanoseconds: false,
    };

    /// A length, and the bound that it offends against.
    #[must_use]
    pub fn of_lengths(observed: Option<Nanos>, bound: Option<Nanos>) -> Self {
        let number = |length: Nanos| length.as_ns() as f64;
        Self {
            observed: observed.map(number),
            bound: bound.map(number),
            in_nanoseconds: true,
        }
    }

    /// The numbers by their bits, NaN for none, and the unit.
    fn words(&self) -> [u64; 3] {
        let bits = |number: Option<f64>| number.unwrap_or(f64::NAN).to_bits();
        let unit = u64::from(self.in_nanoseconds);
        [bits(self.observed), bits(self.bound), unit]
    }

    fn from_words([observed, bound, unit]: [u64; 3]) -> Self {
        let some = |bits| Some(f64::from_bits(bits)).filter(|number| !number.is_nan());
        Self {
            observed: some(observed),
            bound: some(bound),
            in_nanoseconds: unit != 0,
        }
    }
}

/// Something that may call for a reaction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Occurrence {
    /// [`Trigger::Overrun`].
    Overrun {
        /// Which update.
        update: UpdateIndex,
        /// Sensor of the element; `None` for a sensor that is not described.
        sensor: Option<SensorIndex>,
        /// The element's position in its stream.
        element: u64,
        /// CPU time that it took, at least.
        took: Nanos,
        /// Its WCET.
        wcet: Nanos,
    },
    /// [`Trigger::Stream`].
    Exceeded {
        /// Which sensor.
        sensor: SensorIndex,
        /// The position of the element that was too early.
        element: u64,
        /// The distance to the element before and D, or how early it was and tau.
        measure: Measure,
    },
    /// [`Trigger::Missed`].
    Missed {
        /// Whose elements.
        sensor: SensorIndex,
        /// The position of the first.
        first: u64,
        /// How many; 0 is a damage of unknown extent.
        missed: u64,
    },
    /// [`Trigger::Violated`].
    Violated {
        /// Which constraint.
        constraint: ConstraintIndex,
        /// Offences against it that stand, this one included.
        offences: u64,
        /// The position of the first element that shows it.
        element: Option<u64>,
        /// The value of the offence, and the bound.
        measure: Measure,
    },
    /// [`Trigger::Inconclusive`].
    Inconclusive {
        /// Which constraint.
        constraint: ConstraintIndex,
    },
    /// [`Trigger::Update`].
    Requested {
        /// Which update.
        update: UpdateIndex,
        /// What it means is between the update and its user.
        code: u32,
        /// As well.
        value: i64,
    },
}

/// No sensor, no element.
const NONE: u64 = u64::MAX;

impl Occurrence {
    /// Its kind.
    #[must_use]
    pub const fn trigger(&self) -> Trigger {
        match self {
            Self::Overrun { .. } => Trigger::Overrun,
            Self::Exceeded { .. } => Trigger::Stream,
            Self::Missed { .. } => Trigger::Missed,
            Self::Violated { .. } => Trigger::Violated,
            Self::Inconclusive { .. } => Trigger::Inconclusive,
            Self::Requested { .. } => Trigger::Update,
        }
    }

    /// The place of the update, the sensor or the constraint that it is about.
    #[must_use]
    pub const fn of(&self) -> usize {
        match self {
            Self::Overrun { update, .. } | Self::Requested { update, .. } => update.0,
            Self::Exceeded { sensor, .. } | Self::Missed { sensor, .. } => sensor.0,
            Self::Violated { constraint, .. } | Self::Inconclusive { constraint } => constraint.0,
        }
    }

    /// The position of the element that it happened at, if there is one: of missed ones the first.
    #[must_use]
    pub const fn element(&self) -> Option<u64> {
        match *self {
            Self::Overrun { element, .. } | Self::Exceeded { element, .. } => Some(element),
            Self::Missed { first, .. } => Some(first),
            Self::Violated { element, .. } => element,
            Self::Inconclusive { .. } | Self::Requested { .. } => None,
        }
    }

    /// Its number: nanoseconds that were taken, elements that were missed, offences, or what the
    /// update passed. Stops at the largest.
    #[must_use]
    pub fn value(&self) -> Option<i64> {
        let number = match *self {
            Self::Overrun { took, .. } => took.as_ns(),
            Self::Missed { missed, .. } => missed,
            Self::Violated { offences, .. } => offences,
            Self::Requested { value, .. } => return Some(value),
            Self::Exceeded { .. } | Self::Inconclusive { .. } => return None,
        };
        Some(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// What was observed, and the bound that it offends against.
    #[must_use]
    pub fn measure(&self) -> Measure {
        match *self {
            Self::Overrun { took, wcet, .. } => Measure::of_lengths(Some(took), Some(wcet)),
            Self::Exceeded { measure, .. } | Self::Violated { measure, .. } => measure,
            Self::Missed { .. } | Self::Inconclusive { .. } | Self::Requested { .. } => {
                Measure::NONE
            }
        }
    }

    /// The code of an update's request.
    #[must_use]
    pub const fn code(&self) -> Option<u32> {
        match *self {
            Self::Requested { code, .. } => Some(code),
            _ => None,
        }
    }

    /// What it counts towards [`Condition::after`]: missed elements one by one, all else once.
    const fn weight(&self) -> u64 {
        match self {
            // A damage of unknown extent is at least something.
            Self::Missed { missed, .. } if *missed > 0 => *missed,
            _ => 1,
        }
    }

    fn words(&self) -> [u64; 8] {
        let of = self.of() as u64;
        let (kind, rest) = match *self {
            Self::Overrun {
                sensor,
                element,
                took,
                ..
            } => {
                let sensor = sensor.map_or(NONE, |sensor| sensor.0 as u64);
                (0, [sensor, element, took.as_ns()])
            }
            Self::Exceeded { element, .. } => (1, [element, 0, 0]),
            Self::Missed { first, missed, .. } => (2, [first, missed, 0]),
            Self::Violated {
                offences, element, ..
            } => (3, [offences, element.unwrap_or(NONE), 0]),
            Self::Inconclusive { .. } => (4, [0; 3]),
            Self::Requested { code, value, .. } => (5, [code.into(), value.cast_unsigned(), 0]),
        };
        let measure = match *self {
            // Exact, as all lengths are.
            Self::Overrun { wcet, .. } => [wcet.as_ns(), 0, 0],
            _ => self.measure().words(),
        };
        [
            kind, of, rest[0], rest[1], rest[2], measure[0], measure[1], measure[2],
        ]
    }

    fn from_words(words: [u64; 8]) -> Option<Self> {
        let [kind, of, a, b, c, measure @ ..] = words;
        let of = usize::try_from(of).ok()?;
        let some = |word: u64| (word != NONE).then_some(word);
        Some(match kind {
            0 => Self::Overrun {
                update: UpdateIndex(of),
                sensor: some(a).map(|sensor| SensorIndex(sensor as usize)),
                element: b,
                took: Nanos::from_ns(c),
                wcet: Nanos::from_ns(measure[0]),
            },
            1 => Self::Exceeded {
                sensor: SensorIndex(of),
                element: a,
                measure: Measure::from_words(measure),
            },
            2 => Self::Missed {
                sensor: SensorIndex(of),
                first: a,
                missed: b,
            },
            3 => Self::Violated {
                constraint: ConstraintIndex(of),
                offences: a,
                element: some(b),
                measure: Measure::from_words(measure),
            },
            4 => Self::Inconclusive {
                constraint: ConstraintIndex(of),
            },
            5 => Self::Requested {
                update: UpdateIndex(of),
                code: a as u32,
                value: b.cast_signed(),
            },
            _ => return None,
        })
    }
}

/// When a reaction is called for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Which reaction.
    pub reaction: ReactionIndex,
    /// By which kind of occurrence.
    pub trigger: Trigger,
    /// Only if it is about one of these places ([`Occurrence::of`]); `None` for any.
    pub of: Option<Vec<usize>>,
    /// Only from this count on: of missed elements, or of occurrences. 1 is the first.
    pub after: u64,
    /// Only the first time.
    pub once: bool,
}

/// A reaction that is to be carried out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Which.
    pub reaction: ReactionIndex,
    /// When it was called for, on `CLOCK_MONOTONIC`: the time of the element, or when it was found.
    pub at: Timestamp,
    /// The count of its condition so far, what is decided here included.
    pub count: u64,
    /// What happened.
    pub occurrence: Occurrence,
}

/// Words of a decision in a ring; its time is the stamp.
const WORDS: usize = 10;

/// Holds occurrences against conditions. See the module's text.
#[derive(Debug)]
pub struct Decider {
    conditions: Vec<(Condition, u64)>,
    ring: SimpleWriter<OwnedWords>,
}

/// The other end of a decider: what is to be carried out.
#[derive(Debug)]
pub struct Decisions {
    ring: Reader<OwnedWords>,
    lost: u64,
}

/// A decider and its other end, which may lag behind by `room` decisions, rounded up to a power of
/// two; what is older is lost, and counted.
#[must_use]
pub fn decider(conditions: Vec<Condition>, room: u16) -> (Decider, Decisions) {
    // One slot may be in the making.
    let capacity = (u64::from(room) + 1).next_power_of_two().max(4);
    let built = Geometry::new(8 * WORDS as u32, capacity).and_then(|geometry| {
        let words = OwnedWords::zeroed(geometry.words());
        Header::new(&geometry, WriterKind::Simple, ClockId::Monotonic, 0).store(&words);
        let writer = SimpleWriter::new(words.share(), geometry)?;
        Ok((writer, Reader::from_start(words, geometry)?))
    });
    let Ok((writer, reader)) = built else {
        unreachable!("a ring of {capacity} decisions is a valid geometry")
    };
    let conditions = conditions.into_iter().map(|condition| (condition, 0));
    let decider = Decider {
        conditions: conditions.collect(),
        ring: writer,
    };
    let decisions = Decisions {
        ring: reader,
        lost: 0,
    };
    (decider, decisions)
}

impl Decider {
    /// Decides what an occurrence calls for. Wait-free: a comparison for each condition, and a
    /// write into the ring for each reaction.
    pub fn occurred(&mut self, at: Timestamp, occurrence: &Occurrence) {
        let (trigger, of) = (occurrence.trigger(), occurrence.of());
        for (condition, count) in &mut self.conditions {
            let is_meant = condition.of.as_ref().is_none_or(|all| all.contains(&of));
            if condition.trigger != trigger || !is_meant {
                continue;
            }
            let before = *count;
            *count = before.saturating_add(occurrence.weight());
            let is_first = before < condition.after;
            if *count < condition.after || (condition.once && !is_first) {
                continue;
            }
            let mut words = [0; WORDS];
            words[..2].copy_from_slice(&[condition.reaction.0 as u64, *count]);
            words[2..].copy_from_slice(&occurrence.words());
            self.ring
                .write(words.as_bytes(), || Ticks::from_raw(at.as_monotonic_ns()));
        }
    }
}

impl Decisions {
    /// Takes what was decided since the last call.
    pub fn take(&mut self, mut carry_out: impl FnMut(Decision)) {
        let end = self.ring.published();
        let lost = &mut self.lost;
        let taken = self.ring.poll_until(end, |found| match found {
            ReadItem::Missed { count, .. } => *lost += count,
            ReadItem::Element(element) => match decision(element.stamp, element.payload) {
                Some(decision) => carry_out(decision),
                None => *lost += 1,
            },
        });
        // Only another process could damage it, and none has it.
        debug_assert!(taken.is_ok(), "{taken:?}");
    }

    /// Decisions that were replaced by newer ones before they were taken.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

fn decision(stamp: Ticks, payload: &[u8]) -> Option<Decision> {
    let mut words = [0_u64; WORDS];
    for (word, bytes) in words.iter_mut().zip(payload.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    let [reaction, count, occurrence @ ..] = words;
    Some(Decision {
        reaction: ReactionIndex(usize::try_from(reaction).ok()?),
        at: Timestamp::from_monotonic_ns(stamp.as_raw()),
        count,
        occurrence: Occurrence::from_words(occurrence)?,
    })
}

#[cfg(test)]
mod tests {
    use overhear_event::{Nanos, Timestamp};

    use super::{decider, Condition, ConstraintIndex, Measure, Occurrence, ReactionIndex, Trigger};
    use crate::executor::{SensorIndex, UpdateIndex};

    const ALL: [Occurrence; 8] = [
        Occurrence::Overrun {
            update: UpdateIndex(3),
            sensor: Some(SensorIndex(1)),
            element: 7,
            took: Nanos::from_us(5),
            wcet: Nanos::from_us(4),
        },
        Occurrence::Overrun {
            update: UpdateIndex(3),
            sensor: None,
            element: 8,
            took: Nanos::from_us(6),
            wcet: Nanos::from_ns(u64::MAX),
        },
        Occurrence::Exceeded {
            sensor: SensorIndex(2),
            element: 9,
            measure: Measure {
                observed: Some(70.0),
                bound: Some(100.0),
                in_nanoseconds: true,
            },
        },
        Occurrence::Missed {
            sensor: SensorIndex(0),
            first: 100,
            missed: 12,
        },
        Occurrence::Violated {
            constraint: ConstraintIndex(4),
            offences: 2,
            element: None,
            measure: Measure::NONE,
        },
        Occurrence::Violated {
            constraint: ConstraintIndex(4),
            offences: 3,
            element: Some(0),
            measure: Measure {
                observed: None,
                bound: Some(-0.5),
                in_nanoseconds: false,
            },
        },
        Occurrence::Inconclusive {
            constraint: ConstraintIndex(4),
        },
        Occurrence::Requested {
            update: UpdateIndex(5),
            code: u32::MAX,
            value: i64::MIN,
        },
    ];

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn condition(trigger: Trigger) -> Condition {
        Condition {
            reaction: ReactionIndex(0),
            trigger,
            of: None,
            after: 1,
            once: false,
        }
    }

    #[test]
    fn every_occurrence_arrives_unchanged() {
        let conditions = Trigger::ALL.map(condition).to_vec();
        let (mut decider, mut decisions) = decider(conditions, 64);
        for (time, occurrence) in (1..).zip(&ALL) {
            decider.occurred(at(time), occurrence);
        }
        let mut found = Vec::new();
        decisions.take(|decision| found.push((decision.at, decision.occurrence)));
        let expected: Vec<_> = (1..).map(at).zip(ALL).collect();
        assert_eq!(found, expected);
        decisions.take(|decision| panic!("{decision:?} is taken twice"));
        assert_eq!(decisions.lost(), 0);
    }

    #[test]
    fn condition_names_kind_object_count_and_how_often() {
        let numbered = |reaction, condition: Condition| Condition {
            reaction: ReactionIndex(reaction),
            ..condition
        };
        let conditions = vec![
            numbered(0, condition(Trigger::Missed)),
            Condition {
                of: Some(vec![1]),
                ..numbered(1, condition(Trigger::Missed))
            },
            Condition {
                after: 10,
                ..numbered(2, condition(Trigger::Missed))
            },
            Condition {
                after: 10,
                once: true,
                ..numbered(3, condition(Trigger::Missed))
            },
            numbered(4, condition(Trigger::Stream)),
        ];
        let (mut decider, mut decisions) = decider(conditions, 64);
        // Nine are missed, one of another sensor, damage of unknown extent, one more.
        for (sensor, missed) in [(0, 8), (1, 1), (0, 0), (0, 1)] {
            let occurrence = Occurrence::Missed {
                sensor: SensorIndex(sensor),
                first: 0,
                missed,
            };
            decider.occurred(at(1), &occurrence);
        }
        let mut found = Vec::new();
        decisions.take(|decision| found.push((decision.reaction.0, decision.count)));
        let expected = [
            (0, 8),
            (0, 9),
            (1, 1),
            (0, 10),
            (2, 10),
            (3, 10),
            (0, 11),
            (2, 11),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn decisions_beyond_the_capacity_are_lost_oldest_first_and_counted() {
        let (mut decider, mut decisions) = decider(vec![condition(Trigger::Stream)], 3);
        for element in 0..10 {
            let sensor = SensorIndex(0);
            let measure = Measure::NONE;
            let occurrence = Occurrence::Exceeded {
                sensor,
                element,
                measure,
            };
            decider.occurred(at(element), &occurrence);
        }
        let mut found = Vec::new();
        decisions.take(|decision| found.push(decision.count));
        assert_eq!((found, decisions.lost()), (vec![8, 9, 10], 7));
    }
}
