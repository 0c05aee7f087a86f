// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sensor for many threads: each writes a lane of its own.

use std::marker::PhantomData;
use std::mem::offset_of;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use overhear_directory::client::SensorRequest;
use overhear_directory::Mapping;
use overhear_event::{ClockId, Nanos, Rate, WriterKind};
use overhear_stream::{
    Frame, KeptWords, Lane, LaneClaims, LanePool, LayoutError, Remembered, SensorKey, Shape,
    SharedWords, Switch,
};

use crate::element::Element;
use crate::pace::{sleep_until_none_is_left, Pace, PaceError};
use crate::sensor::{check_schema, is_on, stamp, OpenStream, SensorError};
use crate::{fork, thread};

/// A write was refused. Nothing was published; the program goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Another write of the same thread is open: a signal handler, or a function called between
    /// begin and commit, wrote to the same sensor. Counted in the lane's `lost_nested`.
    #[error("this thread is inside another write to the sensor; commit that one first")]
    Nested,
    /// All lanes belong to other threads. Counted in the sensor's `lost_full`.
    #[error("the sensor has no lane left for this thread; register it with more lanes")]
    NoLane,
    /// All elements of a concurrent sensor are in the hands of threads. Counted in its `lost_full`.
    #[error("the sensor has no element left for this write; register it with more writers")]
    Full,
    /// The sensor is switched off. This is not a loss.
    #[error("the sensor is switched off")]
    Off,
}

/// `oh_laned_sensor`: what the inline functions of `laned.h` use, then what the library needs.
///
/// Shared by all threads; none of them changes it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct OpenLanes {
    switch: Switch,
    key: SensorKey,
    // From the thread pointer to the entry of this sensor in the thread's slot.
    entry_distance: usize,
    // `lane_count` of them, owned by `states`.
    lanes: *const Lane<SharedWords>,
    lane_count: u32,
    payload_size: u32,
    clock_id: u32,
    reserved0: u32,
    reserved1: [u64; 2],
    // After the 64 bytes that C accesses. Dropped before the memory that it points into.
    clock: ClockId,
    states: Box<[Lane<SharedWords>]>,
    claims: LaneClaims<SharedWords, KeptWords<Arc<Mapping>>>,
    // Of each lane whose thread has called `pace`; it belongs to the lane.
    paces: Box<[Mutex<Option<Pace>>]>,
    pub(crate) stream: OpenStream,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(OpenLanes, switch) == 0);
    assert!(offset_of!(OpenLanes, key) == 8);
    assert!(offset_of!(OpenLanes, entry_distance) == 16);
    assert!(offset_of!(OpenLanes, lanes) == 24);
    assert!(offset_of!(OpenLanes, lane_count) == 32);
    assert!(offset_of!(OpenLanes, payload_size) == 36);
    assert!(offset_of!(OpenLanes, clock_id) == 40);
    assert!(offset_of!(OpenLanes, clock) >= 64);
};

// SAFETY: `lanes` points to the memory of `states`, which moves along; the rest is Send.
unsafe impl Send for OpenLanes {}
// SAFETY: as for Send; lanes are shared by references, and only the thread that has claimed one
// writes it, which is a matter of meaning and not of memory: all of it is atomic words.
unsafe impl Sync for OpenLanes {}

impl OpenLanes {
    /// Registers, or falls back to private memory.
    pub(crate) fn open(mut request: SensorRequest) -> Result<Self, SensorError> {
        request.kind = WriterKind::Laned;
        if request.lanes == 0 {
            request.lanes = default_lanes();
        }
        // A child's threads are others than the parent's, whether the sensor is connected or not.
        fork::install();
        Self::of(OpenStream::open(request)?)
    }

    fn of(stream: OpenStream) -> Result<Self, SensorError> {
        let Shape::Laned(pool) = stream.shape else {
            return Err(LayoutError::BadLanes(0).into());
        };
        // SAFETY: the mapping is owned by `stream`, a field of the same value that is dropped after
        // the words.
        let words = || unsafe { stream.mapping.words() };
        let claims = LaneClaims::new(words(), pool, stream.control()?)?;
        let states = (0..pool.lanes())
            .map(|lane| Lane::new(lane_words(&stream, &pool, lane)?, *pool.lane()))
            .collect::<Result<Box<[_]>, LayoutError>>()?;
        let key = SensorKey::fresh();
        Ok(Self {
            switch: stream.switch,
            key,
            entry_distance: thread::entry_distance(key),
            lanes: states.as_ptr(),
            lane_count: pool.lanes(),
            payload_size: u32::try_from(pool.lane().payload_bytes()).unwrap_or(u32::MAX),
            clock_id: stream.clock.as_raw(),
            reserved0: 0,
            reserved1: [0; 2],
            clock: stream.clock,
            paces: states.iter().map(|_| Mutex::new(None)).collect(),
            states,
            claims,
            stream,
        })
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

    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        is_on(self.switch, || self.skip())
    }

    /// Counts a write of the calling thread that a budget keeps from being made.
    #[cold]
    #[inline(never)]
    fn skip(&self) {
        // A thread without a lane is counted as refused.
        if let Ok(lane) = self.lane() {
            lane.skip();
        }
    }

    /// Whether it is switched on; nothing is counted.
    fn can_write(&self) -> bool {
        is_on(self.switch, || {})
    }

    /// The lane of the calling thread.
    #[inline(always)]
    fn lane(&self) -> Result<&Lane<SharedWords>, Refused> {
        // SAFETY: the distance was computed for this key.
        let lane = unsafe { thread::lane(self.entry_distance, self.key) };
        if lane >= u64::from(self.lane_count) {
            return self.claim().ok_or(Refused::NoLane);
        }
        // SAFETY: `states` has `lane_count` lanes and lives as long as `self`.
        Ok(unsafe { &*self.lanes.add(lane as usize) })
    }

    /// Appends an element of the calling thread. Its size is that of the schema.
    #[inline(always)]
    pub(crate) fn write(&self, payload: &[u8]) -> Result<(), Refused> {
        if !self.is_enabled() {
            return Err(Refused::Off);
        }
        let (lane, clock) = (self.lane()?, self.clock);
        lane.write(Frame::here(), is_abandoned, payload, || stamp(clock))
            .map_err(|_| Refused::Nested)
    }

    /// The lane of a thread that has none, or does not remember it; a refusal is counted.
    #[cold]
    #[inline(never)]
    pub(crate) fn claim(&self) -> Option<&Lane<SharedWords>> {
        let lane = self.find();
        if lane.is_none() {
            self.claims.refuse();
        }
        lane
    }

    /// The same, and nothing is refused.
    fn find(&self) -> Option<&Lane<SharedWords>> {
        let slot = thread::slot();
        let hopeless = slot.recall(self.key) == Remembered::NoLane && self.claims.is_exhausted();
        let lane = (!hopeless).then(|| {
            let thread = thread::identify();
            let lane = self
                .claims
                .claim(thread, |lane| self.states[lane as usize].take(thread.tid));
            slot.remember(self.key, lane);
            lane
        });
        lane.flatten().map(|lane| &self.states[lane as usize])
    }

    /// How long the calling thread is to wait until the declared rate allows the next element in
    /// its lane; zero allows it, also where it cannot write: the sensor is off, or has no lane
    /// left.
    pub(crate) fn pace_left(&self) -> Result<Nanos, PaceError> {
        let (stream, Shape::Laned(pool)) = (&self.stream, self.stream.shape) else {
            return Err(PaceError);
        };
        if stream.rate().is_none() {
            return Err(PaceError);
        }
        // In a forked child another thread may have held the lock when it was forked.
        if !self.can_write() || !stream.is_own() {
            return Ok(Nanos::ZERO);
        }
        // SAFETY: the distance was computed for this key.
        let has_stack = unsafe { thread::lane(self.entry_distance, self.key) };
        let has_stack = usize::try_from(has_stack).ok();
        let lane = has_stack.and_then(|lane| self.states.get(lane));
        let Some(lane) = lane.or_else(|| self.find()) else {
            return Ok(Nanos::ZERO);
        };
        let is_it = |state: &Lane<SharedWords>| std::ptr::eq(state, lane);
        let Some(index) = self.states.iter().position(is_it) else {
            return Ok(Nanos::ZERO);
        };
        let words = lane_words(stream, &pool, narrow(index)).map_err(|_| PaceError)?;
        let count = lane.count();
        // No other thread has this lane, so the lock is free.
        let pace = &mut *self.paces[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let pace = match pace {
            Some(pace) => pace,
            none => none.insert(Pace::of(stream, count)?),
        };
        Ok(pace.left(count, || {
            pool.lane().own_stamp(&words, count.wrapping_sub(1))
        }))
    }

    /// Waits until none is left; returns how long.
    pub(crate) fn pace(&self) -> Result<Nanos, PaceError> {
        if self.pace_left()? == Nanos::ZERO {
            return Ok(Nanos::ZERO);
        }
        Ok(sleep_until_none_is_left(|| {
            self.pace_left().unwrap_or(Nanos::ZERO)
        }))
    }

    /// Opens a write in the calling thread's lane and returns the position of its element.
    #[inline(always)]
    pub(crate) fn begin_in(&self, lane: &Lane<SharedWords>, frame: Frame) -> Result<u64, Refused> {
        let clock = self.clock;
        let position = lane.begin(frame, is_abandoned, || stamp(clock));
        position.map_err(|_| Refused::Nested)
    }

    /// Claims a lane for the calling thread and touches its memory.
    pub(crate) fn prepare_thread(&self) -> Result<(), Refused> {
        let lane = self.lane()?;
        // A sensor that waits for memory has none to touch.
        if !self.stream.is_deferred() {
            lane.fault_in();
        }
        Ok(())
    }
}

/// The number of a lane, all of which are bounded by the pool.
fn narrow(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

/// The words of one lane.
fn lane_words(stream: &OpenStream, pool: &LanePool, lane: u32) -> Result<SharedWords, LayoutError> {
    let (start, bytes) = (pool.lane_offset(lane), pool.lane_stride_bytes());
    if start + bytes > stream.mapping.bytes() {
        return Err(LayoutError::TooSmall {
            found: stream.mapping.bytes() as u64,
            needed: (start + bytes) as u64,
        });
    }
    // SAFETY: in bounds by the lines above, and aligned, because lanes are whole pages; the mapping
    // lives in the stream, which outlives the lanes, and is accessed through words alone.
    unsafe {
        let base = stream.mapping.base().add(start).cast();
        Ok(SharedWords::new(base, bytes / 8))
    }
}

/// Default number of lanes: twice the number of CPUs.
fn default_lanes() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(8, NonZeroUsize::get);
    u32::try_from(2 * cpus).unwrap_or(u32::MAX).clamp(16, 1024)
}

/// Whether the write that was begun in `open` has been abandoned, seen from `now`: rare, and
/// allowed to enter the kernel. The first of these that applies decides.
///
/// - Opened on the alternate signal stack, now elsewhere: a handler was left by a jump, for while
///   it runs everything that interrupts it runs on its stack as well.
/// - Both on the alternate stack, or both elsewhere, and `now` is not deeper: see
///   [`Frame::is_not_deeper`].
/// - The word at the place of `open` is known and has changed: the function has ended.
/// - Else the open write may be alive and is taken for it.
///
/// A stack of the program's own making (coroutines, `SS_AUTODISARM`) is none of the kernel's
/// business, so its addresses are compared as if they were of the same stack. What is decided
/// wrongly in one direction is refused and counted at once; in the other, the open write becomes a
/// void element, and its commit is refused and counted.
pub(crate) fn is_abandoned(open: Frame, now: Frame) -> bool {
    let mut stack = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: only reads, into valid memory. Async-signal safe.
    let result = unsafe { libc::sigaltstack(std::ptr::null(), &mut stack) };
    let on_alternate = result == 0 && stack.ss_flags & libc::SS_ONSTACK != 0;
    let has_stack = result == 0 && stack.ss_flags & libc::SS_DISABLE == 0;
    let (start, size) = (stack.ss_sp.addr() as u64, stack.ss_size as u64);
    let opened_there = has_stack && open.address().wrapping_sub(start) < size;
    if opened_there && !on_alternate {
        return true;
    }
    let ended = || {
        let witness = open.witness()?;
        Some(word_at(open.address())? as u32 != witness)
    };
    (opened_there == on_alternate && now.is_not_deeper(open)) || ended().unwrap_or(false)
}

/// A word of the process's memory, `None` if nothing is mapped there any more: the stack that it
/// was on may have been given back. The kernel reads it, because that cannot fault.
fn word_at(address: u64) -> Option<u64> {
    let mut word = 0_u64;
    let local = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: size_of::<u64>(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: size_of::<u64>(),
    };
    // SAFETY: writes at most the word; what it reads the kernel checks. Async-signal safe.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (read == size_of::<u64>() as isize).then_some(word)
}

/// Writes elements of type `E` from many threads at once.
///
/// Each thread gets a lane of its own at its first write, out of a pool that is made at
/// registration: it shares no memory with other threads, does not wait and needs one `gettid`, or
/// none after [`Self::prepare_thread`]. Monitors see the lanes as one sensor. The lanes of threads
/// that have ended are given to others when the directory has noticed.
///
/// ```
/// use overhear::{Element, LanedSensor};
///
/// #[derive(Element)]
/// #[repr(C)]
/// struct Served {
///     bytes: u64,
/// }
///
/// let sensor = LanedSensor::<Served>::builder("served").lanes(4).register()?;
/// std::thread::scope(|scope| {
///     for _ in 0..4 {
///         scope.spawn(|| sensor.write(&Served { bytes: 1500 }));
///     }
/// });
/// # Ok::<(), overhear::SensorError>(())
/// ```
///
/// # Signal handlers
///
/// A handler may write, too. If it interrupts its thread in the middle of a write to the same
/// sensor, it is refused ([`Refused::Nested`]) and counted. A write that was left by `longjmp` is
/// found abandoned when the thread next begins one in a frame that is not deeper on the stack;
/// until then Rust cannot distinguish it from an open one, and writes from deeper frames are
/// refused and counted. (C has more information about its frames; see `laned.h`.)
#[derive(Debug)]
pub struct LanedSensor<E> {
    open: Box<OpenLanes>,
    elements: PhantomData<fn(&E)>,
}

impl<E: Element> LanedSensor<E> {
    /// Settings of a sensor with this id: what it measures.
    #[must_use]
    pub fn builder(id: &str) -> LanedSensorBuilder<E> {
        LanedSensorBuilder {
            id: id.to_string(),
            instance: String::new(),
            rate: None,
            capacity: 0,
            lanes: 0,
            elements: PhantomData,
        }
    }

    /// Appends an element to the calling thread's lane. Wait-free and real-time safe; a thread's
    /// first write searches the pool, lock-free, and reads its thread id.
    ///
    /// # Errors
    /// [`Refused`]: nothing was written, and what is a loss was counted.
    #[inline(always)]
    pub fn write(&self, element: &E) -> Result<(), Refused> {
        self.open.write(element.as_bytes())
    }

    /// Begins an element, to be filled and committed later. Dropping the guard gives the slot back.
    ///
    /// # Errors
    /// [`Refused`]: nothing was begun, and what is a loss was counted.
    #[inline(always)]
    pub fn begin(&self) -> Result<LanedWrite<'_, E>, Refused> {
        let open = &*self.open;
        if !open.is_enabled() {
            return Err(Refused::Off);
        }
        let (lane, clock) = (open.lane()?, open.clock);
        let frame = Frame::here().guarded();
        let position = open.begin_in(lane, frame)?;
        Ok(LanedWrite {
            lane,
            clock,
            frame,
            position,
            elements: PhantomData,
            thread: PhantomData,
        })
    }

    /// Claims a lane for the calling thread and touches its memory, so that no later write of this
    /// thread enters the kernel: no `gettid`, no page fault.
    ///
    /// # Errors
    /// [`Refused::NoLane`], counted: the writes will be refused as well until a lane becomes free.
    pub fn prepare_thread(&self) -> Result<(), Refused> {
        self.open.prepare_thread()
    }

    /// Waits until the declared rate (T, D, tau), which is that of each lane, allows the calling
    /// thread's next element; returns how long. See [`Sensor::pace`](crate::Sensor::pace).
    ///
    /// Threads do not wait for each other here: each lane is a stream of its own. Where the rate is
    /// meant for all threads together, use a [`ConcurrentSensor`](crate::ConcurrentSensor). It
    /// claims a lane for a thread that has none. Where nothing can be written, because the sensor
    /// is switched off or has no lane left, nothing is waited for. May sleep; not for real-time
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

    /// Whether a directory owns the streams, so that monitors can read them.
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

/// An element that was begun and is not committed: see [`LanedSensor::begin`].
///
/// It belongs to its thread. Until it is committed or dropped, other writes of this thread to the
/// same sensor are refused.
#[derive(Debug)]
#[must_use = "dropping it gives the slot back without an element"]
pub struct LanedWrite<'a, E> {
    lane: &'a Lane<SharedWords>,
    clock: ClockId,
    frame: Frame,
    position: u64,
    elements: PhantomData<fn(&E)>,
    // Not Send: the lane is that of one thread.
    thread: PhantomData<*const ()>,
}

impl<E: Element> LanedWrite<'_, E> {
    /// Puts the values in place. The last call before the commit counts.
    #[inline(always)]
    pub fn fill(&mut self, element: &E) {
        if self.lane.is_open(self.frame, self.position) {
            self.lane.fill(element.as_bytes());
        }
    }

    /// Fills, stamps and publishes the element.
    ///
    /// # Errors
    /// [`Refused::Nested`], counted: the guard was moved to a function that had called the one
    /// which began it, and that function began another write meanwhile.
    #[inline(always)]
    pub fn commit(mut self, element: &E) -> Result<(), Refused> {
        self.fill(element);
        let clock = self.clock;
        if !self.lane.is_open(self.frame, self.position) {
            self.lane.refuse();
            return Err(Refused::Nested);
        }
        self.lane.commit(|| stamp(clock));
        Ok(())
    }
}

impl<E> Drop for LanedWrite<'_, E> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.lane.is_open(self.frame, self.position) {
            self.lane.abandon();
        }
    }
}

/// See [`LanedSensor::builder`].
#[derive(Clone, Debug)]
pub struct LanedSensorBuilder<E> {
    id: String,
    instance: String,
    rate: Option<Rate>,
    capacity: u64,
    lanes: u32,
    elements: PhantomData<fn(&E)>,
}

impl<E: Element> LanedSensorBuilder<E> {
    /// Which one of several sensors with the same id this is.
    #[must_use]
    pub fn instance(mut self, instance: &str) -> Self {
        self.instance = instance.to_string();
        self
    }

    /// Declares the rate (T, D, tau) of each thread: the directory sizes the lanes by it.
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the minimum number of slots in each lane.
    #[must_use]
    pub const fn capacity(mut self, elements: u64) -> Self {
        self.capacity = elements;
        self
    }

    /// Number of threads that can write at the same time, 1 to 4096. Without it: twice as many as
    /// there are CPUs, at least 16.
    #[must_use]
    pub const fn lanes(mut self, lanes: u32) -> Self {
        self.lanes = lanes;
        self
    }

    /// Registers the sensor. Cold: allocates, calls the kernel, may wait for the directory.
    ///
    /// Without a directory the sensor works all the same, not connected: that is no error.
    ///
    /// # Errors
    /// [`SensorError`] if the schema does not describe the type, a number is out of range or there
    /// is no memory.
    pub fn register(self) -> Result<LanedSensor<E>, SensorError> {
        let schema = check_schema::<E>()?;
        let request = SensorRequest {
            sensor: self.id,
            instance: self.instance,
            schema,
            rate: self.rate,
            capacity: self.capacity,
            kind: WriterKind::Laned,
            lanes: self.lanes,
        };
        Ok(LanedSensor {
            open: Box::new(OpenLanes::open(request)?),
            elements: PhantomData,
        })
    }
}

#[cfg(test)]
mod tests;
