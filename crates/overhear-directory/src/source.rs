// SPDX-License-Identifier: MIT OR Apache-2.0
//! The source of a monitor in the directory's own process: every sensor of every program.

use std::sync::{Arc, Mutex};

use overhear_event::{Inbox, Source, SourceError};
use overhear_stream::Segment;

use crate::registry::{lock, Event, MonitorId, Registry};
use crate::service::Directory;
use crate::streams::{Begin, StreamSet};

/// Reads the sensors of a directory in this process, new ones from the next poll on.
#[derive(Debug)]
pub struct ProgramSource {
    registry: Arc<Mutex<Registry>>,
    streams: StreamSet,
}

impl ProgramSource {
    /// A source for the sensors of `directory`. There should be one: each sensor is delivered once.
    #[must_use]
    pub fn new(directory: &Directory) -> Self {
        Self {
            registry: directory.registry(),
            streams: StreamSet::new(directory.clock_map()),
        }
    }

    /// Every clock segment seen so far, oldest first, for the trace.
    #[must_use]
    pub fn clock_segments(&self) -> &[Segment] {
        self.streams.clock_segments()
    }
}

impl Source for ProgramSource {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        // Ends are taken before the rings are read: a sensor that has ended publishes nothing more.
        let mut registry = lock(&self.registry);
        while let Some(event) = registry.take_event(MonitorId::Embedded) {
            match event {
                Event::Settled => {}
                Event::Ended(stream) => self.streams.end(stream),
                Event::Opened { stream, fresh } => {
                    let begin = (!fresh).then_some(Begin::Buffer);
                    let sensor = registry.sensor(stream);
                    let registered = sensor.map(|sensor| sensor.registered.clone());
                    let admitted = registered.map(|found| self.streams.admit(found, begin));
                    if let Some(Err(error)) = admitted {
                        inbox.complain(error);
                        registry.finished(MonitorId::Embedded, stream);
                    }
                }
            }
        }
        drop(registry);
        let finished = self.streams.poll(inbox);
        if !finished.is_empty() {
            let mut registry = lock(&self.registry);
            for stream in finished {
                registry.finished(MonitorId::Embedded, stream);
            }
        }
        Ok(())
    }
}
