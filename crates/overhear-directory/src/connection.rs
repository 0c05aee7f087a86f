// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is registering: its packets, and the steps of the hand-over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overhear_event::{ClockId, Origin, Rate, StreamDescriptor, StreamId};
use overhear_stream::{Geometry, Header, WriterKind};
use rustix::io::Errno;

use crate::memory::{Mapping, StreamFile};
use crate::protocol::{Granted, Register, Reply, Request, Unregister, MAX_PACKET, VERSION};
use crate::registry::{lock, Live, Registered, Registry};
use crate::sizing::suggested_capacity;
use crate::{client, task};

/// How long a program may take between two packets.
const PATIENCE: Duration = Duration::from_secs(2);

/// One program's conversation.
pub(crate) struct Connection {
    fd: OwnedFd,
    pid: u32,
    deadline: Instant,
    pending: Option<Pending>,
}

/// Granted, but not mapped yet.
struct Pending {
    file: StreamFile,
    token: u64,
    descriptor: StreamDescriptor,
    geometry: Geometry,
    clock: ClockId,
    header: Header,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a grant needs, checked and reserved.
struct Plan {
    id: StreamId,
    geometry: Geometry,
    clock: ClockId,
    rate: Option<Rate>,
}

/// What to do with a connection after a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Keep,
    Close,
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd, pid: u32) -> Self {
        Self {
            fd,
            pid,
            deadline: Instant::now() + PATIENCE,
            pending: None,
        }
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether nothing has come of it so far.
    pub(crate) const fn is_idle(&self) -> bool {
        self.pending.is_none()
    }

    /// Takes one packet.
    pub(crate) fn serve(&mut self, registry: &Mutex<Registry>) -> Next {
        let packet = match client::receive(&self.fd) {
            Ok((packet, _)) if packet.is_empty() => return Next::Close,
            Ok((packet, _)) => packet,
            Err(Errno::MSGSIZE) => {
                let sentence = format!(
                    "its request exceeds {MAX_PACKET} bytes; use fewer fields or shorter names"
                );
                return self.refuse(registry, "?", &sentence);
            }
            Err(_) => return Next::Close,
        };
        self.deadline = Instant::now() + PATIENCE;
        match serde_json::from_slice(&packet) {
            Ok(Request::Register(request)) => self.register(request, registry),
            Ok(Request::Mapped) => self.mapped(registry),
            Ok(Request::Unregister(request)) => self.unregister(&request, registry),
            Err(error) => {
                let sentence = format!("the request is not understood: {error}");
                self.refuse(registry, "?", &sentence)
            }
        }
    }

    /// Says no, and remembers it: first in the registry, so that whoever has heard the refusal
    /// finds it counted.
    pub(crate) fn refuse(&self, registry: &Mutex<Registry>, sensor: &str, sentence: &str) -> Next {
        lock(registry).unheard(self.pid, sensor, sentence);
        let sentence = sentence.to_string();
        send(&self.fd, &Reply::Refused { sentence }, None);
        Next::Close
    }

    /// Takes back a grant that was not mapped: its memory counts no longer.
    pub(crate) fn withdraw(&mut self, registry: &Mutex<Registry>) {
        if let Some(pending) = self.pending.take() {
            let mut registry = lock(registry);
            registry.bytes -= pending.file.bytes() as u64;
            let sentence = "its program did not map the buffer in time, or ended meanwhile";
            registry.unheard(self.pid, &pending.descriptor.sensor, sentence);
        }
    }

    fn register(&mut self, request: Register, registry: &Mutex<Registry>) -> Next {
        self.withdraw(registry);
        let sensor = request.sensor.clone();
        match self.grant(request, registry) {
            Ok(pending) => {
                let reply = Reply::Granted(Granted {
                    stream: pending.descriptor.id.as_raw(),
                    token: pending.token,
                    stride: u32::try_from(pending.geometry.stride_bytes()).unwrap_or(u32::MAX),
                    capacity: pending.geometry.capacity(),
                    clock: pending.clock,
                });
                let sent = send(&self.fd, &reply, Some(pending.file.as_fd()));
                self.pending = Some(pending);
                if sent {
                    Next::Keep
                } else {
                    Next::Close
                }
            }
            Err(sentence) => self.refuse(registry, &sensor, &sentence),
        }
    }

    /// Reserves under the lock, allocates without it: large buffers take time, and monitors must
    /// not wait for them.
    fn grant(&self, request: Register, registry: &Mutex<Registry>) -> Result<Pending, String> {
        let plan = self.plan(&request, &mut lock(registry))?;
        let Plan {
            id,
            geometry,
            clock,
            rate,
        } = plan;
        let header = Header::new(&geometry, WriterKind::Simple, clock, u64::from(id.as_raw()));
        let name = format!("overhear-{}", request.sensor);
        let file = StreamFile::create(&name, &geometry, &header).map_err(|error| {
            lock(registry).bytes -= geometry.bytes() as u64;
            error.to_string()
        })?;
        let descriptor = StreamDescriptor {
            id,
            origin: Origin::Program(task::of_pid(self.pid)),
            sensor: request.sensor,
            instance: request.instance,
            lane: None,
            schema: Arc::new(request.schema),
            rate,
            capacity: geometry.capacity(),
        };
        let mut token = [0; 8];
        let _ = rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::NONBLOCK);
        let token = u64::from_ne_bytes(token);
        Ok(Pending {
            file,
            token,
            descriptor,
            geometry,
            clock,
            header,
        })
    }

    fn plan(&self, request: &Register, registry: &mut Registry) -> Result<Plan, String> {
        if request.version != VERSION {
            return Err(format!(
                "it speaks version {} of the protocol, this directory version {VERSION}",
                request.version
            ));
        }
        check_name("id", &request.sensor, false)?;
        check_name("instance", &request.instance, true)?;
        if let Some(twin) = registry.twin(self.pid, &request.sensor, &request.instance) {
            if task::maps_file(self.pid, twin.inode) {
                return Err(format!(
                    "this process has such a sensor already; give the second one an instance \
                     (id `{}`, instance `{}`)",
                    request.sensor, request.instance
                ));
            }
            // An `exec` unmaps the stream and ends nothing that the directory watches: the process
            // goes on as another program, which may have sensors of the same names.
            twin.ended = true;
        }
        // A rate from another process has not been checked by its constructor.
        let rate = request
            .rate
            .map(|rate| Rate::new(rate.period, rate.distance, rate.jitter))
            .transpose()
            .map_err(|error| error.to_string())?;
        let payload = request.schema.size();
        let stride = u64::from(payload.div_ceil(8) + 1) * 8;
        let capacity = suggested_capacity(rate.as_ref(), stride, request.capacity);
        let geometry = Geometry::new(payload, capacity).map_err(|error| error.to_string())?;
        let bytes = geometry.bytes() as u64;
        let left = registry.quota_bytes.saturating_sub(registry.bytes);
        if bytes > left {
            return Err(format!(
                "its buffer of {bytes} bytes exceeds the {left} bytes left of the quota of {}; ask \
                 for fewer slots, or declare a lower rate",
                registry.quota_bytes
            ));
        }
        // Counted from here on, mapped or not: the pages are about to exist.
        registry.bytes += bytes;
        let id = StreamId::from_raw(registry.next_stream);
        registry.next_stream += 1;
        Ok(Plan {
            id,
            geometry,
            clock: registry.clock,
            rate,
        })
    }

    fn mapped(&mut self, registry: &Mutex<Registry>) -> Next {
        let Some(pending) = self.pending.take() else {
            return Next::Close;
        };
        let bytes = pending.file.bytes();
        let sensor = pending.descriptor.sensor.clone();
        let (token, inode) = (pending.token, pending.file.inode());
        let opened = open(pending).and_then(|stream| {
            let live = Live {
                token,
                bytes: bytes as u64,
                inode,
                sensor: sensor.clone(),
                instance: stream.descriptor.instance.clone(),
                pid: self.pid,
                ended: false,
            };
            lock(registry).open(live, stream)
        });
        match opened {
            Ok(()) => {
                send(&self.fd, &Reply::Sealed, None);
                Next::Close
            }
            Err(sentence) => {
                lock(registry).bytes -= bytes as u64;
                self.refuse(registry, &sensor, &sentence)
            }
        }
    }

    fn unregister(&self, request: &Unregister, registry: &Mutex<Registry>) -> Next {
        let known = lock(registry).end(StreamId::from_raw(request.stream), request.token);
        let reply = if known {
            Reply::Unregistered
        } else {
            let sentence = "there is no such stream, or it belongs to somebody else";
            Reply::Refused {
                sentence: sentence.to_string(),
            }
        };
        send(&self.fd, &reply, None);
        Next::Close
    }
}

/// Seals the file and maps it for monitors.
fn open(pending: Pending) -> Result<Registered, String> {
    let bytes = pending.file.bytes();
    pending.file.seal().map_err(|error| error.to_string())?;
    // The program could change the size until now. A map beyond the end of the file would kill the
    // monitor at its first look; from here on the seal holds.
    if pending.file.size() < bytes as u64 {
        return Err("its program changed the size of the buffer".to_string());
    }
    let mapping = Mapping::read_only(&pending.file, bytes).map_err(|error| error.to_string())?;
    mapping.lock();
    Ok(Registered {
        descriptor: Arc::new(pending.descriptor),
        mapping,
        geometry: pending.geometry,
        clock: pending.clock,
        header: pending.header,
    })
}

/// Names appear in traces, tables and file names of exports.
fn check_name(what: &str, name: &str, may_be_empty: bool) -> Result<(), String> {
    let good = name.len() <= 128 && !name.chars().any(char::is_control);
    if good && (may_be_empty || !name.is_empty()) {
        Ok(())
    } else {
        Err(format!(
            "its {what} is empty, longer than 128 bytes or has control characters"
        ))
    }
}

/// Sends a reply; false if the program is gone.
fn send(fd: &OwnedFd, reply: &Reply, file: Option<BorrowedFd<'_>>) -> bool {
    serde_json::to_vec(reply).is_ok_and(|packet| client::send(fd, &packet, file).is_ok())
}
