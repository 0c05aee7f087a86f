// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of `overhear attach`. It is written in pieces, so that a request to end is noticed
//! while the reader pauses.

use std::cell::RefCell;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::readiness::is_writable;
use overhear_session::interrupts::Interrupts;

/// Bytes that a writable pipe takes without waiting: `PIPE_BUF`. A terminal may take less and wait,
/// but a signal ends its wait with what it has taken.
const PIECE_BYTES: usize = 4096;
/// Longest wait between two checks for a request.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Time after a request for which the output waits for a reader that pauses.
const GRACE: Duration = Duration::from_millis(500);

/// Requests to end, with the time of the first one.
pub(super) struct Requests {
    interrupts: Interrupts,
    first: Option<Instant>,
}

impl Requests {
    pub(super) fn listen(interrupts: Interrupts) -> Rc<RefCell<Self>> {
        let first = None;
        Rc::new(RefCell::new(Self { interrupts, first }))
    }

    /// Whether there was a request.
    pub(super) fn have_come(&mut self) -> bool {
        if !self.interrupts.take().is_empty() {
            self.first.get_or_insert_with(Instant::now);
        }
        self.first.is_some()
    }

    fn is_grace_over(&mut self) -> bool {
        self.have_come() && self.first.is_some_and(|first| first.elapsed() >= GRACE)
    }
}

/// Writes to a descriptor until a request has come and its reader still pauses.
pub(super) struct Outlet<F> {
    pub(super) file: F,
    pub(super) requests: Rc<RefCell<Requests>>,
}

impl<F: AsFd> Write for Outlet<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
        while !is_writable(&self.file, CHECK_INTERVAL) {
            if self.requests.borrow_mut().is_grace_over() {
                let message = "the reader of the output has paused";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        }
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.file, piece))?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
