// SPDX-License-Identifier: MIT OR Apache-2.0
//! The life of sensors: opened, ended, freed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use overhear_event::{StreamDescriptor, StreamId};
use overhear_stream::SwitchState;

use super::{MonitorId, ReadableSensor, Registry};
use crate::control::ControlSlot;
use crate::description::record_bytes;
use crate::file_watch::FileCharge;
use crate::journal::{sensor_name, Entry};
use crate::memory::MemoryFile;
use crate::quota::{Amounts, Resource};
use crate::sensor_record::{SensorRecord, SensorState};
use crate::worker::LARGE_BYTES;

/// The record of a sensor.
#[derive(Debug)]
pub(crate) struct Sensor {
    pub(crate) registered: ReadableSensor,
    /// The file for monitors. `None` if the quota of descriptors was used up.
    pub(crate) file: Option<MemoryFile>,
    pub(crate) token: u64,
    // The charge of the file; `None` after a restart: the watch has it.
    pub(crate) charge: Option<FileCharge>,
    // The charge of the directory's own memory for it.
    record: Amounts,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) slot: Option<ControlSlot>,
    pub(crate) enabled: bool,
    /// The explicit switch setting of a user (`switching`, rule 2).
    pub(super) manual: Option<bool>,
    /// Whether it is unneeded (`switching`, rule 1).
    pub(super) unneeded: bool,
    /// Whether it is off only because it is unneeded. The journal has this.
    pub(crate) auto_disabled: bool,
    pub(crate) state: SensorState,
    freed_at: Option<Instant>,
    // Monitors that hold it, and whether each needs it.
    pub(super) holders: BTreeMap<MonitorId, bool>,
    // Monitors that request it to be off while it is unneeded.
    pub(super) disabled_by: BTreeSet<MonitorId>,
    // Monitors whose budget has it off (`budgets`).
    pub(super) off_for: BTreeSet<MonitorId>,
    // Whether the directory itself needs it.
    pub(super) is_needed_here: bool,
    pub(crate) was_read: bool,
}

impl Sensor {
    pub(crate) fn new(
        registered: ReadableSensor,
        file: Option<MemoryFile>,
        token: u64,
        pid: u32,
        uid: u32,
    ) -> Self {
        let record = record_of(&registered, file.is_some());
        Self {
            registered,
            file,
            token,
            charge: None,
            record,
            pid,
            uid,
            slot: None,
            enabled: true,
            manual: None,
            unneeded: false,
            auto_disabled: false,
            state: SensorState::Live,
            freed_at: None,
            holders: BTreeMap::new(),
            disabled_by: BTreeSet::new(),
            off_for: BTreeSet::new(),
            is_needed_here: false,
            was_read: false,
        }
    }

    pub(crate) fn record(&self) -> SensorRecord {
        let tally = self.registered.tally();
        SensorRecord {
            descriptor: (*self.registered.descriptor).clone(),
            kind: self.registered.shape.kind(),
            lanes: self.registered.shape.lanes(),
            clock: self.registered.clock,
            uid: self.uid,
            state: self.state,
            enabled: self.enabled,
            bytes: self.registered.shape.bytes() as u64,
            published: tally.published,
            lost_nested: tally.lost_nested,
            lost_full: tally.lost_full,
            monitors: u32::try_from(self.holders.len()).unwrap_or(u32::MAX),
        }
    }

    fn name(&self) -> (u32, String, String) {
        let descriptor = &self.registered.descriptor;
        (
            self.pid,
            descriptor.sensor.clone(),
            descriptor.instance.clone(),
        )
    }
}

impl Registry {
    /// Restores a sensor from before a restart.
    pub(crate) fn readmit(&mut self, mut sensor: Sensor, state: SensorState, auto_disabled: bool) {
        let stream = sensor.registered.descriptor.id;
        self.quotas.count(sensor.uid, sensor.record);
        let lanes = sensor.registered.shape.lanes();
        let task = match state {
            SensorState::Live => self.restored_task(sensor.pid, sensor.uid),
            _ => None,
        };
        // Its process may have ended meanwhile: `end_departed` handles that.
        if let Some(task) = task {
            task.sensors.insert(stream);
            if let Some(slot) = sensor.slot {
                task.control.claim(slot, lanes);
                let line = task.control.line(slot, lanes);
                let enabled = line
                    .as_ref()
                    .is_none_or(|line| line.state() != SwitchState::Off);
                // A budget ends with the directory that served its monitor.
                if let Some(line) = line.filter(|line| line.state() == SwitchState::Counted) {
                    line.switch(SwitchState::On);
                }
                sensor.restore_switch(enabled, auto_disabled);
            }
        }
        let own = self.needs.as_ref();
        sensor.is_needed_here = own.is_some_and(|own| own.matches(&sensor.registered.descriptor));
        let streams = sensor.registered.shape.streams();
        self.numbers.claim(stream.as_raw(), streams);
        self.insert(sensor);
        // No monitor is attached yet.
        self.update_switch(stream);
        if state != SensorState::Live {
            self.end(stream, state);
        }
    }

    fn insert(&mut self, sensor: Sensor) {
        let stream = sensor.registered.descriptor.id;
        if sensor.registered.shape.lanes() > 0 {
            self.laned.insert(stream);
        }
        self.names.insert(sensor.name(), stream);
        self.sensors.insert(stream, sensor);
    }

    /// Opens a sensor for monitors. If its process has ended meanwhile, the sensor ends at once.
    pub(crate) fn open(&mut self, mut sensor: Sensor) {
        let stream = sensor.registered.descriptor.id;
        let pid = sensor.pid;
        let own = self.needs.as_ref();
        sensor.is_needed_here = own.is_some_and(|own| own.matches(&sensor.registered.descriptor));
        if let Some(file) = &sensor.file {
            self.keep_file(sensor.uid, sensor_name(stream.as_raw()), file);
        }
        if let (Some(journal), Some(_)) = (&mut self.journal, &sensor.file) {
            journal.write(&Entry::Sensor(Box::new(sensor.kept())));
        }
        self.insert(sensor);
        let monitors: Vec<MonitorId> = self.monitors.keys().copied().collect();
        for id in monitors {
            self.meet(id, stream, true);
        }
        // Its line was written at the grant; monitors may have attached or detached since.
        if let Some((slot, lanes)) = self.control_slot_of(stream) {
            self.set_deferred(pid, slot, lanes, false);
        }
        self.update_switch(stream);
        self.write_switch(stream);
        match self.tasks.get_mut(&pid) {
            Some(task) => {
                task.granted = task.granted.saturating_sub(1);
                task.sensors.insert(stream);
            }
            None => self.end(stream, SensorState::Retained),
        }
    }

    fn control_slot_of(&self, stream: StreamId) -> Option<(ControlSlot, u32)> {
        let sensor = self.sensors.get(&stream)?;
        Some((sensor.slot?, sensor.registered.shape.lanes()))
    }

    pub(crate) fn sensor(&self, stream: StreamId) -> Option<&Sensor> {
        self.sensors.get(&stream)
    }

    /// The sensors from a number on, in order.
    pub(crate) fn sensors_from(&self, first: StreamId) -> impl Iterator<Item = &Sensor> {
        self.sensors.range(first..).map(|(_, sensor)| sensor)
    }

    /// Frees these names for a new sensor of a process, if their sensor is unmapped or has ended.
    ///
    /// # Errors
    /// If the process has a live sensor with these names.
    pub(crate) fn free_name(
        &mut self,
        pid: u32,
        descriptor: &StreamDescriptor,
    ) -> Result<(), String> {
        let StreamDescriptor {
            sensor, instance, ..
        } = descriptor;
        let has_already = || {
            Err(format!(
                "this process has such a sensor already; give the second one an instance (id \
                 `{sensor}`, instance `{instance}`)"
            ))
        };
        if self.has_deferred_twin(pid, sensor, instance) {
            return has_already();
        }
        let name = (pid, sensor.clone(), instance.clone());
        let Some(&stream) = self.names.get(&name) else {
            return Ok(());
        };
        let twin = self.sensors.get(&stream);
        let is_open = |file: &MemoryFile| file.is_open_elsewhere();
        if twin.is_some_and(|twin| twin.file.as_ref().is_none_or(is_open)) {
            return has_already();
        }
        // Two causes unmap a stream without an event for the directory. An `exec`: the process
        // continues with another program, which may register the same names. A lost answer: the
        // program repeats its registration, and nothing may stay of the first attempt.
        let is_empty = twin.is_some_and(|twin| twin.registered.tally().is_empty());
        self.end(
            stream,
            match is_empty {
                true => SensorState::Unregistered,
                false => SensorState::Retained,
            },
        );
        Ok(())
    }

    /// Unregisters a sensor if the token matches; true if it did.
    pub(crate) fn unregister(&mut self, stream: StreamId, token: u64) -> bool {
        let fits = self
            .sensors
            .get(&stream)
            .is_some_and(|sensor| sensor.token == token);
        if fits {
            self.end(stream, SensorState::Unregistered);
            self.release_unmapped(stream);
        }
        fits || self.unregister_deferred(stream, token)
    }

    /// A program has unregistered a sensor whose end the directory had already seen, because it was
    /// unmapped: it is freed once no monitor holds it, without retention.
    fn release_unmapped(&mut self, stream: StreamId) {
        let retained = self.sensors.get_mut(&stream);
        let retained = retained.filter(|sensor| sensor.state == SensorState::Retained);
        if let Some(sensor) = retained.filter(|sensor| sensor.holders.is_empty()) {
            sensor.state = SensorState::Unregistered;
            self.free(stream);
        }
    }

    /// Ends a sensor: its program writes nothing more.
    pub(crate) fn end(&mut self, stream: StreamId, state: SensorState) {
        let live = |sensor: &&mut Sensor| sensor.state == SensorState::Live;
        let Some(sensor) = self.sensors.get_mut(&stream).filter(live) else {
            return;
        };
        sensor.state = state;
        if let Some(journal) = &mut self.journal {
            let stream = stream.as_raw();
            journal.write(&Entry::Ended { stream, state });
        }
        self.laned.remove(&stream);
        let (name, pid) = (sensor.name(), sensor.pid);
        if self.names.get(&name) == Some(&stream) {
            self.names.remove(&name);
        }
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.sensors.remove(&stream);
            if let Some(slot) = sensor.slot.take() {
                task.control
                    .give_back(slot, sensor.registered.shape.lanes());
            }
        }
        if state == SensorState::Retained {
            let freed_at = Instant::now() + self.retention;
            sensor.freed_at = Some(freed_at);
            self.retained.insert((freed_at, stream));
            let of_user = self.retained_of.entry(sensor.uid).or_default();
            of_user.insert((freed_at, stream));
        }
        let unneeded = state == SensorState::Unregistered && sensor.holders.is_empty();
        self.queue_ended(stream);
        self.forget_if_idle(pid);
        if unneeded {
            self.free(stream);
        }
    }

    pub(super) fn free(&mut self, stream: StreamId) {
        let Some(sensor) = self.sensors.remove(&stream) else {
            return;
        };
        let mut unread = false;
        if let Some(freed_at) = sensor.freed_at {
            self.retained.remove(&(freed_at, stream));
            if let Some(of_user) = self.retained_of.get_mut(&sensor.uid) {
                of_user.remove(&(freed_at, stream));
                if of_user.is_empty() {
                    self.retained_of.remove(&sensor.uid);
                }
            }
            // A sensor that was unregistered is not retained for later monitors.
            unread = !sensor.was_read && sensor.state == SensorState::Retained;
            self.freed_unread += u64::from(unread);
        }
        if let (Some(journal), Some(_)) = (&mut self.journal, &sensor.file) {
            let stream = stream.as_raw();
            journal.write(&Entry::Freed { stream, unread });
        }
        self.forget_file(&sensor_name(stream.as_raw()));
        for id in sensor.holders.keys() {
            if let Some(monitor) = self.monitors.get_mut(id) {
                monitor.holds.remove(&stream);
            }
        }
        self.forget_budgets_of(stream, &sensor);
        self.numbers.give_back(stream.as_raw());
        self.release(sensor.uid, sensor.record);
        let charge = sensor.charge;
        let mapping = sensor.registered.mapping;
        match (sensor.file, &self.work_queue) {
            // Freeing its pages takes the kernel long.
            (Some(file), Some(queue)) if file.bytes() > LARGE_BYTES => {
                queue.close(sensor.uid, file, mapping);
            }
            // Closed before the check whether these were the last references.
            (file, _) => drop((mapping, file)),
        }
        self.file_closed(charge);
    }
}

/// The charge of a sensor besides its buffer.
fn record_of(registered: &ReadableSensor, has_file: bool) -> Amounts {
    let bytes = registered.shape.bytes() as u64;
    let record = record_bytes(&registered.descriptor, bytes);
    Amounts::of(Resource::RecordBytes, record).and(Resource::Descriptors, has_file.into())
}
