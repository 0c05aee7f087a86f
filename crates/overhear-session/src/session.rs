// SPDX-License-Identifier: MIT OR Apache-2.0
//! A session: one program, run and observed from its first instruction to its end.

mod outcome;
mod run;
pub(crate) mod signal_forwarder;
mod trace_files;

use std::ffi::OsString;
use std::path::PathBuf;

use overhear_kernel::Backend;
use overhear_metrics::automaton::Metric;
use overhear_metrics::verdict::Constraint;

use crate::budget::BudgetSettings;
use crate::calibrate::Calibration;
use crate::configured_monitor::MonitorPlan;
use crate::disk_limits::DiskLimits;
use crate::interrupts::RequestQueue;
use crate::notices::Notices;
use crate::progress::BeginProgress;
use crate::reactions::Reactions;
use crate::sampling::SamplingRequest;
use crate::updates::UpdateSpecification;

pub use outcome::Outcome;
pub use trace_files::{close_trace, create_error, create_trace};

pub use crate::named_sensors::NamedSensors;
pub use overhear_kernel::Backend as KernelBackend;
pub use overhear_kernel::{Probe, Sensor as KernelSensor};

/// Memory of all sensors that declare no rate, in bytes. A declared rate determines the memory of
/// its sensor.
const UNRATED_BYTES: u64 = 48 << 20;

/// The end of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Until {
    /// The end of the program, even if its children go on.
    #[default]
    Ended,
    /// The end of the program and of all processes that descend from it.
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
    notices: Notices,
    stdout_to_stderr: bool,
    socket: Option<PathBuf>,
    constraints: Vec<Constraint>,
    metrics: Vec<Metric>,
    updates: Vec<UpdateSpecification>,
    monitor: Option<MonitorPlan>,
    reactions: Reactions,
    calibration: Option<Calibration>,
    compensate: bool,
    budget: Option<BudgetSettings>,
    limits: DiskLimits,
    until: Until,
    requests: Option<RequestQueue>,
    samplers: Vec<SamplingRequest>,
}

/// A program that is run and observed.
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
            notices: Notices::default(),
            stdout_to_stderr: false,
            socket: None,
            constraints: Vec::new(),
            metrics: Vec::new(),
            updates: Vec::new(),
            monitor: None,
            reactions: Reactions::default(),
            calibration: None,
            compensate: false,
            budget: None,
            limits: DiskLimits::default(),
            until: Until::default(),
            requests: None,
            samplers: Vec::new(),
        }
    }
}

impl SessionBuilder {
    /// Keeps the recording in this directory ([`Outcome::out`]).
    #[must_use]
    pub fn out(mut self, directory: Option<PathBuf>) -> Self {
        self.out = directory;
        self
    }

    /// Sets the source of kernel events.
    #[must_use]
    pub fn kernel(mut self, backend: Backend) -> Self {
        self.kernel = backend;
        self
    }

    /// Adds kernel sensors to those that constraints and metrics require. If a named one cannot be
    /// recorded, the program is not run.
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

    /// Adds functions, static probes and points of the kernel as sensors.
    #[must_use]
    pub fn probes(mut self, probes: Vec<Probe>) -> Self {
        self.probes = probes;
        self
    }

    /// Shows the progress of the run.
    #[must_use]
    pub fn progress(mut self, begin: Option<BeginProgress>) -> Self {
        self.progress = begin;
        self
    }

    /// Shows messages about violated constraints and of reactions while the program runs.
    #[must_use]
    pub fn notices(mut self, notices: Notices) -> Self {
        self.notices = notices;
        self
    }

    /// Sends the program's standard output to standard error.
    #[must_use]
    pub fn stdout_to_stderr(mut self, yes: bool) -> Self {
        self.stdout_to_stderr = yes;
        self
    }

    /// Sets the socket of the directory, so that other monitors can attach. By default it is in a
    /// private folder.
    #[must_use]
    pub fn socket(mut self, socket: Option<PathBuf>) -> Self {
        self.socket = socket;
        self
    }

    /// Adds constraints. The first offence of each is shown at once ([`Self::notices`]); the
    /// verdicts are in the report.
    #[must_use]
    pub fn constraints(mut self, constraints: Vec<Constraint>) -> Self {
        self.constraints = constraints;
        self
    }

    /// Adds metrics to the report.
    #[must_use]
    pub fn metrics(mut self, metrics: Vec<Metric>) -> Self {
        self.metrics = metrics;
        self
    }

    /// Adds updates of plug-ins.
    #[must_use]
    pub fn updates(mut self, updates: Vec<UpdateSpecification>) -> Self {
        self.updates = updates;
        self
    }

    /// Adds the monitors of an `overhear.toml`, which run in parallel with that of the session.
    #[must_use]
    pub fn monitor(mut self, plan: Option<MonitorPlan>) -> Self {
        self.monitor = plan;
        self
    }

    /// Adds reactions, which are carried out while the program runs.
    #[must_use]
    pub fn reactions(mut self, reactions: Reactions) -> Self {
        self.reactions = reactions;
        self
    }

    /// Sets the costs of sensors on this machine, for the monitoring overhead in the report.
    #[must_use]
    pub fn calibration(mut self, calibration: Option<Calibration>) -> Self {
        self.calibration = calibration;
        self
    }

    /// Subtracts the monitoring overhead from the times of the report. It requires a calibration.
    #[must_use]
    pub fn compensate(mut self, compensate: bool) -> Self {
        self.compensate = compensate;
        self
    }

    /// Keeps the monitoring overhead of the program at a target, by switching its sensors.
    #[must_use]
    pub fn budget(mut self, budget: Option<BudgetSettings>) -> Self {
        self.budget = budget;
        self
    }

    /// Limits the recording on the disk. What is left out of it is counted there.
    #[must_use]
    pub fn limits(mut self, limits: DiskLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the end of the session; by default it is that of the program. [`Until::AllEnded`]
    /// requires kernel sensors.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.until = until;
        self
    }

    /// Adds samplers. If one is not possible, the program is not run.
    #[must_use]
    pub fn samplers(mut self, samplers: Vec<SamplingRequest>) -> Self {
        self.samplers = samplers;
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
