// SPDX-License-Identifier: MIT OR Apache-2.0
//! Deferred sensors, which wait for memory.
//!
//! If a quota of buffers is used up, a sensor is deferred instead of refused, if its program
//! supports that. The program gets the file, of which only the header pages exist, and the sensor
//! is switched off, at the usual price of a switched-off sensor. When enough memory is released,
//! the directory allocates the rest, opens the sensor for monitors and switches it on. The program
//! does nothing for it, and the code that writes elements has no special case.
//!
//! The pages of a deferred sensor are charged. If its program touches further pages, or its process
//! ends, the directory removes the sensor.

use std::collections::{BTreeMap, BTreeSet};

use overhear_event::StreamId;

use super::Registry;
use crate::journal::{sensor_name, Entry, KeptSensor};
use crate::memory::MemoryFile;
use crate::opening::Opening;

/// Bytes that the program of a deferred sensor may touch besides its headers: the first element of
/// each ring, in C even while the sensor is off.
pub(crate) const MAX_TOUCHED_BYTES: u64 = 64 * 1024;
/// Sensors checked, or admitted, per tick, at most.
const MAX_PER_TICK: usize = 16;

/// The deferred sensors, and the order in which they are admitted.
#[derive(Debug, Default)]
pub(super) struct DeferredSensors {
    sensors: BTreeMap<StreamId, Deferred>,
    of_users: BTreeMap<u32, BTreeSet<StreamId>>,
    // Whether amounts were released since the last attempt to admit sensors.
    is_due: bool,
    // The user served last, and the sensor to continue the checks at.
    last_user: u32,
    looked_at: StreamId,
}

#[derive(Debug)]
struct Deferred {
    file: MemoryFile,
    opening: Opening,
    // Allocated bytes when the program got the file.
    allocated_bytes: u64,
}

impl Registry {
    /// Defers a sensor. Its program has mapped it.
    pub(crate) fn defer(&mut self, file: MemoryFile, opening: Opening) {
        let (stream, uid, pid) = (opening.stream(), opening.uid, opening.pid);
        self.keep_file(uid, sensor_name(stream.as_raw()), &file);
        if let Some(journal) = &mut self.journal {
            journal.write(&Entry::Sensor(Box::new(opening.kept())));
        }
        let deferred = Deferred {
            allocated_bytes: file.allocated_bytes(),
            file,
            opening,
        };
        self.deferred.sensors.insert(stream, deferred);
        self.deferred
            .of_users
            .entry(uid)
            .or_default()
            .insert(stream);
        if !self.defer_in_task(pid, stream) {
            self.forget_deferred(stream);
        }
        // Memory may have been released since the charge failed.
        self.deferred.is_due = true;
    }

    /// Restores a deferred sensor; false if its process has ended, or its record is invalid.
    pub(crate) fn restore_deferred(&mut self, kept: KeptSensor, file: MemoryFile) -> bool {
        let (stream, pid) = (kept.descriptor.id, kept.pid);
        if self.restored_task(pid, kept.uid).is_none() || !self.defer_in_task(pid, stream) {
            return false;
        }
        let Some(opening) = Opening::restore(kept, self) else {
            return false;
        };
        self.claim_slot(pid, opening.slot, opening.shape.lanes());
        self.claim_streams(stream, opening.shape.streams());
        let of_user = self.deferred.of_users.entry(opening.uid).or_default();
        of_user.insert(stream);
        let deferred = Deferred {
            allocated_bytes: file.allocated_bytes(),
            file,
            opening,
        };
        self.deferred.sensors.insert(stream, deferred);
        self.deferred.is_due = true;
        true
    }

    /// The deferred sensors from a number on, for a journal.
    pub(crate) fn deferred_from(&self, first: StreamId) -> impl Iterator<Item = &Opening> {
        let sensors = self.deferred.sensors.range(first..);
        sensors.map(|(_, waiting)| &waiting.opening)
    }

    /// Amounts were released: deferred sensors may be admitted.
    pub(super) fn note_room(&mut self) {
        self.deferred.is_due = true;
    }

    /// Number of deferred sensors.
    pub(super) fn count_deferred(&self) -> u64 {
        self.deferred.sensors.len() as u64
    }

    /// Takes deferred sensors for which there is memory now, and charges them. The caller prepares
    /// them. Users are served round robin, the sensors of a user in the order of their
    /// registration.
    pub(crate) fn admit_deferred(&mut self) -> Vec<(u32, MemoryFile, Opening)> {
        let mut admitted = Vec::new();
        if !std::mem::take(&mut self.deferred.is_due) {
            return admitted;
        }
        let behind = self.deferred.last_user.saturating_add(1);
        let users: Vec<u32> = {
            let of_users = &self.deferred.of_users;
            let (first, then) = (of_users.range(behind..), of_users.range(..behind));
            first.chain(then).map(|(uid, _)| *uid).collect()
        };
        for uid in users {
            if admitted.len() == MAX_PER_TICK {
                // The others are served in the next tick.
                self.deferred.is_due = true;
                break;
            }
            let oldest = self.deferred.of_users.get(&uid);
            let Some(&stream) = oldest.and_then(|streams| streams.first()) else {
                continue;
            };
            let Some(waiting) = self.deferred.sensors.get(&stream) else {
                continue;
            };
            if !waiting.file.is_open_elsewhere() {
                self.forget_deferred(stream);
                self.deferred.is_due = true;
                continue;
            }
            let wanted = waiting.opening.file_amounts();
            if self.charge(uid, wanted).is_err() {
                continue;
            }
            self.deferred.last_user = uid;
            if let Some(Deferred { file, opening, .. }) = self.take_deferred(stream) {
                let opening = opening.admitted(self);
                admitted.push((uid, file, opening));
                // There may be memory for another one.
                self.deferred.is_due = true;
            }
        }
        admitted
    }

    fn take_deferred(&mut self, stream: StreamId) -> Option<Deferred> {
        let deferred = self.deferred.sensors.remove(&stream)?;
        let uid = deferred.opening.uid;
        if let Some(of_user) = self.deferred.of_users.get_mut(&uid) {
            of_user.remove(&stream);
            if of_user.is_empty() {
                self.deferred.of_users.remove(&uid);
            }
        }
        self.undefer_in_task(deferred.opening.pid, stream);
        Some(deferred)
    }

    /// Removes a deferred sensor: its program has ended, unregistered it, or touched further pages.
    pub(super) fn forget_deferred(&mut self, stream: StreamId) {
        if let Some(Deferred { file, opening, .. }) = self.take_deferred(stream) {
            drop(file);
            opening.give_back(self);
            self.forget_kept(stream);
        }
    }

    /// Removes the stored file of a deferred sensor.
    pub(crate) fn forget_kept(&mut self, stream: StreamId) {
        if let Some(journal) = &mut self.journal {
            let (stream, unread) = (stream.as_raw(), false);
            journal.write(&Entry::Freed { stream, unread });
        }
        self.forget_file(&sensor_name(stream.as_raw()));
    }

    /// Unregisters a deferred sensor if the token matches; true if it did.
    pub(super) fn unregister_deferred(&mut self, stream: StreamId, token: u64) -> bool {
        let waiting = self.deferred.sensors.get(&stream);
        let fits = waiting.is_some_and(|waiting| waiting.opening.token == token);
        if fits {
            self.forget_deferred(stream);
        }
        fits
    }

    /// Whether a process has a deferred sensor with these names. One that its program has unmapped
    /// is removed first.
    pub(super) fn has_deferred_twin(&mut self, pid: u32, sensor: &str, instance: &str) -> bool {
        let twins = self.deferred.sensors.iter().filter(|(_, waiting)| {
            waiting.opening.pid == pid && waiting.opening.names() == (sensor, instance)
        });
        let twins: Vec<StreamId> = twins.map(|(stream, _)| *stream).collect();
        let mut any = false;
        for stream in twins {
            let waiting = self.deferred.sensors.get(&stream);
            match waiting.is_some_and(|waiting| waiting.file.is_open_elsewhere()) {
                true => any = true,
                false => self.forget_deferred(stream),
            }
        }
        any
    }

    /// Removes sensors whose programs have unmapped them, or touched further pages. Each call
    /// checks a few.
    pub(super) fn look_after_deferred(&mut self) {
        let from = self.deferred.looked_at;
        let sensors = self.deferred.sensors.range(from..).take(MAX_PER_TICK);
        let (mut gone, mut last) = (Vec::new(), None);
        for (stream, waiting) in sensors {
            last = Some(*stream);
            let most = waiting.allocated_bytes + MAX_TOUCHED_BYTES;
            if waiting.file.allocated_bytes() > most || !waiting.file.is_open_elsewhere() {
                gone.push(*stream);
            }
        }
        let next = last.map_or(0, |last| last.as_raw() + 1);
        self.deferred.looked_at = StreamId::from_raw(next);
        gone.into_iter()
            .for_each(|stream| self.forget_deferred(stream));
    }
}
