// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session: one program, run and listened to from its first instruction to its end.

mod keeping;
mod outcome;

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use overhear_directory::{monotonic_now, Directory, Needs, ProgramSource, SOCKET_VARIABLE};
use overhear_event::{ClockId, EventName, Origin, StreamDescriptor, StreamId, Update};
use overhear_kernel::{Active, Choice, Kernel, Sensor};
use overhear_metrics::automaton::Metric;
use overhear_metrics::verdict::Constraint;
use overhear_metrics::{Scheduling, SensorStatistics};
use overhear_monitor::{best_effort, Fanout, Monitor, HOLD_BACK};
use rustix::process::{kill_process, Pid, Signal};

use crate::calibrate::Calibration;
use crate::check::CHECK;
use crate::child::{Held, Output, Running};
use crate::compensation::{self, Accounts, CompensationReport};
use crate::config::probes::{refuse_pattern, refuse_unusable};
use crate::error::{ErrorKind, SessionError};
use crate::evaluations::Evaluations;
use crate::guaranteed::{GuaranteeReport, Guard, KernelRings, Plan, GUARANTEE};
use crate::interrupts::Interrupts;
use crate::intrusion::{Meter, CALIBRATION};
use crate::metrics::{self, METRICS};
use crate::other_threads::{self, OtherThreads, OTHER_THREADS};
use crate::process_tree::ProcessTree;
use crate::progress::BeginProgress;
use crate::reactions::{Deciders, Reactions, ReactionsReport, Reactor, Surroundings, REACTIONS};
use crate::record::cannot_start;
use crate::recording::{self, Ending, Found, Recording};
use crate::report::{SourceReport, TraceReport};
use crate::scratch::Scratch;
use crate::shared::Shared;
use crate::updates::{UpdateSpecification, Updates, UPDATES};

use keeping::Unused;
pub use keeping::{close_trace, create_trace, keep, uncreated};
pub use outcome::Outcome;

pub use crate::named_sensors::NamedSensors;
pub use overhear_kernel::Choice as KernelChoice;
pub use overhear_kernel::{Probe, Sensor as KernelSensor};

/// Memory of sensors that declare no rate, in bytes: those that do get what they need.
const UNRATED_BYTES: u64 = 48 << 20;

/// When a session ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// When the program has ended, whatever its children do.
    #[default]
    Ended,
    /// When the program and all processes that it has created, and these, have ended.
    AllEnded,
}

/// Settings of a session. See [`Session::builder`].
#[derive(Clone, Debug)]
pub struct SessionBuilder {
    command: Vec<OsString>,
    out: Option<PathBuf>,
    kernel: Choice,
    sensors: NamedSensors,
    only_needed: bool,
    probes: Vec<Probe>,
    progress: Option<BeginProgress>,
    stdout_to_stderr: bool,
    socket: Option<PathBuf>,
    constraints: Vec<Constraint>,
    metrics: Vec<Metric>,
    updates: Vec<UpdateSpecification>,
    monitor: Option<Plan>,
    reactions: Reactions,
    calibration: Option<Calibration>,
    compensate: bool,
    until: Until,
}

/// A program that is run and listened to.
#[derive(Debug)]
pub struct Session(());

impl Session {
    /// Settings for a run of `command`: the program and its arguments.
    #[must_use]
    pub fn builder(command: Vec<OsString>) -> SessionBuilder {
        SessionBuilder {
            command,
            out: None,
            kernel: Choice::Auto,
            sensors: NamedSensors::default(),
            only_needed: false,
            probes: Vec::new(),
            progress: None,
            stdout_to_stderr: false,
            socket: None,
            constraints: Vec::new(),
            metrics: Vec::new(),
            updates: Vec::new(),
            monitor: None,
            reactions: Reactions::default(),
            calibration: None,
            compensate: false,
            until: Until::default(),
        }
    }
}

impl SessionBuilder {
    /// Keeps the trace in this directory ([`Outcome::out`]).
    #[must_use]
    pub fn out(mut self, directory: Option<PathBuf>) -> Self {
        self.out = directory;
        self
    }

    /// Which kernel sensor to use.
    #[must_use]
    pub fn kernel(mut self, choice: Choice) -> Self {
        self.kernel = choice;
        self
    }

    /// Which kernel sensors, as for [`Kernel`], besides those that constraints and metrics require. Those that are
    /// named must be heard, or nothing is run.
    #[must_use]
    pub fn sensors(mut self, sensors: NamedSensors) -> Self {
        self.sensors = sensors;
        self
    }

    /// Sensors of programs that neither a constraint, a metric, an update nor a monitor needs are switched
    /// off, as long as that is so. Nor are wake-ups heard that neither these need nor [`Self::sensors`] names.
    #[must_use]
    pub fn only_needed(mut self, only: bool) -> Self {
        self.only_needed = only;
        self
    }

    /// Functions and static probes of programs that become sensors.
    #[must_use]
    pub fn probes(mut self, probes: Vec<Probe>) -> Self {
        self.probes = probes;
        self
    }

    /// Shows how the run goes on.
    #[must_use]
    pub fn progress(mut self, begin: Option<BeginProgress>) -> Self {
        self.progress = begin;
        self
    }

    /// Sends the program's standard output to standard error.
    #[must_use]
    pub fn stdout_to_stderr(mut self, yes: bool) -> Self {
        self.stdout_to_stderr = yes;
        self
    }

    /// Where the directory listens, so that others can attach; a place of its own without it.
    #[must_use]
    pub fn socket(mut self, socket: Option<PathBuf>) -> Self {
        self.socket = socket;
        self
    }

    /// What must hold: violations are said on standard error as soon as they are decided, and the
    /// verdicts are in the report.
    #[must_use]
    pub fn constraints(mut self, constraints: Vec<Constraint>) -> Self {
        self.constraints = constraints;
        self
    }

    /// What is measured, for the report.
    #[must_use]
    pub fn metrics(mut self, metrics: Vec<Metric>) -> Self {
        self.metrics = metrics;
        self
    }

    /// Updates of plug-ins that evaluate what is heard.
    #[must_use]
    pub fn updates(mut self, updates: Vec<UpdateSpecification>) -> Self {
        self.updates = updates;
        self
    }

    /// A monitor of `overhear.toml` that runs beside the session's own.
    #[must_use]
    pub fn monitor(mut self, plan: Option<Plan>) -> Self {
        self.monitor = plan;
        self
    }

    /// What is done about what is found, while the program runs.
    #[must_use]
    pub fn reactions(mut self, reactions: Reactions) -> Self {
        self.reactions = reactions;
        self
    }

    /// What sensors cost on this machine: the report then says what observing has cost.
    #[must_use]
    pub fn calibration(mut self, calibration: Option<Calibration>) -> Self {
        self.calibration = calibration;
        self
    }

    /// Whether what observing has cost is subtracted from the times of the report; that needs a
    /// calibration.
    #[must_use]
    pub fn compensate(mut self, compensate: bool) -> Self {
        self.compensate = compensate;
        self
    }

    /// When the session ends; by default with the program. All processes are known by kernel sensors alone.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Runs the program to its end. The given updates see every item that the session's own see.
    ///
    /// # Errors
    /// [`SessionError`] if the program could not be run or listened to at all. What goes wrong later
    /// stands in the report.
    pub fn run(self, updates: &mut [&mut dyn Update]) -> Result<Outcome, SessionError> {
        if self.compensate && self.calibration.is_none() {
            return Err(compensation::no_calibration());
        }
        self.sensors.check_choice(self.kernel)?;
        if self.until == Until::AllEnded && self.kernel == Choice::Off {
            let sentence = "--until all-ended knows the program's processes by kernel sensors; leave --kernel off out";
            return Err(SessionError::new(ErrorKind::Usage, sentence));
        }
        let deciders = Deciders::new(self.reactions);
        let evaluations = Evaluations::new(
            self.constraints.clone(),
            self.metrics.clone(),
            deciders.of_constraints(),
        )?;
        let required = evaluations.requires();
        let trial = Evaluations::new(self.constraints.clone(), self.metrics.clone(), None)?;
        refuse_unusable(trial, &self.probes)?;
        let evaluations = Rc::new(RefCell::new(evaluations));
        let mut shared = Shared(Rc::clone(&evaluations));
        let mut plugins = Updates::load(&self.updates)?;
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
            sensors.extend(Sensor::scheduling().filter(|it| !self.only_needed || wanted(it)));
        }
        // Declared before the writer, so dropped after it.
        let mut unused = Unused::default();
        let new = self.out.as_deref().map(Unused::not_there_yet);
        let mut writer = self.out.as_deref().map(create_trace).transpose()?;
        unused.note(new.unwrap_or_default());
        let first = StreamId::from_raw(1);
        let kernel = Kernel::builder()
            .choice(self.kernel)
            .sensors(sensors)
            .probes(self.probes.iter().cloned())
            .first_stream(first)
            .build();
        let kernel = kernel.map_err(|error| cannot_start(&error))?;
        self.sensors.check(kernel.status())?;
        if self.until == Until::AllEnded && kernel.status().active == Active::None {
            return Err(no_tree(&kernel.status().sentence));
        }
        // Kernel streams of a monitor have these numbers as well: it does not see the session's.
        let rings = self.monitor.as_ref().map(Plan::hear_kernel).transpose()?;
        let used = rings.as_ref().map_or(0, KernelRings::stream_ids_used);
        let behind = StreamId::from_raw(first.as_raw() + kernel.stream_ids_used().max(used));

        let scratch = Scratch::create().map_err(|error| {
            SessionError::new(
                ErrorKind::Unavailable,
                format!("cannot make a place for the directory's socket: {error}"),
            )
        })?;
        let socket = self.socket.clone();
        let socket = socket.unwrap_or_else(|| scratch.path().join("directory.sock"));
        let mut directory = Directory::builder()
            .first_stream(behind)
            .unrated_bytes(UNRATED_BYTES);
        if self.only_needed {
            let needs = Needs::events(required);
            directory = directory.needs(plugins.queries().fold(needs, Needs::and));
        }
        let directory = directory.start(&socket).map_err(|error| {
            // A place that the user has chosen is the user's to change.
            let chosen = self.socket.is_some();
            let status = if chosen {
                ErrorKind::Usage
            } else {
                ErrorKind::Unavailable
            };
            SessionError::new(status, error.to_string())
        })?;
        let mut sources = vec![kernel_report(&kernel), program_report()];

        let kernel = Rc::new(RefCell::new(kernel));
        let programs = Rc::new(RefCell::new(ProgramSource::new(&directory)));
        let mut monitor = Monitor::new(HOLD_BACK);
        monitor.add_source(Box::new(Shared(Rc::clone(&kernel))));
        monitor.add_source(Box::new(Shared(Rc::clone(&programs))));

        let variables = [(
            SOCKET_VARIABLE,
            directory.socket().as_os_str().to_os_string(),
        )];
        let output = if self.stdout_to_stderr {
            Output::ToStderr
        } else {
            Output::Inherited
        };
        let mut interrupts = Interrupts::listen()?;
        let held = Held::start(&self.command, &variables, output)?;
        directory.serve_program(held.pid());
        if let Err(error) = kernel.borrow_mut().follow_held(held.pid()) {
            if self.until == Until::AllEnded {
                return Err(no_tree(&error.to_string()));
            }
            if self.kernel != Choice::Auto || !self.sensors.is_empty() {
                return Err(SessionError::new(ErrorKind::Unavailable, error.to_string()));
            }
            sources[0].active = "none".to_string();
            sources[0].sensors.clear();
            sources[0].sentence = format!("kernel sensors: none, because {error}");
        }
        let warning = self.monitor.as_ref().and_then(|plan| plan.warning.clone());
        let surroundings = Surroundings {
            socket: directory.socket(),
            pid: held.pid(),
        };
        let reactor = Reactor::start(deciders.clone(), surroundings)?;
        let planned = self.monitor.zip(rings);
        let guard = planned
            .map(|(plan, rings)| plan.start(directory.socket(), (rings, held.pid()), &deciders));
        let mut guard = guard.transpose()?;
        let mut guaranteed = None;
        let mut recording = Recording::begin(&self.command, sources, monotonic_now());
        if let Some(writer) = &mut writer {
            let _ = writer.attach_document("run", &recording.to_json());
        }
        let released = monotonic_now();
        recording.start_ns = released.as_monotonic_ns();
        deciders.start().set(released);
        evaluations.borrow_mut().count_from(released);
        let running = held.release()?;
        unused.are_used();

        let mut scheduling = Scheduling::new(());
        if recording.hears_wakeups() {
            scheduling.expect_wakeups();
        }
        let mut statistics = SensorStatistics::default();
        let calibration = self.calibration;
        let mut meter =
            calibration.map(|known| Meter::new(known.heard_by(recording.kernel_active())));
        let costs = meter.as_ref().filter(|_| self.compensate).map(Meter::costs);
        let mut others = OtherThreads::new();
        let tree = (self.until == Until::AllEnded).then(Rc::<RefCell<ProcessTree>>::default);
        let mut followed = tree.as_ref().map(|tree| Shared(Rc::clone(tree)));
        let mut notes = Vec::new();
        let mut ended = released;
        let delays;
        {
            let mut accounts = Accounts::new(&mut scheduling, &mut statistics, costs);
            let mut all: Vec<&mut dyn Update> = vec![accounts.update(), &mut others];
            all.extend(meter.as_mut().map(|meter| meter as &mut dyn Update));
            all.extend(followed.as_mut().map(|tree| tree as &mut dyn Update));
            if let Some(writer) = &mut writer {
                all.push(writer);
            }
            if !evaluations.borrow().is_empty() {
                all.push(&mut shared);
            }
            all.extend(
                updates
                    .iter_mut()
                    .map(|update| &mut **update as &mut dyn Update),
            );
            all.push(plugins.set());
            let mut fanout = Fanout(all);
            let mut progress = self.progress.map(|begin| begin());
            let mut attendant = Attendant {
                running: &running,
                interrupts: &mut interrupts,
                reached: 0,
                hung_up: false,
                tree: tree.as_deref(),
                for_orphans: None,
            };
            let is_orphaned = || tree.as_ref().is_some_and(|it| it.borrow().is_orphaned());
            let wait = |longest| match is_orphaned() {
                // Its process is always ready then.
                true => std::thread::sleep(longest),
                false => running.wait(longest),
            };
            best_effort(&mut monitor, &mut fanout, monotonic_now, wait, |monitor| {
                let now = monotonic_now();
                for complaint in monitor.take_complaints() {
                    notes.push(complaint.to_string());
                }
                if let Some(progress) = &mut progress {
                    progress.show(
                        now.since(released),
                        monitor.elements(),
                        monitor.losses().missed(),
                    );
                }
                attendant.pass_on();
                evaluations
                    .borrow_mut()
                    .clock(programs.borrow().clock_segments());
                let goes_on = |tree: &RefCell<ProcessTree>| !tree.borrow_mut().has_ended(now);
                if running.has_ended() && !tree.as_deref().is_some_and(goes_on) {
                    ended = now;
                    if let Some(reactor) = &reactor {
                        // First, so that this session hears what is written to result sensors.
                        guaranteed = guard.take().map(Guard::stop);
                        reactor.settle();
                    }
                    // The program is a zombie now: its last numbers can still be read.
                    kernel.borrow_mut().finish();
                    return false;
                }
                true
            });
            if let Some(progress) = &mut progress {
                progress.clear();
            }
            drop(fanout);
            delays = accounts.finish();
        }
        let exit = running.reap()?;
        for stream in monitor.take_opened() {
            statistics.announce(&stream);
            if let Some(writer) = &mut writer {
                let _ = writer.open(&stream);
            }
        }
        notes.extend(
            monitor
                .take_complaints()
                .into_iter()
                .map(|complaint| complaint.to_string()),
        );
        let unheard = directory.take_unheard();
        recording.unheard = unheard.count;
        notes.extend(unheard.sentences);
        notes.extend(still_alive(&scheduling));
        notes.extend(warning);
        // The directory is still there, and so is what has not been evaluated.
        let guaranteed = guaranteed.or_else(|| guard.map(Guard::stop));
        let guaranteed = guaranteed.transpose().unwrap_or_else(|failure| {
            notes.push(failure.message);
            Some(GuaranteeReport::failed())
        });
        scheduling.finish(compensation::end(ended, delays.as_ref()));
        let others = others.names(scheduling.threads().iter().map(|thread| thread.tid));
        let (check, measured) = {
            let threads = other_threads::by_tid(&others).chain(metrics::names_of(&scheduling));
            let mut evaluations = evaluations.borrow_mut();
            evaluations.finish(ended, recording.unheard, threads)
        };
        // Behind everything that is decided.
        let reactions = match reactor.map(Reactor::stop).transpose() {
            Ok(reactions) => reactions,
            Err(failure) => {
                notes.push(failure.message);
                Some(ReactionsReport::failed())
            }
        };

        recording.end = Some(Ending {
            end_ns: ended.as_monotonic_ns(),
            exit,
        });
        recording.notes = notes;
        let updates = plugins.finish();
        if let Some(writer) = &mut writer {
            keep(
                writer,
                UPDATES,
                Some(&updates).filter(|all| !all.is_empty()),
            );
            keep(
                writer,
                OTHER_THREADS,
                Some(&others).filter(|all| !all.is_empty()),
            );
            keep(writer, CHECK, check.as_ref());
            keep(writer, METRICS, measured.as_ref());
            keep(writer, GUARANTEE, guaranteed.as_ref());
            keep(writer, REACTIONS, reactions.as_ref());
            keep(writer, CALIBRATION, meter.as_ref().map(Meter::calibration));
        }
        let trace = match (writer, &self.out) {
            (Some(writer), Some(out)) => close_trace(
                writer,
                out,
                &mut recording,
                programs.borrow().clock_segments(),
            ),
            _ => TraceReport::default(),
        };
        let losses = monitor.losses();
        let found = Found {
            scheduling: &scheduling,
            statistics: &statistics,
            losses,
            meter: meter.as_ref(),
            compensation: delays
                .as_ref()
                .map(|delays| CompensationReport::of(delays, &recording)),
            trace,
        };
        let mut report = recording::report(&recording, &found);
        (report.check, report.metrics) = (check, measured);
        report.add_updates(updates);
        report.add_guarantee(guaranteed);
        report.reactions = reactions;
        report.add_other_threads(others);
        report.conclude();
        // The recording is finished, the page can be made again.
        drop(interrupts);
        Ok(Outcome {
            report,
            exit,
            out: self.out,
        })
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

/// Looks after the program while it runs: passes on signals.
struct Attendant<'a> {
    running: &'a Running,
    interrupts: &'a mut Interrupts,
    // How often the user has asked for the end.
    reached: u32,
    // Whether SIGHUP was among these requests.
    hung_up: bool,
    // Where processes are waited for that the program has left behind.
    tree: Option<&'a RefCell<ProcessTree>>,
    // What these have not been sent yet. A terminal reaches none that is in a session of its own.
    for_orphans: Option<Signal>,
}

impl Attendant<'_> {
    fn pass_on(&mut self) {
        for request in self.interrupts.take() {
            // A shell passes a hang-up on to its jobs, and the kernel repeats it when the shell ends.
            if request.signal == Signal::HUP && std::mem::replace(&mut self.hung_up, true) {
                continue;
            }
            self.reached += 1;
            let signal = match self.reached {
                1 => request.signal,
                2 => Signal::TERM,
                _ => Signal::KILL,
            };
            self.for_orphans = Some(signal);
            let ignored = request.signal == Signal::INT && self.running.ignores_interrupts();
            match self.reached {
                // A terminal sends its signals to the program as well.
                1 if request.reached_program && !ignored => {}
                1 if ignored => self.running.signal(Signal::TERM),
                _ => self.running.signal(signal),
            }
        }
        let orphans = self.tree.map(RefCell::borrow);
        let orphans = orphans.filter(|tree| tree.is_orphaned());
        if let (Some(tree), Some(signal)) = (orphans, self.for_orphans) {
            self.for_orphans = None;
            for pid in tree.processes() {
                if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
                    // One that has ended meanwhile does not mind.
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}

/// Nobody knows when all processes have ended.
fn no_tree(why: &str) -> SessionError {
    let sentence = format!(
        "--until all-ended knows the program's processes by kernel sensors, and there are none ({why}); leave it out, or see \
         `overhear doctor`"
    );
    SessionError::new(ErrorKind::Unavailable, sentence)
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
    let (active, sentence) = match overhear_directory::sensor_clock() {
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
        sentence: format!(
            "program sensors: an embedded directory listens; stamps come from {sentence}"
        ),
    }
}
