// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that ask for the end of the session.

use rustix::process::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::iterator::SignalsInfo;
use signal_hook::low_level::siginfo::{Cause, Origin};

use crate::exit::{Failure, UNAVAILABLE};

/// One request to end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) signal: Signal,
    /// The terminal sent it, and so sent it to the program too.
    pub(crate) from_terminal: bool,
}

/// Whether a process ignores a signal, as programs ignore SIGINT that a script started in the
/// background, and SIGHUP those started by `nohup`. `process` is its folder in `/proc`.
pub(crate) fn ignores(process: &str, signal: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}

/// Takes SIGINT, SIGTERM and SIGHUP from now on, so that the report is written after them. A
/// SIGHUP that is ignored stays so: the user wants the program to survive the terminal.
pub(crate) struct Interrupts(SignalsInfo<WithOrigin>);

impl Interrupts {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let hangup = (!ignores("self", SIGHUP)).then_some(SIGHUP);
        SignalsInfo::<WithOrigin>::new([SIGINT, SIGTERM].into_iter().chain(hangup))
            .map(Self)
            .map_err(|error| {
                Failure::new(UNAVAILABLE, format!("cannot listen for signals: {error}"))
            })
    }

    /// Waits for a request.
    pub(crate) fn wait(&mut self) {
        while self.0.wait().filter_map(request).next().is_none() {}
    }

    /// The requests that came since the last call.
    pub(crate) fn take(&mut self) -> Vec<Request> {
        self.0.pending().filter_map(request).collect()
    }
}

fn request(origin: Origin) -> Option<Request> {
    let signal = match origin.signal {
        SIGINT => Signal::INT,
        SIGTERM => Signal::TERM,
        SIGHUP => Signal::HUP,
        _ => return None,
    };
    Some(Request {
        signal,
        from_terminal: matches!(origin.cause, Cause::Kernel),
    })
}
