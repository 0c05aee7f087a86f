// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear admit`: whether a monitor would evaluate every element in time, said before it runs.
//!
//! `ResolvedMonitor::of` resolves the file and the facts of the machine into a plain value: the
//! number of CPUs, the reservations that are present, the demand of each sensor and update.
//! `decide` decides from that value alone; [`admit`] asks the kernel as well.

use std::path::Path;

use overhear_admission::{
    choose, AdmissionRequest, DeadlineReservation, JobEnd, KernelLimits, Level, PlanError,
    ReservationPlan, SensorLoad, Span,
};
use overhear_event::Nanos;
use overhear_monitor::executor::{Terms, UpdateTerms};
use overhear_monitor::scheduler::{ask_kernel, present_reservations};

use crate::config::selection::Selection;
use crate::config::{constraints, Config, Execution};
use crate::configured_monitor::{self, metrics_of};
use crate::error::{ErrorKind, SessionError};
use crate::reactions::Reactions;

mod error;
mod hint;
pub(crate) mod kernel;
mod memory;
mod other_reservations;
mod report;
mod resolved;
mod sensor;
mod wish;

pub(crate) use hint::fitting_latency;
use hint::hint;
pub(crate) use kernel::KernelRing;
pub(crate) use memory::{load_plugins, mapped_bytes, LoadedPlugin, MemoryBytes};
pub(crate) use other_reservations::copying_of;
pub use report::{AdmissionReport, CopyingAdmission, SensorAdmission, UpdateAdmission};
use resolved::{level_of, ResolvedMonitor, ResolvedUpdate};
use sensor::{id_of_load, loads, ResolvedSensor, WcetRule};
use wish::{buffered_length, lateness_of};

/// What admission asks the machine for.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// Number of CPUs of the root domain.
    cpus: u32,
    /// Reservations of other programs.
    present: Vec<DeadlineReservation>,
}

impl Machine {
    /// This one.
    fn here() -> Self {
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

/// A monitor that was admitted: the answer, and the terms to run it on.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    /// What was said.
    pub(crate) report: AdmissionReport,
    /// What an executor keeps; none without admission.
    pub(crate) terms: Option<Terms>,
    // The most memory, by what has it.
    pub(crate) memory: MemoryBytes,
}

/// Admits the monitor that the file `path` describes, on this machine, and tries what
/// `overhear run` would do before its program starts: a CPU is set apart, time is reserved, kernel
/// sensors are made, and all is given back.
///
/// # Errors
/// [`SessionError`] for a file that cannot be read or makes no sense. A refusal is no error.
pub fn admit(path: &Path, execution: Execution) -> Result<AdmissionReport, SessionError> {
    execution.check(path)?;
    let config = Config::read(path)?;
    // What `run` would refuse.
    Reactions::read(&[path], &constraints::read_any(path)?, execution)?;
    let monitor = resolve(&config, path, &load_usable(&config, path)?)?;
    let admitted = decide(&monitor);
    let mut report = admitted.report;
    let Some(terms) = admitted.terms else {
        return Ok(report);
    };
    // On a CPU of its own the kernel is asked there, below.
    if !monitor.has_dedicated_cpu {
        report.hear_kernel(ask_kernel(terms.reservation));
    }
    if !report.accepted {
        return Ok(report);
    }
    match configured_monitor::lacking(path) {
        Ok(lacking) => report.lacking = lacking,
        Err(failure) if failure.kind == ErrorKind::Refused => {
            report.accepted = false;
            report.reason = failure.message;
        }
        Err(failure) => return Err(failure),
    }
    if monitor.has_dedicated_cpu && report.accepted && report.lacking.is_none() {
        report.kernel = "accepted";
    }
    Ok(report)
}

/// Admits the monitor of a file that was read from `path`, on this machine, without asking the
/// kernel.
///
/// # Errors [`SessionError`] for a file that makes no sense, and for plug-ins and metrics that
/// cannot be used. A refusal is no error.
pub(crate) fn admit_config(config: &Config, path: &Path) -> Result<Admitted, SessionError> {
    admit_loaded(config, path, &load_usable(config, path)?)
}

/// The same, with plug-ins that are loaded already.
pub(crate) fn admit_loaded(
    config: &Config,
    path: &Path,
    plugins: &[Option<LoadedPlugin>],
) -> Result<Admitted, SessionError> {
    resolve(config, path, plugins).map(|monitor| decide(&monitor))
}

/// The plug-ins of the file, whose metrics can be measured as well.
fn load_usable(config: &Config, path: &Path) -> Result<Vec<Option<LoadedPlugin>>, SessionError> {
    let plugins = load_plugins(config, path)?;
    // One that cannot be measured is told here too, not only when it is to run.
    metrics_of(config, path)?;
    Ok(plugins)
}

/// Resolves a file that was read from `path` on this machine.
fn resolve(
    config: &Config,
    path: &Path,
    plugins: &[Option<LoadedPlugin>],
) -> Result<ResolvedMonitor, SessionError> {
    let base = path.parent().unwrap_or(Path::new(""));
    let monitor = ResolvedMonitor::of(config, base, &Machine::here(), plugins);
    monitor.map_err(|mistake| mistake.in_file(path))
}

/// Decides, without asking the kernel.
fn decide(monitor: &ResolvedMonitor) -> Admitted {
    let memory = memory::stated(monitor);
    let mut report = AdmissionReport::undecided(monitor, &memory);
    match try_reserve(monitor, &mut report) {
        Err(refusal) => report.refused(refusal),
        Ok(terms) => {
            report.accepted = true;
            report.promise(&monitor.updates);
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
        wish,
        level,
        ..
    } = monitor;
    let (least, lateness) = (wish.request.least_period, wish.request.lateness);
    let refused = |refusal: Option<String>| refusal.map_or(Ok(()), Err);
    refused(memory::too_large(monitor))?;
    let mut present = monitor.present.clone();
    monitor.others.reserve(report, &mut present)?;
    // Where even the shortest period is too long nothing has to be looked for.
    refused(kernel::too_small(
        sensors,
        (least, lateness),
        Span::from_ns(0),
    ))?;
    let choice = choose_with_reading(&loads(sensors), &wish.request);
    let choice = choice.map_err(|error| reason(error, monitor))?;
    let reservation = DeadlineReservation::of_plan(&choice, wish.lateness, JobEnd::Sleep);
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
        lateness: wish.lateness,
        latency: Nanos::from_ns(nanos(choice.latency)),
        evaluations: Nanos::from_ns(nanos(choice.evaluations)),
        level: *level,
        cpus: monitor.cpus,
        sensors: sensors.iter().map(ResolvedSensor::terms).collect(),
        updates: monitor.updates.iter().map(ResolvedUpdate::terms).collect(),
    })
}

/// Why no reservation was found, and what would make it fit.
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
            let (whose, wished) = (&monitor.wish.whose, monitor.wish.latency);
            format!("{whose} `latency` is {wished}: {error}{hint}")
        }
    }
}

/// The word for a level.
pub(crate) const fn level_name(level: Level) -> &'static str {
    match level {
        Level::Exclusive => "exclusive",
        Level::Shared => "shared",
    }
}

/// The terms of a monitor of these updates that guarantees nothing: names and streams, without a
/// reservation. Updates need no WCET. With it the kernel sensors that they take, whoever runs them.
///
/// # Errors
/// [`SessionError`] for a file that makes no sense.
pub(crate) fn terms_without_guarantee(
    config: &Config,
    path: &Path,
    selection: &Selection,
) -> Result<(Terms, Vec<KernelRing>), SessionError> {
    let updates = config.updates.iter().map(|update| UpdateTerms {
        name: update.name.clone(),
        // Nothing is longer than what nobody has limited.
        wcet: update.wcet.map_or(Nanos::from_ns(u64::MAX), |wcet| wcet.0),
    });
    let base = path.parent().unwrap_or(Path::new(""));
    let sensors = sensor::resolve(config, base, selection, WcetRule::Optional);
    let sensors = sensors.map_err(|mistake| mistake.in_file(path))?;
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
    let own = sensors.into_iter().filter(|sensor| sensor.count > 0);
    Ok((terms, own.filter_map(|sensor| sensor.ring).collect()))
}

/// The cheapest monitor, where the overhead includes what the merge costs: it reads everything that
/// has come since the last period into private memory, and evaluations of several sensors cannot be
/// interrupted when their common time is used up.
fn choose_with_reading(
    loads: &[SensorLoad],
    wish: &AdmissionRequest,
) -> Result<ReservationPlan, PlanError> {
    // A period starts evaluations while less than Q is spent: the last one may be the longest.
    let whole = match loads {
        [_] => 0,
        several => {
            let longest = several.iter().map(|load| load.wcet.as_ns()).max();
            longest.unwrap_or(0).saturating_sub(1)
        }
    };
    let reading = |span: Span| {
        let costs = loads.iter().map(|load| {
            let elements = load.stream.elements_within(span);
            narrow(elements).saturating_mul(load.copy.as_ns())
        });
        costs.fold(0, u64::saturating_add)
    };
    let overhead = |reading: u64| {
        let all = wish.overhead.as_ns();
        Nanos::from_ns(all.saturating_add(whole).saturating_add(reading))
    };
    // T_M + d, which bounds the distance of two readings, is at most l; a first choice shows how
    // much less, and one or two more settle.
    let mut granted = 0;
    for _ in 0..4 {
        let overhead = overhead(granted);
        let choice = choose(loads, &AdmissionRequest { overhead, ..*wish })?;
        let needed = reading(choice.task.l_min());
        if needed <= granted {
            return Ok(choice);
        }
        granted = needed;
    }
    let overhead = overhead(reading(wish.latency));
    choose(loads, &AdmissionRequest { overhead, ..*wish })
}

/// Numbers of elements beyond 64 bits do not occur; they would be shown as the largest.
fn narrow(count: u128) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn nanos(span: Span) -> u64 {
    u64::try_from(span.as_ns()).unwrap_or(u64::MAX)
}

/// Elements that are evaluated in place stay in the sensor's buffer until then: what can come
/// within the latency must fit. The one under evaluation is among them.
fn too_small_in_place(sensors: &[ResolvedSensor], choice: &ReservationPlan) -> Option<String> {
    let mut in_place = sensors.iter().filter(|it| it.in_place && it.count > 0);
    in_place.find_map(|sensor| {
        let come = narrow(sensor.load.stream.elements_within(choice.latency));
        (come > sensor.buffer).then(|| {
            format!(
                "sensor `{}` is evaluated in place, so its buffer must hold the {come} elements that can come \
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
