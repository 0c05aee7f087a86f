// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sensor with elements of one type.

use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::element::Element;
use crate::fork;
use crate::not_connected;
use crate::pace::{Pace, PaceError};
use overhear_directory::client::{self, Registration, SensorRequest};
use overhear_directory::{monotonic_now, Control, MapError, MappedLine, Mapping};
use overhear_event::{ClockId, Nanos, Rate, Ticks, TypeSchema, WriterKind};
use overhear_stream::{
    hardware_clock, read_hardware_ticks, Geometry, LayoutError, Shape, SharedWords, SimpleWriter,
    Switch, SwitchState,
};

/// Slots of a sensor that is not connected: enough that writes touch several cache lines as in a
/// real stream, and little memory.
const PRIVATE_CAPACITY: u64 = 64;

/// Why a sensor cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    /// The schema does not describe the type.
    #[error("type `{id}`: the schema covers {schema} bytes, the element has {element}; name every field")]
    SchemaMismatch {
        /// The type id.
        id: String,
        /// Bytes in the schema.
        schema: usize,
        /// Bytes of the Rust or C type.
        element: usize,
    },
    /// The element is too large for a stream.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The request is for another kind of writer.
    #[error(
        "the request is for a {0:?} sensor, which this type cannot write; ask for a simple one"
    )]
    OtherWriter(WriterKind),
    /// There is no memory even for a private stream.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A stream that is open for writing, connected or not.
#[derive(Debug)]
pub(crate) struct OpenStream {
    request: SensorRequest,
    // Socket of the directory; `None`: the directory of the environment.
    socket: Option<PathBuf>,
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) shape: Shape,
    pub(crate) clock: ClockId,
    pub(crate) switch: Switch,
    registration: Option<Registration>,
    // The process that registered it. A forked child has a copy of a registration that belongs to
    // its parent.
    pid: u32,
    /// Why no directory owned the stream when it was registered last; empty if one did.
    pub(crate) not_connected: String,
    // Present from the first call of `pace` on.
    pace: Option<Pace>,
    // Control pages of earlier registrations. They stay mapped, because an object of C++ may still
    // have the address of its switch in one of them.
    outlived: Vec<Control>,
}

impl OpenStream {
    /// Registers, or falls back to private memory.
    pub(crate) fn open(request: SensorRequest) -> Result<Self, SensorError> {
        Self::open_at(None, request)
    }

    /// [`OpenStream::open`] with the directory at this socket.
    pub(crate) fn open_at(
        socket: Option<PathBuf>,
        request: SensorRequest,
    ) -> Result<Self, SensorError> {
        let (size, lanes) = (request.schema.size(), request.lanes);
        let capacity = match request.kind {
            // The elements of open writes are added, as in a directory.
            WriterKind::Concurrent => (PRIVATE_CAPACITY + u64::from(lanes)).next_power_of_two(),
            _ => PRIVATE_CAPACITY,
        };
        let shape = Shape::new(request.kind, size, capacity, lanes)?;
        match register(socket.as_deref(), &request) {
            Ok(registration) => Ok(Self::connected(request, socket, registration, Vec::new())),
            Err(not_connected) => {
                let mapping = Arc::new(Mapping::private(shape.bytes())?);
                // The fastest counter: these stamps are never converted.
                let clock = hardware_clock().unwrap_or(ClockId::Monotonic);
                // SAFETY: the words go out of scope here, the mapping stays.
                let words = unsafe { mapping.words() };
                shape.store(&words, clock, 0);
                Ok(Self {
                    request,
                    socket,
                    mapping,
                    shape,
                    clock,
                    switch: Switch::always_on(),
                    registration: None,
                    pid: std::process::id(),
                    not_connected,
                    pace: None,
                    outlived: Vec::new(),
                })
            }
        }
    }

    fn connected(
        request: SensorRequest,
        socket: Option<PathBuf>,
        registration: Registration,
        outlived: Vec<Control>,
    ) -> Self {
        let mapping = Arc::clone(&registration.mapping);
        fork::protect(&mapping, registration.control.as_ref());
        let line = registration.control.as_ref().and_then(Control::address);
        Self {
            request,
            socket,
            mapping,
            shape: registration.shape,
            clock: registration.clock,
            // SAFETY: the registration keeps the page mapped and is a field of the same value; code
            // that copies the switch keeps this value.
            switch: line.map_or(Switch::always_on(), |line| unsafe { Switch::at(line) }),
            not_connected: registration.deferred.clone().unwrap_or_default(),
            registration: Some(registration),
            pid: std::process::id(),
            pace: None,
            outlived,
        }
    }

    /// The declared rate.
    pub(crate) const fn rate(&self) -> Option<Rate> {
        self.request.rate
    }

    /// Whether this process has registered it. False for the copy in a forked child.
    pub(crate) fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The geometry of the only ring of a simple sensor.
    pub(crate) fn ring(&self) -> Result<Geometry, SensorError> {
        match self.shape {
            Shape::Simple(geometry) => Ok(geometry),
            _ => Err(SensorError::OtherWriter(self.shape.kind())),
        }
    }

    /// The line of this sensor in the control page, if there is one.
    pub(crate) fn control(&self) -> Result<Option<MappedLine>, LayoutError> {
        let control = self
            .registration
            .as_ref()
            .and_then(|it| it.control.as_ref());
        control.map(Control::line).transpose()
    }

    /// Waits until the declared rate allows the next element. `count` elements were written before.
    pub(crate) fn pace(&mut self, count: u64) -> Result<Nanos, PaceError> {
        self.with_pace(count, |pace, last_stamp| pace.wait(count, last_stamp))
    }

    /// Time until the declared rate allows the next element; zero if it does now.
    pub(crate) fn pace_left(&mut self, count: u64) -> Result<Nanos, PaceError> {
        self.with_pace(count, |pace, last_stamp| pace.left(count, last_stamp))
    }

    fn with_pace(
        &mut self,
        count: u64,
        read: impl FnOnce(&mut Pace, &dyn Fn() -> Ticks) -> Nanos,
    ) -> Result<Nanos, PaceError> {
        let pace = match &mut self.pace {
            Some(pace) => pace,
            none => {
                let rate = self.request.rate.ok_or(PaceError)?;
                none.insert(Pace::new(rate, self.clock, count)?)
            }
        };
        // SAFETY: the words go out of scope here, the mapping stays.
        let words = unsafe { self.mapping.words() };
        let geometry = self.shape.elements();
        let last_stamp = || geometry.own_stamp(&words, count.wrapping_sub(1));
        Ok(read(pace, &last_stamp))
    }

    /// Registers again if no directory owns this stream for this process. Returns the new stream,
    /// which replaces this one; `None` if this one stays in use, owned by a directory or in private
    /// memory.
    pub(crate) fn again(&mut self) -> Option<Self> {
        // A deferred sensor stays registered.
        if self.is_registered() {
            return None;
        }
        if self.registration.is_some() {
            // The fork handler has done this already, unless the child was made by a raw `clone`.
            self.mapping.make_private();
        }
        match register(self.socket.as_deref(), &self.request) {
            Ok(registration) => {
                let mut outlived = std::mem::take(&mut self.outlived);
                outlived.extend(self.registration.as_ref().and_then(|it| it.control.clone()));
                Some(Self::connected(
                    self.request.clone(),
                    self.socket.clone(),
                    registration,
                    outlived,
                ))
            }
            Err(not_connected) => {
                self.not_connected = not_connected;
                None
            }
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_registered() && !self.is_deferred()
    }

    /// Whether a directory has registered it for this process, with memory or deferred.
    fn is_registered(&self) -> bool {
        self.registration.is_some() && self.pid == std::process::id()
    }

    /// Whether it waits for memory.
    pub(crate) fn is_deferred(&self) -> bool {
        let registration = self.registration.as_ref();
        registration.is_some_and(Registration::is_deferred)
    }

    /// Why no monitor can read it; `None` if a directory owns the stream.
    pub(crate) fn not_connected_reason(&self) -> Option<&str> {
        let was_admitted = self.registration.is_some() && !self.is_deferred();
        (!self.not_connected.is_empty() && !was_admitted).then_some(self.not_connected.as_str())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            if self.pid == std::process::id() {
                // It fails only if the directory is gone, which then has no registration.
                let _ = registration.unregister();
            }
        }
    }
}

/// The schema of a type, if it describes all of its bytes.
pub(crate) fn check_schema<E: Element>() -> Result<TypeSchema, SensorError> {
    let schema = E::schema();
    let (covered, element) = (schema.size() as usize, size_of::<E>());
    if covered != element {
        let id = schema.id().to_string();
        return Err(SensorError::SchemaMismatch {
            id,
            schema: covered,
            element,
        });
    }
    Ok(schema)
}

/// Whether elements are written: not compiled away, and not switched off. `skip` counts a write
/// that a budget keeps from being made.
#[inline(always)]
pub(crate) fn is_on(switch: Switch, skip: impl FnOnce()) -> bool {
    if cfg!(feature = "disable") {
        return false;
    }
    match switch.state() {
        SwitchState::On => true,
        SwitchState::Off => false,
        SwitchState::Counted => {
            skip();
            false
        }
    }
}

/// Registers with the directory. The error is the reason why the sensor is not connected.
fn register(socket: Option<&Path>, request: &SensorRequest) -> Result<Registration, String> {
    if cfg!(feature = "disable") {
        return Err("sensors are compiled out (feature `disable`)".to_string());
    }
    let registered = match socket {
        Some(socket) => client::register_at(socket, request.clone()),
        None => client::register(request.clone()),
    };
    let registered = registered.map_err(|reason| reason.to_string());
    let not_connected = match &registered {
        Ok(registration) => registration.deferred.as_ref(),
        Err(reason) => Some(reason),
    };
    if let Some(reason) = not_connected {
        not_connected::report(&request.sensor, reason);
    }
    registered
}

/// The stamp of this moment.
#[inline(always)]
pub(crate) fn stamp(clock: ClockId) -> Ticks {
    match clock {
        ClockId::Monotonic => monotonic_stamp(),
        ClockId::X86Tsc | ClockId::ArmCntvct => read_hardware_ticks(),
    }
}

/// Out of line and far off: a machine without a counter pays a call, and no other the code for one.
#[cold]
#[inline(never)]
fn monotonic_stamp() -> Ticks {
    Ticks::from_raw(monotonic_now().as_monotonic_ns())
}

/// Writes elements of type `E`. One thread at a time: `write` needs `&mut self`.
///
/// Dropping a sensor takes it out of the directory; monitors read what it has written.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Sensor<E> {
    // All fields that a write uses are in one cache line: after a sleep each line is a miss.
    // Declared before the stream whose memory it points into, so dropped before it.
    writer: SimpleWriter<SharedWords>,
    switch: Switch,
    clock: ClockId,
    stream: OpenStream,
    elements: PhantomData<fn(&E)>,
}

const _: () = assert!(
    std::mem::offset_of!(Sensor<()>, stream) <= 64,
    "one cache line"
);

impl<E: Element> Sensor<E> {
    /// Settings of a sensor with this id: what it measures.
    #[must_use]
    pub fn builder(id: &str) -> SensorBuilder<E> {
        SensorBuilder {
            id: id.to_string(),
            instance: String::new(),
            rate: None,
            capacity: 0,
            elements: PhantomData,
        }
    }

    /// Appends an element, unless the sensor is switched off. Wait-free; real-time safe.
    #[inline(always)]
    pub fn write(&mut self, element: &E) {
        let clock = self.clock;
        if self.is_enabled() {
            let payload = element.as_bytes();
            // Known when it is compiled, unless a type's own `as_bytes` hands out something else.
            assert!(
                payload.len() == size_of::<E>(),
                "the element's bytes are not those of its type"
            );
            // SAFETY: the stream was created for a schema of this size (`check_schema`).
            unsafe { self.writer.write_sized(payload, || stamp(clock)) };
        }
    }

    /// Whether the sensor is switched on: one load, so that an observation that costs something can
    /// be left out while no monitor needs it.
    ///
    /// While a budget has switched the sensor off, the call counts as a write that was not made. So
    /// ask once per observation, from the writing thread, and write nothing if it is off.
    #[inline(always)]
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        is_on(self.switch, || self.writer.skip())
    }

    /// Waits until the declared rate (T, D, tau) allows the next element; returns how long.
    ///
    /// For producers that are not real-time and may wait: if they call it before each element,
    /// monitors miss none that was declared, and find no two elements closer than declared. That
    /// holds for the times that monitors see: [`PACE_MARGIN`](crate::PACE_MARGIN) is added where
    /// these are converted from the CPU's counter. Elements written without asking count as a debt,
    /// which the next wait pays. May sleep; not for real-time threads.
    ///
    /// # Errors
    /// [`PaceError`] if the sensor has declared no rate.
    pub fn pace(&mut self) -> Result<Nanos, PaceError> {
        self.stream.pace(self.writer.count())
    }

    /// Registers a sensor that no directory owns again. Returns whether a directory owns it now.
    ///
    /// A forked child's copy of its parent's sensor is not connected: with this call the child gets
    /// a stream of its own, under its own process id, with the settings that the parent gave. A
    /// sensor that found no directory when it was registered is connected from here on if there is
    /// one now; what it wrote before is not. A connected sensor stays as it is. Cold, like
    /// [`SensorBuilder::register`].
    ///
    /// # Errors
    /// [`SensorError`] if the directory's stream makes no sense; the sensor goes on as it was.
    pub fn register_again(&mut self) -> Result<bool, SensorError> {
        if let Some(stream) = self.stream.again() {
            // SAFETY: the mapping is owned by `stream`, which is stored in the same value below.
            let words = unsafe { stream.mapping.words() };
            self.writer = SimpleWriter::new(words, stream.ring()?)?;
            self.clock = stream.clock;
            self.switch = stream.switch;
            // The old memory is unmapped here, after the old writer.
            self.stream = stream;
        }
        Ok(self.is_connected())
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.stream.is_connected()
    }

    /// Why no monitor can read the sensor; `None` if a directory owns its stream.
    #[must_use]
    pub fn not_connected_reason(&self) -> Option<&str> {
        self.stream.not_connected_reason()
    }
}

/// See [`Sensor::builder`].
#[derive(Clone, Debug)]
pub struct SensorBuilder<E> {
    id: String,
    instance: String,
    rate: Option<Rate>,
    capacity: u64,
    elements: PhantomData<fn(&E)>,
}

impl<E: Element> SensorBuilder<E> {
    /// Which one of several sensors with the same id this is.
    #[must_use]
    pub fn instance(mut self, instance: &str) -> Self {
        self.instance = instance.to_string();
        self
    }

    /// Declares the rate (T, D, tau): the directory sizes the stream by it.
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the minimum number of slots.
    #[must_use]
    pub const fn capacity(mut self, elements: u64) -> Self {
        self.capacity = elements;
        self
    }

    /// Registers the sensor. Cold: allocates, calls the kernel, may wait for the directory.
    ///
    /// Without a directory the sensor works all the same, not connected: that is no error.
    ///
    /// # Errors
    /// [`SensorError`] if the schema does not describe the type or there is no memory.
    pub fn register(self) -> Result<Sensor<E>, SensorError> {
        let schema = check_schema::<E>()?;
        let stream = OpenStream::open(SensorRequest {
            sensor: self.id,
            instance: self.instance,
            schema,
            rate: self.rate,
            capacity: self.capacity,
            kind: WriterKind::Simple,
            lanes: 0,
        })?;
        // SAFETY: the mapping is owned by `stream`, a field of the same value that is dropped after
        // the writer.
        let words = unsafe { stream.mapping.words() };
        let writer = SimpleWriter::new(words, stream.ring()?)?;
        let clock = stream.clock;
        Ok(Sensor {
            writer,
            clock,
            switch: stream.switch,
            stream,
            elements: PhantomData,
        })
    }
}
