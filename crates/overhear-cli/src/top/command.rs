// SPDX-License-Identifier: MIT OR Apache-2.0
//! The two forms of `overhear top`: a screen that is drawn again and again, and one snapshot.
//!
//! Both drive the [`Runner`](overhear_monitor::Runner) of an [`Observation`] by single steps, and
//! not by `Runner::run`: the end of `run` reads the sources to their end, which would change the
//! last picture, and its wait cannot fail, while that for a key can.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use overhear_directory::{monotonic_now, Query};
use overhear_event::Nanos;
use overhear_monitor::HOLD_BACK;
use ratatui::crossterm::event::{Event, KeyEventKind};
use ratatui::DefaultTerminal;

use super::keyboard::Keyboard;
use super::observation::Observation;
use super::{draw, Model, Page, Request, Snapshot};
use crate::readiness::is_writable;
use overhear_session::budget::BudgetSettings;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::interrupts::Interrupts;

/// Time from the start to the second snapshot.
const FIRST_INTERVAL: Nanos = Nanos::from_ms(100);

/// Settings of `overhear top`.
#[derive(Clone, Debug)]
pub(crate) struct TopOptions {
    /// Socket of the directory, if there is one.
    pub(crate) socket: Option<PathBuf>,
    /// Whether sensors of programs are required. If not, a directory that does not answer is no
    /// error.
    pub(crate) wants_sensors: bool,
    /// The sensors of programs.
    pub(crate) query: Query,
    /// Time between two snapshots.
    pub(crate) interval: Nanos,
    /// Length of the window of rates and distances.
    pub(crate) window: Nanos,
    /// A process whose threads are followed.
    pub(crate) pid: Option<u32>,
    /// A file whose updates are drawn.
    pub(crate) config: Option<PathBuf>,
    /// The budget to keep.
    pub(crate) budget: Option<BudgetSettings>,
}

/// Observes for one window, and returns its snapshot.
///
/// # Errors
/// [`SessionError`] if the observation cannot start.
pub(crate) fn once(options: &TopOptions) -> Result<Snapshot, SessionError> {
    let mut interrupts = Interrupts::listen()?;
    // Ten steps, so that the window lacks at most a tenth.
    let step = Nanos::from_ns((options.window.as_ns() / 10).max(1));
    let mut observation = Observation::start(options, step)?;
    let begun = monotonic_now();
    observation.begin_rates(begun);
    let length = options.window.plus(HOLD_BACK);
    loop {
        let pause = observation.step();
        let now = observation.now();
        if now.since(begun) >= length || !interrupts.take().is_empty() {
            return Ok(observation.end(now));
        }
        std::thread::sleep(pause);
    }
}

/// Shows a picture on the terminal until the user leaves, a signal requests the end, or the
/// terminal hangs up. Returns the last snapshot.
///
/// # Errors
/// [`SessionError`] if the observation cannot start, or there is no terminal.
pub(crate) fn watch(options: &TopOptions, coloured: bool) -> Result<Snapshot, SessionError> {
    let mut interrupts = Interrupts::listen()?;
    let mut observation = Observation::start(options, options.interval)?;
    let keyboard = Keyboard::open().map_err(|error| no_terminal(&error))?;
    let mut terminal = ratatui::try_init().map_err(|error| no_terminal(&error))?;
    let mut screen = Screen {
        terminal: &mut terminal,
        model: Model::default(),
        coloured,
        is_stale: true,
    };
    if options.pid.is_some() && !options.wants_sensors {
        screen.model.page = Page::Threads;
    }
    let result = show(
        &mut screen,
        &mut observation,
        &keyboard,
        &mut interrupts,
        options.interval,
    );
    let restored = terminal.show_cursor().and(ratatui::try_restore());
    if restored.is_err() {
        // Its drop would try again, and panic because standard error is gone as well.
        std::mem::forget(terminal);
    }
    match result.and(restored) {
        // A terminal that is gone can be neither drawn on nor restored; its user has left.
        Err(error) if !keyboard.is_gone() => Err(no_terminal(&error)),
        _ => Ok(observation.end(monotonic_now())),
    }
}

fn no_terminal(error: &io::Error) -> SessionError {
    let message =
        format!("cannot draw on this terminal: {error}; `overhear top --once` prints one snapshot");
    SessionError::new(ErrorKind::Unavailable, message)
}

/// The terminal and the model that it shows.
struct Screen<'a> {
    terminal: &'a mut DefaultTerminal,
    model: Model,
    coloured: bool,
    /// Whether the model has changed since it was drawn.
    is_stale: bool,
}

impl Screen<'_> {
    /// Draws a changed model. A connection that hangs takes no output: the picture waits, the
    /// observation does not.
    fn draw(&mut self) -> io::Result<()> {
        if self.is_stale && is_writable(io::stdout(), Duration::ZERO) {
            self.is_stale = false;
            let (model, coloured) = (&self.model, self.coloured);
            self.terminal.draw(|frame| draw(frame, model, coloured))?;
        }
        Ok(())
    }
}

/// Shows the observation until the user, a signal or the terminal ends it.
fn show(
    screen: &mut Screen<'_>,
    observation: &mut Observation,
    keyboard: &Keyboard,
    interrupts: &mut Interrupts,
    interval: Nanos,
) -> io::Result<()> {
    let begun = monotonic_now();
    screen.model.show(observation.snapshot(begun));
    let mut next = begun.plus(FIRST_INTERVAL);
    loop {
        let pause = observation.step();
        let now = observation.now();
        if now >= next {
            next = now.plus(interval);
            screen.model.show(observation.snapshot(now));
            screen.is_stale = true;
        }
        if !interrupts.take().is_empty() || keyboard.is_gone() {
            return Ok(());
        }
        screen.draw()?;
        // One wait per round, then all events that have gathered.
        let mut wait = pause;
        while let Some(event) = keyboard.next(wait)? {
            wait = Duration::ZERO;
            screen.is_stale = true;
            match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    match screen.model.key(key) {
                        Some(Request::Quit) => return Ok(()),
                        Some(Request::Switch { stream, on }) => {
                            screen.model.message = observation.switch(stream, on);
                            screen.model.show(observation.snapshot(monotonic_now()));
                        }
                        None => {}
                    }
                }
                _ => {}
            }
        }
    }
}
