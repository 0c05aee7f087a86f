// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitors' packets: what is there, what they get, what they switch.
//!
//! What takes long is done in slices, between which others have their turns.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Mutex;

use overhear_event::StreamId;
use rustix::io::Errno;

use crate::connection::{Connection, Next, Work};
use crate::packet::MAX_REQUEST;
use crate::protocol::{About, Attached, Opened, Reply, Switch, VERSION};
use crate::query::{Matcher, Query};
use crate::record::SensorRecord;
use crate::registry::{lock, Event, Registry, Slice, Subscription};

/// The work of a slice, in parts of patterns that are compared, and in lanes that are looked at.
const SLICE_WORK: u32 = 4096;
/// How many packets are sent in a slice.
const PACKETS_AT_ONCE: u32 = 16;
/// How many sensors that were read to their end are let go of in a slice.
const FINISHED_AT_ONCE: usize = 64;

/// A list that is on its way.
#[derive(Debug)]
pub(crate) struct Listing {
    matcher: Matcher,
    next: StreamId,
}

/// Sensors that are being switched.
#[derive(Debug)]
pub(crate) struct Switching {
    matcher: Matcher,
    enabled: bool,
    next: StreamId,
    changed: u32,
    // Whether some were switched, or were so already; else why none may be.
    any: bool,
    forbidden: Option<String>,
}

impl Connection {
    fn check_version(version: u32) -> Result<(), String> {
        match version {
            VERSION => Ok(()),
            _ => Err(format!(
                "the monitor speaks version {version} of the protocol, this directory version \
                 {VERSION}"
            )),
        }
    }

    /// What every request of a monitor begins with: its version, its place here, its query.
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

    /// Answers with as many packets as it takes, whenever there is room for one.
    pub(crate) fn list(&mut self, about: &About, registry: &Mutex<Registry>) -> Next {
        match self.matcher(about.version, &about.query, registry) {
            Ok(matcher) => self.go_on_with(Work::List(Listing {
                matcher,
                next: StreamId::from_raw(0),
            })),
            Err(sentence) => self.deny(&sentence),
        }
    }

    /// Sends the next packet of a list.
    pub(crate) fn list_some(&mut self, listing: Listing, registry: &Mutex<Registry>) -> Next {
        let Listing { matcher, next } = listing;
        let (sensors, following) = self.some(&matcher, next, &lock(registry));
        let more = following.is_some();
        // A slice in which nothing was found needs no packet.
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
            Some(next) => self.go_on_with(Work::List(Listing { matcher, next })),
            None => Next::Again,
        }
    }

    /// The sensors from a number on that match and that this monitor may hear, as many as go into a
    /// packet and a slice; and where to go on.
    fn some(
        &self,
        matcher: &Matcher,
        first: StreamId,
        registry: &Registry,
    ) -> (Vec<SensorRecord>, Option<StreamId>) {
        let (mut sensors, mut bytes, mut work) = (Vec::new(), 0, 0);
        let each = 8 + registry.rules.cost() + matcher.cost();
        for sensor in registry.sensors_from(first) {
            let descriptor = &sensor.registered.descriptor;
            if bytes > MAX_REQUEST / 2 || work > SLICE_WORK {
                return (sensors, Some(descriptor.id));
            }
            work += each;
            let rules = &registry.rules;
            let hears = rules
                .may_attach(self.peer(), sensor.uid, descriptor)
                .is_ok();
            if hears && matcher.matches(descriptor) {
                // Each lane counts for itself.
                work += 64 + 4 * sensor.registered.shape.lanes();
                let record = sensor.record();
                let size = serde_json::to_vec(&record).map_or(0, |packet| packet.len());
                // A single record is never larger than what came with its request, and little more.
                if bytes > 0 && bytes + size > MAX_REQUEST {
                    return (sensors, Some(descriptor.id));
                }
                bytes += size;
                sensors.push(record);
            }
        }
        (sensors, None)
    }

    /// From its first slice on a monitor gets what is opened; it is told so when it has what was there.
    pub(crate) fn attach(&mut self, about: &About, registry: &Mutex<Registry>) -> Next {
        if self.is_attached {
            return self.deny("this connection has attached already; open another one");
        }
        let matcher = match self.matcher(about.version, &about.query, registry) {
            Ok(matcher) => matcher,
            Err(sentence) => return self.deny(&sentence),
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
            return self.deny(&shortage.sentence);
        }
        self.is_attached = true;
        self.go_on_with(Work::Attach(StreamId::from_raw(0)))
    }

    pub(crate) fn attach_some(&mut self, next: StreamId, registry: &Mutex<Registry>) -> Next {
        let mut registry = lock(registry);
        let slice = registry.attach_some(self.monitor(), next, SLICE_WORK);
        if let Slice::Next(next) = slice {
            return self.go_on_with(Work::Attach(next));
        }
        let (denied, sentence) = registry.denied(self.monitor());
        let reply = Reply::Attached(Attached {
            directory: registry.identity,
            denied,
            sentence,
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
            Ok(matcher) => self.go_on_with(Work::Switch(Switching {
                matcher,
                enabled: switch.enabled,
                next: StreamId::from_raw(0),
                changed: 0,
                any: false,
                forbidden: None,
            })),
            Err(sentence) => self.deny(&sentence),
        }
    }

    pub(crate) fn switch_some(
        &mut self,
        mut switching: Switching,
        registry: &Mutex<Registry>,
    ) -> Next {
        let mut registry = lock(registry);
        let each = 16 + 2 * registry.rules.cost() + switching.matcher.cost();
        let count = (SLICE_WORK / each).max(1) as usize;
        let (mut meant, mut last) = (Vec::new(), None);
        for sensor in registry.sensors_from(switching.next).take(count) {
            let descriptor = &sensor.registered.descriptor;
            last = Some(descriptor.id);
            if !switching.matcher.matches(descriptor) {
                continue;
            }
            let rules = &registry.rules;
            match rules.may_switch(self.peer(), sensor.uid, descriptor) {
                Ok(()) => meant.push(descriptor.id),
                // Who may not even see it is told nothing of it.
                Err(sentence) => {
                    let sees = rules.may_attach(self.peer(), sensor.uid, descriptor);
                    switching.forbidden = sees.is_ok().then_some(sentence).or(switching.forbidden);
                }
            }
        }
        switching.any |= !meant.is_empty();
        for stream in meant {
            switching.changed += u32::from(registry.set_enabled(stream, switching.enabled));
        }
        drop(registry);
        if let Some(last) = last {
            switching.next = StreamId::from_raw(last.as_raw() + 1);
            return self.go_on_with(Work::Switch(switching));
        }
        let changed = switching.changed;
        // All or nothing would be of no use to who may switch some of those that a glob names; but
        // who may switch none is told why.
        let reply = match (switching.any, switching.forbidden) {
            (false, Some(sentence)) => Reply::Refused {
                sentence,
                again: false,
            },
            _ => Reply::Switched { changed },
        };
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    pub(crate) fn finished(&mut self, streams: Vec<u32>) -> Next {
        self.go_on_with(Work::Finished(streams.into()))
    }

    pub(crate) fn finish_some(
        &mut self,
        mut streams: VecDeque<u32>,
        registry: &Mutex<Registry>,
    ) -> Next {
        let mut registry = lock(registry);
        for stream in streams.drain(..streams.len().min(FINISHED_AT_ONCE)) {
            registry.finished(self.monitor(), StreamId::from_raw(stream));
        }
        match streams.is_empty() {
            true => Next::Again,
            false => self.go_on_with(Work::Finished(streams)),
        }
    }

    pub(crate) fn status(&mut self, version: u32, registry: &Mutex<Registry>) -> Next {
        let mut registry = lock(registry);
        let admitted =
            Self::check_version(version).and_then(|()| self.become_monitor(&mut registry));
        if let Err(sentence) = admitted {
            return self.deny(&sentence);
        }
        let reply = Reply::Status(registry.status());
        drop(registry);
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    pub(crate) fn list_unheard(&mut self, version: u32, registry: &Mutex<Registry>) -> Next {
        let mut registry = lock(registry);
        let admitted =
            Self::check_version(version).and_then(|()| self.become_monitor(&mut registry));
        if let Err(sentence) = admitted {
            return self.deny(&sentence);
        }
        let mut bytes = 0;
        let fits = |record: &&_| {
            bytes += serde_json::to_vec(record).map_or(0, |packet| packet.len() + 1);
            bytes < MAX_REQUEST
        };
        let records = registry.unheard_for(self.peer()).take_while(fits).cloned();
        let reply = Reply::Unheard {
            sensors: records.collect(),
        };
        drop(registry);
        match self.reply(&reply, &[]) {
            true => Next::Again,
            false => Next::Close,
        }
    }

    /// Sends a monitor what is new, as much as its socket takes and a slice allows.
    pub(crate) fn send_events(&mut self, registry: &Mutex<Registry>) -> Next {
        let id = self.monitor();
        for _ in 0..PACKETS_AT_ONCE {
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
                    // Freed meanwhile, or never to be handed out.
                    return Ok(());
                };
                let sensor = sensor.record();
                let reply = Reply::Opened(Opened { sensor, fresh });
                self.try_reply(&reply, &[file.as_fd()])
            }
        }
    }

    /// Whether what could not be sent can be sent later: when the peer has read, or at the next tick,
    /// because too many files of this user are on their way, here and elsewhere.
    fn must_wait(&mut self, errno: Errno) -> bool {
        self.is_full = errno == Errno::AGAIN;
        self.is_later = matches!(errno, Errno::TOOMANYREFS | Errno::NOBUFS);
        self.is_full || self.is_later
    }
}
