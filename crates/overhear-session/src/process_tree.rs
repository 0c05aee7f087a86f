// SPDX-License-Identifier: MIT OR Apache-2.0
//! The live threads of the program and of all its descendants, by the elements of the kernel sensor
//! `task_life`.

use std::collections::{BTreeSet, HashMap};

use overhear_event::kernel::{Life, TASK_LIFE};
use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_monitor::HOLD_BACK;
use rustix::io::Errno;
use rustix::process::{test_kill_process, Pid};

use crate::processes;

/// Interval between two checks for processes whose end was missed.
const CHECK_INTERVAL: Nanos = Nanos::from_ms(100);

/// Tracked threads that have not ended.
#[derive(Debug, Default)]
pub(crate) struct ProcessTree {
    // The process id of each thread, by thread id.
    threads: HashMap<u32, u32>,
    // The time from which the first process is known to have ended.
    orphaned: Option<Timestamp>,
    checked: Timestamp,
    // Threads whose process was gone at the last check. Their last elements may not be evaluated
    // yet.
    missing: BTreeSet<u32>,
}

impl ProcessTree {
    /// Whether all processes of the tree have ended. Called after the end of the first process; the
    /// result is `false` until all elements from before that end are evaluated.
    pub(crate) fn has_ended(&mut self, now: Timestamp) -> bool {
        let orphaned = *self.orphaned.get_or_insert(now);
        if now.minus(HOLD_BACK) <= orphaned {
            return false;
        }
        if now.since(self.checked) >= CHECK_INTERVAL {
            self.checked = now;
            // Ids of another PID namespace cannot be looked up here.
            if overhear_kernel::in_initial_pid_namespace() {
                self.remove_gone();
            }
        }
        self.threads.is_empty()
    }

    /// Removes threads whose process has been gone since the previous check: their ends were
    /// missed.
    fn remove_gone(&mut self) {
        let gone = self.threads.iter().filter(|(_, pid)| !exists(**pid));
        let gone: BTreeSet<u32> = gone.map(|(tid, _)| *tid).collect();
        for tid in gone.intersection(&self.missing) {
            self.threads.remove(tid);
        }
        self.missing = gone;
    }

    /// Whether the first process has ended, and others may go on.
    pub(crate) const fn is_orphaned(&self) -> bool {
        self.orphaned.is_some()
    }

    /// The processes that have not ended.
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        self.threads.values().copied().collect()
    }
}

/// Whether a process with this id exists and is not a zombie. If `/proc` hides it, it counts as
/// alive.
fn exists(pid: u32) -> bool {
    let id = Pid::from_raw(pid.cast_signed());
    let is_gone = id.is_none_or(|id| test_kill_process(id) == Err(Errno::SRCH));
    !is_gone && !processes::is_zombie(pid)
}

impl Analysis for ProcessTree {
    fn element(&mut self, element: &ElementView<'_>) {
        if element.stream.sensor != TASK_LIFE {
            return;
        }
        let Some(life) = Life::parse(element.payload) else {
            return;
        };
        match life.kind {
            Life::EXIT | Life::UNTRACKED => {
                self.threads.remove(&life.tid);
            }
            _ => {
                if life.kind == Life::EXEC && life.parent_tid != 0 {
                    self.threads.remove(&life.parent_tid);
                }
                self.threads.insert(life.tid, life.pid);
            }
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}
