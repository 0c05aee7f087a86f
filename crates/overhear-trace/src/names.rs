// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel's numbers are called: those of system calls, signals, soft interrupts, and of what an
//! element tells of.

use overhear_event::kernel::events::{
    BLOCK_IO, IPC, LOCK, PAGE_FAULT, SIGNAL, SOFTIRQ, SYSCALL, TIMER,
};

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

/// The name of a number in an element of the kernel, for people; `None` if it is only a number. Sensor and
/// field are named as in `docs/kernel-sensors.md`.
///
/// Numbers of system calls are those of the architecture that this program was built for: the kernel sensors
/// tell them as they are on the machine that was recorded.
#[must_use]
pub fn name_of_number(sensor: &str, field: &str, number: u64) -> Option<&'static str> {
    let at = usize::try_from(number).ok()?;
    match (sensor, field) {
        (SYSCALL, "number") => syscalls::Sysno::new(at).map(|call| call.name()),
        (SIGNAL, "number") => SIGNALS.get(at.checked_sub(1)?).copied(),
        (SOFTIRQ, "number") => SOFT_INTERRUPTS.get(at).copied(),
        (BLOCK_IO, "operation") => BLOCK_OPERATIONS.get(at).copied(),
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

/// What an element of several kinds tells of. Where kinds are no more than begin and end they are drawn, and
/// have no names.
fn kind(sensor: &str, kind: usize) -> Option<&'static str> {
    let names: &[&str] = match sensor {
        PAGE_FAULT => &["in the program", "in the kernel", "served"],
        SIGNAL => &["generated", "delivered"],
        IPC => &["sent", "received"],
        LOCK => &["waits", "goes on", "inherits a priority", "gives it back"],
        TIMER => &["begin", "end", "begin", "end", "wakes", "has woken"],
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
        assert_eq!(number("irq", 9), None);
        assert_eq!(name("kind")("signal", 2), Some("delivered"));
        assert_eq!(name("kind")("signal", 0), None);
        assert_eq!(name("kind")("syscall", 1), None);
        assert_eq!(name("family")("ipc", 1), Some("Unix"));
        assert_eq!(name("operation")("block_io", 2), Some("flush"));
    }
}
