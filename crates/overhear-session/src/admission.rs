// SPDX-License-Identifier: MIT OR Apache-2.0
//! Admission: whether a monitor will evaluate every element in time, decided before it runs.
//!
//! `ResolvedMonitor::of` resolves the file and the facts of the machine into a plain value: the
//! number of CPUs, the reservations that are present, the demand of each sensor and update.
//! `decide` decides from that value alone, without a call to the kernel.

use std::path::Path;

use overhear_admission::{
    choose, AdmissionRequest, DeadlineReservation, JobEnd, KernelLimits, Level, PlanError,
    ReservationPlan, SensorLoad, Span,
};
use overhear_event::Nanos;
use overhear_monitor::executor::{Terms, UpdateTerms};
use overhear_monitor::scheduler::present_reservations;

use crate::builtin_updates::metrics_of;
use crate::config::selection::Selection;
use crate::config::Config;
use crate::error::SessionError;

mod error;
mod hint;
pub(crate) mod kernel;
mod latency_request;
mod memory;
mod other_reservations;
mod report;
mod resolved;
mod sensor;

pub(crate) use hint::fitting_latency;
use hint::hint;
pub(crate) use kernel::KernelRing;
use latency_request::{buffered_length, lateness_of, LatencyRequest};
pub(crate) use memory::{load_plugins, mapped_bytes, LoadedPlugin, MemoryBytes};
pub(crate) use other_reservations::copying_of;
pub use report::{AdmissionReport, CopyingAdmission, SensorAdmission, UpdateAdmission};
use resolved::{level_of, ResolvedMonitor, ResolvedUpdate};
use sensor::{id_of_load, loads, ResolvedSensor, WcetRule};

/// The facts about the machine that admission uses.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Number of CPUs of the root domain.
    cpus: u32,
    /// Reservations of other programs.
    present: Vec<DeadlineReservation>,
}

impl Machine {
    /// The machine that this process runs on.
    fn local() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            cpus,
            present: present_reservations(),
        }
    }

    /// Number of CPUs that the monitor of a file may use.
    fn cpus_for(&self, config: &Config) -> u32 {
        config.monitor.cpus.unwrap_or(self.cpus)
    }
}

/// The result of admission: the report, and the terms to run the monitor on.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    /// The report, accepted or not.
    pub(crate) report: AdmissionReport,
    /// Terms for the executor; `None` if the monitor was not admitted.
    pub(crate) terms: Option<Terms>,
    /// Upper bound of the memory, by owner.
    pub(crate) memory: MemoryBytes,
}

/// Admits the monitor of a file that was read from `path`, on this machine, without a call to the
/// kernel.
///
/// # Errors
/// [`SessionError`] for an invalid file, and for plug-ins and metrics that cannot be used. A
/// refusal is no error.
pub(crate) fn admit_config(config: &Config, path: &Path) -> Result<Admitted, SessionError> {
    admit_loaded(config, path, &load_usable_plugins(config, path)?)
}

/// As [`admit_config`], with plug-ins that are already loaded.
pub(crate) fn admit_loaded(
    config: &Config,
    path: &Path,
    plugins: &[Option<LoadedPlugin>],
) -> Result<Admitted, SessionError> {
    resolve(config, path, plugins).map(|monitor| decide(&monitor))
}

/// Loads the plug-ins of the file, and checks that its metrics can be measured.
pub(crate) fn load_usable_plugins(
    config: &Config,
    path: &Path,
) -> Result<Vec<Option<LoadedPlugin>>, SessionError> {
    let plugins = load_plugins(config, path)?;
    metrics_of(config, path)?;
    Ok(plugins)
}

/// Resolves a file that was read from `path` on this machine.
pub(crate) fn resolve(
    config: &Config,
    path: &Path,
    plugins: &[Option<LoadedPlugin>],
) -> Result<ResolvedMonitor, SessionError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let monitor = ResolvedMonitor::of(config, base, &Machine::local(), plugins);
    monitor.map_err(|error| error.in_file(path))
}

/// Decides, without a call to the kernel.
pub(crate) fn decide(monitor: &ResolvedMonitor) -> Admitted {
    let memory = memory::stated(monitor);
    let mut report = AdmissionReport::undecided(monitor, &memory);
    match try_reserve(monitor, &mut report) {
        Err(refusal) => report.refused(refusal),
        Ok(terms) => {
            report.accepted = true;
            report.set_guaranteed_latency(&monitor.updates);
            Admitted {
                report,
                terms: Some(terms),
                memory,
            }
        }
    }
}

/// The terms of the cheapest reservation, whose numbers are put into the report.
///
/// # Errors
/// A message: why the monitor is refused.
fn try_reserve(monitor: &ResolvedMonitor, report: &mut AdmissionReport) -> Result<Terms, String> {
    let ResolvedMonitor {
        sensors,
        latency_request,
        level,
        ..
    } = monitor;
    let (least, lateness) = (
        latency_request.request.least_period,
        latency_request.request.lateness,
    );
    let refused = |refusal: Option<String>| refusal.map_or(Ok(()), Err);
    refused(memory::too_large(monitor))?;
    let mut present = monitor.present.clone();
    monitor.others.reserve(report, &mut present)?;
    // If the rings are too small for the shortest period, no period fits.
    refused(kernel::too_small(
        sensors,
        (least, lateness),
        Span::from_ns(0),
    ))?;
    let choice = choose_with_reading(&loads(sensors), &latency_request.request);
    let choice = choice.map_err(|error| reason(error, monitor))?;
    let reservation =
        DeadlineReservation::of_plan(&choice, latency_request.lateness, JobEnd::Sleep);
    let reservation = reservation.map_err(|error| error.to_string())?;
    report.fill(sensors, &choice, reservation);
    refused(too_small_in_place(sensors, &choice))?;
    let times = (reservation.period, lateness);
    refused(kernel::too_small(sensors, times, choice.latency))?;
    let limits = KernelLimits::usual(monitor.cpus);
    let mut all = vec![reservation];
    if *level == Level::Shared {
        all.extend(&present);
    }
    let alone = limits.admit(&[reservation]);
    alone
        .and_then(|()| limits.keeps(*level, &all))
        .map_err(|error| error.to_string())?;
    Ok(Terms {
        reservation,
        lateness: latency_request.lateness,
        latency: Nanos::from_ns(nanos(choice.latency)),
        evaluations: Nanos::from_ns(nanos(choice.evaluations)),
        level: *level,
        cpus: monitor.cpus,
        sensors: sensors.iter().map(ResolvedSensor::terms).collect(),
        updates: monitor.updates.iter().map(ResolvedUpdate::terms).collect(),
    })
}

/// The reason that no reservation was found, with a hint.
fn reason(error: PlanError, monitor: &ResolvedMonitor) -> String {
    let hint = hint(monitor);
    match error {
        PlanError::TooSlow {
            sensor,
            wcet,
            period,
        } => {
            let id = id_of_load(&monitor.sensors, sensor);
            format!(
                "sensor `{id}` is evaluated for {wcet} per element, above its period, {period}; give \
                 cheaper updates or a longer period{hint}"
            )
        }
        error => {
            let LatencyRequest { entry, latency, .. } = &monitor.latency_request;
            format!("{entry} `latency` is {latency}: {error}{hint}")
        }
    }
}

/// The name of a level in documents.
pub(crate) const fn level_name(level: Level) -> &'static str {
    match level {
        Level::Exclusive => "exclusive",
        Level::Shared => "shared",
    }
}

/// The terms of a monitor of these updates without a guarantee, names and streams without a
/// reservation, and the rings of the kernel sensors that the updates take. Updates need no WCET.
///
/// # Errors
/// [`SessionError`] for an invalid file.
pub(crate) fn terms_without_guarantee(
    config: &Config,
    path: &Path,
    selection: &Selection,
) -> Result<(Terms, Vec<KernelRing>), SessionError> {
    let updates = config.updates.iter().map(|update| UpdateTerms {
        name: update.name.clone(),
        // An update without a WCET never overruns.
        wcet: update.wcet.map_or(Nanos::from_ns(u64::MAX), |wcet| wcet.0),
    });
    let base = path.parent().unwrap_or(Path::new(""));
    let sensors = sensor::resolve(config, base, selection, WcetRule::Optional);
    let sensors = sensors.map_err(|error| error.in_file(path))?;
    let terms = Terms {
        reservation: DeadlineReservation {
            runtime: Nanos::ZERO,
            deadline: Nanos::ZERO,
            period: Nanos::ZERO,
        },
        lateness: lateness_of(config),
        latency: buffered_length(config, selection),
        evaluations: Nanos::ZERO,
        level: level_of(config.monitor.level),
        cpus: 0,
        sensors: sensors.iter().map(ResolvedSensor::terms).collect(),
        updates: updates.collect(),
    };
    let taken = sensors.into_iter().filter(|sensor| sensor.count > 0);
    Ok((terms, taken.filter_map(|sensor| sensor.ring).collect()))
}

/// The cheapest reservation plan whose overhead includes the cost of the merge. The merge copies
/// all elements that arrived since the last period into private memory. With several sensors, the
/// update that uses up the common time of a period cannot be interrupted.
fn choose_with_reading(
    loads: &[SensorLoad],
    request: &AdmissionRequest,
) -> Result<ReservationPlan, PlanError> {
    // A period starts updates while less than Q is spent. The last one may be the longest.
    let excess = match loads {
        [_] => 0,
        several => {
            let longest = several.iter().map(|load| load.wcet.as_ns()).max();
            longest.unwrap_or(0).saturating_sub(1)
        }
    };
    let reading = |span: Span| {
        let costs = loads.iter().map(|load| {
            let elements = load.stream.elements_within(span);
            saturated(elements).saturating_mul(load.copy.as_ns())
        });
        costs.fold(0, u64::saturating_add)
    };
    let overhead = |reading: u64| {
        let declared = request.overhead.as_ns();
        Nanos::from_ns(declared.saturating_add(excess).saturating_add(reading))
    };
    // T_M + d bounds the distance of two readings and is at most l. The first plan gives a smaller
    // bound, and one or two more iterations reach the fixed point.
    let mut granted = 0;
    for _ in 0..4 {
        let overhead = overhead(granted);
        let choice = choose(
            loads,
            &AdmissionRequest {
                overhead,
                ..*request
            },
        )?;
        let needed = reading(choice.task.l_min());
        if needed <= granted {
            return Ok(choice);
        }
        granted = needed;
    }
    let overhead = overhead(reading(request.latency));
    choose(
        loads,
        &AdmissionRequest {
            overhead,
            ..*request
        },
    )
}

/// Saturates: numbers of elements above 64 bits do not occur in practice.
fn saturated(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn nanos(span: Span) -> u64 {
    u64::try_from(span.as_ns()).unwrap_or(u64::MAX)
}

/// The refusal if the buffer of a sensor that is evaluated in place is too small. Its elements stay
/// in the buffer until they are evaluated, so the buffer must hold all that can arrive within the
/// latency, the one under evaluation included.
fn too_small_in_place(sensors: &[ResolvedSensor], choice: &ReservationPlan) -> Option<String> {
    let mut in_place = sensors.iter().filter(|it| it.in_place && it.count > 0);
    in_place.find_map(|sensor| {
        let arriving = saturated(sensor.load.stream.elements_within(choice.latency));
        (arriving > sensor.buffer).then(|| {
            format!(
                "sensor `{}` is evaluated in place, so its buffer must hold the {arriving} elements that can come \
                 within {}, and holds {}; give a larger `buffer` or a shorter `latency`, or leave `in_place` \
                 out",
                sensor.id,
                Nanos::from_ns(nanos(choice.latency)),
                sensor.buffer
            )
        })
    })
}

#[cfg(test)]
mod tests;
