// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear admit`: whether a monitor would evaluate every element in time, said before it runs.
//!
//! [`plan`] decides from numbers alone; [`admit`] asks the machine for the rest: how many CPUs it
//! has, who has reserved CPU time already, and what the kernel says.

use std::path::Path;

use overhear_admission::{
    choose, AdmissionRequest, DeadlineReservation, JobEnd, KernelLimits, Lateness, Level,
    PlanError, Ratio, ReservationPlan, SensorLoad, Span,
};
use overhear_event::Nanos;
use overhear_monitor::executor::{Terms, UpdateTerms};
use overhear_monitor::scheduler::{ask_kernel, present_reservations};

use crate::config::selection::{Runner, Selection};
use crate::config::Execution;
use crate::config::{constraints, Config, Length, LevelConfig, UpdateConfig};
use crate::configured_monitor::{self, metrics_of};
use crate::error::{ErrorKind, SessionError};
use crate::reactions::Reactions;

mod entries;
mod hint;
pub(crate) mod kernel;
mod memory;
mod other_reservations;
mod report;

use entries::{entries, id_of_load, loads, Entry};
pub(crate) use hint::fitting_latency;
use hint::hint;
pub(crate) use kernel::KernelRing;
pub(crate) use memory::{load_plugins, mapped_bytes, LoadedPlugin, MemoryBytes};
pub(crate) use other_reservations::copying_of;
use other_reservations::reserve_others;
pub use report::{AdmissionReport, CopyingAdmission, SensorAdmission, UpdateAdmission};

/// What `admit` asks the machine for.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs of the root domain.
    pub cpus: u32,
    /// What others have reserved.
    pub present: Vec<DeadlineReservation>,
    // Of each update, its plug-in; none where nobody has loaded them.
    pub(crate) plugins: Vec<Option<LoadedPlugin>>,
}

impl Machine {
    /// This one, as far as a file does not say otherwise.
    fn here(config: &Config) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            cpus: config.monitor.cpus.unwrap_or(cpus),
            present: present_reservations(),
            plugins: Vec::new(),
        }
    }
}

/// A monitor that was admitted: the answer, and the terms to run it on.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// What was said.
    pub report: AdmissionReport,
    /// What an executor keeps; none without admission.
    pub terms: Option<Terms>,
    // The most memory, by what has it.
    pub(crate) memory: MemoryBytes,
}

/// Admits the monitor that the file `path` describes, on this machine, and tries what `overhear run` would do before
/// its program starts: a CPU is set apart, time is reserved, kernel sensors are made, and all is given back.
///
/// # Errors
/// [`SessionError`] for a file that cannot be read or makes no sense. A refusal is no error.
pub fn admit(path: &Path, execution: Execution) -> Result<AdmissionReport, SessionError> {
    execution.check(path)?;
    let config = Config::read(path)?;
    // What `run` would refuse.
    Reactions::read(&[path], &constraints::read_any(path)?, execution)?;
    let admitted = admit_config(&config, path)?;
    let mut report = admitted.report;
    let Some(terms) = admitted.terms else {
        return Ok(report);
    };
    // On a CPU of its own the kernel is asked there, below.
    if config.monitor.dedicated_cpu.is_none() {
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
    if config.monitor.dedicated_cpu.is_some() && report.accepted && report.lacking.is_none() {
        report.kernel = "accepted";
    }
    Ok(report)
}

/// Admits the monitor of a file that was read from `path`, on this machine, without asking the kernel.
///
/// # Errors
/// [`SessionError`] for a file that makes no sense, and for plug-ins and metrics that cannot be used. A refusal is no error.
pub fn admit_config(config: &Config, path: &Path) -> Result<Admitted, SessionError> {
    let plugins = load_plugins(config, path)?;
    // One that cannot be measured is told here too, not only when it is to run.
    metrics_of(config, path)?;
    admit_loaded(config, path, plugins)
}

/// The same, with plug-ins that are loaded already.
pub(crate) fn admit_loaded(
    config: &Config,
    path: &Path,
    plugins: Vec<Option<LoadedPlugin>>,
) -> Result<Admitted, SessionError> {
    let machine = Machine {
        plugins,
        ..Machine::here(config)
    };
    let base = path.parent().unwrap_or(Path::new(""));
    plan(config, base, &machine).map_err(|sentence| {
        SessionError::new(ErrorKind::Usage, format!("{}: {sentence}", path.display()))
    })
}

/// Decides, without asking the kernel. Recordings that sensors are fitted to lie below `base`.
///
/// # Errors
/// A sentence that names the entry.
pub fn plan(config: &Config, base: &Path, machine: &Machine) -> Result<Admitted, String> {
    let monitor = &config.monitor;
    if machine.cpus == 0 {
        return Err("cpus is 0; give at least 1".to_string());
    }
    if monitor.dedicated_cpu.is_some() && monitor.level == LevelConfig::Shared {
        return Err(
            "dedicated_cpu sets a CPU apart, and level is \"shared\"; leave one of them out"
                .to_string(),
        );
    }
    let selection = guaranteed_selection(config);
    let entries = entries(config, base, &selection)?;
    let Latency {
        lateness,
        total,
        whose,
        wished,
    } = latency(config, &selection)?;
    let least = monitor.least_period.0;
    let level = level_of(monitor.level);
    let memory = memory::stated(config, &entries, &selection, &machine.plugins);
    let times = (wished, total);
    let mut report = unanswered(config, machine, &entries, &memory, times);
    if let Some(refusal) = memory::too_large(config, &machine.plugins) {
        report.reason = refusal;
        return Ok(report.refused());
    }
    let mut present = machine.present.clone();
    if let Some(refusal) = reserve_others(config, base, machine, &mut report, &mut present)? {
        report.reason = refusal;
        return Ok(report.refused());
    }
    // Where even the shortest period is too long nothing has to be looked for.
    if let Some(refusal) = kernel::too_small(&entries, (least, total), Span::from_ns(0)) {
        report.reason = refusal;
        return Ok(report.refused());
    }
    let wish = wish_of(config, wished, total);
    let loads = loads(&entries);
    let choice = match choose_with_reading(&loads, &wish) {
        Ok(choice) => choice,
        Err(error @ PlanError::Density { .. }) => return Err(error.to_string()),
        Err(error) => {
            let hint = hint(config, &entries, &selection, &wish);
            report.reason = reason(error, &entries, (&whose, wished), &hint);
            return Ok(report.refused());
        }
    };
    let reservation = DeadlineReservation::of_plan(&choice, lateness, JobEnd::Sleep);
    let reservation = match reservation {
        Ok(reservation) => reservation,
        Err(error) => {
            report.reason = error.to_string();
            return Ok(report.refused());
        }
    };
    report.fill(&entries, &choice, reservation);
    let too_small = too_small_in_place(&entries, &choice)
        .or_else(|| kernel::too_small(&entries, (reservation.period, total), choice.latency));
    if let Some(refusal) = too_small {
        report.reason = refusal;
        return Ok(report.refused());
    }
    let limits = KernelLimits::usual(machine.cpus);
    let mut all = vec![reservation];
    if level == Level::Shared {
        all.extend(&present);
    }
    let alone = limits.admit(&[reservation]);
    if let Err(error) = alone.and_then(|()| limits.keeps(level, &all)) {
        report.reason = error.to_string();
        return Ok(report.refused());
    }
    report.accepted = true;
    report.promise(config, &selection);
    let terms = Terms {
        reservation,
        lateness,
        latency: Nanos::from_ns(nanos(choice.latency)),
        evaluations: Nanos::from_ns(nanos(choice.evaluations)),
        level,
        cpus: machine.cpus,
        sensors: entries.iter().map(Entry::terms).collect(),
        updates: config.updates.iter().map(UpdateConfig::terms).collect(),
    };
    Ok(Admitted {
        report,
        terms: Some(terms),
        memory,
    })
}

/// A report without an answer.
fn unanswered(
    config: &Config,
    machine: &Machine,
    entries: &[Entry<'_>],
    memory: &MemoryBytes,
    (wished, total): (Nanos, Nanos),
) -> AdmissionReport {
    AdmissionReport {
        accepted: false,
        reason: String::new(),
        level: level_name(level_of(config.monitor.level)),
        wished_latency_ns: wished.as_ns(),
        period_ns: None,
        deadline_ns: None,
        runtime_ns: None,
        utilisation: None,
        latency_ns: None,
        lateness_ns: total.as_ns(),
        kernel: "not_asked",
        lacking: None,
        others: machine.present.len(),
        memory_bytes: memory.total(),
        plugin_memory_bytes: memory.of_plugins(),
        sensors: entries.iter().map(Entry::report).collect(),
        updates: config.updates.iter().map(|it| config.answer(it)).collect(),
        copying: None,
    }
}

/// Why no reservation was found.
fn reason(
    error: PlanError,
    entries: &[Entry<'_>],
    (whose, wished): (&str, Nanos),
    hint: &str,
) -> String {
    match error {
        PlanError::TooSlow {
            sensor,
            wcet,
            period,
        } => {
            let id = id_of_load(entries, sensor);
            format!(
                "sensor `{id}` is evaluated for {wcet} per element, above its period, {period}; give \
                 cheaper updates or a longer period{hint}"
            )
        }
        error => format!("{whose} `latency` is {wished}: {error}{hint}"),
    }
}

/// The latency that is demanded, and the part that the machine's lateness takes.
struct Latency {
    lateness: Lateness,
    total: Nanos,
    whose: String,
    wished: Nanos,
}

fn latency(config: &Config, selection: &Selection) -> Result<Latency, String> {
    let monitor = &config.monitor;
    let (least, largest) = (monitor.least_period.0, monitor.largest_period.0);
    if largest < least {
        return Err(format!(
            "[monitor] `largest_period` is {largest}, below `least_period`, {least}; give more"
        ));
    }
    let lateness = lateness_of(config);
    let total = lateness.total().map_err(|error| {
        format!(
            "[monitor] `wake_up_lateness`, `scheduler_lateness` and `hold_back` together: {error}"
        )
    })?;
    let (whose, wished) = wished_latency(config, selection)?;
    if total >= wished {
        return Err(format!(
            "{whose} `latency` is {wished}, and `wake_up_lateness`, `scheduler_lateness` and `hold_back` alone are {total}; \
             give more"
        ));
    }
    let mut updates = config.updates.iter();
    if let Some(update) = updates.find(|it| it.plugin.is_none() && it.memory.is_some()) {
        return Err(format!(
            "update `{}` has a `memory`, which is for updates of plug-ins; leave it out",
            update.name
        ));
    }
    Ok(Latency {
        lateness,
        total,
        whose,
        wished,
    })
}

/// The word for a level.
pub(crate) const fn level_name(level: Level) -> &'static str {
    match level {
        Level::Exclusive => "exclusive",
        Level::Shared => "shared",
    }
}

const fn level_of(level: LevelConfig) -> Level {
    match level {
        LevelConfig::Exclusive => Level::Exclusive,
        LevelConfig::Shared => Level::Shared,
    }
}

const fn lateness_of(config: &Config) -> Lateness {
    let monitor = &config.monitor;
    Lateness {
        wake_up: monitor.wake_up_lateness.0,
        tardiness: monitor.scheduler_lateness.0,
        hold_back: monitor.hold_back.0,
    }
}

/// The updates that are guaranteed, of which admission speaks; where there are none, all of them, as if
/// they were.
fn guaranteed_selection(config: &Config) -> Selection {
    config
        .selection(Runner::Guaranteed)
        .unwrap_or_else(|| config.whole())
}

/// The least latency that the updates of a selection wish, and where the file says so.
///
/// # Errors
/// A sentence, where one of them has none.
fn wished_latency(config: &Config, selection: &Selection) -> Result<(String, Nanos), String> {
    let of_monitor = || {
        let latency = config.monitor.latency.ok_or(
            "[monitor] has no `latency`, and admission is about one; give the length within which every element is \
             to be evaluated",
        )?;
        Ok((latency.0, "[monitor]".to_string()))
    };
    let updates = config.updates.iter().enumerate();
    let own = updates.filter(|(index, _)| selection.has_update(*index));
    let wishes = own.map(|(_, update)| match update.latency {
        Some(latency) => Ok((latency.0, format!("update `{}`:", update.name))),
        None => of_monitor(),
    });
    let wishes = wishes.collect::<Result<Vec<_>, String>>()?;
    let least = wishes.into_iter().min_by_key(|(latency, _)| *latency);
    let (latency, whose) = least.map_or_else(of_monitor, Ok)?;
    Ok((whose, latency))
}

/// For how long buffers hold what comes: the latency that is wished, or the longest period where there is none.
fn buffered_length(config: &Config, selection: &Selection) -> Nanos {
    let wished = wished_latency(config, selection);
    wished.map_or(config.monitor.largest_period.0, |(_, latency)| latency)
}

fn wish_of(config: &Config, latency: Nanos, lateness: Nanos) -> AdmissionRequest {
    let monitor = &config.monitor;
    AdmissionRequest {
        latency: latency.into(),
        least_period: monitor.least_period.0,
        largest_period: monitor.largest_period.0,
        overhead: monitor.overhead.0,
        lateness,
        density: Ratio::new(monitor.cpu_percent.into(), 100).unwrap_or(Ratio::whole(1)),
        joint_bound: monitor.joint_bound,
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
    let mut config = config.clone();
    let updates = config.updates.iter().map(|update| UpdateTerms {
        name: update.name.clone(),
        // Nothing is longer than what nobody has limited.
        wcet: update.wcet.map_or(Nanos::from_ns(u64::MAX), |wcet| wcet.0),
    });
    let updates = updates.collect();
    for update in &mut config.updates {
        // Only what is admitted asks how long it takes.
        update.wcet.get_or_insert(Length(Nanos::from_ns(1)));
    }
    let base = path.parent().unwrap_or(Path::new(""));
    let entries = entries(&config, base, selection).map_err(|sentence| {
        SessionError::new(ErrorKind::Usage, format!("{}: {sentence}", path.display()))
    })?;
    let terms = Terms {
        reservation: DeadlineReservation {
            runtime: Nanos::ZERO,
            deadline: Nanos::ZERO,
            period: Nanos::ZERO,
        },
        lateness: lateness_of(&config),
        latency: buffered_length(&config, selection),
        evaluations: Nanos::ZERO,
        level: level_of(config.monitor.level),
        cpus: 0,
        sensors: entries.iter().map(Entry::terms).collect(),
        updates,
    };
    let own = entries.into_iter().filter(|entry| entry.count > 0);
    Ok((terms, own.filter_map(|entry| entry.ring.clone()).collect()))
}

/// The cheapest monitor, where the overhead includes what the merge costs: it reads everything that has
/// come since the last period into private memory, and evaluations of several sensors cannot be
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
    // T_M + d, which bounds the distance of two readings, is at most l; a first choice shows how much
    // less, and one or two more settle.
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

impl UpdateConfig {
    fn terms(&self) -> UpdateTerms {
        UpdateTerms {
            name: self.name.clone(),
            wcet: self.wcet.map_or(Nanos::ZERO, |wcet| wcet.0),
        }
    }
}

/// Elements that are evaluated in place stay in the sensor's buffer until then: what can come within the
/// latency must fit. The one under evaluation is among them.
fn too_small_in_place(entries: &[Entry<'_>], choice: &ReservationPlan) -> Option<String> {
    let mut in_place = entries.iter().filter(|it| it.in_place && it.count > 0);
    in_place.find_map(|entry| {
        let come = narrow(entry.load.stream.elements_within(choice.latency));
        (come > entry.buffer).then(|| {
            format!(
                "sensor `{}` is evaluated in place, so its buffer must hold the {come} elements that can come \
                 within {}, and holds {}; give a larger `buffer` or a shorter `latency`, or leave `in_place` \
                 out",
                entry.config.id,
                Nanos::from_ns(nanos(choice.latency)),
                entry.buffer
            )
        })
    })
}

impl Config {
    /// What is said of an update before it is known what it is promised.
    fn answer(&self, update: &UpdateConfig) -> UpdateAdmission {
        UpdateAdmission {
            name: update.name.clone(),
            executor: self.executor_of(update).name(),
            wished_latency_ns: update
                .latency
                .or(self.monitor.latency)
                .map(|it| it.0.as_ns()),
            latency_ns: None,
        }
    }
}

#[cfg(test)]
mod tests;
