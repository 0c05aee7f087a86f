// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session: one program, run and listened to from its first instruction to its end.

mod keeping;
mod outcome;
mod run;
mod signal_forwarder;

use std::ffi::OsString;
use std::path::PathBuf;

use overhear_kernel::Backend;
use overhear_metrics::automaton::Metric;
use overhear_metrics::verdict::Constraint;

use crate::calibrate::Calibration;
use crate::configured_monitor::MonitorPlan;
use crate::interrupts::RequestQueue;
use crate::progress::BeginProgress;
use crate::reactions::Reactions;
use crate::updates::UpdateSpecification;

pub use keeping::{close_trace, create_trace, keep, uncreated};
pub use outcome::Outcome;

pub use crate::named_sensors::NamedSensors;
pub use overhear_kernel::Backend as KernelBackend;
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
    kernel: Backend,
    sensors: NamedSensors,
    disable_unused: bool,
    probes: Vec<Probe>,
    progress: Option<BeginProgress>,
    stdout_to_stderr: bool,
    socket: Option<PathBuf>,
    constraints: Vec<Constraint>,
    metrics: Vec<Metric>,
    updates: Vec<UpdateSpecification>,
    monitor: Option<MonitorPlan>,
    reactions: Reactions,
    calibration: Option<Calibration>,
    compensate: bool,
    until: Until,
    requests: Option<RequestQueue>,
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
            kernel: Backend::Auto,
            sensors: NamedSensors::default(),
            disable_unused: false,
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
            requests: None,
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
    pub fn kernel(mut self, backend: Backend) -> Self {
        self.kernel = backend;
        self
    }

    /// Which kernel sensors, as for `overhear_kernel::Kernel`, besides those that constraints and
    /// metrics require. Those that are named must be heard, or nothing is run.
    #[must_use]
    pub fn sensors(mut self, sensors: NamedSensors) -> Self {
        self.sensors = sensors;
        self
    }

    /// Disables sensors of programs while no constraint, metric, update or monitor needs them.
    /// Wake-ups are recorded only if one of those needs them, or if [`Self::sensors`] names them.
    #[must_use]
    pub fn disable_unused(mut self, disable: bool) -> Self {
        self.disable_unused = disable;
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
    pub fn monitor(mut self, plan: Option<MonitorPlan>) -> Self {
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

    /// When the session ends; by default with the program. All processes are known by kernel
    /// sensors alone.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Takes requests to end from this queue, instead of SIGINT, SIGTERM and SIGHUP of this
    /// process.
    #[must_use]
    pub fn requests(mut self, queue: Option<RequestQueue>) -> Self {
        self.requests = queue;
        self
    }
}
