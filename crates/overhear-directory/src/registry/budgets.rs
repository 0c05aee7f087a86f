// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that monitors switch off to keep a budget.
//!
//! A sensor is off for a budget as long as at least one monitor requests that. It counts the writes
//! that it skips, and every monitor that reads it gets them as gaps of the cause
//! [`Budget`](overhear_event::GapCause::Budget). A sensor that is off for another reason
//! (`switching`) counts nothing. When a monitor is gone, so are its requests.

use std::collections::BTreeSet;

use overhear_event::StreamId;

use super::{MonitorId, Registry};
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
            true => own.insert(stream) && sensor.off_for.insert(id),
            false => own.remove(&stream) && sensor.off_for.remove(&id),
        };
        if own.is_empty() {
            self.budgets.remove(&id);
        }
        if changed {
            self.write_switch(stream);
        }
        Ok(changed)
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
