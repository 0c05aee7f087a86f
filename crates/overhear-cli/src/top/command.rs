// SPDX-License-Identifier: MIT OR Apache-2.0
//! Listening for `overhear top`, on a terminal or for one look.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use overhear_directory::{monotonic_now, AttachedSource, Begin, MonitorConnection, Query};
use overhear_event::kernel::SCHED_WAKE;
use overhear_event::{Analysis, Nanos, StreamId, StreamIdRange, Timestamp};
use overhear_kernel::{Backend, Kernel};
use overhear_metrics::{RecentSensors, Scheduling};
use overhear_monitor::{Fanout, Monitor, HOLD_BACK};
use ratatui::crossterm::event::{Event, KeyEventKind};
use ratatui::DefaultTerminal;

use super::keyboard::Keyboard;
use super::updates::Drawn;
use super::{draw, sensor_row, tasks, Model, Page, Request, Snapshot, ThreadRates};
use crate::directory_link::DirectoryLink;
use crate::readiness::is_writable;
use overhear_session::connect;
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::interrupts::Interrupts;
use overhear_session::listing::{self, State};
use overhear_session::processes;

/// How often sensors are read; at most so long a key waits.
const ROUND: Duration = Duration::from_millis(10);
/// Notes that are kept.
const MOST_NOTES: usize = 20;

/// Settings of `overhear top`.
#[derive(Clone, Debug)]
pub(crate) struct TopOptions {
    /// Where the directory is, if there is one.
    pub(crate) socket: Option<PathBuf>,
    /// Whether sensors of programs are asked for; else a directory that does not answer is no
    /// failure.
    pub(crate) wants_sensors: bool,
    /// Which sensors.
    pub(crate) query: Query,
    /// How often the picture changes.
    pub(crate) interval: Nanos,
    /// What rates and intervals are of.
    pub(crate) window: Nanos,
    /// A process whose threads are followed.
    pub(crate) pid: Option<u32>,
    /// A file whose updates are drawn.
    pub(crate) config: Option<PathBuf>,
}

/// What listens.
struct Listener {
    socket: Option<PathBuf>,
    query: Query,
    window: Nanos,
    monitor: Monitor,
    source: Option<Rc<RefCell<AttachedSource>>>,
    kernel: Option<Rc<RefCell<Kernel>>>,
    kernel_message: String,
    recent: RecentSensors,
    scheduling: Scheduling<()>,
    rates: ThreadRates,
    drawn: Vec<Drawn>,
    // Asked again for each snapshot; none while the directory is away.
    asking: Option<MonitorConnection>,
    states: BTreeMap<u32, State>,
    notes: Vec<String>,
    // A note besides that the directory went away.
    doubtful: bool,
    link: DirectoryLink,
}

impl Listener {
    fn start(options: &TopOptions, step: Nanos) -> Result<Self, SessionError> {
        let drawn = options.config.as_deref().map(Drawn::of).transpose()?;
        let mut notes = Vec::new();
        let attached = options.socket.as_deref();
        let attached = attached.map(|socket| attach(socket, &options.query));
        let attached = match attached.transpose() {
            Err(failure) if !options.wants_sensors => {
                notes.push(format!("sensors of programs are not heard: {failure}"));
                None
            }
            attached => attached?,
        };
        let (mut asking, source) = attached.unzip();
        let mut monitor = Monitor::new(HOLD_BACK);
        let source = source.map(|source| Rc::new(RefCell::new(source)));
        if let Some(source) = &source {
            monitor.add_source(Box::new(Rc::clone(source)));
        }
        let mut scheduling = Scheduling::new(());
        let mut kernel_message = String::new();
        let mut kernel = None;
        if let Some(pid) = options.pid {
            let followed = follow(pid)?;
            kernel_message.clone_from(&followed.status().message);
            let mut heard = followed.status().sensors.iter();
            if heard.any(|sensor| sensor.name() == SCHED_WAKE) {
                scheduling.expect_wakeups();
            }
            let followed = Rc::new(RefCell::new(followed));
            monitor.add_source(Box::new(Rc::clone(&followed)));
            kernel = Some(followed);
        }
        let window = options.window.as_ns() / step.as_ns().max(1);
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        let states = asking
            .as_mut()
            .and_then(|asking| states(asking, &options.query).ok());
        Ok(Self {
            socket: options.socket.clone(),
            query: options.query.clone(),
            window: options.window,
            monitor,
            source,
            kernel,
            kernel_message,
            recent: RecentSensors::new(step, window),
            scheduling,
            rates: ThreadRates::default(),
            drawn: drawn.unwrap_or_default(),
            asking,
            states: states.unwrap_or_default(),
            notes,
            doubtful: false,
            link: DirectoryLink::new(),
        })
    }

    /// One round of the monitor.
    fn round(&mut self, now: Timestamp) {
        let mut fanout = Fanout(vec![&mut self.recent, &mut self.scheduling]);
        let drawn = self.drawn.iter_mut();
        fanout.0.extend(drawn.map(|it| it as &mut dyn Analysis));
        self.monitor.round(now, &mut fanout);
        for stream in self.monitor.take_opened() {
            self.recent.announce(&stream, now.minus(HOLD_BACK));
        }
        if let Some(source) = &self.source {
            self.link.update(source.borrow().is_connected());
        }
        for complaint in self.monitor.take_complaints() {
            self.doubtful |= !self.link.is_loss();
            if self.notes.len() == MOST_NOTES {
                self.notes.remove(0);
            }
            self.notes.push(complaint.to_string());
        }
    }

    /// What is wrong, the news last.
    fn all_notes(&self) -> Vec<String> {
        let drawn = self.drawn.iter().flat_map(Drawn::notes);
        drawn.chain(self.notes.iter().cloned()).collect()
    }

    /// Asks which sensors are on, off and gone.
    fn ask(&mut self) {
        if let (None, Some(_), Some(socket)) = (&self.asking, &self.source, &self.socket) {
            self.asking = MonitorConnection::connect(socket).ok();
        }
        let Some(asking) = &mut self.asking else {
            return;
        };
        match states(asking, &self.query) {
            Ok(states) => self.states = states,
            Err(_) => self.asking = None,
        }
    }

    fn switch(&mut self, stream: u32, on: bool) -> String {
        let Some(asking) = &mut self.asking else {
            return "the directory is gone: nobody can switch sensors".to_string();
        };
        let query = Query::stream(StreamId::from_raw(stream));
        let word = if on { "on" } else { "off" };
        match asking.set_enabled(&query, on) {
            Ok(0) => format!("it was {word} already"),
            Ok(_) => format!("switched {word}"),
            Err(error) => error.to_string(),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "of /proc")]
    fn snapshot(&mut self, now: Timestamp) -> Snapshot {
        self.ask();
        self.drawn.iter_mut().for_each(Drawn::look);
        // What the directory no longer knows has been read to its end.
        let sensors: Vec<_> = self
            .recent
            .sensors()
            .map(|(id, sensor)| {
                let known = self.states.get(&id.as_raw()).copied();
                let mut row = sensor_row(&self.recent, sensor, known.unwrap_or(State::Ended));
                if self.asking.is_none() && !processes::is_alive(row.identity.pid) {
                    row.state = State::Ended;
                }
                row
            })
            .collect();
        let losses = self.monitor.losses();
        let mut threads = match &self.kernel {
            Some(_) => self.rates.rows(&self.scheduling, now),
            None => Vec::new(),
        };
        for thread in &mut threads {
            // The kernel tells names when they are given; those of before are in /proc.
            if thread.comm.is_empty() {
                let file = format!("/proc/{}/task/{}/comm", thread.pid, thread.tid);
                let name = std::fs::read_to_string(file).unwrap_or_default();
                thread.comm = name.trim_end().to_string();
            }
        }
        Snapshot {
            overhear_version: env!("CARGO_PKG_VERSION").to_string(),
            socket: self
                .socket
                .as_deref()
                .map_or_else(String::new, |socket| socket.display().to_string()),
            time_ns: now.minus(HOLD_BACK).as_monotonic_ns(),
            window_ns: self.window.as_ns(),
            elements: sensors.iter().map(|sensor| sensor.elements).sum(),
            missed: losses.missed(),
            complete: losses.iter().next().is_none() && !self.doubtful,
            tasks: tasks(&sensors),
            sensors,
            threads,
            kernel: self.kernel_message.clone(),
            notes: self.all_notes(),
            histograms: self
                .drawn
                .iter()
                .flat_map(Drawn::histograms)
                .cloned()
                .collect(),
        }
    }
}

/// Attaches to the directory at `socket`, by a second connection beside the one that asks.
fn attach(
    socket: &Path,
    query: &Query,
) -> Result<(MonitorConnection, AttachedSource), SessionError> {
    let asking = connect::connect(socket)?;
    let source = connect::connect(socket)?.attach(query.clone(), Begin::Now);
    Ok((asking, source?))
}

fn follow(pid: u32) -> Result<Kernel, SessionError> {
    let unavailable = |error: &dyn std::fmt::Display| {
        SessionError::new(ErrorKind::Unavailable, error.to_string())
    };
    let mut kernel = Kernel::builder()
        .backend(Backend::Auto)
        .first_stream(StreamIdRange::LOCAL.first())
        .build()
        .map_err(|error| unavailable(&error))?;
    kernel.follow(pid).map_err(|error| unavailable(&error))?;
    if kernel.status().active == overhear_kernel::ActiveBackend::None {
        return Err(unavailable(&format!(
            "the threads of process {pid} cannot be followed: {}",
            kernel.status().message
        )));
    }
    Ok(kernel)
}

fn states(
    asking: &mut MonitorConnection,
    query: &Query,
) -> Result<BTreeMap<u32, State>, overhear_directory::AttachError> {
    let records = asking.list(query)?;
    Ok(records
        .iter()
        .map(|record| (record.descriptor.id.as_raw(), listing::state_of(record)))
        .collect())
}

/// Listens for one window and says what was heard.
///
/// # Errors
/// [`SessionError`] if nothing can be listened to.
pub(crate) fn once(options: &TopOptions) -> Result<Snapshot, SessionError> {
    let mut interrupts = Interrupts::listen()?;
    // Short steps, so that the window is full but for a tenth.
    let step = Nanos::from_ns((options.window.as_ns() / 10).max(1));
    let mut listener = Listener::start(options, step)?;
    let begun = monotonic_now();
    let _ = listener.rates.rows(&listener.scheduling, begun);
    let mut now = begun;
    while now.since(begun) < options.window.plus(HOLD_BACK) && interrupts.take().is_empty() {
        std::thread::sleep(ROUND);
        now = monotonic_now();
        listener.round(now);
    }
    Ok(listener.snapshot(now))
}

/// Shows a picture on the terminal until the user leaves, a signal asks for the end, or the
/// terminal hangs up.
///
/// # Errors
/// [`SessionError`] if nothing can be listened to, or there is no terminal.
pub(crate) fn watch(options: &TopOptions, coloured: bool) -> Result<Snapshot, SessionError> {
    let mut interrupts = Interrupts::listen()?;
    let mut listener = Listener::start(options, options.interval)?;
    let keyboard = Keyboard::open().map_err(|error| no_terminal(&error))?;
    let mut terminal = ratatui::try_init().map_err(|error| no_terminal(&error))?;
    let mut model = Model::default();
    if options.pid.is_some() && !options.wants_sensors {
        model.page = Page::Threads;
    }
    let result = attend(
        &mut terminal,
        &mut listener,
        (&keyboard, &mut interrupts),
        (model, options.interval),
        coloured,
    );
    let restored = terminal.show_cursor().and(ratatui::try_restore());
    if restored.is_err() {
        // Its drop would try again, and panic because standard error is gone as well.
        std::mem::forget(terminal);
    }
    match result.and(restored) {
        // A terminal that is gone can be neither drawn on nor restored; its user has left.
        Err(error) if !keyboard.is_gone() => Err(no_terminal(&error)),
        _ => Ok(listener.snapshot(monotonic_now())),
    }
}

fn no_terminal(error: &io::Error) -> SessionError {
    let message =
        format!("cannot draw on this terminal: {error}; `overhear top --once` prints one look");
    SessionError::new(ErrorKind::Unavailable, message)
}

fn attend(
    terminal: &mut DefaultTerminal,
    listener: &mut Listener,
    (keyboard, interrupts): (&Keyboard, &mut Interrupts),
    (mut model, interval): (Model, Nanos),
    coloured: bool,
) -> io::Result<()> {
    model.show(listener.snapshot(monotonic_now()));
    let mut next = monotonic_now().plus(Nanos::from_ms(100));
    let mut stale = true;
    loop {
        let now = monotonic_now();
        listener.round(now);
        if now >= next {
            next = now.plus(interval);
            model.show(listener.snapshot(now));
            stale = true;
        }
        if !interrupts.take().is_empty() || keyboard.is_gone() {
            return Ok(());
        }
        // A connection that hangs takes nothing: the picture waits, the observation does not.
        if stale && is_writable(io::stdout(), Duration::ZERO) {
            stale = false;
            terminal.draw(|frame| draw(frame, &model, coloured))?;
        }
        // One wait per round, then whatever has gathered.
        let mut wait = ROUND;
        while let Some(event) = keyboard.next(wait)? {
            wait = Duration::ZERO;
            stale = true;
            match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => match model.key(key) {
                    Some(Request::Quit) => return Ok(()),
                    Some(Request::Switch { stream, on }) => {
                        model.message = listener.switch(stream, on);
                        model.show(listener.snapshot(monotonic_now()));
                    }
                    None => {}
                },
                _ => {}
            }
        }
    }
}
