// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who reads what: monitors, what they hold, and what they have to be told.

use std::collections::BTreeSet;

use overhear_event::{StreamDescriptor, StreamId};

use super::Registry;
use crate::journal::Entry;
use crate::needs::Needed;
use crate::peer::Peer;
use crate::query::Matcher;
use crate::record::SensorState;

/// How many events may wait for a monitor that does not take them.
const MAX_EVENTS: usize = 64 * 1024;

/// The number of a monitor. It is that of its connection; the monitor in this process has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MonitorId {
    Embedded,
    Connection(u32),
}

/// What a monitor has to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Opened { stream: StreamId, fresh: bool },
    Settled,
    Ended(StreamId),
}

/// Somebody who reads.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    // Who it is and what it wants; the monitor in this process wants everything.
    wants: Option<(Peer, Matcher)>,
    /// What it evaluates of that.
    pub(super) needs: Needed,
    pub(super) events: std::collections::VecDeque<Event>,
    pub(super) holds: BTreeSet<StreamId>,
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

impl Registry {
    /// Whether a monitor wants a sensor; the rule that keeps it from it.
    pub(super) fn may_hear(&self, monitor: &Monitor, stream: StreamId) -> Result<bool, String> {
        let (Some(sensor), Some((peer, matcher))) = (self.sensors.get(&stream), &monitor.wants)
        else {
            return Ok(true);
        };
        if !matcher.matches(&sensor.registered.descriptor) {
            return Ok(false);
        }
        if sensor.file.is_none() {
            return Err(
                "the directory had no file descriptor left to hand it over with; raise its \
                 limit (`ulimit -n`)"
                    .to_string(),
            );
        }
        self.rules.attach(peer, sensor).map(|()| true)
    }

    pub(super) fn hand_out(&mut self, id: MonitorId, stream: StreamId, fresh: bool) {
        let (Some(monitor), Some(sensor)) =
            (self.monitors.get_mut(&id), self.sensors.get_mut(&stream))
        else {
            return;
        };
        monitor.holds.insert(stream);
        monitor.events.push_back(Event::Opened { stream, fresh });
        sensor.holders.insert(id);
        if sensor.state != SensorState::Live {
            monitor.events.push_back(Event::Ended(stream));
        }
    }

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

    /// A monitor takes part. Says how many sensors that match it may not hear, and why.
    pub(crate) fn attach(
        &mut self,
        id: MonitorId,
        peer: Peer,
        matcher: Matcher,
        needs: Needed,
    ) -> (u32, String) {
        let monitor = Monitor {
            wants: Some((peer, matcher)),
            needs,
            ..Monitor::default()
        };
        let (mut denied, mut sentence) = (0, String::new());
        let mut wanted = Vec::new();
        for stream in self.sensors.keys() {
            match self.may_hear(&monitor, *stream) {
                Ok(true) => wanted.push(*stream),
                Ok(false) => {}
                Err(why) => {
                    denied += 1;
                    sentence = why;
                }
            }
        }
        self.detach(id);
        self.monitors.insert(id, monitor);
        // Before it hears of them, so that it finds them as they are.
        if self.is_sparing() {
            self.settle_all();
        }
        for stream in wanted {
            self.hand_out(id, stream, false);
        }
        if let Some(monitor) = self.monitors.get_mut(&id) {
            monitor.events.push_back(Event::Settled);
        }
        (denied, sentence)
    }

    /// A monitor is gone. What it held and nobody has read is kept as if it had not been there.
    pub(crate) fn detach(&mut self, id: MonitorId) {
        let was_sparing = self.is_sparing();
        let Some(monitor) = self.monitors.remove(&id) else {
            return;
        };
        if was_sparing {
            self.settle_all();
        }
        for stream in monitor.holds {
            self.let_go(id, stream, false);
        }
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
        sensor.holders.remove(&id);
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
        }
    }

    /// The next thing to tell a monitor, which stays there until it is taken.
    pub(crate) fn next_event(&self, id: MonitorId) -> Option<Event> {
        self.monitors.get(&id)?.events.front().copied()
    }

    pub(crate) fn take_event(&mut self, id: MonitorId) -> Option<Event> {
        self.monitors.get_mut(&id)?.events.pop_front()
    }

    /// Monitors with something to be told, and those that will never take it.
    pub(crate) fn waiting_monitors(&self) -> (Vec<u32>, Vec<u32>) {
        let mut waiting = (Vec::new(), Vec::new());
        for (id, monitor) in &self.monitors {
            if let (MonitorId::Connection(id), false) = (id, monitor.events.is_empty()) {
                if monitor.events.len() > MAX_EVENTS.max(2 * self.sensors.len()) {
                    waiting.1.push(*id);
                } else {
                    waiting.0.push(*id);
                }
            }
        }
        waiting
    }
}
