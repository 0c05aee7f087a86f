// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run of a program in six steps.
//!
//! ```text
//! plan ----> open -----> start ------> observe -----> settle ------> assemble
//! what is    kernel      program       one monitor    every thread   recording,
//! evaluated  sensors,    held, then    until the      stopped, all   report
//! and        directory,  released      program ends   decided
//! required   trace
//! ```
//!
//! Each step takes what the one before it made. A step that fails gives back what was made: the
//! program ends without having run, and a recording that has not begun leaves no files.

use crate::report::{self, RunFindings};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use overhear_directory::{monotonic_now, Directory, Needs, ProgramSource, SOCKET_VARIABLE};
use overhear_event::{
    Analysis, ClockId, EventName, EventSet, Origin, StreamDescriptor, StreamId, StreamIdRange,
    Timestamp,
};
use overhear_kernel::{ActiveBackend, Backend, Kernel, Sensor};
use overhear_metrics::compensation::Delays;
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{best_effort, Fanout, Monitor, HOLD_BACK};
use overhear_trace::TraceWriter;

use super::keeping::{close_trace, create_trace, keep, Unused};
use super::signal_forwarder::SignalForwarder;
use super::{Outcome, SessionBuilder, Until, UNRATED_BYTES};
use crate::check::{CheckReport, CHECK};
use crate::child::{Held, Output, Running};
use crate::compensation::{self, Accounts, CompensationReport};
use crate::conclusion::Exit;
use crate::config::probes::{refuse_pattern, refuse_unusable};
use crate::configured_monitor::{
    KernelRings, MonitorHandle, MonitorPlan, MonitorReport, GUARANTEE,
};
use crate::error::{ErrorKind, SessionError};
use crate::evaluations::Evaluations;
use crate::interrupts::Requests;
use crate::metrics::{self, MetricsReport, METRICS};
use crate::other_threads::{self, OtherThread, OtherThreads, OTHER_THREADS};
use crate::overhead::{CalibratedOverhead, CALIBRATION};
use crate::process_tree::ProcessTree;
use crate::quantities::{SourceReport, TraceReport};
use crate::reactions::{ActionContext, Deciders, ReactionsReport, Reactor, REACTIONS};
use crate::record::cannot_start;
use crate::recording::{Ending, Recording};
use crate::scratch::Scratch;
use crate::updates::{UpdateReport, Updates, UPDATES};

impl SessionBuilder {
    /// Runs the program to its end. The given updates see every item that the session's own see.
    ///
    /// # Errors [`SessionError`] if the program could not be run or observed at all. Later errors
    /// are notes of the report.
    pub fn run(mut self, updates: &mut [&mut dyn Analysis]) -> Result<Outcome, SessionError> {
        let planned = self.plan(updates)?;
        let opened = self.open(&planned)?;
        let mut started = self.start(planned, opened)?;
        let observed = self.observe(&mut started, updates);
        let settled = started.settle(observed)?;
        Ok(settled.assemble(self.out))
    }
}

/// Step 1: the evaluations, and what they require of the kernel and of programs.
struct Planned {
    deciders: Deciders,
    evaluations: Rc<RefCell<Evaluations>>,
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
            let message = "--until all-ended knows the program's processes by kernel sensors; leave --kernel off out";
            return Err(SessionError::new(ErrorKind::Usage, message));
        }
        let deciders = Deciders::new(std::mem::take(&mut self.reactions));
        let evaluations = Evaluations::new(
            self.constraints.clone(),
            self.metrics.clone(),
            deciders.of_constraints(),
        )?;
        let required = evaluations.requires();
        let trial = Evaluations::new(self.constraints.clone(), self.metrics.clone(), None)?;
        refuse_unusable(trial, &self.probes)?;
        let plugins = Updates::load(&self.updates)?;
        for (update, pattern) in plugins.patterns() {
            refuse_pattern(update, pattern, &self.probes)?;
        }
        let mut sensors = self.sensors.wanted();
        let names_scheduling = sensors.iter().any(|sensor| sensor.is_scheduling());
        sensors.extend(Sensor::required_by(&required));
        if !names_scheduling {
            let wanted = |sensor: &Sensor| {
                let event = EventName::kernel(sensor.name());
                plugins.want(&kernel_stream(*sensor))
                    || updates
                        .iter()
                        .any(|update| update.requires().contains(&event))
            };
            sensors.extend(Sensor::scheduling().filter(|it| !self.disable_unused || wanted(it)));
        }
        Ok(Planned {
            deciders,
            evaluations: Rc::new(RefCell::new(evaluations)),
            plugins,
            required,
            sensors,
        })
    }
}

/// Step 2: what observes. Fields are dropped in their order: the directory before the folder of its
/// socket, the trace before the files of a recording that has not begun are removed.
struct Opened {
    directory: Directory,
    scratch: Scratch,
    rings: Option<KernelRings>,
    kernel: Kernel,
    writer: Option<TraceWriter>,
    unused: Unused,
}

impl SessionBuilder {
    fn open(&self, planned: &Planned) -> Result<Opened, SessionError> {
        // Declared before the writer, so dropped after it.
        let mut unused = Unused::default();
        let new = self.out.as_deref().map(Unused::not_there_yet);
        let writer = self.out.as_deref().map(create_trace).transpose()?;
        unused.note(new.unwrap_or_default());
        let first = StreamIdRange::SESSION.first();
        let kernel = Kernel::builder()
            .backend(self.kernel)
            .sensors(planned.sensors.iter().copied())
            .probes(self.probes.iter().cloned())
            .first_stream(first)
            .build();
        let kernel = kernel.map_err(|error| cannot_start(&error))?;
        self.sensors.check(kernel.status())?;
        if self.until == Until::AllEnded && kernel.status().active == ActiveBackend::None {
            return Err(no_tree(&kernel.status().message));
        }
        // Kernel streams of a monitor have these numbers as well: it does not see the session's.
        let rings = self
            .monitor
            .as_ref()
            .map(MonitorPlan::hear_kernel)
            .transpose()?;
        let used = rings.as_ref().map_or(0, KernelRings::stream_ids_used);
        let behind = StreamId::from_raw(first.as_raw() + kernel.stream_ids_used().max(used));
        let scratch = Scratch::create().map_err(|error| {
            SessionError::new(
                ErrorKind::Unavailable,
                format!("cannot make a place for the directory's socket: {error}"),
            )
        })?;
        let directory = self.directory(planned, &scratch, behind)?;
        Ok(Opened {
            directory,
            scratch,
            rings,
            kernel,
            writer,
            unused,
        })
    }

    /// The directory of the session, whose streams are numbered from `first` on.
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
            let needs = Needs::events(planned.required.clone());
            directory = directory.needs(planned.plugins.queries().fold(needs, Needs::and));
        }
        directory.start(&socket).map_err(|error| {
            // A place that the user has chosen is the user's to change.
            let kind = match self.socket.is_some() {
                true => ErrorKind::Usage,
                false => ErrorKind::Unavailable,
            };
            SessionError::new(kind, error.to_string())
        })
    }
}

/// Step 3: the program runs, and everything listens. Fields are dropped in their order.
struct Started {
    programs: Rc<RefCell<ProgramSource>>,
    kernel: Rc<RefCell<Kernel>>,
    monitor: Monitor,
    guard: Option<MonitorHandle>,
    reactor: Option<Reactor>,
    running: Running,
    interrupts: Requests,
    recording: Recording,
    released: Timestamp,
    warning: Option<String>,
    plugins: Updates,
    evaluations: Rc<RefCell<Evaluations>>,
    directory: Directory,
    _scratch: Scratch,
    writer: Option<TraceWriter>,
}

impl SessionBuilder {
    fn start(&mut self, planned: Planned, opened: Opened) -> Result<Started, SessionError> {
        // In this order, because bindings are dropped in the opposite one.
        let Opened {
            mut unused,
            mut writer,
            kernel,
            rings,
            scratch,
            directory,
        } = opened;
        let mut sources = vec![kernel_report(&kernel), program_report()];
        let kernel = Rc::new(RefCell::new(kernel));
        let programs = Rc::new(RefCell::new(ProgramSource::new(&directory)));
        let mut monitor = Monitor::new(HOLD_BACK);
        monitor.add_source(Box::new(Rc::clone(&kernel)));
        monitor.add_source(Box::new(Rc::clone(&programs)));
        let variables = [(
            SOCKET_VARIABLE,
            directory.socket().as_os_str().to_os_string(),
        )];
        let output = match self.stdout_to_stderr {
            true => Output::ToStderr,
            false => Output::Inherited,
        };
        let interrupts = Requests::listen(self.requests.clone())?;
        let held = Held::start(&self.command, &variables, output)?;
        directory.serve_program(held.pid());
        if let Err(error) = kernel.borrow_mut().follow_held(held.pid()) {
            self.run_unobserved(&mut sources[0], &error.to_string())?;
        }
        let warning = self.monitor.as_ref().and_then(|plan| plan.warning.clone());
        let context = ActionContext {
            socket: directory.socket(),
            pid: held.pid(),
        };
        let deciders = planned.deciders;
        let reactor = Reactor::start(deciders.clone(), context)?;
        let guarded = self.monitor.take().zip(rings);
        let guard = guarded
            .map(|(plan, rings)| plan.start(directory.socket(), (rings, held.pid()), &deciders));
        let guard = guard.transpose()?;
        let mut recording = Recording::begin(&self.command, sources, monotonic_now());
        if let Some(writer) = &mut writer {
            let _ = writer.attach_document("run", &recording.to_json());
        }
        let released = monotonic_now();
        recording.start_ns = released.as_monotonic_ns();
        deciders.start().set(released);
        planned.evaluations.borrow_mut().count_from(released);
        let running = held.release()?;
        unused.are_used();
        Ok(Started {
            programs,
            kernel,
            monitor,
            guard,
            reactor,
            running,
            interrupts,
            recording,
            released,
            warning,
            plugins: planned.plugins,
            evaluations: planned.evaluations,
            directory,
            _scratch: scratch,
            writer,
        })
    }

    /// Goes on without kernel sensors, which `error` made impossible, unless they are demanded.
    fn run_unobserved(&self, kernel: &mut SourceReport, error: &str) -> Result<(), SessionError> {
        if self.until == Until::AllEnded {
            return Err(no_tree(error));
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

/// Step 4: everything that was observed until the program ended.
struct Observed {
    scheduling: Scheduling,
    statistics: SensorStatistics,
    overhead: Option<CalibratedOverhead>,
    others: OtherThreads,
    delays: Option<Delays>,
    notes: Vec<String>,
    ended: Timestamp,
    // Where it was stopped before the last items of its reactions were evaluated.
    guarantee: Option<Result<MonitorReport, SessionError>>,
}

impl SessionBuilder {
    fn observe(&mut self, started: &mut Started, updates: &mut [&mut dyn Analysis]) -> Observed {
        let Started {
            programs,
            kernel,
            monitor,
            guard,
            reactor,
            running,
            interrupts,
            recording,
            released,
            plugins,
            evaluations,
            writer,
            ..
        } = started;
        let mut scheduling = Scheduling::new(());
        if recording.hears_wakeups() {
            scheduling.expect_wakeups();
        }
        let mut statistics = SensorStatistics::default();
        let calibration = self.calibration.take();
        let mut overhead = calibration
            .map(|known| CalibratedOverhead::new(known.heard_by(recording.kernel_active())));
        let costs = overhead
            .as_ref()
            .filter(|_| self.compensate)
            .map(CalibratedOverhead::costs);
        let mut others = OtherThreads::new();
        let tree = (self.until == Until::AllEnded).then(Rc::<RefCell<ProcessTree>>::default);
        let mut followed = tree.clone();
        let mut judging = Rc::clone(evaluations);
        let mut notes = Vec::new();
        let (mut ended, mut guarantee) = (*released, None);

        let mut accounts = Accounts::new(&mut scheduling, &mut statistics, costs);
        let mut all: Vec<&mut dyn Analysis> = vec![accounts.update(), &mut others];
        all.extend(overhead.as_mut().map(CalibratedOverhead::update));
        all.extend(followed.as_mut().map(|tree| tree as &mut dyn Analysis));
        all.extend(writer.as_mut().map(|writer| writer as &mut dyn Analysis));
        if !evaluations.borrow().is_empty() {
            all.push(&mut judging);
        }
        all.extend(
            updates
                .iter_mut()
                .map(|update| &mut **update as &mut dyn Analysis),
        );
        all.push(plugins.set());
        let mut fanout = Fanout(all);
        let mut progress = self.progress.map(|begin| begin());
        let mut forwarder = SignalForwarder::new(running, interrupts, tree.as_deref());
        let is_orphaned = || tree.as_ref().is_some_and(|it| it.borrow().is_orphaned());
        let wait = |longest| match is_orphaned() {
            // Its process is always ready then.
            true => std::thread::sleep(longest),
            false => running.wait(longest),
        };
        best_effort(monitor, &mut fanout, monotonic_now, wait, |monitor| {
            let now = monotonic_now();
            let complaints = monitor.take_complaints().into_iter();
            notes.extend(complaints.map(|complaint| complaint.to_string()));
            if let Some(progress) = &mut progress {
                let missed = monitor.losses().missed();
                progress.show(now.since(*released), monitor.elements(), missed);
            }
            forwarder.pass_on();
            let programs = programs.borrow();
            evaluations.borrow_mut().clock(programs.clock_segments());
            drop(programs);
            let goes_on = |tree: &RefCell<ProcessTree>| !tree.borrow_mut().has_ended(now);
            if !running.has_ended() || tree.as_deref().is_some_and(goes_on) {
                return true;
            }
            ended = now;
            if let Some(reactor) = reactor {
                // First, so that this session sees what is written to result sensors.
                guarantee = guard.take().map(MonitorHandle::stop);
                reactor.settle();
            }
            // The program is a zombie now: its last numbers can still be read.
            kernel.borrow_mut().finish();
            false
        });
        if let Some(progress) = &mut progress {
            progress.clear();
        }
        drop(fanout);
        let delays = accounts.finish();
        Observed {
            scheduling,
            statistics,
            overhead,
            others,
            delays,
            notes,
            ended,
            guarantee,
        }
    }
}

/// Step 5: every result, after all threads of the session have ended.
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
            guarantee,
        } = observed;
        let exit = self.running.reap()?;
        for stream in self.monitor.take_opened() {
            statistics.announce(&stream);
            if let Some(writer) = &mut self.writer {
                let _ = writer.open(&stream);
            }
        }
        let complaints = self.monitor.take_complaints().into_iter();
        notes.extend(complaints.map(|complaint| complaint.to_string()));
        let not_connected = self.directory.take_not_connected();
        self.recording.not_connected = not_connected.count;
        notes.extend(not_connected.messages);
        notes.extend(still_alive(&scheduling));
        notes.extend(self.warning);
        // The directory is still there, and so is what has not been evaluated.
        let guarantee = guarantee.or_else(|| self.guard.map(MonitorHandle::stop));
        let guarantee = guarantee.transpose().unwrap_or_else(|failure| {
            notes.push(failure.message);
            Some(MonitorReport::failed())
        });
        scheduling.finish(compensation::end(ended, delays.as_ref()));
        let others = others.names(scheduling.threads().iter().map(|thread| thread.tid));
        let threads = other_threads::by_tid(&others).chain(metrics::names_of(&scheduling));
        let (check, metrics) =
            self.evaluations
                .borrow_mut()
                .finish(ended, self.recording.not_connected, threads);
        // After everything that is decided.
        let reactions = match self.reactor.map(Reactor::stop).transpose() {
            Ok(reactions) => reactions,
            Err(failure) => {
                notes.push(failure.message);
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
                .map(|delays| CompensationReport::of(delays, self.recording.hears_wakeups())),
            trace,
        };
        let mut report = report::of(&self.recording, &found);
        (report.check, report.metrics) = (self.check, self.metrics);
        report.add_updates(self.updates);
        report.add_guarantee(self.guarantee);
        report.reactions = self.reactions;
        report.add_other_threads(self.others);
        report.conclude();
        // The recording is finished, the page can be made again.
        drop(self.interrupts);
        Outcome {
            report,
            exit: self.exit,
            out,
        }
    }

    /// Ends the trace, with the documents that cannot be computed from it.
    fn close(&mut self, mut writer: TraceWriter, out: &std::path::Path) -> TraceReport {
        let writer_of = &mut writer;
        keep(
            writer_of,
            UPDATES,
            Some(&self.updates).filter(|all| !all.is_empty()),
        );
        keep(
            writer_of,
            OTHER_THREADS,
            Some(&self.others).filter(|all| !all.is_empty()),
        );
        keep(writer_of, CHECK, self.check.as_ref());
        keep(writer_of, METRICS, self.metrics.as_ref());
        keep(writer_of, GUARANTEE, self.guarantee.as_ref());
        keep(writer_of, REACTIONS, self.reactions.as_ref());
        let calibration = self.overhead.as_ref().map(CalibratedOverhead::calibration);
        keep(writer_of, CALIBRATION, calibration);
        let programs = self.programs.borrow();
        close_trace(writer, out, &mut self.recording, programs.clock_segments())
    }
}

/// The session ends with the program; what its children do afterwards is not heard.
fn still_alive(scheduling: &Scheduling) -> Option<String> {
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
        "{threads} still alive when the program ended, and not heard after that: {some}{more}"
    ))
}

/// Nobody knows when all processes have ended.
fn no_tree(why: &str) -> SessionError {
    let message = format!(
        "--until all-ended knows the program's processes by kernel sensors, and there are none ({why}); leave it out, or see \
         `overhear doctor`"
    );
    SessionError::new(ErrorKind::Unavailable, message)
}

fn kernel_report(kernel: &Kernel) -> SourceReport {
    SourceReport::of_kernel(kernel.status())
}

/// A stream as that of a kernel sensor on one of the CPUs.
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

fn program_report() -> SourceReport {
    let (active, message) = match overhear_directory::sensor_clock() {
        ClockId::X86Tsc => (
            "x86_tsc",
            "the time stamp counter, which the kernel trusts as its clock",
        ),
        ClockId::ArmCntvct => ("arm_cntvct", "the virtual counter of the CPU"),
        ClockId::Monotonic => (
            "monotonic",
            "CLOCK_MONOTONIC, because the kernel does not trust the CPU's counter as its clock",
        ),
    };
    SourceReport {
        name: "programs".to_string(),
        active: active.to_string(),
        sensors: Vec::new(),
        message: format!(
            "program sensors: an embedded directory listens; stamps come from {message}"
        ),
    }
}
