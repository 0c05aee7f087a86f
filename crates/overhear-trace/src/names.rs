// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of the kernel's numbers: of system calls, signals, soft interrupts, states of threads, and
//! kinds of elements.

use overhear_event::kernel::events::{
    BLOCK_IO, FUTEX, IPC, LOCK, PAGE_FAULT, SIGNAL, SOFTIRQ, SYSCALL, TIMER,
};
use overhear_event::kernel::SCHED_SWITCH;

/// The kernel's soft interrupts.
const SOFT_INTERRUPTS: &[&str] = &[
    "high",
    "timer",
    "network send",
    "network receive",
    "block",
    "poll",
    "tasklet",
    "scheduler",
    "hrtimer",
    "RCU",
];

/// Signals from 1 on; those above are real-time signals.
const SIGNALS: &[&str] = &[
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

const BLOCK_OPERATIONS: &[&str] = &["read", "write", "flush", "discard"];

/// The name of a number in an element of the kernel, for display; `None` if it has no name. Sensor
/// and field are named as in `docs/kernel-sensors.md`.
///
/// Numbers of system calls are those of the architecture that this program was built for: the
/// kernel sensors record them as they are on the recorded machine.
#[must_use]
pub fn name_of_number(sensor: &str, field: &str, number: u64) -> Option<&'static str> {
    let at = usize::try_from(number).ok()?;
    match (sensor, field) {
        (SYSCALL, "number") => syscalls::Sysno::new(at).map(|call| call.name()),
        (SIGNAL, "number") => SIGNALS.get(at.checked_sub(1)?).copied(),
        (SOFTIRQ, "number") => SOFT_INTERRUPTS.get(at).copied(),
        (BLOCK_IO, "operation") => BLOCK_OPERATIONS.get(at).copied(),
        (FUTEX, "operation") => futex_operation(at),
        (LOCK, "flags") => lock(at),
        (SCHED_SWITCH, "prev_state") => state(at),
        (IPC, "family") => match at {
            0 => Some("pipe"),
            1 => Some("Unix"),
            2 | 10 => Some("Internet"),
            _ => None,
        },
        (of, "kind") => kind(of, at),
        _ => None,
    }
}

/// The state bits of a thread that leaves a CPU. Left out are bits that only state which wake-ups
/// end the sleep, or that it does not count as load. The bit for freezable is kept, because it
/// makes another number of the same sleep.
const fn state(bits: usize) -> Option<&'static str> {
    /// Killable, new, a real-time lock is awaited, freezable unsafely.
    const UNTOLD: usize = 0x100 | 0x800 | 0x1000 | 0x4000;
    Some(match bits & !UNTOLD {
        0 => "runnable",
        1 => "interruptible",
        2 => "uninterruptible",
        4 => "stopped",
        8 => "traced",
        0x10 | 0x20 | 0x80 => "ended",
        0x40 => "parked",
        0x402 => "idle",
        0x2001 => "interruptible, freezable",
        0x2002 => "uninterruptible, freezable",
        0x2402 => "idle, freezable",
        _ => return None,
    })
}

/// The commands of futex(2) that wait.
const fn futex_operation(command: usize) -> Option<&'static str> {
    Some(match command {
        0 => "wait",
        6 => "lock with priority inheritance",
        9 => "wait for bits",
        11 => "wait, then lock with priority inheritance",
        13 => "lock with priority inheritance, by another clock",
        _ => return None,
    })
}

/// The flags of a wait for a lock of the kernel, in their usual combinations.
const fn lock(flags: usize) -> Option<&'static str> {
    Some(match flags {
        1 => "spinning",
        2 => "read",
        3 => "read, spinning",
        4 => "write",
        5 => "write, spinning",
        8 => "real-time mutex",
        32 => "mutex",
        33 => "mutex, spinning",
        _ => return None,
    })
}

/// The kind of an element with several kinds. Kinds that are only begin and end are drawn, and have
/// no names.
fn kind(sensor: &str, kind: usize) -> Option<&'static str> {
    let names: &[&str] = match sensor {
        PAGE_FAULT => &["in the program", "in the kernel", "served"],
        SIGNAL => &["generated", "delivered"],
        IPC => &["sent", "received"],
        LOCK => &["waits", "goes on", "inherits a priority", "gives it back"],
        TIMER => &[
            "begin",
            "end",
            "begin",
            "end",
            "wakes",
            "has woken",
            "interrupt entered",
        ],
        _ => return None,
    };
    names.get(kind.checked_sub(1)?).copied()
}

#[cfg(test)]
mod tests {
    use super::name_of_number;

    #[test]
    fn numbers_have_the_names_of_this_machine() {
        let name = |field: &'static str| {
            move |sensor: &str, number: i64| name_of_number(sensor, field, number as u64)
        };
        let number = name("number");
        assert_eq!(number("syscall", libc::SYS_futex), Some("futex"));
        assert_eq!(number("syscall", libc::SYS_exit_group), Some("exit_group"));
        assert_eq!(number("syscall", 0xffff_ffff), None);
        for (signal, called) in [
            (libc::SIGHUP, "SIGHUP"),
            (libc::SIGSEGV, "SIGSEGV"),
            (libc::SIGCHLD, "SIGCHLD"),
            (libc::SIGSYS, "SIGSYS"),
        ] {
            assert_eq!(number("signal", signal.into()), Some(called));
        }
        for none in [0, 32, -1] {
            assert_eq!(number("signal", none), None);
        }
        assert_eq!(number("softirq", 9), Some("RCU"));
        assert_eq!(number("softirq", 10), None);
        assert_eq!(name("kind")("timer", 7), Some("interrupt entered"));
        assert_eq!(name("kind")("timer", 8), None);
        assert_eq!(number("irq", 9), None);
        assert_eq!(name("kind")("signal", 2), Some("delivered"));
        assert_eq!(name("kind")("signal", 0), None);
        assert_eq!(name("kind")("syscall", 1), None);
        assert_eq!(name("family")("ipc", 1), Some("Unix"));
        assert_eq!(name("operation")("block_io", 2), Some("flush"));
        assert_eq!(name("operation")("futex", 0), Some("wait"));
        assert_eq!(name("operation")("futex", 1), None);
        assert_eq!(name("flags")("lock", 33), Some("mutex, spinning"));
        assert_eq!(name("flags")("lock", 1 << 20), None);
    }

    #[test]
    fn sleeps_that_differ_have_names_that_differ() {
        let name = |bits| name_of_number("sched_switch", "prev_state", bits);
        assert_eq!(name(0), Some("runnable"));
        // The kernel sleeps like this in nanosleep and futex, and elsewhere.
        assert_eq!(name(0x2001), Some("interruptible, freezable"));
        assert_eq!(name(1), Some("interruptible"));
        // Killable, and a worker that waits for work.
        assert_eq!(name(0x102), Some("uninterruptible"));
        assert_eq!(name(0x402), Some("idle"));
        for ended in [16, 32, 128] {
            assert_eq!(name(ended), Some("ended"));
        }
        assert_eq!(name(0xffff), None);
    }
}
