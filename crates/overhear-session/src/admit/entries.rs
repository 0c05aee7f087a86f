// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensors of a file, each with what its updates cost.

use std::path::Path;

use overhear_admission::{ArrivalBound, SensorLoad};
use overhear_directory::{suggested_capacity, Query};
use overhear_event::{Nanos, IN_PLACE_BYTES};
use overhear_kernel::Probe;
use overhear_monitor::executor::SensorTerms;

use super::kernel::KernelRing;
use super::{buffered_length, lateness_of, narrow, SensorAdmission};
use crate::config::selection::Selection;
use crate::config::{Config, Length, SensorConfig, UpdateConfig};
use crate::fit;

/// A sensor with what its updates cost.
pub(super) struct Entry<'a> {
    pub(super) config: &'a SensorConfig,
    pub(super) load: SensorLoad,
    pub(super) buffer: u64,
    // How many there are for the updates that are looked at.
    pub(super) count: u32,
    pub(super) in_place: bool,
    // Of a kernel sensor.
    pub(super) ring: Option<KernelRing>,
}

/// What each sensor that an entry stands for asks for.
pub(super) fn loads(entries: &[Entry<'_>]) -> Vec<SensorLoad> {
    let all = entries.iter();
    all.flat_map(|entry| (0..entry.count).map(|_| entry.load))
        .collect()
}

/// The id of the entry that a load of [`loads`] stands for.
pub(super) fn id_of_load<'a>(entries: &[Entry<'a>], load: usize) -> &'a str {
    let all = entries.iter();
    let mut ids = all.flat_map(|entry| (0..entry.count).map(|_| entry.config.id.as_str()));
    ids.nth(load).unwrap_or("?")
}

/// The sensors of the file, loaded with the updates of this selection.
pub(super) fn entries<'a>(
    config: &'a Config,
    base: &Path,
    selection: &Selection,
) -> Result<Vec<Entry<'a>>, String> {
    if config.sensors.is_empty() {
        return Err("there is no [[sensor]]; name at least one with its period".to_string());
    }
    let latency = buffered_length(config, selection);
    let lateness = lateness_of(config).total().unwrap_or(Nanos::ZERO);
    let probes = config.probes()?;
    let mut entries: Vec<Entry<'a>> = Vec::new();
    for (index, sensor) in config.sensors.iter().enumerate() {
        if entries.iter().any(|entry| entry.config.id == sensor.id) {
            return Err(format!("sensor `{}` stands there twice", sensor.id));
        }
        let count = match selection.has_sensor(index) {
            true => sensor.count,
            false => 0,
        };
        let times = (latency, lateness);
        entries.push(entry(sensor, (index, count), base, times, &probes)?);
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
        if selection.has_update(index) {
            load(update, &mut entries)?;
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

/// The entry of one sensor, not yet loaded.
fn entry<'a>(
    sensor: &'a SensorConfig,
    (index, count): (usize, u32),
    base: &Path,
    (latency, lateness): (Nanos, Nanos),
    probes: &[Probe],
) -> Result<Entry<'a>, String> {
    if sensor.id.is_empty() {
        let place = index + 1;
        return Err(format!(
            "[[sensor]] number {place}: its `id` is empty; give the sensor's id, or a pattern"
        ));
    }
    let of_sensor = |sentence: String| format!("sensor `{}`: {sentence}", sensor.id);
    let of_kernel = sensor.of_kernel(probes).map_err(of_sensor)?;
    if of_kernel.is_none() {
        Query::parse(&sensor.id).map_err(|error| of_sensor(error.to_string()))?;
    }
    let stream = stream_of(sensor, base).map_err(of_sensor)?;
    for (key, number, least, most) in [
        ("count", sensor.count, 1, 256),
        ("lanes", sensor.lanes, 1, 4096),
        ("payload", sensor.payload, 0, 65536),
    ] {
        if !(least..=most).contains(&number) {
            return Err(format!(
                "sensor `{}`: its {key} is {number}; give {least} to {most}",
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
    let ring = of_kernel.map(|it| {
        let ring = KernelRing::new(it, stream, (latency, lateness), sensor.buffer);
        ring.map_err(of_sensor)
    });
    let ring = ring.transpose()?;
    // One slot may be in the making.
    let buffer = match (&ring, sensor.buffer) {
        (Some(ring), _) => ring.buffer(),
        (None, Some(buffer)) => buffer,
        (None, None) => suggested_capacity(Some(&rate), 16, 1, 0) - 1,
    };
    Ok(Entry {
        config: sensor,
        load: SensorLoad {
            stream,
            wcet: Nanos::ZERO,
            copy: sensor.copy.0,
            buffer: Some(buffer),
        },
        buffer,
        count,
        in_place: false,
        ring,
    })
}

/// Adds the time of an update to the sensors that it takes.
fn load(update: &UpdateConfig, entries: &mut [Entry<'_>]) -> Result<(), String> {
    let named = update.sensors.as_deref();
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
    if let Some(field) = &update.field {
        let takes = |entry: &&Entry<'_>| named.is_some_and(|ids| ids.contains(&entry.config.id));
        for entry in entries.iter().filter(takes) {
            let has = entry.ring.as_ref().map(|ring| ring.require_number(field));
            let has = has.unwrap_or(Ok(()));
            has.map_err(|sentence| {
                format!("update `{}`: `{}` {sentence}", update.name, entry.config.id)
            })?;
        }
    }
    let Some(wcet) = update.wcet else {
        return Err(format!(
            "update `{}` has no wcet; measure one with `overhear run --measure-wcet`",
            update.name
        ));
    };
    for entry in &mut *entries {
        if named.is_none_or(|ids| ids.contains(&entry.config.id)) {
            entry.load.wcet = entry.load.wcet.plus(wcet.0);
        }
    }
    Ok(())
}

fn stream_of(sensor: &SensorConfig, base: &Path) -> Result<ArrivalBound, String> {
    if let Some(recording) = &sensor.fitted {
        if sensor.distance.is_some() || sensor.jitter.is_some() {
            return Err("distance and jitter follow from the fit; leave them out".to_string());
        }
        let period = sensor.period.map(|period| period.0);
        let fitted = fit::fit(&base.join(recording), &sensor.id, period);
        let fitted = fitted.map_err(|failure| failure.message)?;
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
    let or_zero = |length: Option<Length>| length.map_or(Nanos::ZERO, |l| l.0);
    let (distance, jitter) = (or_zero(sensor.distance), or_zero(sensor.jitter));
    ArrivalBound::new(period.0, distance, jitter, Nanos::ZERO).map_err(|error| error.to_string())
}

impl Entry<'_> {
    pub(super) fn terms(&self) -> SensorTerms {
        SensorTerms {
            name: self.config.id.clone(),
            constraint: self.load.stream,
            wcet: self.load.wcet,
            count: self.count,
            buffer: self.buffer,
        }
    }

    pub(super) fn report(&self) -> SensorAdmission {
        let stream = self.load.stream;
        SensorAdmission {
            id: self.config.id.clone(),
            count: self.count,
            in_place: self.in_place,
            rings: self.ring.as_ref().map(|_| overhear_kernel::possible_cpus()),
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
