// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events of the terminal, read by a thread of their own.
//!
//! crossterm reads a terminal that has hung up in an endless loop, and it waits for the rest of an
//! incomplete sequence. Neither may stop the observation, so no other thread waits for this one:
//! the receiver of the events checks the terminal itself, and ends the process soon after a hangup.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{sync_channel, Receiver, RecvTimeoutError};
use std::time::Duration;

use ratatui::crossterm::event::{self, Event};

use crate::readiness::is_closed;

/// Capacity of the channel. Further events stay in the terminal.
const MAX_PENDING_EVENTS: usize = 64;

/// Keys and resizes of the terminal.
pub(super) struct Keyboard {
    events: Receiver<io::Result<Event>>,
    /// The input that crossterm reads.
    input: OwnedFd,
}

impl Keyboard {
    /// Reads events from now on.
    #[expect(clippy::disallowed_methods, reason = "the terminal")]
    pub(super) fn open() -> io::Result<Self> {
        let stdin = io::stdin();
        let input = match stdin.is_terminal() {
            true => stdin.as_fd().try_clone_to_owned()?,
            false => File::open("/dev/tty")?.into(),
        };
        let (sender, events) = sync_channel(MAX_PENDING_EVENTS);
        std::thread::Builder::new()
            .name("oh-keyboard".to_string())
            .spawn(move || loop {
                let event = event::read();
                let has_failed = event.is_err();
                if sender.send(event).is_err() || has_failed {
                    return;
                }
            })?;
        Ok(Self { events, input })
    }

    /// The next event; `None` if none comes within this time.
    pub(super) fn next(&self, longest: Duration) -> io::Result<Option<Event>> {
        match self.events.recv_timeout(longest) {
            Ok(event) => event.map(Some),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Whether the terminal has hung up.
    pub(super) fn is_gone(&self) -> bool {
        is_closed(&self.input) || is_closed(io::stdout())
    }
}
