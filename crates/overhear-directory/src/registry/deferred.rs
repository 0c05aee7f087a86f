// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors that wait for memory.
//!
//! A sensor for which a quota of buffers is short is not turned away, if its program knows of this. It gets
//! its file, of which only the pages with headers exist, and is switched off: its program writes nothing,
//! at the price of a switched-off sensor. When memory is released that suffices, the directory allocates
//! the rest, opens the sensor for monitors and switches it on. The program need not do anything, and the
//! code that writes elements knows nothing of it.
//!
//! What a deferred sensor takes is charged, and it may not take more: one whose program touches other pages
//! is forgotten, and so is one whose process ends. What the program has filled in then is its own.

use std::collections::{BTreeMap, BTreeSet};

use overhear_event::StreamId;

use super::Registry;
use crate::journal::{sensor_name, Entry, KeptSensor};
use crate::memory::MemoryFile;
use crate::opening::Opening;

/// Memory that the program of a deferred sensor may touch besides its headers: the first element of each
/// ring, in C even while the sensor is off.
pub(crate) const TOUCHED_BYTES: u64 = 64 * 1024;
/// How many are looked at, or admitted, at once.
const AT_ONCE: usize = 16;

/// The sensors, and in which order they are admitted.
#[derive(Debug, Default)]
pub(super) struct DeferredSensors {
    sensors: BTreeMap<StreamId, Deferred>,
    of_users: BTreeMap<u32, BTreeSet<StreamId>>,
    // Something was released since they were looked at last.
    is_due: bool,
    // The user whose turn it was last, and the sensor that was looked at last.
    last_user: u32,
    looked_at: StreamId,
}

#[derive(Debug)]
struct Deferred {
    file: MemoryFile,
    opening: Opening,
    // Its size when it was handed out.
    allocated_bytes: u64,
}

impl Registry {
    /// A sensor waits for memory from now on. Its program has mapped it.
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
        if !self.task_waits(pid, stream) {
            self.forget_deferred(stream);
        }
        // What was released between the refusal and now counts.
        self.deferred.is_due = true;
    }

    /// A sensor that waited in an earlier life; false if its program cannot be waited for any more.
    pub(crate) fn restore_deferred(&mut self, kept: KeptSensor, file: MemoryFile) -> bool {
        let (stream, pid) = (kept.descriptor.id, kept.pid);
        if self.restored_task(pid, kept.uid).is_none() || !self.task_waits(pid, stream) {
            return false;
        }
        let Some(opening) = Opening::restore(kept, self) else {
            return false;
        };
        self.claim_place(pid, opening.place, opening.shape.lanes());
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

    /// Those that wait, from a number on, for a journal.
    pub(crate) fn deferred_from(&self, first: StreamId) -> impl Iterator<Item = &Opening> {
        let sensors = self.deferred.sensors.range(first..);
        sensors.map(|(_, waiting)| &waiting.opening)
    }

    /// Something was released that may suffice.
    pub(super) fn note_room(&mut self) {
        self.deferred.is_due = true;
    }

    /// How many sensors wait.
    pub(super) fn count_deferred(&self) -> u64 {
        self.deferred.sensors.len() as u64
    }

    /// Those of a user whose turn it is for which there is memory now: charged, and to be prepared. Users
    /// take turns, and each user's sensors wait in the order of their registration.
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
            if admitted.len() == AT_ONCE {
                // The others come next time.
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
                // There may be room for another one.
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
        self.task_waits_no_longer(deferred.opening.pid, stream);
        Some(deferred)
    }

    /// It waits no longer: its program has ended, or taken it out, or touched what it was not given.
    pub(super) fn forget_deferred(&mut self, stream: StreamId) {
        if let Some(Deferred { file, opening, .. }) = self.take_deferred(stream) {
            drop(file);
            opening.give_back(self);
            self.forget_kept(stream);
        }
    }

    /// What was kept of a sensor that waited is not kept any more.
    pub(crate) fn forget_kept(&mut self, stream: StreamId) {
        if let Some(journal) = &mut self.journal {
            let (stream, unread) = (stream.as_raw(), false);
            journal.write(&Entry::Freed { stream, unread });
        }
        self.forget_file(&sensor_name(stream.as_raw()));
    }

    /// Takes a deferred sensor out if the token fits; says whether it did.
    pub(super) fn unregister_deferred(&mut self, stream: StreamId, token: u64) -> bool {
        let waiting = self.deferred.sensors.get(&stream);
        let fits = waiting.is_some_and(|waiting| waiting.opening.token == token);
        if fits {
            self.forget_deferred(stream);
        }
        fits
    }

    /// Whether a sensor of a process waits under these names; one that its program has unmapped does not.
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

    /// Forgets those whose programs have unmapped them, or touched more than they were given. A few are
    /// looked at in each call.
    pub(super) fn look_after_deferred(&mut self) {
        let from = self.deferred.looked_at;
        let sensors = self.deferred.sensors.range(from..).take(AT_ONCE);
        let (mut gone, mut last) = (Vec::new(), None);
        for (stream, waiting) in sensors {
            last = Some(*stream);
            let most = waiting.allocated_bytes + TOUCHED_BYTES;
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
