// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads of the program and of all its children that are alive, by what the kernel sensor tells
//! of their lives.

use std::collections::{BTreeSet, HashMap};

use overhear_event::kernel::{Life, TASK_LIFE};
use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_monitor::HOLD_BACK;
use rustix::io::Errno;
use rustix::process::{test_kill_process, Pid};

/// Between two looks whether processes are there whose end may have been missed.
const LOOK: Nanos = Nanos::from_ms(100);

/// Followed threads that have not ended, by their ids.
#[derive(Debug, Default)]
pub(crate) struct ProcessTree {
    processes: HashMap<u32, u32>,
    // Since when the first process has ended.
    orphaned: Option<Timestamp>,
    looked: Timestamp,
    // Threads whose process was gone at the last look. What they did before their end may not be
    // evaluated yet.
    missing: BTreeSet<u32>,
}

impl ProcessTree {
    /// Whether nobody is left of a tree whose first process has ended, which it has at `now`. It is
    /// not believed before everything was evaluated that happened until the first process had
    /// ended.
    pub(crate) fn has_ended(&mut self, now: Timestamp) -> bool {
        let orphaned = *self.orphaned.get_or_insert(now);
        if now.minus(HOLD_BACK) <= orphaned {
            return false;
        }
        if now.since(self.looked) >= LOOK {
            self.looked = now;
            // Ids of another PID namespace say nothing here.
            if overhear_kernel::in_initial_pid_namespace() {
                self.look();
            }
        }
        self.processes.is_empty()
    }

    /// Forgets threads whose process is gone since the look before, as their ends may have been
    /// missed.
    fn look(&mut self) {
        let gone = self.processes.iter().filter(|(_, pid)| !is_there(**pid));
        let gone: BTreeSet<u32> = gone.map(|(tid, _)| *tid).collect();
        for tid in gone.intersection(&self.missing) {
            self.processes.remove(tid);
        }
        self.missing = gone;
    }

    /// Whether the first process has ended, and others go on.
    pub(crate) const fn is_orphaned(&self) -> bool {
        self.orphaned.is_some()
    }

    /// The processes that go on.
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        self.processes.values().copied().collect()
    }
}

/// Whether there is such a process, and it is no zombie.
#[expect(clippy::disallowed_methods, reason = "of /proc")]
fn is_there(pid: u32) -> bool {
    let id = Pid::from_raw(pid.cast_signed());
    let is_gone = id.is_none_or(|id| test_kill_process(id) == Err(Errno::SRCH));
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    !is_gone && !matches!(state, Some('Z' | 'X'))
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
                self.processes.remove(&life.tid);
            }
            _ => {
                if life.kind == Life::EXEC && life.parent_tid != 0 {
                    self.processes.remove(&life.parent_tid);
                }
                self.processes.insert(life.tid, life.pid);
            }
        }
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}
