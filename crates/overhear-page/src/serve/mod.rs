// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page on a local web address: of a recording, of two recordings, or of a run while it goes
//! on.
//!
//! A [`Feed`] holds the items so far. A session fills it as one of its updates ([`Feed::update`]);
//! or a recording that is still being written is followed (`tail`). The [`Server`] sends the page
//! to a browser, and the page of a run that goes on gets news piece by piece. It listens on the
//! loopback address alone, at a port of the kernel's choice. It only answers requests that have the
//! token in their path, because other users of the machine can reach the port, too.

mod connections;
mod feed;
mod peer;
mod request;
mod server;
mod tail;

use std::ffi::OsString;
use std::path::Path;

use rustix::process::Signal;

use overhear_session::calibrate::{self, Calibration};
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::interrupts::Interrupts;
use overhear_session::replay;
use overhear_session::report::Report;
use overhear_session::session::Outcome;

use crate::html;
use crate::picture::TimeRange;
use crate::recorded::{Page, PageRequest};

pub use feed::{Feed, FeedUpdate};
pub use server::{Content, Server};

/// Serves the page of the recording in `dir`, with that of another one if given, until SIGINT,
/// SIGTERM or SIGHUP. The time-line shows this part of them. A recording that is still being
/// written is followed and shown as a whole. `show` gets the address, and the parts that the page
/// leaves out.
///
/// # Errors
/// [`SessionError`] if there is no recording, or no address to listen on.
pub fn view(
    dir: &Path,
    other: Option<&Path>,
    range: TimeRange,
    show: impl FnOnce(&str, &[String]),
) -> Result<(), SessionError> {
    let mut left_out = Vec::new();
    let mut tail = None;
    let content = match other {
        None if overhear_trace::is_being_written(dir) => {
            // The recording gets its own calibration at its end; it is the same one if this user
            // makes the recording.
            let feed = Feed::default().compensated_by(calibrate::load_calibration(None)?);
            tail = Some(tail::Tail::follow(dir, &feed));
            Content::Live {
                page: html::render_live(&replay::command_of(dir)),
                feed,
            }
        }
        other => {
            let dirs: Vec<&Path> = [dir].into_iter().chain(other).collect();
            let page = render(&dirs, range, &mut left_out)?;
            Content::Page(page)
        }
    };
    let server = Server::start(content)?;
    // Not earlier: until now a signal ends the process at once, while a long page is being made.
    let mut interrupts = Interrupts::listen()?;
    show(&server.url(), &left_out);
    interrupts.wait();
    drop(tail);
    Ok(())
}

/// The page of recordings, and the parts that it leaves out.
fn render(
    dirs: &[&Path],
    range: TimeRange,
    left_out: &mut Vec<String>,
) -> Result<String, SessionError> {
    let reports = dirs.iter().map(|dir| replay::read_report(dir));
    let mut reports = reports.collect::<Result<Vec<Report>, _>>()?;
    for report in &mut reports {
        report.take_long_metrics();
    }
    let requests = dirs.iter().zip(&reports);
    let requests = requests.map(|(dir, report)| PageRequest {
        range,
        ..PageRequest::of(dir, report)
    });
    let requests: Vec<_> = requests.collect();
    let page = Page::of(&requests)?;
    *left_out = page.left_out();
    let mut html = Vec::new();
    page.write(&mut html)
        .map_err(|error| cannot("put the page together", &error))?;
    Ok(String::from_utf8(html).expect("the template and JSON are UTF-8"))
}

/// A run that is shown while it goes on, and after its end until the user interrupts.
pub struct Shown {
    feed: Feed,
    server: Server,
    interrupts: Interrupts,
    // Whether SIGTERM or SIGHUP came while the run went on.
    is_over: bool,
}

impl Shown {
    /// Shows a run of `command` that is about to begin; in compensated time as well, if the cost of
    /// observing is known.
    ///
    /// # Errors
    /// [`SessionError`] if there is no address to listen on, or signals cannot be received.
    pub fn start(
        command: &[OsString],
        calibration: Option<Calibration>,
    ) -> Result<Self, SessionError> {
        let words = command
            .iter()
            .map(|word| word.to_string_lossy().into_owned());
        let command: Vec<String> = words.collect();
        let feed = Feed::of(&command).compensated_by(calibration);
        let report = serde_json::json!({ "command": command, "goes_on": true });
        let server = Server::start(Content::Live {
            page: html::render_live(&report),
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

    /// Ends the run on the page.
    pub fn end(&mut self, outcome: &mut Outcome) {
        // A user who pressed Ctrl-C wants to see the results of the program. SIGTERM and SIGHUP end
        // both. From here on no signal is lost: only after this call the page shows that the run
        // has ended.
        let requests = self.interrupts.take();
        self.is_over = requests.iter().any(|it| it.signal != Signal::INT);
        let metrics = outcome.report.take_long_metrics();
        let report = serde_json::to_value(&outcome.report).unwrap_or_default();
        outcome.report.metrics = outcome.report.metrics.take().or(metrics);
        self.feed.finish(None, report);
    }

    /// Whether the page stays after the end of the run. It does not if SIGTERM or SIGHUP ended the
    /// run.
    #[must_use]
    pub const fn stays(&self) -> bool {
        !self.is_over
    }

    /// Waits until the user interrupts.
    pub fn stay(mut self) {
        if self.stays() {
            self.interrupts.wait();
        }
    }
}

/// A failure to serve.
fn cannot(what: &str, error: &std::io::Error) -> SessionError {
    SessionError::new(ErrorKind::Unavailable, format!("cannot {what}: {error}"))
}
