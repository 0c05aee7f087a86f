// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of kernel events in foreign traces: `irq_softirq_entry` in LTTng's, `irq:softirq_entry` in
//! those of perf and ftrace.

use overhear_event::kernel::events::{KIND_BEGIN, KIND_END, KIND_RAISE, UNKNOWN};
use overhear_event::kernel::Wake;
use syscalls::Sysno;

/// A kernel event that becomes an element of a kernel sensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hook {
    Switch,
    /// A wake-up, by its kind.
    Wake(u32),
    Fork,
    Exec,
    Exit,
    /// A thread that existed when the tracer started.
    StateDump,
    Migrate,
    /// A system call: its number, which is [`UNKNOWN`] where a field has it, and its kind.
    Syscall(u32, u32),
    Irq(u32),
    /// An interrupt without a handler: its name and kind.
    Vector(&'static str, u32),
    Softirq(u32),
    Timer(u32),
    HrtimerStart,
    Hrtimer(u32),
    PageFault(u32),
    BlockIssue,
    BlockComplete,
    Idle,
    Frequency,
    SignalGenerate,
    SignalDeliver,
    Lock(u32),
}

/// Names of the kernel's groups of tracepoints, before the colon.
const GROUPS: [&str; 11] = [
    "sched",
    "irq",
    "irq_vectors",
    "timer",
    "exceptions",
    "block",
    "power",
    "signal",
    "lock",
    "raw_syscalls",
    "syscalls",
];

impl Hook {
    /// Hook of an event with this name; `None` for events of programs, and for other events of the
    /// kernel.
    pub(super) fn of(name: &str) -> Option<Self> {
        let event = match name.split_once(':') {
            Some((group, event)) if GROUPS.contains(&group) => event,
            Some(_) => return None,
            None => name,
        };
        let prefixes = ["x86_irq_vectors_", "x86_exceptions_", "power_"];
        let mut bare = prefixes
            .iter()
            .filter_map(|prefix| event.strip_prefix(prefix));
        let event = bare.next().unwrap_or(event);
        Some(match event {
            "sched_switch" => Self::Switch,
            "sched_waking" => Self::Wake(Wake::WAKING),
            "sched_wakeup" => Self::Wake(Wake::WAKEUP),
            "sched_wakeup_new" => Self::Wake(Wake::NEW),
            "sched_process_fork" => Self::Fork,
            "sched_process_exec" => Self::Exec,
            "sched_process_exit" => Self::Exit,
            "lttng_statedump_process_state" => Self::StateDump,
            "sched_migrate_task" => Self::Migrate,
            "sys_enter" => Self::Syscall(UNKNOWN, KIND_BEGIN),
            "sys_exit" => Self::Syscall(UNKNOWN, KIND_END),
            "irq_handler_entry" => Self::Irq(KIND_BEGIN),
            "irq_handler_exit" => Self::Irq(KIND_END),
            "local_timer_entry" => Self::Vector("local_timer", KIND_BEGIN),
            "local_timer_exit" => Self::Vector("local_timer", KIND_END),
            "reschedule_entry" => Self::Vector("reschedule", KIND_BEGIN),
            "reschedule_exit" => Self::Vector("reschedule", KIND_END),
            "call_function_entry" => Self::Vector("call_function", KIND_BEGIN),
            "call_function_exit" => Self::Vector("call_function", KIND_END),
            "call_function_single_entry" => Self::Vector("call_single", KIND_BEGIN),
            "call_function_single_exit" => Self::Vector("call_single", KIND_END),
            "irq_softirq_entry" | "softirq_entry" => Self::Softirq(KIND_BEGIN),
            "irq_softirq_exit" | "softirq_exit" => Self::Softirq(KIND_END),
            "irq_softirq_raise" | "softirq_raise" => Self::Softirq(KIND_RAISE),
            "timer_expire_entry" => Self::Timer(KIND_BEGIN),
            "timer_expire_exit" => Self::Timer(KIND_END),
            "timer_hrtimer_start" | "hrtimer_start" => Self::HrtimerStart,
            "timer_hrtimer_expire_entry" | "hrtimer_expire_entry" => Self::Hrtimer(KIND_BEGIN),
            "timer_hrtimer_expire_exit" | "hrtimer_expire_exit" => Self::Hrtimer(KIND_END),
            "page_fault_user" => Self::PageFault(1),
            "page_fault_kernel" => Self::PageFault(2),
            "block_rq_issue" => Self::BlockIssue,
            "block_rq_complete" => Self::BlockComplete,
            "cpu_idle" => Self::Idle,
            "cpu_frequency" => Self::Frequency,
            "signal_generate" => Self::SignalGenerate,
            "signal_deliver" => Self::SignalDeliver,
            "contention_begin" => Self::Lock(KIND_BEGIN),
            "contention_end" => Self::Lock(KIND_END),
            _ => return Self::syscall(event),
        })
    }

    /// A system call, by the end of the event's name.
    fn syscall(event: &str) -> Option<Self> {
        let event = event.strip_prefix("compat_").unwrap_or(event);
        let kinds = [
            ("syscall_entry_", KIND_BEGIN),
            ("syscall_exit_", KIND_END),
            ("sys_enter_", KIND_BEGIN),
            ("sys_exit_", KIND_END),
        ];
        let mut kinds = kinds.iter();
        let (name, kind) =
            kinds.find_map(|(prefix, kind)| Some((event.strip_prefix(prefix)?, *kind)))?;
        // Some entries have the names of the kernel's functions.
        let name = match name {
            "newstat" => "stat",
            "newlstat" => "lstat",
            "newfstat" => "fstat",
            "newuname" => "uname",
            "sendfile64" => "sendfile",
            "umount" => "umount2",
            name => name,
        };
        let number = name.parse::<Sysno>().ok();
        let number = number.and_then(|number| u32::try_from(number.id()).ok());
        Some(Self::Syscall(number.unwrap_or(UNKNOWN), kind))
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::events::{KIND_BEGIN, KIND_END, UNKNOWN};
    use overhear_event::kernel::Wake;

    use super::Hook;

    #[test]
    fn names_of_lttng_and_perf_have_the_same_hook() {
        let read = u32::try_from(syscalls::Sysno::read.id()).unwrap();
        for (names, hook) in [
            (
                ["sched_waking", "sched:sched_waking"],
                Hook::Wake(Wake::WAKING),
            ),
            (
                ["syscall_entry_read", "syscalls:sys_enter_read"],
                Hook::Syscall(read, KIND_BEGIN),
            ),
            (
                ["compat_syscall_exit_read", "syscalls:sys_exit_read"],
                Hook::Syscall(read, KIND_END),
            ),
            (
                ["syscall_entry_unheard_of", "raw_syscalls:sys_enter"],
                Hook::Syscall(UNKNOWN, KIND_BEGIN),
            ),
            (
                ["irq_softirq_exit", "irq:softirq_exit"],
                Hook::Softirq(KIND_END),
            ),
            (
                ["timer_hrtimer_expire_entry", "timer:hrtimer_expire_entry"],
                Hook::Hrtimer(KIND_BEGIN),
            ),
            (
                [
                    "x86_irq_vectors_call_function_single_entry",
                    "irq_vectors:call_function_single_entry",
                ],
                Hook::Vector("call_single", KIND_BEGIN),
            ),
            (
                [
                    "x86_exceptions_page_fault_user",
                    "exceptions:page_fault_user",
                ],
                Hook::PageFault(1),
            ),
            (["power_cpu_idle", "power:cpu_idle"], Hook::Idle),
        ] {
            for name in names {
                assert_eq!(Hook::of(name), Some(hook), "{name}");
            }
        }
        for foreign in [
            "ros2:callback_start",
            "app:sched_switch",
            "napi_poll",
            "syscall",
        ] {
            assert_eq!(Hook::of(foreign), None, "{foreign}");
        }
    }
}
