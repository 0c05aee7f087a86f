// SPDX-License-Identifier: MIT OR Apache-2.0
//! What comes out: verdicts, their reasons, and offences for people.

use std::collections::{HashMap, HashSet};
use std::fmt;

use overhear_event::{EventName, StreamId, Timestamp};

use super::constraint::Constraint;
use super::offence::Offence;

/// The three values of a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Every instance kept it, and nothing is missing.
    Held,
    /// What was missed or is uncertain could change the answer.
    Inconclusive,
    /// An instance did not keep it, whatever is missing.
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

/// Why a verdict is not more certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Elements of its events were missed.
    Missed(u64),
    /// So many offences were taken back, because a gap that excuses them became known later.
    Doubted(u64),
    /// Instances inside the clock error.
    ClockError(u64),
    /// No stream of this event was heard.
    Unheard(EventName),
    /// No task was seen that is to be judged.
    NoTask(String),
    /// Streams were heard, but there was no instance.
    NothingJudged,
    /// More tasks, groups or awaited answers than there is room for: so many elements were not judged.
    NoRoom(u64),
    /// A stream of its events does not have what it asks for.
    Unfit(String),
    /// Something about the observation as a whole.
    Observation(String),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missed(missed) => write!(f, "{missed} missed"),
            Self::Doubted(count) => write!(f, "{count} excused by what was missed"),
            Self::ClockError(count) => write!(f, "{count} inside the clock error"),
            Self::Unheard(event) => write!(f, "{event} was not heard"),
            Self::NoTask(filter) => write!(f, "no task `{filter}` was seen"),
            Self::NothingJudged => f.write_str("nothing to judge happened"),
            Self::NoRoom(count) => write!(f, "{count} elements found no room"),
            Self::Unfit(sentence) | Self::Observation(sentence) => f.write_str(sentence),
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
    /// Instances that were judged.
    pub judged: u64,
    /// Of these, those that offend.
    pub offences: u64,
    /// The first that offends.
    pub first: Option<Case<'a>>,
    /// Why it is not more certain; not empty if it is inconclusive.
    pub reasons: Vec<Reason>,
}

/// How many names of tasks are known at once.
const NAMES: usize = 65_536;

/// Names for people: of tasks and of streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) tasks: HashMap<u32, String>,
    pub(super) streams: HashMap<StreamId, String>,
    /// The processes of streams, by the names that they had when they registered the sensors.
    registered: HashMap<StreamId, (u32, String)>,
    gone: HashSet<u32>,
    /// Tasks of which the kernel has told no name.
    suggested: HashSet<u32>,
    /// From when on sentences count times.
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

    /// The name that a process had when it registered a sensor, each newer than those before. What the kernel
    /// told since is newer still.
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

    /// The name by which a task is judged for an element of this stream. Where the kernel has told none, it is that
    /// with which its process registered this very sensor: a replay knows all streams before their elements, so
    /// that another sensor's would make its verdict differ from that of the run.
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

/// An offence and what is needed to say it in a sentence.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// What it offends against.
    pub constraint: &'a Constraint,
    /// The offence.
    pub offence: &'a Offence,
    pub(super) unit: &'a str,
    pub(super) names: &'a Names,
}

impl Case<'_> {
    /// Whether what was found is in nanoseconds.
    #[must_use]
    pub fn is_in_nanoseconds(&self) -> bool {
        self.unit == "ns" || self.offence.found.is_length()
    }

    /// The elements that show it: the names of their streams, and their positions in them.
    pub fn elements(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let positions = self.offence.elements.iter().flatten();
        positions.map(|position| {
            let name = self.names.streams.get(&position.stream);
            let name = name.cloned();
            let name = name.unwrap_or_else(|| format!("stream {}", position.stream));
            (name, position.sequence)
        })
    }

    /// Whose it is, as `name(id)`.
    #[must_use]
    pub fn task(&self) -> Option<String> {
        let task = self.offence.task?;
        Some(match self.names.tasks.get(&task) {
            Some(name) => format!("{name}({task})"),
            None => task.to_string(),
        })
    }
}

impl fmt::Display for Case<'_> {
    /// `1.20 ms is more than 200 us, at 12.000000001 s, worker(4711) (kernel/sched_wake@0 #17, ...)`, by the time since
    /// the start ([`Verdicts::count_from`](super::Verdicts::count_from)).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.offence.found.describe(f, self.unit)?;
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
