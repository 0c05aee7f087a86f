// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sources of a monitor of `overhear.toml`: sensors of programs through the directory, and
//! kernel sensors through rings that belong to this monitor alone and have the sizes that admission
//! computed.
//!
//! The rings are created before the program exists, so that a missing permission or feature is
//! reported before anything runs. The program is tracked, with all threads and processes that it
//! creates, while it waits for its execve. Reading the rings takes no system call and no memory
//! allocation and, once all memory is locked, causes no page fault.

use std::sync::Arc;

use overhear_directory::AttachedSource;
use overhear_event::{
    GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId, StreamIdRange, Timestamp,
};
use overhear_kernel::{Backend, KernelMonitor};

use crate::admission::kernel::{unused, KernelRing, UNUSED_ELEMENTS};
use crate::admission::mapped_bytes;
use crate::config::kernel::KernelSource;
use crate::error::{ErrorKind, SessionError};

/// The id of the first kernel stream. It is less than the ids of all sensors of programs, as in a
/// session, so that elements with equal times have the same order in both.
const FIRST_STREAM: StreamId = StreamIdRange::SESSION.first();

/// The rings of a monitor's kernel sensors. Nothing is tracked yet.
#[derive(Debug)]
pub(super) struct MonitorRings {
    monitor: KernelMonitor,
    named: Vec<String>,
}

impl MonitorRings {
    /// Creates the rings. With `is_reserved` the backend is BPF and smaller rings are refused; else
    /// any backend and any size will do.
    ///
    /// # Errors
    /// [`SessionError`] if the rings cannot be created, or are smaller than they must be.
    pub(super) fn create(rings: &[KernelRing], is_reserved: bool) -> Result<Self, SessionError> {
        let backend = match is_reserved {
            true => Backend::Bpf,
            false => Backend::Auto,
        };
        let named = rings.iter().map(|ring| ring.source.name());
        let sensors = rings.iter().filter_map(|ring| match &ring.source {
            KernelSource::Sensor(sensor) => Some(*sensor),
            KernelSource::Probe(_) => None,
        });
        let probes = rings.iter().filter_map(|ring| match &ring.source {
            KernelSource::Sensor(_) => None,
            KernelSource::Probe(probe) => Some(probe.clone()),
        });
        let mut builder = KernelMonitor::builder()
            .backend(backend)
            .sensors(sensors.chain(unused(rings)))
            .probes(probes);
        for sensor in unused(rings) {
            builder = builder.ring(sensor, UNUSED_ELEMENTS);
        }
        for ring in rings {
            builder = match &ring.source {
                KernelSource::Sensor(sensor) => builder.ring(*sensor, ring.elements),
                KernelSource::Probe(probe) => builder.probe_ring(probe, ring.elements),
            };
        }
        let all_ids = || {
            let ids: Vec<String> = named.clone().map(|name| id_of(&name)).collect();
            ids.join(", ")
        };
        let monitor = builder.first_stream(FIRST_STREAM).create().map_err(|error| {
            let message = format!(
                "{} cannot be recorded with a reservation: {error}; give the command cap_bpf and cap_perfmon, or use \
                 the executor \"best_effort\"",
                all_ids()
            );
            match SessionError::from(&error) {
                SessionError {
                    kind: ErrorKind::Unavailable,
                    ..
                } => SessionError::new(ErrorKind::Unavailable, message),
                other => other,
            }
        })?;
        if is_reserved {
            let unavailable = |error: overhear_kernel::SelectError| {
                SessionError::new(ErrorKind::Unavailable, error.to_string())
            };
            for ring in rings {
                let granted = match &ring.source {
                    KernelSource::Sensor(sensor) => monitor.ring_elements(*sensor),
                    KernelSource::Probe(probe) => monitor.probe_ring_elements(probe),
                };
                let granted = granted.map_err(unavailable)?;
                let Some(granted) = granted else {
                    let status = &monitor.status().map_err(unavailable)?.message;
                    let message = format!(
                        "{} cannot be recorded: {status}",
                        id_of(&ring.source.name())
                    );
                    return Err(SessionError::new(ErrorKind::Unavailable, message));
                };
                if granted < ring.elements.into() {
                    let message = format!(
                        "{} was granted rings of {granted} elements, and the admitted monitor needs {}; give a \
                         shorter latency",
                        id_of(&ring.source.name()),
                        ring.elements
                    );
                    return Err(SessionError::new(ErrorKind::Refused, message));
                }
            }
        }
        Ok(Self {
            monitor,
            named: named.collect(),
        })
    }

    /// Number of stream ids, from 1 on, that sensors of programs must not have.
    pub(super) fn stream_ids_used(&self) -> u32 {
        self.monitor.stream_ids_used().unwrap_or(0)
    }

    /// Tracks a process that is held before its execve, with all that it creates.
    pub(super) fn track(&mut self, pid: u32) -> Result<(), SessionError> {
        let tracked = self.monitor.held_process_monitor(pid);
        let resumed = tracked.and_then(|()| self.monitor.resume());
        resumed.map_err(|error| SessionError::new(ErrorKind::Unavailable, error.to_string()))
    }

    /// The message of the kernel monitor's status.
    pub(super) fn message(&self) -> String {
        let status = self.monitor.status();
        status.map_or_else(|error| error.to_string(), |status| status.message.clone())
    }
}

fn id_of(sensor: &str) -> String {
    format!("`kernel:{sensor}`")
}

/// The sources of a monitor as one.
#[derive(Debug)]
pub(super) struct MonitorSource {
    programs: Option<AttachedSource>,
    kernel: Option<MonitorRings>,
    // Streams that no update reads, by ascending id.
    unused: Vec<Arc<StreamDescriptor>>,
}

impl MonitorSource {
    pub(super) fn new(programs: Option<AttachedSource>, kernel: Option<MonitorRings>) -> Self {
        Self {
            programs,
            kernel,
            unused: Vec::new(),
        }
    }

    /// Mapped bytes of the streams that no update reads.
    pub(super) fn unused_bytes(&self) -> u64 {
        self.unused.iter().map(|stream| mapped_bytes(stream)).sum()
    }
}

impl Source for MonitorSource {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let mut result = Ok(());
        if let Some(kernel) = &mut self.kernel {
            let mut named = NamedStreams {
                named: &kernel.named,
                unused: &mut self.unused,
                inbox,
            };
            result = kernel.monitor.poll(&mut named);
        }
        match &mut self.programs {
            Some(programs) => result.and(programs.poll(inbox)),
            None => result,
        }
    }

    fn end(&mut self) {
        if let Some(kernel) = &mut self.kernel {
            // It fails only for a terminated monitor; this one is not terminated.
            let _ = kernel.monitor.finish();
        }
        if let Some(programs) = &mut self.programs {
            programs.end();
        }
    }
}

/// Passes on the named streams only. The other streams of the kernel's programs have small rings,
/// so that reading them costs little.
struct NamedStreams<'a> {
    named: &'a [String],
    unused: &'a mut Vec<Arc<StreamDescriptor>>,
    inbox: &'a mut dyn Inbox,
}

impl NamedStreams<'_> {
    fn drops(&self, id: StreamId) -> bool {
        let found = self.unused.binary_search_by_key(&id, |stream| stream.id);
        found.is_ok()
    }
}

impl Inbox for NamedStreams<'_> {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        match self.named.contains(&stream.sensor) {
            true => self.inbox.open(stream),
            false => {
                // Streams are not always opened in the order of their ids.
                let at = self.unused.partition_point(|it| it.id < stream.id);
                self.unused.insert(at, stream);
            }
        }
    }

    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        if !self.drops(stream) {
            self.inbox.element(stream, sequence, time, payload);
        }
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        if !self.drops(stream) {
            self.inbox.gap(stream, first, missed, cause);
        }
    }

    fn close(&mut self, stream: StreamId) {
        if !self.drops(stream) {
            self.inbox.close(stream);
        }
    }

    fn complain(&mut self, complaint: SourceError) {
        self.inbox.complain(complaint);
    }
}
