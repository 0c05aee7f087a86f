// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forwards signals of the session to the program.

use std::cell::RefCell;

use rustix::process::{kill_process, Pid, Signal};

use crate::child::Running;
use crate::interrupts::Requests;
use crate::process_tree::ProcessTree;

/// Forwards the requests to end the session to the program. The second request is SIGTERM, the
/// third SIGKILL.
pub(crate) struct SignalForwarder<'a> {
    running: &'a Running,
    requests: &'a mut Requests,
    // Number of requests so far.
    count: u32,
    // Whether SIGHUP was among these requests.
    hung_up: bool,
    // The processes of the program, if the session waits for all of them.
    tree: Option<&'a RefCell<ProcessTree>>,
    // The signal that has not been sent to orphaned processes yet. A terminal does not signal
    // processes in sessions of their own.
    for_orphans: Option<Signal>,
}

impl<'a> SignalForwarder<'a> {
    /// A forwarder to this program, and to its processes in `tree` that outlive it.
    pub(crate) fn new(
        running: &'a Running,
        requests: &'a mut Requests,
        tree: Option<&'a RefCell<ProcessTree>>,
    ) -> Self {
        Self {
            running,
            requests,
            count: 0,
            hung_up: false,
            tree,
            for_orphans: None,
        }
    }

    /// Forwards the requests that came since the last call.
    pub(crate) fn forward(&mut self) {
        for request in self.requests.take() {
            // A shell forwards SIGHUP to its jobs, and the kernel sends it again when the shell
            // ends.
            if request.signal == Signal::HUP && std::mem::replace(&mut self.hung_up, true) {
                continue;
            }
            self.count += 1;
            let signal = match self.count {
                1 => request.signal,
                2 => Signal::TERM,
                _ => Signal::KILL,
            };
            self.for_orphans = Some(signal);
            let ignored = request.signal == Signal::INT && self.running.ignores_interrupts();
            match self.count {
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
                    // It fails for a process that has ended meanwhile.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}
