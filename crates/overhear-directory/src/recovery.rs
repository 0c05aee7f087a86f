// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recovery of the registry from the journal and the files of an earlier directory.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use overhear_event::{Origin, StreamId, Task};

use crate::control::{ControlPage, ControlSlot};
use crate::file_watch::{FileWatch, WatchId};
use crate::journal::{
    self, area_names, sensor_name, Entry, Journal, KeptFile, KeptSensor, SnapshotCursor, Store,
};
use crate::memory::{Mapping, MemoryFile};
use crate::quota::{Amounts, Resource};
use crate::registry::{ReadableSensor, Registry, Sensor};
use crate::sensor_record::{shape_of, SensorState};
use crate::task;
use crate::trace_area::AreaFiles;

/// The name of the clock page's file.
pub(crate) const CLOCK_NAME: &str = "clock";
const ONE_KEPT_FILE: Amounts = Amounts::of(Resource::Kept, 1);
/// The name of the inotify instance that watches all other files.
const WATCH_NAME: &str = "watch";

/// What an earlier directory left with the service manager.
#[derive(Debug, Default)]
pub(crate) struct Recovered {
    pub(crate) clock: Option<MemoryFile>,
    watch: Option<FileWatch>,
    journal: Option<journal::JournalContents>,
    files: HashMap<String, OwnedFd>,
    outdated: Vec<String>,
}

impl Recovered {
    /// Sorts the files that the service manager kept.
    pub(crate) fn new(mut files: Vec<KeptFile>) -> Self {
        let (journal, outdated) = journal::read(&mut files);
        let mut files: HashMap<String, OwnedFd> = files.into_iter().collect();
        let clock = files.remove(CLOCK_NAME).map(MemoryFile::adopt);
        let watch = files.remove(WATCH_NAME).map(FileWatch::adopt);
        Self {
            clock,
            watch,
            journal,
            files,
            outdated,
        }
    }
}

/// The state after all entries of a journal.
#[derive(Debug, Default)]
struct JournalState {
    directory: Option<(u64, overhear_event::ClockId, u64, u64, u64)>,
    next: u32,
    pages: BTreeMap<(u32, usize), (u32, String)>,
    charges: HashMap<WatchId, (u32, Amounts)>,
    sensors: BTreeMap<u32, KeptSensor>,
    // User and members of each trace area, living ones and ended ones.
    areas: BTreeMap<u64, (u32, BTreeMap<u32, Task>)>,
}

impl JournalState {
    fn of(entries: Vec<Entry>) -> Self {
        let mut all = Self::default();
        for entry in entries {
            match entry {
                Entry::Directory {
                    version,
                    identity,
                    clock,
                    restarts,
                    freed_unread,
                    not_connected,
                } => {
                    if version == journal::VERSION {
                        all.directory =
                            Some((identity, clock, restarts, freed_unread, not_connected));
                    }
                }
                Entry::Next { stream } => all.next = stream,
                Entry::Page {
                    pid,
                    uid,
                    index,
                    name,
                } => {
                    all.pages.insert((pid, index), (uid, name));
                }
                Entry::Charged {
                    watch,
                    uid,
                    bytes,
                    sensors,
                    record_bytes,
                    deferred,
                } => {
                    let charged = Amounts::of(Resource::BufferBytes, bytes)
                        .and(Resource::Sensors, sensors)
                        .and(Resource::RecordBytes, record_bytes)
                        .and(Resource::Deferred, deferred);
                    all.charges.insert(WatchId::from_raw(watch), (uid, charged));
                }
                Entry::Sensor(sensor) => {
                    let first = sensor.descriptor.id.as_raw();
                    let behind = first.saturating_add(sensor.lanes.max(1));
                    // The newest sensor so far; the search continues after its streams.
                    all.next = behind;
                    all.sensors.insert(first, *sensor);
                }
                Entry::Whole => {}
                Entry::Ended { stream, state } => {
                    if let Some(sensor) = all.sensors.get_mut(&stream) {
                        sensor.state = state;
                        sensor.slot = None;
                    }
                }
                Entry::AutoDisabled {
                    stream,
                    auto_disabled,
                } => {
                    if let Some(sensor) = all.sensors.get_mut(&stream) {
                        sensor.auto_disabled = auto_disabled;
                    }
                }
                Entry::Freed { stream, unread } => {
                    all.sensors.remove(&stream);
                    if let Some(directory) = &mut all.directory {
                        directory.3 += u64::from(unread);
                    }
                }
                Entry::Read { stream } => {
                    if let Some(sensor) = all.sensors.get_mut(&stream) {
                        sensor.was_read = true;
                    }
                }
                Entry::NotConnected { count } => {
                    if let Some(directory) = &mut all.directory {
                        directory.4 = count;
                    }
                }
                Entry::Area { .. }
                | Entry::AreaMember { .. }
                | Entry::AreaLeft { .. }
                | Entry::AreaClosed { .. } => all.apply_to_areas(entry),
                Entry::TaskGone { pid } => {
                    let pages = all.pages.range((pid, 0)..=(pid, usize::MAX));
                    let pages: Vec<_> = pages.map(|(page, _)| *page).collect();
                    for page in pages {
                        all.pages.remove(&page);
                    }
                }
            }
        }
        all
    }
}

impl JournalState {
    fn apply_to_areas(&mut self, entry: Entry) {
        match entry {
            Entry::Area { area, uid } => {
                self.areas.insert(area, (uid, BTreeMap::new()));
            }
            Entry::AreaMember { area, task } => {
                if let Some((_, members)) = self.areas.get_mut(&area) {
                    members.insert(task.pid, task);
                }
            }
            Entry::AreaLeft { area, pid } => {
                // The last one stays: it names the area in lists.
                let members = self.areas.get_mut(&area).map(|(_, members)| members);
                if let Some(members) = members.filter(|members| members.len() > 1) {
                    members.remove(&pid);
                }
            }
            Entry::AreaClosed { area } => {
                self.areas.remove(&area);
            }
            _ => {}
        }
    }
}

impl Registry {
    /// Restores what an earlier directory left, and starts a journal for the next one.
    ///
    /// # Errors
    /// A message if nothing can be kept over a restart; the directory works all the same.
    pub(crate) fn restore(&mut self, left: Recovered, store: Box<dyn Store>) -> Result<(), String> {
        let Recovered {
            journal,
            mut files,
            mut outdated,
            watch,
            ..
        } = left;
        // Only the watches tell which earlier files still exist and are charged.
        match watch {
            Some(watch) => self.watch_files(watch),
            None => self.keep_watch(&*store)?,
        }
        let given: Vec<String> = files.keys().cloned().collect();
        let (mut number, mut greatest) = (0, 0);
        if let Some(read) = journal {
            number = read.number;
            outdated.push(journal::journal_name(number));
            let state = JournalState::of(read.entries);
            if let Some((identity, clock, restarts, freed_unread, not_connected)) = state.directory
            {
                self.identity = identity;
                self.restarts = restarts + 1;
                self.count_lost(freed_unread, not_connected);
                // Each sensor's record has its own clock, so stamps of an earlier one stay
                // distinct.
                let _ = clock;
                self.resume_at_stream(state.next);
                self.restore_charges(state.charges);
                for ((pid, index), (uid, name)) in state.pages {
                    let page = files.remove(&name).map(MemoryFile::adopt);
                    let number = name.strip_prefix('c');
                    let number = number.and_then(|digits| u64::from_str_radix(digits, 36).ok());
                    greatest = greatest.max(number.unwrap_or(0));
                    let page = page.and_then(|page| ControlPage::adopt(page).ok());
                    // Pages of a process that has ended meanwhile are dropped.
                    if page.is_some_and(|page| self.restore_page((pid, uid), index, page, &name)) {
                        self.count_kept_file(uid, &name);
                    }
                }
                for sensor in state.sensors.into_values() {
                    let name = sensor_name(sensor.descriptor.id.as_raw());
                    match files.remove(&name) {
                        Some(file) => {
                            self.count_kept_file(sensor.uid, &name);
                            let is_restored = match sensor.deferred {
                                Some(_) => self.restore_deferred(sensor, MemoryFile::adopt(file)),
                                None => self.restore_sensor(sensor, file).is_some(),
                            };
                            if !is_restored {
                                self.forget_file(&name);
                            }
                        }
                        None => self.count_lost(1, 0),
                    }
                }
                self.restore_areas(state.areas, &mut files);
                self.forget_tasks_without_sensors();
            }
        }
        let begun = Journal::begin(store, number + 1, greatest, self.entries().into_iter());
        let journal = begun
            .map_err(|error| format!("what is registered does not outlive a restart: {error}"))?;
        // Files without a journal entry, and those of sensors that were freed during the restore.
        let is_unused = |name: &String| !self.kept.contains_key(name);
        outdated.extend(given.into_iter().filter(is_unused));
        for name in outdated {
            journal.forget(&name);
        }
        self.journal = Some(journal);
        // Processes that ended while no directory ran; after the journal exists, so that it has the
        // ends.
        self.end_departed();
        Ok(())
    }

    /// Restores trace areas. The files are checked again: the service manager kept them, but a
    /// journal of another version may have named them.
    fn restore_areas(
        &mut self,
        areas: BTreeMap<u64, (u32, BTreeMap<u32, Task>)>,
        files: &mut HashMap<String, OwnedFd>,
    ) {
        for (area, (uid, members)) in areas {
            let names = area_names(area);
            let kept: Vec<_> = names.iter().filter_map(|name| files.remove(name)).collect();
            if let Ok(kept) = AreaFiles::checked(kept, uid) {
                for name in &names {
                    self.count_kept_file(uid, name);
                }
                self.restore_area(area, uid, kept, members.into_values().collect());
            }
        }
    }

    /// Stores a user's file with the service manager, if there is one and the quota permits it.
    pub(crate) fn keep_file(&mut self, uid: u32, name: String, file: impl AsFd) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        // A deferred sensor was stored when it was deferred.
        if self.kept.contains_key(&name) {
            return;
        }
        match self.quotas.charge(uid, ONE_KEPT_FILE) {
            Ok(()) => {
                journal.keep(&name, file);
                self.kept.insert(name, uid);
            }
            Err(shortage) => journal.note_unkept(&shortage.message),
        }
    }

    /// Removes a file from the service manager's store.
    pub(crate) fn forget_file(&mut self, name: &str) {
        if let Some(uid) = self.kept.remove(name) {
            self.quotas.release(uid, ONE_KEPT_FILE);
            // During a restore there is no journal yet: `restore` forgets unused files at its end.
            if let Some(journal) = &self.journal {
                journal.forget(name);
            }
        }
    }

    /// Counts a file that is in the store already.
    fn count_kept_file(&mut self, uid: u32, name: &str) {
        self.quotas.count(uid, ONE_KEPT_FILE);
        self.kept.insert(name.to_string(), uid);
    }

    /// Stores the inotify instance.
    fn keep_watch(&self, store: &dyn Store) -> Result<(), String> {
        let kept = self
            .file_watch()
            .map_or(Ok(()), |watch| store.keep(WATCH_NAME, watch.as_fd()));
        kept.map_err(|error| format!("what is registered does not outlive a restart: {error}"))
    }

    /// Restores a sensor from before the restart; `None` if its file is smaller than its record
    /// demands.
    fn restore_sensor(&mut self, kept: KeptSensor, file: OwnedFd) -> Option<()> {
        let file = MemoryFile::adopt(file);
        let shape = shape_of(&kept.descriptor, kept.kind, kept.lanes).ok()?;
        if file.bytes() < shape.bytes() {
            return None;
        }
        let mapping = Mapping::read_only(&file, shape.bytes()).ok()?;
        self.locked(mapping.lock());
        let registered = ReadableSensor {
            descriptor: Arc::new(kept.descriptor),
            mapping: Arc::new(mapping),
            shape,
            clock: kept.clock,
        };
        let mut sensor = Sensor::new(registered, Some(file), kept.token, kept.pid, kept.uid);
        sensor.slot = kept.slot.map(|(page, line)| ControlSlot { page, line });
        sensor.was_read = kept.was_read;
        self.readmit(sensor, kept.state, kept.auto_disabled);
        Some(())
    }

    /// Ends the sensors whose process has ended, or whose process id now belongs to another
    /// process.
    fn end_departed(&mut self) {
        let departed: Vec<StreamId> = self
            .sensors_from(StreamId::from_raw(0))
            .filter(|sensor| sensor.state == SensorState::Live)
            .filter(|sensor| match &sensor.registered.descriptor.origin {
                Origin::Program(task) => {
                    !self.watches(sensor.pid) || task::of_pid(task.pid).start != task.start
                }
                _ => true,
            })
            .map(|sensor| sensor.registered.descriptor.id)
            .collect();
        for stream in departed {
            self.end(stream, SensorState::Retained);
        }
    }

    /// The whole state, for a new journal.
    fn entries(&mut self) -> Vec<Entry> {
        self.rewritten = SnapshotCursor::default();
        let mut entries = vec![self.directory_entry()];
        entries.append(&mut self.snapshot(usize::MAX));
        entries.push(self.next_entry());
        entries
    }

    /// The state of the directory itself.
    pub(crate) fn directory_entry(&self) -> Entry {
        let status = self.status();
        Entry::Directory {
            version: journal::VERSION,
            identity: self.identity,
            clock: self.clock,
            restarts: self.restarts,
            freed_unread: status.freed_unread,
            not_connected: status.not_connected,
        }
    }

    /// The start of the search for stream numbers. Last in a snapshot, because each sensor moves
    /// it.
    pub(crate) fn next_entry(&self) -> Entry {
        Entry::Next {
            stream: self.next_stream(),
        }
    }

    /// The next entries of a snapshot, at most `most` groups; empty at its end.
    pub(crate) fn snapshot(&mut self, most: usize) -> Vec<Entry> {
        let SnapshotCursor {
            mut charge,
            mut task,
            mut sensor,
            mut deferred,
            mut area,
        } = self.rewritten;
        let mut entries = Vec::new();
        for (watch, entry) in self.charges_from(charge).take(most) {
            charge = WatchId::from_raw(watch.as_raw().saturating_add(1));
            entries.push(entry);
        }
        let left = most - entries.len();
        for (pid, pages) in self.pages_from(task).take(left) {
            task = pid.saturating_add(1);
            entries.extend(pages);
        }
        let left = most.saturating_sub(entries.len());
        for known in self.sensors_from(sensor).take(left) {
            sensor = StreamId::from_raw(known.registered.descriptor.id.as_raw() + 1);
            if known.file.is_some() {
                entries.push(Entry::Sensor(Box::new(known.kept())));
            }
        }
        let left = most.saturating_sub(entries.len());
        for opening in self.deferred_from(deferred).take(left) {
            deferred = StreamId::from_raw(opening.stream().as_raw() + 1);
            entries.push(Entry::Sensor(Box::new(opening.kept())));
        }
        let left = most.saturating_sub(entries.len());
        for (id, whole) in self.area_entries_from(area).take(left) {
            area = id.following();
            entries.extend(whole);
        }
        let after = SnapshotCursor {
            charge,
            task,
            sensor,
            deferred,
            area,
        };
        let has_moved = after != self.rewritten;
        self.rewritten = after;
        match entries.is_empty() && has_moved {
            // This slice had only sensors without files.
            true => self.snapshot(most),
            false => entries,
        }
    }
}

impl Sensor {
    /// The record for the next directory.
    pub(crate) fn kept(&self) -> KeptSensor {
        KeptSensor {
            descriptor: (*self.registered.descriptor).clone(),
            kind: self.registered.shape.kind(),
            lanes: self.registered.shape.lanes(),
            clock: self.registered.clock,
            token: self.token,
            pid: self.pid,
            uid: self.uid,
            state: self.state,
            was_read: self.was_read,
            auto_disabled: self.auto_disabled,
            slot: self.slot.map(|slot| (slot.page, slot.line)),
            deferred: None,
        }
    }
}
