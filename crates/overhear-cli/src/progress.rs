// SPDX-License-Identifier: MIT OR Apache-2.0
//! The progress line of a run that lasts longer than a second.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use overhear_event::Nanos;

use overhear_session::progress::{BeginProgress, Progress};

use crate::readiness::is_writable;

/// Time between two updates of the line.
const STEP: Nanos = Nanos::from_ms(500);
/// Length of a run from which on it has a line.
const PATIENCE: Nanos = Nanos::from_ms(1_000);

/// Draws on standard error, if that is a terminal.
#[derive(Debug)]
struct Line {
    enabled: bool,
    drawn_at: Nanos,
    drawn: bool,
}

/// The display of a run; `None` if it is quiet.
pub(crate) fn unless(quiet: bool) -> Option<BeginProgress> {
    (!quiet).then_some(|| Box::new(Line::new()))
}

impl Line {
    fn new() -> Self {
        let enabled = io::stderr().is_terminal();
        Self {
            enabled,
            drawn_at: Nanos::ZERO,
            drawn: false,
        }
    }
}

impl Progress for Line {
    fn show(&mut self, since: Nanos, elements: u64, missed: u64) {
        if !self.enabled || since < PATIENCE || since < self.drawn_at.plus(STEP) {
            return;
        }
        self.drawn_at = since;
        // A terminal that is stopped, or whose connection hangs, must not stop the observation.
        if !is_writable(io::stderr(), Duration::ZERO) {
            return;
        }
        self.drawn = true;
        let seconds = since.as_ns() as f64 / 1e9;
        let line = format!("overhear: {seconds:.1} s, {elements} elements, {missed} missed");
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }

    fn clear(&mut self) {
        if self.drawn && is_writable(io::stderr(), Duration::ZERO) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
