// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensors of a file, each with the demand of its updates.

use std::path::Path;

use overhear_admission::{ArrivalBound, SensorLoad};
use overhear_directory::{suggested_capacity, Query};
use overhear_event::{Nanos, IN_PLACE_BYTES};
use overhear_kernel::Probe;
use overhear_monitor::executor::SensorTerms;

use super::error::{MonitorError, SensorError};
use super::kernel::KernelRing;
use super::latency_request::{buffered_length, lateness_of};
use super::{saturated, SensorAdmission};
use crate::config::selection::Selection;
use crate::config::{Config, Length, SensorConfig, UpdateConfig};
use crate::fit;

/// A `[[sensor]]` with the demand of the updates of a selection.
#[derive(Clone, Debug)]
pub(super) struct ResolvedSensor {
    pub(super) id: String,
    pub(super) load: SensorLoad,
    /// Elements that its buffer holds.
    pub(super) buffer: u64,
    /// Whether the file states the buffer.
    pub(super) has_own_buffer: bool,
    /// Number of sensors that it stands for; 0 if no update of the selection takes it.
    pub(super) count: u32,
    pub(super) lanes: u32,
    /// Largest payload of an element, in bytes.
    pub(super) payload: u32,
    /// Whether an update evaluates its elements in place.
    pub(super) in_place: bool,
    /// The rings of a kernel sensor.
    pub(super) ring: Option<KernelRing>,
}

/// The worst-case execution times that count for the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WcetRule {
    /// Those that the file states; an update without one is an error.
    Stated,
    /// Those that the file states, and the least one for other updates: for a monitor without
    /// admission.
    Optional,
    /// The least one for all updates: for a thread that copies elements and evaluates none.
    Ignored,
}

impl WcetRule {
    fn wcet(self, update: &UpdateConfig) -> Option<Nanos> {
        const LEAST: Nanos = Nanos::from_ns(1);
        let stated = update.wcet.map(|wcet| wcet.0);
        match self {
            Self::Stated => stated,
            Self::Optional => stated.or(Some(LEAST)),
            Self::Ignored => Some(LEAST),
        }
    }
}

/// The load of each sensor that an entry stands for.
pub(super) fn loads(sensors: &[ResolvedSensor]) -> Vec<SensorLoad> {
    let all = sensors.iter();
    all.flat_map(|sensor| (0..sensor.count).map(|_| sensor.load))
        .collect()
}

/// The id of the entry that a load of [`loads`] stands for.
pub(super) fn id_of_load(sensors: &[ResolvedSensor], load: usize) -> &str {
    let all = sensors.iter();
    let mut ids = all.flat_map(|sensor| (0..sensor.count).map(|_| sensor.id.as_str()));
    ids.nth(load).unwrap_or("?")
}

/// The sensors of the file, with the load of the updates of this selection.
pub(super) fn resolve(
    config: &Config,
    base: &Path,
    selection: &Selection,
    rule: WcetRule,
) -> Result<Vec<ResolvedSensor>, MonitorError> {
    if config.sensors.is_empty() {
        return Err(MonitorError::NoSensor);
    }
    let latency = buffered_length(config, selection);
    let lateness = lateness_of(config).total().unwrap_or(Nanos::ZERO);
    let probes = config.probes().map_err(MonitorError::Probe)?;
    let mut sensors: Vec<ResolvedSensor> = Vec::new();
    for (index, entry) in config.sensors.iter().enumerate() {
        if sensors.iter().any(|sensor| sensor.id == entry.id) {
            return Err(MonitorError::SensorTwice(entry.id.clone()));
        }
        if entry.id.is_empty() {
            return Err(MonitorError::EmptyId(index + 1));
        }
        let count = match selection.has_sensor(index) {
            true => entry.count,
            false => 0,
        };
        let sensor = resolve_one(entry, count, base, (latency, lateness), &probes);
        sensors.push(sensor.map_err(|error| MonitorError::Sensor {
            id: entry.id.clone(),
            error,
        })?);
    }
    for (index, update) in config.updates.iter().enumerate() {
        let named = update.sensors.as_deref();
        for id in named.unwrap_or_default() {
            if !sensors.iter().any(|sensor| sensor.id == *id) {
                return Err(MonitorError::UnknownSensor {
                    update: update.name.clone(),
                    sensor: id.clone(),
                });
            }
        }
        if selection.has_update(index) {
            load(update, &mut sensors, rule)?;
        }
    }
    let mut loaded = sensors.iter().filter(|sensor| sensor.count > 0);
    match loaded.find(|sensor| sensor.load.wcet == Nanos::ZERO) {
        Some(sensor) => Err(MonitorError::SensorWithoutUpdate(sensor.id.clone())),
        None => Ok(sensors),
    }
}

/// One sensor, without load.
fn resolve_one(
    entry: &SensorConfig,
    count: u32,
    base: &Path,
    (latency, lateness): (Nanos, Nanos),
    probes: &[Probe],
) -> Result<ResolvedSensor, SensorError> {
    let of_kernel = entry.of_kernel(probes).map_err(SensorError::Kernel)?;
    if of_kernel.is_none() {
        Query::parse(&entry.id).map_err(SensorError::Pattern)?;
    }
    let stream = stream_of(entry, base)?;
    for (key, number, least, most) in [
        ("count", entry.count, 1, 256),
        ("lanes", entry.lanes, 1, 4096),
        ("payload", entry.payload, 0, 65536),
    ] {
        if !(least..=most).contains(&number) {
            return Err(SensorError::OutOfRange {
                key,
                number,
                least,
                most,
            });
        }
    }
    if entry.buffer == Some(0) {
        return Err(SensorError::NoBuffer);
    }
    let rate = stream.to_rate();
    let ring = of_kernel.map(|it| {
        let ring = KernelRing::new(it, stream, (latency, lateness), entry.buffer);
        ring.map_err(SensorError::Kernel)
    });
    let ring = ring.transpose()?;
    // One slot may be in the middle of a write.
    let buffer = match (&ring, entry.buffer) {
        (Some(ring), _) => ring.buffer(),
        (None, Some(buffer)) => buffer,
        (None, None) => suggested_capacity(Some(&rate), 16, 1, 0) - 1,
    };
    Ok(ResolvedSensor {
        id: entry.id.clone(),
        load: SensorLoad {
            stream,
            wcet: Nanos::ZERO,
            copy: entry.copy.0,
            buffer: Some(buffer),
        },
        buffer,
        has_own_buffer: entry.buffer.is_some(),
        count,
        lanes: entry.lanes,
        payload: entry.payload,
        in_place: false,
        ring,
    })
}

/// Adds the WCET of an update to the load of the sensors that it takes.
fn load(
    update: &UpdateConfig,
    sensors: &mut [ResolvedSensor],
    rule: WcetRule,
) -> Result<(), MonitorError> {
    let named = update.sensors.as_deref();
    if update.in_place {
        let is_large = |sensor: &&mut ResolvedSensor| {
            update.takes(&sensor.id) && sensor.payload > IN_PLACE_BYTES
        };
        let mut found = 0;
        for sensor in sensors.iter_mut().filter(is_large) {
            sensor.in_place = true;
            found += 1;
        }
        if found == 0 {
            return Err(MonitorError::NothingInPlace(update.name.clone()));
        }
    }
    if let Some(field) = &update.field {
        let takes = |sensor: &&ResolvedSensor| named.is_some_and(|ids| ids.contains(&sensor.id));
        for sensor in sensors.iter().filter(takes) {
            let has = sensor.ring.as_ref().map(|ring| ring.require_number(field));
            has.unwrap_or(Ok(()))
                .map_err(|message| MonitorError::Field {
                    update: update.name.clone(),
                    sensor: sensor.id.clone(),
                    message,
                })?;
        }
    }
    let Some(wcet) = rule.wcet(update) else {
        return Err(MonitorError::NoWcet(update.name.clone()));
    };
    for sensor in &mut *sensors {
        if update.takes(&sensor.id) {
            sensor.load.wcet = sensor.load.wcet.plus(wcet);
        }
    }
    Ok(())
}

fn stream_of(sensor: &SensorConfig, base: &Path) -> Result<ArrivalBound, SensorError> {
    if let Some(recording) = &sensor.fitted {
        if sensor.distance.is_some() || sensor.jitter.is_some() {
            return Err(SensorError::FittedAndStated);
        }
        let period = sensor.period.map(|period| period.0);
        let fitted = fit::fit(&base.join(recording), &sensor.id, period);
        let fitted = fitted.map_err(|failure| SensorError::Fit(failure.message))?;
        return match fitted.is_complete() {
            true => Ok(fitted.stream()),
            false => Err(SensorError::FittedToLosses(fitted.missed)),
        };
    }
    let Some(period) = sensor.period else {
        return Err(SensorError::NoPeriod);
    };
    let or_zero = |length: Option<Length>| length.map_or(Nanos::ZERO, |length| length.0);
    let (distance, jitter) = (or_zero(sensor.distance), or_zero(sensor.jitter));
    ArrivalBound::new(period.0, distance, jitter, Nanos::ZERO).map_err(SensorError::Arrivals)
}

impl ResolvedSensor {
    pub(super) fn terms(&self) -> SensorTerms {
        SensorTerms {
            name: self.id.clone(),
            constraint: self.load.stream,
            wcet: self.load.wcet,
            count: self.count,
            buffer: self.buffer,
        }
    }

    pub(super) fn report(&self) -> SensorAdmission {
        let stream = self.load.stream;
        SensorAdmission {
            id: self.id.clone(),
            count: self.count,
            in_place: self.in_place,
            rings: self.ring.as_ref().map(|_| overhear_kernel::possible_cpus()),
            period_ns: stream.period().as_ns(),
            distance_ns: stream.distance().as_ns(),
            jitter_ns: stream.jitter().as_ns(),
            wcet_ns: self.load.wcet.as_ns(),
            burst_length: stream.burst_length().map(saturated),
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
