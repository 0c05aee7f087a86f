// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report of admission, also as JSON.

use overhear_admission::{DeadlineReservation, Pool, ReservationPlan, SingleSensor};
use overhear_monitor::scheduler::KernelVerdict;
use serde::Serialize;

use super::resolved::{ResolvedMonitor, ResolvedUpdate};
use super::sensor::{loads, ResolvedSensor};
use super::{level_name, nanos, saturated, Admitted, MemoryBytes};
use crate::error::ErrorKind;
use crate::sampling::SamplerAdmission;

/// The report of admission. If the monitor is refused, the numbers of its reservation are null.
#[derive(Clone, Debug, Serialize)]
pub struct AdmissionReport {
    /// Whether every element will be evaluated within the latency.
    pub accepted: bool,
    /// The reason of a refusal, with a hint; empty if accepted.
    pub reason: String,
    /// `exclusive` or `shared`; `none` for a file without a monitor.
    pub level: &'static str,
    /// The latency that the file requests.
    pub requested_latency_ns: u64,
    /// T_M, the period.
    pub period_ns: Option<u64>,
    /// The relative deadline of the reservation.
    pub deadline_ns: Option<u64>,
    /// CPU time per period.
    pub runtime_ns: Option<u64>,
    /// `runtime / period`.
    pub utilisation: Option<f64>,
    /// The latency that is guaranteed.
    pub latency_ns: Option<u64>,
    /// Lateness of wake-ups and of the scheduler, and hold-back, which the latency contains.
    pub lateness_ns: u64,
    /// Result of a reservation that a thread made and gave back at once: `accepted`, `busy`,
    /// `not_permitted` or `unacceptable`; `not_asked` without a plan.
    pub kernel: &'static str,
    /// Message about the permission or feature whose absence would keep `overhear run` from a
    /// guarantee here; null if nothing is absent.
    pub lacking: Option<String>,
    /// Number of reservations of other programs.
    pub others: usize,
    /// Upper bound of the monitor's memory: its maps of the sensors' buffers, the queues that it
    /// copies to, the distributions that it counts, and the memory of plug-ins.
    pub memory_bytes: u64,
    /// The part of it that plug-ins have: their mapped files, and the memory that their updates may
    /// allocate.
    pub plugin_memory_bytes: u64,
    /// One per sensor, in the order of the file.
    pub sensors: Vec<SensorAdmission>,
    /// One per update, in the order of the file.
    pub updates: Vec<UpdateAdmission>,
    /// The reservation of the thread that copies for buffered updates; null without such updates.
    pub copying: Option<CopyingAdmission>,
    /// One per sampler, in the order of the file.
    pub samplers: Vec<SamplerAdmission>,
}

/// The executor and the latency of an update.
#[derive(Clone, Debug, Serialize)]
pub struct UpdateAdmission {
    /// Its name in the file.
    pub name: String,
    /// `auto`, `deadline`, `bandwidth`, `buffered` or `best_effort`.
    pub executor: &'static str,
    /// The latency that the file requests for it; null if the file states none.
    pub requested_latency_ns: Option<u64>,
    /// The latency that is guaranteed; null without a guarantee.
    pub latency_ns: Option<u64>,
}

/// The thread that copies elements for buffered updates.
#[derive(Clone, Debug, Serialize)]
pub struct CopyingAdmission {
    /// Its period.
    pub period_ns: u64,
    /// The relative deadline of the reservation.
    pub deadline_ns: u64,
    /// CPU time per period.
    pub runtime_ns: u64,
    /// `runtime / period`.
    pub utilisation: f64,
    /// Bound of the time from the stamp of an element to its copy.
    pub latency_ns: u64,
    /// The reservation.
    #[serde(skip)]
    pub(crate) reservation: DeadlineReservation,
}

/// The result of admission for one sensor.
#[derive(Clone, Debug, Serialize)]
pub struct SensorAdmission {
    /// Its id in the file.
    pub id: String,
    /// Number of sensors that the entry stands for, each with the numbers below; 0 if no guaranteed
    /// update takes it.
    pub count: u32,
    /// Whether an update evaluates its elements in place.
    pub in_place: bool,
    /// Number of rings of a kernel sensor: one for each possible CPU, each large enough for the
    /// complete sensor; null for sensors of programs.
    pub rings: Option<u32>,
    /// T, the period.
    pub period_ns: u64,
    /// D, the least distance.
    pub distance_ns: u64,
    /// tau, the jitter.
    pub jitter_ns: u64,
    /// W, the sum over all updates that take its elements.
    pub wcet_ns: u64,
    /// L, the length of a burst in elements; null for an endless burst.
    pub burst_length: Option<u64>,
    /// The least R that evaluates as many elements as arrive in the mean.
    pub r_min: Option<u64>,
    /// The R that evaluates all elements that can arrive in a period.
    pub r_max: Option<u64>,
    /// R, evaluations per period.
    pub r: Option<u64>,
    /// Elements that the shared buffer holds.
    pub buffer_elements: u64,
    /// Upper bound of the elements that wait at any time.
    pub backlog: Option<u64>,
    /// Upper bound of the elements that are copied to private memory per period.
    pub copies: Option<u64>,
    /// The latency that R alone gives this sensor.
    pub latency_ns: Option<u64>,
}

impl AdmissionReport {
    /// The reason that the plan cannot run: it is refused, or a permission or feature is absent.
    /// `None` if it can run.
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
            requested_latency_ns: monitor.latency_request.latency.as_ns(),
            period_ns: None,
            deadline_ns: None,
            runtime_ns: None,
            utilisation: None,
            latency_ns: None,
            lateness_ns: monitor.latency_request.request.lateness.as_ns(),
            kernel: "not_asked",
            lacking: None,
            others: monitor.present.len(),
            memory_bytes: memory.total(),
            plugin_memory_bytes: memory.of_plugins(),
            sensors: monitor.sensors.iter().map(ResolvedSensor::report).collect(),
            updates: monitor.updates.iter().map(ResolvedUpdate::report).collect(),
            copying: None,
            samplers: Vec::new(),
        }
    }

    /// A report on the samplers of a file without a monitor.
    pub(crate) fn of_samplers(samplers: Vec<SamplerAdmission>) -> Self {
        Self {
            accepted: true,
            reason: String::new(),
            level: "none",
            requested_latency_ns: 0,
            period_ns: None,
            deadline_ns: None,
            runtime_ns: None,
            utilisation: None,
            latency_ns: None,
            lateness_ns: 0,
            kernel: "not_asked",
            lacking: None,
            others: 0,
            memory_bytes: 0,
            plugin_memory_bytes: 0,
            sensors: Vec::new(),
            updates: Vec::new(),
            copying: None,
            samplers,
        }
    }

    /// Sets the latency of every guaranteed update.
    pub(super) fn set_guaranteed_latency(&mut self, updates: &[ResolvedUpdate]) {
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
        let entries = sensors.iter().enumerate();
        let entries = entries.flat_map(|(at, entry)| (0..entry.count).map(move |_| (at, entry)));
        for (i, ((at, entry), share)) in entries.zip(&choice.shares).enumerate() {
            let sensor = SingleSensor::new(entry.load.stream, choice.task);
            // One sensor alone has GRTMon's bound. Several have the exact bound of the pool, or the
            // fallback E(l).
            let backlog = if loads.len() == 1 {
                sensor.b_max(share.r).ok().flatten()
            } else {
                let pool = pool.as_ref().and_then(|pool| {
                    let bound = pool.backlog(i, choice.evaluations).ok()??;
                    Some(bound.value)
                });
                pool.or(Some(entry.load.stream.elements_within(choice.latency)))
            };
            // Sensors of one entry may have different shares. The report has the largest of each.
            let shown = &mut self.sensors[at];
            shown.r_min = Some(saturated(sensor.r_min()));
            shown.r_max = Some(saturated(sensor.r_max()));
            shown.r = shown.r.max(Some(saturated(share.r)));
            shown.backlog = shown.backlog.max(backlog.map(saturated));
            // The merge reads all elements that arrived since the last period, even if fewer are
            // evaluated.
            let arriving = entry.load.stream.elements_within(choice.task.l_min());
            let copies = match entry.in_place {
                true => 0,
                false => saturated(share.plan.copies().max(arriving)),
            };
            shown.copies = shown.copies.max(Some(copies));
            let latency = sensor.latency(share.r).ok().flatten().map(nanos);
            shown.latency_ns = shown.latency_ns.max(latency);
        }
    }

    pub(crate) fn set_kernel_verdict(&mut self, verdict: KernelVerdict) {
        let (word, refusal) = match verdict {
            KernelVerdict::Accepted => ("accepted", None),
            // A missing permission does not make the plan wrong.
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
