// SPDX-License-Identifier: MIT OR Apache-2.0
//! A case that violates a constraint, and its position.

use std::fmt;

use overhear_event::{Nanos, Timestamp};

use crate::automaton::Position;

/// A case that offends: its kind, its times, and the elements that prove it.
///
/// No element proves an absence: the first element is the one after which another was due, and the
/// second time is that of the decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offence {
    /// The kind, with the values that show it.
    pub kind: OffenceKind,
    /// Begin of the case.
    pub begin: Timestamp,
    /// Time at which it ended, or could be decided.
    pub end: Timestamp,
    /// Its task, if known.
    pub task: Option<u32>,
    /// The elements that prove it: at its begin and at its end.
    pub elements: [Option<Position>; 2],
}

/// How a constraint is violated. Values are in the unit of their field, lengths of metrics in
/// nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OffenceKind {
    /// A value above the bound.
    Above {
        /// The value.
        value: f64,
        /// The bound.
        bound: f64,
    },
    /// A value below the bound.
    Below {
        /// The value.
        value: f64,
        /// The bound.
        bound: f64,
    },
    /// A value that is NaN.
    NotANumber,
    /// More values than the fraction permits exceed the bound; the element is the first of them.
    Fraction {
        /// Number of values above the bound.
        above: u64,
        /// Number of all values.
        of: u64,
        /// The bound.
        bound: f64,
    },
    /// The smallest and the largest value are too far apart.
    Spread {
        /// The smallest.
        least: f64,
        /// The largest.
        most: f64,
        /// The bound.
        bound: f64,
    },
    /// More elements in a window than are permitted.
    TooMany {
        /// Largest permitted number.
        bound: u64,
        /// The length in which one more came.
        within: Nanos,
    },
    /// Fewer elements in a window than are required.
    TooFew {
        /// Number of elements.
        count: u64,
        /// Smallest permitted number.
        bound: u64,
        /// The window.
        window: Nanos,
    },
    /// A distance that is too short.
    TooClose {
        /// The distance.
        distance: Nanos,
        /// The shortest permitted one.
        bound: Nanos,
    },
    /// The next element did not come before its latest time.
    Absent {
        /// The longest permitted distance.
        bound: Nanos,
    },
    /// An event that must not happen.
    Happened,
    /// An anomaly of samples, above the permitted number.
    Anomalous {
        /// The number of the first anomalous job of the thread, from 1.
        job: u64,
        /// Its largest deviation, in spreads.
        score: f64,
        /// Number of anomalies, this one included.
        count: u64,
        /// Greatest permitted number.
        bound: u64,
    },
    /// An event out of order.
    OutOfOrder {
        /// Index of the event that came, from 0 on.
        came: usize,
        /// Index of the event that was due.
        due: usize,
    },
    /// The event that had to follow came too late.
    TooLate {
        /// Its distance from the first event.
        after: Nanos,
        /// The deadline.
        within: Nanos,
    },
    /// The event that had to follow did not come in time.
    Unanswered {
        /// The deadline.
        within: Nanos,
    },
}

impl OffenceKind {
    /// The offending value: of a field in its unit, of a metric and between events in nanoseconds,
    /// of a window the number of its elements. `None` if there is no such value: an event that did
    /// not come, or must not come.
    #[must_use]
    pub fn observed(&self) -> Option<f64> {
        match *self {
            Self::Above { value, .. } | Self::Below { value, .. } => Some(value),
            Self::Spread { least, most, .. } => Some(most - least),
            Self::TooMany { bound, .. } => Some(bound as f64 + 1.0),
            Self::TooFew { count, .. } | Self::Anomalous { count, .. } => Some(count as f64),
            Self::TooClose { distance, .. } => Some(distance.as_ns() as f64),
            Self::TooLate { after, .. } => Some(after.as_ns() as f64),
            Self::NotANumber
            | Self::Fraction { .. }
            | Self::Absent { .. }
            | Self::Happened
            | Self::OutOfOrder { .. }
            | Self::Unanswered { .. } => None,
        }
    }

    /// The violated bound, in the same unit; `None` if there is none.
    #[must_use]
    pub fn bound(&self) -> Option<f64> {
        match *self {
            Self::Above { bound, .. }
            | Self::Below { bound, .. }
            | Self::Fraction { bound, .. }
            | Self::Spread { bound, .. } => Some(bound),
            Self::TooMany { bound, .. }
            | Self::TooFew { bound, .. }
            | Self::Anomalous { bound, .. } => Some(bound as f64),
            Self::TooClose { bound, .. } | Self::Absent { bound } => Some(bound.as_ns() as f64),
            Self::TooLate { within, .. } | Self::Unanswered { within } => {
                Some(within.as_ns() as f64)
            }
            Self::NotANumber | Self::Happened | Self::OutOfOrder { .. } => None,
        }
    }

    /// Whether it is about a length of time, in any unit of the values.
    pub(super) const fn is_length(&self) -> bool {
        matches!(
            self,
            Self::TooClose { .. }
                | Self::Absent { .. }
                | Self::TooLate { .. }
                | Self::Unanswered { .. }
        )
    }

    /// Writes the message for users, for values of this unit.
    pub(super) fn describe(&self, f: &mut fmt::Formatter<'_>, unit: &str) -> fmt::Result {
        let shown = |value| Shown { value, unit };
        let apart = |one: f64, other: f64| match unit {
            "ns" if one >= 0.0 && other >= 0.0 => {
                times(Nanos::from_ns(one as u64), Nanos::from_ns(other as u64))
            }
            _ => (shown(one).to_string(), shown(other).to_string()),
        };
        match *self {
            Self::Above { value, bound } => {
                let (value, bound) = apart(value, bound);
                write!(f, "{value} is more than {bound}")
            }
            Self::Below { value, bound } => {
                let (value, bound) = apart(value, bound);
                write!(f, "{value} is less than {bound}")
            }
            Self::NotANumber => f.write_str("a value is not a number"),
            Self::Fraction { above, of, bound } => {
                write!(f, "{above} of {of} values are more than {}", shown(bound))
            }
            Self::Spread { least, most, bound } => {
                let (least, most) = apart(least, most);
                write!(f, "{least} and {most} are more than {} apart", shown(bound))
            }
            Self::TooMany { bound, within } => {
                write!(
                    f,
                    "{} elements within {within}, {bound} permitted",
                    bound + 1
                )
            }
            Self::TooFew {
                count,
                bound,
                window,
            } => write!(f, "{count} elements in {window}, {bound} demanded"),
            Self::TooClose { distance, bound } => {
                let (distance, bound) = times(distance, bound);
                write!(
                    f,
                    "{distance} after the one before, at least {bound} demanded"
                )
            }
            Self::Absent { bound } => write!(f, "the next one did not come within {bound}"),
            Self::Happened => f.write_str("it happened"),
            Self::Anomalous {
                job,
                score,
                count,
                bound,
            } => {
                let anomalies = if count == 1 { "anomaly" } else { "anomalies" };
                write!(
                    f,
                    "job {job} of the thread is anomalous, {score:.0} spreads from the usual: \
                     {count} {anomalies}, {bound} permitted"
                )
            }
            Self::OutOfOrder { came, due } => write!(
                f,
                "event {} of the order came where event {} was due",
                came + 1,
                due + 1
            ),
            Self::TooLate { after, within } => {
                let (after, within) = times(after, within);
                write!(f, "it followed after {after}, {within} permitted")
            }
            Self::Unanswered { within } => write!(f, "it did not follow within {within}"),
        }
    }
}

/// Two lengths that differ: exact where three digits are equal.
fn times(one: Nanos, other: Nanos) -> (String, String) {
    let rounded = (one.to_string(), other.to_string());
    match rounded.0 == rounded.1 {
        true => {
            let exact = |length: Nanos| format!("{} ns", length.as_ns());
            (exact(one), exact(other))
        }
        false => rounded,
    }
}

/// A value with its unit, for users.
struct Shown<'a> {
    value: f64,
    unit: &'a str,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            // Below 2^53 the conversion is exact; above, three digits are shown anyway.
            "ns" if self.value >= 0.0 => write!(f, "{}", Nanos::from_ns(self.value as u64)),
            "" => write!(f, "{}", self.value),
            unit => write!(f, "{} {unit}", self.value),
        }
    }
}
