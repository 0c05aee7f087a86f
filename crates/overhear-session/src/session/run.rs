// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run of a program in six steps.
//!
//! ```text
//! plan ----> open -----> start ------> observe -----> settle ------> assemble
//! analyses,  kernel      program       one Runner     every thread   recording,
//! and what   sensors,    held, then    until the      stopped, all   report
//! they       directory,  released      program ends   decided
//! require    trace
//! ```
//!
//! The steps pass on [`Planned`], [`Opened`], [`Started`], [`Observed`] and [`Settled`]. A step
//! that fails releases what the earlier ones created: the program ends before its first
//! instruction, and a recording that has not begun leaves no files.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use overhear_directory::{
    monotonic_now, BudgetSwitch, Directory, Needs, ProgramSource, SOCKET_VARIABLE,
};
use overhear_event::{
    Analysis, EventName, EventSet, Origin, StreamDescriptor, StreamId, StreamIdRange, Timestamp,
};
use overhear_kernel::{ActiveBackend, Backend, Kernel, Probe, Sensor};
use overhear_metrics::compensation::Delays;
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{Fanout, Finished, Monitor, Runner, HOLD_BACK};
use overhear_posixtrace::LiveStreams;
use overhear_trace::TraceWriter;

use super::signal_forwarder::SignalForwarder;
use super::trace_files::{close_trace, create_trace, MissingFiles, NewFiles};
use super::{Outcome, SessionBuilder, Until, UNRATED_BYTES};
use crate::budget::{
    BudgetController, BudgetOutcome, KernelPrices, OptionalBudget, OwnSensors, WritePrices,
};
use crate::check::CheckReport;
use crate::child::{Held, Output, Running};
use crate::compensation::{self, Accounts, CompensationReport};
use crate::conclusion::Exit;
use crate::config::probes::{check_pattern, check_usable};
use crate::configured_monitor::{KernelRings, MonitorHandle, MonitorPlan, MonitorReport};
use crate::documents;
use crate::error::{ErrorKind, SessionError, Setting};
use crate::interrupts::Requests;
use crate::metrics::{self, MetricsReport};
use crate::notices::Notices;
use crate::other_threads::{self, OtherThread, OtherThreads};
use crate::overhead::CalibratedOverhead;
use crate::process_tree::ProcessTree;
use crate::quantities::{SourceReport, TraceReport};
use crate::reactions::{ActionContext, Deciders, ReactionsReport, Reactor};
use crate::recording::{Ending, Recording};
use crate::report::{self, RunFindings};
use crate::requested_analyses::RequestedAnalyses;
use crate::sampling::{kernel_samplers, NewestElements, Samplers, Subjects};
use crate::scratch::Scratch;
use crate::updates::{UpdateReport, Updates};

impl SessionBuilder {
    /// Runs the program to its end. `updates` get the same items as the analyses of the session.
    ///
    /// # Errors
    /// [`SessionError`] if the program could not be run or observed at all. Later errors are notes
    /// of the report.
    pub fn run(mut self, updates: &mut [&mut dyn Analysis]) -> Result<Outcome, SessionError> {
        let planned = self.plan(updates)?;
        let opened = self.open(&planned)?;
        let mut started = self.start(planned, opened)?;
        let observed = self.observe(&mut started, updates);
        let settled = started.settle(observed)?;
        Ok(settled.assemble(self.out))
    }
}

/// Step 1: the analyses, and the events and kernel sensors that they require.
struct Planned {
    deciders: Deciders,
    analyses: Rc<RefCell<RequestedAnalyses>>,
    plugins: Updates,
    required: EventSet,
    sensors: BTreeSet<Sensor>,
}

impl SessionBuilder {
    fn plan(&mut self, updates: &[&mut dyn Analysis]) -> Result<Planned, SessionError> {
        if self.compensate && self.calibration.is_none() {
            return Err(compensation::no_calibration());
        }
        self.sensors.check_backend(self.kernel)?;
        if self.until == Until::AllEnded && self.kernel == Backend::Off {
            let message =
                "the end of all processes can only be observed by kernel sensors, which are off; \
                           leave one of the two settings out";
            return Err(
                SessionError::new(ErrorKind::Usage, message).about(Setting::UntilWithoutKernel)
            );
        }
        let deciders = Deciders::new(std::mem::take(&mut self.reactions));
        let analyses = |decider, notices| {
            let (constraints, metrics) = (self.constraints.clone(), self.metrics.clone());
            RequestedAnalyses::new(constraints, metrics, decider, notices)
        };
        check_usable(analyses(None, Notices::default())?, &self.probes)?;
        let analyses = analyses(deciders.of_constraints(), self.notices.clone())?;
        let required = analyses.requires();
        let plugins = Updates::load(&self.updates)?;
        for (update, pattern) in plugins.patterns() {
            check_pattern(update, pattern, &self.probes)?;
        }
        let mut sensors = self.sensors.sensors();
        let names_scheduling = sensors.iter().any(|sensor| sensor.is_scheduling());
        sensors.extend(Sensor::required_by(&required));
        if !names_scheduling {
            let is_needed = |sensor: &Sensor| {
                let event = EventName::kernel(sensor.name());
                plugins.take(&kernel_stream(*sensor))
                    || updates
                        .iter()
                        .any(|update| update.requires().contains(&event))
            };
            sensors.extend(Sensor::scheduling().filter(|it| !self.disable_unused || is_needed(it)));
        }
        Ok(Planned {
            deciders,
            analyses: Rc::new(RefCell::new(analyses)),
            plugins,
            required,
            sensors,
        })
    }
}

/// Step 2: the sources and the trace. The order of the fields is the order of their drops: the
/// directory before the folder of its socket, the trace before the removal of the files of a
/// recording that has not begun.
struct Opened {
    directory: Directory,
    scratch: Scratch,
    rings: Option<KernelRings>,
    kernel: Kernel,
    kernel_prices: KernelPrices,
    writer: Option<TraceWriter>,
    new_files: NewFiles,
}

impl SessionBuilder {
    fn open(&self, planned: &Planned) -> Result<Opened, SessionError> {
        // Declared before the writer, so dropped after it.
        let mut new_files = NewFiles::default();
        let missing = self.out.as_deref().map(MissingFiles::in_folder);
        let create = |out| create_trace(out, self.limits);
        let writer = self.out.as_deref().map(create).transpose()?;
        new_files.set(missing.unwrap_or_default());
        let first = StreamIdRange::SESSION.first();
        let kernel_prices = self.kernel_prices(planned)?;
        let program = self.command.first().and_then(|program| program.to_str());
        let kernel = Kernel::builder()
            .backend(self.kernel)
            .sensors(planned.sensors.iter().copied())
            .probes(self.probes.iter().cloned())
            .samplers(kernel_samplers(&self.samplers, program)?)
            .first_stream(first)
            .build();
        let kernel = kernel.map_err(|error| SessionError::from(&error))?;
        self.sensors.check(kernel.status())?;
        if self.until == Until::AllEnded && kernel.status().active == ActiveBackend::None {
            return Err(no_process_tree(&kernel.status().message));
        }
        // A monitor does not see the kernel streams of the session, so its own have the same ids.
        let rings = self
            .monitor
            .as_ref()
            .map(MonitorPlan::create_rings)
            .transpose()?;
        let used = rings.as_ref().map_or(0, KernelRings::stream_ids_used);
        let next = StreamId::from_raw(first.as_raw() + kernel.stream_ids_used().max(used));
        let scratch = Scratch::create().map_err(|error| {
            SessionError::new(
                ErrorKind::Unavailable,
                format!("cannot create a folder for the directory's socket: {error}"),
            )
        })?;
        let directory = self.directory(planned, &scratch, next)?;
        Ok(Opened {
            directory,
            scratch,
            rings,
            kernel,
            kernel_prices,
            writer,
            new_files,
        })
    }

    /// The prices of kernel sensors and probes, if there is a budget.
    ///
    /// # Errors
    /// [`SessionError`] if it is to keep the cost of perf records, which cannot be switched.
    fn kernel_prices(&self, planned: &Planned) -> Result<KernelPrices, SessionError> {
        if self.budget.is_none() || self.kernel == Backend::Off {
            return Ok(KernelPrices::default());
        }
        if self.kernel == Backend::Perf {
            let message = "a budget cannot switch kernel events that come from perf records, \
                           because they would not follow new threads; take them from BPF, or leave \
                           one of the two settings out";
            return Err(SessionError::new(ErrorKind::Usage, message));
        }
        let probes: Vec<String> = self.probes.iter().map(Probe::sensor).collect();
        let sensors = planned.sensors.iter().map(|sensor| sensor.name());
        let sensors = sensors.chain(probes.iter().map(String::as_str));
        Ok(KernelPrices::new(self.calibration.as_ref(), sensors))
    }

    /// Starts the directory of the session. `first` is the id of its first stream.
    fn directory(
        &self,
        planned: &Planned,
        scratch: &Scratch,
        first: StreamId,
    ) -> Result<Directory, SessionError> {
        let socket = self.socket.clone();
        let socket: PathBuf = socket.unwrap_or_else(|| scratch.path().join("directory.sock"));
        let mut directory = Directory::builder()
            .first_stream(first)
            .unrated_bytes(UNRATED_BYTES);
        if self.disable_unused {
            let mut required = planned.required.clone();
            required.extend(NewestElements::of(&self.samplers).requires());
            let needs = Needs::events(required);
            directory = directory.needs(planned.plugins.queries().fold(needs, Needs::and));
        }
        directory.start(&socket).map_err(|error| {
            // The user can choose another socket.
            let kind = match self.socket.is_some() {
                true => ErrorKind::Usage,
                false => ErrorKind::Unavailable,
            };
            SessionError::new(kind, error.to_string())
        })
    }
}

/// Step 3: the program runs, and all sources are open. The order of the fields is the order of
/// their drops.
struct Started {
    programs: Rc<RefCell<ProgramSource>>,
    kernel: Rc<RefCell<Kernel>>,
    monitor: Monitor,
    configured: ConfiguredMonitors,
    reactor: Option<Reactor>,
    running: Running,
    interrupts: Requests,
    recording: Recording,
    released: Timestamp,
    warning: Option<String>,
    plugins: Updates,
    analyses: Rc<RefCell<RequestedAnalyses>>,
    directory: Directory,
    _scratch: Scratch,
    writer: Option<TraceWriter>,
    budget: Option<BudgetController>,
    newest: NewestElements,
}

/// The monitors of `overhear.toml` in a run.
enum ConfiguredMonitors {
    /// The run has none.
    Absent,
    Running(MonitorHandle),
    Stopped(Box<Result<MonitorReport, SessionError>>),
}

impl ConfiguredMonitors {
    /// Stops them if they run. They evaluate the elements that were written until now.
    fn stopped(self) -> Self {
        match self {
            Self::Running(handle) => Self::Stopped(Box::new(handle.stop())),
            other => other,
        }
    }

    fn report(self) -> Option<Result<MonitorReport, SessionError>> {
        match self.stopped() {
            Self::Stopped(report) => Some(*report),
            Self::Absent | Self::Running(_) => None,
        }
    }
}

impl SessionBuilder {
    fn start(&mut self, planned: Planned, opened: Opened) -> Result<Started, SessionError> {
        // Bindings are dropped in reverse order.
        let Opened {
            mut new_files,
            mut writer,
            kernel,
            kernel_prices,
            rings,
            scratch,
            directory,
        } = opened;
        let mut sources = vec![
            SourceReport::of_kernel(kernel.status()),
            SourceReport::of_programs(),
        ];
        let kernel = Rc::new(RefCell::new(kernel));
        let programs = Rc::new(RefCell::new(ProgramSource::new(&directory)));
        let mut monitor = Monitor::new(HOLD_BACK);
        monitor.add_source(Box::new(Rc::clone(&kernel)));
        monitor.add_source(Box::new(Rc::clone(&programs)));
        monitor.add_source(Box::new(LiveStreams::embedded(&directory)));
        let variables = [(
            SOCKET_VARIABLE,
            directory.socket().as_os_str().to_os_string(),
        )];
        let output = match self.stdout_to_stderr {
            true => Output::ToStderr,
            false => Output::Inherited,
        };
        let mut budget = self.budget_controller(&directory, &programs)?;
        if let Some(budget) = &mut budget {
            budget.add_kernel(Rc::clone(&kernel), kernel_prices);
        }
        let interrupts = Requests::listen(self.requests.clone())?;
        let held = Held::start(&self.command, &variables, output)?;
        directory.serve_program(held.pid());
        if let Some(budget) = &mut budget {
            budget.add_process(held.pid());
        }
        let newest = NewestElements::of(&self.samplers);
        let subjects = Subjects {
            pids: vec![held.pid()],
            on_exec: true,
            newest: newest
                .values()
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        };
        let mut free = StreamIdRange::LOCAL;
        let samplers = Samplers::prepare(&self.samplers, &subjects, &mut free)?;
        samplers.add_to(&mut monitor);
        sources.extend(samplers.report());
        if let Err(error) = kernel.borrow_mut().follow_held(held.pid()) {
            self.run_unobserved(&mut sources[0], &error.to_string())?;
        }
        let warning = self.monitor.as_ref().and_then(|plan| plan.warning.clone());
        let context = ActionContext {
            socket: directory.socket(),
            pid: held.pid(),
        };
        let deciders = planned.deciders;
        let reactor = Reactor::start(deciders.clone(), context, self.notices.clone())?;
        let configured = match self.monitor.take().zip(rings) {
            None => ConfiguredMonitors::Absent,
            Some((plan, rings)) => {
                let handle = plan.start(directory.socket(), (rings, held.pid()), &deciders)?;
                ConfiguredMonitors::Running(handle)
            }
        };
        let mut recording = Recording::begin(&self.command, sources, monotonic_now());
        if let Some(writer) = &mut writer {
            let _ = writer.attach_document(documents::RUN, &recording.to_json());
        }
        // The totals before the first instruction.
        samplers.release();
        let released = monotonic_now();
        recording.start_ns = released.as_monotonic_ns();
        deciders.start().set(released);
        planned.analyses.borrow_mut().count_from(released);
        let running = held.release()?;
        new_files.keep();
        Ok(Started {
            programs,
            kernel,
            monitor,
            configured,
            reactor,
            running,
            interrupts,
            recording,
            released,
            warning,
            plugins: planned.plugins,
            analyses: planned.analyses,
            directory,
            _scratch: scratch,
            writer,
            budget,
            newest,
        })
    }

    /// The controller of the budget, if the run has one.
    fn budget_controller(
        &mut self,
        directory: &Directory,
        programs: &Rc<RefCell<ProgramSource>>,
    ) -> Result<Option<BudgetController>, SessionError> {
        let Some(mut settings) = self.budget.take() else {
            return Ok(None);
        };
        if let Some(plan) = &mut self.monitor {
            // They come first: the first rule that matches counts.
            settings.rules.splice(0..0, plan.yield_to_budget()?);
        }
        let prices = WritePrices::new(self.calibration.as_ref())?;
        let sensors = OwnSensors {
            programs: Rc::clone(programs),
            switch: BudgetSwitch::new(directory),
        };
        BudgetController::new(settings, prices, Box::new(sensors)).map(Some)
    }

    /// Lets the run go on without kernel sensors after `error`, unless it requires them.
    fn run_unobserved(&self, kernel: &mut SourceReport, error: &str) -> Result<(), SessionError> {
        if self.until == Until::AllEnded {
            return Err(no_process_tree(error));
        }
        if self.kernel != Backend::Auto || !self.sensors.is_empty() {
            return Err(SessionError::new(ErrorKind::Unavailable, error));
        }
        kernel.active = "none".to_string();
        kernel.sensors.clear();
        kernel.message = format!("kernel sensors: none, because {error}");
        Ok(())
    }
}

/// Step 4: the analyses that saw the run until the program ended, and the last round after that.
struct Observed {
    scheduling: Scheduling,
    statistics: SensorStatistics,
    overhead: Option<CalibratedOverhead>,
    others: OtherThreads,
    delays: Option<Delays>,
    notes: Vec<String>,
    ended: Timestamp,
    budget: Option<BudgetOutcome>,
}

impl SessionBuilder {
    fn observe(&mut self, started: &mut Started, updates: &mut [&mut dyn Analysis]) -> Observed {
        let Started {
            programs,
            kernel,
            monitor,
            configured,
            reactor,
            running,
            interrupts,
            recording,
            released,
            plugins,
            analyses,
            writer,
            budget,
            newest,
            ..
        } = started;
        let budget = OptionalBudget::new(budget.take());
        let mut scheduling = Scheduling::new(());
        if recording.records_wakeups() {
            scheduling.expect_wakeups();
        }
        let mut statistics = SensorStatistics::default();
        let calibration = self.calibration.take();
        let mut overhead = calibration
            .map(|known| CalibratedOverhead::new(known.for_backend(recording.kernel_backend())));
        let costs = overhead
            .as_ref()
            .filter(|_| self.compensate)
            .map(CalibratedOverhead::costs);
        let mut others = OtherThreads::new();
        let tree = (self.until == Until::AllEnded).then(Rc::<RefCell<ProcessTree>>::default);
        let mut followed = tree.clone();
        let mut judging = Rc::clone(analyses);
        let mut notes = Vec::new();

        let mut accounts = Accounts::new(&mut scheduling, &mut statistics, costs);
        let mut all: Vec<&mut dyn Analysis> = vec![accounts.analysis(), &mut others];
        all.extend(overhead.as_mut().map(CalibratedOverhead::analysis));
        all.extend(followed.as_mut().map(|tree| tree as &mut dyn Analysis));
        let mut created = budget.new_processes();
        all.extend(created.as_mut().map(|created| created as &mut dyn Analysis));
        all.extend(writer.as_mut().map(|writer| writer as &mut dyn Analysis));
        if !analyses.borrow().is_empty() {
            all.push(&mut judging);
        }
        let updates = updates.iter_mut();
        all.extend(updates.map(|update| &mut **update as &mut dyn Analysis));
        all.extend([plugins.set() as &mut dyn Analysis, newest]);
        let mut progress = self.progress.map(|begin| begin());
        let mut forwarder = SignalForwarder::new(running, interrupts, tree.as_deref());
        let is_orphaned = || tree.as_ref().is_some_and(|it| it.borrow().is_orphaned());
        let sleep = |pause| match is_orphaned() {
            // The program has ended: waiting for its end would return at once.
            true => std::thread::sleep(pause),
            false => running.wait(pause),
        };
        let wait = |pause| budget.wait(pause, sleep);
        let runner = Runner::over(&mut *monitor, Fanout(all))
            .complaints(|complaint| notes.push(complaint.to_string()));
        let finished = runner.run(wait, |runner| {
            let now = runner.now();
            if let Some(progress) = &mut progress {
                let missed = runner.monitor.losses().missed();
                progress.show(now.since(*released), runner.monitor.elements(), missed);
            }
            forwarder.forward();
            analyses
                .borrow_mut()
                .add_clock_segments(programs.borrow().clock_segments());
            let goes_on = |tree: &RefCell<ProcessTree>| !tree.borrow_mut().has_ended(now);
            if !running.has_ended() || tree.as_deref().is_some_and(goes_on) {
                return None;
            }
            if let Some(reactor) = reactor {
                // Before the last round, so that it reads the last elements of result sensors.
                let running = std::mem::replace(configured, ConfiguredMonitors::Absent);
                *configured = running.stopped();
                reactor.flush();
            }
            budget.end_kernel(now);
            // The program is a zombie now: its last statistics can still be read.
            kernel.borrow_mut().finish();
            Some(())
        });
        let Finished { ended, .. } = finished;
        if let Some(progress) = &mut progress {
            progress.clear();
        }
        let delays = accounts.finish();
        let (budget, problems) = budget.finish(ended);
        notes.extend(problems);
        Observed {
            scheduling,
            statistics,
            overhead,
            others,
            delays,
            notes,
            ended,
            budget,
        }
    }
}

/// Step 5: all results, after all threads of the session have ended.
struct Settled {
    scheduling: Scheduling,
    statistics: SensorStatistics,
    overhead: Option<CalibratedOverhead>,
    delays: Option<Delays>,
    recording: Recording,
    exit: Exit,
    check: Option<CheckReport>,
    metrics: Option<MetricsReport>,
    guarantee: Option<MonitorReport>,
    reactions: Option<ReactionsReport>,
    updates: Vec<UpdateReport>,
    budget: Option<BudgetOutcome>,
    others: Vec<OtherThread>,
    programs: Rc<RefCell<ProgramSource>>,
    monitor: Monitor,
    writer: Option<TraceWriter>,
    interrupts: Requests,
    _directory: Directory,
    _scratch: Scratch,
}

impl Started {
    fn settle(mut self, observed: Observed) -> Result<Settled, SessionError> {
        let Observed {
            mut scheduling,
            mut statistics,
            overhead,
            others,
            delays,
            mut notes,
            ended,
            budget,
        } = observed;
        let exit = self.running.reap()?;
        for stream in self.monitor.take_opened() {
            statistics.announce(&stream);
            if let Some(writer) = &mut self.writer {
                let _ = writer.open(&stream);
            }
        }
        let not_connected = self.directory.take_not_connected();
        self.recording.not_connected = not_connected.count;
        notes.extend(not_connected.messages);
        notes.extend(live_threads(&scheduling));
        notes.extend(self.newest.absent());
        notes.extend(self.warning);
        // The directory still exists, so the monitors can read the elements that they have not
        // evaluated.
        let guarantee = self.configured.report().transpose();
        let guarantee = guarantee.unwrap_or_else(|error| {
            notes.push(error.message);
            Some(MonitorReport::failed())
        });
        scheduling.finish(compensation::end(ended, delays.as_ref()));
        let others = others.names(scheduling.threads().iter().map(|thread| thread.tid));
        let threads = other_threads::by_tid(&others).chain(metrics::names_of(&scheduling));
        let (check, metrics) =
            self.analyses
                .borrow_mut()
                .finish(ended, self.recording.not_connected, threads);
        // After the last decision.
        let reactions = match self.reactor.map(Reactor::stop).transpose() {
            Ok(reactions) => reactions,
            Err(error) => {
                notes.push(error.message);
                Some(ReactionsReport::failed())
            }
        };
        self.recording.end = Some(Ending {
            end_ns: ended.as_monotonic_ns(),
            exit,
        });
        self.recording.notes = notes;
        Ok(Settled {
            scheduling,
            statistics,
            overhead,
            delays,
            recording: self.recording,
            exit,
            check,
            metrics,
            guarantee,
            reactions,
            updates: self.plugins.finish(),
            budget,
            others,
            programs: self.programs,
            monitor: self.monitor,
            writer: self.writer,
            interrupts: self.interrupts,
            _directory: self.directory,
            _scratch: self._scratch,
        })
    }
}

/// Step 6: the recording with its documents, and the report.
impl Settled {
    fn assemble(mut self, out: Option<PathBuf>) -> Outcome {
        let trace = match (self.writer.take(), &out) {
            (Some(writer), Some(out)) => self.close(writer, out),
            _ => TraceReport::default(),
        };
        let found = RunFindings {
            scheduling: &self.scheduling,
            statistics: &self.statistics,
            losses: self.monitor.losses(),
            overhead: self.overhead.as_ref(),
            compensation: self
                .delays
                .as_ref()
                .map(|delays| CompensationReport::of(delays, self.recording.records_wakeups())),
            trace,
        };
        let mut report = report::of(&self.recording, &found);
        (report.check, report.metrics) = (self.check, self.metrics);
        report.add_updates(self.updates);
        report.add_guarantee(self.guarantee);
        report.reactions = self.reactions;
        report.budget = self.budget;
        report.add_other_threads(self.others);
        report.conclude();
        // The recording is complete: from now on a signal may end the process.
        drop(self.interrupts);
        Outcome {
            report,
            exit: self.exit,
            out,
        }
    }

    /// Ends the trace, with the documents that cannot be computed from it.
    fn close(&mut self, mut writer: TraceWriter, out: &std::path::Path) -> TraceReport {
        let trace = &mut writer;
        let updates = Some(&self.updates).filter(|all| !all.is_empty());
        documents::attach(trace, documents::UPDATES, updates);
        let others = Some(&self.others).filter(|all| !all.is_empty());
        documents::attach(trace, documents::OTHER_THREADS, others);
        documents::attach(trace, documents::CHECK, self.check.as_ref());
        documents::attach(trace, documents::METRICS, self.metrics.as_ref());
        documents::attach(trace, documents::GUARANTEE, self.guarantee.as_ref());
        documents::attach(trace, documents::REACTIONS, self.reactions.as_ref());
        documents::attach(trace, documents::BUDGET, self.budget.as_ref());
        let calibration = self.overhead.as_ref().map(CalibratedOverhead::calibration);
        documents::attach(trace, documents::CALIBRATION, calibration);
        let programs = self.programs.borrow();
        close_trace(writer, out, &mut self.recording, programs.clock_segments())
    }
}

/// A note about threads that were alive when the session ended.
fn live_threads(scheduling: &Scheduling) -> Option<String> {
    let alive: Vec<String> = scheduling
        .alive()
        .map(|thread| format!("{}({})", thread.comm, thread.tid))
        .collect();
    let threads = match alive.len() {
        0 => return None,
        1 => "1 thread was".to_string(),
        more => format!("{more} threads were"),
    };
    let some = alive.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    let more = if alive.len() > 5 { ", ..." } else { "" };
    Some(format!(
        "{threads} still alive when the program ended, and not observed after that: {some}{more}"
    ))
}

/// The error of a run that waits for all processes and cannot observe them.
fn no_process_tree(reason: &str) -> SessionError {
    let message = format!(
        "the end of all processes can only be observed by kernel sensors, and there are none ({reason}); wait for \
         the program alone, or see `overhear doctor`"
    );
    SessionError::new(ErrorKind::Unavailable, message).about(Setting::Until)
}

/// The description of a kernel sensor's stream on one CPU.
fn kernel_stream(sensor: Sensor) -> StreamDescriptor {
    StreamDescriptor {
        id: StreamId::from_raw(0),
        origin: Origin::Kernel { cpu: 0 },
        sensor: sensor.name().to_owned(),
        instance: String::new(),
        lane: None,
        schema: Arc::new(sensor.schema()),
        rate: None,
        capacity: 0,
    }
}

#[cfg(test)]
mod tests {
    use overhear_budget::Overhead;
    use overhear_kernel::Backend;

    use crate::budget::BudgetSettings;
    use crate::error::ErrorKind;
    use crate::session::Session;

    #[test]
    fn budget_of_perf_records_is_refused_before_anything_runs() {
        let target = Overhead::from_percent(5.0).unwrap();
        let session = Session::builder(vec!["/no/such/program".into()])
            .kernel(Backend::Perf)
            .budget(Some(BudgetSettings::of(target)));
        let error = session.run(&mut []).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Usage);
        let message = "a budget cannot switch kernel events that come from perf records";
        assert!(error.message.starts_with(message), "{error}");
    }
}
