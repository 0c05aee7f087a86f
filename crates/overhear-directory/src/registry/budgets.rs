// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that monitors switch off to keep a budget.
//!
//! 1. A sensor is off for a budget as long as at least one monitor requests that, and no monitor
//!    *claims* it. A monitor claims the sensors that it needs, unless it yields to budgets
//!    ([`Needs::yield_to_budgets`](crate::Needs::yield_to_budgets)), as one with a budget of its
//!    own does. So a monitor without a budget misses nothing, and the smallest of several budgets
//!    holds.
//! 2. The sensor counts the writes that it skips, and every monitor that reads it gets them as gaps
//!    of the cause [`Budget`](overhear_event::GapCause::Budget). A sensor that is off for another
//!    reason (`switching`) counts nothing.
//! 3. When a monitor is gone, so are its requests: the end of its connection suffices, so a monitor
//!    that was killed leaves no sensor off.

use std::collections::BTreeSet;

use overhear_event::StreamId;

use super::{MonitorId, Registry, Sensor};
use crate::peer::Peer;

/// Sensors that a monitor may have switched off, at most; they are charged to nobody.
const MAX_SENSORS: usize = 4096;

impl Registry {
    /// Switches a sensor off for the budget of a monitor, or on again; whether that changed its
    /// request.
    ///
    /// # Errors
    /// A message: the user may not switch the sensor, or too many are off.
    pub(crate) fn set_budget(
        &mut self,
        id: MonitorId,
        peer: Option<&Peer>,
        stream: StreamId,
        off: bool,
    ) -> Result<bool, String> {
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            // It has ended.
            return Ok(false);
        };
        if let Some(peer) = peer {
            let descriptor = &sensor.registered.descriptor;
            // A user who may not read a sensor gets no hint that it exists.
            if self.rules.may_attach(peer, sensor.uid, descriptor).is_err() {
                return Ok(false);
            }
            self.rules.may_switch(peer, sensor.uid, descriptor)?;
        }
        let own = self.budgets.entry(id).or_default();
        let changed = match off {
            true if own.len() >= MAX_SENSORS && !own.contains(&stream) => {
                return Err(format!(
                    "a budget switches at most {MAX_SENSORS} sensors off at a time"
                ));
            }
            true => own.insert(stream) | sensor.off_for.insert(id),
            false => own.remove(&stream) | sensor.off_for.remove(&id),
        };
        if own.is_empty() {
            self.budgets.remove(&id);
        }
        if changed {
            self.write_switch(stream);
        }
        Ok(changed)
    }

    /// Whether a monitor that does not yield to budgets needs the sensor.
    pub(super) fn is_claimed(&self, sensor: &Sensor) -> bool {
        let claims = |id: &MonitorId| self.monitors.get(id).is_some_and(|it| !it.needs.yields);
        let mut needing = sensor.holders.iter().filter(|(_, needs)| **needs);
        // The needs of the directory's builder are those of the monitor in its process.
        (sensor.is_needed_here && claims(&MonitorId::Embedded)) || needing.any(|(id, _)| claims(id))
    }

    /// Whether a sensor that a budget has requested to be off is on, because it is claimed.
    pub(crate) fn is_kept_on(&self, stream: StreamId) -> bool {
        let sensor = self.sensors.get(&stream);
        sensor.is_some_and(|sensor| !sensor.off_for.is_empty() && self.is_claimed(sensor))
    }

    /// Sets whether the monitor in this process yields to budgets.
    pub(crate) fn yield_embedded(&mut self, yields: bool) {
        let Some(monitor) = self.monitors.get_mut(&MonitorId::Embedded) else {
            return;
        };
        monitor.needs.yields = yields;
        let requested = self.budgets.values().flatten().copied();
        let requested: BTreeSet<StreamId> = requested.collect();
        for stream in requested {
            self.write_switch(stream);
        }
    }

    /// Ends the requests about a sensor that is gone: its number is used again.
    pub(super) fn forget_budgets_of(&mut self, stream: StreamId, sensor: &Sensor) {
        for id in &sensor.off_for {
            let Some(own) = self.budgets.get_mut(id) else {
                continue;
            };
            own.remove(&stream);
            if own.is_empty() {
                self.budgets.remove(id);
            }
        }
    }

    /// Ends the requests of a monitor that is gone.
    pub(crate) fn end_budget(&mut self, id: MonitorId) {
        let streams: BTreeSet<StreamId> = self.budgets.remove(&id).unwrap_or_default();
        for stream in streams {
            if let Some(sensor) = self.sensors.get_mut(&stream) {
                sensor.off_for.remove(&id);
                self.write_switch(stream);
            }
        }
    }
}
