// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sensor for many threads with one total order: they share a queue.

use std::marker::PhantomData;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use overhear_directory::client::SensorRequest;
use overhear_directory::monotonic_now;
use overhear_event::{ClockId, Nanos, Rate, Ticks, WriterKind};
use overhear_stream::{
    read_hardware_ticks_ordered, QueueFull, QueueWriter, Shape, SharedWords, Switch, Taken,
};

use crate::element::Element;
use crate::laned::Refused;
use crate::pace::{sleep_until_none_is_left, Pace, PaceError, SharedPace};
use crate::sensor::{check_schema, is_on, OpenStream, SensorError};
use crate::{fork, thread};

/// `oh_concurrent_sensor`: what the inline functions of `concurrent.h` use, then what the library
/// needs.
///
/// Shared by all threads; none of them changes it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct OpenQueue {
    switch: Switch,
    base: *mut u8,
    elements: *mut u8,
    // From the thread pointer to the word with the thread's id.
    tid_distance: usize,
    mask: u32,
    stride: u32,
    payload_size: u32,
    clock_id: u32,
    reserved0: [u64; 2],
    // After the 64 bytes that C accesses. Dropped before the memory that it points into.
    clock: ClockId,
    writer: QueueWriter<SharedWords>,
    // Of threads that have called `pace`.
    pace: Mutex<Option<SharedPace>>,
    pub(crate) stream: OpenStream,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(OpenQueue, switch) == 0);
    assert!(offset_of!(OpenQueue, base) == 8);
    assert!(offset_of!(OpenQueue, elements) == 16);
    assert!(offset_of!(OpenQueue, tid_distance) == 24);
    assert!(offset_of!(OpenQueue, mask) == 32);
    assert!(offset_of!(OpenQueue, stride) == 36);
    assert!(offset_of!(OpenQueue, payload_size) == 40);
    assert!(offset_of!(OpenQueue, clock_id) == 44);
    assert!(offset_of!(OpenQueue, clock) >= 64);
};

// SAFETY: the pointers lead into the mapping, which moves along; the rest is Send.
unsafe impl Send for OpenQueue {}
// SAFETY: as for Send; Rust uses the writer, which is Sync, and C keeps the same rules.
unsafe impl Sync for OpenQueue {}

impl OpenQueue {
    /// Registers, or falls back to private memory. `writers` elements are spare.
    pub(crate) fn open(mut request: SensorRequest, writers: u32) -> Result<Self, SensorError> {
        request.kind = WriterKind::Concurrent;
        request.lanes = if writers == 0 {
            default_writers()
        } else {
            writers
        };
        // A child's threads are others than the parent's, whether the sensor is connected or not.
        fork::install();
        Self::of(OpenStream::open(request)?)
    }

    fn of(stream: OpenStream) -> Result<Self, SensorError> {
        let Shape::Concurrent(queue) = stream.shape else {
            return Err(SensorError::OtherWriter(stream.shape.kind()));
        };
        // SAFETY: the mapping is owned by `stream`, a field of the same value that is dropped after
        // the writer.
        let words = unsafe { stream.mapping.words() };
        let writer = QueueWriter::new(words, queue)?;
        let base = stream.mapping.base().as_ptr();
        Ok(Self {
            switch: stream.switch,
            base,
            // In bounds: the writer has checked the size of the memory.
            elements: base.wrapping_add(queue.elements_offset()),
            tid_distance: thread::tid_distance(),
            mask: narrow(queue.capacity() as usize - 1),
            stride: narrow(queue.elements().stride_bytes()),
            payload_size: narrow(queue.elements().payload_bytes()),
            clock_id: stream.clock.as_raw(),
            reserved0: [0; 2],
            clock: stream.clock,
            writer,
            pace: Mutex::new(None),
            stream,
        })
    }

    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        is_on(self.switch, || self.writer.skip())
    }

    /// The same, and nothing is counted.
    fn can_write(&self) -> bool {
        is_on(self.switch, || {})
    }

    /// Appends an element. The caller vouches for the payload's size.
    #[inline]
    pub(crate) fn write(&self, payload: &[u8]) -> Result<(), Refused> {
        if !self.is_enabled() {
            return Err(Refused::Off);
        }
        self.write_on(payload)
    }

    /// A write of an enabled sensor.
    #[inline]
    fn write_on(&self, payload: &[u8]) -> Result<(), Refused> {
        let (clock, tid) = (self.clock, thread::identify().tid);
        let written = self.writer.write(tid, payload, || stamp(clock));
        Ok(written?)
    }

    /// How long the calling thread is to wait until the declared rate allows it the next element;
    /// zero allows it, also where it cannot write because the sensor is off.
    pub(crate) fn pace_left(&self) -> Result<Nanos, PaceError> {
        if self.stream.rate().is_none() {
            return Err(PaceError);
        }
        // In a forked child another thread may have held the lock when it was forked.
        if !self.can_write() || !self.stream.is_own() {
            return Ok(Nanos::ZERO);
        }
        let thread = thread::identify().tid;
        let pace = &mut *self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let pace = match pace {
            Some(pace) => pace,
            none => {
                let count = self.writer.published(0);
                none.insert(SharedPace::new(Pace::of(&self.stream, count)?))
            }
        };
        let count = |near| self.writer.published(near);
        Ok(pace.left(thread, count, |last| self.writer.stamp_of(last)))
    }

    /// Waits until none is left; returns how long.
    pub(crate) fn pace(&self) -> Result<Nanos, PaceError> {
        let first = self.pace_left()?;
        if first == Nanos::ZERO {
            return Ok(first);
        }
        Ok(sleep_until_none_is_left(|| {
            self.pace_left().unwrap_or(Nanos::ZERO)
        }))
    }

    /// Registers again if this process is not connected; `self` is as before if that fails.
    pub(crate) fn register_again(&mut self) -> Result<bool, SensorError> {
        if let Some(stream) = self.stream.again() {
            // After a raw `clone` the slot has the thread id of the parent.
            thread::forget();
            *self = Self::of(stream)?;
        }
        Ok(self.stream.is_connected())
    }

    #[cfg(test)]
    pub(crate) fn geometry(&self) -> overhear_stream::QueueGeometry {
        *self.writer.geometry()
    }
}

/// A number of the queue, all of which are bounded by its geometry.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Default number of simultaneous writes: twice the number of CPUs.
fn default_writers() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(8, NonZeroUsize::get);
    u32::try_from(2 * cpus).unwrap_or(u32::MAX).clamp(16, 1024)
}

/// The stamp of this moment, read after the loads before it.
#[inline(always)]
fn stamp(clock: ClockId) -> Ticks {
    match clock {
        // The vDSO orders its own reads.
        ClockId::Monotonic => Ticks::from_raw(monotonic_now().as_monotonic_ns()),
        ClockId::X86Tsc | ClockId::ArmCntvct => read_hardware_ticks_ordered(),
    }
}

impl From<QueueFull> for Refused {
    fn from(QueueFull: QueueFull) -> Self {
        Self::Full
    }
}

/// Writes elements of type `E` from many threads at once, into one stream with one order.
///
/// Stamps ascend in the order of the stream, and few elements serve many threads: each write takes
/// the oldest element out of a queue and puts it back at the end. The threads share the words of
/// the queue, so this is dearer than a [`LanedSensor`](crate::LanedSensor), above all when several
/// write at the same moment. A thread that is preempted or dies during a write delays no other
/// thread.
///
/// ```
/// use overhear::{ConcurrentSensor, Element};
///
/// #[derive(Element)]
/// #[repr(C)]
/// struct Granted {
///     lock: u64,
/// }
///
/// let sensor = ConcurrentSensor::<Granted>::builder("granted").writers(4).register()?;
/// std::thread::scope(|scope| {
///     for lock in 0..4 {
///         let sensor = &sensor;
///         scope.spawn(move || sensor.write(&Granted { lock }));
///     }
/// });
/// # Ok::<(), overhear::SensorError>(())
/// ```
///
/// # Signal handlers
///
/// A handler may write, too, also in the middle of a write to the same sensor: each write has an
/// element of its own.
#[derive(Debug)]
pub struct ConcurrentSensor<E> {
    open: Box<OpenQueue>,
    elements: PhantomData<fn(&E)>,
}

impl<E: Element> ConcurrentSensor<E> {
    /// Settings of a sensor with this id: what it measures.
    #[must_use]
    pub fn builder(id: &str) -> ConcurrentSensorBuilder<E> {
        ConcurrentSensorBuilder {
            id: id.to_string(),
            instance: String::new(),
            rate: None,
            capacity: 0,
            writers: 0,
            elements: PhantomData,
        }
    }

    /// Appends an element. Lock-free; a thread's first write reads its thread id, unless
    /// [`prepare_thread`](crate::prepare_thread) did.
    ///
    /// # Errors
    /// [`Refused::Full`], counted, or [`Refused::Off`]: nothing was written.
    #[inline(always)]
    pub fn write(&self, element: &E) -> Result<(), Refused> {
        if !self.open.is_enabled() {
            return Err(Refused::Off);
        }
        self.write_on(element)
    }

    /// A write of an enabled sensor. Not inlined: a call is cheap compared with the atomic
    /// operations, and inlined it uses so much of the register file that a loop with a disabled
    /// sensor is slower.
    #[inline(never)]
    fn write_on(&self, element: &E) -> Result<(), Refused> {
        self.open.write_on(element.as_bytes())
    }

    /// Begins an element, to be committed later, by this or another thread. Dropping the guard
    /// abandons it: monitors do not see it.
    ///
    /// # Errors
    /// As for [`Self::write`]: nothing was begun.
    #[inline(always)]
    pub fn begin(&self) -> Result<ConcurrentWrite<'_, E>, Refused> {
        let open = &*self.open;
        if !open.is_enabled() {
            return Err(Refused::Off);
        }
        Ok(ConcurrentWrite {
            taken: open.writer.take()?,
            clock: open.clock,
            elements: PhantomData,
        })
    }

    /// Waits until the declared rate (T, D, tau), which is that of all threads together, allows the
    /// calling thread the next element; returns how long. See
    /// [`Sensor::pace`](crate::Sensor::pace).
    ///
    /// If all threads ask before each element, the whole stream keeps the rate: a thread that was
    /// allowed its element has the turn until that is written, it waits again, or a second has
    /// passed, and the others wait. Only a thread that is held up for longer than that second may
    /// then come too close to another. Threads have their turns in no particular order. While the
    /// sensor is switched off nothing is waited for. Takes a lock and may sleep; not for real-time
    /// threads.
    ///
    /// # Errors
    /// [`PaceError`] if the sensor has declared no rate.
    pub fn pace(&self) -> Result<Nanos, PaceError> {
        self.open.pace()
    }

    /// Whether the sensor is switched on: one load, so that an observation that costs something can
    /// be left out while no monitor needs it. See
    /// [`Sensor::is_enabled`](crate::Sensor::is_enabled).
    #[inline(always)]
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.open.is_enabled()
    }

    /// Registers a sensor that no directory owns again; see
    /// [`Sensor::register_again`](crate::Sensor::register_again).
    ///
    /// # Errors
    /// [`SensorError`] if the directory's stream makes no sense; the sensor goes on as it was.
    pub fn register_again(&mut self) -> Result<bool, SensorError> {
        self.open.register_again()
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.open.stream.is_connected()
    }

    /// Why no monitor can read the sensor; `None` if a directory owns its stream.
    #[must_use]
    pub fn not_connected_reason(&self) -> Option<&str> {
        self.open.stream.not_connected_reason()
    }
}

/// An element that was begun and is not committed: see [`ConcurrentSensor::begin`].
#[derive(Debug)]
#[must_use = "dropping it abandons the element"]
pub struct ConcurrentWrite<'a, E> {
    taken: Taken<'a, SharedWords>,
    clock: ClockId,
    elements: PhantomData<fn(&E)>,
}

impl<E: Element> ConcurrentWrite<'_, E> {
    /// Puts the values in place. The last call before the commit counts.
    #[inline(always)]
    pub fn fill(&mut self, element: &E) {
        self.taken.fill(element.as_bytes());
    }

    /// Fills, stamps and publishes the element, as one of the calling thread.
    #[inline(always)]
    pub fn commit(mut self, element: &E) {
        self.fill(element);
        let clock = self.clock;
        self.taken.commit(thread::identify().tid, || stamp(clock));
    }
}

/// See [`ConcurrentSensor::builder`].
#[derive(Clone, Debug)]
pub struct ConcurrentSensorBuilder<E> {
    id: String,
    instance: String,
    rate: Option<Rate>,
    capacity: u64,
    writers: u32,
    elements: PhantomData<fn(&E)>,
}

impl<E: Element> ConcurrentSensorBuilder<E> {
    /// Which one of several sensors with the same id this is.
    #[must_use]
    pub fn instance(mut self, instance: &str) -> Self {
        self.instance = instance.to_string();
        self
    }

    /// Declares the rate (T, D, tau) of all threads together: the directory sizes the queue by it.
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the minimum number of elements that monitors can read.
    #[must_use]
    pub const fn capacity(mut self, elements: u64) -> Self {
        self.capacity = elements;
        self
    }

    /// How many elements may be in the hands of threads at the same time, those of threads that
    /// died there included. They are added to the capacity, which is rounded up to a power of two
    /// and at most 65,536. Default: twice the number of CPUs, at least 16.
    #[must_use]
    pub const fn writers(mut self, writers: u32) -> Self {
        self.writers = writers;
        self
    }

    /// Registers the sensor. Cold: allocates, calls the kernel, may wait for the directory.
    ///
    /// Without a directory the sensor works all the same, not connected: that is no error.
    ///
    /// # Errors
    /// [`SensorError`] if the schema does not describe the type, a number is out of range or there
    /// is no memory.
    pub fn register(self) -> Result<ConcurrentSensor<E>, SensorError> {
        let request = SensorRequest {
            sensor: self.id,
            instance: self.instance,
            schema: check_schema::<E>()?,
            rate: self.rate,
            capacity: self.capacity,
            kind: WriterKind::Concurrent,
            lanes: 0,
        };
        Ok(ConcurrentSensor {
            open: Box::new(OpenQueue::open(request, self.writers)?),
            elements: PhantomData,
        })
    }
}

#[cfg(test)]
mod tests;
