// SPDX-License-Identifier: MIT OR Apache-2.0
//! Subscriptions: monitors, the sensors that they hold, and their pending events.
//!
//! Attaching and detaching are done in slices of bounded work: there may be many thousand sensors,
//! and the patterns come from another process. From its first slice on a monitor gets every sensor
//! that is opened; the slices add those that existed before.

use std::collections::{BTreeSet, VecDeque};

use overhear_event::{StreamDescriptor, StreamId};

use super::Registry;
use crate::journal::Entry;
use crate::needs::Needed;
use crate::peer::Peer;
use crate::query::Matcher;
use crate::quota::{Amounts, Resource, Shortage};
use crate::sensor_record::SensorState;

/// Pending events of a monitor, at most.
const MAX_EVENTS: usize = 64 * 1024;
/// Bytes of a monitor without its patterns.
const MONITOR_BYTES: u64 = 4096;
/// Events and held sensors of a monitor are charged in portions of this number of entries.
const ENTRIES_PER_CHARGE: usize = 1024;
/// Bytes of an entry in a queue or in a set.
const ENTRY_BYTES: u64 = 64;

/// A monitor's identity: the number of its connection, or the monitor in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MonitorId {
    Embedded,
    Connection(u32),
}

/// A change of a sensor that a monitor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Opened { stream: StreamId, fresh: bool },
    Settled,
    Ended(StreamId),
}

/// The subscription of a monitor.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    pub(crate) peer: Peer,
    pub(crate) matcher: Matcher,
    /// The sensors that it evaluates, of those that match.
    pub(crate) needs: Needed,
}

impl Subscription {
    /// The charge of the subscription. `pattern_characters` counts the characters of all its
    /// patterns.
    pub(crate) fn amounts(&self, pattern_characters: u64) -> Amounts {
        let memory = MONITOR_BYTES + self.matcher.memory_bytes() + self.needs.memory_bytes();
        Amounts::of(Resource::RecordBytes, memory).and(Resource::Patterns, pattern_characters)
    }
}

/// A monitor.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    // Its peer and its pattern; `None` for the monitor in this process, which reads everything.
    wants: Option<(Peer, Matcher)>,
    /// The sensors that it evaluates, of those that match.
    pub(super) needs: Needed,
    charged: Amounts,
    pub(super) events: VecDeque<Event>,
    pub(super) holds: BTreeSet<StreamId>,
    // Charged portions of events and held sensors.
    charged_portions: usize,
    // Whether an event could not be charged: then it is disconnected.
    is_lost: bool,
    denied: u32,
    message: String,
}

impl Monitor {
    /// Its peer; `None` for the monitor in this process.
    pub(super) fn peer(&self) -> Option<&Peer> {
        self.wants.as_ref().map(|(peer, _)| peer)
    }

    /// Whether its pattern matches this sensor.
    pub(super) fn wants(&self, sensor: &StreamDescriptor) -> bool {
        let wants = self.wants.as_ref();
        wants.is_none_or(|(_, matcher)| matcher.matches(sensor))
    }
}

/// A monitor that is gone, with the sensors that are still to be released.
#[derive(Debug)]
pub(super) struct DetachedMonitor {
    id: MonitorId,
    holds: BTreeSet<StreamId>,
    // The next sensor to check for `disabled_by` this monitor; `None` if it never requested that.
    disabled_from: Option<StreamId>,
}

/// The end of a slice of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slice {
    /// The bound was reached: continue from this sensor.
    Next(StreamId),
    Done,
}

impl Registry {
    /// Attaches the monitor in this process: it holds every sensor.
    pub(crate) fn attach_embedded(&mut self) {
        // The needs of the directory's builder are those of this monitor.
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

    /// Attaches a monitor to later sensors. [`Registry::attach_slice`] adds the existing ones.
    ///
    /// # Errors
    /// The quota that its patterns exceed.
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

    /// Adds existing sensors to a monitor, from `first` on, until `work` is used up.
    pub(crate) fn attach_slice(&mut self, id: MonitorId, first: StreamId, work: u32) -> Slice {
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
            self.meet(id, stream, false);
            self.update_switch(stream);
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

    /// Number of sensors that a monitor may read and cannot get, and the reason.
    pub(crate) fn denied(&self, id: MonitorId) -> (u32, String) {
        let monitor = self.monitors.get(&id);
        monitor.map_or((0, String::new()), |monitor| {
            (monitor.denied, monitor.message.clone())
        })
    }

    /// Evaluates the subscription of a monitor for a sensor, once per pair. The caller then updates
    /// the sensor's switch.
    pub(super) fn meet(&mut self, id: MonitorId, stream: StreamId, fresh: bool) {
        let (Some(monitor), Some(sensor)) = (self.monitors.get(&id), self.sensors.get(&stream))
        else {
            return;
        };
        if sensor.holders.contains_key(&id) {
            return;
        }
        let descriptor = &sensor.registered.descriptor;
        let disables_unneeded = self.disables_unneeded(monitor, sensor.uid, descriptor);
        // A monitor gets no hint of a sensor that it may not read, not even by a count.
        let may = |peer| self.rules.may_attach(peer, sensor.uid, descriptor).is_ok();
        let wants = monitor.peer().is_none_or(may) && monitor.wants(descriptor);
        let needs = wants && monitor.needs.matches(descriptor);
        let is_denied = wants && monitor.peer().is_some() && sensor.file.is_none();
        let (Some(monitor), Some(sensor)) =
            (self.monitors.get_mut(&id), self.sensors.get_mut(&stream))
        else {
            return;
        };
        if disables_unneeded {
            sensor.disabled_by.insert(id);
        }
        if is_denied {
            monitor.denied += 1;
            monitor.message = "the directory had no file descriptor left to hand it over with; \
                                raise its limit (`ulimit -n`)"
                .to_string();
        } else if wants {
            sensor.holders.insert(id, needs);
        }
        if wants && !is_denied {
            self.queue_opened(id, stream, fresh);
        }
    }

    fn queue_opened(&mut self, id: MonitorId, stream: StreamId, fresh: bool) {
        let (Some(monitor), Some(sensor)) = (self.monitors.get_mut(&id), self.sensors.get(&stream))
        else {
            return;
        };
        monitor.holds.insert(stream);
        monitor.events.push_back(Event::Opened { stream, fresh });
        if sensor.state != SensorState::Live {
            monitor.events.push_back(Event::Ended(stream));
        }
        self.note_pending_events(id);
    }

    /// Charges a monitor's new events, and marks them to be sent.
    fn note_pending_events(&mut self, id: MonitorId) {
        self.pending.insert(id);
        let Some(monitor) = self.monitors.get_mut(&id) else {
            return;
        };
        let entries = monitor.events.len() + monitor.holds.len();
        let more = entries
            .div_ceil(ENTRIES_PER_CHARGE)
            .saturating_sub(monitor.charged_portions);
        let (Some((peer, _)), true) = (&monitor.wants, more > 0) else {
            return;
        };
        let uid = peer.uid;
        let memory = Amounts::of(
            Resource::RecordBytes,
            (more * ENTRIES_PER_CHARGE) as u64 * ENTRY_BYTES,
        );
        let charged = self.quotas.charge(uid, memory).is_ok();
        if let Some(monitor) = self.monitors.get_mut(&id) {
            monitor.is_lost |= !charged || monitor.events.len() > MAX_EVENTS;
            if charged {
                monitor.charged_portions += more;
                monitor.charged.add(&memory);
            }
        }
    }

    /// Queues the end of a sensor for the monitors that hold it.
    pub(super) fn queue_ended(&mut self, stream: StreamId) {
        let sensor = self.sensors.get(&stream);
        let holders = sensor.map(|sensor| sensor.holders.keys().copied().collect());
        let holders: Vec<MonitorId> = holders.unwrap_or_default();
        for id in holders {
            if let Some(monitor) = self.monitors.get_mut(&id) {
                monitor.events.push_back(Event::Ended(stream));
            }
            self.note_pending_events(id);
        }
    }

    /// Detaches a monitor. [`Registry::release_departed`] releases its sensors: one that it has not
    /// read to the end is retained as if the monitor had never held it.
    pub(crate) fn detach(&mut self, id: MonitorId) {
        let Some(monitor) = self.monitors.remove(&id) else {
            return;
        };
        self.pending.remove(&id);
        if let Some(peer) = monitor.peer() {
            self.quotas.release(peer.uid, monitor.charged);
        }
        let departure = DetachedMonitor {
            id,
            holds: monitor.holds,
            disabled_from: monitor.needs.only.then_some(StreamId::from_raw(0)),
        };
        self.detached_monitors.push_back(departure);
    }

    /// Releases sensors of detached monitors, at most `most`; true if there are more.
    pub(super) fn release_departed(&mut self, mut most: u32) -> bool {
        while let Some(mut departure) = self.detached_monitors.pop_front() {
            let id = departure.id;
            while most > 0 {
                let Some(stream) = departure.holds.pop_first() else {
                    break;
                };
                most -= 1;
                self.release_hold(id, stream, false);
            }
            while let (Some(from), true) = (departure.disabled_from, most > 0) {
                most -= 1;
                let mut sensors = self.sensors.range_mut(from..);
                departure.disabled_from = sensors.next().map(|(stream, sensor)| {
                    sensor.disabled_by.remove(&id);
                    *stream
                });
                if let Some(stream) = departure.disabled_from {
                    self.update_switch(stream);
                    departure.disabled_from = Some(StreamId::from_raw(stream.as_raw() + 1));
                }
            }
            if most == 0 {
                self.detached_monitors.push_front(departure);
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
            self.release_hold(id, stream, true);
        }
    }

    fn release_hold(&mut self, id: MonitorId, stream: StreamId, read: bool) {
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
            // The monitor stopped reading, for instance after damage. Other monitors may attach.
            SensorState::Live => false,
            SensorState::Unregistered => true,
            SensorState::Retained => sensor.was_read,
        };
        if unneeded && sensor.holders.is_empty() {
            self.free(stream);
        } else if needed == Some(true) {
            self.update_switch(stream);
        }
    }

    /// The next event of a monitor, without taking it.
    pub(crate) fn next_event(&self, id: MonitorId) -> Option<Event> {
        self.monitors.get(&id)?.events.front().copied()
    }

    pub(crate) fn take_event(&mut self, id: MonitorId) -> Option<Event> {
        self.monitors.get_mut(&id)?.events.pop_front()
    }

    /// Connections with new events since the last call, and whether their monitors are still
    /// served: one whose events could not be charged is not.
    pub(crate) fn take_pending(&mut self) -> Vec<(u32, bool)> {
        let pending = std::mem::take(&mut self.pending).into_iter();
        let pending = pending.filter_map(|id| match id {
            MonitorId::Connection(number) => {
                let monitor = self.monitors.get(&id)?;
                Some((number, !monitor.is_lost))
            }
            MonitorId::Embedded => None,
        });
        pending.collect()
    }
}
