// SPDX-License-Identifier: MIT OR Apache-2.0
//! The answer of admission, for people and as JSON.

use overhear_admission::{DeadlineReservation, Pool, ReservationPlan, SingleSensor};
use overhear_monitor::scheduler::KernelVerdict;
use serde::Serialize;

use super::resolved::{ResolvedMonitor, ResolvedUpdate};
use super::sensor::{loads, ResolvedSensor};
use super::{level_name, nanos, narrow, Admitted, MemoryBytes};
use crate::error::ErrorKind;

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
    /// Lateness of wake-ups and of the scheduler, and hold-back, which the latency contains.
    pub lateness_ns: u64,
    /// What the kernel said, asked for the reservation in a thread that gave it back at once:
    /// `accepted`, `busy`, `not_permitted`, `unacceptable`; `not_asked` without a plan.
    pub kernel: &'static str,
    /// What this user or machine lacks, so that `overhear run` would guarantee nothing here; null
    /// if nothing.
    pub lacking: Option<String>,
    /// Reservations of others that were present.
    pub others: usize,
    /// The most memory that the monitor takes: its maps of the sensors' buffers, what it copies to,
    /// the distributions that it counts, and what plug-ins have.
    pub memory_bytes: u64,
    /// What plug-ins have of that: what was mapped to load them, and what their updates may
    /// allocate.
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
    /// How many sensors it stands for, each with the numbers that follow; 0 where no guaranteed
    /// update takes it.
    pub count: u32,
    /// Whether an update evaluates its elements in place.
    pub in_place: bool,
    /// Of a kernel sensor, how many rings it has: one for each CPU that there can be, each with the
    /// room for all of it; null for sensors of programs.
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
    /// Why the plan cannot run: refused, or unavailable if this user or machine lacks something.
    /// `None` if it can.
    #[must_use]
    pub const fn obstacle(&self) -> Option<ErrorKind> {
        match (self.accepted, &self.lacking) {
            (false, _) => Some(ErrorKind::Refused),
            (true, Some(_)) => Some(ErrorKind::Unavailable),
            (true, None) => None,
        }
    }

    /// A report on a monitor, before the decision.
    pub(super) fn undecided(monitor: &ResolvedMonitor, memory: &MemoryBytes) -> Self {
        Self {
            accepted: false,
            reason: String::new(),
            level: level_name(monitor.level),
            wished_latency_ns: monitor.wish.latency.as_ns(),
            period_ns: None,
            deadline_ns: None,
            runtime_ns: None,
            utilisation: None,
            latency_ns: None,
            lateness_ns: monitor.wish.request.lateness.as_ns(),
            kernel: "not_asked",
            lacking: None,
            others: monitor.present.len(),
            memory_bytes: memory.total(),
            plugin_memory_bytes: memory.of_plugins(),
            sensors: monitor.sensors.iter().map(ResolvedSensor::report).collect(),
            updates: monitor.updates.iter().map(ResolvedUpdate::report).collect(),
            copying: None,
        }
    }

    /// Gives every guaranteed update the latency that was chosen.
    pub(super) fn promise(&mut self, updates: &[ResolvedUpdate]) {
        let all = self.updates.iter_mut().zip(updates);
        for (shown, _) in all.filter(|(_, update)| update.is_guaranteed()) {
            shown.latency_ns = self.latency_ns;
        }
    }

    pub(super) fn refused(self, reason: String) -> Admitted {
        Admitted {
            report: Self { reason, ..self },
            terms: None,
            memory: MemoryBytes::default(),
        }
    }

    pub(super) fn fill(
        &mut self,
        sensors: &[ResolvedSensor],
        choice: &ReservationPlan,
        reservation: DeadlineReservation,
    ) {
        self.period_ns = Some(reservation.period.as_ns());
        self.deadline_ns = Some(reservation.deadline.as_ns());
        self.runtime_ns = Some(reservation.runtime.as_ns());
        self.utilisation =
            Some(reservation.runtime.as_ns() as f64 / reservation.period.as_ns() as f64);
        self.latency_ns = Some(nanos(choice.latency));
        let loads = loads(sensors);
        let pool = Pool::new(&loads, choice.task).ok();
        let whose = sensors.iter().enumerate();
        let whose = whose.flat_map(|(at, entry)| (0..entry.count).map(move |_| (at, entry)));
        for (i, ((at, entry), share)) in whose.zip(&choice.shares).enumerate() {
            let sensor = SingleSensor::new(entry.load.stream, choice.task);
            // Alone GRTMon's bound holds, among others the exact one or the fallback E(l).
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
            // The merge reads everything that came since the last period, however little is
            // evaluated.
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
