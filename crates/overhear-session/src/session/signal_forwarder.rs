// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals of the session that go on to the program.

use std::cell::RefCell;

use rustix::process::{kill_process, Pid, Signal};

use crate::child::Running;
use crate::interrupts::Requests;
use crate::process_tree::ProcessTree;

/// Passes the signals that ask for the end of the session on to the program.
pub(super) struct SignalForwarder<'a> {
    running: &'a Running,
    interrupts: &'a mut Requests,
    // How often the user has asked for the end.
    reached: u32,
    // Whether SIGHUP was among these requests.
    hung_up: bool,
    // Where processes are waited for that the program has left behind.
    tree: Option<&'a RefCell<ProcessTree>>,
    // What these have not been sent yet. A terminal reaches none that is in a session of its own.
    for_orphans: Option<Signal>,
}

impl<'a> SignalForwarder<'a> {
    /// A forwarder for this program, and for the processes in `tree` that it leaves behind.
    pub(super) fn new(
        running: &'a Running,
        interrupts: &'a mut Requests,
        tree: Option<&'a RefCell<ProcessTree>>,
    ) -> Self {
        Self {
            running,
            interrupts,
            reached: 0,
            hung_up: false,
            tree,
            for_orphans: None,
        }
    }

    /// Forwards the requests that came since the last call.
    pub(super) fn pass_on(&mut self) {
        for request in self.interrupts.take() {
            // A shell passes a hang-up on to its jobs, and the kernel repeats it when the shell
            // ends.
            if request.signal == Signal::HUP && std::mem::replace(&mut self.hung_up, true) {
                continue;
            }
            self.reached += 1;
            let signal = match self.reached {
                1 => request.signal,
                2 => Signal::TERM,
                _ => Signal::KILL,
            };
            self.for_orphans = Some(signal);
            let ignored = request.signal == Signal::INT && self.running.ignores_interrupts();
            match self.reached {
                // A terminal sends its signals to the program as well.
                1 if request.reached_program && !ignored => {}
                1 if ignored => self.running.signal(Signal::TERM),
                _ => self.running.signal(signal),
            }
        }
        let orphans = self.tree.map(RefCell::borrow);
        let orphans = orphans.filter(|tree| tree.is_orphaned());
        if let (Some(tree), Some(signal)) = (orphans, self.for_orphans) {
            self.for_orphans = None;
            for pid in tree.processes() {
                if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                    // One that has ended meanwhile does not mind.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}
