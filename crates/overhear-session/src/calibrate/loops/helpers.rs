// SPDX-License-Identifier: MIT OR Apache-2.0
//! The helpers of loops besides the calling thread: threads that act while they are active, and a
//! process that echoes bytes.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};

use overhear_monitor::scheduler::{run_on, take_precedence};

/// A thread that repeats an action while it is active.
pub(super) struct Helper {
    // Begins and ends the action in turns.
    switches: Sender<()>,
    // Confirms each begin and end.
    confirmations: Receiver<()>,
    /// Its thread id.
    pub(super) tid: u32,
}

impl Helper {
    /// Starts the thread. `prepare` runs once in it, for example to choose a CPU.
    pub(super) fn start(
        name: &str,
        prepare: impl FnOnce() + Send + 'static,
        mut act: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (switches, requests) = mpsc::channel();
        let (confirm, confirmations) = mpsc::channel();
        let (send_tid, received_tid) = mpsc::channel();
        std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || {
                prepare();
                let _ = send_tid.send(own_tid());
                while requests.recv().is_ok() {
                    let _ = confirm.send(());
                    while requests.try_recv() == Err(TryRecvError::Empty) {
                        act();
                    }
                    if confirm.send(()).is_err() {
                        break;
                    }
                }
            })?;
        let gone = |_| std::io::Error::other("a thread of a loop has ended");
        let tid = received_tid.recv().map_err(gone)?;
        Ok(Self {
            switches,
            confirmations,
            tid,
        })
    }

    /// Runs `run` while the thread is active. On another CPU it is active before `run` begins; on
    /// the same CPU it becomes active as soon as it gets the CPU.
    pub(super) fn while_active<T>(&self, run: impl FnOnce() -> T) -> T {
        let _ = self.switches.send(());
        let _ = self.confirmations.recv();
        let result = run();
        let _ = self.switches.send(());
        let _ = self.confirmations.recv();
        result
    }
}

/// A thread that yields repeatedly.
pub(super) fn yielder(cpu: u32) -> std::io::Result<Helper> {
    let prepare = move || {
        let _ = run_on(cpu);
    };
    Helper::start("yielder", prepare, || {
        rustix::thread::sched_yield();
    })
}

/// A thread that keeps a CPU busy, with real-time priority if that is permitted.
pub(super) fn spinner(cpu: u32) -> std::io::Result<Helper> {
    let prepare = move || {
        let _ = run_on(cpu);
        let _ = take_precedence();
    };
    Helper::start("spinner", prepare, std::hint::spin_loop)
}

/// A thread of normal priority that is always runnable. Threads with real-time priority displace
/// it, so that it can be moved while it waits for a CPU.
pub(super) fn migrant(cpu: u32) -> std::io::Result<Helper> {
    let prepare = move || {
        let _ = run_on(cpu);
    };
    Helper::start("migrant", prepare, std::hint::spin_loop)
}

pub(super) fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The other process of a loop: this program again, which echoes each byte.
pub(super) struct EchoProcess(Child);

impl EchoProcess {
    pub(super) fn start() -> std::io::Result<Self> {
        // It inherits the CPU.
        Command::new("/proc/self/exe")
            .args(["calibrate", "--answer"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map(Self)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(super) fn round_trip(&mut self) -> Option<()> {
        let (stdin, stdout) = (self.0.stdin.as_mut()?, self.0.stdout.as_mut()?);
        stdin.write_all(&[0]).ok()?;
        stdout.read_exact(&mut [0]).ok()
    }
}

impl Drop for EchoProcess {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
