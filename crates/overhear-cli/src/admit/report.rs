// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of admission, for people and as JSON.

use std::fmt::Write;

use overhear_admission::{Choice, DeadlineReservation, Pool, SingleSensor};
use overhear_event::Nanos;
use overhear_monitor::scheduler::KernelVerdict;
use serde::Serialize;

use super::entries::{loads, Entry};
use super::{nanos, narrow, Admitted, MemoryBytes};
use crate::columns::Table;
use crate::config::selection::{Runner, Selection};
use crate::config::Config;
use crate::exit::{COMPLETE, REFUSED, UNAVAILABLE};
use crate::width::Width;

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
    /// What this user or machine lacks, so that `overhear run` would guarantee nothing here; null if nothing.
    pub lacking: Option<String>,
    /// Reservations of others that were present.
    pub others: usize,
    /// The most memory that the monitor takes: its maps of the sensors' buffers, what it copies to, the
    /// distributions that it counts, and what plug-ins have.
    pub memory_bytes: u64,
    /// What plug-ins have of that: what was mapped to load them, and what their updates may allocate.
    pub plugin_memory_bytes: u64,
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
    /// The latency that it wishes; null where the file says none.
    pub wished_latency_ns: Option<u64>,
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
    /// Of a kernel sensor, how many rings it has: one for each CPU that there can be, each with the room for
    /// all of it; null for sensors of programs.
    pub rings: Option<u32>,
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

impl AdmissionReport {
    /// The exit status: 4 refused, 5 if this user or machine lacks something.
    #[must_use]
    pub const fn status(&self) -> u8 {
        match (self.accepted, &self.lacking) {
            (false, _) => REFUSED,
            (true, Some(_)) => UNAVAILABLE,
            (true, None) => COMPLETE,
        }
    }

    /// Every update of the selection gets the latency that was chosen.
    pub(super) fn promise(&mut self, config: &Config, selection: &Selection) {
        let is_guaranteed = |update| Runner::from(config.executor_of(update)) == Runner::Guaranteed;
        let all = self.updates.iter_mut().zip(&config.updates).enumerate();
        for (_, (shown, _)) in
            all.filter(|(i, (_, it))| selection.has_update(*i) && is_guaranteed(it))
        {
            shown.latency_ns = self.latency_ns;
        }
    }

    pub(super) fn refused(self) -> Admitted {
        Admitted {
            report: self,
            terms: None,
            memory: MemoryBytes::default(),
        }
    }

    pub(super) fn fill(
        &mut self,
        entries: &[Entry<'_>],
        choice: &Choice,
        reservation: DeadlineReservation,
    ) {
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

    pub(super) fn hear_kernel(&mut self, verdict: KernelVerdict) {
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
            let guarantees = report.updates.iter().any(|it| it.latency_ns.is_some());
            if let Some(lacking) = &report.lacking {
                let _ = writeln!(text, "NOT HERE: {lacking}");
            }
            let (accepted, verb) = match guarantees && report.lacking.is_none() {
                true => ("accepted", "is"),
                false => ("accepted by its numbers", "would be"),
            };
            let _ = writeln!(
                text,
                "{accepted}: every element {verb} evaluated within {} (wished: {})",
                time(latency),
                time(report.wished_latency_ns)
            );
            if !guarantees {
                text.push_str("nothing is guaranteed: no update asks for it by its executor\n");
            }
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
    let plugins = match report.plugin_memory_bytes.div_ceil(1024) {
        0 => String::new(),
        kib => format!(", {kib} KiB of it for plug-ins"),
    };
    let _ = writeln!(text, "memory of the monitor: at most {kib} KiB{plugins}");
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
    if let Some(rings) = report.sensors.iter().find_map(|sensor| sensor.rings) {
        let _ = writeln!(
            text,
            "kernel sensors: {rings} rings of this buffer, one for each CPU that there can be"
        );
    }
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
                maybe(update.wished_latency_ns),
                maybe(update.latency_ns),
            ]);
        }
        text.push_str(&table.render(width));
    }
    text
}
