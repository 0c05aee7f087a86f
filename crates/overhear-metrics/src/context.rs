// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context in which elements are written: the thread that spends the time of writing them.
//!
//! It need not be the thread that an element names: the thread that wakes another one writes the
//! wake-up, and the kernel writes the elements of an interrupt in the time of the interrupted
//! thread.

use overhear_event::kernel::events::{
    BLOCK_IO, IRQ, KIND_BEGIN, KIND_END, LOCK, SCHED_MIGRATE, SIGNAL, SOFTIRQ, TIMER,
};
use overhear_event::kernel::{Life, Switch, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE};
use overhear_event::{FieldKind, Origin, StreamDescriptor, TypeSchema, WRITER_TID};

/// From this `kind` on, timer elements name the thread that their timer wakes, and not the
/// interrupted one.
const TIMER_WAKES: u32 = 5;

/// Offset of an unsigned field of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u32);

impl Word {
    fn of(schema: &TypeSchema, name: &str) -> Option<Self> {
        let field = schema.fields().get(schema.index_of(name)?)?;
        (field.kind == FieldKind::U32).then_some(Self(field.offset))
    }

    fn read(self, payload: &[u8]) -> Option<u32> {
        let begin = self.0 as usize;
        let bytes = payload.get(begin..begin + size_of::<u32>())?;
        Some(u32::from_ne_bytes(*bytes.first_chunk()?))
    }
}

/// Where an element names its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterContext {
    /// Always this process: its main thread, as far as is known.
    Process(u32),
    /// In this field.
    Thread(Word),
    /// In this field if `kind` is below the limit; else it is unknown.
    Below {
        thread: Word,
        kind: Word,
        limit: u32,
    },
    /// In the first field if `kind` is that of a begin, else in the second.
    ByKind {
        begin: Word,
        other: Word,
        kind: Word,
    },
    /// The thread that leaves the CPU if it is tracked, else the one that enters.
    Switch,
    /// Unknown.
    Unknown,
}

impl WriterContext {
    /// The context of the elements of a stream.
    pub(crate) fn of(stream: &StreamDescriptor) -> Self {
        let word = |name| Word::of(&stream.schema, name);
        let thread = |name| word(name).map_or(Self::Unknown, Self::Thread);
        match &stream.origin {
            Origin::Program(task) => word(WRITER_TID).map_or(Self::Process(task.pid), Self::Thread),
            // A sampler runs on a thread of its own.
            Origin::Sampler => Self::Unknown,
            Origin::Kernel { .. } => {
                let kind = word("kind");
                let below = |limit| match (word("tid"), kind) {
                    (Some(thread), Some(kind)) => Self::Below {
                        thread,
                        kind,
                        limit,
                    },
                    _ => Self::Unknown,
                };
                let by_kind = |begin, other| match (word(begin), word(other), kind) {
                    (Some(begin), Some(other), Some(kind)) => Self::ByKind { begin, other, kind },
                    _ => Self::Unknown,
                };
                match stream.sensor.as_str() {
                    SCHED_SWITCH => Self::Switch,
                    SCHED_WAKE => thread("waker_tid"),
                    // Another thread creates the new one.
                    TASK_LIFE => by_kind("parent_tid", "tid"),
                    SCHED_MIGRATE => thread("by_tid"),
                    // The sender generates a signal; it is delivered to the receiver.
                    SIGNAL => by_kind("sender_tid", "tid"),
                    TIMER => below(TIMER_WAKES),
                    // The thread that waits or releases changes priorities.
                    LOCK => below(KIND_END + 1),
                    // A request ends in an interrupt.
                    BLOCK_IO => below(KIND_END),
                    _ => thread("tid"),
                }
            }
        }
    }

    /// The thread in whose context the element with this payload was written; `None` if it is
    /// unknown or the idle thread.
    pub(crate) fn thread(self, payload: &[u8]) -> Option<u32> {
        let found = match self {
            Self::Process(process) => Some(process),
            Self::Thread(thread) => thread.read(payload),
            Self::Below {
                thread,
                kind,
                limit,
            } => (kind.read(payload)? < limit)
                .then(|| thread.read(payload))
                .flatten(),
            Self::ByKind { begin, other, kind } => match kind.read(payload)? {
                KIND_BEGIN => begin.read(payload),
                _ => other.read(payload),
            },
            Self::Switch => {
                let switch = Switch::parse(payload)?;
                let leaves = switch.flags & Switch::PREV_TRACKED != 0;
                Some(if leaves {
                    switch.prev_tid
                } else {
                    switch.next_tid
                })
            }
            Self::Unknown => None,
        };
        found.filter(|&tid| tid != 0 && tid != Switch::UNKNOWN)
    }
}

const _: () = assert!(
    Life::FORK == KIND_BEGIN,
    "task_life begins with its kind of a fork"
);

/// Whether the elements of a kernel stream are written in interrupts: they name the thread that was
/// interrupted.
pub(crate) fn is_of_interrupts(stream: &StreamDescriptor) -> bool {
    [IRQ, SOFTIRQ, TIMER].contains(&stream.sensor.as_str())
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::{events, Life, Switch, Wake};
    use overhear_event::{FieldKind, Origin, StreamDescriptor, StreamId, TypeSchema};

    use super::WriterContext;

    fn context(sensor: &str, origin: Origin, schema: TypeSchema) -> WriterContext {
        WriterContext::of(&StreamDescriptor::new(
            StreamId::from_raw(1),
            origin,
            sensor,
            schema,
        ))
    }

    fn of_words(context: WriterContext, words: &[u32]) -> Option<u32> {
        let mut payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        payload.resize(64, 0);
        context.thread(&payload)
    }

    #[test]
    fn context_is_the_thread_that_spends_the_time() {
        let kernel = |sensor, schema| context(sensor, Origin::Kernel { cpu: 0 }, schema);
        // tid, pid, waker_tid
        let wake = kernel("sched_wake", Wake::schema());
        assert_eq!(of_words(wake, &[7, 7, 9]), Some(9));
        assert_eq!(of_words(wake, &[7, 7, 0]), None);
        // tid, pid, parent_tid, parent_pid, kind
        let life = kernel("task_life", Life::schema());
        assert_eq!(of_words(life, &[7, 7, 5, 5, Life::FORK]), Some(5));
        assert_eq!(of_words(life, &[7, 7, 0, 0, Life::EXIT]), Some(7));
        // tid, pid, function, kind
        let timer = kernel("timer", events::timer_schema());
        assert_eq!(of_words(timer, &[7, 7, 0, 0, 3]), Some(7));
        assert_eq!(of_words(timer, &[7, 7, 0, 0, 5]), None);
        // tid, pid, kind
        let lock = kernel("lock", events::lock_schema());
        assert_eq!(of_words(lock, &[7, 7, 2]), Some(7));
        assert_eq!(of_words(lock, &[7, 7, 3]), None);
        // tid, pid, sender_tid, sender_pid, number, kind
        let signal = kernel("signal", events::signal_schema());
        assert_eq!(of_words(signal, &[7, 7, 5, 5, 9, 1]), Some(5));
        assert_eq!(of_words(signal, &[7, 7, 0, 0, 9, 2]), Some(7));
        let syscall = kernel("syscall", events::syscall_schema());
        assert_eq!(of_words(syscall, &[7, 6, 1, 1]), Some(7));
        let idle = kernel("cpu_idle", events::cpu_idle_schema());
        assert_eq!(of_words(idle, &[7, 6]), None);

        let switches = kernel("sched_switch", Switch::schema());
        let mut switch = Switch {
            prev_tid: 7,
            next_tid: 8,
            prev_pid: 7,
            next_pid: 8,
            prev_state: 1,
            flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
            prev_run_ns: Switch::UNKNOWN,
        };
        assert_eq!(switches.thread(&switch.to_payload()), Some(7));
        switch.flags = Switch::NEXT_TRACKED;
        assert_eq!(switches.thread(&switch.to_payload()), Some(8));
    }

    #[test]
    fn program_sensors_name_the_writer_or_the_process() {
        let process = || Origin::program(42, "p");
        let schema = TypeSchema::builder("t").field("value", FieldKind::U64, "");
        let schema = schema.build().unwrap();
        let simple = context("s", process(), schema.clone());
        assert_eq!(of_words(simple, &[7]), Some(42));
        let laned = context("s", process(), schema.with_writer().unwrap());
        assert_eq!(of_words(laned, &[43, 0, 7]), Some(43));
    }
}
