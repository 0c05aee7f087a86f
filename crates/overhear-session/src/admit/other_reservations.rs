// SPDX-License-Identifier: MIT OR Apache-2.0
//! What other updates of the same file reserve beside the guaranteed ones: shares of a CPU, and the copying
//! for buffered updates.

use std::path::Path;

use overhear_admission::{DeadlineReservation, JobEnd};
use overhear_event::Nanos;
use overhear_monitor::executor::share_of_cpu;

use super::{
    choose_with_reading, entries, lateness_of, loads, nanos, wish_of, wished_latency,
    AdmissionReport, CopyingAdmission, Machine,
};
use crate::config::selection::{Runner, Selection};
use crate::config::{Config, Length, LevelConfig};
use crate::error::{ErrorKind, SessionError};

/// Adds what others of this file reserve to what is present, and to the report. The answer is a refusal
/// where the copying cannot be admitted.
///
/// # Errors
/// A sentence, for a file that makes no sense.
pub(super) fn reserve_others(
    config: &Config,
    base: &Path,
    machine: &Machine,
    report: &mut AdmissionReport,
    present: &mut Vec<DeadlineReservation>,
) -> Result<Option<String>, String> {
    let monitor = &config.monitor;
    let (bandwidth, buffered) = (
        config.selection(Runner::Bandwidth),
        config.selection(Runner::Buffered),
    );
    let is_beside = config.selection(Runner::Guaranteed).is_some();
    let reserves = bandwidth.is_some() || buffered.is_some();
    if is_beside
        && reserves
        && monitor.level == LevelConfig::Exclusive
        && monitor.dedicated_cpu.is_none()
    {
        return Err(
            "updates with the executors \"bandwidth\" and \"buffered\" reserve CPU time beside the guaranteed \
             ones, which have a CPU of their own; set one apart by `dedicated_cpu`, or give level \"shared\""
                .to_string(),
        );
    }
    if bandwidth.is_some() && is_beside {
        // A file with another share was refused.
        present.extend(share_of_cpu(monitor.cpu_percent));
    }
    let Some(selection) = buffered else {
        return Ok(None);
    };
    match copying(config, base, machine, &selection)? {
        Ok(admission) => {
            if is_beside {
                present.push(admission.reservation);
            }
            report.copying = Some(admission);
            Ok(None)
        }
        Err(refusal) => Ok(Some(refusal)),
    }
}

/// What copying the elements of these updates reserves: a monitor that reads everything that has come, once
/// per period, and evaluates nothing.
fn copying(
    config: &Config,
    base: &Path,
    machine: &Machine,
    selection: &Selection,
) -> Result<Result<CopyingAdmission, String>, String> {
    let mut alone = config.clone();
    for update in &mut alone.updates {
        // What an element costs is the copy, which its sensor has.
        update.wcet = Some(Length(Nanos::from_ns(1)));
    }
    let entries = entries(&alone, base, selection)?;
    let lateness = lateness_of(config);
    let total = lateness.total().map_err(|error| error.to_string())?;
    let (whose, wished) = wished_latency(config, selection)?;
    let refused = |error: &dyn std::fmt::Display| {
        format!("{whose} `latency` is {wished}, within which elements are to be copied: {error}")
    };
    let wish = wish_of(config, wished, total);
    let choice = match choose_with_reading(&loads(&entries), &wish) {
        Ok(choice) => choice,
        Err(error) => return Ok(Err(refused(&error))),
    };
    let reservation = match DeadlineReservation::of_plan(&choice, lateness, JobEnd::Sleep) {
        Ok(reservation) => reservation,
        Err(error) => return Ok(Err(refused(&error))),
    };
    if let Err(error) = overhear_admission::KernelLimits::usual(machine.cpus).admit(&[reservation])
    {
        return Ok(Err(refused(&error)));
    }
    Ok(Ok(CopyingAdmission {
        period_ns: reservation.period.as_ns(),
        deadline_ns: reservation.deadline.as_ns(),
        runtime_ns: reservation.runtime.as_ns(),
        utilisation: reservation.runtime.as_ns() as f64 / reservation.period.as_ns() as f64,
        latency_ns: nanos(choice.latency),
        reservation,
    }))
}

/// What copying for the buffered updates of a file that was read from `path` reserves.
///
/// # Errors
/// [`SessionError`]: the file makes no sense (2), or it cannot be admitted (4).
pub(crate) fn copying_of(
    config: &Config,
    path: &Path,
) -> Result<DeadlineReservation, SessionError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let usage =
        |sentence| SessionError::new(ErrorKind::Usage, format!("{}: {sentence}", path.display()));
    let selection = config.selection(Runner::Buffered);
    let selection = selection.unwrap_or_else(|| config.whole());
    let admitted = copying(config, base, &Machine::here(config), &selection).map_err(usage)?;
    let admission = admitted.map_err(|refusal| SessionError::new(ErrorKind::Refused, refusal))?;
    Ok(admission.reservation)
}
