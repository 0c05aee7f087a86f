// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs, their needs, and the effect if one of them is missing.

use crate::streams::Hook;

/// A program on a tracepoint, or on software events.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// The hook whose rings it writes to; `None` if it writes to no ring.
    pub(crate) hook: Option<Hook>,
    /// The tracepoint, [`FAULTS`] or [`SERVED_FAULTS`].
    pub(crate) tracepoint: &'static str,
    /// The effect if it is missing, as a phrase.
    pub(crate) effect_if_missing: &'static str,
    /// Whether it only helps the other programs of its hook, and writes no element.
    pub(crate) is_helper: bool,
    /// The programs that it replaces on kernels that have the tracepoints of none of them.
    pub(crate) replaces: &'static [&'static str],
}

const fn program(
    name: &'static str,
    hook: Hook,
    tracepoint: &'static str,
    effect_if_missing: &'static str,
) -> Program {
    Program {
        name,
        hook: Some(hook),
        tracepoint,
        effect_if_missing,
        is_helper: false,
        replaces: &[],
    }
}

/// A program that replaces others on other kernels; its own absence has no effect of its own.
const fn substitute(
    name: &'static str,
    hook: Hook,
    tracepoint: &'static str,
    replaces: &'static [&'static str],
) -> Program {
    let mut substitute = program(name, hook, tracepoint, "");
    substitute.replaces = replaces;
    substitute
}

const fn helper(mut program: Program) -> Program {
    program.is_helper = true;
    program
}

/// Stands for the software events by which the kernel counts served page faults, minor and major
/// ones. There is no tracepoint at that place.
pub(crate) const SERVED_FAULTS: &str = "faults_served";
/// Stands for the software event by which the kernel counts page faults before it serves them.
pub(crate) const FAULTS: &str = "faults";

/// The program that works only where programs can mask interrupts.
pub(crate) const MASKING: &str = "on_timer_waking";

/// The program that user space runs over tasks. It has no tracepoint, and no monitor works without
/// it.
pub(crate) const SELECT: &str = "select";

/// The programs of probes. They are attached to places that the user names: at the entry of a
/// function, at its return, at a static probe.
pub(crate) const PROBES: [&str; 3] = ["on_probe", "on_probe_return", "on_usdt"];

/// Number of programs at the begin of [`SCHED`] that suffice to observe a program. They use nothing
/// in which kernels differ.
pub(crate) const ESSENTIAL: usize = 4;

/// Scheduling. The first is mandatory.
pub(crate) static SCHED: [Program; 10] = [
    program("on_switch", Hook::Switch, "sched_switch", "nothing"),
    program(
        "on_fork",
        Hook::Life,
        "sched_process_fork",
        "new threads and children are not followed",
    ),
    program(
        "on_exec",
        Hook::Life,
        "sched_process_exec",
        "there are no exec elements",
    ),
    program(
        "on_exit",
        Hook::Life,
        "sched_process_exit",
        "there are no exit elements",
    ),
    program(
        "on_waking",
        Hook::Wake,
        "sched_waking",
        "the beginnings of wake-ups are not seen",
    ),
    program(
        "on_wakeup",
        Hook::Wake,
        "sched_wakeup",
        "the ends of wake-ups are not seen",
    ),
    program(
        "on_wakeup_new",
        Hook::Wake,
        "sched_wakeup_new",
        "first wake-ups are not seen",
    ),
    program(
        "on_rename",
        Hook::Life,
        "task_rename",
        "renamed threads keep their old names",
    ),
    program(
        "on_fork_again",
        Hook::Life,
        "sched_process_fork",
        "a child may escape where forks interrupt each other",
    ),
    Program {
        name: "on_cgroup",
        hook: None,
        tracepoint: "cgroup_attach_task",
        effect_if_missing: "processes that are moved into a cgroup or out of it go unnoticed",
        is_helper: false,
        replaces: &[],
    },
];

/// The sensors beyond scheduling; the programs of each hook are together.
pub(crate) static OPTIONAL: [Program; 55] = [
    program(
        "on_fault_user",
        Hook::Fault,
        "page_fault_user",
        "page faults in programs are not seen",
    ),
    program(
        "on_fault_kernel",
        Hook::Fault,
        "page_fault_kernel",
        "page faults in the kernel are not seen",
    ),
    program(
        "on_fault_served",
        Hook::Fault,
        SERVED_FAULTS,
        "the times at which page faults are served are not seen",
    ),
    substitute(
        "on_fault",
        Hook::Fault,
        FAULTS,
        &["on_fault_user", "on_fault_kernel"],
    ),
    program(
        "on_block_start",
        Hook::Block,
        "block_io_start",
        "block I/O is assigned to the thread that issues it, not to the one that requested it",
    ),
    program(
        "on_block_issue",
        Hook::Block,
        "block_rq_issue",
        "block I/O is not seen",
    ),
    program(
        "on_block_complete",
        Hook::Block,
        "block_rq_complete",
        "the ends of block I/O are not seen",
    ),
    program(
        "on_call",
        Hook::Call,
        "sys_enter",
        "the beginnings of system calls are not seen",
    ),
    program(
        "on_return",
        Hook::Call,
        "sys_exit",
        "the ends of system calls are not seen",
    ),
    program(
        "on_futex",
        Hook::Futex,
        "sys_enter",
        "futex waits are not seen",
    ),
    program(
        "on_futex_return",
        Hook::Futex,
        "sys_exit",
        "the ends of futex waits are not seen",
    ),
    program(
        "on_futex_waking",
        Hook::Futex,
        "sched_waking",
        "threads that wake futex waiters are not seen",
    ),
    program(
        "on_signal",
        Hook::Signal,
        "signal_generate",
        "the senders of signals are not seen",
    ),
    program(
        "on_signal_deliver",
        Hook::Signal,
        "signal_deliver",
        "deliveries of signals are not seen",
    ),
    program(
        "on_irq",
        Hook::Irq,
        "irq_handler_entry",
        "interrupts of devices are not seen",
    ),
    program(
        "on_irq_end",
        Hook::Irq,
        "irq_handler_exit",
        "the ends of interrupts of devices are not seen",
    ),
    program(
        "on_local_timer",
        Hook::Irq,
        "local_timer_entry",
        "interrupts of the local timer are not seen",
    ),
    program(
        "on_local_timer_end",
        Hook::Irq,
        "local_timer_exit",
        "the ends of interrupts of the local timer are not seen",
    ),
    program(
        "on_reschedule",
        Hook::Irq,
        "reschedule_entry",
        "interrupts that reschedule are not seen",
    ),
    program(
        "on_reschedule_end",
        Hook::Irq,
        "reschedule_exit",
        "the ends of interrupts that reschedule are not seen",
    ),
    program(
        "on_function",
        Hook::Irq,
        "call_function_entry",
        "calls to all CPUs are not seen",
    ),
    program(
        "on_function_end",
        Hook::Irq,
        "call_function_exit",
        "the ends of calls to all CPUs are not seen",
    ),
    program(
        "on_single",
        Hook::Irq,
        "call_function_single_entry",
        "calls to one CPU are not seen",
    ),
    program(
        "on_single_end",
        Hook::Irq,
        "call_function_single_exit",
        "the ends of calls to one CPU are not seen",
    ),
    // arm64 has these; its local timer is a device like others.
    substitute(
        "on_ipi",
        Hook::Irq,
        "ipi_entry",
        &[
            "on_local_timer",
            "on_reschedule",
            "on_function",
            "on_single",
        ],
    ),
    substitute(
        "on_ipi_end",
        Hook::Irq,
        "ipi_exit",
        &[
            "on_local_timer_end",
            "on_reschedule_end",
            "on_function_end",
            "on_single_end",
        ],
    ),
    program(
        "on_softirq",
        Hook::Softirq,
        "softirq_entry",
        "soft interrupts are not seen",
    ),
    program(
        "on_softirq_end",
        Hook::Softirq,
        "softirq_exit",
        "the ends of soft interrupts are not seen",
    ),
    program(
        "on_softirq_raise",
        Hook::Softirq,
        "softirq_raise",
        "raises of soft interrupts are not seen",
    ),
    program(
        "on_timer",
        Hook::Timer,
        "timer_expire_entry",
        "timers of low resolution are not seen",
    ),
    program(
        "on_timer_end",
        Hook::Timer,
        "timer_expire_exit",
        "the ends of timers of low resolution are not seen",
    ),
    program(
        "on_hrtimer",
        Hook::Timer,
        "hrtimer_expire_entry",
        "timers of high resolution are not seen",
    ),
    program(
        "on_hrtimer_end",
        Hook::Timer,
        "hrtimer_expire_exit",
        "the ends of timers of high resolution are not seen",
    ),
    program(
        "on_timer_waking",
        Hook::Timer,
        "sched_waking",
        "timers that wake a thread are seen only if they interrupt a tracked thread",
    ),
    program(
        "on_timer_interrupt",
        Hook::Timer,
        "local_timer_entry",
        "threads that the local timer wakes lack the begin of its interrupt",
    ),
    program(
        "on_timer_interrupt_end",
        Hook::Timer,
        "local_timer_exit",
        "an interrupt that is not seen may be taken for the last one of the local timer",
    ),
    program(
        "on_timer_irq",
        Hook::Timer,
        "irq_handler_entry",
        "threads that a timer device wakes lack the begin of its interrupt",
    ),
    program(
        "on_timer_irq_end",
        Hook::Timer,
        "irq_handler_exit",
        "an interrupt that is not seen may be taken for the last one of a device",
    ),
    program(
        "on_timer_softirq",
        Hook::Timer,
        "softirq_entry",
        "threads that timers in soft interrupts wake lack the begin of the soft interrupt",
    ),
    program(
        "on_timer_softirq_end",
        Hook::Timer,
        "softirq_exit",
        "a soft interrupt that is not seen may be taken for the last one",
    ),
    program(
        "on_migrate",
        Hook::Migrate,
        "sched_migrate_task",
        "migrations are not seen",
    ),
    program(
        "on_idle",
        Hook::Idle,
        "cpu_idle",
        "idle states are not seen",
    ),
    program(
        "on_frequency",
        Hook::Frequency,
        "cpu_frequency",
        "frequencies are not seen",
    ),
    program(
        "on_socket_send",
        Hook::Ipc,
        "sock_send_length",
        "bytes sent through sockets are not seen",
    ),
    program(
        "on_socket_receive",
        Hook::Ipc,
        "sock_recv_length",
        "bytes received through sockets are not seen",
    ),
    substitute(
        "on_socket_call",
        Hook::Ipc,
        "sys_exit",
        &["on_socket_send", "on_socket_receive"],
    ),
    program(
        "on_pipe",
        Hook::Ipc,
        "sys_enter",
        "bytes that pass through pipes are not seen",
    ),
    program(
        "on_pipe_return",
        Hook::Ipc,
        "sys_exit",
        "bytes that pass through pipes are not seen",
    ),
    program(
        "on_schedule_end",
        Hook::Flutter,
        "sched_exit_tp",
        "switches of threads to themselves are not seen",
    ),
    program(
        "on_scheduler",
        Hook::Schedule,
        "sched_entry_tp",
        "the begin of the scheduler's work is not seen",
    ),
    helper(program(
        "on_scheduler_switch",
        Hook::Schedule,
        "sched_switch",
        "the thread for which the scheduler works before a switch is not known",
    )),
    program(
        "on_scheduler_end",
        Hook::Schedule,
        "sched_exit_tp",
        "the end of the scheduler's work is not seen",
    ),
    program(
        "on_contention",
        Hook::Lock,
        "contention_begin",
        "waits for the kernel's locks are not seen",
    ),
    program(
        "on_contention_end",
        Hook::Lock,
        "contention_end",
        "the ends of waits for the kernel's locks are not seen",
    ),
    program(
        "on_inheritance",
        Hook::Lock,
        "sched_pi_setprio",
        "inherited priorities are not seen",
    ),
];
