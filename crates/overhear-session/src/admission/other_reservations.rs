// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reservations for the updates of a file that are not guaranteed: shares of a CPU, and the copying
//! for buffered updates.

use std::path::Path;

use overhear_admission::{DeadlineReservation, JobEnd, KernelLimits};
use overhear_monitor::executor::share_of_cpu;

use super::error::MonitorError;
use super::latency_request::{lateness_of, LatencyRequest};
use super::sensor::{self, loads, ResolvedSensor, WcetRule};
use super::{choose_with_reading, nanos, AdmissionReport, CopyingAdmission, Machine};
use crate::config::selection::{ExecutorKind, Selection};
use crate::config::{Config, LevelConfig};
use crate::error::{ErrorKind, SessionError};

/// The reservations for the updates of one file that have no guarantee.
#[derive(Clone, Debug)]
pub(super) struct OtherReservations {
    /// Whether guaranteed updates run at the same time.
    has_guaranteed: bool,
    /// The share of a CPU for the executor `bandwidth`.
    share: Option<DeadlineReservation>,
    /// The copying for the executor `buffered`.
    copying: Option<Copying>,
}

/// A monitor that reads all elements once per period for buffered updates, and evaluates none.
#[derive(Clone, Debug)]
struct Copying {
    cpus: u32,
    latency_request: LatencyRequest,
    sensors: Vec<ResolvedSensor>,
}

impl OtherReservations {
    pub(super) fn of(config: &Config, base: &Path, cpus: u32) -> Result<Self, MonitorError> {
        let monitor = &config.monitor;
        let bandwidth = config.selection(ExecutorKind::Bandwidth);
        let buffered = config.selection(ExecutorKind::Buffered);
        let has_guaranteed = config.selection(ExecutorKind::Guaranteed).is_some();
        let reserves = bandwidth.is_some() || buffered.is_some();
        let is_exclusive =
            monitor.level == LevelConfig::Exclusive && monitor.dedicated_cpu.is_none();
        if has_guaranteed && reserves && is_exclusive {
            return Err(MonitorError::ReservationsBesidesExclusive);
        }
        let copying = buffered.map(|selection| Copying::of(config, base, cpus, &selection));
        Ok(Self {
            has_guaranteed,
            // A file with a share that cannot be reserved was refused earlier.
            share: bandwidth.and_then(|_| share_of_cpu(monitor.cpu_percent)),
            copying: copying.transpose()?,
        })
    }

    /// Adds these reservations to those that are present if guaranteed updates run at the same
    /// time, and the copying to the report.
    ///
    /// # Errors
    /// A message, if the copying cannot be admitted.
    pub(super) fn reserve(
        &self,
        report: &mut AdmissionReport,
        present: &mut Vec<DeadlineReservation>,
    ) -> Result<(), String> {
        if self.has_guaranteed {
            present.extend(self.share);
        }
        if let Some(copying) = &self.copying {
            let admission = copying.admit()?;
            if self.has_guaranteed {
                present.push(admission.reservation);
            }
            report.copying = Some(admission);
        }
        Ok(())
    }
}

impl Copying {
    fn of(
        config: &Config,
        base: &Path,
        cpus: u32,
        selection: &Selection,
    ) -> Result<Self, MonitorError> {
        // The cost of an element is the time to copy it, which its sensor states.
        let sensors = sensor::resolve(config, base, selection, WcetRule::Ignored)?;
        let total = lateness_of(config).total();
        let total = total.map_err(MonitorError::CopyingLateness)?;
        let latency_request = LatencyRequest::of(config, selection, total)?;
        Ok(Self {
            cpus,
            latency_request,
            sensors,
        })
    }

    /// # Errors
    /// A message, if it cannot be admitted.
    fn admit(&self) -> Result<CopyingAdmission, String> {
        let LatencyRequest {
            latency,
            entry,
            lateness,
            request,
        } = &self.latency_request;
        let refused = |error: &dyn std::fmt::Display| {
            format!(
                "{entry} `latency` is {latency}, within which elements are to be copied: {error}"
            )
        };
        let choice = choose_with_reading(&loads(&self.sensors), request);
        let choice = choice.map_err(|error| refused(&error))?;
        let reservation = DeadlineReservation::of_plan(&choice, *lateness, JobEnd::Sleep);
        let reservation = reservation.map_err(|error| refused(&error))?;
        let admitted = KernelLimits::usual(self.cpus).admit(&[reservation]);
        admitted.map_err(|error| refused(&error))?;
        Ok(CopyingAdmission {
            period_ns: reservation.period.as_ns(),
            deadline_ns: reservation.deadline.as_ns(),
            runtime_ns: reservation.runtime.as_ns(),
            utilisation: reservation.runtime.as_ns() as f64 / reservation.period.as_ns() as f64,
            latency_ns: nanos(choice.latency),
            reservation,
        })
    }
}

/// The reservation of the copying for the buffered updates of a file that was read from `path`.
///
/// # Errors
/// [`SessionError`]: the file is invalid ([`ErrorKind::Usage`]), or it cannot be admitted
/// ([`ErrorKind::Refused`]).
pub(crate) fn copying_of(
    config: &Config,
    path: &Path,
) -> Result<DeadlineReservation, SessionError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let selection = config.selection(ExecutorKind::Buffered);
    let selection = selection.unwrap_or_else(|| config.full_selection());
    let cpus = Machine::local().cpus_for(config);
    let copying = Copying::of(config, base, cpus, &selection);
    let copying = copying.map_err(|error| error.in_file(path))?;
    let admission = copying.admit();
    let admission = admission.map_err(|refusal| SessionError::new(ErrorKind::Refused, refusal))?;
    Ok(admission.reservation)
}
