// SPDX-License-Identifier: MIT OR Apache-2.0
//! Carries out decisions in a thread of its own, at normal priority, in the order of their times.
//!
//! The thread polls for decisions every [`POLL_INTERVAL`], so that an evaluating thread never has
//! to wake it. Programs run in parallel with each other and with the thread; functions of shared
//! objects run in it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overhear::DynamicSensor;
use overhear_directory::client::SensorRequest;
use overhear_event::{FieldKind, TypeSchema, WriterKind};
use overhear_monitor::executor::UpdateIndex;
use overhear_monitor::plugin::ReactionContext;
use overhear_monitor::reaction::{decider, Condition, Decider, Decision, Decisions, Trigger};
use rustix::io::Errno;
use rustix::process::{pidfd_open, pidfd_send_signal, Pid, PidfdFlags};

use super::action::{self, Action};
use super::report::{ReactionReport, ReactionsReport};
use super::Reactions;
use crate::error::{ErrorKind, SessionError};
use crate::format::printable;
use crate::notices::Notices;
use crate::run_start::RunStart;
use crate::signals::Inherited;
use crate::trust;

/// Interval between two polls for decisions.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Limit of the pending decisions of one decider. At a thousand polls per second it is enough for a
/// million decisions per second.
const MAX_PENDING_DECISIONS: u16 = 1023;
/// Limit of the programs that run at the same time.
const MAX_PROGRAMS: usize = 16;
/// Limit of the time for which the end of a run waits for programs that reactions have started.
const PROGRAM_END_TIMEOUT: Duration = Duration::from_secs(2);

/// The queues of decisions, one for each decider. The reactor reads them; a new analysis adds one.
#[derive(Clone, Debug, Default)]
struct Queues(Arc<Mutex<Vec<Decisions>>>);

impl Queues {
    /// A decider with a queue; `None` without conditions.
    fn decider(&self, conditions: Vec<Condition>) -> Option<Decider> {
        if conditions.is_empty() {
            return None;
        }
        let (decider, decisions) = decider(conditions, MAX_PENDING_DECISIONS);
        self.lock().push(decisions);
        Some(decider)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Decisions>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates the deciders of analyses.
#[derive(Clone, Debug)]
pub(crate) struct Deciders {
    reactions: Reactions,
    queues: Queues,
    start: RunStart,
}

impl Deciders {
    pub(crate) fn new(reactions: Reactions) -> Self {
        Self {
            reactions,
            queues: Queues::default(),
            start: RunStart::default(),
        }
    }

    /// The time at which the program is released.
    pub(crate) const fn start(&self) -> &RunStart {
        &self.start
    }

    /// The decider for constraints.
    pub(crate) fn of_constraints(&self) -> Option<Decider> {
        let is_wanted = |trigger| matches!(trigger, Trigger::Violated | Trigger::Inconclusive);
        self.queues.decider(self.reactions.conditions(is_wanted))
    }

    /// The decider for the updates and sensors of a monitor.
    pub(crate) fn of_monitor(&self) -> Option<Decider> {
        let is_wanted = |trigger| {
            matches!(
                trigger,
                Trigger::Overrun | Trigger::Stream | Trigger::Missed
            )
        };
        self.queues.decider(self.reactions.conditions(is_wanted))
    }

    /// The decider for requests of an update.
    pub(crate) fn of_update(&self, update: UpdateIndex) -> Option<Decider> {
        let mut conditions = self
            .reactions
            .conditions(|trigger| trigger == Trigger::Update);
        conditions.retain(|it| it.of.as_ref().is_none_or(|of| of.contains(&update.0)));
        self.queues.decider(conditions)
    }
}

/// Context of the actions: where result sensors are registered, and the observed program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ActionContext<'a> {
    /// The directory in which result sensors are registered.
    pub(crate) socket: &'a Path,
    /// The program that is observed.
    pub(crate) pid: u32,
}

/// The thread that carries out reactions.
#[derive(Debug)]
pub(crate) struct Reactor {
    // Requests a reply after all pending decisions are carried out. Dropping it ends the thread.
    flushes: Sender<Sender<()>>,
    thread: JoinHandle<ReactionsReport>,
}

impl Reactor {
    /// Starts the thread; `None` without reactions.
    ///
    /// # Errors
    /// [`SessionError`] if a result sensor cannot be registered, or the thread cannot be started.
    pub(crate) fn start(
        deciders: Deciders,
        context: ActionContext<'_>,
        notices: Notices,
    ) -> Result<Option<Self>, SessionError> {
        let Deciders {
            reactions,
            queues,
            start,
        } = deciders;
        if reactions.is_empty() {
            return Ok(None);
        }
        let pid = Pid::from_raw(context.pid.cast_signed());
        let mut state = State {
            reports: reactions.all.iter().map(report_of).collect(),
            sensors: BTreeMap::new(),
            files: BTreeMap::new(),
            programs: Vec::new(),
            pid: context.pid,
            program: pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            reactions,
            queues,
            start,
            notices,
        };
        state.register(context.socket)?;
        let (flushes, requests) = channel();
        let thread = std::thread::Builder::new()
            .name("oh-reactor".to_string())
            .spawn(move || state.run(&requests))
            .map_err(|error| {
                let message = format!("cannot start a thread for reactions: {error}");
                SessionError::new(ErrorKind::Unavailable, message)
            })?;
        Ok(Some(Self { flushes, thread }))
    }

    /// Waits until all decisions that were made until now are carried out.
    pub(crate) fn flush(&self) {
        let (reply, done) = channel();
        // If the thread has failed, `stop` returns the error.
        let _ = self.flushes.send(reply);
        let _ = done.recv();
    }

    /// Carries out all decisions that were made until now, and ends.
    pub(crate) fn stop(self) -> Result<ReactionsReport, SessionError> {
        drop(self.flushes);
        self.thread.join().map_err(|_| {
            let message =
                "the thread that carries out reactions has failed: a function of a shared \
                            object panicked, or this is a bug of overhear";
            SessionError::new(ErrorKind::Unavailable, message)
        })
    }
}

fn report_of(reaction: &super::Reaction) -> ReactionReport {
    let on = reaction.triggers.iter();
    ReactionReport {
        name: reaction.name.to_string_lossy().into_owned(),
        on: on.map(|(trigger, _)| trigger.name().to_string()).collect(),
        ..ReactionReport::default()
    }
}

/// A program that was started.
struct Program {
    // Index of its reaction.
    index: usize,
    name: String,
    child: Child,
    // Whether its reaction was counted as carried out: no other action of it had failed.
    counted: bool,
}

/// The state of the thread.
struct State {
    reactions: Reactions,
    queues: Queues,
    start: RunStart,
    notices: Notices,
    reports: Vec<ReactionReport>,
    sensors: BTreeMap<String, DynamicSensor>,
    files: BTreeMap<PathBuf, File>,
    programs: Vec<Program>,
    pid: u32,
    // The observed program, independent of the reuse of its id; `None` if the kernel is too old.
    program: Option<OwnedFd>,
}

impl State {
    /// Registers the result sensors.
    fn register(&mut self, socket: &Path) -> Result<(), SessionError> {
        for reaction in &self.reactions.all {
            for action in &reaction.actions {
                let Action::Write(id) = action else { continue };
                if self.sensors.contains_key(id) {
                    continue;
                }
                let sensor = result_sensor(socket, id).map_err(|error| {
                    let name = reaction.name.to_string_lossy();
                    let message = format!("reaction `{name}`: its sensor `{id}`: {error}");
                    SessionError::new(ErrorKind::Unavailable, message)
                })?;
                self.sensors.insert(id.clone(), sensor);
            }
        }
        Ok(())
    }

    fn run(mut self, requests: &Receiver<Sender<()>>) -> ReactionsReport {
        loop {
            let request = requests.recv_timeout(POLL_INTERVAL);
            // Decisions from before the release wait for it: there is no program to react upon yet.
            let is_idle = matches!(request, Err(RecvTimeoutError::Timeout));
            if !is_idle || self.start.get().is_some() {
                self.poll();
            }
            match request {
                Ok(reply) => drop(reply.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let ended = Instant::now();
        while !self.programs.is_empty() && ended.elapsed() < PROGRAM_END_TIMEOUT {
            std::thread::sleep(POLL_INTERVAL);
            self.reap();
        }
        let lost = self.queues.lock().iter().map(Decisions::lost).sum();
        ReactionsReport {
            lost,
            reactions: self.reports,
        }
    }

    fn poll(&mut self) {
        let mut all = Vec::new();
        for decisions in self.queues.lock().iter_mut() {
            decisions.take(|decision| all.push(decision));
        }
        // Each queue is sorted by time.
        all.sort_by_key(|decision| decision.at);
        for decision in &all {
            self.carry_out(decision);
        }
        self.reap();
    }

    fn carry_out(&mut self, decision: &Decision) {
        let index = decision.reaction.0;
        let Some(reaction) = self.reactions.all.get(index).cloned() else {
            return;
        };
        let start = self.start.get().unwrap_or_default();
        let message = self.reactions.names.message(decision, start);
        let measure = decision.occurrence.measure();
        let before = self.programs.len();
        let mut failure = None;
        for action in &reaction.actions {
            if let Err(error) = self.act(index, &reaction, action, decision, &message) {
                failure.get_or_insert(error);
            }
        }
        let report = &mut self.reports[index];
        let at = decision.at.as_monotonic_ns();
        report.first_ns.get_or_insert(at);
        report.last_ns = Some(at);
        if report.first.is_none() {
            report.first = Some(message);
            (report.first_observed, report.first_bound) = (measure.observed, measure.bound);
        }
        // The programs of this reaction. `reap` may have removed earlier ones.
        let started = before.min(self.programs.len());
        for program in &mut self.programs[started..] {
            program.counted = failure.is_none();
        }
        match failure {
            None => report.carried_out += 1,
            Some(error) => {
                report.failed += 1;
                report.failure.get_or_insert(error);
            }
        }
    }

    fn act(
        &mut self,
        index: usize,
        reaction: &super::Reaction,
        action: &Action,
        decision: &Decision,
        message: &str,
    ) -> Result<(), String> {
        let name = reaction.name.to_string_lossy();
        match action {
            Action::Notify => {
                self.notices.show(&format!("{name}: {message}"));
                Ok(())
            }
            Action::Append(path) => {
                let line = format!("{}\n", printable(&format!("{name}: {message}")));
                self.append(path, &line)
                    .map_err(|error| format!("cannot write {}: {error}", path.display()))
            }
            Action::Run(program) => self.start(index, program, decision, message),
            Action::Signal(signal, word) => {
                let sent = match &self.program {
                    Some(program) => pidfd_send_signal(program, *signal),
                    None => Err(Errno::NOSYS),
                };
                // It is no error if the program has ended.
                let sent = match sent {
                    Err(Errno::SRCH) => Ok(()),
                    other => other,
                };
                sent.map_err(|error| format!("cannot send {word} to the program: {error}"))
            }
            Action::Call(function) => {
                let context = ReactionContext {
                    name: &reaction.name,
                    of: self.reactions.names.name(&decision.occurrence),
                    message,
                };
                function.call(decision, &context);
                Ok(())
            }
            Action::Write(id) => match self.sensors.get_mut(id) {
                Some(sensor) => {
                    let written = sensor.write(&payload(decision));
                    written.map_err(|error| error.to_string())
                }
                None => Err(format!("sensor `{id}` is not registered")),
            },
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a log that the configuration names"
    )]
    fn append(&mut self, path: &Path, line: &str) -> std::io::Result<()> {
        if !self.files.contains_key(path) {
            let file = File::options().append(true).create(true).open(path)?;
            self.files.insert(path.to_path_buf(), file);
        }
        match self.files.get_mut(path) {
            Some(file) => file.write_all(line.as_bytes()),
            None => Ok(()),
        }
    }

    fn start(
        &mut self,
        index: usize,
        program: &action::Program,
        decision: &Decision,
        message: &str,
    ) -> Result<(), String> {
        let name = program.path.display().to_string();
        if self.programs.len() >= MAX_PROGRAMS {
            self.reap();
        }
        if self.programs.len() >= MAX_PROGRAMS {
            return Err(format!(
                "{name} is not started: {MAX_PROGRAMS} programs of reactions are running"
            ));
        }
        let occurrence = &decision.occurrence;
        let measure = occurrence.measure();
        let mut command = Command::new(&program.path);
        let inherited = Inherited::get();
        // SAFETY: between fork and exec, it makes only system calls.
        unsafe {
            command.pre_exec(move || {
                inherited.restore();
                Ok(())
            });
        }
        command
            .args(&program.arguments)
            .current_dir(&program.folder)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| is_inherited(name)))
            .env("PATH", trust::search_path())
            .env("OVERHEAR_REACTION", &self.reports[index].name)
            .env("OVERHEAR_ON", occurrence.trigger().name())
            .env("OVERHEAR_OF", self.reactions.names.name(occurrence))
            .env("OVERHEAR_MESSAGE", message)
            .env("OVERHEAR_AT_NS", decision.at.as_monotonic_ns().to_string())
            .env("OVERHEAR_COUNT", decision.count.to_string())
            .env("OVERHEAR_PID", self.pid.to_string())
            .stdin(Stdio::null());
        // The standard output of this process may carry a document.
        if let Ok(stderr) = rustix::io::dup(std::io::stderr()) {
            command.stdout(Stdio::from(stderr));
        }
        let numbers = [
            (
                "OVERHEAR_ELEMENT",
                occurrence.element().map(|it| it.to_string()),
            ),
            (
                "OVERHEAR_VALUE",
                occurrence.value().map(|it| it.to_string()),
            ),
            ("OVERHEAR_CODE", occurrence.code().map(|it| it.to_string())),
            (
                "OVERHEAR_OBSERVED",
                measure.observed.map(|it| it.to_string()),
            ),
            ("OVERHEAR_BOUND", measure.bound.map(|it| it.to_string())),
        ];
        for (variable, number) in numbers {
            match number {
                Some(number) => command.env(variable, number),
                None => command.env_remove(variable),
            };
        }
        let child = command.spawn();
        let child = child.map_err(|error| format!("{name} cannot be started: {error}"))?;
        self.programs.push(Program {
            index,
            name,
            child,
            counted: false,
        });
        Ok(())
    }

    /// Removes the programs that have ended, and counts those that failed.
    fn reap(&mut self) {
        let reports = &mut self.reports;
        self.programs.retain_mut(|program| {
            let name = &program.name;
            let failure = match program.child.try_wait() {
                Ok(None) => return true,
                Ok(Some(status)) if status.success() => return false,
                Ok(Some(status)) => format!("{name} ended with {status}"),
                Err(error) => format!("{name} cannot be waited for: {error}"),
            };
            let report = &mut reports[program.index];
            if program.counted {
                report.carried_out -= 1;
                report.failed += 1;
            }
            report.failure.get_or_insert(failure);
            false
        });
    }
}

/// Whether a program inherits this environment variable.
fn is_inherited(variable: &OsStr) -> bool {
    const INHERITED: [&str; 11] = [
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LC_ALL",
        "TZ",
        "TERM",
        "XDG_RUNTIME_DIR",
        "DBUS_SESSION_BUS_ADDRESS",
        "DISPLAY",
    ];
    INHERITED.iter().any(|name| variable == *name) || variable.as_bytes().starts_with(b"OVERHEAR_")
}

/// A sensor whose elements are reactions.
fn result_sensor(socket: &Path, id: &str) -> Result<DynamicSensor, String> {
    let schema = TypeSchema::builder("reaction")
        .field("reaction", FieldKind::U32, "")
        .field("on", FieldKind::U32, "")
        .field("of", FieldKind::U32, "")
        .field("code", FieldKind::U32, "")
        .field("count", FieldKind::U64, "")
        .field("element", FieldKind::U64, "")
        .field("value", FieldKind::I64, "")
        .field("called_ns", FieldKind::U64, "ns")
        .field("observed", FieldKind::F64, "")
        .field("bound", FieldKind::F64, "")
        .build();
    let request = SensorRequest {
        sensor: id.to_string(),
        instance: String::new(),
        schema: schema.map_err(|error| error.to_string())?,
        rate: None,
        capacity: 0,
        kind: WriterKind::Simple,
        lanes: 0,
    };
    let sensor = DynamicSensor::register_at(socket, request).map_err(|error| error.to_string())?;
    match sensor.not_connected_reason() {
        Some(reason) => Err(reason.to_string()),
        None => Ok(sensor),
    }
}

/// The payload of a decision, with the schema of [`result_sensor`].
fn payload(decision: &Decision) -> Vec<u8> {
    let occurrence = &decision.occurrence;
    let words = [
        decision.reaction.0 as u32,
        occurrence.trigger() as u32,
        occurrence.of() as u32,
        occurrence.code().unwrap_or(0),
    ];
    let mut payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    payload.extend(decision.count.to_ne_bytes());
    payload.extend(occurrence.element().unwrap_or(u64::MAX).to_ne_bytes());
    payload.extend(occurrence.value().unwrap_or(0).to_ne_bytes());
    payload.extend(decision.at.as_monotonic_ns().to_ne_bytes());
    let measure = occurrence.measure();
    for number in [measure.observed, measure.bound] {
        payload.extend(number.unwrap_or(f64::NAN).to_ne_bytes());
    }
    payload
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::CString;

    use overhear_event::Timestamp;
    use overhear_monitor::executor::SensorIndex;
    use overhear_monitor::reaction::{Decision, Occurrence, ReactionIndex};
    use rustix::process::{getpid, pidfd_open, PidfdFlags, Signal};

    use super::super::action::Program;
    use super::super::{Reaction, Reactions};
    use super::{Action, Notices, Queues, ReactionReport, RunStart, State};

    #[test]
    fn failing_program_reverts_its_own_count_only() {
        // It succeeds for the first decision alone.
        let words = ["-c", "test \"$OVERHEAR_COUNT\" = 1"].map(String::from);
        let reaction = Reaction {
            name: CString::new("both").unwrap(),
            triggers: Vec::new(),
            after: 1,
            once: false,
            actions: vec![
                Action::Signal(Signal::CONT, "CONT".to_string()),
                Action::Run(Program {
                    path: "/bin/sh".into(),
                    arguments: words.to_vec(),
                    folder: "/".into(),
                }),
            ],
        };
        let mut state = State {
            reactions: Reactions {
                all: vec![reaction],
                ..Reactions::default()
            },
            queues: Queues::default(),
            start: RunStart::default(),
            notices: Notices::default(),
            reports: vec![ReactionReport::default()],
            sensors: BTreeMap::new(),
            files: BTreeMap::new(),
            programs: Vec::new(),
            pid: std::process::id(),
            program: pidfd_open(getpid(), PidfdFlags::empty()).ok(),
        };
        if state.program.is_none() {
            println!("skipped: this kernel has no descriptors of processes");
            return;
        }
        let decide = |state: &mut State, count| {
            let sensor = SensorIndex(0);
            let occurrence = Occurrence::Missed {
                sensor,
                first: 0,
                missed: 1,
            };
            state.carry_out(&Decision {
                reaction: ReactionIndex(0),
                at: Timestamp::ZERO,
                count,
                occurrence,
            });
            while !state.programs.is_empty() {
                std::thread::yield_now();
                state.reap();
            }
            let report = &state.reports[0];
            (report.carried_out, report.failed)
        };
        assert_eq!(decide(&mut state, 1), (1, 0));
        // The signal fails at once, the program later: one decision that failed.
        state.program = None;
        assert_eq!(decide(&mut state, 2), (1, 1));
        // Only the program fails.
        state.program = pidfd_open(getpid(), PidfdFlags::empty()).ok();
        assert_eq!(decide(&mut state, 3), (1, 2));
    }
}
