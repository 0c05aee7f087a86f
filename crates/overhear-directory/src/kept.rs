// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry's part of the journal: what it writes down, and how it comes back from it.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use overhear_event::{Origin, StreamId};

use crate::control::{ControlPage, Place};
use crate::file_watch::{FileWatch, WatchId};
use crate::journal::{self, sensor_name, Entry, Journal, KeptFile, KeptSensor, Store};
use crate::memory::{Mapping, MemoryFile};
use crate::quota::{Amounts, Resource};
use crate::record::{shape_of, SensorState};
use crate::registry::{Registered, Registry, Sensor};
use crate::task;

/// The name of the clock page's file.
pub(crate) const CLOCK_NAME: &str = "clock";
const ONE_KEPT: Amounts = Amounts::of(Resource::Kept, 1);
/// The name of the instance that watches all other files.
const WATCH_NAME: &str = "watch";

/// What an earlier directory left.
#[derive(Debug, Default)]
pub(crate) struct Left {
    pub(crate) clock: Option<MemoryFile>,
    watch: Option<FileWatch>,
    journal: Option<journal::Read>,
    files: HashMap<String, OwnedFd>,
    outdated: Vec<String>,
}

impl Left {
    /// Takes what the service manager kept.
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

/// What the journal says in the end.
#[derive(Debug, Default)]
struct Account {
    directory: Option<(u64, overhear_event::ClockId, u64, u64, u64)>,
    next: u32,
    pages: BTreeMap<(u32, usize), (u32, String)>,
    charges: HashMap<WatchId, (u32, Amounts)>,
    sensors: BTreeMap<u32, KeptSensor>,
}

impl Account {
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
                    unheard,
                } => {
                    if version == journal::VERSION {
                        all.directory = Some((identity, clock, restarts, freed_unread, unheard));
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
                    // The last one that was registered.
                    all.next = behind;
                    all.sensors.insert(first, *sensor);
                }
                Entry::Whole => {}
                Entry::Ended { stream, state } => {
                    if let Some(sensor) = all.sensors.get_mut(&stream) {
                        sensor.state = state;
                        sensor.place = None;
                    }
                }
                Entry::Spared { stream, spared } => {
                    if let Some(sensor) = all.sensors.get_mut(&stream) {
                        sensor.spared = spared;
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
                Entry::Unheard { count } => {
                    if let Some(directory) = &mut all.directory {
                        directory.4 = count;
                    }
                }
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

impl Registry {
    /// Takes up what an earlier directory left, and keeps from now on what there is.
    ///
    /// # Errors
    /// A sentence if nothing can be kept; then the directory works all the same.
    pub(crate) fn restore(&mut self, left: Left, store: Box<dyn Store>) -> Result<(), String> {
        let Left {
            journal,
            mut files,
            mut outdated,
            watch,
            ..
        } = left;
        // What earlier files are charged is known by their watches alone.
        match watch {
            Some(watch) => self.watch_files(watch),
            None => self.keep_watch(&*store)?,
        }
        let given: Vec<String> = files.keys().cloned().collect();
        let (mut number, mut greatest) = (0, 0);
        if let Some(read) = journal {
            number = read.number;
            outdated.push(journal::journal_name(number));
            let account = Account::of(read.entries);
            if let Some((identity, clock, restarts, freed_unread, unheard)) = account.directory {
                self.identity = identity;
                self.restarts = restarts + 1;
                self.count_lost(freed_unread, unheard);
                // Stamps of an earlier clock are told apart by each sensor's own record.
                let _ = clock;
                self.go_on_from_stream(account.next);
                self.restore_charges(account.charges);
                for ((pid, index), (uid, name)) in account.pages {
                    let page = files.remove(&name).map(MemoryFile::adopt);
                    let number = name.strip_prefix('c');
                    let number = number.and_then(|digits| u64::from_str_radix(digits, 36).ok());
                    greatest = greatest.max(number.unwrap_or(0));
                    let page = page.and_then(|page| ControlPage::adopt(page).ok());
                    // A process that has ended meanwhile has no use for its pages.
                    if page.is_some_and(|page| self.restore_page((pid, uid), index, page, &name)) {
                        self.is_kept(uid, &name);
                    }
                }
                for sensor in account.sensors.into_values() {
                    let name = sensor_name(sensor.descriptor.id.as_raw());
                    match files.remove(&name) {
                        Some(file) => {
                            self.is_kept(sensor.uid, &name);
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
                self.forget_idle_tasks();
            }
        }
        let begun = Journal::begin(store, number + 1, greatest, self.entries().into_iter());
        let journal = begun
            .map_err(|error| format!("what is registered does not outlive a restart: {error}"))?;
        // What nobody knows any more, and what was freed at once because nobody waits for it now.
        let is_unused = |name: &String| !self.kept.contains_key(name);
        outdated.extend(given.into_iter().filter(is_unused));
        for name in outdated {
            journal.forget(&name);
        }
        self.journal = Some(journal);
        // Processes that have ended while no directory was there, with a journal to say so.
        self.end_departed();
        Ok(())
    }

    /// Keeps a file of a user over a restart, if there is somebody who does and a place for it.
    pub(crate) fn keep_file(&mut self, uid: u32, name: String, file: impl AsFd) {
        let Some(journal) = &mut self.journal else {
            return;
        };
        // A sensor that has waited is kept already.
        if self.kept.contains_key(&name) {
            return;
        }
        match self.quotas.charge(uid, ONE_KEPT) {
            Ok(()) => {
                journal.keep(&name, file);
                self.kept.insert(name, uid);
            }
            Err(shortage) => journal.note_unkept(&shortage.sentence),
        }
    }

    /// Keeps it no longer.
    pub(crate) fn forget_file(&mut self, name: &str) {
        if let Some(uid) = self.kept.remove(name) {
            self.quotas.release(uid, ONE_KEPT);
            // While a directory takes over what another one left there is no journal: what is of no use
            // then is forgotten in the end.
            if let Some(journal) = &self.journal {
                journal.forget(name);
            }
        }
    }

    /// A file that was kept.
    fn is_kept(&mut self, uid: u32, name: &str) {
        self.quotas.count(uid, ONE_KEPT);
        self.kept.insert(name.to_string(), uid);
    }

    /// Keeps the watch over a restart.
    fn keep_watch(&self, store: &dyn Store) -> Result<(), String> {
        let kept = self
            .file_watch()
            .map_or(Ok(()), |watch| store.keep(WATCH_NAME, watch.as_fd()));
        kept.map_err(|error| format!("what is registered does not outlive a restart: {error}"))
    }

    /// A sensor of an earlier life, unless its file is not what it should be.
    fn restore_sensor(&mut self, kept: KeptSensor, file: OwnedFd) -> Option<()> {
        let file = MemoryFile::adopt(file);
        let shape = shape_of(&kept.descriptor, kept.kind, kept.lanes).ok()?;
        if file.bytes() < shape.bytes() {
            return None;
        }
        let mapping = Mapping::read_only(&file, shape.bytes()).ok()?;
        self.locked(mapping.lock());
        let registered = Registered {
            descriptor: Arc::new(kept.descriptor),
            mapping: Arc::new(mapping),
            shape,
            clock: kept.clock,
        };
        let mut sensor = Sensor::new(registered, Some(file), kept.token, kept.pid, kept.uid);
        sensor.place = kept.place.map(|(page, line)| Place { page, line });
        sensor.was_read = kept.was_read;
        self.readmit(sensor, kept.state, kept.spared);
        Some(())
    }

    /// Ends the sensors of processes that are not those any more that registered them.
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

    /// All that is known, for a journal.
    fn entries(&mut self) -> Vec<Entry> {
        self.rewritten = Snapshot::default();
        let mut entries = vec![self.directory_entry()];
        entries.append(&mut self.snapshot(usize::MAX));
        entries.push(self.next_entry());
        entries
    }

    /// What is known of the directory itself.
    pub(crate) fn directory_entry(&self) -> Entry {
        let status = self.status();
        Entry::Directory {
            version: journal::VERSION,
            identity: self.identity,
            clock: self.clock,
            restarts: self.restarts,
            freed_unread: status.freed_unread,
            unheard: status.unheard,
        }
    }

    /// Where stream numbers go on. The last entry of a snapshot, because every sensor changes it.
    pub(crate) fn next_entry(&self) -> Entry {
        Entry::Next {
            stream: self.next_stream(),
        }
    }

    /// The next entries of a snapshot, at most so many; none at its end.
    pub(crate) fn snapshot(&mut self, most: usize) -> Vec<Entry> {
        let Snapshot {
            mut charge,
            mut task,
            mut sensor,
            mut deferred,
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
        let after = Snapshot {
            charge,
            task,
            sensor,
            deferred,
        };
        let has_moved = after != self.rewritten;
        self.rewritten = after;
        match entries.is_empty() && has_moved {
            // Sensors without files alone.
            true => self.snapshot(most),
            false => entries,
        }
    }
}

/// How far a snapshot of the registry has come: what lies behind is still to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    charge: WatchId,
    task: u32,
    sensor: StreamId,
    deferred: StreamId,
}

impl Default for Snapshot {
    fn default() -> Self {
        Self {
            charge: WatchId::from_raw(0),
            task: 0,
            sensor: StreamId::from_raw(0),
            deferred: StreamId::from_raw(0),
        }
    }
}

impl Sensor {
    /// What the next directory must know.
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
            spared: self.spared,
            place: self.place.map(|place| (place.page, place.line)),
            deferred: None,
        }
    }
}
