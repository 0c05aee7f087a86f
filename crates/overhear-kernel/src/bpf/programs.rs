// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which programs there are, what each needs of the kernel, and what is missing without it.

use crate::streams::Hook;

/// A program on a tracepoint.
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Whose rings it writes to; `None` if to none.
    pub(crate) hook: Option<Hook>,
    pub(crate) tracepoint: &'static str,
    /// What is missing without it, as a phrase.
    pub(crate) without_it: &'static str,
}

const fn program(
    name: &'static str,
    hook: Hook,
    tracepoint: &'static str,
    without_it: &'static str,
) -> Program {
    Program {
        name,
        hook: Some(hook),
        tracepoint,
        without_it,
    }
}

/// The program that user space runs over tasks. It has no tracepoint, and nothing works without it.
pub(crate) const SELECT: &str = "select";

/// How many of [`SCHED`] suffice for the story of a program and use nothing that kernels differ in.
pub(crate) const ESSENTIAL: usize = 4;

/// Scheduling. The first is mandatory.
pub(crate) static SCHED: [Program; 9] = [
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
    Program {
        name: "on_cgroup",
        hook: None,
        tracepoint: "cgroup_attach_task",
        without_it: "processes that are moved into a cgroup or out of it go unnoticed",
    },
];
