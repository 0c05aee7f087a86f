// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page on a local web address: of a recording, of two beside each other, or of a run while it
//! goes on.
//!
//! A [`Feed`] holds what was heard so far. A session fills it as one of its updates
//! ([`Feed::update`]), or a recording that is still being written is followed (`tail`). The [`Server`]
//! gives the page to a browser, and to a page of a run that goes on, news piece by piece. It listens on
//! the loopback address alone, at a port of the kernel's choice, and answers only who knows the token in
//! the path: other users of the machine can reach the port, too.

mod feed;
mod request;
mod server;
mod tail;

use std::ffi::OsString;
use std::path::Path;

use rustix::process::Signal;

use crate::calibrate::{self, Calibration};
use crate::exit::{Failure, UNAVAILABLE};
use crate::interrupts::Interrupts;
use crate::session::Outcome;
use crate::{offline, page};

pub use feed::{Feed, FeedUpdate};
pub use server::{Content, Server};

/// Serves the page of the recording in `dir`, perhaps with another one beside it, until SIGINT,
/// SIGTERM or SIGHUP. `say` is told the address. A recording that is still being written is followed.
///
/// # Errors
/// [`Failure`] if there is no recording, or no address to listen on.
pub fn view(dir: &Path, beside: Option<&Path>, say: impl FnOnce(&str)) -> Result<(), Failure> {
    let mut tail = None;
    let content = match beside {
        Some(beside) => Content::Page(offline::page_beside(dir, beside)?),
        None if overhear_trace::is_being_written(dir) => {
            // The recording has its own at its end, which is the same if it is made by this user.
            let feed = Feed::default().compensated_by(calibrate::recall(None)?);
            tail = Some(tail::Tail::follow(dir, &feed));
            Content::Live {
                page: page::render_live(&offline::command_of(dir)),
                feed,
            }
        }
        None => Content::Page(offline::page(dir, None, None)?),
    };
    let server = Server::start(content)?;
    // Not before: a request ends the making of a long page at once.
    let mut interrupts = Interrupts::listen()?;
    say(&server.url());
    interrupts.wait();
    drop(tail);
    Ok(())
}

/// A run that is shown while it goes on, and after its end until somebody interrupts.
pub struct Shown {
    feed: Feed,
    server: Server,
    interrupts: Interrupts,
    // Whether SIGTERM or SIGHUP came while the run went on.
    is_over: bool,
}

impl Shown {
    /// Shows a run of `command` that is about to begin, in compensated time as well if it is known what
    /// observing costs.
    ///
    /// # Errors
    /// [`Failure`] if there is no address to listen on, or signals cannot be heard.
    pub fn start(command: &[OsString], calibration: Option<Calibration>) -> Result<Self, Failure> {
        let words = command
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        let command: Vec<String> = words.collect();
        let feed = Feed::of(&command).compensated_by(calibration);
        let report = serde_json::json!({ "command": command, "goes_on": true });
        let server = Server::start(Content::Live {
            page: page::render_live(&report),
            feed: feed.clone(),
        })?;
        Ok(Self {
            feed,
            server,
            interrupts: Interrupts::listen()?,
            is_over: false,
        })
    }

    /// The address for a browser.
    #[must_use]
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The update that the session feeds.
    #[must_use]
    pub fn update(&self) -> FeedUpdate {
        self.feed.update()
    }

    /// The run has ended.
    pub fn end(&mut self, outcome: &Outcome) {
        // Whoever pressed Ctrl-C wants to see what the program did. SIGTERM and SIGHUP ask for the end of both.
        // From here on no request is lost: only after this the page shows that the run has ended.
        let requests = self.interrupts.take();
        self.is_over = requests.iter().any(|it| it.signal != Signal::INT);
        let report = serde_json::to_value(&outcome.report).unwrap_or_default();
        self.feed.finish(None, report);
    }

    /// Whether the page stays after the end of the run: not if SIGTERM or SIGHUP ended it.
    #[must_use]
    pub const fn stays(&self) -> bool {
        !self.is_over
    }

    /// Waits until somebody interrupts.
    pub fn stay(mut self) {
        if self.stays() {
            self.interrupts.wait();
        }
    }
}

/// A failure to serve.
fn cannot(what: &str, error: &std::io::Error) -> Failure {
    Failure::new(UNAVAILABLE, format!("cannot {what}: {error}"))
}
