// SPDX-License-Identifier: MIT OR Apache-2.0
//! The programs' requests: register, mapped, unregister.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use overhear_event::{ClockId, Origin, Rate, StreamDescriptor, StreamId, WriterKind};
use overhear_stream::Shape;

use crate::connection::{Connection, Next, Work};
use crate::control::ControlSlot;
use crate::memory::{Mapping, MemoryFile};
use crate::opening::{Charged, Opening};
use crate::protocol::{Granted, Register, Reply, Unregister, VERSION};
use crate::registry::{lock, random, Refusal, Registry};
use crate::sensor_record::SensorState;
use crate::sizing::Sizing;
use crate::task;
use crate::worker::{WorkQueue, LARGE_BYTES};

/// A sensor's resources besides its memory.
struct Reserved {
    clock: ClockId,
    slot: ControlSlot,
    charged: Charged,
    /// Why it waits for memory, of a deferred sensor.
    deferred: Option<String>,
}

/// A sensor that is granted and not mapped yet.
#[derive(Debug)]
pub(crate) struct Grant {
    file: MemoryFile,
    opening: Opening,
}

impl Connection {
    /// Takes back a grant that was not mapped. Its memory is charged until the kernel frees it.
    pub(crate) fn withdraw(&mut self, registry: &Mutex<Registry>) {
        if let Some(Grant { file, opening }) = self.grant.take() {
            drop(file);
            let message = "its program did not map the buffer in time, or ended meanwhile";
            opening.refuse(&mut lock(registry), message);
        }
    }

    pub(crate) fn register(&mut self, request: Register, registry: &Mutex<Registry>) -> Next {
        self.withdraw(registry);
        let sensor = request.sensor.clone();
        match self.grant(request, registry) {
            Ok((grant, file)) => self.hand_over(&file, grant, registry),
            Err(refusal) => self.refuse(registry, &sensor, &refusal.into_message()),
        }
    }

    fn hand_over(&mut self, file: &OwnedFd, grant: Grant, registry: &Mutex<Registry>) -> Next {
        let opening = &grant.opening;
        let control = lock(registry).control_reader(self.peer().pid, opening.slot);
        let elements = opening.shape.elements();
        let reply = Reply::Granted(Granted {
            stream: opening.descriptor.id.as_raw(),
            token: opening.token,
            stride: u32::try_from(elements.stride_bytes()).unwrap_or(u32::MAX),
            capacity: elements.capacity(),
            clock: opening.clock,
            kind: opening.shape.kind(),
            lanes: opening.shape.lanes(),
            line: control.as_ref().map(|_| opening.slot.line),
            deferred: opening.deferred.clone(),
        });
        let mut files = vec![file.as_fd()];
        files.extend(control.as_ref().map(AsFd::as_fd));
        let sent = self.reply(&reply, &files);
        self.grant = Some(grant);
        match sent {
            true => Next::Idle,
            false => Next::Close,
        }
    }

    /// Charges under the lock and makes the file without it, so that monitors do not wait for the
    /// kernel.
    fn grant(
        &self,
        request: Register,
        registry: &Mutex<Registry>,
    ) -> Result<(Grant, OwnedFd), Refusal> {
        let sizing = lock(registry).sizing();
        let may_defer = request.may_defer;
        let (mut descriptor, shape) = self.checked(request, sizing)?;
        let reserved = self.reserve(&mut descriptor, &shape, may_defer, &mut lock(registry))?;
        let Reserved {
            clock,
            slot,
            charged,
            deferred,
        } = reserved;
        let name = format!("overhear-{}", descriptor.sensor);
        let initial = shape.initial(clock, u64::from(descriptor.id.as_raw()));
        let file = MemoryFile::create(&name, shape.bytes(), &initial);
        let made = file.and_then(|file| Ok((file.share()?, file)));
        let made = made.map_err(|error| Refusal::from(error.to_string()));
        let mut registry = lock(registry);
        let uid = self.peer().uid;
        let made = made.and_then(|(shared, file)| {
            let file_charge = registry.charge_file(&file, uid, charged.file)?;
            Ok((shared, file, file_charge))
        });
        match made {
            Ok((shared, file, file_charge)) => {
                let opening = Opening {
                    connection: Some(self.number()),
                    pid: self.peer().pid,
                    uid,
                    file_charge,
                    charged,
                    token: random(),
                    descriptor,
                    shape,
                    clock,
                    slot,
                    deferred,
                };
                let grant = Grant { file, opening };
                Ok((grant, shared))
            }
            Err(refusal) => {
                registry.give_back(self.peer().pid, slot, shape.lanes());
                registry.give_back_streams(descriptor.id);
                charged.release(uid, &mut registry);
                Err(refusal)
            }
        }
    }

    /// Checks the request. The descriptor has everything but its stream number.
    fn checked(
        &self,
        request: Register,
        sizing: Sizing,
    ) -> Result<(StreamDescriptor, Shape), Refusal> {
        if request.version != VERSION {
            return Err(format!(
                "it speaks version {} of the protocol, this directory version {VERSION}",
                request.version
            )
            .into());
        }
        check_name("id", &request.sensor, false)?;
        check_name("instance", &request.instance, true)?;
        // A rate from another process did not go through its constructor.
        let rate = request
            .rate
            .map(|rate| Rate::new(rate.period, rate.distance, rate.jitter))
            .transpose()
            .map_err(|error| error.to_string())?;
        let (shape, schema) = shape_of(&request, rate.as_ref(), sizing)?;
        let task = task::of_pid(self.peer().pid);
        // Data read by the process id is valid only if the process is alive afterwards.
        self.peer().process().ok_or("its process has ended")?;
        let descriptor = StreamDescriptor {
            id: StreamId::default(),
            origin: Origin::Program(task),
            sensor: request.sensor,
            instance: request.instance,
            lane: None,
            schema: Arc::new(schema),
            rate,
            capacity: shape.elements().capacity(),
        };
        Ok((descriptor, shape))
    }

    /// Reserves a sensor's resources besides its memory. After an error nothing is reserved.
    fn reserve(
        &self,
        descriptor: &mut StreamDescriptor,
        shape: &Shape,
        may_defer: bool,
        registry: &mut Registry,
    ) -> Result<Reserved, Refusal> {
        let peer = self.peer();
        let rules = &registry.rules;
        rules.register(peer, descriptor, &self.may_register)?;
        registry.free_name(peer.pid, descriptor)?;
        // Charged before the program maps the buffer, because its pages are about to exist.
        let whole = Charged::of(descriptor, shape);
        let (charged, deferred) = match whole.charge(peer.uid, registry) {
            Ok(charged) => (charged, None),
            Err(Refusal::Shortage(short)) if may_defer && short.may_pass_for_buffers() => {
                let charged = whole.deferred(shape).charge(peer.uid, registry);
                // The first shortage is reported, not the one of the deferral.
                let charged = charged.map_err(|_| Refusal::Permanent(short.message.clone()))?;
                (charged, Some(short.message))
            }
            Err(refusal) => return Err(refusal),
        };
        let enabled = deferred.is_none() && !registry.is_unneeded(peer.uid, descriptor);
        let placed = registry.take_streams(shape.streams()).and_then(|id| {
            let placed = registry.allocate_slot(peer, shape.lanes(), enabled);
            let slot = placed.inspect_err(|_| registry.give_back_streams(id))?;
            Ok((id, slot))
        });
        match placed {
            Ok((id, slot)) => {
                descriptor.id = id;
                registry.set_deferred(peer.pid, slot, shape.lanes(), deferred.is_some());
                Ok(Reserved {
                    clock: registry.clock,
                    slot,
                    charged,
                    deferred,
                })
            }
            Err(refusal) => {
                charged.release(peer.uid, registry);
                Err(refusal)
            }
        }
    }

    /// The program has mapped its buffer: it is sealed against further maps. A small one is opened
    /// at once.
    pub(crate) fn mapped(&mut self, registry: &Mutex<Registry>, queue: &WorkQueue) -> Next {
        let Some(Grant { file, opening }) = self.grant.take() else {
            return Next::Close;
        };
        if let Err(error) = file.seal() {
            drop(file);
            return self.not_opened(opening, &error.to_string(), registry);
        }
        if let Some(shortage) = &opening.deferred {
            let mut registry = lock(registry);
            let message =
                format!("{shortage}. It waits for memory, and is switched on when there is enough");
            let owner = (opening.pid, opening.uid);
            registry.note_not_connected(owner, &opening.descriptor.sensor, &message);
            registry.defer(file, opening);
            drop(registry);
            self.reply(&Reply::Sealed, &[]);
            return Next::Close;
        }
        if file.bytes() > LARGE_BYTES {
            queue.prepare(self.peer().uid, file, opening);
            return self.continue_with(Work::Prepare);
        }
        match prepare(&file) {
            Ok((mapping, locked)) => {
                let stream = opening.open(file, mapping, locked, &mut lock(registry));
                self.is_open(stream, registry)
            }
            Err(message) => {
                drop(file);
                self.not_opened(opening, &message, registry)
            }
        }
    }

    /// Its sensor is open. A program that has given up meanwhile writes into private memory.
    pub(crate) fn is_open(&self, stream: StreamId, registry: &Mutex<Registry>) -> Next {
        if !self.reply(&Reply::Sealed, &[]) {
            lock(registry).end(stream, SensorState::Unregistered);
        }
        Next::Close
    }

    /// Its sensor cannot be opened.
    pub(crate) fn not_opened(
        &self,
        opening: Opening,
        message: &str,
        registry: &Mutex<Registry>,
    ) -> Next {
        opening.refuse(&mut lock(registry), message);
        self.deny(message)
    }

    pub(crate) fn unregister(&self, request: &Unregister, registry: &Mutex<Registry>) -> Next {
        let stream = StreamId::from_raw(request.stream);
        let reply = if lock(registry).unregister(stream, request.token) {
            Reply::Unregistered
        } else {
            let message = "there is no such stream, or it belongs to somebody else";
            Reply::Refused {
                message: message.to_string(),
                again: false,
            }
        };
        self.reply(&reply, &[]);
        Next::Close
    }
}

/// The layout of a sensor's memory, and the schema of its elements for monitors.
fn shape_of(
    request: &Register,
    rate: Option<&Rate>,
    sizing: Sizing,
) -> Result<(Shape, overhear_event::TypeSchema), String> {
    let kind = request.kind;
    let lanes = match (kind, request.lanes) {
        (WriterKind::Kernel, _) => return Err("only the kernel has kernel streams".to_string()),
        (WriterKind::Laned, 0) => default_lanes(),
        (WriterKind::Laned, lanes) => lanes,
        _ => 0,
    };
    let schema = match kind.names_threads() {
        true => request.schema.with_writer(),
        false => Ok(request.schema.clone()),
    };
    let schema = schema.map_err(|error| error.to_string())?;
    let stride = u64::from(schema.size().div_ceil(8) + 1) * 8;
    let capacity = match kind {
        WriterKind::Concurrent => sizing.queue(rate, stride, request.lanes, request.capacity),
        _ => sizing.capacity(rate, stride, lanes, request.capacity),
    };
    let shape = Shape::new(kind, request.schema.size(), capacity, lanes);
    let shape = shape.map_err(|error| error.to_string())?;
    Ok((shape, schema))
}

/// Default number of lanes: twice the number of CPUs, at least eight.
fn default_lanes() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(2 * cpus).unwrap_or(64).clamp(8, 64)
}

/// Maps a sealed file for monitors. Returns whether its pages could be locked in memory.
fn prepare(file: &MemoryFile) -> Result<(Mapping, std::io::Result<()>), String> {
    let bytes = file.bytes();
    // Programs allocate the pages themselves, except those of older libraries. Sealed pages stay.
    if file.allocated_bytes() < bytes as u64 {
        let allocated = file.allocate(0..bytes);
        allocated.map_err(|error| error.to_string())?;
    }
    let mapping = Mapping::read_only(file, bytes).map_err(|error| error.to_string())?;
    let locked = mapping.lock();
    Ok((mapping, locked))
}

/// Checks a name: names appear in traces, tables and file names of exports.
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
