// SPDX-License-Identifier: MIT OR Apache-2.0
//! A monitor as its file and the machine describe it, resolved and checked once before the
//! decision.
//!
//! [`ResolvedMonitor::of`] is the only step of admission that reads the configuration. The steps
//! that follow, the decision, its hints and its report, take the resolved monitor.

use std::path::Path;

use overhear_admission::{DeadlineReservation, Level};
use overhear_event::Nanos;
use overhear_monitor::executor::UpdateTerms;

use super::error::MonitorError;
use super::latency_request::LatencyRequest;
use super::memory::LoadedPlugin;
use super::other_reservations::OtherReservations;
use super::sensor::{self, ResolvedSensor, WcetRule};
use super::{Machine, UpdateAdmission};
use crate::config::selection::{ExecutorKind, Selection};
use crate::config::{Config, ExecutorConfig, LevelConfig, UpdateConfig};

/// A monitor that passed all checks of its description: admission can decide on it.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedMonitor {
    pub(super) level: Level,
    /// Whether a CPU is set apart for it.
    pub(crate) has_dedicated_cpu: bool,
    /// Number of CPUs that the shared level may use; at least 1.
    pub(super) cpus: u32,
    /// Reservations of other programs.
    pub(super) present: Vec<DeadlineReservation>,
    /// Latency of the guaranteed updates.
    pub(super) latency_request: LatencyRequest,
    /// All sensors, in the order of the file, with the demand of the guaranteed updates.
    pub(super) sensors: Vec<ResolvedSensor>,
    /// All updates, in the order of the file.
    pub(super) updates: Vec<ResolvedUpdate>,
    /// Reservations of the updates that are not guaranteed.
    pub(super) others: OtherReservations,
}

/// An `[[update]]`.
#[derive(Clone, Debug)]
pub(super) struct ResolvedUpdate {
    pub(super) name: String,
    pub(super) executor: ExecutorConfig,
    /// Its own latency, or that of the monitor; `None` if the file states none.
    pub(super) latency: Option<Nanos>,
    pub(super) wcet: Option<Nanos>,
    /// Whether admission counts it: it is guaranteed, or no update of the file is.
    pub(super) is_selected: bool,
    pub(super) kind: UpdateKind,
    /// Ids of the sensors whose elements it takes; `None` for all.
    sensors: Option<Vec<String>>,
}

/// The kind of an update, with the facts that bound its memory.
#[derive(Clone, Debug)]
pub(super) enum UpdateKind {
    /// Counts elements, or the values of a field.
    Counting { has_field: bool },
    /// Counts the measurements of a metric.
    Metric,
    /// An update of a plug-in.
    Plugin {
        /// The plug-in; `None` if the plug-ins of the file are not loaded.
        loaded: Option<LoadedPlugin>,
        /// Bytes that the file allows it; `None` if it states no number.
        memory: Option<u64>,
    },
}

impl ResolvedMonitor {
    /// Resolves a file on this machine. Recordings that sensors are fitted to lie below `base`;
    /// `plugins` has the plug-in of each update, or is empty.
    pub(super) fn of(
        config: &Config,
        base: &Path,
        machine: &Machine,
        plugins: &[Option<LoadedPlugin>],
    ) -> Result<Self, MonitorError> {
        let monitor = &config.monitor;
        let cpus = machine.cpus_for(config);
        if cpus == 0 {
            return Err(MonitorError::NoCpus);
        }
        if monitor.dedicated_cpu.is_some() && monitor.level == LevelConfig::Shared {
            return Err(MonitorError::DedicatedCpuIsShared);
        }
        let selection = guaranteed_selection(config);
        let sensors = sensor::resolve(config, base, &selection, WcetRule::Stated)?;
        let latency_request = LatencyRequest::checked(config, &selection)?;
        let mut updates = config.updates.iter();
        if let Some(update) = updates.find(|it| it.plugin.is_none() && it.memory.is_some()) {
            return Err(MonitorError::MemoryWithoutPlugin(update.name.clone()));
        }
        let updates = config.updates.iter().enumerate();
        let updates = updates.map(|(index, update)| ResolvedUpdate {
            name: update.name.clone(),
            executor: config.executor_of(update),
            latency: update.latency.or(monitor.latency).map(|it| it.0),
            wcet: update.wcet.map(|wcet| wcet.0),
            is_selected: selection.has_update(index),
            kind: UpdateKind::of(update, plugins.get(index).cloned().flatten()),
            sensors: update.sensors.clone(),
        });
        Ok(Self {
            level: level_of(monitor.level),
            has_dedicated_cpu: monitor.dedicated_cpu.is_some(),
            cpus,
            present: machine.present.clone(),
            latency_request,
            sensors,
            updates: updates.collect(),
            others: OtherReservations::of(config, base, cpus)?,
        })
    }
}

impl ResolvedUpdate {
    /// Whether it takes the elements of this sensor.
    pub(super) fn takes(&self, id: &str) -> bool {
        let named = self.sensors.as_ref();
        named.is_none_or(|ids| ids.iter().any(|own| own == id))
    }

    /// Whether the latency that is admitted holds for it.
    pub(super) fn is_guaranteed(&self) -> bool {
        self.is_selected && ExecutorKind::from(self.executor) == ExecutorKind::Guaranteed
    }

    pub(super) fn terms(&self) -> UpdateTerms {
        UpdateTerms {
            name: self.name.clone(),
            wcet: self.wcet.unwrap_or(Nanos::ZERO),
        }
    }

    /// Its part of a report, without a guarantee.
    pub(super) fn report(&self) -> UpdateAdmission {
        UpdateAdmission {
            name: self.name.clone(),
            executor: self.executor.name(),
            requested_latency_ns: self.latency.map(Nanos::as_ns),
            latency_ns: None,
        }
    }
}

impl UpdateKind {
    fn of(update: &UpdateConfig, loaded: Option<LoadedPlugin>) -> Self {
        if update.plugin.is_some() {
            let memory = update.memory;
            return Self::Plugin { loaded, memory };
        }
        match update.metric {
            Some(_) => Self::Metric,
            None => Self::Counting {
                has_field: update.field.is_some(),
            },
        }
    }
}

/// The updates that admission counts: the guaranteed ones; if there are none, all updates, as if
/// they were guaranteed.
fn guaranteed_selection(config: &Config) -> Selection {
    config
        .selection(ExecutorKind::Guaranteed)
        .unwrap_or_else(|| config.full_selection())
}

pub(super) const fn level_of(level: LevelConfig) -> Level {
    match level {
        LevelConfig::Exclusive => Level::Exclusive,
        LevelConfig::Shared => Level::Shared,
    }
}
