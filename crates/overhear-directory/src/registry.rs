// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the directory knows: sensors, their tasks, who reads them, and what is not heard.
//!
//! A sensor is *live* until its process takes it out (*unregistered*) or ends (*retained*). Monitors
//! that are attached to it hold it until they say that they have read it to its end. Its memory is
//! freed
//!
//! - once it is not live, and every monitor that held it has read it;
//! - at once if it was taken out and nobody holds it;
//! - if its process ended and nobody was attached: when the retention time has passed, or when its
//!   user's quota is needed for a new sensor.

mod subscriptions;
mod switching;
mod tasks;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overhear_event::{ClockId, StreamDescriptor, StreamId};
use overhear_stream::{Header, Shape, Tally};

use crate::control::Place;
use crate::journal::{sensor_name, Entry, Journal};
use crate::memory::{Mapping, MemoryFile};
use crate::needs::Needed;
use crate::poller::Poller;
use crate::quota::{Quotas, Usage};
use crate::record::{DirectoryStatus, SensorRecord, SensorState};
use crate::rules::Rules;
use crate::sizing::Sizing;
use crate::task;

use subscriptions::Monitor;
use tasks::TaskEntry;

pub(crate) use subscriptions::{Event, MonitorId};
pub(crate) use tasks::OwnedLane;

/// How many unheard sensors are told one by one; a program that asks for ever must not fill the
/// memory.
const MAX_SENTENCES: usize = 100;
/// A sensor that monitors may read.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    /// Who writes it, and what. Of a laned sensor, the first lane without its number.
    pub(crate) descriptor: Arc<StreamDescriptor>,
    /// Its memory, read-only.
    pub(crate) mapping: Arc<Mapping>,
    /// Where things lie in it.
    pub(crate) shape: Shape,
    /// What its stamps count.
    pub(crate) clock: ClockId,
}

impl Registered {
    /// What its header said when it was made.
    pub(crate) fn header(&self) -> Header {
        self.shape
            .header(self.clock, u64::from(self.descriptor.id.as_raw()))
    }

    pub(crate) fn tally(&self) -> Tally {
        let words = self.mapping.part(0, self.mapping.bytes());
        Tally::of_sensor(&words, &self.shape)
    }
}

/// What is not heard although it wanted to be: nobody can say what was missed of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unheard {
    /// How many requests.
    pub count: u64,
    /// A sentence for each of the first hundred.
    pub sentences: Vec<String>,
}

/// What the service's thread and the monitor's source share.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) clock: ClockId,
    /// The program that this directory was made for: its descendants are served whoever they are.
    pub(crate) program: Option<u32>,
    pub(crate) rules: Rules,
    pub(crate) quotas: Quotas,
    pub(crate) retention: Duration,
    pub(crate) sizing: Sizing,
    /// What this directory's own process needs, where only what is needed is to be observed.
    pub(crate) needs: Option<Needed>,
    /// How many descriptors sensors and tasks may take.
    pub(crate) most_files: usize,
    /// Tells directories apart.
    pub(crate) identity: u64,
    pub(crate) restarts: u64,
    next_stream: u32,
    sensors: BTreeMap<StreamId, Sensor>,
    names: HashMap<(u32, String, String), StreamId>,
    tasks: BTreeMap<u32, TaskEntry>,
    monitors: BTreeMap<MonitorId, Monitor>,
    // Sensors whose process has ended, by the time at which they are freed.
    retained: BTreeSet<(Instant, StreamId)>,
    // Live sensors with lanes, whose threads are looked after.
    pub(crate) laned: BTreeSet<StreamId>,
    poller: Arc<Poller>,
    /// What the next directory is to know; none where nobody keeps files.
    pub(crate) journal: Option<Journal>,
    unheard: Unheard,
    all_unheard: u64,
    freed_unread: u64,
    unlocked: Unlocked,
}

/// That some buffer is not locked in memory, which is told once.
#[derive(Debug, Default)]
enum Unlocked {
    #[default]
    Never,
    Untold(std::io::Error),
    Told,
}

/// The record of a sensor.
#[derive(Debug)]
pub(crate) struct Sensor {
    pub(crate) registered: Registered,
    /// To be handed to monitors. Missing where descriptors were short.
    pub(crate) file: Option<MemoryFile>,
    pub(crate) token: u64,
    /// Of the memory file, as it stands in the process' list of maps.
    pub(crate) inode: u64,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) place: Option<Place>,
    pub(crate) enabled: bool,
    /// What somebody has switched it to (`switching`, rule 2).
    chosen: Option<bool>,
    /// Whether nobody needs it, where only what is needed is observed.
    unneeded: bool,
    /// Whether it is unneeded, and nobody has switched it off besides: what the journal says.
    pub(crate) spared: bool,
    pub(crate) state: SensorState,
    freed_at: Option<Instant>,
    holders: BTreeSet<MonitorId>,
    pub(crate) was_read: bool,
}

impl Sensor {
    pub(crate) fn new(
        registered: Registered,
        file: Option<MemoryFile>,
        token: u64,
        inode: u64,
        pid: u32,
        uid: u32,
    ) -> Self {
        Self {
            registered,
            file,
            token,
            inode,
            pid,
            uid,
            place: None,
            enabled: true,
            chosen: None,
            unneeded: false,
            spared: false,
            state: SensorState::Live,
            freed_at: None,
            holders: BTreeSet::new(),
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
    pub(crate) fn new(
        first_stream: u32,
        clock: ClockId,
        rules: Rules,
        quotas: Quotas,
        poller: Arc<Poller>,
    ) -> Self {
        Self {
            clock,
            program: None,
            rules,
            quotas,
            retention: Duration::from_secs(60),
            sizing: Sizing::default(),
            needs: None,
            most_files: usize::MAX,
            identity: random(),
            restarts: 0,
            next_stream: first_stream,
            sensors: BTreeMap::new(),
            names: HashMap::new(),
            tasks: BTreeMap::new(),
            monitors: BTreeMap::new(),
            retained: BTreeSet::new(),
            laned: BTreeSet::new(),
            poller,
            journal: None,
            unheard: Unheard::default(),
            all_unheard: 0,
            freed_unread: 0,
            unlocked: Unlocked::Never,
        }
    }

    /// Remembers whether a buffer could be locked in memory.
    pub(crate) fn locked(&mut self, locked: std::io::Result<()>) {
        if let (Err(error), Unlocked::Never) = (locked, &self.unlocked) {
            self.unlocked = Unlocked::Untold(error);
        }
    }

    /// That a buffer is not locked in memory, the first time that this happens.
    pub(crate) fn take_unlocked(&mut self) -> Option<String> {
        if !matches!(self.unlocked, Unlocked::Untold(_)) {
            return None;
        }
        let Unlocked::Untold(error) = std::mem::replace(&mut self.unlocked, Unlocked::Told) else {
            return None;
        };
        Some(format!(
            "buffers may be swapped out, because not all of them can be locked in memory ({error}); \
             raise RLIMIT_MEMLOCK (`LimitMEMLOCK=` of a unit), or see `overhear doctor`"
        ))
    }

    /// Whether there are descriptors for another sensor: one to hand to monitors, and two for the
    /// process and the control page of a task.
    pub(crate) fn has_files(&self) -> bool {
        self.sensors.len() + 2 * self.tasks.len() + 3 <= self.most_files
    }

    /// Numbers for the streams of a sensor, which follow one another.
    pub(crate) fn take_streams(&mut self, count: u32) -> Result<StreamId, String> {
        let first = self.next_stream;
        let next = first.checked_add(count);
        self.next_stream = next.ok_or("this directory has given out all its stream numbers")?;
        Ok(StreamId::from_raw(first))
    }

    /// Counts a buffer that is about to exist. Where the quota is short, retained buffers that nobody
    /// reads make room, oldest first.
    pub(crate) fn reserve(&mut self, uid: u32, bytes: u64) -> Result<(), String> {
        let wanted = Usage { bytes, sensors: 1 };
        loop {
            let short = match self.quotas.reserve(uid, wanted) {
                Ok(()) => return Ok(()),
                Err(short) => short,
            };
            let oldest = self.retained.iter().map(|&(_, stream)| stream);
            let mut oldest = oldest.filter(|stream| {
                self.sensors.get(stream).is_some_and(|sensor| {
                    sensor.holders.is_empty() && short.user.is_none_or(|user| user == sensor.uid)
                })
            });
            match oldest.next() {
                Some(stream) => self.free(stream),
                None => return Err(short.sentence),
            }
        }
    }

    /// A buffer that was reserved does not come to exist.
    pub(crate) fn unreserve(&mut self, uid: u32, bytes: u64) {
        self.quotas.release(uid, Usage { bytes, sensors: 1 });
    }

    pub(crate) const fn next_stream(&self) -> u32 {
        self.next_stream
    }

    /// Numbers below this one are taken.
    pub(crate) fn reserve_streams(&mut self, next: u32) {
        self.next_stream = self.next_stream.max(next);
    }

    /// Losses of an earlier life.
    pub(crate) fn count_lost(&mut self, freed_unread: u64, unheard: u64) {
        self.freed_unread += freed_unread;
        self.all_unheard += unheard;
    }

    /// Writes the journal anew when it has grown, and tells what it cannot keep.
    pub(crate) fn tend_journal(&mut self) -> Option<String> {
        let mut journal = self.journal.take()?;
        if journal.has_grown() {
            journal.rewrite(self.entries());
        }
        let failure = journal.take_failure();
        self.journal = Some(journal);
        failure
    }

    /// Takes a sensor of an earlier life back.
    pub(crate) fn readmit(&mut self, mut sensor: Sensor, state: SensorState, spared: bool) {
        let stream = sensor.registered.descriptor.id;
        let bytes = sensor.registered.shape.bytes() as u64;
        self.quotas.count(sensor.uid, Usage { bytes, sensors: 1 });
        let lanes = sensor.registered.shape.lanes();
        // Its process may have ended meanwhile: then it is ended in a moment.
        if let (SensorState::Live, Ok(task)) = (state, self.task(sensor.pid)) {
            task.sensors.insert(stream);
            if let Some(place) = sensor.place {
                task.control.claim(place, lanes);
                let line = task.control.line(place, lanes);
                let enabled = line.is_none_or(|line| line.is_enabled());
                sensor.recall(enabled, spared);
            }
        }
        self.insert(sensor);
        // Nobody who could need it is attached yet.
        self.settle(stream);
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

    /// Opens a sensor for monitors. A process that has ended meanwhile is no error: its sensor has
    /// ended.
    pub(crate) fn open(&mut self, mut sensor: Sensor) {
        let stream = sensor.registered.descriptor.id;
        let pid = sensor.pid;
        sensor.unneeded = self.is_unneeded(sensor.uid, &sensor.registered.descriptor);
        sensor.enabled = !sensor.unneeded;
        if let (Some(journal), Some(file)) = (&mut self.journal, &sensor.file) {
            journal.keep(&sensor_name(stream.as_raw()), file);
            journal.write(&Entry::Sensor(Box::new(sensor.kept())));
        }
        self.insert(sensor);
        // Its line was written when it was granted, and somebody may have come or gone since.
        self.settle(stream);
        let interested: Vec<MonitorId> = self
            .monitors
            .iter()
            .filter(|(_, monitor)| self.may_hear(monitor, stream).is_ok_and(|wanted| wanted))
            .map(|(id, _)| *id)
            .collect();
        for id in interested {
            self.hand_out(id, stream, true);
        }
        match self.tasks.get_mut(&pid) {
            Some(task) => {
                task.granted = task.granted.saturating_sub(1);
                task.sensors.insert(stream);
            }
            None => self.end(stream, SensorState::Retained),
        }
    }

    pub(crate) fn sensor(&self, stream: StreamId) -> Option<&Sensor> {
        self.sensors.get(&stream)
    }

    /// Sensors behind a number, in the order of their numbers.
    pub(crate) fn sensors_from(&self, first: StreamId) -> impl Iterator<Item = &Sensor> {
        self.sensors.range(first..).map(|(_, sensor)| sensor)
    }

    /// The live sensor of this process with these names.
    pub(crate) fn twin(&self, pid: u32, sensor: &str, instance: &str) -> Option<&Sensor> {
        let name = (pid, sensor.to_string(), instance.to_string());
        self.sensors.get(self.names.get(&name)?)
    }

    /// Takes a sensor out if the token fits; says whether it did.
    pub(crate) fn unregister(&mut self, stream: StreamId, token: u64) -> bool {
        let fits = self
            .sensors
            .get(&stream)
            .is_some_and(|sensor| sensor.token == token);
        if fits {
            self.end(stream, SensorState::Unregistered);
        }
        fits
    }

    /// Nothing more is written to a sensor.
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
            if let Some(place) = sensor.place.take() {
                task.control
                    .give_back(place, sensor.registered.shape.lanes());
            }
        }
        if state == SensorState::Retained {
            let freed_at = Instant::now() + self.retention;
            sensor.freed_at = Some(freed_at);
            self.retained.insert((freed_at, stream));
        }
        for id in &sensor.holders {
            if let Some(monitor) = self.monitors.get_mut(id) {
                monitor.events.push_back(Event::Ended(stream));
            }
        }
        let unneeded = state == SensorState::Unregistered && sensor.holders.is_empty();
        self.forget_if_idle(pid);
        if unneeded {
            self.free(stream);
        }
    }

    fn free(&mut self, stream: StreamId) {
        let Some(sensor) = self.sensors.remove(&stream) else {
            return;
        };
        let mut unread = false;
        if let Some(freed_at) = sensor.freed_at {
            self.retained.remove(&(freed_at, stream));
            unread = !sensor.was_read;
            self.freed_unread += u64::from(unread);
        }
        if let (Some(journal), Some(_)) = (&mut self.journal, &sensor.file) {
            let stream = stream.as_raw();
            journal.write(&Entry::Freed { stream, unread });
            journal.forget(&sensor_name(stream));
        }
        for id in &sensor.holders {
            if let Some(monitor) = self.monitors.get_mut(id) {
                monitor.holds.remove(&stream);
            }
        }
        let bytes = sensor.registered.shape.bytes() as u64;
        self.unreserve(sensor.uid, bytes);
    }

    /// Frees what has been retained long enough. Monitors that still read it keep their maps.
    pub(crate) fn free_outdated(&mut self, now: Instant) {
        while let Some(&(freed_at, stream)) = self.retained.first() {
            if freed_at > now {
                return;
            }
            self.free(stream);
        }
    }

    /// Remembers that somebody who wanted to be heard is not.
    pub(crate) fn unheard(&mut self, pid: u32, sensor: &str, sentence: &str) {
        self.all_unheard += 1;
        self.unheard.count += 1;
        if let Some(journal) = &mut self.journal {
            let count = self.all_unheard;
            journal.write(&Entry::Unheard { count });
        }
        if self.unheard.sentences.len() == MAX_SENTENCES {
            return;
        }
        // Both names come from the program and have not been checked.
        let comm = task::of_pid(pid).comm;
        let sensor: String = sensor.chars().take(128).collect();
        let (sensor, comm) = (sensor.escape_debug(), comm.escape_debug());
        let whole = format!("sensor `{sensor}` of {comm} ({pid}) is not heard: {sentence}");
        self.unheard.sentences.push(whole);
    }

    /// What has not been heard since the last call.
    pub(crate) fn take_unheard(&mut self) -> Unheard {
        std::mem::take(&mut self.unheard)
    }

    pub(crate) fn status(&self) -> DirectoryStatus {
        let usage = self.quotas.used();
        let live = |sensor: &&Sensor| sensor.state == SensorState::Live;
        let live = self.sensors.values().filter(live).count() as u64;
        DirectoryStatus {
            pid: std::process::id(),
            sensors: self.sensors.len() as u64,
            retained: self.sensors.len() as u64 - live,
            bytes: usage.bytes,
            monitors: self.monitors.len() as u64,
            freed_unread: self.freed_unread,
            unheard: self.all_unheard,
            restarts: self.restarts,
        }
    }
}

/// A number that nobody can guess.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    u64::from_ne_bytes(bytes)
}

pub(crate) fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    // A panic while the lock was held is a bug of the directory, but every change of the registry
    // is a single step, so its contents are still good.
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}
