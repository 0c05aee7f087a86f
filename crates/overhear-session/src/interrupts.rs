// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that request the end of the session.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use overhear_stream::sync::SignalCount;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::SignalsInfo;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::error::{ErrorKind, SessionError};

/// One request to end.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The signal.
    pub signal: Signal,
    /// Whether the kernel sent it to all processes of the terminal, and so to the program.
    pub reached_program: bool,
}

/// Whether a process ignores a signal, as programs ignore SIGINT that a script started in the
/// background, and SIGHUP those started by `nohup`. `process` is its folder in `/proc`.
#[expect(clippy::disallowed_methods, reason = "of /proc")]
pub fn ignores(process: &str, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Handles SIGINT, SIGTERM and SIGHUP while it lives, so that the report is written after them. If
/// SIGHUP is ignored it stays ignored: the user wants the program to survive the terminal.
///
/// After the last one is dropped, SIGINT and SIGTERM end the process again: the recording is
/// complete, and the user need not wait for the rest, such as the page of a long recording. SIGHUP
/// does not: the shell and the kernel both send it when a terminal is lost.
pub struct Interrupts {
    // Dropped first, so that no signal ends the process while the handler is still installed. A
    // signal between the two drops is lost.
    signals: SignalsInfo<WithOrigin>,
    _guard: InterruptGuard,
}

impl Interrupts {
    /// Handles the signals from now on.
    ///
    /// # Errors
    /// [`SessionError`] if the handlers cannot be installed.
    pub fn listen() -> Result<Self, SessionError> {
        let fail = |error: std::io::Error| {
            SessionError::new(
                ErrorKind::Unavailable,
                format!("cannot handle signals: {error}"),
            )
        };
        let guard = InterruptGuard::begin().map_err(fail)?;
        let hangup = (!ignores("self", SIGHUP)).then_some(SIGHUP);
        let signals = SignalsInfo::<WithOrigin>::new([SIGINT, SIGTERM].into_iter().chain(hangup));
        Ok(Self {
            signals: signals.map_err(fail)?,
            _guard: guard,
        })
    }

    /// Waits for a request.
    pub fn wait(&mut self) {
        while self.signals.wait().filter_map(request).next().is_none() {}
    }

    /// The requests that came since the last call.
    pub fn take(&mut self) -> Vec<Request> {
        self.signals.pending().filter_map(request).collect()
    }
}

fn request(origin: Origin) -> Option<Request> {
    let signal = match origin.signal {
        SIGINT => Signal::INT,
        SIGTERM => Signal::TERM,
        SIGHUP => Signal::HUP,
        _ => return None,
    };
    // When a terminal hangs up, the kernel sends SIGHUP to the leader of its session only.
    let is_for_leader = signal == Signal::HUP && leads_session();
    Some(Request {
        signal,
        reached_program: matches!(origin.cause, Cause::Kernel) && !is_for_leader,
    })
}

/// Whether this process leads its session.
///
/// The kernel returns 0 for a leader outside the PID namespace, as in a container that was entered
/// without a session of its own, and below an `init` that never began a session.
/// `rustix::process::getsid` panics at 0.
fn leads_session() -> bool {
    // SAFETY: two system calls without memory arguments.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// Whether an interrupt that the user types at the terminal reaches this process, and so the
/// programs that it runs: they are in the foreground of its terminal.
#[must_use]
pub fn reaches_programs() -> bool {
    let terminal = rustix::fs::open("/dev/tty", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let foreground = terminal.and_then(rustix::termios::tcgetpgrp);
    foreground.is_ok_and(|group| group == rustix::process::getpgrp())
}

/// Requests to end that come from the process itself instead of the signals of [`Interrupts`]: a
/// language runtime has signal handlers of its own. All clones share one queue.
#[derive(Clone, Debug, Default)]
pub struct RequestQueue(Arc<Mutex<Vec<Request>>>);

impl RequestQueue {
    /// Adds a request. The session takes it in its next round.
    pub fn push(&self, request: Request) {
        self.lock().push(request);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Request>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The source of a session's requests to end.
pub(crate) enum Requests {
    /// The signals of this process.
    Signals(Interrupts),
    /// A queue. No signal handler is installed.
    Queue(RequestQueue),
}

impl Requests {
    /// Takes requests from now on: from the queue, or without one from the signals.
    pub(crate) fn listen(queue: Option<RequestQueue>) -> Result<Self, SessionError> {
        match queue {
            Some(queue) => Ok(Self::Queue(queue)),
            None => Interrupts::listen().map(Self::Signals),
        }
    }

    /// The requests that came since the last call.
    pub(crate) fn take(&mut self) -> Vec<Request> {
        match self {
            Self::Signals(interrupts) => interrupts.take(),
            Self::Queue(queue) => std::mem::take(&mut *queue.lock()),
        }
    }
}

/// Proves that requests are guard to: while one lives, none ends the process by itself.
struct InterruptGuard(());

/// Numbers of [`InterruptGuard`]s that were created and dropped. The signal handler compares them.
static GUARD_COUNTS: LazyLock<[SignalCount; 2]> = LazyLock::new(Default::default);
/// Whether the handlers are installed. They stay until the end of the process.
static INSTALLED: Mutex<bool> = Mutex::new(false);

impl InterruptGuard {
    fn begin() -> std::io::Result<Self> {
        let [begun, ended] = &*GUARD_COUNTS;
        begun.add_one();
        let guard = Self(());
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if *installed {
            return Ok(guard);
        }
        for signal in [SIGINT, SIGTERM] {
            if ignores("self", signal) {
                continue;
            }
            let act = move || {
                if begun.get() == ended.get() {
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            };
            // SAFETY: two loads and an emulation of the default action, all async-signal-safe; the
            // counters are statics that were initialised above.
            unsafe { signal_hook::low_level::register(signal, act) }?;
        }
        *installed = true;
        Ok(guard)
    }
}

impl Drop for InterruptGuard {
    fn drop(&mut self) {
        GUARD_COUNTS[1].add_one();
    }
}
