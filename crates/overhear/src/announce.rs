// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for an evaluation in another process: the interceptor pattern across processes.
//!
//! A monitor that wants to be waited for *announces* how far it is: [`Announcement`], an update among its
//! others, writes each advance into a sensor of its own, `evaluated`, whose instance is the monitor's name.
//! A program that needs the verdict on an element before it goes on attaches to that sensor by a
//! [`Waiter`], writes its element, reads the clock, and waits for that time (seed 000, section 3.1:
//! synchronous evaluation is the program's own decision). Monitor and program know only the name, and
//! nobody can hold the monitor up.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use overhear_directory::client::{socket_path, SensorRequest};
use overhear_directory::{
    AttachError, AttachedSource, Begin, MonitorConnection, Query, QueryError,
};
use overhear_event::{
    ElementView, FieldKind, Gap, GapCause, Inbox, Nanos, Source, SourceError, StreamDescriptor,
    StreamId, Timestamp, TypeSchema, Update, WriterKind,
};
use overhear_monitor::{Binding, Subscription};

use crate::dynamic::DynamicSensor;
use crate::sensor::SensorError;

/// The sensor of every announcement.
const SENSOR: &str = "evaluated";
/// Advances that may lie in the buffer; only the last one matters.
const CAPACITY: u64 = 64;
/// Between two looks: short against the hold-back.
const PAUSE: Duration = Duration::from_micros(250);

/// An update that tells other processes how far its monitor has evaluated.
///
/// It belongs behind the others in a set, with [`Announcement::binding`]: an advance comes when all older
/// elements have been evaluated by all of them.
#[derive(Debug)]
pub struct Announcement {
    sensor: DynamicSensor,
}

impl Announcement {
    /// Registers the sensor of a monitor with this name. Where no directory answers nobody hears it:
    /// [`DynamicSensor::unheard_because`] of [`Announcement::sensor`] says why.
    ///
    /// # Errors
    /// [`SensorError`].
    pub fn register(monitor: &str) -> Result<Self, SensorError> {
        let sensor = DynamicSensor::register(Self::request(monitor))?;
        Ok(Self { sensor })
    }

    /// The same with the directory that listens at `socket`.
    ///
    /// # Errors
    /// [`SensorError`].
    pub fn register_at(socket: &Path, monitor: &str) -> Result<Self, SensorError> {
        let sensor = DynamicSensor::register_at(socket, Self::request(monitor))?;
        Ok(Self { sensor })
    }

    fn request(monitor: &str) -> SensorRequest {
        let schema = TypeSchema::builder(SENSOR).field("until", FieldKind::U64, "ns");
        let schema = schema.build();
        SensorRequest {
            sensor: SENSOR.to_string(),
            instance: monitor.to_string(),
            schema: schema.unwrap_or_else(|error| unreachable!("one field is sound: {error}")),
            rate: None,
            capacity: CAPACITY,
            kind: WriterKind::Simple,
            lanes: 0,
        }
    }

    /// The sensor that it writes.
    #[must_use]
    pub const fn sensor(&self) -> &DynamicSensor {
        &self.sensor
    }

    /// How it is added to a set: for no stream, only advances.
    #[must_use]
    pub fn binding() -> Binding {
        Binding::new("announcement").subscribe(Subscription::all().matching(|_| false))
    }
}

impl Update for Announcement {
    fn element(&mut self, _: &ElementView<'_>) {}

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, now: Timestamp) {
        let until = now.as_monotonic_ns().to_ne_bytes();
        // Of the size that was registered.
        let _ = self.sensor.write(&until);
    }
}

/// Why nobody can be waited for.
#[derive(Debug, thiserror::Error)]
pub enum WaiterError {
    /// There is no directory.
    #[error("no directory listens, so no monitor can be found to wait for; start the program with `overhear run`, or start `overheard`")]
    NoDirectory,
    /// The name cannot stand for a monitor.
    #[error("`{monitor}` is no name of a monitor: {reason}")]
    Name {
        /// The name.
        monitor: String,
        /// What is wrong with it.
        reason: QueryError,
    },
    /// The directory refuses.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// What was waited for has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEvaluated {
    /// No monitor announces itself by this name, so far.
    #[error("no monitor announces itself by this name; see whether it runs, and is told to announce itself")]
    Nobody,
    /// Not within the time.
    #[error("elements up to {until} are not evaluated yet, the evaluation has reached {reached}; wait longer, or see whether the monitor runs")]
    TimedOut {
        /// What was waited for.
        until: Timestamp,
        /// How far the evaluation is.
        reached: Timestamp,
    },
    /// The monitor has ended.
    #[error("the evaluation has ended at {reached}; there is nobody to wait for")]
    Ended {
        /// How far the evaluation came.
        reached: Timestamp,
    },
}

/// Waits for the monitor of a name, in whatever process it runs.
#[derive(Debug)]
pub struct Waiter {
    source: AttachedSource,
    heard: Heard,
}

/// How far each announcement is; several monitors may have one name.
#[derive(Debug, Default)]
struct Heard {
    until: BTreeMap<StreamId, Timestamp>,
    // How far the last one came that has ended.
    ended: Option<Timestamp>,
}

impl Heard {
    /// How far all monitors of the name are, if there are any.
    fn reached(&self) -> Option<Timestamp> {
        self.until.values().min().copied()
    }
}

impl Inbox for Heard {
    fn open(&mut self, stream: std::sync::Arc<StreamDescriptor>) {
        self.until.insert(stream.id, Timestamp::ZERO);
    }

    fn element(&mut self, stream: StreamId, _: u64, _: Timestamp, payload: &[u8]) {
        let until = payload.try_into().map_or(0, u64::from_ne_bytes);
        // From a time too large for nanoseconds on, everything has been evaluated.
        let until = Timestamp::ZERO.plus(Nanos::from_ns(until));
        if let Some(known) = self.until.get_mut(&stream) {
            *known = until.max(*known);
        }
    }

    // Only the last advance matters, and that is never overwritten unread.
    fn gap(&mut self, _: StreamId, _: u64, _: u64, _: GapCause) {}

    fn close(&mut self, stream: StreamId) {
        let reached = self.until.remove(&stream);
        self.ended = reached.max(self.ended);
    }
}

impl Waiter {
    /// Waits for this monitor, which may start later, by the directory of this environment.
    ///
    /// # Errors
    /// [`WaiterError`].
    pub fn attach(monitor: &str) -> Result<Self, WaiterError> {
        let socket = socket_path().ok_or(WaiterError::NoDirectory)?;
        Self::attach_at(&socket, monitor)
    }

    /// The same, by the directory at `socket`.
    ///
    /// # Errors
    /// [`WaiterError`].
    pub fn attach_at(socket: &Path, monitor: &str) -> Result<Self, WaiterError> {
        let query = Query::parse(&format!("{SENSOR}#{monitor}"));
        let query = query.and_then(|query| query.of_type(SENSOR));
        let query = query.map_err(|reason| WaiterError::Name {
            monitor: monitor.to_string(),
            reason,
        })?;
        // What it announced last is of interest.
        let source = MonitorConnection::connect(socket)?.attach(query, Begin::Buffer)?;
        Ok(Self {
            source,
            heard: Heard::default(),
        })
    }

    /// Waits until everything stamped before `until` has been evaluated by all monitors of this name, and
    /// returns how far they are. It takes at least the monitor's hold-back. A sensor that was registered a
    /// moment ago may be unknown to the monitor; then its elements are evaluated as soon as it attaches.
    ///
    /// # Errors
    /// [`NotEvaluated`] if that does not happen within `timeout`, or never will.
    pub fn wait(&mut self, until: Timestamp, timeout: Duration) -> Result<Timestamp, NotEvaluated> {
        let end = Instant::now().checked_add(timeout);
        loop {
            // A source that broke is looked for again by the next poll.
            let _: Result<(), SourceError> = self.source.poll(&mut self.heard);
            let reached = self.heard.reached();
            match (reached, self.heard.ended) {
                (Some(reached), _) if reached >= until => return Ok(reached),
                // It has evaluated the rest before it ended.
                (None, Some(reached)) if reached >= until => return Ok(reached),
                (None, Some(reached)) => return Err(NotEvaluated::Ended { reached }),
                _ => {}
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(match reached {
                    Some(reached) => NotEvaluated::TimedOut { until, reached },
                    None => NotEvaluated::Nobody,
                });
            }
            std::thread::sleep(left.unwrap_or(PAUSE).min(PAUSE));
        }
    }
}
