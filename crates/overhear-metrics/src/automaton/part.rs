// SPDX-License-Identifier: MIT OR Apache-2.0
//! What elements say to plain metrics, part by part: of one task each, for one time.

use overhear_event::kernel::is_probe;
use overhear_event::{ElementView, Nanos, Origin, StreamDescriptor, Timestamp, WRITER_TID};

use super::pattern::THREAD;
use super::reading::{Number, TaskId};
use super::route::Rule;
use super::specification::TaskOf;

/// What an element says to plain metrics of one task, for one time: as much of it as each element needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Where the four bytes begin that name the task, and which of their bits; the task where they do not. Nowhere if
    /// it takes more to know all.
    task_at: u32,
    task_mask: u32,
    task: u32,
    /// Where the four bytes begin that say how long ago it was, and which of their bits.
    ago_at: u32,
    ago_mask: u32,
}

impl Part {
    /// What names the task, and the number that says how long ago it was, if one does.
    fn new(task: TaskSource, ago: Option<Number>) -> Self {
        // All that is not said otherwise is read from the first bytes, and none of their bits.
        let mut part = Self {
            task_at: 0,
            task_mask: 0,
            task: 0,
            ago_at: 0,
            ago_mask: 0,
        };
        match task {
            TaskSource::Field(TaskId::Four(begin)) => {
                (part.task_at, part.task_mask) = (begin, u32::MAX)
            }
            TaskSource::Always(task) => part.task = task,
            _ => part.task_at = NOWHERE,
        }
        match ago.map(TaskId::from) {
            None => {}
            Some(TaskId::Four(begin)) => (part.ago_at, part.ago_mask) = (begin, u32::MAX),
            Some(TaskId::Other(_)) => part.task_at = NOWHERE,
        }
        part
    }

    /// Whether the four bytes that name the task say all.
    pub(super) const fn is_plain(&self) -> bool {
        self.task_at != NOWHERE && self.task_mask == u32::MAX && self.ago_mask == 0
    }

    /// The task that the element with this payload names by four bytes, if it has so many.
    #[inline(always)]
    pub(super) fn task(&self, payload: &[u8]) -> Option<u32> {
        four_bytes(payload, self.task_at)
    }

    /// The task and how long ago it was, without a branch on what the part is, if that is all that is to be known.
    #[inline(always)]
    pub(super) fn task_and_ago(&self, payload: &[u8]) -> Option<(u32, Nanos)> {
        let task = four_bytes(payload, self.task_at)? & self.task_mask | self.task;
        let ago = four_bytes(payload, self.ago_at)? & self.ago_mask;
        Some((task, Nanos::from_ns(u64::from(ago))))
    }
}

/// The four bytes that begin there, if there are so many.
#[inline(always)]
fn four_bytes(payload: &[u8], begin: u32) -> Option<u32> {
    let begin = begin as usize;
    let bytes = payload.get(begin..begin + size_of::<u32>())?;
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

/// And the rest of it.
#[derive(Clone, Debug)]
pub(super) struct Meaning {
    /// Which route's.
    pub(super) route: u32,
    /// Where the task is named.
    pub(super) task: TaskSource,
    /// The number that says how long ago it was, if one does.
    pub(super) ago: Option<Number>,
    /// The rules.
    pub(super) rules: Box<[Rule]>,
}

impl Meaning {
    /// Whether it is no more than one symbol of each metric, and none that stands in for others.
    pub(super) fn is_single(&self) -> bool {
        // Those of a metric follow each other.
        let mut pairs = self.rules.windows(2);
        pairs.all(|pair| pair[0].metric != pair[1].metric)
            && !self.rules.iter().any(|rule| rule.stands_in)
    }

    /// Whose it is what this part of an element says, and for when: 0 if it is nobody's.
    #[inline(never)]
    pub(super) fn read(&self, element: &ElementView<'_>) -> (u32, Timestamp) {
        let task = self.task.named_by(element.payload);
        let ago = self.ago.and_then(|ago| ago.bits(element.payload));
        let ago = Nanos::from_ns(ago.unwrap_or(0));
        (task.unwrap_or(0), element.time.minus(ago))
    }
}

/// What the letters of all routes say to plain metrics, by its number.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: Vec<Part>,
    meanings: Vec<Meaning>,
}

/// Where no four bytes are.
const NOWHERE: u32 = u32::MAX;

impl Parts {
    /// The rest of a part.
    pub(super) fn meaning(&self, number: u32) -> &Meaning {
        &self.meanings[number as usize]
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.meanings.len()
    }

    /// All parts from this one on.
    pub(super) fn from(&self, number: usize) -> &[Meaning] {
        &self.meanings[number..]
    }

    /// Appends one.
    pub(super) fn push(&mut self, meaning: Meaning) {
        self.parts.push(Part::new(meaning.task, meaning.ago));
        self.meanings.push(meaning);
    }

    /// All of them, by their numbers.
    pub(super) fn all(&self) -> &[Part] {
        &self.parts
    }
}

/// Neither 0 nor the largest number is a task.
#[inline(always)]
pub(super) const fn is_task(number: u32) -> bool {
    number.wrapping_add(1) > 1
}

/// Where an element says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskSource {
    Nobody,
    Always(u32),
    Field(TaskId),
}

impl TaskSource {
    /// Where the elements of a stream name the task that is meant.
    pub(super) fn of(
        task: &TaskOf,
        stream: &StreamDescriptor,
        writer: impl FnOnce() -> Self,
    ) -> Self {
        match task {
            TaskOf::Nobody => Self::Nobody,
            TaskOf::Field(word) => {
                let field = Number::of(&stream.schema, &word.text);
                field.map_or(Self::Nobody, |field| Self::Field(field.into()))
            }
            TaskOf::Writer => writer(),
        }
    }

    /// The task that the element with this payload names.
    #[inline]
    pub(super) fn named_by(self, payload: &[u8]) -> Option<u32> {
        let task = match self {
            Self::Field(field) => field.read(payload)?,
            Self::Always(task) => task,
            Self::Nobody => 0,
        };
        is_task(task).then_some(task)
    }
}

/// Whose the elements of a stream are if they do not say it by a field of their own.
pub(super) fn writer(stream: &StreamDescriptor) -> TaskSource {
    match (Number::of(&stream.schema, WRITER_TID), &stream.origin) {
        (Some(field), _) => TaskSource::Field(field.into()),
        (None, Origin::Program(task)) => TaskSource::Always(task.pid),
        // A probe interrupts the thread that it tells of.
        (None, Origin::Kernel { .. }) if is_probe(&stream.sensor) => {
            Number::of(&stream.schema, THREAD)
                .map_or(TaskSource::Nobody, |it| TaskSource::Field(it.into()))
        }
        _ => TaskSource::Nobody,
    }
}

/// The one process whose automaton can be concerned by what is missing in the stream, `None` if
/// there can be others.
pub(super) fn sole_task(stream: &StreamDescriptor) -> Option<u32> {
    match writer(stream) {
        TaskSource::Always(task) => Some(task),
        _ => None,
    }
}
