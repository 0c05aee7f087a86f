// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's packets: a sensor is registered, its memory handed over, and taken out again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use overhear_event::{ClockId, Origin, Rate, StreamDescriptor, StreamId, WriterKind};
use overhear_stream::Shape;

use crate::connection::{Connection, Next, Work};
use crate::control::Place;
use crate::description::record_bytes;
use crate::memory::{Mapping, MemoryFile};
use crate::peer::Peer;
use crate::protocol::{Granted, Register, Reply, Unregister, VERSION};
use crate::quota::{Amounts, Resource};
use crate::record::SensorState;
use crate::registry::{lock, random, FileCharge, Refusal, Registered, Registry, Sensor};
use crate::sizing::Sizing;
use crate::task;
use crate::worker::{WorkQueue, LARGE_BYTES};

/// Granted, but not mapped yet.
#[derive(Debug)]
pub(crate) struct Grant {
    file: MemoryFile,
    opening: Opening,
}

/// A sensor that is not open for monitors yet, without its memory.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The connection over which it was asked for.
    pub(crate) connection: u32,
    peer: Peer,
    file_charge: FileCharge,
    charged: Charged,
    token: u64,
    descriptor: StreamDescriptor,
    shape: Shape,
    clock: ClockId,
    place: Place,
}

impl Opening {
    /// It does not come to exist: what it was given is taken back. Its memory has been closed; it counts
    /// until nobody else has it.
    pub(crate) fn give_back(self, registry: &mut Registry) {
        let Peer { uid, pid, .. } = self.peer;
        registry.give_back(pid, self.place, self.shape.lanes());
        registry.give_back_streams(self.descriptor.id);
        registry.release(uid, self.charged.record);
        registry.release(uid, self.charged.descriptor);
        registry.file_closed(Some(self.file_charge));
    }

    /// The same, and remembers why.
    pub(crate) fn refuse(self, registry: &mut Registry, sentence: &str) {
        registry.unheard(&self.peer, &self.descriptor.sensor, sentence);
        self.give_back(registry);
    }

    /// Opens the sensor for monitors; returns its number.
    pub(crate) fn open(
        self,
        file: MemoryFile,
        mapping: Mapping,
        locked: std::io::Result<()>,
        registry: &mut Registry,
    ) -> StreamId {
        let stream = self.descriptor.id;
        let registered = Registered {
            descriptor: Arc::new(self.descriptor),
            mapping: Arc::new(mapping),
            shape: self.shape,
            clock: self.clock,
        };
        registry.locked(locked);
        let is_kept = self.charged.descriptor != Amounts::NONE;
        let file = is_kept.then_some(file);
        let Peer { uid, pid, .. } = self.peer;
        let mut sensor = Sensor::new(registered, file, self.token, pid, uid);
        sensor.place = Some(self.place);
        sensor.charge = Some(self.file_charge);
        registry.open(sensor);
        stream
    }
}

/// What a sensor is charged before it exists.
#[derive(Clone, Copy, Debug)]
struct Charged {
    /// Until its file is freed.
    file: Amounts,
    /// Until the directory forgets it.
    record: Amounts,
    /// As long as the directory keeps the file open.
    descriptor: Amounts,
}

impl Charged {
    fn of(descriptor: &StreamDescriptor, shape: &Shape) -> Self {
        let bytes = shape.bytes() as u64;
        let record = Amounts::of(Resource::RecordBytes, record_bytes(descriptor, bytes));
        Self {
            file: Amounts::of(Resource::BufferBytes, bytes).and(Resource::Sensors, 1),
            record,
            descriptor: Amounts::of(Resource::Descriptors, 1),
        }
    }

    fn charge(mut self, uid: u32, registry: &mut Registry) -> Result<Self, Refusal> {
        let descriptor = Amounts::of(Resource::Descriptors, 1);
        match registry.charge(uid, descriptor) {
            Ok(()) => {}
            // The monitor in this process needs no descriptor; others cannot have this sensor.
            Err(_) if registry.has_embedded_monitor() => self.descriptor = Amounts::NONE,
            Err(shortage) => return Err(shortage.into()),
        }
        if let Err(shortage) = registry.charge(uid, self.record) {
            registry.release(uid, self.descriptor);
            return Err(shortage.into());
        }
        if let Err(shortage) = registry.charge(uid, self.file) {
            registry.release(uid, self.record);
            registry.release(uid, self.descriptor);
            return Err(shortage.into());
        }
        Ok(self)
    }

    fn release(self, uid: u32, registry: &mut Registry) {
        registry.release(uid, self.record);
        registry.release(uid, self.descriptor);
        registry.release(uid, self.file);
    }
}

impl Connection {
    /// Takes back a grant that was not mapped. Its memory counts until nobody has it.
    pub(crate) fn withdraw(&mut self, registry: &Mutex<Registry>) {
        if let Some(Grant { file, opening }) = self.grant.take() {
            drop(file);
            let sentence = "its program did not map the buffer in time, or ended meanwhile";
            opening.refuse(&mut lock(registry), sentence);
        }
    }

    pub(crate) fn register(&mut self, request: Register, registry: &Mutex<Registry>) -> Next {
        self.withdraw(registry);
        let sensor = request.sensor.clone();
        match self.grant(request, registry) {
            Ok((grant, file)) => self.hand_over(&file, grant, registry),
            Err(refusal) => self.refuse(registry, &sensor, &refusal.into_sentence()),
        }
    }

    fn hand_over(&mut self, file: &OwnedFd, grant: Grant, registry: &Mutex<Registry>) -> Next {
        let opening = &grant.opening;
        let control = lock(registry).control_reader(self.peer().pid, opening.place);
        let elements = opening.shape.elements();
        let reply = Reply::Granted(Granted {
            stream: opening.descriptor.id.as_raw(),
            token: opening.token,
            stride: u32::try_from(elements.stride_bytes()).unwrap_or(u32::MAX),
            capacity: elements.capacity(),
            clock: opening.clock,
            kind: opening.shape.kind(),
            lanes: opening.shape.lanes(),
            line: control.as_ref().map(|_| opening.place.line),
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

    /// Charges under the lock and makes the file without it: monitors must not wait for the kernel.
    fn grant(
        &self,
        request: Register,
        registry: &Mutex<Registry>,
    ) -> Result<(Grant, OwnedFd), Refusal> {
        let sizing = lock(registry).sizing;
        let (mut descriptor, shape) = self.checked(request, sizing)?;
        let reserved = self.reserve(&mut descriptor, &shape, &mut lock(registry))?;
        let (clock, place, charged) = reserved;
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
                    connection: self.number(),
                    peer: self.peer().clone(),
                    file_charge,
                    charged,
                    token: random(),
                    descriptor,
                    shape,
                    clock,
                    place,
                };
                let grant = Grant { file, opening };
                Ok((grant, shared))
            }
            Err(refusal) => {
                registry.give_back(self.peer().pid, place, shape.lanes());
                registry.give_back_streams(descriptor.id);
                charged.release(uid, &mut registry);
                Err(refusal)
            }
        }
    }

    /// What the request makes of itself: all but the number.
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
        // A rate from another process has not been checked by its constructor.
        let rate = request
            .rate
            .map(|rate| Rate::new(rate.period, rate.distance, rate.jitter))
            .transpose()
            .map_err(|error| error.to_string())?;
        let (shape, schema) = shape_of(&request, rate.as_ref(), sizing)?;
        let task = task::of_pid(self.peer().pid);
        // What was read is the peer's only if its id has not become another's meanwhile.
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

    /// Everything that a sensor needs besides its memory. After an error nothing of it is taken.
    fn reserve(
        &self,
        descriptor: &mut StreamDescriptor,
        shape: &Shape,
        registry: &mut Registry,
    ) -> Result<(ClockId, Place, Charged), Refusal> {
        let peer = self.peer();
        let rules = &registry.rules;
        rules.register(peer, descriptor, &self.may_register)?;
        registry.make_way(peer.pid, descriptor)?;
        // From here on, mapped or not: the pages are about to exist.
        let charged = Charged::of(descriptor, shape).charge(peer.uid, registry)?;
        let enabled = !registry.is_unneeded(peer.uid, descriptor);
        let placed = registry.take_streams(shape.streams()).and_then(|id| {
            let placed = registry.place(peer, shape.lanes(), enabled);
            let place = placed.inspect_err(|_| registry.give_back_streams(id))?;
            Ok((id, place))
        });
        match placed {
            Ok((id, place)) => {
                descriptor.id = id;
                Ok((registry.clock, place, charged))
            }
            Err(refusal) => {
                charged.release(peer.uid, registry);
                Err(refusal)
            }
        }
    }

    /// The program has mapped its buffer: from here on nobody can do that. A small one is opened at once.
    pub(crate) fn mapped(&mut self, registry: &Mutex<Registry>, queue: &WorkQueue) -> Next {
        let Some(Grant { file, opening }) = self.grant.take() else {
            return Next::Close;
        };
        if let Err(error) = file.seal() {
            drop(file);
            return self.not_opened(opening, &error.to_string(), registry);
        }
        if file.bytes() > LARGE_BYTES {
            queue.prepare(self.peer().uid, file, opening);
            return self.go_on_with(Work::Prepare);
        }
        match prepare(&file) {
            Ok((mapping, locked)) => {
                let stream = opening.open(file, mapping, locked, &mut lock(registry));
                self.is_open(stream, registry)
            }
            Err(sentence) => {
                drop(file);
                self.not_opened(opening, &sentence, registry)
            }
        }
    }

    /// Its sensor is open. A program that has given up meanwhile writes into memory of its own.
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
        sentence: &str,
        registry: &Mutex<Registry>,
    ) -> Next {
        opening.refuse(&mut lock(registry), sentence);
        self.deny(sentence)
    }

    pub(crate) fn unregister(&self, request: &Unregister, registry: &Mutex<Registry>) -> Next {
        let stream = StreamId::from_raw(request.stream);
        let reply = if lock(registry).unregister(stream, request.token) {
            Reply::Unregistered
        } else {
            let sentence = "there is no such stream, or it belongs to somebody else";
            Reply::Refused {
                sentence: sentence.to_string(),
                again: false,
            }
        };
        self.reply(&reply, &[]);
        Next::Close
    }
}

/// Where everything lies in the memory of a sensor, and what monitors see of an element.
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

/// Lanes for a program that does not say how many threads will write: twice as many as there are
/// CPUs, and eight on small machines.
fn default_lanes() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(2 * cpus).unwrap_or(64).clamp(8, 64)
}

/// Maps a sealed file for monitors; says whether its pages are locked in memory.
fn prepare(file: &MemoryFile) -> Result<(Mapping, std::io::Result<()>), String> {
    let bytes = file.bytes();
    // The program has allocated the pages, if it is one that does; nobody can take them away any more.
    if file.allocated_bytes() < bytes as u64 {
        let allocated = file.allocate(0..bytes);
        allocated.map_err(|error| error.to_string())?;
    }
    let mapping = Mapping::read_only(file, bytes).map_err(|error| error.to_string())?;
    let locked = mapping.lock();
    Ok((mapping, locked))
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
