// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the elements of a stream name their task.

use overhear_event::kernel::is_probe;
use overhear_event::{Origin, StreamDescriptor, WRITER_TID};

use super::fields::{NumberField, TaskField};
use crate::automaton::spec::specification::TaskOf;

/// The field of kernel elements that names the thread.
pub(crate) const THREAD: &str = "tid";

/// Whether the number is a task id: 0 and `u32::MAX` are none.
#[inline(always)]
pub(crate) const fn is_task(number: u32) -> bool {
    number.wrapping_add(1) > 1
}

/// Where an element names a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskSource {
    /// Nowhere: it has none.
    NoTask,
    /// All elements of the stream have this task.
    Always(u32),
    /// In this field.
    Field(TaskField),
}

impl TaskSource {
    /// Where the elements of a stream name the task that a symbol declares.
    pub(crate) fn of(
        task: &TaskOf,
        stream: &StreamDescriptor,
        writer: impl FnOnce() -> Self,
    ) -> Self {
        match task {
            TaskOf::NoTask => Self::NoTask,
            TaskOf::Field(word) => {
                let field = NumberField::of(&stream.schema, &word.text);
                field.map_or(Self::NoTask, |field| Self::Field(field.into()))
            }
            TaskOf::Writer => writer(),
        }
    }

    /// The task that the element with this payload names.
    #[inline]
    pub(crate) fn named_by(self, payload: &[u8]) -> Option<u32> {
        let task = match self {
            Self::Field(field) => field.read(payload)?,
            Self::Always(task) => task,
            Self::NoTask => 0,
        };
        is_task(task).then_some(task)
    }
}

/// The writer of a stream's elements: the task of a symbol that declares no field for it.
pub(crate) fn writer(stream: &StreamDescriptor) -> TaskSource {
    match (NumberField::of(&stream.schema, WRITER_TID), &stream.origin) {
        (Some(field), _) => TaskSource::Field(field.into()),
        (None, Origin::Program(task)) => TaskSource::Always(task.pid),
        // A probe runs in the context of the thread that its element names.
        (None, Origin::Kernel { .. }) if is_probe(&stream.sensor) => {
            NumberField::of(&stream.schema, THREAD)
                .map_or(TaskSource::NoTask, |it| TaskSource::Field(it.into()))
        }
        _ => TaskSource::NoTask,
    }
}

/// The only process that elements of the stream can belong to; `None` if there can be several.
pub(crate) fn sole_task(stream: &StreamDescriptor) -> Option<u32> {
    match writer(stream) {
        TaskSource::Always(task) => Some(task),
        _ => None,
    }
}
