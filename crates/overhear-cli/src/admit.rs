// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear admit`: whether a monitor would evaluate every element in time, said before it runs.
//!
//! [`plan`] decides from numbers alone; [`admit`] asks the machine for the rest: how many CPUs it
//! has, who has reserved CPU time already, and what the kernel says.

use std::fmt::Write;
use std::path::Path;

use overhear_admission::{
    choose, Choice, ChooseError, Constraint, DeadlineReservation, JobEnd, KernelLimits, Lateness,
    Level, Pool, Ratio, SensorLoad, SingleSensor, Span, Wish,
};
use overhear_directory::suggested_capacity;
use overhear_event::{Nanos, IN_PLACE_BYTES};
use overhear_monitor::executor::{SensorTerms, Terms, UpdateTerms};
use overhear_monitor::scheduler::{ask_kernel, present_reservations, KernelVerdict};
use serde::Serialize;

use crate::columns::Table;
use crate::config::parts::{Part, Runner};
use crate::config::{Config, Length, LevelConfig, SensorConfig, UpdateConfig};
use crate::exit::{Failure, USAGE};
use crate::fit;
use crate::width::Width;

mod beside;
mod hint;
mod memory;

pub(crate) use beside::copying_of;
use beside::reserve_beside;
pub(crate) use hint::fitting_latency;
use hint::hint;
pub(crate) use memory::mapped_bytes;

/// The answer. Without admission the numbers that would have followed are null.
#[derive(Clone, Debug, Serialize)]
pub struct AdmissionReport {
    /// Whether every element will be evaluated within the latency.
    pub accepted: bool,
    /// Why not, and what would make it fit; empty if accepted.
    pub reason: String,
    /// `exclusive` or `shared`.
    pub level: &'static str,
    /// The latency that was wished for.
    pub wished_latency_ns: u64,
    /// T_M.
    pub period_ns: Option<u64>,
    /// The deadline that the kernel is given.
    pub deadline_ns: Option<u64>,
    /// CPU time per period.
    pub runtime_ns: Option<u64>,
    /// `runtime / period`.
    pub utilisation: Option<f64>,
    /// The latency that is guaranteed.
    pub latency_ns: Option<u64>,
    /// Lateness of wake-ups, tardiness and hold-back, which the latency contains.
    pub lateness_ns: u64,
    /// What the kernel said, asked for the reservation in a thread that gave it back at once:
    /// `accepted`, `busy`, `not_permitted`, `unacceptable`; `not_asked` without a plan.
    pub kernel: &'static str,
    /// Reservations of others that were present.
    pub others: usize,
    /// The most memory that the monitor takes: its maps of the sensors' buffers, what it copies to, and the
    /// distributions that it counts. What plug-ins have comes on top.
    pub memory_bytes: u64,
    /// One per sensor, in the order of the file.
    pub sensors: Vec<SensorAdmission>,
    /// One per update, in the order of the file.
    pub updates: Vec<UpdateAdmission>,
    /// What copying for buffered updates reserves; null without such updates.
    pub copying: Option<CopyingAdmission>,
}

/// Who runs an update, and what it is promised.
#[derive(Clone, Debug, Serialize)]
pub struct UpdateAdmission {
    /// Its name in the file.
    pub name: String,
    /// `auto`, `deadline`, `bandwidth`, `buffered` or `best_effort`.
    pub executor: &'static str,
    /// The latency that it wishes.
    pub wished_latency_ns: u64,
    /// The latency that is guaranteed; null where nothing is.
    pub latency_ns: Option<u64>,
}

/// The thread that copies elements for buffered updates.
#[derive(Clone, Debug, Serialize)]
pub struct CopyingAdmission {
    /// Its period.
    pub period_ns: u64,
    /// The deadline that the kernel is given.
    pub deadline_ns: u64,
    /// CPU time per period.
    pub runtime_ns: u64,
    /// `runtime / period`.
    pub utilisation: f64,
    /// Within which length an element is copied.
    pub latency_ns: u64,
    /// What the copying thread reserves.
    #[serde(skip)]
    pub(crate) reservation: DeadlineReservation,
}

/// What admission found for one sensor.
#[derive(Clone, Debug, Serialize)]
pub struct SensorAdmission {
    /// Its id in the file.
    pub id: String,
    /// How many sensors it stands for, each with the numbers that follow; 0 where no guaranteed update takes
    /// it.
    pub count: u32,
    /// Whether an update evaluates its elements in place.
    pub in_place: bool,
    /// T.
    pub period_ns: u64,
    /// D.
    pub distance_ns: u64,
    /// tau.
    pub jitter_ns: u64,
    /// W, the sum over all updates that take its elements.
    pub wcet_ns: u64,
    /// L; null for an endless burst.
    pub burst_length: Option<u64>,
    /// The least R that keeps up in the mean.
    pub r_min: Option<u64>,
    /// The R that evaluates everything that can come in a period.
    pub r_max: Option<u64>,
    /// R, evaluations per period.
    pub r: Option<u64>,
    /// Elements that the shared buffer holds.
    pub buffer_elements: u64,
    /// The most elements that wait at any time.
    pub backlog: Option<u64>,
    /// Elements copied to private memory per period at most.
    pub copies: Option<u64>,
    /// The latency that R alone gives this sensor.
    pub latency_ns: Option<u64>,
}

/// What `admit` asks the machine for.
#[derive(Clone, Debug)]
pub struct Machine {
    /// CPUs of the root domain.
    pub cpus: u32,
    /// What others have reserved.
    pub present: Vec<DeadlineReservation>,
}

impl Machine {
    /// This one, as far as a file does not say otherwise.
    fn here(config: &Config) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Self {
            cpus: config.monitor.cpus.unwrap_or(cpus),
            present: present_reservations(),
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
}

/// A sensor with what its updates cost.
struct Entry<'a> {
    config: &'a SensorConfig,
    load: SensorLoad,
    buffer: u64,
    // How many there are for the updates that are looked at.
    count: u32,
    in_place: bool,
}

/// Admits the monitor that the file `path` describes, on this machine.
///
/// # Errors
/// [`Failure`] for a file that cannot be read or makes no sense. A refusal is no error.
pub fn admit(path: &Path) -> Result<AdmissionReport, Failure> {
    let config = Config::read(path)?;
    let mut admitted = admit_config(&config, path)?;
    if let Some(terms) = admitted.terms {
        admitted.report.hear_kernel(ask_kernel(terms.reservation));
    }
    Ok(admitted.report)
}

/// Admits the monitor of a file that was read from `path`, on this machine, without asking the kernel.
///
/// # Errors
/// [`Failure`] for a file that makes no sense. A refusal is no error.
pub fn admit_config(config: &Config, path: &Path) -> Result<Admitted, Failure> {
    let machine = Machine::here(config);
    let base = path.parent().unwrap_or(Path::new(""));
    plan(config, base, &machine)
        .map_err(|sentence| Failure::new(USAGE, format!("{}: {sentence}", path.display())))
}

/// Decides, without asking the kernel. Recordings that sensors are fitted to lie below `base`.
///
/// # Errors
/// A sentence that names the entry.
pub fn plan(config: &Config, base: &Path, machine: &Machine) -> Result<Admitted, String> {
    let monitor = &config.monitor;
    if !(1..=100).contains(&monitor.cpu_percent) {
        return Err(format!(
            "cpu_percent is {}; give 1 to 100",
            monitor.cpu_percent
        ));
    }
    if machine.cpus == 0 {
        return Err("cpus is 0; give at least 1".to_string());
    }
    if monitor.own_cpu.is_some() && monitor.level == LevelConfig::Shared {
        return Err(
            "own_cpu sets a CPU apart, and level is \"shared\"; leave one of them out".to_string(),
        );
    }
    let part = guaranteed_part(config);
    let entries = entries(config, base, &part)?;
    let (least, largest) = (monitor.least_period.0, monitor.largest_period.0);
    if largest < least {
        return Err(format!(
            "[monitor] `largest_period` is {largest}, below `least_period`, {least}; give more"
        ));
    }
    let lateness = lateness_of(config);
    let total = lateness.total().map_err(|error| {
        format!("[monitor] `wake_up_lateness`, `tardiness` and `hold_back` together: {error}")
    })?;
    let (whose, wished) = wished_latency(config, &part);
    if total >= wished {
        return Err(format!(
            "{whose} `latency` is {wished}, and `wake_up_lateness`, `tardiness` and `hold_back` alone are {total}; \
             give more"
        ));
    }
    let level = level_of(monitor.level);
    let mut report = AdmissionReport {
        accepted: false,
        reason: String::new(),
        level: level_name(level),
        wished_latency_ns: wished.as_ns(),
        period_ns: None,
        deadline_ns: None,
        runtime_ns: None,
        utilisation: None,
        latency_ns: None,
        lateness_ns: total.as_ns(),
        kernel: "not_asked",
        others: machine.present.len(),
        memory_bytes: memory::stated(config, &entries, &part),
        sensors: entries.iter().map(Entry::report).collect(),
        updates: config.updates.iter().map(|it| config.answer(it)).collect(),
        copying: None,
    };
    let mut present = machine.present.clone();
    if let Some(refusal) = reserve_beside(config, base, machine, &mut report, &mut present)? {
        report.reason = refusal;
        return Ok(report.refused());
    }
    let wish = wish_of(config, wished, total);
    let loads = loads(&entries);
    let choice = match choose_with_reading(&loads, &wish) {
        Ok(choice) => choice,
        Err(error @ ChooseError::Density { .. }) => return Err(error.to_string()),
        Err(error) => {
            report.reason = format!(
                "{whose} `latency` is {wished}: {error}{}",
                hint(config, &entries, &part, &wish)
            );
            return Ok(report.refused());
        }
    };
    let reservation = DeadlineReservation::of_choice(&choice, lateness, JobEnd::Sleep);
    let reservation = match reservation {
        Ok(reservation) => reservation,
        Err(error) => {
            report.reason = error.to_string();
            return Ok(report.refused());
        }
    };
    report.fill(&entries, &choice, reservation);
    if let Some(refusal) = too_small_in_place(&entries, &choice) {
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
    report.promise(config, &part);
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
        tardiness: monitor.tardiness.0,
        hold_back: monitor.hold_back.0,
    }
}

/// The updates that are guaranteed, of which admission speaks; where there are none, all of them, as if
/// they were.
fn guaranteed_part(config: &Config) -> Part {
    config
        .part(Runner::Guaranteed)
        .unwrap_or_else(|| config.whole())
}

/// The least latency that the updates of a part wish, and where the file says so.
fn wished_latency(config: &Config, part: &Part) -> (String, Nanos) {
    let updates = config.updates.iter().enumerate();
    let own = updates.filter(|(index, _)| part.has_update(*index));
    let wishes = own.map(|(_, update)| match update.latency {
        Some(latency) => (latency.0, format!("update `{}`:", update.name)),
        None => (config.monitor.latency.0, "[monitor]".to_string()),
    });
    let least = wishes.min_by_key(|(latency, _)| *latency);
    least.map_or_else(
        || ("[monitor]".to_string(), config.monitor.latency.0),
        |(latency, whose)| (whose, latency),
    )
}

fn wish_of(config: &Config, latency: Nanos, lateness: Nanos) -> Wish {
    let monitor = &config.monitor;
    Wish {
        latency: latency.into(),
        least_period: monitor.least_period.0,
        largest_period: monitor.largest_period.0,
        overhead: monitor.overhead.0,
        lateness,
        density: Ratio::new(monitor.cpu_percent.into(), 100).unwrap_or(Ratio::whole(1)),
        pooled: monitor.pooled,
    }
}

/// The terms of a monitor of these updates that guarantees nothing: names and streams, without a
/// reservation. Updates need no WCET.
///
/// # Errors
/// [`Failure`] for a file that makes no sense.
pub(crate) fn terms_without_guarantee(
    config: &Config,
    path: &Path,
    part: &Part,
) -> Result<Terms, Failure> {
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
    let entries = entries(&config, base, part)
        .map_err(|sentence| Failure::new(USAGE, format!("{}: {sentence}", path.display())))?;
    Ok(Terms {
        reservation: DeadlineReservation {
            runtime: Nanos::ZERO,
            deadline: Nanos::ZERO,
            period: Nanos::ZERO,
        },
        lateness: lateness_of(&config),
        latency: wished_latency(&config, part).1,
        evaluations: Nanos::ZERO,
        level: level_of(config.monitor.level),
        cpus: 0,
        sensors: entries.iter().map(Entry::terms).collect(),
        updates,
    })
}

/// The cheapest monitor, where the overhead includes what the merge costs: it reads everything that has
/// come since the last period into private memory, and evaluations of several sensors cannot be
/// interrupted when their common time is used up.
fn choose_with_reading(loads: &[SensorLoad], wish: &Wish) -> Result<Choice, ChooseError> {
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
        let choice = choose(loads, &Wish { overhead, ..*wish })?;
        let needed = reading(choice.task.l_min());
        if needed <= granted {
            return Ok(choice);
        }
        granted = needed;
    }
    let overhead = overhead(reading(wish.latency));
    choose(loads, &Wish { overhead, ..*wish })
}

/// What each sensor that an entry stands for asks for.
fn loads(entries: &[Entry<'_>]) -> Vec<SensorLoad> {
    let all = entries.iter();
    all.flat_map(|entry| (0..entry.count).map(|_| entry.load))
        .collect()
}

/// The sensors of the file, loaded with the updates of this part.
fn entries<'a>(config: &'a Config, base: &Path, part: &Part) -> Result<Vec<Entry<'a>>, String> {
    if config.sensors.is_empty() {
        return Err("there is no [[sensor]]; name at least one with its period".to_string());
    }
    let mut entries: Vec<Entry<'a>> = Vec::new();
    for (index, sensor) in config.sensors.iter().enumerate() {
        if entries.iter().any(|entry| entry.config.id == sensor.id) {
            return Err(format!("sensor `{}` stands there twice", sensor.id));
        }
        let stream = stream_of(sensor, base)
            .map_err(|sentence| format!("sensor `{}`: {sentence}", sensor.id))?;
        for (key, number, most) in [("count", sensor.count, 256), ("lanes", sensor.lanes, 4096)] {
            if !(1..=most).contains(&number) {
                return Err(format!(
                    "sensor `{}`: its {key} is {number}; give 1 to {most}",
                    sensor.id
                ));
            }
        }
        if sensor.buffer == Some(0) {
            return Err(format!(
                "sensor `{}`: its buffer is 0; give at least 1, or leave it out",
                sensor.id
            ));
        }
        let rate = stream.to_rate();
        // One slot may be in the making.
        let buffer = sensor
            .buffer
            .unwrap_or_else(|| suggested_capacity(Some(&rate), 16, 1, 0) - 1);
        entries.push(Entry {
            config: sensor,
            load: SensorLoad {
                stream,
                wcet: Nanos::ZERO,
                copy: sensor.copy.0,
                buffer: Some(buffer),
            },
            buffer,
            count: match part.has_sensor(index) {
                true => sensor.count,
                false => 0,
            },
            in_place: false,
        });
    }
    for (index, update) in config.updates.iter().enumerate() {
        let named = update.sensors.as_deref();
        for id in named.unwrap_or_default() {
            if !entries.iter().any(|entry| entry.config.id == *id) {
                return Err(format!(
                    "update `{}` takes sensor `{id}`, which is not described; add a [[sensor]] with \
                     this id",
                    update.name
                ));
            }
        }
        if !part.has_update(index) {
            continue;
        }
        if update.in_place {
            let is_large = |entry: &&mut Entry<'_>| {
                update.takes(&entry.config.id) && entry.config.payload > IN_PLACE_BYTES
            };
            let mut found = 0;
            for entry in entries.iter_mut().filter(is_large) {
                entry.in_place = true;
                found += 1;
            }
            if found == 0 {
                return Err(format!(
                    "update `{}` evaluates in place, which is for elements above {IN_PLACE_BYTES} bytes, and \
                     none of its sensors has them; give the sensor's `payload`, or leave `in_place` out",
                    update.name
                ));
            }
        }
        let Some(wcet) = update.wcet else {
            return Err(format!(
                "update `{}` has no wcet; measure one with `overhear run --measure-wcet`",
                update.name
            ));
        };
        for entry in &mut entries {
            if named.is_none_or(|ids| ids.contains(&entry.config.id)) {
                entry.load.wcet = entry.load.wcet.plus(wcet.0);
            }
        }
    }
    let mut loaded = entries.iter().filter(|entry| entry.count > 0);
    match loaded.find(|entry| entry.load.wcet == Nanos::ZERO) {
        Some(entry) => Err(format!(
            "sensor `{}` is evaluated by no [[update]] that takes time; add one with its wcet",
            entry.config.id
        )),
        None => Ok(entries),
    }
}

fn stream_of(sensor: &SensorConfig, base: &Path) -> Result<Constraint, String> {
    if let Some(recording) = &sensor.fitted {
        if sensor.distance.is_some() || sensor.jitter.is_some() {
            return Err("distance and jitter follow from the fit; leave them out".to_string());
        }
        let period = sensor.period.map(|period| period.0);
        let fitted = fit::fit(&base.join(recording), &sensor.id, period);
        let fitted = fitted.map_err(|failure| failure.sentence)?;
        return match fitted.is_complete() {
            true => Ok(fitted.stream()),
            false => Err(format!(
                "{} elements were missed in the recording, so it does not say how fast the sensor \
                 is; record it again, or declare period, distance and jitter",
                fitted.missed
            )),
        };
    }
    let Some(period) = sensor.period else {
        return Err(
            "it has no period; give period, distance and jitter, or a recording it is \
                    fitted to"
                .to_string(),
        );
    };
    let or_zero = |length: Option<crate::config::Length>| length.map_or(Nanos::ZERO, |l| l.0);
    let (distance, jitter) = (or_zero(sensor.distance), or_zero(sensor.jitter));
    Constraint::new(period.0, distance, jitter, Nanos::ZERO).map_err(|error| error.to_string())
}

impl Entry<'_> {
    fn terms(&self) -> SensorTerms {
        SensorTerms {
            name: self.config.id.clone(),
            constraint: self.load.stream,
            wcet: self.load.wcet,
            count: self.count,
        }
    }

    fn report(&self) -> SensorAdmission {
        let stream = self.load.stream;
        SensorAdmission {
            id: self.config.id.clone(),
            count: self.count,
            in_place: self.in_place,
            period_ns: stream.period().as_ns(),
            distance_ns: stream.distance().as_ns(),
            jitter_ns: stream.jitter().as_ns(),
            wcet_ns: self.load.wcet.as_ns(),
            burst_length: stream.burst_length().map(narrow),
            r_min: None,
            r_max: None,
            r: None,
            buffer_elements: self.buffer,
            backlog: None,
            copies: None,
            latency_ns: None,
        }
    }
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
fn too_small_in_place(entries: &[Entry<'_>], choice: &Choice) -> Option<String> {
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
            wished_latency_ns: update.latency.unwrap_or(self.monitor.latency).0.as_ns(),
            latency_ns: None,
        }
    }
}

impl AdmissionReport {
    /// Every update of the part gets the latency that was chosen.
    fn promise(&mut self, config: &Config, part: &Part) {
        let is_guaranteed = |update| Runner::from(config.executor_of(update)) == Runner::Guaranteed;
        let all = self.updates.iter_mut().zip(&config.updates).enumerate();
        for (_, (shown, _)) in all.filter(|(i, (_, it))| part.has_update(*i) && is_guaranteed(it)) {
            shown.latency_ns = self.latency_ns;
        }
    }

    fn refused(self) -> Admitted {
        Admitted {
            report: self,
            terms: None,
        }
    }

    fn fill(&mut self, entries: &[Entry<'_>], choice: &Choice, reservation: DeadlineReservation) {
        self.period_ns = Some(reservation.period.as_ns());
        self.deadline_ns = Some(reservation.deadline.as_ns());
        self.runtime_ns = Some(reservation.runtime.as_ns());
        self.utilisation =
            Some(reservation.runtime.as_ns() as f64 / reservation.period.as_ns() as f64);
        self.latency_ns = Some(nanos(choice.latency));
        let loads = loads(entries);
        let pool = Pool::new(&loads, choice.task).ok();
        let whose = entries.iter().enumerate();
        let whose = whose.flat_map(|(at, entry)| (0..entry.count).map(move |_| (at, entry)));
        for (i, ((at, entry), share)) in whose.zip(&choice.shares).enumerate() {
            let sensor = SingleSensor::new(entry.load.stream, choice.task);
            // Alone the thesis' bound holds, among others the exact one or the fallback E(l).
            let backlog = if loads.len() == 1 {
                sensor.b_max(share.r).ok().flatten()
            } else {
                let pool = pool.as_ref().and_then(|pool| {
                    let bound = pool.backlog(i, choice.evaluations).ok()??;
                    Some(bound.value)
                });
                pool.or(Some(entry.load.stream.elements_within(choice.latency)))
            };
            // Sensors of one entry may be given different shares: the largest of each is shown.
            let shown = &mut self.sensors[at];
            shown.r_min = Some(narrow(sensor.r_min()));
            shown.r_max = Some(narrow(sensor.r_max()));
            shown.r = shown.r.max(Some(narrow(share.r)));
            shown.backlog = shown.backlog.max(backlog.map(narrow));
            // The merge reads everything that came since the last period, however little is evaluated.
            let come = entry.load.stream.elements_within(choice.task.l_min());
            let copies = match entry.in_place {
                true => 0,
                false => narrow(share.plan.copies().max(come)),
            };
            shown.copies = shown.copies.max(Some(copies));
            let latency = sensor.latency(share.r).ok().flatten().map(nanos);
            shown.latency_ns = shown.latency_ns.max(latency);
        }
    }

    fn hear_kernel(&mut self, verdict: KernelVerdict) {
        let (word, refusal) = match verdict {
            KernelVerdict::Accepted => ("accepted", None),
            // Whether this user may reserve is not a question of the numbers.
            KernelVerdict::NotPermitted => ("not_permitted", None),
            KernelVerdict::Busy => (
                "busy",
                Some(
                    "the kernel refuses it: other deadline threads have reserved too much; end one",
                ),
            ),
            KernelVerdict::Unacceptable => (
                "unacceptable",
                Some("the kernel refuses these numbers, or has no deadline scheduler"),
            ),
        };
        self.kernel = word;
        if let Some(refusal) = refusal {
            self.accepted = false;
            self.reason = refusal.to_string();
        }
    }
}

/// The answer for people, on one screen of this width.
#[must_use]
pub fn render(report: &AdmissionReport, width: Width) -> String {
    let time = |ns: u64| Nanos::from_ns(ns).to_string();
    let maybe = |ns: Option<u64>| ns.map_or_else(|| "-".to_string(), time);
    let number = |n: Option<u64>| n.map_or_else(|| "-".to_string(), |n| n.to_string());
    let mut text = String::new();
    match (report.accepted, report.latency_ns) {
        (true, Some(latency)) => {
            let _ = writeln!(
                text,
                "accepted: every element is evaluated within {} (wished: {})",
                time(latency),
                time(report.wished_latency_ns)
            );
        }
        _ => {
            let _ = writeln!(text, "REFUSED: {}", report.reason);
        }
    }
    if let Some(utilisation) = report.utilisation {
        let _ = writeln!(
            text,
            "\nperiod {}, deadline {}, runtime {}: {:.2} % of a CPU",
            maybe(report.period_ns),
            maybe(report.deadline_ns),
            maybe(report.runtime_ns),
            utilisation * 100.0
        );
        let _ = writeln!(
            text,
            "the latency contains {} for late wake-ups, tardiness and hold-back",
            time(report.lateness_ns)
        );
    }
    let present = match report.others {
        0 => "nobody else has a reservation".to_string(),
        1 => "1 other thread has a reservation".to_string(),
        n => format!("{n} other threads have reservations"),
    };
    let _ = writeln!(text, "level {}; {present}", report.level);
    let kernel = match report.kernel {
        "accepted" => "the kernel takes the reservation (asked for, and given back)",
        "not_permitted" => {
            "the kernel was asked and lets this user reserve nothing: needs CAP_SYS_NICE"
        }
        "busy" | "unacceptable" => "the kernel refuses the reservation",
        _ => "the kernel was not asked",
    };
    let _ = writeln!(text, "{kernel}");
    let kib = report.memory_bytes.div_ceil(1024);
    let _ = writeln!(text, "memory of the monitor: at most {kib} KiB");
    if let Some(copying) = &report.copying {
        let _ = writeln!(
            text,
            "buffered: elements are copied within {}, by {} every {}: {:.2} % of a CPU",
            time(copying.latency_ns),
            time(copying.runtime_ns),
            time(copying.period_ns),
            copying.utilisation * 100.0
        );
    }
    text.push('\n');
    let mut table = Table::new(&[
        ("sensor", false),
        ("count", true),
        ("T", true),
        ("D", true),
        ("tau", true),
        ("wcet", true),
        ("L", true),
        ("R min", true),
        ("R", true),
        ("R max", true),
        ("buffer", true),
        ("backlog", true),
        ("copies", true),
        ("latency", true),
    ]);
    for sensor in &report.sensors {
        table.row(vec![
            crate::columns::printable(&sensor.id),
            sensor.count.to_string(),
            time(sensor.period_ns),
            time(sensor.distance_ns),
            time(sensor.jitter_ns),
            time(sensor.wcet_ns),
            sensor
                .burst_length
                .map_or_else(|| "endless".to_string(), |l| l.to_string()),
            number(sensor.r_min),
            number(sensor.r),
            number(sensor.r_max),
            sensor.buffer_elements.to_string(),
            number(sensor.backlog),
            number(sensor.copies),
            maybe(sensor.latency_ns),
        ]);
    }
    text.push_str(&table.render(width));
    let first = report.updates.first();
    let is_told = |it: &UpdateAdmission| {
        first.is_some_and(|first| {
            it.executor != first.executor || it.wished_latency_ns != first.wished_latency_ns
        })
    };
    // One screen: where all updates are alike, there is nothing to tell of each.
    if report.updates.iter().any(is_told) {
        let mut table = Table::new(&[
            ("update", false),
            ("executor", false),
            ("wished", true),
            ("guaranteed", true),
        ]);
        for update in &report.updates {
            table.row(vec![
                crate::columns::printable(&update.name),
                update.executor.to_string(),
                time(update.wished_latency_ns),
                maybe(update.latency_ns),
            ]);
        }
        text.push_str(&table.render(width));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use overhear_admission::DeadlineReservation;
    use overhear_event::Nanos;

    use super::{plan, render, Machine};
    use crate::config::Config;
    use crate::width::Width;

    fn machine(present: &[(u64, u64)]) -> Machine {
        let present = present
            .iter()
            .map(|&(runtime, period)| DeadlineReservation {
                runtime: Nanos::from_ms(runtime),
                deadline: Nanos::from_ms(period),
                period: Nanos::from_ms(period),
            });
        Machine {
            cpus: 2,
            present: present.collect(),
        }
    }

    const TWO: &str = r#"
        [monitor]
        latency = "50ms"
        [[sensor]]
        id = "queue"
        period = "1ms"
        distance = "50us"
        jitter = "5ms"
        [[sensor]]
        id = "torque"
        period = "40us"
        jitter = "3ms"
        [[update]]
        name = "histogram"
        wcet = "2us"
        [[update]]
        name = "alarm"
        sensors = ["torque"]
        wcet = "500ns"
    "#;

    #[test]
    fn what_is_accepted_adds_up() {
        let config = Config::parse(TWO).unwrap();
        let admitted = plan(&config, Path::new(""), &machine(&[])).unwrap();
        let (report, terms) = (admitted.report, admitted.terms.unwrap());
        assert!(report.accepted, "{}", report.reason);
        assert!(report.latency_ns.unwrap() <= 50_000_000);
        assert_eq!(terms.reservation.period.as_ns(), report.period_ns.unwrap());
        let [queue, torque] = report.sensors.as_slice() else {
            panic!("two sensors");
        };
        assert_eq!((queue.wcet_ns, torque.wcet_ns), (2_000, 2_500));
        assert_eq!(queue.burst_length, Some(6));
        let r = [queue.r.unwrap(), torque.r.unwrap()];
        let copies = [queue.copies.unwrap(), torque.copies.unwrap()];
        let evaluations = r[0] * 2_000 + r[1] * 2_500;
        // The last evaluation of a period may be the longest one.
        let whole = 2_500 - 1;
        let copying = (copies[0] + copies[1]) * 200;
        let runtime = report.runtime_ns.unwrap();
        let least = 20_000 + evaluations + whole + copying;
        assert!(runtime >= least, "{report:?}");
        // Granted for a period that was tried before, which needed no less.
        assert!(runtime <= least + least / 2, "{report:?}");
        // Everything that comes between two readings is copied.
        let span = terms.reservation.period.plus(terms.reservation.deadline);
        let come = terms.sensors[1].constraint.elements_within(span.into());
        assert!(u128::from(copies[1]) >= come, "{report:?}");
        for sensor in &report.sensors {
            assert!(sensor.backlog.unwrap() <= sensor.buffer_elements);
            assert!(sensor.latency_ns.unwrap() <= 50_000_000);
        }
        let screen = render(&report, Width::UNLIMITED);
        assert!(screen.starts_with("accepted: "), "{screen}");
        assert!(screen.lines().count() <= 24, "{screen}");
    }

    /// The answer for `TWO` with these replacements.
    fn answer(replaced: &[(&str, &str)]) -> Result<super::Admitted, String> {
        let mut text = TWO.to_string();
        for (from, to) in replaced {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let config = Config::parse(&text).unwrap();
        plan(&config, Path::new(""), &machine(&[]))
    }

    #[test]
    fn several_sensors_of_one_entry_are_admitted_one_by_one() {
        let one = answer(&[]).unwrap().report;
        let three = answer(&[("id = \"queue\"", "id = \"queue*\"\ncount = 3")]).unwrap();
        let (three, terms) = (three.report, three.terms.unwrap());
        assert_eq!((three.sensors[0].count, terms.sensors[0].count), (3, 3));
        assert_eq!(three.sensors.len(), 2);
        // As much as three entries that say the same.
        let queue = TWO.split("[[sensor]]").nth(1).unwrap();
        let twins =
            ["queue2", "queue3"].map(|id| format!("[[sensor]]{}", queue.replace("queue", id)));
        let apart = answer(&[(
            "[[update]]\n        name = \"histogram\"",
            &format!("{}[[update]]\n        name = \"histogram\"", twins.concat()),
        )]);
        let apart = apart.unwrap().report;
        assert_eq!(three.runtime_ns, apart.runtime_ns);
        assert_eq!(three.memory_bytes, apart.memory_bytes);
        assert!(three.utilisation > one.utilisation);
        assert!(three.memory_bytes > one.memory_bytes);
        let sentence = answer(&[("id = \"queue\"", "id = \"queue\"\ncount = 0")]).unwrap_err();
        assert!(
            sentence.contains("sensor `queue`: its count is 0"),
            "{sentence}"
        );
    }

    #[test]
    fn the_least_latency_that_updates_wish_is_the_one_that_is_kept() {
        let alarm = |latency: &str| {
            answer(&[(
                "wcet = \"500ns\"",
                &format!("wcet = \"500ns\"\nlatency = \"{latency}\""),
            )])
        };
        let report = alarm("20ms").unwrap().report;
        assert_eq!(report.wished_latency_ns, 20_000_000);
        let promised = report.latency_ns.unwrap();
        assert!(promised <= 20_000_000);
        for (update, wished) in report.updates.iter().zip([50_000_000, 20_000_000]) {
            assert_eq!(
                (update.wished_latency_ns, update.latency_ns),
                (wished, Some(promised))
            );
        }
        let screen = render(&report, Width::UNLIMITED);
        assert!(screen.contains("histogram  auto"), "{screen}");
        assert!(screen.lines().count() <= 24, "{screen}");
        let hasty = alarm("2500us").unwrap().report;
        assert!(!hasty.accepted);
        assert!(
            hasty
                .reason
                .starts_with("update `alarm`: `latency` is 2.50 ms"),
            "{}",
            hasty.reason
        );
        let sentence = alarm("1ms").unwrap_err();
        assert!(
            sentence.starts_with("update `alarm`: `latency` is "),
            "{sentence}"
        );
    }

    #[test]
    fn each_executor_reserves_for_its_own_updates() {
        let shared = ("[monitor]", "[monitor]\n level = \"shared\"");
        let histogram = "wcet = \"2us\"";
        let run = |executor: &str| {
            answer(&[
                shared,
                (
                    histogram,
                    &format!("executor = \"{executor}\"\n {histogram}"),
                ),
            ])
        };
        let alone = answer(&[shared]).unwrap().report;
        for executor in ["best_effort", "bandwidth", "buffered"] {
            let report = run(executor).unwrap().report;
            assert!(report.accepted, "{executor}: {}", report.reason);
            // The alarm alone is guaranteed, with its sensor alone.
            let [queue, torque] = report.sensors.as_slice() else {
                panic!("two sensors");
            };
            assert_eq!((queue.count, queue.r, torque.count), (0, None, 1));
            assert_eq!(torque.wcet_ns, 500);
            assert!(report.utilisation < alone.utilisation);
            let [histogram, alarm] = report.updates.as_slice() else {
                panic!("two updates");
            };
            assert_eq!((histogram.executor, histogram.latency_ns), (executor, None));
            assert_eq!(alarm.latency_ns, report.latency_ns);
            assert_eq!(report.copying.is_some(), executor == "buffered");
        }
        // Copying costs what the sensors' copies cost, and is admitted by the same rules.
        let copying = run("buffered").unwrap().report.copying.unwrap();
        assert!(
            copying.latency_ns <= 50_000_000 && copying.utilisation < 0.1,
            "{copying:?}"
        );
        // On one CPU of their own guaranteed updates would not be alone.
        for executor in ["bandwidth", "buffered"] {
            let own = answer(&[(
                histogram,
                &format!("executor = \"{executor}\"\n {histogram}"),
            )]);
            let sentence = own.unwrap_err();
            assert!(sentence.contains("own_cpu"), "{sentence}");
        }
        // Their reservations count at the shared level.
        let crowded = answer(&[
            (
                "[monitor]",
                "[monitor]\n level = \"shared\"\n cpus = 1\n cpu_percent = 95",
            ),
            (histogram, "executor = \"bandwidth\"\n wcet = \"2us\""),
        ]);
        assert!(!crowded.unwrap().report.accepted);
    }

    #[test]
    fn what_is_evaluated_in_place_must_fit_into_the_sensors_buffer() {
        let torque = "jitter = \"3ms\"";
        let alarm = "wcet = \"500ns\"";
        let place = |buffer: u64, in_place: bool| {
            let sensor = format!("{torque}\n payload = 1000\n buffer = {buffer}");
            answer(&[
                (torque, &sensor),
                (alarm, &format!("{alarm}\n in_place = {in_place}")),
            ])
        };
        // As copies few elements need to lie there.
        let copied = place(300, false).unwrap().report;
        assert!(copied.accepted, "{}", copied.reason);
        let refused = place(300, true).unwrap().report;
        assert!(!refused.accepted);
        let (_, wanted) = refused.reason.split_once("must hold the ").unwrap();
        let wanted: u64 = wanted.split(' ').next().unwrap().parse().unwrap();
        // All that can come within the latency, of 50 ms at most, at 40 us, and what is early.
        assert!((301..=1_400).contains(&wanted), "{}", refused.reason);
        let admitted = place(1_400, true).unwrap().report;
        assert!(admitted.accepted, "{}", admitted.reason);
        assert_eq!(
            (admitted.sensors[1].in_place, admitted.sensors[1].copies),
            (true, Some(0))
        );
        // Small elements are always copied.
        let sentence = answer(&[(alarm, &format!("{alarm}\n in_place = true"))]).unwrap_err();
        assert!(
            sentence.contains("update `alarm` evaluates in place"),
            "{sentence}"
        );
    }

    #[test]
    fn refusals_say_what_would_fit() {
        let of = |text: &str, present: &[(u64, u64)]| {
            let config = Config::parse(text).unwrap();
            plan(&config, Path::new(""), &machine(present))
                .unwrap()
                .report
        };
        let hasty = of(&TWO.replace("50ms", "2500us"), &[]);
        assert!(!hasty.accepted && hasty.period_ns.is_none());
        let (_, wanted) = hasty.reason.split_once("a latency of ").unwrap();
        let latency = wanted.split(" would").next().unwrap();
        let patient = of(&TWO.replace("50ms", latency), &[]);
        assert!(patient.accepted, "{}", hasty.reason);
        let dear = of(&TWO.replace("500ns", "50us"), &[]);
        assert!(
            dear.reason.contains("of a CPU in the mean"),
            "{}",
            dear.reason
        );
        // Two CPUs with others on them: the shared level counts them, the exclusive one does not.
        let shared = TWO.replace("[monitor]", "[monitor]\n level = \"shared\"");
        assert!(of(&shared, &[]).accepted);
        let crowded = of(&shared, &[(17, 20), (6, 20)]);
        assert!(crowded.reason.contains("Goossens"), "{}", crowded.reason);
        assert!(of(TWO, &[(17, 20), (6, 20)]).accepted);
    }

    #[test]
    fn mistakes_name_the_entry() {
        for (from, to, part) in [
            ("period = \"1ms\"", "period = \"0s\"", "sensor `queue`: "),
            (
                "distance = \"50us\"",
                "distance = \"2ms\"",
                "sensor `queue`: ",
            ),
            ("period = \"40us\"", "", "sensor `torque`: it has no period"),
            (
                "[\"torque\"]",
                "[\"talk\"]",
                "update `alarm` takes sensor `talk`",
            ),
            ("id = \"torque\"", "id = \"queue\"", "stands there twice"),
            (
                "latency = \"50ms\"",
                "latency = \"50ms\"\ncpu_percent = 0",
                "cpu_percent is 0",
            ),
            (
                "latency = \"50ms\"",
                "latency = \"50ms\"\nlevel = \"shared\"\nown_cpu = 1",
                "own_cpu sets a CPU apart",
            ),
            (
                "period = \"40us\"\n        jitter = \"3ms\"",
                "fitted = \"nowhere\"",
                "sensor `torque`: ",
            ),
        ] {
            let text = TWO.replace(from, to);
            assert_ne!(text, TWO, "{from}");
            let config = Config::parse(&text).unwrap();
            let sentence = plan(&config, Path::new("/none"), &machine(&[])).unwrap_err();
            assert!(sentence.contains(part), "{sentence}");
        }
        let config = Config::parse("[monitor]\nlatency = \"1s\"\n").unwrap();
        let sentence = plan(&config, Path::new(""), &machine(&[])).unwrap_err();
        assert!(sentence.contains("[[sensor]]"), "{sentence}");
    }
}
