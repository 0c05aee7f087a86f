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

mod charges;
mod deferred;
mod numbers;
mod sensors;
mod subscriptions;
mod switching;
mod tasks;
mod tidying;
mod unheard;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overhear_event::{ClockId, StreamDescriptor, StreamId};
use overhear_stream::{Header, Shape, Tally};

use crate::journal::Journal;
use crate::kept::Snapshot;
use crate::memory::Mapping;
use crate::needs::Needed;
use crate::poller::Poller;
use crate::quota::{Quotas, Resource};
use crate::record::{DirectoryStatus, SensorState};
use crate::rules::Rules;
use crate::sizing::Sizing;
use crate::worker::WorkQueue;

use charges::FileCharges;
use deferred::DeferredSensors;
use numbers::StreamNumbers;
use subscriptions::{Departure, Monitor};
use tasks::TaskEntry;
use unheard::UnheardSensors;

pub(crate) use charges::{FileCharge, Refusal};
pub(crate) use deferred::TOUCHED_BYTES;
pub(crate) use sensors::Sensor;
pub(crate) use subscriptions::{Event, MonitorId, Slice, Subscription};
pub(crate) use tasks::OwnedLane;
pub use unheard::Unheard;

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
    /// Tells directories apart.
    pub(crate) identity: u64,
    pub(crate) restarts: u64,
    numbers: StreamNumbers,
    sensors: BTreeMap<StreamId, Sensor>,
    names: HashMap<(u32, String, String), StreamId>,
    tasks: BTreeMap<u32, TaskEntry>,
    monitors: BTreeMap<MonitorId, Monitor>,
    // Monitors with events that came since they were last asked for.
    news: BTreeSet<MonitorId>,
    // Monitors and processes that are gone, whose sensors are still to be looked at.
    departures: VecDeque<Departure>,
    endings: VecDeque<BTreeSet<StreamId>>,
    files: FileCharges,
    // Sensors whose process has ended, by the time at which they are freed; and the same by user.
    retained: BTreeSet<(Instant, StreamId)>,
    retained_of: BTreeMap<u32, BTreeSet<(Instant, StreamId)>>,
    // Live sensors with lanes, whose threads are looked after.
    pub(crate) laned: BTreeSet<StreamId>,
    poller: Arc<Poller>,
    /// Files that the service manager keeps, by their names: whose they are.
    pub(crate) kept: BTreeMap<String, u32>,
    /// What the next directory is to know; none where nobody keeps files.
    pub(crate) journal: Option<Journal>,
    // How far the next journal has come.
    pub(crate) rewritten: Snapshot,
    // When the log may say again that something is not kept.
    next_complaint: Instant,
    // Where the next look for unmapped sensors begins.
    looked_at: StreamId,
    deferred: DeferredSensors,
    unheard: UnheardSensors,
    freed_unread: u64,
    turned_away: u64,
    unlocked: Unlocked,
    /// Takes what takes long.
    pub(crate) work_queue: Option<Arc<WorkQueue>>,
}

/// That some buffer is not locked in memory, which is told once.
#[derive(Debug, Default)]
enum Unlocked {
    #[default]
    Never,
    Untold(std::io::Error),
    Told,
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
            identity: random(),
            restarts: 0,
            numbers: StreamNumbers::new(first_stream),
            sensors: BTreeMap::new(),
            names: HashMap::new(),
            tasks: BTreeMap::new(),
            monitors: BTreeMap::new(),
            news: BTreeSet::new(),
            departures: VecDeque::new(),
            endings: VecDeque::new(),
            files: FileCharges::default(),
            retained: BTreeSet::new(),
            retained_of: BTreeMap::new(),
            laned: BTreeSet::new(),
            poller,
            kept: BTreeMap::new(),
            journal: None,
            rewritten: Snapshot::default(),
            next_complaint: Instant::now(),
            looked_at: StreamId::default(),
            deferred: DeferredSensors::default(),
            unheard: UnheardSensors::default(),
            freed_unread: 0,
            turned_away: 0,
            unlocked: Unlocked::Never,
            work_queue: None,
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

    /// Numbers for the streams of a sensor, which follow one another.
    pub(crate) fn take_streams(&mut self, count: u32) -> Result<StreamId, Refusal> {
        let first = self.numbers.take(count).map(StreamId::from_raw);
        Ok(first.ok_or("all stream numbers of this directory are in use")?)
    }

    /// What the next sensor is sized for.
    pub(crate) fn sizing(&self) -> Sizing {
        Sizing {
            sensors: self.quotas.used().get(Resource::Sensors),
            ..self.sizing
        }
    }

    pub(crate) fn give_back_streams(&mut self, first: StreamId) {
        self.numbers.give_back(first.as_raw());
    }

    fn claim_streams(&mut self, first: StreamId, count: u32) {
        self.numbers.claim(first.as_raw(), count);
    }

    pub(crate) const fn next_stream(&self) -> u32 {
        self.numbers.next()
    }

    /// Where an earlier life would have looked for the next number.
    pub(crate) fn go_on_from_stream(&mut self, next: u32) {
        self.numbers.go_on_from(next);
    }

    /// Losses of an earlier life.
    pub(crate) fn count_lost(&mut self, freed_unread: u64, unheard: u64) {
        self.freed_unread += freed_unread;
        self.unheard.count_earlier(unheard);
    }

    /// A connection found no room.
    pub(crate) fn count_turned_away(&mut self) {
        self.turned_away += 1;
    }

    pub(crate) fn status(&self) -> DirectoryStatus {
        let used = self.quotas.used();
        let live = |sensor: &&Sensor| sensor.state == SensorState::Live;
        let live = self.sensors.values().filter(live).count() as u64;
        DirectoryStatus {
            pid: std::process::id(),
            sensors: self.sensors.len() as u64,
            retained: self.sensors.len() as u64 - live,
            bytes: used.get(Resource::BufferBytes),
            monitors: self.monitors.len() as u64,
            freed_unread: self.freed_unread,
            unheard: self.unheard.total(),
            restarts: self.restarts,
            turned_away: self.turned_away,
            deferred: self.count_deferred(),
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
