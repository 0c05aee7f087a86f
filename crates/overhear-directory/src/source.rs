// SPDX-License-Identifier: MIT OR Apache-2.0
//! The source of a monitor in the directory's own process: every sensor of every program.

use std::sync::{Arc, Mutex};

use overhear_event::{Inbox, Source, SourceError, StreamId};
use overhear_stream::Segment;

use crate::registry::{lock, Event, MonitorId, Registry};
use crate::service::Directory;
use crate::streams::{Begin, SensorWrites, StreamSet};

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

    /// The writes of all sensors now, and those of sensors that have ended since the last call.
    /// Until the first call, sensors that end are not remembered.
    pub fn writes(&mut self) -> Vec<SensorWrites> {
        self.streams.writes()
    }

    /// Every clock segment seen so far, oldest first, for the trace.
    #[must_use]
    pub fn clock_segments(&self) -> &[Segment] {
        self.streams.clock_segments()
    }
}

/// Switches sensors off, and on again, to keep a budget of the monitor in the directory's own
/// process. While it exists, that monitor yields to the budgets of others. Sensors that are off
/// when it is dropped are switched on.
#[derive(Debug)]
pub struct BudgetSwitch {
    registry: Arc<Mutex<Registry>>,
}

impl BudgetSwitch {
    /// For the sensors of `directory`.
    #[must_use]
    pub fn new(directory: &Directory) -> Self {
        let registry = directory.registry();
        lock(&registry).yield_embedded(true);
        Self { registry }
    }

    /// Switches sensors by the numbers of their streams. One that has ended is ignored. Returns the
    /// number of sensors in `off` that stay on, because a monitor without a budget needs them.
    ///
    /// # Errors
    /// A message: too many are off. The others are switched.
    pub fn switch(&mut self, off: &[StreamId], on: &[StreamId]) -> Result<u32, String> {
        let mut registry = lock(&self.registry);
        let (mut result, mut kept_on) = (Ok(()), 0);
        let each = on.iter().map(|stream| (stream, false));
        for (stream, is_off) in each.chain(off.iter().map(|stream| (stream, true))) {
            let switched = registry.set_budget(MonitorId::Embedded, None, *stream, is_off);
            kept_on += u32::from(is_off && registry.is_kept_on(*stream));
            result = result.and(switched.map(drop));
        }
        result.map(|()| kept_on)
    }
}

impl Drop for BudgetSwitch {
    fn drop(&mut self) {
        let mut registry = lock(&self.registry);
        registry.end_budget(MonitorId::Embedded);
        registry.yield_embedded(false);
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
