// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which sensors are written: what monitors need, and what somebody has chosen.
//!
//! 1. A sensor is *unneeded* if this directory or an attached monitor wishes that only what is needed is
//!    observed, and neither the directory nor any monitor that reads it needs it. A monitor's wish concerns
//!    the sensors that it may switch.
//! 2. A choice, by `switch`, goes before that. Off stays off until it is on again. On, of a sensor that is
//!    unneeded, holds until it is needed or nobody wishes any more; of any other it leaves no choice behind.
//! 3. So when a monitor that had the wish is gone, what was switched off for its sake alone is on again, and
//!    nothing else. The journal says which sensors are off because they are unneeded: a directory that is
//!    started again finds them so, and nobody attached yet.
//!
//! What a monitor needs and wishes is decided once for each sensor, when the two meet, and kept with the
//! sensor: to find out anew what is unneeded takes no pattern.

use overhear_event::{StreamDescriptor, StreamId};

use super::{Registry, Sensor};
use crate::journal::Entry;

impl Registry {
    /// Rule 1, for a sensor of the user `owner` that is about to exist.
    pub(crate) fn is_unneeded(&self, owner: u32, sensor: &StreamDescriptor) -> bool {
        let own = self.needs.as_ref();
        let is_spared = |monitor| self.spares(monitor, owner, sensor);
        let needs = |monitor| self.needs_new(monitor, owner, sensor);
        (own.is_some() || self.monitors.values().any(is_spared))
            && !own.is_some_and(|own| own.matches(sensor))
            && !self.monitors.values().any(needs)
    }

    /// Whether a monitor wishes this sensor off unless it is needed.
    pub(super) fn spares(
        &self,
        monitor: &super::Monitor,
        owner: u32,
        sensor: &StreamDescriptor,
    ) -> bool {
        let may = |peer| self.rules.may_switch(peer, owner, sensor).is_ok();
        monitor.needs.only && monitor.peer().is_none_or(may)
    }

    fn needs_new(&self, monitor: &super::Monitor, owner: u32, sensor: &StreamDescriptor) -> bool {
        let may = |peer| self.rules.may_attach(peer, owner, sensor).is_ok();
        monitor.peer().is_none_or(may) && monitor.wants(sensor) && monitor.needs.matches(sensor)
    }

    /// Finds out anew whether a sensor is unneeded, when who needs it has changed.
    pub(super) fn settle(&mut self, stream: StreamId) {
        let is_sparing = self.needs.is_some();
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            return;
        };
        let unneeded = (is_sparing || !sensor.spared_by.is_empty())
            && !sensor.is_needed_here
            && !sensor.holders.values().any(|needs| *needs);
        if sensor.unneeded != unneeded {
            sensor.unneeded = unneeded;
            if sensor.chosen == Some(true) {
                sensor.chosen = None;
            }
            self.write_switch(stream);
        }
    }

    /// Switches a sensor; says whether that changed anything.
    pub(crate) fn set_enabled(&mut self, stream: StreamId, enabled: bool) -> bool {
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            return false;
        };
        let before = sensor.enabled;
        sensor.chosen = match enabled {
            false => Some(false),
            true => sensor.unneeded.then_some(true),
        };
        self.write_switch(stream) != before
    }

    /// Writes the switch of a sensor into its control page; says whether it is on then.
    pub(super) fn write_switch(&mut self, stream: StreamId) -> bool {
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            return false;
        };
        let enabled = sensor.chosen.unwrap_or(!sensor.unneeded);
        let spared = sensor.unneeded && sensor.chosen != Some(false);
        if let (Some(journal), true) = (&mut self.journal, sensor.spared != spared) {
            let stream = stream.as_raw();
            journal.write(&Entry::Spared { stream, spared });
        }
        sensor.spared = spared;
        let line = sensor.place.and_then(|place| {
            let lanes = sensor.registered.shape.lanes();
            self.tasks.get(&sensor.pid)?.control.line(place, lanes)
        });
        // A sensor without a line cannot be switched.
        if let Some(line) = line {
            if line.is_enabled() != enabled {
                line.set_enabled(enabled);
            }
            sensor.enabled = enabled;
        }
        sensor.enabled
    }
}

impl Sensor {
    /// What is known of a sensor of an earlier life, by its control line and the journal.
    pub(super) fn recall(&mut self, enabled: bool, spared: bool) {
        (self.enabled, self.unneeded, self.spared) = (enabled, spared, spared);
        self.chosen = (enabled == spared).then_some(enabled);
    }
}
