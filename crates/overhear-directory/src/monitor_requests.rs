// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitors' requests: list, attach, switch, finished, status.
//!
//! A long request is processed in slices; between two slices other connections are served.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Mutex;

use overhear_event::StreamId;
use rustix::io::Errno;

use crate::connection::{Connection, Next, Work};
use crate::packet::MAX_REQUEST;
use crate::protocol::{Attached, Budget, Opened, QueryRequest, Reply, Switch};
use crate::query::{Matcher, Query};
use crate::registry::{lock, Event, Registry, Slice, Subscription};
use crate::sensor_record::SensorRecord;

/// Bound of the work of a slice: pattern parts compared, plus lanes visited.
const WORK_PER_SLICE: u32 = 4096;
/// Packets sent per slice, at most.
const MAX_PACKETS_PER_SLICE: u32 = 16;
/// Finished sensors released per slice, at most.
const MAX_FINISHED_PER_SLICE: usize = 64;

/// Progress of a `list` request.
#[derive(Debug)]
pub(crate) struct ListProgress {
    matcher: Matcher,
    next: StreamId,
}

/// Progress of a `switch` request.
#[derive(Debug)]
pub(crate) struct SwitchProgress {
    matcher: Matcher,
    enabled: bool,
    next: StreamId,
    changed: u32,
    // Whether this user may switch at least one of the sensors that match.
    any: bool,
    forbidden: Option<String>,
}

/// Progress of a `budget` request.
#[derive(Debug)]
pub(crate) struct BudgetProgress {
    // Numbers of streams, and whether each is to be off.
    streams: VecDeque<(u32, bool)>,
    changed: u32,
    kept_on: u32,
    refused: Option<String>,
}

impl Connection {
    /// The common start of all requests: checks the version, compiles the query, and makes the
    /// connection a monitor's.
    fn matcher(
        &mut self,
        version: u32,
        query: &Query,
        registry: &Mutex<Registry>,
    ) -> Result<Matcher, String> {
        Self::check_version(version)?;
        let matcher = query.compile().map_err(|error| error.to_string())?;
        self.become_monitor(&mut lock(registry))?;
        Ok(matcher)
    }

    /// Starts a list. The answer takes several packets if the list is long.
    pub(crate) fn list(&mut self, about: &QueryRequest, registry: &Mutex<Registry>) -> Next {
        match self.matcher(about.version, &about.query, registry) {
            Ok(matcher) => self.continue_with(Work::List(ListProgress {
                matcher,
                next: StreamId::from_raw(0),
            })),
            Err(message) => self.deny(&message),
        }
    }

    /// Sends the next packet of a list.
    pub(crate) fn list_slice(&mut self, listing: ListProgress, registry: &Mutex<Registry>) -> Next {
        let ListProgress { matcher, next } = listing;
        let (sensors, following) = self.matching_records(&matcher, next, &lock(registry));
        let more = following.is_some();
        // No packet for a slice without matches, unless it is the last.
        let sent = match (sensors.is_empty(), more) {
            (true, true) => Ok(()),
            _ => self.try_reply(&Reply::Sensors { sensors, more }, &[]),
        };
        let unsent = match sent {
            Ok(()) => following,
            Err(errno) if self.must_wait(errno) => Some(next),
            Err(_) => return Next::Close,
        };
        match unsent {
            Some(next) => self.continue_with(Work::List(ListProgress { matcher, next })),
            None => Next::Again,
        }
    }

    /// The records of matching sensors that this monitor may read, from `first` on, bounded by the
    /// size of a packet and the work of a slice; and the number to continue from, `None` at the
    /// end.
    fn matching_records(
        &self,
        matcher: &Matcher,
        first: StreamId,
        registry: &Registry,
    ) -> (Vec<SensorRecord>, Option<StreamId>) {
        let (mut sensors, mut bytes, mut work) = (Vec::new(), 0, 0);
        let each = 8 + registry.rules.cost() + matcher.cost();
        for sensor in registry.sensors_from(first) {
            let descriptor = &sensor.registered.descriptor;
            if bytes > MAX_REQUEST / 2 || work > WORK_PER_SLICE {
                return (sensors, Some(descriptor.id));
            }
            work += each;
            let rules = &registry.rules;
            let may_read = rules
                .may_attach(self.peer(), sensor.uid, descriptor)
                .is_ok();
            if may_read && matcher.matches(descriptor) {
                // The counters of each lane are read.
                work += 64 + 4 * sensor.registered.shape.lanes();
                let record = sensor.record();
                let size = serde_json::to_vec(&record).map_or(0, |packet| packet.len());
                // A single record fits always: it has the size of its registration, which was
                // bounded.
                if bytes > 0 && bytes + size > MAX_REQUEST {
                    return (sensors, Some(descriptor.id));
                }
                bytes += size;
                sensors.push(record);
            }
        }
        (sensors, None)
    }

    /// Starts an attach. From the first slice on the monitor gets every sensor that is opened;
    /// `settled` follows once it has all that existed before.
    pub(crate) fn attach(&mut self, about: &QueryRequest, registry: &Mutex<Registry>) -> Next {
        if self.is_attached {
            return self.deny("this connection has attached already; open another one");
        }
        let matcher = match self.matcher(about.version, &about.query, registry) {
            Ok(matcher) => matcher,
            Err(message) => return self.deny(&message),
        };
        let needs = match about.needs.compile() {
            Ok(needs) => needs,
            Err(error) => return self.deny(&error.to_string()),
        };
        let characters = about.query.pattern_characters() + about.needs.pattern_characters();
        let subscription = Subscription {
            peer: self.peer().clone(),
            matcher,
            needs,
        };
        let attached = lock(registry).begin_attach(self.monitor(), subscription, characters);
        if let Err(shortage) = attached {
            return self.deny(&shortage.message);
        }
        self.is_attached = true;
        self.continue_with(Work::Attach(StreamId::from_raw(0)))
    }

    pub(crate) fn attach_slice(&mut self, next: StreamId, registry: &Mutex<Registry>) -> Next {
        let mut registry = lock(registry);
        let slice = registry.attach_slice(self.monitor(), next, WORK_PER_SLICE);
        if let Slice::Next(next) = slice {
            return self.continue_with(Work::Attach(next));
        }
        let (denied, message) = registry.denied(self.monitor());
        let reply = Reply::Attached(Attached {
            directory: registry.identity,
            denied,
            message,
        });
        drop(registry);
        let clock: Vec<_> = self.clock().into_iter().collect();
        match self.reply(&reply, &clock) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    pub(crate) fn switch(&mut self, switch: &Switch, registry: &Mutex<Registry>) -> Next {
        match self.matcher(switch.version, &switch.query, registry) {
            Ok(matcher) => self.continue_with(Work::Switch(SwitchProgress {
                matcher,
                enabled: switch.enabled,
                next: StreamId::from_raw(0),
                changed: 0,
                any: false,
                forbidden: None,
            })),
            Err(message) => self.deny(&message),
        }
    }

    pub(crate) fn switch_slice(
        &mut self,
        mut switching: SwitchProgress,
        registry: &Mutex<Registry>,
    ) -> Next {
        let mut registry = lock(registry);
        let each = 16 + 2 * registry.rules.cost() + switching.matcher.cost();
        let count = (WORK_PER_SLICE / each).max(1) as usize;
        let (mut permitted, mut last) = (Vec::new(), None);
        for sensor in registry.sensors_from(switching.next).take(count) {
            let descriptor = &sensor.registered.descriptor;
            last = Some(descriptor.id);
            if !switching.matcher.matches(descriptor) {
                continue;
            }
            let rules = &registry.rules;
            match rules.may_switch(self.peer(), sensor.uid, descriptor) {
                Ok(()) => permitted.push(descriptor.id),
                // A user who may not read a sensor gets no hint that it exists.
                Err(message) => {
                    let sees = rules.may_attach(self.peer(), sensor.uid, descriptor);
                    switching.forbidden = sees.is_ok().then_some(message).or(switching.forbidden);
                }
            }
        }
        switching.any |= !permitted.is_empty();
        for stream in permitted {
            switching.changed += u32::from(registry.set_enabled(stream, switching.enabled));
        }
        drop(registry);
        if let Some(last) = last {
            switching.next = StreamId::from_raw(last.as_raw() + 1);
            return self.continue_with(Work::Switch(switching));
        }
        let changed = switching.changed;
        // A glob may match sensors of several users: those that this user may switch are switched.
        // The request is refused only if there is none.
        let reply = match (switching.any, switching.forbidden) {
            (false, Some(message)) => Reply::Refused {
                message,
                again: false,
            },
            _ => Reply::Switched {
                changed,
                kept_on: 0,
            },
        };
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    pub(crate) fn budget(&mut self, budget: Budget, registry: &Mutex<Registry>) -> Next {
        let checked = Self::check_version(budget.version);
        let checked = checked.and_then(|()| self.become_monitor(&mut lock(registry)));
        if let Err(message) = checked {
            return self.deny(&message);
        }
        let off = budget.off.into_iter().map(|stream| (stream, true));
        let on = budget.on.into_iter().map(|stream| (stream, false));
        self.continue_with(Work::Budget(BudgetProgress {
            streams: on.chain(off).collect(),
            changed: 0,
            kept_on: 0,
            refused: None,
        }))
    }

    pub(crate) fn budget_slice(
        &mut self,
        mut budget: BudgetProgress,
        registry: &Mutex<Registry>,
    ) -> Next {
        let mut registry = lock(registry);
        let each = 16 + 2 * registry.rules.cost();
        let count = (WORK_PER_SLICE / each).max(1) as usize;
        let id = self.monitor();
        for (stream, off) in budget.streams.drain(..count.min(budget.streams.len())) {
            let stream = StreamId::from_raw(stream);
            match registry.set_budget(id, Some(self.peer()), stream, off) {
                Ok(changed) => {
                    budget.changed += u32::from(changed);
                    budget.kept_on += u32::from(off && registry.is_kept_on(stream));
                }
                Err(message) => budget.refused = Some(message),
            }
        }
        drop(registry);
        if !budget.streams.is_empty() {
            return self.continue_with(Work::Budget(budget));
        }
        let (changed, kept_on) = (budget.changed, budget.kept_on);
        let reply = match budget.refused {
            Some(message) => Reply::Refused {
                message,
                again: false,
            },
            None => Reply::Switched { changed, kept_on },
        };
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    pub(crate) fn finished(&mut self, streams: Vec<u32>) -> Next {
        self.continue_with(Work::Finished(streams.into()))
    }

    pub(crate) fn finish_slice(
        &mut self,
        mut streams: VecDeque<u32>,
        registry: &Mutex<Registry>,
    ) -> Next {
        let mut registry = lock(registry);
        for stream in streams.drain(..streams.len().min(MAX_FINISHED_PER_SLICE)) {
            registry.finished(self.monitor(), StreamId::from_raw(stream));
        }
        match streams.is_empty() {
            true => Next::Again,
            false => self.continue_with(Work::Finished(streams)),
        }
    }

    pub(crate) fn status(&mut self, version: u32, registry: &Mutex<Registry>) -> Next {
        let mut registry = lock(registry);
        let admitted =
            Self::check_version(version).and_then(|()| self.become_monitor(&mut registry));
        if let Err(message) = admitted {
            return self.deny(&message);
        }
        let reply = Reply::Status(registry.status());
        drop(registry);
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    pub(crate) fn list_not_connected(&mut self, version: u32, registry: &Mutex<Registry>) -> Next {
        let mut registry = lock(registry);
        let admitted =
            Self::check_version(version).and_then(|()| self.become_monitor(&mut registry));
        if let Err(message) = admitted {
            return self.deny(&message);
        }
        let mut bytes = 0;
        let fits = |record: &&_| {
            bytes += serde_json::to_vec(record).map_or(0, |packet| packet.len() + 1);
            bytes < MAX_REQUEST
        };
        let records = registry
            .not_connected_for(self.peer())
            .take_while(fits)
            .cloned();
        let reply = Reply::NotConnected {
            sensors: records.collect(),
        };
        drop(registry);
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    /// Sends the monitor's pending events, until its socket is full or the slice ends.
    pub(crate) fn send_events(&mut self, registry: &Mutex<Registry>) -> Next {
        let id = self.monitor();
        for _ in 0..MAX_PACKETS_PER_SLICE {
            let mut registry = lock(registry);
            let Some(event) = registry.next_event(id) else {
                return Next::Idle;
            };
            match self.send_event(event, &registry) {
                Ok(()) => {
                    registry.take_event(id);
                }
                Err(errno) if self.must_wait(errno) => return Next::Idle,
                Err(_) => return Next::Close,
            }
        }
        Next::Again
    }

    fn send_event(&self, event: Event, registry: &Registry) -> rustix::io::Result<()> {
        match event {
            Event::Settled => self.try_reply(&Reply::Settled, &[]),
            Event::Ended(stream) => {
                let stream = stream.as_raw();
                self.try_reply(&Reply::Ended { stream }, &[])
            }
            Event::Opened { stream, fresh } => {
                let found = registry.sensor(stream);
                let Some((sensor, file)) = found.and_then(|it| Some((it, it.file.as_ref()?)))
                else {
                    // Freed meanwhile, or its descriptor was never kept.
                    return Ok(());
                };
                let sensor = sensor.record();
                let reply = Reply::Opened(Opened { sensor, fresh });
                self.try_reply(&reply, &[file.as_fd()])
            }
        }
    }

    /// Whether a packet that could not be sent is to be sent later: once the peer has read, or at
    /// the next tick if too many descriptors of this user are in flight (`ETOOMANYREFS`).
    pub(crate) fn must_wait(&mut self, errno: Errno) -> bool {
        self.is_full = errno == Errno::AGAIN;
        self.is_later = matches!(errno, Errno::TOOMANYREFS | Errno::NOBUFS);
        self.is_full || self.is_later
    }
}
