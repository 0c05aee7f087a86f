// SPDX-License-Identifier: MIT OR Apache-2.0
//! What follows from the end of processes and monitors and from the passing of time, in slices:
//! others are served in between.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use overhear_event::StreamId;

use super::{Registry, Sensor};
use crate::journal::Journal;
use crate::journal::SnapshotCursor;
use crate::sensor_record::SensorState;

/// How many sensors are ended, let go of or freed in a slice.
const SLICE: u32 = 64;
/// Interval of the message that something does not outlive a restart.
const COMPLAINTS: Duration = Duration::from_secs(60);
/// How many sensors are looked at at a tick, whether their programs still have them mapped.
const SWEEP: usize = 16;

impl Registry {
    /// The sensors of a process that has ended.
    pub(super) fn end_later(&mut self, sensors: BTreeSet<StreamId>) {
        self.ended_tasks.push_back(sensors);
    }

    /// Does a part of the pending work; returns whether there is more.
    pub(crate) fn tidy(&mut self, now: Instant) -> bool {
        let ends = self.end_some();
        let departs = self.release_departed(SLICE);
        let frees = self.free_outdated(now);
        let leaves = self.leave_areas(SLICE);
        let closes = self.close_outdated_areas(now, SLICE);
        let writes = self.rewrite_journal();
        ends || departs || frees || leaves || closes || writes
    }

    fn end_some(&mut self) -> bool {
        for _ in 0..SLICE {
            let Some(sensors) = self.ended_tasks.front_mut() else {
                return false;
            };
            match sensors.pop_first() {
                Some(stream) => self.end(stream, SensorState::Retained),
                None => drop(self.ended_tasks.pop_front()),
            }
        }
        !self.ended_tasks.is_empty()
    }

    /// Frees what has been retained long enough. Monitors that still read it keep their maps.
    fn free_outdated(&mut self, now: Instant) -> bool {
        for _ in 0..SLICE {
            match self.retained.first() {
                Some(&(freed_at, stream)) if freed_at <= now => self.free(stream),
                _ => return false,
            }
        }
        true
    }

    /// Writes a slice of the next journal when this one has grown.
    fn rewrite_journal(&mut self) -> bool {
        let Some(mut journal) = self.journal.take() else {
            return false;
        };
        if !journal.is_rewriting() && journal.has_grown() {
            journal.begin_next();
            journal.add_to_next([self.directory_entry()].into_iter());
            self.rewritten = SnapshotCursor::default();
        }
        if journal.is_rewriting() {
            let entries = self.snapshot(SLICE as usize);
            match entries.is_empty() {
                false => journal.add_to_next(entries.into_iter()),
                true => {
                    journal.add_to_next([self.next_entry()].into_iter());
                    journal.finish_next();
                }
            }
        }
        let goes_on = journal.is_rewriting();
        self.journal = Some(journal);
        goes_on
    }

    /// Ends sensors whose programs have unmapped them without a word, as `exec` does, and whoever
    /// lost the answer to a registration. A few are looked at in each call.
    pub(crate) fn end_unmapped(&mut self) {
        self.look_after_deferred();
        self.measure_areas();
        let sensors = self.sensors.range(self.looked_at..).take(SWEEP);
        let is_unmapped = |sensor: &Sensor| {
            let file = sensor.file.as_ref();
            sensor.state == SensorState::Live && file.is_some_and(|file| !file.is_open_elsewhere())
        };
        let (mut unmapped, mut last) = (Vec::new(), None);
        for (stream, sensor) in sensors {
            last = Some(*stream);
            unmapped.extend(is_unmapped(sensor).then_some(*stream));
        }
        let first = StreamId::from_raw(0);
        self.looked_at = last.map_or(first, |last| StreamId::from_raw(last.as_raw() + 1));
        for stream in unmapped {
            self.end(stream, SensorState::Retained);
        }
    }

    /// Messages for the directory's log.
    pub(crate) fn take_complaints(&mut self, now: Instant) -> Vec<String> {
        let mut complaints: Vec<String> = Vec::new();
        let journal = self.journal.as_mut().filter(|_| self.next_complaint <= now);
        if let Some(failure) = journal.and_then(Journal::take_failure) {
            complaints.push(failure);
            self.next_complaint = now + COMPLAINTS;
        }
        // An embedded directory lives as long as one program, and `doctor` informs its user.
        if !self.has_embedded_monitor() {
            complaints.extend(self.take_unlocked());
            complaints.extend(self.log_not_connected(now));
        }
        complaints
    }
}
