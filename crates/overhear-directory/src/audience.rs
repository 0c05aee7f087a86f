// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitors' packets: what is there, what they get, what they switch.

use std::os::fd::AsFd;
use std::sync::Mutex;

use overhear_event::StreamId;
use rustix::io::Errno;

use crate::connection::{Connection, Next};
use crate::needs::Needs;
use crate::packet::MAX_REQUEST;
use crate::protocol::{About, Attached, Opened, Reply, Switch, VERSION};
use crate::query::Matcher;
use crate::record::SensorRecord;
use crate::registry::{lock, Event, Registry};

/// How many sensors are looked at for a packet of a list, whether or not they are in it.
const AT_ONCE: usize = 4096;

/// What came of telling a monitor its news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Everything that there was.
    All,
    /// It has to read first.
    Waiting,
    /// Too many files of this user are on their way, here and elsewhere.
    Later,
    /// It is gone.
    Gone,
}

impl Connection {
    fn matcher(&self, about: &About) -> Result<Matcher, String> {
        if about.version != VERSION {
            return Err(format!(
                "the monitor speaks version {} of the protocol, this directory version {VERSION}",
                about.version
            ));
        }
        about.query.compile().map_err(|error| error.to_string())
    }

    /// Answers with as many packets as it takes, whenever there is room for one.
    pub(crate) fn list(&mut self, about: &About, registry: &Mutex<Registry>) -> Next {
        let matcher = match self.matcher(about) {
            Ok(matcher) => matcher,
            Err(sentence) => return self.deny(&sentence),
        };
        if let Err(sentence) = self.become_monitor() {
            return self.deny(&sentence);
        }
        self.listing = Some((matcher, StreamId::from_raw(0)));
        match self.tell(&mut lock(registry)) {
            Told::Gone => Next::Close,
            _ => Next::Keep,
        }
    }

    /// The sensors from a number on that match and that this monitor may hear, as many as go into a
    /// packet; and where the next packet begins.
    fn some(
        &self,
        matcher: &Matcher,
        first: StreamId,
        registry: &Registry,
    ) -> (Vec<SensorRecord>, Option<StreamId>) {
        let (mut sensors, mut bytes, mut looked_at) = (Vec::new(), 0, 0);
        for sensor in registry.sensors_from(first) {
            let id = sensor.registered.descriptor.id;
            looked_at += 1;
            if bytes > MAX_REQUEST / 2 || looked_at > AT_ONCE {
                return (sensors, Some(id));
            }
            let hears = registry.rules.attach(self.peer(), sensor).is_ok();
            if hears && matcher.matches(&sensor.registered.descriptor) {
                let record = sensor.record();
                let size = serde_json::to_vec(&record).map_or(0, |packet| packet.len());
                // A single record is never larger than what came with its request, and little more.
                if bytes > 0 && bytes + size > MAX_REQUEST {
                    return (sensors, Some(id));
                }
                bytes += size;
                sensors.push(record);
            }
        }
        (sensors, None)
    }

    pub(crate) fn attach(&mut self, about: &About, registry: &Mutex<Registry>) -> Next {
        let matcher = match self.matcher(about) {
            Ok(matcher) => matcher,
            Err(sentence) => return self.deny(&sentence),
        };
        if let Err(sentence) = self.become_monitor() {
            return self.deny(&sentence);
        }
        let needs = match about.needs.compile() {
            Ok(needs) => needs,
            Err(error) => return self.deny(&error.to_string()),
        };
        let mut registry = lock(registry);
        let peer = self.peer().clone();
        let (denied, sentence) = registry.attach(self.monitor(), peer, matcher, needs);
        let reply = Reply::Attached(Attached {
            directory: registry.identity,
            denied,
            sentence,
        });
        drop(registry);
        let clock: Vec<_> = self.clock().into_iter().collect();
        match self.reply(&reply, &clock) {
            true => Next::Keep,
            false => Next::Close,
        }
    }

    pub(crate) fn switch(&mut self, switch: &Switch, registry: &Mutex<Registry>) -> Next {
        let about = About {
            version: switch.version,
            query: switch.query.clone(),
            needs: Needs::all(),
        };
        let matcher = match self.matcher(&about) {
            Ok(matcher) => matcher,
            Err(sentence) => return self.deny(&sentence),
        };
        if let Err(sentence) = self.become_monitor() {
            return self.deny(&sentence);
        }
        let mut registry = lock(registry);
        let (mut meant, mut forbidden) = (Vec::new(), None);
        for sensor in registry.sensors_from(StreamId::from_raw(0)) {
            if matcher.matches(&sensor.registered.descriptor) {
                match registry.rules.switch(self.peer(), sensor) {
                    Ok(()) => meant.push(sensor.registered.descriptor.id),
                    Err(sentence) => forbidden = Some(sentence),
                }
            }
        }
        // All or nothing would be of no use to who may switch some of those that a glob names; but
        // who may switch none is told why.
        if let (true, Some(sentence)) = (meant.is_empty(), forbidden) {
            drop(registry);
            let reply = Reply::Refused { sentence };
            return match self.reply(&reply, &[]) {
                true => Next::Keep,
                false => Next::Close,
            };
        }
        let mut changed = 0;
        for stream in meant {
            changed += u32::from(registry.set_enabled(stream, switch.enabled));
        }
        drop(registry);
        match self.reply(&Reply::Switched { changed }, &[]) {
            true => Next::Keep,
            false => Next::Close,
        }
    }

    pub(crate) fn finished(&self, streams: &[u32], registry: &Mutex<Registry>) -> Next {
        let mut registry = lock(registry);
        for stream in streams {
            registry.finished(self.monitor(), StreamId::from_raw(*stream));
        }
        Next::Keep
    }

    pub(crate) fn status(&mut self, version: u32, registry: &Mutex<Registry>) -> Next {
        if version != VERSION {
            let sentence = format!(
                "the monitor speaks version {version} of the protocol, this directory version \
                 {VERSION}"
            );
            return self.deny(&sentence);
        }
        if let Err(sentence) = self.become_monitor() {
            return self.deny(&sentence);
        }
        let status = lock(registry).status();
        match self.reply(&Reply::Status(status), &[]) {
            true => Next::Keep,
            false => Next::Close,
        }
    }

    /// Tells a monitor what it asked for and what is new, as much as its socket takes.
    pub(crate) fn tell(&mut self, registry: &mut Registry) -> Told {
        while let Some((matcher, first)) = &self.listing {
            let (sensors, next) = self.some(matcher, *first, registry);
            let more = next.is_some();
            match self.try_reply(&Reply::Sensors { sensors, more }, &[]) {
                Ok(()) => {
                    let listing = self.listing.take();
                    self.listing = listing.and_then(|(matcher, _)| Some((matcher, next?)));
                }
                Err(Errno::AGAIN) => return Told::Waiting,
                Err(Errno::NOBUFS) => return Told::Later,
                Err(_) => return Told::Gone,
            }
        }
        let id = self.monitor();
        while let Some(event) = registry.next_event(id) {
            let told = match event {
                Event::Settled => self.try_reply(&Reply::Settled, &[]),
                Event::Ended(stream) => {
                    let stream = stream.as_raw();
                    self.try_reply(&Reply::Ended { stream }, &[])
                }
                Event::Opened { stream, fresh } => {
                    let file = registry
                        .sensor(stream)
                        .and_then(|sensor| Some((sensor, sensor.file.as_ref()?)));
                    match file {
                        // Freed meanwhile, or never to be handed out.
                        None => Ok(()),
                        Some((sensor, file)) => {
                            let sensor = sensor.record();
                            let reply = Reply::Opened(Opened { sensor, fresh });
                            self.try_reply(&reply, &[file.as_fd()])
                        }
                    }
                }
            };
            match told {
                Ok(()) => {
                    registry.take_event(id);
                }
                Err(Errno::AGAIN) => return Told::Waiting,
                Err(Errno::TOOMANYREFS | Errno::NOBUFS) => return Told::Later,
                Err(_) => return Told::Gone,
            }
        }
        Told::All
    }
}
