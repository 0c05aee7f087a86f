// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for an evaluation in another process: the interceptor pattern across processes.
//!
//! 1. The monitor adds an [`Announcement`] to its updates. It writes each advance into the sensor
//!    `evaluated`, whose instance is the monitor's name.
//! 2. The program attaches to this sensor by a [`Waiter`].
//! 3. The program writes its element, reads the clock, and waits until the announced time is as
//!    late ([GRTMon, section 3.1]: synchronous evaluation is the program's own decision).
//!
//! Monitor and program share only the name, and a waiter cannot delay the monitor.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use overhear_directory::client::{socket_path, SensorRequest};
use overhear_directory::{
    AttachError, AttachedSource, Begin, MonitorConnection, Query, QueryError,
};
use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, GapCause, Inbox, Nanos, Source, SourceError,
    StreamDescriptor, StreamId, Timestamp, TypeSchema, WriterKind,
};

use crate::dynamic::DynamicSensor;
use crate::sensor::SensorError;

/// The sensor of every announcement.
const SENSOR: &str = "evaluated";
/// Elements of the sensor's buffer. Only the last advance matters.
const CAPACITY: u64 = 64;
/// Pause of a waiter between two polls: short compared with the hold-back.
const POLL_INTERVAL: Duration = Duration::from_micros(250);

/// An update that announces the progress of its monitor to other processes.
///
/// Add it to a set with `Binding::without_streams` of the crate `overhear-monitor`: it needs no
/// elements. When it gets an advance, all updates of the set have evaluated all older elements.
#[derive(Debug)]
pub struct Announcement {
    sensor: DynamicSensor,
}

impl Announcement {
    /// Registers the sensor of the monitor `monitor`. If no directory answers, no other process
    /// sees the progress; [`DynamicSensor::not_connected_reason`] of [`Announcement::sensor`] has
    /// the reason.
    ///
    /// # Errors
    /// [`SensorError`].
    pub fn register(monitor: &str) -> Result<Self, SensorError> {
        let sensor = DynamicSensor::register(Self::request(monitor))?;
        Ok(Self { sensor })
    }

    /// [`Announcement::register`] at the directory that listens at `socket`.
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

    /// The sensor with the progress.
    #[must_use]
    pub const fn sensor(&self) -> &DynamicSensor {
        &self.sensor
    }
}

impl Analysis for Announcement {
    fn element(&mut self, _: &ElementView<'_>) {}

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, now: Timestamp) {
        let until = now.as_monotonic_ns().to_ne_bytes();
        // It cannot fail: the payload has the registered size.
        let _ = self.sensor.write(&until);
    }
}

/// Why a waiter cannot attach.
#[derive(Debug, thiserror::Error)]
pub enum WaiterError {
    /// No directory was found.
    #[error("no directory listens, so no monitor can be found to wait for; start the program with `overhear run`, or start `overheard`")]
    NoDirectory,
    /// The name is not a valid instance of a sensor.
    #[error("`{monitor}` is no name of a monitor: {reason}")]
    Name {
        /// The name.
        monitor: String,
        /// Why it is not valid.
        reason: QueryError,
    },
    /// The directory refuses the attachment.
    #[error(transparent)]
    Attach(#[from] AttachError),
}

/// Why [`Waiter::wait`] has returned before the time was evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEvaluated {
    /// So far no monitor announces itself by this name.
    #[error("no monitor announces itself by this name; check that it runs, and that it announces itself")]
    NotAnnounced,
    /// The timeout is over.
    #[error("elements up to {until} are not evaluated yet, the evaluation has reached {reached}; wait longer, or see whether the monitor runs")]
    TimedOut {
        /// The time that was waited for.
        until: Timestamp,
        /// The time until which all elements are evaluated.
        reached: Timestamp,
    },
    /// The monitor has ended.
    #[error("the evaluation has ended at {reached}; there is nobody to wait for")]
    Ended {
        /// The time until which all elements were evaluated.
        reached: Timestamp,
    },
}

/// Waits for the monitor of a name, in this process or another.
#[derive(Debug)]
pub struct Waiter {
    source: AttachedSource,
    progress: Progress,
}

/// The progress of all monitors of one name.
#[derive(Debug, Default)]
struct Progress {
    // Time until which each monitor has evaluated, by the stream of its announcement.
    until: BTreeMap<StreamId, Timestamp>,
    // The latest time that an ended monitor has reached.
    ended: Option<Timestamp>,
}

impl Progress {
    /// The time until which all running monitors have evaluated; `None` if none runs.
    fn reached(&self) -> Option<Timestamp> {
        self.until.values().min().copied()
    }
}

impl Inbox for Progress {
    fn open(&mut self, stream: std::sync::Arc<StreamDescriptor>) {
        self.until.insert(stream.id, Timestamp::ZERO);
    }

    fn element(&mut self, stream: StreamId, _: u64, _: Timestamp, payload: &[u8]) {
        let until = payload.try_into().map_or(0, u64::from_ne_bytes);
        // A time beyond the range of nanoseconds means that everything was evaluated.
        let until = Timestamp::ZERO.plus(Nanos::from_ns(until));
        if let Some(known) = self.until.get_mut(&stream) {
            *known = until.max(*known);
        }
    }

    // Only the last advance matters, and no later element overwrites it.
    fn gap(&mut self, _: StreamId, _: u64, _: u64, _: GapCause) {}

    fn close(&mut self, stream: StreamId) {
        let reached = self.until.remove(&stream);
        self.ended = reached.max(self.ended);
    }
}

impl Waiter {
    /// Attaches by the directory of this environment. The monitor may start later.
    ///
    /// # Errors
    /// [`WaiterError`].
    pub fn attach(monitor: &str) -> Result<Self, WaiterError> {
        let socket = socket_path().ok_or(WaiterError::NoDirectory)?;
        Self::attach_at(&socket, monitor)
    }

    /// [`Waiter::attach`] at the directory that listens at `socket`.
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
        // The last announcement before the attachment counts, too.
        let source = MonitorConnection::connect(socket)?.attach(query, Begin::Buffer)?;
        Ok(Self {
            source,
            progress: Progress::default(),
        })
    }

    /// Waits until all monitors of this name have evaluated all elements stamped before `until`,
    /// and returns the time that they have reached. It takes at least the monitor's hold-back. The
    /// monitor may not yet have attached to a sensor that was registered a moment ago; then it
    /// evaluates the sensor's elements once it has attached.
    ///
    /// # Errors
    /// [`NotEvaluated`] if `timeout` is over before, or if the last monitor has ended.
    pub fn wait(&mut self, until: Timestamp, timeout: Duration) -> Result<Timestamp, NotEvaluated> {
        let end = Instant::now().checked_add(timeout);
        loop {
            // After an error the next poll connects again.
            let _: Result<(), SourceError> = self.source.poll(&mut self.progress);
            let reached = self.progress.reached();
            match (reached, self.progress.ended) {
                (Some(reached), _) if reached >= until => return Ok(reached),
                // A monitor evaluates the remaining elements before it ends.
                (None, Some(reached)) if reached >= until => return Ok(reached),
                (None, Some(reached)) => return Err(NotEvaluated::Ended { reached }),
                _ => {}
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(match reached {
                    Some(reached) => NotEvaluated::TimedOut { until, reached },
                    None => NotEvaluated::NotAnnounced,
                });
            }
            std::thread::sleep(left.unwrap_or(POLL_INTERVAL).min(POLL_INTERVAL));
        }
    }
}
