// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which sensors are switched on: by the needs of monitors, and by explicit settings.
//!
//! 1. A sensor is *unneeded* if this directory or an attached monitor requests unneeded sensors to
//!    be off ([`Needs::disable_unused`](crate::Needs::disable_unused)), and neither the directory
//!    nor a monitor that holds the sensor needs it. A monitor's request concerns the sensors that
//!    it may switch.
//! 2. An explicit setting, by the request `switch`, overrides rule 1. *Off* lasts until *on*. *On*
//!    of an unneeded sensor lasts until the sensor is needed, or no request of rule 1 is left; *on*
//!    of any other sensor leaves no setting.
//! 3. So when the last monitor with such a request detaches, exactly the sensors that were off
//!    because of rule 1 are switched on. The journal has these sensors, for a directory after a
//!    restart, which has no monitors yet.
//!
//! A sensor that is on by these rules may be off for a [budget](super::budgets): then it counts the
//! writes that it skips.
//!
//! A monitor's needs and requests are evaluated once per sensor, when the pair is new, and stored
//! with the sensor: later updates compare no patterns.

use overhear_event::{StreamDescriptor, StreamId};
use overhear_stream::SwitchState;

use super::{Registry, Sensor};
use crate::journal::Entry;

impl Registry {
    /// Rule 1, for a new sensor of the user `owner`.
    pub(crate) fn is_unneeded(&self, owner: u32, sensor: &StreamDescriptor) -> bool {
        let own = self.needs.as_ref();
        let is_spared = |monitor| self.disables_unneeded(monitor, owner, sensor);
        let needs = |monitor| self.needs_new(monitor, owner, sensor);
        (own.is_some() || self.monitors.values().any(is_spared))
            && !own.is_some_and(|own| own.matches(sensor))
            && !self.monitors.values().any(needs)
    }

    /// Whether a monitor requests this sensor to be off while it is unneeded.
    pub(super) fn disables_unneeded(
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

    /// Evaluates rules 1 and 2 for a sensor whose needs have changed, and sets its switch.
    pub(super) fn update_switch(&mut self, stream: StreamId) {
        let is_sparing = self.needs.is_some();
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            return;
        };
        let unneeded = (is_sparing || !sensor.disabled_by.is_empty())
            && !sensor.is_needed_here
            && !sensor.holders.values().any(|needs| *needs);
        let is_new = sensor.unneeded != unneeded;
        if is_new {
            sensor.unneeded = unneeded;
            if sensor.manual == Some(true) {
                sensor.manual = None;
            }
        }
        // A monitor that has come or gone may change whether a budget has it off.
        if is_new || !sensor.off_for.is_empty() {
            self.write_switch(stream);
        }
    }

    /// Sets a sensor's switch explicitly; true if that changed it.
    pub(crate) fn set_enabled(&mut self, stream: StreamId, enabled: bool) -> bool {
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            return false;
        };
        let before = sensor.enabled;
        sensor.manual = match enabled {
            false => Some(false),
            true => sensor.unneeded.then_some(true),
        };
        self.write_switch(stream) != before
    }

    /// Writes a sensor's switch into its control page; true if it is on.
    pub(super) fn write_switch(&mut self, stream: StreamId) -> bool {
        let of_budget = self.sensors.get(&stream);
        let of_budget = of_budget.is_some_and(|it| !it.off_for.is_empty() && !self.is_claimed(it));
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            return false;
        };
        let enabled = sensor.manual.unwrap_or(!sensor.unneeded);
        let auto_disabled = sensor.unneeded && sensor.manual != Some(false);
        if let (Some(journal), true) = (&mut self.journal, sensor.auto_disabled != auto_disabled) {
            let stream = stream.as_raw();
            journal.write(&Entry::AutoDisabled {
                stream,
                auto_disabled,
            });
        }
        sensor.auto_disabled = auto_disabled;
        let line = sensor.slot.and_then(|slot| {
            let lanes = sensor.registered.shape.lanes();
            self.tasks.get(&sensor.pid)?.control.line(slot, lanes)
        });
        // A sensor without a line cannot be switched.
        if let Some(line) = line {
            let state = match enabled {
                false => SwitchState::Off,
                true if !of_budget => SwitchState::On,
                true => SwitchState::Counted,
            };
            if line.state() != state {
                line.switch(state);
            }
            sensor.enabled = enabled;
        }
        sensor.enabled
    }
}

impl Sensor {
    /// Restores the switch of a sensor after a restart, from its control line and the journal.
    pub(super) fn restore_switch(&mut self, enabled: bool, auto_disabled: bool) {
        (self.enabled, self.unneeded, self.auto_disabled) = (enabled, auto_disabled, auto_disabled);
        self.manual = (enabled == auto_disabled).then_some(enabled);
    }
}
