// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a monitor of `overhear.toml` hears: sensors of programs through the directory, and sensors
//! of the kernel through rings of its own, which belong to nobody else and are as large as
//! admission wants them.
//!
//! The rings are made before the program exists, so that what this user or kernel lacks is told
//! before anything runs; the program is tracked while it waits to be executed, with all that it
//! creates. Reading them takes no system call, no memory, and, once all memory is locked, no page
//! fault.

use std::sync::Arc;

use overhear_directory::AttachedSource;
use overhear_event::{
    GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId, StreamIdRange, Timestamp,
};
use overhear_kernel::{Backend, KernelMonitor};

use crate::admit::kernel::{unused, KernelRing, UNUSED_ELEMENTS};
use crate::admit::mapped_bytes;
use crate::config::kernel::KernelSource;
use crate::error::{ErrorKind, SessionError};
use crate::record::cannot_start;

/// The number of the first kernel stream: before all sensors of programs, as in a session, so that
/// elements of one instant have the same order in both.
const FIRST: StreamId = StreamIdRange::SESSION.first();

/// The kernel sensors of a monitor, as rings that nobody writes yet.
#[derive(Debug)]
pub(super) struct KernelHearing {
    monitor: KernelMonitor,
    named: Vec<String>,
}

impl KernelHearing {
    /// Makes the rings. With `demanded` they are as large as that, or there is a refusal; without,
    /// what this user and kernel have must do.
    pub(super) fn prepare(rings: &[KernelRing], demanded: bool) -> Result<Self, SessionError> {
        let backend = match demanded {
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
        let whose = || {
            let ids: Vec<String> = named.clone().map(|name| id_of(&name)).collect();
            ids.join(", ")
        };
        let monitor = builder.first_stream(FIRST).create().map_err(|error| {
            let message = format!(
                "{} cannot be heard on these terms: {error}; give the command cap_bpf and cap_perfmon, or ask \
                 for best effort",
                whose()
            );
            match cannot_start(&error).kind {
                ErrorKind::Unavailable => SessionError::new(ErrorKind::Unavailable, message),
                kind => SessionError::new(kind, error.to_string()),
            }
        })?;
        if demanded {
            let gone = |error: overhear_kernel::SelectError| {
                SessionError::new(ErrorKind::Unavailable, error.to_string())
            };
            for ring in rings {
                let granted = match &ring.source {
                    KernelSource::Sensor(sensor) => monitor.ring_elements(*sensor),
                    KernelSource::Probe(probe) => monitor.probe_ring_elements(probe),
                };
                let granted = granted.map_err(gone)?;
                let Some(granted) = granted else {
                    let status = &monitor.status().map_err(gone)?.message;
                    let message =
                        format!("{} cannot be heard: {status}", id_of(&ring.source.name()));
                    return Err(SessionError::new(ErrorKind::Unavailable, message));
                };
                if granted < ring.elements.into() {
                    let message = format!(
                        "{} was granted rings of {granted} elements, and what was admitted takes {}; give a \
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

    /// How many stream numbers, from 1 on, no sensor of a program may have.
    pub(super) fn stream_ids_used(&self) -> u32 {
        self.monitor.stream_ids_used().unwrap_or(0)
    }

    /// Tracks this process, which is held before its execve, and all that it creates.
    pub(super) fn track(&mut self, pid: u32) -> Result<(), SessionError> {
        let tracked = self.monitor.held_process_monitor(pid);
        let heard = tracked.and_then(|()| self.monitor.resume());
        heard.map_err(|error| SessionError::new(ErrorKind::Unavailable, error.to_string()))
    }

    /// What is heard of the kernel, as a message.
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
pub(super) struct Hearing {
    programs: Option<AttachedSource>,
    kernel: Option<KernelHearing>,
    // Ascending.
    unused: Vec<Arc<StreamDescriptor>>,
}

impl Hearing {
    pub(super) fn new(programs: Option<AttachedSource>, kernel: Option<KernelHearing>) -> Self {
        Self {
            programs,
            kernel,
            unused: Vec::new(),
        }
    }

    /// What is mapped of streams that nobody evaluates.
    pub(super) fn unused_bytes(&self) -> u64 {
        self.unused.iter().map(|stream| mapped_bytes(stream)).sum()
    }
}

impl Source for Hearing {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let mut result = Ok(());
        if let Some(kernel) = &mut self.kernel {
            let mut named = Named {
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
            // It fails only for one that was terminated, and nobody does that.
            let _ = kernel.monitor.finish();
        }
        if let Some(programs) = &mut self.programs {
            programs.end();
        }
    }
}

/// Leaves out the streams that are always there besides those that were named. Their rings are
/// small, so that reading them costs next to nothing.
struct Named<'a> {
    named: &'a [String],
    unused: &'a mut Vec<Arc<StreamDescriptor>>,
    inbox: &'a mut dyn Inbox,
}

impl Named<'_> {
    fn drops(&self, id: StreamId) -> bool {
        let place = self.unused.binary_search_by_key(&id, |stream| stream.id);
        place.is_ok()
    }
}

impl Inbox for Named<'_> {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        match self.named.contains(&stream.sensor) {
            true => self.inbox.open(stream),
            false => {
                // In the order of their numbers, in which not everybody opens them.
                let place = self.unused.partition_point(|it| it.id < stream.id);
                self.unused.insert(place, stream);
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
