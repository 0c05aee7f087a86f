// SPDX-License-Identifier: MIT OR Apache-2.0
//! The observation of `overhear top`: sources, a runner, and the accounts that it fills.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use overhear_directory::{monotonic_now, AttachedSource, Begin, MonitorConnection, Needs, Query};
use overhear_event::kernel::SCHED_WAKE;
use overhear_event::{
    Analysis, ElementView, Gap, Nanos, StreamDescriptor, StreamId, StreamIdRange, Timestamp,
};
use overhear_kernel::{Backend, Kernel};
use overhear_metrics::{RecentSensors, SampleStatistics, Scheduling};
use overhear_monitor::{Runner, HOLD_BACK};
use overhear_posixtrace::LiveStreams;

use super::command::TopOptions;
use super::updates::DrawnUpdate;
use super::{sensor_row, tasks, Snapshot, ThreadRates};
use crate::directory_link::DirectoryLink;
use overhear_session::budget::{BudgetController, WritePrices};
use overhear_session::error::{ErrorKind, SessionError};
use overhear_session::listing::{self, State};
use overhear_session::{calibrate, config, connect, posix, processes, samples};

/// Maximum number of complaints that are kept; the oldest one goes first.
const MAX_NOTES: usize = 20;

/// A running observation. It is driven by [`Self::step`], and read by [`Self::snapshot`].
pub(super) struct Observation {
    socket: Option<PathBuf>,
    query: Query,
    window: Nanos,
    runner: Runner<'static, Accounts>,
    /// Time just before the latest round.
    now: Timestamp,
    source: Option<Rc<RefCell<AttachedSource>>>,
    budget: Option<BudgetController>,
    follows_threads: bool,
    /// Active kernel sensors, and the reason why there are no more; empty without a process.
    kernel_message: String,
    rates: ThreadRates,
    /// The connection for requests; `None` without a directory, or while it is away.
    connection: Option<MonitorConnection>,
    /// State of each sensor by its first stream, from the latest request that succeeded.
    states: BTreeMap<u32, State>,
    complaints: Vec<String>,
    /// Whether a complaint came that is not about the loss of the directory.
    is_doubtful: bool,
    link: DirectoryLink,
}

impl Observation {
    /// Attaches to the directory, follows the process, and loads the updates of the options. Rates
    /// are computed over steps of length `step`.
    ///
    /// # Errors
    /// [`SessionError`] if a source or an update that the options demand cannot be had.
    pub(super) fn start(options: &TopOptions, step: Nanos) -> Result<Self, SessionError> {
        let drawn = match options.config.as_deref() {
            // A file without a monitor may be there for its budget.
            Some(file) if options.budget.is_none() || config::has_monitor(file)? => {
                DrawnUpdate::all_of(file)?
            }
            _ => Vec::new(),
        };
        let mut complaints = Vec::new();
        let attached = options.socket.as_deref();
        let attached = attached.map(|socket| attach(socket, &options.query));
        let attached = match attached.transpose() {
            Err(error) if !options.wants_sensors => {
                complaints.push(format!("no sensors of programs: {error}"));
                None
            }
            attached => attached?,
        };
        let (mut connection, source) = attached.unzip();
        let source = source.map(|source| Rc::new(RefCell::new(source)));
        let budget = match (&options.budget, &source) {
            (Some(settings), Some(source)) => {
                let sensors = Box::new(Rc::clone(source));
                let known = calibrate::load_calibration(None)?;
                let prices = WritePrices::new(known.as_ref())?;
                Some(BudgetController::new(settings.clone(), prices, sensors)?)
            }
            _ => None,
        };
        let kernel = options.pid.map(follow).transpose()?;
        let mut scheduling = Scheduling::new(());
        let mut kernel_message = String::new();
        if let Some(kernel) = &kernel {
            let status = kernel.status();
            kernel_message.clone_from(&status.message);
            let mut sensors = status.sensors.iter();
            if sensors.any(|sensor| sensor.name() == SCHED_WAKE) {
                scheduling.expect_wakeups();
            }
        }
        let window = options.window.as_ns() / step.as_ns().max(1);
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        let mut runner = Runner::new(Accounts {
            recent: RecentSensors::new(step, window),
            scheduling,
            drawn,
            samples: SampleStatistics::default(),
        });
        if let Some(source) = &source {
            runner = runner.source(Box::new(Rc::clone(source)));
        }
        if let Some(socket) = options.socket.as_deref().filter(|_| source.is_some()) {
            match posix::source(socket, &options.query, Begin::Now) {
                Ok(traces) => runner = runner.source(Box::new(traces)),
                Err(error) => complaints.push(format!("no trace streams: {error}")),
            }
        }
        let follows_threads = kernel.is_some();
        if let Some(kernel) = kernel {
            runner = runner.source(Box::new(kernel));
        }
        let states = connection
            .as_mut()
            .and_then(|connection| states(connection, &options.query).ok());
        Ok(Self {
            socket: options.socket.clone(),
            query: options.query.clone(),
            window: options.window,
            runner,
            now: monotonic_now(),
            source,
            budget,
            follows_threads,
            kernel_message,
            rates: ThreadRates::default(),
            connection,
            states: states.unwrap_or_default(),
            complaints,
            is_doubtful: false,
            link: DirectoryLink::new(),
        })
    }

    /// Runs one round. Returns the pause until the next one is due.
    pub(super) fn step(&mut self) -> Duration {
        self.now = monotonic_now();
        if let Some(budget) = &mut self.budget {
            budget.tick(self.now);
        }
        let mut pause = self.runner.step();
        if let Some(budget) = &mut self.budget {
            pause = budget.aligned(pause);
        }
        for stream in self.runner.monitor.take_opened() {
            let evaluated = self.now.minus(HOLD_BACK);
            self.runner.update.recent.announce(&stream, evaluated);
        }
        if let Some(source) = &self.source {
            self.link.update(source.borrow().is_connected());
        }
        for complaint in self.runner.monitor.take_complaints() {
            self.is_doubtful |= !self.link.is_loss();
            if self.complaints.len() == MAX_NOTES {
                self.complaints.remove(0);
            }
            self.complaints.push(complaint.to_string());
        }
        pause
    }

    /// The last snapshot. Sensors that are off for the budget are on again.
    pub(super) fn end(&mut self, now: Timestamp) -> Snapshot {
        let ended = self.budget.take().map(|budget| budget.finish(now));
        let mut snapshot = self.snapshot(now);
        if let Some((outcome, problems)) = ended {
            snapshot.budget = Some(outcome);
            snapshot.notes.extend(problems);
        }
        snapshot
    }

    /// Time just before the latest round.
    pub(super) const fn now(&self) -> Timestamp {
        self.now
    }

    /// Begins the interval over which the next snapshot computes the rates of threads.
    pub(super) fn begin_rates(&mut self, now: Timestamp) {
        let _ = self.rates.rows(&self.runner.update.scheduling, now);
    }

    /// Switches the sensor with this first stream on or off. Returns the result as a message.
    pub(super) fn switch(&mut self, stream: u32, on: bool) -> String {
        let Some(connection) = &mut self.connection else {
            return "no sensor can be switched without the directory".to_string();
        };
        let query = Query::stream(StreamId::from_raw(stream));
        let word = if on { "on" } else { "off" };
        match connection.set_enabled(&query, on) {
            Ok(0) => format!("it was {word} already"),
            Ok(_) => format!("switched {word}"),
            Err(error) => error.to_string(),
        }
    }

    /// The accounts at this time.
    #[expect(clippy::disallowed_methods, reason = "of /proc")]
    pub(super) fn snapshot(&mut self, now: Timestamp) -> Snapshot {
        self.update_states();
        let losses = self.runner.monitor.losses();
        let accounts = &mut self.runner.update;
        accounts.drawn.iter_mut().for_each(DrawnUpdate::refresh);
        // A sensor that the directory has removed was read to its end.
        let sensors: Vec<_> = accounts
            .recent
            .sensors()
            .map(|(id, sensor)| {
                let state = self.states.get(&id.as_raw()).copied();
                // The directory does not list event types of trace streams, which are on.
                let unlisted = match LiveStreams::has_stream(id) {
                    true => State::On,
                    false => State::Ended,
                };
                let mut row = sensor_row(&accounts.recent, sensor, state.unwrap_or(unlisted));
                if LiveStreams::has_stream(id) && !processes::is_alive(row.identity.pid) {
                    row.state = State::Ended;
                }
                if self.connection.is_none() && !processes::is_alive(row.identity.pid) {
                    row.state = State::Ended;
                }
                row
            })
            .collect();
        let mut threads = match self.follows_threads {
            true => self.rates.rows(&accounts.scheduling, now),
            false => Vec::new(),
        };
        // The kernel sends a name when it is set; older names are in /proc.
        let name_of = |pid: u32, tid: u32| {
            let file = format!("/proc/{pid}/task/{tid}/comm");
            let name = std::fs::read_to_string(file).unwrap_or_default();
            name.trim_end().to_string()
        };
        for thread in &mut threads {
            if thread.comm.is_empty() {
                thread.comm = name_of(thread.pid, thread.tid);
            }
        }
        let comms = threads
            .iter()
            .map(|thread| (thread.tid, thread.comm.clone()))
            .collect();
        let mut samplers = samples::of(&accounts.samples, &comms);
        let sampled = samplers.iter_mut().flat_map(|it| &mut it.tasks);
        for task in sampled.filter(|task| task.comm.is_empty() && task.pid != 0) {
            let tid = if task.tid == 0 { task.pid } else { task.tid };
            task.comm = name_of(task.pid, tid);
        }
        let histograms = accounts.drawn.iter().flat_map(DrawnUpdate::histograms);
        let notes = accounts.drawn.iter().flat_map(DrawnUpdate::notes);
        let socket = self.socket.as_deref();
        Snapshot {
            overhear_version: env!("CARGO_PKG_VERSION").to_string(),
            socket: socket.map_or_else(String::new, |socket| socket.display().to_string()),
            time_ns: now.minus(HOLD_BACK).as_monotonic_ns(),
            window_ns: self.window.as_ns(),
            elements: sensors.iter().map(|sensor| sensor.elements).sum(),
            missed: losses.missed(),
            complete: losses.iter().next().is_none() && !self.is_doubtful,
            tasks: tasks(&sensors),
            sensors,
            threads,
            kernel: self.kernel_message.clone(),
            notes: notes.chain(self.complaints.iter().cloned()).collect(),
            histograms: histograms.cloned().collect(),
            budget: self.budget.as_ref().map(BudgetController::outcome),
            samplers,
        }
    }

    /// Requests the states of the sensors, after another attempt to connect if the directory was
    /// away.
    fn update_states(&mut self) {
        if let (None, Some(_), Some(socket)) = (&self.connection, &self.source, &self.socket) {
            self.connection = MonitorConnection::connect(socket).ok();
        }
        let Some(connection) = &mut self.connection else {
            return;
        };
        match states(connection, &self.query) {
            Ok(states) => self.states = states,
            Err(_) => self.connection = None,
        }
    }
}

/// The analyses of an observation. Each of them gets every item.
struct Accounts {
    recent: RecentSensors,
    scheduling: Scheduling<()>,
    drawn: Vec<DrawnUpdate>,
    samples: SampleStatistics,
}

impl Accounts {
    fn for_each(&mut self, mut call: impl FnMut(&mut dyn Analysis)) {
        call(&mut self.recent);
        call(&mut self.scheduling);
        call(&mut self.samples);
        for drawn in &mut self.drawn {
            call(drawn);
        }
    }
}

impl Analysis for Accounts {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.for_each(|account| account.open(stream));
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.for_each(|account| account.element(element));
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        self.for_each(|account| account.elements(elements));
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.for_each(|account| account.gap(stream, gap));
    }

    fn advance(&mut self, now: Timestamp) {
        self.for_each(|account| account.advance(now));
    }
}

/// Connects to the directory at `socket` twice: for requests, and for the elements.
fn attach(
    socket: &Path,
    query: &Query,
) -> Result<(MonitorConnection, AttachedSource), SessionError> {
    let requests = connect::connect(socket)?;
    // What a budget skips is shown as missed: a picture needs no element of its own.
    let needs = Needs::all().yield_to_budgets();
    let source = connect::connect(socket)?.attach_needing(query.clone(), Begin::Now, needs);
    Ok((requests, source?))
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
    connection: &mut MonitorConnection,
    query: &Query,
) -> Result<BTreeMap<u32, State>, overhear_directory::AttachError> {
    let records = connection.list(query)?;
    Ok(records
        .iter()
        .map(|record| (record.descriptor.id.as_raw(), listing::state_of(record)))
        .collect())
}
