// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear admit`: admission of the monitor that a file describes, before it runs.
//!
//! The module `admission` decides from the file and the facts of the machine. Then this module
//! tries what `overhear run` would do before its program starts.

use std::path::Path;

use overhear_monitor::scheduler::query_kernel;

use crate::admission::{decide, load_usable_plugins, resolve};
pub use crate::admission::{AdmissionReport, CopyingAdmission, SensorAdmission, UpdateAdmission};
use crate::config::{self, constraints, samplers, Config, Execution};
use crate::configured_monitor::missing_for_guarantee;
use crate::error::{ErrorKind, SessionError};
use crate::reactions::Reactions;
use crate::sampling;
pub use crate::sampling::SamplerAdmission;

/// Admits the monitor that the file `path` describes, on this machine. If it is admitted, sets a
/// CPU apart, reserves CPU time and creates the rings of kernel sensors, as `overhear run` would,
/// and gives all of it back. Reads the sources of samplers, to measure what a sample takes.
///
/// # Errors
/// [`SessionError`] for a file that cannot be read or is invalid. A refusal is no error.
pub fn admit(path: &Path, execution: Execution) -> Result<AdmissionReport, SessionError> {
    execution.check(path)?;
    let samplers = sampling::admit(&samplers::read_any(path)?)?;
    if !samplers.is_empty() && !config::has_monitor(path)? {
        return Ok(AdmissionReport::of_samplers(samplers));
    }
    let config = Config::read(path)?;
    // Reports the errors that `run` would report.
    Reactions::read(&[path], &constraints::read_any(path)?, execution)?;
    let monitor = resolve(&config, path, &load_usable_plugins(&config, path)?)?;
    let admitted = decide(&monitor);
    let mut report = admitted.report;
    report.samplers = samplers;
    let Some(terms) = admitted.terms else {
        return Ok(report);
    };
    // A reservation on a dedicated CPU is tried below, on that CPU.
    if !monitor.has_dedicated_cpu {
        report.set_kernel_verdict(query_kernel(terms.reservation));
    }
    if !report.accepted {
        return Ok(report);
    }
    match missing_for_guarantee(path) {
        Ok(lacking) => report.lacking = lacking,
        Err(error) if error.kind == ErrorKind::Refused => {
            report.accepted = false;
            report.reason = error.message;
        }
        Err(error) => return Err(error),
    }
    if monitor.has_dedicated_cpu && report.accepted && report.lacking.is_none() {
        report.kernel = "accepted";
    }
    Ok(report)
}
