// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who reads what: monitors, what they hold, and the events that wait for them.
//!
//! A monitor attaches and departs in slices, each with a bound on its work: there may be many thousand
//! sensors, and the patterns come from somebody else. From its first slice on it gets what is opened; the
//! slices add what was there before.

use std::collections::{BTreeSet, VecDeque};

use overhear_event::{StreamDescriptor, StreamId};

use super::Registry;
use crate::journal::Entry;
use crate::needs::Needed;
use crate::peer::Peer;
use crate::query::Matcher;
use crate::quota::{Amounts, Resource, Shortage};
use crate::record::SensorState;

/// How many events may wait for a monitor that does not take them.
const MAX_EVENTS: usize = 64 * 1024;
/// Memory of a monitor without its patterns.
const MONITOR_BYTES: u64 = 4096;
/// Events and sensors of a monitor are charged in portions of so many,
const PORTION: usize = 1024;
/// at so many bytes each: an entry in a queue or in a set.
const ENTRY_BYTES: u64 = 64;

/// The number of a monitor. It is that of its connection; the monitor in this process has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MonitorId {
    Embedded,
    Connection(u32),
}

/// What happened to a sensor that a monitor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Opened { stream: StreamId, fresh: bool },
    Settled,
    Ended(StreamId),
}

/// What a monitor subscribes to.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) peer: Peer,
    pub(crate) matcher: Matcher,
    /// What it evaluates of that.
    pub(crate) needs: Needed,
}

impl Subscription {
    /// What it takes of the directory. Characters of patterns are counted by whoever has them.
    pub(crate) fn amounts(&self, pattern_characters: u64) -> Amounts {
        let memory = MONITOR_BYTES + self.matcher.memory_bytes() + self.needs.memory_bytes();
        Amounts::of(Resource::RecordBytes, memory).and(Resource::Patterns, pattern_characters)
    }
}

/// Somebody who reads.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    // Who it is and what it wants; the monitor in this process wants everything.
    wants: Option<(Peer, Matcher)>,
    /// What it evaluates of that.
    pub(super) needs: Needed,
    charged: Amounts,
    pub(super) events: VecDeque<Event>,
    pub(super) holds: BTreeSet<StreamId>,
    // Portions of events and sensors that are charged.
    portions: usize,
    // There was no memory for an event: it cannot go on.
    is_lost: bool,
    denied: u32,
    sentence: String,
}

impl Monitor {
    /// Who it is; nobody in particular in this process.
    pub(super) fn peer(&self) -> Option<&Peer> {
        self.wants.as_ref().map(|(peer, _)| peer)
    }

    /// Whether it attaches to this sensor, as far as names decide.
    pub(super) fn wants(&self, sensor: &StreamDescriptor) -> bool {
        let wants = self.wants.as_ref();
        wants.is_none_or(|(_, matcher)| matcher.matches(sensor))
    }
}

/// A monitor that is gone, and what is still to be let go of.
#[derive(Debug)]
pub(super) struct Departure {
    id: MonitorId,
    holds: BTreeSet<StreamId>,
    // Where to go on looking for sensors that were off for its sake; none if it had no such wish.
    spared_from: Option<StreamId>,
}

/// A slice of some work ended where its bound was reached, or at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// Go on from this sensor.
    Next(StreamId),
    Done,
}

impl Registry {
    /// The monitor in this process takes part: every sensor waits for it.
    pub(crate) fn attach_embedded(&mut self) {
        // Where the directory was told what is needed, that is what this monitor needs.
        let needs = match self.needs {
            Some(_) => Needed::default(),
            None => Needed::all(),
        };
        let monitor = Monitor {
            needs,
            ..Monitor::default()
        };
        self.monitors.insert(MonitorId::Embedded, monitor);
    }

    pub(crate) fn has_embedded_monitor(&self) -> bool {
        self.monitors.contains_key(&MonitorId::Embedded)
    }

    /// A monitor takes part from now on. What is there already it gets by [`Registry::attach_some`].
    ///
    /// # Errors
    /// Which quota its patterns exceed.
    pub(crate) fn begin_attach(
        &mut self,
        id: MonitorId,
        subscription: Subscription,
        pattern_characters: u64,
    ) -> Result<(), Shortage> {
        let charged = subscription.amounts(pattern_characters);
        let Subscription {
            peer,
            matcher,
            needs,
        } = subscription;
        self.charge(peer.uid, charged)?;
        let monitor = Monitor {
            wants: Some((peer, matcher)),
            needs,
            charged,
            ..Monitor::default()
        };
        self.monitors.insert(id, monitor);
        Ok(())
    }

    /// Hands a monitor what was there before it: the sensors from a number on, as far as `work` goes.
    pub(crate) fn attach_some(&mut self, id: MonitorId, first: StreamId, work: u32) -> Slice {
        let cost = |monitor: &Monitor| {
            let wants = monitor.wants.as_ref();
            wants.map_or(1, |(_, matcher)| matcher.cost()) + monitor.needs.cost()
        };
        let each = self.monitors.get(&id).map_or(1, cost) + self.rules.cost() + 8;
        let count = (work / each).max(1) as usize;
        let streams = self.sensors.range(first..).map(|(stream, _)| *stream);
        let streams: Vec<StreamId> = streams.take(count + 1).collect();
        let (now, next) = match streams.split_at_checked(count) {
            Some((now, [next, ..])) => (now, Some(*next)),
            _ => (&streams[..], None),
        };
        for &stream in now {
            self.introduce(id, stream, false);
            self.settle(stream);
        }
        match next {
            Some(next) => Slice::Next(next),
            None => {
                if let Some(monitor) = self.monitors.get_mut(&id) {
                    monitor.events.push_back(Event::Settled);
                }
                Slice::Done
            }
        }
    }

    /// How many of the sensors that a monitor may read it cannot be given, and why.
    pub(crate) fn denied(&self, id: MonitorId) -> (u32, String) {
        let monitor = self.monitors.get(&id);
        monitor.map_or((0, String::new()), |monitor| {
            (monitor.denied, monitor.sentence.clone())
        })
    }

    /// A monitor and a sensor meet: what the one wants of the other is found out, once. Whether the sensor
    /// is needed then is for the caller to settle.
    pub(super) fn introduce(&mut self, id: MonitorId, stream: StreamId, fresh: bool) {
        let (Some(monitor), Some(sensor)) = (self.monitors.get(&id), self.sensors.get(&stream))
        else {
            return;
        };
        if sensor.holders.contains_key(&id) {
            return;
        }
        let descriptor = &sensor.registered.descriptor;
        let spares = self.spares(monitor, sensor.uid, descriptor);
        // Whoever may not read a sensor learns nothing of it, not even by a count.
        let may = |peer| self.rules.may_attach(peer, sensor.uid, descriptor).is_ok();
        let wants = monitor.peer().is_none_or(may) && monitor.wants(descriptor);
        let needs = wants && monitor.needs.matches(descriptor);
        let is_denied = wants && monitor.peer().is_some() && sensor.file.is_none();
        let (Some(monitor), Some(sensor)) =
            (self.monitors.get_mut(&id), self.sensors.get_mut(&stream))
        else {
            return;
        };
        if spares {
            sensor.spared_by.insert(id);
        }
        if is_denied {
            monitor.denied += 1;
            monitor.sentence = "the directory had no file descriptor left to hand it over with; \
                                raise its limit (`ulimit -n`)"
                .to_string();
        } else if wants {
            sensor.holders.insert(id, needs);
        }
        if wants && !is_denied {
            self.hand_out(id, stream, fresh);
        }
    }

    fn hand_out(&mut self, id: MonitorId, stream: StreamId, fresh: bool) {
        let (Some(monitor), Some(sensor)) = (self.monitors.get_mut(&id), self.sensors.get(&stream))
        else {
            return;
        };
        monitor.holds.insert(stream);
        monitor.events.push_back(Event::Opened { stream, fresh });
        if sensor.state != SensorState::Live {
            monitor.events.push_back(Event::Ended(stream));
        }
        self.note_news(id);
    }

    /// A monitor has new events: they count, and are to be sent.
    fn note_news(&mut self, id: MonitorId) {
        self.news.insert(id);
        let Some(monitor) = self.monitors.get_mut(&id) else {
            return;
        };
        let entries = monitor.events.len() + monitor.holds.len();
        let more = entries.div_ceil(PORTION).saturating_sub(monitor.portions);
        let (Some((peer, _)), true) = (&monitor.wants, more > 0) else {
            return;
        };
        let uid = peer.uid;
        let memory = Amounts::of(Resource::RecordBytes, (more * PORTION) as u64 * ENTRY_BYTES);
        let charged = self.quotas.charge(uid, memory).is_ok();
        if let Some(monitor) = self.monitors.get_mut(&id) {
            monitor.is_lost |= !charged || monitor.events.len() > MAX_EVENTS;
            if charged {
                monitor.portions += more;
                monitor.charged.add(&memory);
            }
        }
    }

    /// The end of a sensor, for those who hold it.
    pub(super) fn tell_end(&mut self, stream: StreamId) {
        let sensor = self.sensors.get(&stream);
        let holders = sensor.map(|sensor| sensor.holders.keys().copied().collect());
        let holders: Vec<MonitorId> = holders.unwrap_or_default();
        for id in holders {
            if let Some(monitor) = self.monitors.get_mut(&id) {
                monitor.events.push_back(Event::Ended(stream));
            }
            self.note_news(id);
        }
    }

    /// A monitor is gone. What it held is let go of by [`Registry::let_go_of_some`]: what nobody has read
    /// is kept as if it had not been there.
    pub(crate) fn detach(&mut self, id: MonitorId) {
        let Some(monitor) = self.monitors.remove(&id) else {
            return;
        };
        self.news.remove(&id);
        if let Some(peer) = monitor.peer() {
            self.quotas.release(peer.uid, monitor.charged);
        }
        let departure = Departure {
            id,
            holds: monitor.holds,
            spared_from: monitor.needs.only.then_some(StreamId::from_raw(0)),
        };
        self.departures.push_back(departure);
    }

    /// Lets go of what departed monitors held, for at most so many sensors; says whether there is more.
    pub(super) fn let_go_of_some(&mut self, mut most: u32) -> bool {
        while let Some(mut departure) = self.departures.pop_front() {
            let id = departure.id;
            while most > 0 {
                let Some(stream) = departure.holds.pop_first() else {
                    break;
                };
                most -= 1;
                self.let_go(id, stream, false);
            }
            while let (Some(from), true) = (departure.spared_from, most > 0) {
                most -= 1;
                let mut sensors = self.sensors.range_mut(from..);
                departure.spared_from = sensors.next().map(|(stream, sensor)| {
                    sensor.spared_by.remove(&id);
                    *stream
                });
                if let Some(stream) = departure.spared_from {
                    self.settle(stream);
                    departure.spared_from = Some(StreamId::from_raw(stream.as_raw() + 1));
                }
            }
            if most == 0 {
                self.departures.push_front(departure);
                return true;
            }
        }
        false
    }

    /// A monitor has read a sensor to its end.
    pub(crate) fn finished(&mut self, id: MonitorId, stream: StreamId) {
        let held = self
            .monitors
            .get_mut(&id)
            .is_some_and(|monitor| monitor.holds.remove(&stream));
        if held {
            self.let_go(id, stream, true);
        }
    }

    fn let_go(&mut self, id: MonitorId, stream: StreamId, read: bool) {
        let Some(sensor) = self.sensors.get_mut(&stream) else {
            return;
        };
        let needed = sensor.holders.remove(&id);
        if read && !sensor.was_read {
            sensor.was_read = true;
            if let (Some(journal), Some(_)) = (&mut self.journal, &sensor.file) {
                let stream = stream.as_raw();
                journal.write(&Entry::Read { stream });
            }
        }
        let unneeded = match sensor.state {
            // Broken, or the monitor has lost interest; others may come.
            SensorState::Live => false,
            SensorState::Unregistered => true,
            SensorState::Retained => sensor.was_read,
        };
        if unneeded && sensor.holders.is_empty() {
            self.free(stream);
        } else if needed == Some(true) {
            self.settle(stream);
        }
    }

    /// The next event for a monitor, which stays there until it is taken.
    pub(crate) fn next_event(&self, id: MonitorId) -> Option<Event> {
        self.monitors.get(&id)?.events.front().copied()
    }

    pub(crate) fn take_event(&mut self, id: MonitorId) -> Option<Event> {
        self.monitors.get_mut(&id)?.events.pop_front()
    }

    /// Connections for which there are new events since the last call, and whether they can still take
    /// them: of those that do not read no more is kept than is charged.
    pub(crate) fn take_news(&mut self) -> Vec<(u32, bool)> {
        let news = std::mem::take(&mut self.news).into_iter();
        let news = news.filter_map(|id| match id {
            MonitorId::Connection(number) => {
                let monitor = self.monitors.get(&id)?;
                Some((number, !monitor.is_lost))
            }
            MonitorId::Embedded => None,
        });
        news.collect()
    }
}
