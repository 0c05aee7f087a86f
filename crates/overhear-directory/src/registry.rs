// SPDX-License-Identifier: MIT OR Apache-2.0
//! The registry: sensors, their tasks, the monitors that read them, refused sensors, and trace
//! areas.
//!
//! A sensor is *live* until its process unregisters it (*unregistered*) or ends (*retained*). An
//! attached monitor holds it until it reports that it has read it to its end. Its memory is freed
//!
//! - once it is not live, and every monitor that held it has read it;
//! - at once if it is unregistered and no monitor holds it, or if it has no elements and its
//!   process registers its name again;
//! - if it is retained and no monitor was attached: when the retention time has passed, or when its
//!   user's quota is needed for a new sensor.

mod areas;
mod budgets;
mod charges;
mod deferred;
mod not_connected;
mod numbers;
mod sensors;
mod subscriptions;
mod switching;
mod tasks;
mod tidying;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overhear_event::{ClockId, StreamDescriptor, StreamId, StreamIdRange};
use overhear_stream::{Header, Shape, Tally};

use crate::file_closer::FileCloser;
use crate::journal::{Journal, SnapshotCursor};
use crate::memory::Mapping;
use crate::needs::Needed;
use crate::poller::Poller;
use crate::quota::{Quotas, Resource};
use crate::rules::Rules;
use crate::sensor_record::{DirectoryStatus, SensorState};
use crate::sizing::Sizing;
use crate::worker::WorkQueue;

use areas::TraceAreas;
use charges::FileCharges;
use deferred::DeferredSensors;
use not_connected::NotConnectedSensors;
use numbers::StreamNumbers;
use subscriptions::{DetachedMonitor, Monitor};
use tasks::TaskEntry;

pub(crate) use areas::descriptor_of;
pub(crate) use charges::Refusal;
pub(crate) use deferred::MAX_TOUCHED_BYTES;
pub use not_connected::NotConnected;
pub(crate) use sensors::Sensor;
pub(crate) use subscriptions::{Event, MonitorId, Slice, Subscription};
pub(crate) use tasks::OwnedLane;

/// A sensor that monitors may read.
#[derive(Clone, Debug)]
pub(crate) struct ReadableSensor {
    /// Its descriptor. Of a laned sensor that of the first lane, without a lane number.
    pub(crate) descriptor: Arc<StreamDescriptor>,
    /// Its memory, read-only.
    pub(crate) mapping: Arc<Mapping>,
    /// The layout of the memory.
    pub(crate) shape: Shape,
    /// The clock of its stamps.
    pub(crate) clock: ClockId,
}

impl ReadableSensor {
    /// The header as the directory wrote it.
    pub(crate) fn header(&self) -> Header {
        self.shape
            .header(self.clock, u64::from(self.descriptor.id.as_raw()))
    }

    pub(crate) fn tally(&self) -> Tally {
        let words = self.mapping.part(0, self.mapping.bytes());
        Tally::of_sensor(&words, &self.shape)
    }
}

/// The state that the service's thread and the source of the embedded monitor share.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) clock: ClockId,
    /// The program that this directory was made for. Its descendants are served, whatever their
    /// user.
    pub(crate) program: Option<u32>,
    pub(crate) rules: Rules,
    pub(crate) quotas: Quotas,
    pub(crate) retention: Duration,
    pub(crate) sizing: Sizing,
    /// The needs of the directory's own process, if unneeded sensors are to be off.
    pub(crate) needs: Option<Needed>,
    /// A random number that identifies the directory.
    pub(crate) identity: u64,
    pub(crate) restarts: u64,
    numbers: StreamNumbers,
    sensors: BTreeMap<StreamId, Sensor>,
    names: HashMap<(u32, String, String), StreamId>,
    tasks: BTreeMap<u32, TaskEntry>,
    monitors: BTreeMap<MonitorId, Monitor>,
    // Monitors with new events since the last `take_pending`.
    pending: BTreeSet<MonitorId>,
    // Detached monitors and ended tasks, whose sensors are still to be updated.
    detached_monitors: VecDeque<DetachedMonitor>,
    // The sensors that monitors have switched off to keep a budget.
    budgets: BTreeMap<MonitorId, BTreeSet<StreamId>>,
    ended_tasks: VecDeque<BTreeSet<StreamId>>,
    files: FileCharges,
    // Retained sensors by the time at which they are freed; and the same by user.
    retained: BTreeSet<(Instant, StreamId)>,
    retained_of: BTreeMap<u32, BTreeSet<(Instant, StreamId)>>,
    // Live laned sensors, whose lanes are reclaimed.
    pub(crate) laned: BTreeSet<StreamId>,
    poller: Arc<Poller>,
    /// Files in the service manager's store: name and user.
    pub(crate) kept: BTreeMap<String, u32>,
    /// The journal for the next directory; `None` without a service manager.
    pub(crate) journal: Option<Journal>,
    // Progress of the snapshot in the next journal.
    pub(crate) rewritten: SnapshotCursor,
    // When the log may report unstored files again.
    next_complaint: Instant,
    // Where the next scan for unmapped sensors starts.
    looked_at: StreamId,
    deferred: DeferredSensors,
    areas: TraceAreas,
    not_connected: NotConnectedSensors,
    freed_unread: u64,
    turned_away: u64,
    unlocked: UnlockedBuffers,
    /// Closes files that were refused.
    pub(crate) file_closer: FileCloser,
    /// Work for the second thread.
    pub(crate) work_queue: Option<Arc<WorkQueue>>,
}

/// Whether a buffer could not be locked in memory, which is reported once.
#[derive(Debug, Default)]
enum UnlockedBuffers {
    #[default]
    None,
    Unreported(std::io::Error),
    Reported,
}

impl Registry {
    pub(crate) fn new(
        streams: StreamIdRange,
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
            numbers: StreamNumbers::new(streams),
            sensors: BTreeMap::new(),
            names: HashMap::new(),
            tasks: BTreeMap::new(),
            monitors: BTreeMap::new(),
            pending: BTreeSet::new(),
            detached_monitors: VecDeque::new(),
            budgets: BTreeMap::new(),
            ended_tasks: VecDeque::new(),
            files: FileCharges::default(),
            retained: BTreeSet::new(),
            retained_of: BTreeMap::new(),
            laned: BTreeSet::new(),
            poller,
            kept: BTreeMap::new(),
            journal: None,
            rewritten: SnapshotCursor::default(),
            next_complaint: Instant::now(),
            looked_at: StreamId::default(),
            deferred: DeferredSensors::default(),
            areas: TraceAreas::default(),
            not_connected: NotConnectedSensors::default(),
            freed_unread: 0,
            turned_away: 0,
            unlocked: UnlockedBuffers::None,
            file_closer: FileCloser::default(),
            work_queue: None,
        }
    }

    /// Notes the result of locking a buffer in memory.
    pub(crate) fn locked(&mut self, locked: std::io::Result<()>) {
        if let (Err(error), UnlockedBuffers::None) = (locked, &self.unlocked) {
            self.unlocked = UnlockedBuffers::Unreported(error);
        }
    }

    /// A message for the first buffer that could not be locked in memory.
    pub(crate) fn take_unlocked(&mut self) -> Option<String> {
        if !matches!(self.unlocked, UnlockedBuffers::Unreported(_)) {
            return None;
        }
        let UnlockedBuffers::Unreported(error) =
            std::mem::replace(&mut self.unlocked, UnlockedBuffers::Reported)
        else {
            return None;
        };
        Some(format!(
            "buffers may be swapped out, because not all of them can be locked in memory ({error}); \
             raise RLIMIT_MEMLOCK (`LimitMEMLOCK=` of a unit), or see `overhear doctor`"
        ))
    }

    /// Takes consecutive numbers for the streams of a sensor.
    pub(crate) fn take_streams(&mut self, count: u32) -> Result<StreamId, Refusal> {
        let first = self.numbers.take(count).map(StreamId::from_raw);
        Ok(first.ok_or("all stream numbers of this directory are in use")?)
    }

    /// The sizing of the next sensor.
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

    /// Continues the search for stream numbers where the earlier directory was.
    pub(crate) fn resume_at_stream(&mut self, next: u32) {
        self.numbers.resume_at(next);
    }

    /// Adds losses from before a restart.
    pub(crate) fn count_lost(&mut self, freed_unread: u64, not_connected: u64) {
        self.freed_unread += freed_unread;
        self.not_connected.count_earlier(not_connected);
    }

    /// Counts a rejected connection.
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
            not_connected: self.not_connected.total(),
            restarts: self.restarts,
            turned_away: self.turned_away,
            deferred: self.count_deferred(),
        }
    }
}

/// A random number that cannot be guessed.
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
