// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a run as a user gives them: names and files, resolved into the settings of a
//! session.
//!
//! The command line and Python fill in a [`RunRequest`]; [`RunRequest::resolve`] reads the files
//! that it names.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use overhear_budget::Overhead;

use crate::calibrate::{self, Calibration};
use crate::config::{self, constraints, probes, Execution};
use crate::configured_monitor::MonitorPlan;
use crate::disk_limits::{self, DiskLimits};
use crate::error::SessionError;
use crate::metrics;
use crate::reactions::Reactions;
use crate::sampling::SamplingRequest;
use crate::session::{KernelBackend, NamedSensors, Probe, Session, SessionBuilder, Until};
use crate::updates::UpdateSpecification;

/// The options of a run. Each field is the option of `overhear run` of that name.
#[derive(Clone, Debug, Default)]
pub struct RunRequest {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The folder that keeps the recording.
    pub out: Option<PathBuf>,
    /// Source of kernel events.
    pub kernel: KernelBackend,
    /// Kernel sensors besides scheduling. Each named one is required.
    pub kernel_sensors: NamedSensors,
    /// Functions, static probes and points of the kernel that become sensors, besides those of the
    /// files.
    pub probes: Vec<Probe>,
    /// The socket at which the directory listens.
    pub socket: Option<PathBuf>,
    /// The file with the constraints; without it, those of `config`.
    pub check: Option<PathBuf>,
    /// The file with the monitor, its reactions and further metrics and probes.
    pub config: Option<PathBuf>,
    /// Whether execution times are measured instead of guaranteed; it needs `config`.
    pub measure_wcet: bool,
    /// Whether plug-ins, programs and functions that the files name may run.
    pub execution: Execution,
    /// Metrics: names of built-in ones, or files.
    pub metrics: Vec<String>,
    /// Updates of plug-ins.
    pub updates: Vec<UpdateSpecification>,
    /// Whether sensors of programs that are not needed are disabled.
    pub disable_unused: bool,
    /// The file with the calibration; without it, the one kept for this machine.
    pub calibration: Option<PathBuf>,
    /// Whether the monitoring overhead is subtracted from the times of the report.
    pub compensate: bool,
    /// The monitoring overhead to keep; without it, that of `config`.
    pub budget: Option<Overhead>,
    /// Limits of the recording on the disk; each one that is missing is that of `config`.
    pub limits: DiskLimits,
    /// The end of the run.
    pub until: Until,
    /// Samplers, besides those of `config`.
    pub samplers: Vec<SamplingRequest>,
}

/// A run whose files are read.
#[derive(Debug)]
pub struct ResolvedRun {
    /// The settings of its session.
    pub session: SessionBuilder,
    /// The calibration that the session uses.
    pub calibration: Option<Calibration>,
    /// Whether the run has constraints, and its report verdicts.
    pub has_constraints: bool,
}

impl RunRequest {
    /// Reads the files of the request. `warn` is called with a message about each part of them that
    /// has no effect.
    ///
    /// # Errors
    /// [`SessionError`] if a file or a name cannot be used.
    pub fn resolve(self, mut warn: impl FnMut(&str)) -> Result<ResolvedRun, SessionError> {
        let config = self.config.as_deref();
        let constraints = match (&self.check, config) {
            (Some(file), _) => constraints::read(file)?,
            (None, Some(file)) => constraints::read_any(file)?,
            (None, None) => Vec::new(),
        };
        let mut files: Vec<&Path> = config.into_iter().chain(self.check.as_deref()).collect();
        files.dedup();
        for file in &files {
            self.execution.check(file)?;
        }
        let reactions = Reactions::read(&files, &constraints, self.execution)?;
        if let Some(message) = reactions.disabled() {
            warn(&message);
        }
        let plan = match config {
            // A file without a monitor names only metrics and constraints.
            Some(config) if self.measure_wcet || config::has_monitor(config)? => {
                Some(MonitorPlan::read(config, self.measure_wcet)?)
            }
            _ => None,
        };
        if let Some(warning) = plan.as_ref().and_then(|plan| plan.warning.as_ref()) {
            warn(warning);
        }
        let mut named = self.probes;
        for file in &files {
            let of_file = probes::read_any(file)?;
            // A probe that two files name is attached once.
            let new = of_file.into_iter().filter(|probe| !named.contains(probe));
            let new: Vec<Probe> = new.collect();
            named.extend(new);
        }
        let samplers = config::samplers::requested(self.samplers, config)?;
        let calibration = calibrate::load_calibration(self.calibration.as_deref())?;
        let budget = config::budget::requested(self.budget, config)?;
        let of_file = config.map(config::recording::read_any).transpose()?;
        let of_file = of_file.unwrap_or_default();
        if !of_file.is_none() && self.out.is_none() {
            warn("[recording] has no effect, because the run keeps no recording");
        }
        let limits = disk_limits::chosen(self.limits, of_file);
        let has_constraints = !constraints.is_empty();
        let session = Session::builder(self.command)
            .metrics(metrics::selected(&self.metrics, config)?)
            .monitor(plan)
            .reactions(reactions)
            .constraints(constraints)
            .disable_unused(self.disable_unused)
            .out(self.out)
            .kernel(self.kernel)
            .sensors(self.kernel_sensors)
            .probes(named)
            .calibration(calibration.clone())
            .compensate(self.compensate)
            .budget(budget)
            .limits(limits)
            .socket(self.socket)
            .updates(self.updates)
            .until(self.until)
            .samplers(samplers);
        Ok(ResolvedRun {
            session,
            calibration,
            has_constraints,
        })
    }
}
