// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel sensors beyond scheduling: names and schemas.
//!
//! The BPF programs write these payloads (`crates/overhear-kernel/src/bpf/sensors.h` has the same
//! structs). `docs/kernel-sensors.md` describes each field. A sensor's events are named
//! `kernel:NAME`.

use super::checked;
use crate::{FieldKind, TypeSchema};

/// Sensor name of the page faults.
pub const PAGE_FAULT: &str = "page_fault";
/// Sensor name of the requests to block devices.
pub const BLOCK_IO: &str = "block_io";
/// Sensor name of the system calls.
pub const SYSCALL: &str = "syscall";
/// Sensor name of the futex waits.
pub const FUTEX: &str = "futex";
/// Sensor name of the signals.
pub const SIGNAL: &str = "signal";
/// Sensor name of the hard interrupts.
pub const IRQ: &str = "irq";
/// Sensor name of the soft interrupts.
pub const SOFTIRQ: &str = "softirq";
/// Sensor name of the timers.
pub const TIMER: &str = "timer";
/// Sensor name of the migrations.
pub const SCHED_MIGRATE: &str = "sched_migrate";
/// Sensor name of the idle states of CPUs.
pub const CPU_IDLE: &str = "cpu_idle";
/// Sensor name of the frequencies of CPUs.
pub const CPU_FREQUENCY: &str = "cpu_frequency";
/// Sensor name of the messages through pipes and sockets.
pub const IPC: &str = "ipc";
/// Sensor name of the switches of threads to themselves.
pub const FLUTTER: &str = "flutter";
/// Sensor name of the scheduler at work.
pub const SCHEDULE: &str = "schedule";
/// Sensor name of the waits for locks of the kernel, and of inherited priorities.
pub const LOCK: &str = "lock";

/// `kind` of what begins: a system call, a futex wait, an interrupt, a block request's issue.
pub const KIND_BEGIN: u32 = 1;
/// `kind` of what ends.
pub const KIND_END: u32 = 2;
/// `kind` of a soft interrupt that is raised: it begins later.
pub const KIND_RAISE: u32 = 3;
/// A number that is not known: of a system call whose entry was not seen.
pub const UNKNOWN: u32 = u32::MAX;

/// What a thread waited for: a page.
#[must_use]
pub fn page_fault_schema() -> TypeSchema {
    checked(
        thread("page_fault")
            .field("address", FieldKind::U64, "")
            .field("code", FieldKind::U32, "")
            .field("kind", FieldKind::U32, ""),
    )
}

/// A request to a block device is issued, or complete.
#[must_use]
pub fn block_io_schema() -> TypeSchema {
    checked(
        thread("block_io")
            .field("kind", FieldKind::U32, "")
            .field("operation", FieldKind::U32, "")
            .field("sector", FieldKind::U64, "")
            .field("device", FieldKind::U32, "")
            .field("bytes", FieldKind::U32, "bytes")
            .field("latency_ns", FieldKind::U64, "ns")
            .field("error", FieldKind::I32, "")
            .field("request", FieldKind::U32, ""),
    )
}

/// A system call begins, or ends.
#[must_use]
pub fn syscall_schema() -> TypeSchema {
    checked(
        thread("syscall")
            .field("number", FieldKind::U32, "")
            .field("kind", FieldKind::U32, "")
            .field("value", FieldKind::I64, ""),
    )
}

/// A thread begins to wait for a futex, returns, or wakes another one that waits.
#[must_use]
pub fn futex_schema() -> TypeSchema {
    checked(
        thread("futex")
            .field("kind", FieldKind::U32, "")
            .field("operation", FieldKind::U32, "")
            .field("address", FieldKind::U64, "")
            .field("waited_ns", FieldKind::U64, "ns")
            .field("result", FieldKind::I64, "")
            .field("other_tid", FieldKind::U32, "")
            .field("inverted", FieldKind::U32, ""),
    )
}

/// A signal is generated for a thread, or delivered to it.
#[must_use]
pub fn signal_schema() -> TypeSchema {
    checked(
        thread("signal")
            .field("sender_tid", FieldKind::U32, "")
            .field("sender_pid", FieldKind::U32, "")
            .field("number", FieldKind::U32, "")
            .field("kind", FieldKind::U32, ""),
    )
}

/// The handler of a hard interrupt begins, or ends.
#[must_use]
pub fn irq_schema() -> TypeSchema {
    checked(
        thread("irq")
            .field("number", FieldKind::U32, "")
            .field("kind", FieldKind::U32, "")
            .field("name", FieldKind::Text(16), ""),
    )
}

/// A soft interrupt is raised, begins, or ends.
#[must_use]
pub fn softirq_schema() -> TypeSchema {
    checked(
        thread("softirq")
            .field("number", FieldKind::U32, "")
            .field("kind", FieldKind::U32, ""),
    )
}

/// A timer's function begins, or ends.
#[must_use]
pub fn timer_schema() -> TypeSchema {
    checked(
        thread("timer")
            .field("function", FieldKind::U64, "")
            .field("kind", FieldKind::U32, "")
            .field("late_ns", FieldKind::U32, "ns"),
    )
}

/// A thread is moved to another CPU.
#[must_use]
pub fn sched_migrate_schema() -> TypeSchema {
    checked(
        thread("sched_migrate")
            .field("from_cpu", FieldKind::U32, "")
            .field("to_cpu", FieldKind::U32, "")
            .field("by_tid", FieldKind::U32, "")
            .field("by_pid", FieldKind::U32, ""),
    )
}

/// A CPU enters an idle state, or leaves it.
#[must_use]
pub fn cpu_idle_schema() -> TypeSchema {
    checked(
        TypeSchema::builder("cpu_idle")
            .field("cpu", FieldKind::U32, "")
            .field("state", FieldKind::U32, ""),
    )
}

/// A CPU gets another frequency.
#[must_use]
pub fn cpu_frequency_schema() -> TypeSchema {
    checked(
        TypeSchema::builder("cpu_frequency")
            .field("cpu", FieldKind::U32, "")
            .field("khz", FieldKind::U32, "kHz"),
    )
}

/// Bytes pass into a pipe or socket, or out of it.
#[must_use]
pub fn ipc_schema() -> TypeSchema {
    checked(
        thread("ipc")
            .field("kind", FieldKind::U32, "")
            .field("bytes", FieldKind::U32, "bytes")
            .field("channel", FieldKind::U64, "")
            .field("peer", FieldKind::U64, "")
            .field("family", FieldKind::U32, "")
            .field("protocol", FieldKind::U32, ""),
    )
}

/// A thread called the scheduler, which chose it again: a switch to itself, which is no context
/// switch.
#[must_use]
pub fn flutter_schema() -> TypeSchema {
    checked(thread("flutter"))
}

/// The scheduler begins to work for a thread, or ends.
#[must_use]
pub fn schedule_schema() -> TypeSchema {
    checked(
        thread("schedule")
            .field("kind", FieldKind::U32, "")
            .field("flag", FieldKind::U32, "")
            .field("took_ns", FieldKind::U64, "ns"),
    )
}

/// A thread waits for a lock of the kernel, or goes on; it inherits a priority, or loses it.
#[must_use]
pub fn lock_schema() -> TypeSchema {
    checked(
        thread("lock")
            .field("kind", FieldKind::U32, "")
            .field("flags", FieldKind::U32, "")
            .field("address", FieldKind::U64, "")
            .field("other_tid", FieldKind::U32, "")
            .field("inverted", FieldKind::U32, ""),
    )
}

/// The entry of a function, with the registers of its arguments as whole words.
#[must_use]
pub fn probe_schema() -> TypeSchema {
    checked(
        thread("probe")
            .field("argument_1", FieldKind::I64, "")
            .field("argument_2", FieldKind::I64, "")
            .field("argument_3", FieldKind::I64, "")
            .field("argument_4", FieldKind::I64, "")
            .field("argument_5", FieldKind::I64, "")
            .field("argument_6", FieldKind::I64, ""),
    )
}

/// A static probe, with the arguments that its note describes: which of them have a sign.
#[must_use]
pub fn static_probe_schema(signs: impl IntoIterator<Item = bool>) -> TypeSchema {
    let mut schema = thread("usdt");
    for (index, is_signed) in signs.into_iter().enumerate() {
        let kind = match is_signed {
            true => FieldKind::I64,
            false => FieldKind::U64,
        };
        schema = schema.field(&alloc::format!("argument_{}", index + 1), kind, "");
    }
    checked(schema)
}

/// The return of a function, with its value as a whole word.
#[must_use]
pub fn probe_return_schema() -> TypeSchema {
    checked(thread("probe_return").field("value", FieldKind::I64, ""))
}

/// Every payload about a thread begins with its id and its process.
fn thread(name: &str) -> crate::TypeSchemaBuilder {
    TypeSchema::builder(name)
        .field("tid", FieldKind::U32, "")
        .field("pid", FieldKind::U32, "")
}
