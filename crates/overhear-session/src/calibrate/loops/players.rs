// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who plays in loops beside the calling thread: threads and a process that do their part while
//! they are told to.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};

use overhear_monitor::scheduler::{run_on, take_precedence};

/// A thread that does something over and over while it is told to.
pub(super) struct Player {
    // To begin, and to end.
    orders: Sender<()>,
    // It has begun, and ended.
    replies: Receiver<()>,
    /// Its number.
    pub(super) tid: u32,
}

impl Player {
    /// With its preparations, such as choosing a CPU.
    pub(super) fn start(
        name: &str,
        prepare: impl FnOnce() + Send + 'static,
        mut act: impl FnMut() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (orders, told) = mpsc::channel();
        let (reply, replies) = mpsc::channel();
        let (introduce, introduced) = mpsc::channel();
        std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || {
                prepare();
                let _ = introduce.send(own_tid());
                while told.recv().is_ok() {
                    let _ = reply.send(());
                    while told.try_recv() == Err(TryRecvError::Empty) {
                        act();
                    }
                    if reply.send(()).is_err() {
                        break;
                    }
                }
            })?;
        let gone = |_| std::io::Error::other("a thread of a loop has ended");
        let tid = introduced.recv().map_err(gone)?;
        Ok(Self {
            orders,
            replies,
            tid,
        })
    }

    /// Runs something while the player acts. On another CPU it has begun when this begins; on one's
    /// own it begins as soon as it gets the CPU.
    pub(super) fn while_busy<T>(&self, run: impl FnOnce() -> T) -> T {
        let _ = self.orders.send(());
        let _ = self.replies.recv();
        let result = run();
        let _ = self.orders.send(());
        let _ = self.replies.recv();
        result
    }
}

/// A thread that yields to whoever yields to it.
pub(super) fn yielder(cpu: u32) -> std::io::Result<Player> {
    let prepare = move || {
        let _ = run_on(cpu);
    };
    Player::start("yielder", prepare, || {
        rustix::thread::sched_yield();
    })
}

/// A thread that keeps a CPU busy, with precedence if that is permitted.
pub(super) fn keeper(cpu: u32) -> std::io::Result<Player> {
    let prepare = move || {
        let _ = run_on(cpu);
        let _ = take_precedence();
    };
    Player::start("keeper", prepare, std::hint::spin_loop)
}

/// An ordinary thread that would like to run wherever it is. Beside threads with precedence it gets
/// no CPU: so it can be moved while it waits.
pub(super) fn nomad(cpu: u32) -> std::io::Result<Player> {
    let prepare = move || {
        let _ = run_on(cpu);
    };
    Player::start("nomad", prepare, std::hint::spin_loop)
}

pub(super) fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// The other process of a loop: this program again, which answers each byte.
pub(super) struct Answerer(Child);

impl Answerer {
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

    pub(super) fn trip(&mut self) -> Option<()> {
        let (stdin, stdout) = (self.0.stdin.as_mut()?, self.0.stdout.as_mut()?);
        stdin.write_all(&[0]).ok()?;
        stdout.read_exact(&mut [0]).ok()
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
