// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verdicts, their reasons, and offences for users.

use std::collections::{HashMap, HashSet};
use std::fmt;

use overhear_event::{EventName, StreamId, Timestamp};

use super::constraint::Constraint;
use super::offence::Offence;

/// The three values of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Every case met the constraint, and nothing is missing.
    Held,
    /// Missed or uncertain elements could change the verdict.
    Inconclusive,
    /// A case violated the constraint, and no missed element can change that.
    Violated,
}

impl Outcome {
    /// The name used in JSON and in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Inconclusive => "inconclusive",
            Self::Violated => "violated",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reason why a verdict is inconclusive, or not certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Elements of its events were missed, other than to keep a budget.
    Missed(u64),
    /// This number of elements of its events was not observed to keep a budget, and the constraint
    /// does not judge samples.
    LeftOut(u64),
    /// This number of elements of its events was not observed to keep a budget. The verdict rests
    /// on the others, as a sample; this alone makes it not inconclusive.
    Sampled(u64),
    /// This number of offences was retracted, because a gap that excuses them became known later.
    Doubted(u64),
    /// Cases within the clock error.
    ClockError(u64),
    /// There was no stream of this event.
    NoStream(EventName),
    /// There was no task that is to be judged.
    NoTask(String),
    /// There were streams, but no case.
    NothingJudged,
    /// This number of elements was not judged, because there were more tasks, groups or awaited
    /// answers than there is room for.
    NoRoom(u64),
    /// A stream of its events lacks a required field.
    Unfit(String),
    /// The observation as a whole is not complete.
    Observation(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missed(missed) => write!(f, "{missed} missed"),
            Self::LeftOut(count) => {
                write!(
                    f,
                    "{count} not observed to keep a budget (`sampled = true` judges the others)"
                )
            }
            Self::Sampled(count) => {
                write!(
                    f,
                    "judged as a sample: {count} not observed to keep a budget"
                )
            }
            Self::Doubted(count) => write!(f, "{count} excused by what was missed"),
            Self::ClockError(count) => write!(f, "{count} inside the clock error"),
            Self::NoStream(event) => write!(f, "no stream of {event}"),
            Self::NoTask(filter) => write!(f, "no task `{filter}` was seen"),
            Self::NothingJudged => f.write_str("nothing to judge happened"),
            Self::NoRoom(count) => write!(f, "{count} elements found no room"),
            Self::Unfit(message) | Self::Observation(message) => f.write_str(message),
        }
    }
}

/// What is known of a constraint.
#[derive(Debug)]
pub struct Verdict<'a> {
    /// The constraint.
    pub constraint: &'a Constraint,
    /// The verdict.
    pub outcome: Outcome,
    /// Number of judged cases.
    pub judged: u64,
    /// Number of cases that offend.
    pub offences: u64,
    /// The first offence.
    pub first: Option<OffenceView<'a>>,
    /// Reasons why it is not certain; not empty if it is inconclusive.
    pub reasons: Vec<Reason>,
}

/// Largest number of names of tasks that are known at a time.
const NAMES: usize = 65_536;

/// Names of tasks and of streams, for users.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) tasks: HashMap<u32, String>,
    pub(super) streams: HashMap<StreamId, String>,
    /// Names that the processes of streams had when they registered the sensors.
    registered: HashMap<StreamId, (u32, String)>,
    gone: HashSet<u32>,
    /// Tasks whose name no kernel element has given.
    suggested: HashSet<u32>,
    /// Origin of the times in messages.
    pub(super) start: Timestamp,
}

impl Names {
    /// The newest short name of a task.
    pub(super) fn name(&mut self, task: u32, name: &str) {
        self.gone.remove(&task);
        self.suggested.remove(&task);
        if self.tasks.len() >= NAMES {
            for task in self.gone.drain() {
                self.tasks.remove(&task);
                self.suggested.remove(&task);
            }
        }
        let known = self.tasks.get(&task);
        if known.is_none_or(|known| known != name) && self.tasks.len() < NAMES {
            self.tasks.insert(task, name.to_owned());
        }
    }

    /// The name that a process had when it registered a sensor; each is newer than those before. A
    /// name from a later kernel element is newer still.
    pub(super) fn suggest(&mut self, stream: StreamId, task: u32, name: &str) {
        let registered = (task, name.to_owned());
        self.registered.insert(stream, registered);
        let is_unknown = !self.tasks.contains_key(&task) || self.gone.contains(&task);
        if is_unknown || self.suggested.contains(&task) {
            self.name(task, name);
            if self.tasks.contains_key(&task) {
                self.suggested.insert(task);
            }
        }
    }

    /// The name by which a task is judged for an element of this stream. Without a name from a
    /// kernel element, it is the one with which its process registered this very sensor: a replay
    /// opens all streams before their elements, so that the name of another sensor would make its
    /// verdict differ from that of the run.
    pub(super) fn judged(&self, task: u32, stream: StreamId) -> Option<&str> {
        let known = self.tasks.get(&task).map(String::as_str);
        if known.is_some() && !self.suggested.contains(&task) {
            return known;
        }
        let registered = self.registered.get(&stream);
        let registered = registered.filter(|(process, _)| *process == task);
        registered.map(|(_, name)| name.as_str()).or(known)
    }

    /// The task has ended; its name is kept as long as there is room.
    pub(super) fn end(&mut self, task: u32) {
        self.gone.insert(task);
    }
}

/// An offence with everything that its message needs.
#[derive(Clone, Copy, Debug)]
pub struct OffenceView<'a> {
    /// The constraint that it violates.
    pub constraint: &'a Constraint,
    /// The offence.
    pub offence: &'a Offence,
    pub(super) unit: &'a str,
    pub(super) names: &'a Names,
}

impl OffenceView<'_> {
    /// Whether the finding is in nanoseconds.
    #[must_use]
    pub fn is_in_nanoseconds(&self) -> bool {
        self.unit == "ns" || self.offence.kind.is_length()
    }

    /// The elements that prove it: the names of their streams, and their positions in them.
    pub fn elements(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let positions = self.offence.elements.iter().flatten();
        positions.map(|position| {
            let name = self.names.streams.get(&position.stream);
            let name = name.cloned();
            let name = name.unwrap_or_else(|| format!("stream {}", position.stream));
            (name, position.sequence)
        })
    }

    /// Its task, as `name(id)`.
    #[must_use]
    pub fn task(&self) -> Option<String> {
        let task = self.offence.task?;
        Some(match self.names.tasks.get(&task) {
            Some(name) => format!("{name}({task})"),
            None => task.to_string(),
        })
    }
}

impl fmt::Display for OffenceView<'_> {
    /// `1.20 ms is more than 200 us, at 12.000000001 s, worker(4711) (kernel/sched_wake@0 #17,
    /// ...)`, with the time since the start
    /// ([`Verdicts::count_from`](super::Verdicts::count_from)).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.offence.kind.describe(f, self.unit)?;
        let begin = self.offence.begin.relative_to(self.names.start);
        write!(f, ", at {begin}")?;
        if let Some(task) = self.task() {
            write!(f, ", {task}")?;
        }
        for (index, (stream, sequence)) in self.elements().enumerate() {
            write!(f, "{}{stream} #{sequence}", [" (", ", "][index.min(1)])?;
        }
        match self.offence.elements.iter().flatten().next() {
            Some(_) => f.write_str(")"),
            None => Ok(()),
        }
    }
}
