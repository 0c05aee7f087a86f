// SPDX-License-Identifier: MIT OR Apache-2.0
//! An active stream in its controller.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overhear_event::{ClockId, Ticks, Timestamp};
use overhear_stream::sync::{AtomicBool, AtomicU64, Ordering};
use overhear_stream::{
    EventRecord, EventRing, KeptWords, WhenFull, MAX_EVENT_DATA, MAX_RING_CAPACITY,
};
use rustix::time::Timespec;

use crate::area::{Area, AreaLock, Mapping, Slot, SlotConfig, SlotOwner, SlotState};
use crate::areas::{area_of_process, Target};
use crate::clock::{monotonic_now, realtime_now_ns, stamp};
use crate::flush::{Flusher, LogStatus};
use crate::futex::{self, Until, Woken};
use crate::kernel::KernelRecorder;
use crate::local::{geometry, oh_posix_trace_thread_id_, order_writers};
use crate::log::{FinalStatus, LogHeader, LogWriter};
use crate::reader::{filter_bytes, Reader, Step};
use crate::ticket::Ticket;
use crate::{process, Attributes, EventId, EventTypeSet, StreamFullPolicy, TraceError, TraceEvent};

/// The status of a stream: `posix_trace_get_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStatus {
    /// Events are recorded.
    pub running: bool,
    /// The ring has no free slot for the next event.
    pub full: bool,
    /// Events were lost since the previous status.
    pub overrun: bool,
    /// The stream is being flushed to its log.
    pub flushing: bool,
    /// Error number of a flush since the previous status, 0 if none failed.
    pub flush_error: i32,
    /// The log has reached log-max-size.
    pub log_full: bool,
    /// Events were lost in the log since the previous status.
    pub log_overrun: bool,
}

/// A change of the filter: `posix_trace_set_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterChange {
    /// The set is the new filter.
    Set,
    /// The set is added to the filter.
    Add,
    /// The set is taken out of the filter.
    Subtract,
}

/// The longest wait for an event.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// Not at all.
    Try,
    /// Until there is one.
    Forever,
    /// Until a time of `CLOCK_REALTIME`: seconds and nanoseconds.
    Until(i64, i64),
}

/// An active stream. It is shut down when it is dropped.
///
/// ```
/// use overhear_posixtrace::{record, ActiveStream, Attributes, EventId, Wait};
///
/// let began = overhear_posixtrace::open_event_type(b"request began")?;
/// let stream = ActiveStream::create(0, &Attributes::default())?;
/// stream.start()?;
/// record(began, &7_u32.to_ne_bytes());
/// let first = stream.next_event(Wait::Try, |event| event.event)?;
/// assert_eq!(first, Some(EventId::START));
/// let second = stream.next_event(Wait::Try, |event| (event.event, event.data.to_vec()))?;
/// assert_eq!(second, Some((began, 7_u32.to_ne_bytes().to_vec())));
/// # Ok::<(), overhear_posixtrace::TraceError>(())
/// ```
#[derive(Debug)]
pub struct ActiveStream {
    stream: Arc<Stream>,
}

impl std::ops::Deref for ActiveStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.stream
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        let _ = self.shut_down();
    }
}

/// The operations of controllers and analysers on an [`ActiveStream`].
#[derive(Debug)]
pub struct Stream {
    area: Arc<Area>,
    index: usize,
    attributes: Attributes,
    policy: StreamFullPolicy,
    target: u32,
    realtime_offset_ns: i64,
    clock: ClockId,
    ring: EventRing<KeptWords<Arc<Mapping>>>,
    ticket: Mutex<Option<Ticket>>,
    control: Mutex<Control>,
    reader: Mutex<Reader>,
    /// The event type that `eventtypelist_getnext_id` returns next.
    listed: AtomicU64,
    flusher: Option<Flusher>,
    /// Id of the process that created it: in children of `fork` the copy of the stream is invalid.
    creator: u32,
    /// Set when the stream is shut down.
    ended: AtomicBool,
    /// Number of calls that may be waiting for an event.
    inside: AtomicU64,
}

/// The state that the controller sets. Locked before the reader.
#[derive(Debug)]
struct Control {
    running: bool,
    filter: EventTypeSet,
    /// Number of lost events that a status has reported.
    reported: u64,
}

fn ended() -> TraceError {
    TraceError::invalid("the stream was shut down")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ActiveStream {
    /// Creates a stream for a process, 0 for the calling one. It is suspended, and its filter is
    /// empty.
    ///
    /// # Errors
    /// [`TraceError`]: `EAGAIN` if there are too many streams, `EINVAL`, `ENOMEM`, `EPERM`,
    /// `ESRCH`.
    pub fn create(pid: i32, attributes: &Attributes) -> Result<Self, TraceError> {
        let policy = attributes.stream_full.unwrap_or(StreamFullPolicy::Loop);
        if policy == StreamFullPolicy::Flush {
            return Err(TraceError::invalid(
                "POSIX_TRACE_FLUSH needs a log; use posix_trace_create_withlog",
            ));
        }
        let stream = Arc::new(Stream::create(pid, attributes, policy, None)?);
        Ok(Self { stream })
    }

    /// Creates a stream with a log, which replaces the content of a file; with `O_APPEND` it begins
    /// at the file's end. Events are read from the log alone.
    ///
    /// # Errors
    /// As [`ActiveStream::create`]; `EBADF` if the descriptor is not open for writing, `EINVAL` if
    /// the policy of the log does not permit its type, `ENOSPC`.
    pub fn create_with_log(
        pid: i32,
        attributes: &Attributes,
        log: BorrowedFd<'_>,
    ) -> Result<Self, TraceError> {
        LogWriter::check(log, attributes.log_full)?;
        let policy = attributes.stream_full.unwrap_or(StreamFullPolicy::Flush);
        let attributes = Attributes {
            stream_full: Some(policy),
            ..attributes.clone()
        };
        let file = log.try_clone_to_owned();
        let file = file.map_err(|error| TraceError::new(libc::EBADF, error))?;
        let stream = Stream::create(pid, &attributes, policy, Some(file))?;
        let stream = Self {
            stream: Arc::new(stream),
        };
        if let Some(flusher) = &stream.flusher {
            flusher.start(&stream.stream)?;
        }
        Ok(stream)
    }
}

impl Stream {
    fn create(
        pid: i32,
        attributes: &Attributes,
        policy: StreamFullPolicy,
        log: Option<OwnedFd>,
    ) -> Result<Self, TraceError> {
        let log2_capacity = log2_capacity(attributes)?;
        let Target { area, pid } = area_of_process(pid)?;
        let ticket = Ticket::take()?;
        let mut attributes = attributes.clone();
        attributes.creation_ns = realtime_now_ns();
        let now = monotonic_now().as_monotonic_ns();
        let about = SlotOwner {
            controller: std::process::id(),
            target: pid,
            has_log: log.is_some(),
            realtime_offset_ns: attributes.creation_ns as i64 - now as i64,
        };
        let clock = area.clock().unwrap_or(ClockId::Monotonic);
        attributes.clock_resolution_ns = 1;

        let lock = area.lock()?;
        area.sweep(&lock);
        let generation = area.next_generation(&lock);
        let config = SlotConfig::new(
            generation,
            log2_capacity,
            policy,
            attributes.max_data_size as u32,
        );
        let shape = geometry(config)
            .ok_or_else(|| TraceError::invalid("the sizes of the attributes are out of range"))?;
        let (index, reader, ring) = {
            let index = area.free_slot(generation, &lock).ok_or_else(|| {
                TraceError::new(
                    libc::EAGAIN,
                    "the process and its children have TRACE_SYS_MAX active streams already; shut \
                     one down",
                )
            })?;
            let memory = area.allocate_ring(index, shape.words() * 8)?;
            let damaged = |error| TraceError::new(libc::ENOMEM, error);
            let when_full = when_full(policy);
            let reader = Reader::new(memory.words(), shape, when_full, clock, pid);
            let ring = EventRing::new(memory.words(), shape);
            (index, reader.map_err(damaged)?, ring.map_err(damaged)?)
        };
        begin_stream(&area, index, config, &attributes, &about, &lock)?;
        drop(lock);
        // Without the lock: a pipe may make it wait.
        let flusher = match log.map(|file| Flusher::create(file, &log_header(&attributes, &about)))
        {
            None => None,
            Some(Ok(flusher)) => Some(flusher),
            Some(Err(error)) => {
                end_stream(&area, index)?;
                return Err(error.into());
            }
        };
        Ok(Self {
            area,
            index,
            attributes,
            policy,
            target: pid,
            realtime_offset_ns: about.realtime_offset_ns,
            clock,
            ring,
            ticket: Mutex::new(Some(ticket)),
            control: Mutex::new(Control {
                running: false,
                filter: EventTypeSet::EMPTY,
                reported: 0,
            }),
            reader: Mutex::new(reader),
            listed: AtomicU64::new(1),
            flusher,
            creator: process::known_pid(),
            ended: AtomicBool::new(false),
            inside: AtomicU64::new(0),
        })
    }

    pub(crate) fn slot(&self) -> Slot<'_> {
        self.area.slot(self.index)
    }

    pub(crate) fn reader(&self) -> MutexGuard<'_, Reader> {
        lock(&self.reader)
    }

    /// Position of the next event in the ring.
    pub(crate) fn written(&self) -> u64 {
        self.ring.written()
    }

    /// Maximum number of events in the ring.
    pub(crate) fn capacity(&self) -> u64 {
        self.ring.geometry().capacity()
    }

    pub(crate) const fn policy(&self) -> StreamFullPolicy {
        self.policy
    }

    fn check_creator(&self) -> Result<(), TraceError> {
        match process::known_pid() == self.creator {
            true => Ok(()),
            false => Err(TraceError::invalid(
                "the stream belongs to the process that created it; create one in this process",
            )),
        }
    }

    fn control(&self) -> Result<MutexGuard<'_, Control>, TraceError> {
        self.check_creator()?;
        let control = lock(&self.control);
        // SYNC(end)
        match self.ended.load(Ordering::SeqCst) {
            true => Err(ended()),
            false => Ok(control),
        }
    }

    /// The attributes, with the time of creation.
    #[must_use]
    pub const fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The process that is traced.
    #[must_use]
    pub const fn target(&self) -> u32 {
        self.target
    }

    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` at the creation: the difference between
    /// `posix_timestamp` and the time of an event.
    #[must_use]
    pub const fn realtime_offset_ns(&self) -> i64 {
        self.realtime_offset_ns
    }

    /// Starts the stream. A stream that runs or is full is left as it is.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn start(&self) -> Result<(), TraceError> {
        let mut control = self.control()?;
        if control.running || self.is_full() {
            return Ok(());
        }
        if self.record_system(
            EventId::START,
            &filter_bytes(control.filter),
            control.filter,
        ) {
            control.running = true;
            self.slot().set_state(SlotState::Running);
            self.area.open_gate(self.index, control.filter);
            let started = lock(&self.reader).kernel().map(KernelRecorder::start);
            self.report_kernel(started, control.filter);
        }
        Ok(())
    }

    /// Stops the stream. A stream that is suspended or full is left as it is.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn stop(&self) -> Result<(), TraceError> {
        let mut control = self.control()?;
        self.stop_locked(&mut control);
        Ok(())
    }

    fn stop_locked(&self, control: &mut Control) {
        if !control.running || self.is_full() {
            return;
        }
        self.area.close_gate(self.index);
        if let Some(kernel) = lock(&self.reader).kernel() {
            kernel.stop();
        }
        if self.record_system(EventId::STOP, &0_i32.to_ne_bytes(), control.filter) {
            control.running = false;
            self.slot().set_state(SlotState::Suspended);
        } else {
            // It became full before the gate was closed.
            self.area.open_gate(self.index, control.filter);
            let started = lock(&self.reader).kernel().map(KernelRecorder::start);
            self.report_kernel(started, control.filter);
        }
    }

    /// Records that not all events of the kernel can be recorded.
    fn report_kernel(&self, result: Option<Result<(), TraceError>>, filter: EventTypeSet) {
        if let Some(Err(error)) = result {
            crate::capi::set_last_error(&error);
            if !self.record_system(EventId::ERROR, &error.errno.to_ne_bytes(), filter) {
                self.slot().count_lost();
            }
        }
    }

    /// Records that the kernel monitor failed while it was read: its stream is damaged, or the
    /// monitor is gone.
    pub(crate) fn report_kernel_failure(&self, reader: &mut Reader) {
        let failure = reader.kernel().and_then(KernelRecorder::take_complaint);
        if let Some(message) = failure {
            let error = TraceError::new(libc::EIO, message);
            self.report_kernel(Some(Err(error)), self.slot().filter());
        }
    }

    /// Applies a change of the filter to the events of the kernel.
    fn filter_kernel(&self, old: EventTypeSet, new: EventTypeSet) {
        let mut reader = lock(&self.reader);
        let needs_kernel = !KernelRecorder::selection(EventTypeSet::EMPTY, old, new).is_empty();
        let changed = match needs_kernel {
            true => {
                let (inheritance, bytes) =
                    (self.attributes.inheritance, self.attributes.stream_size);
                let make = || KernelRecorder::new(self.target, inheritance, bytes as u64);
                Some(reader.kernel_or(make).change_filter(old, new))
            }
            false => reader.kernel().map(|kernel| kernel.change_filter(old, new)),
        };
        drop(reader);
        self.report_kernel(changed, new);
    }

    /// The log is full: its stream stops.
    pub(crate) fn stop_for_log(&self) {
        let mut control = lock(&self.control);
        self.area.close_gate(self.index);
        if let Some(kernel) = lock(&self.reader).kernel() {
            kernel.stop();
        }
        control.running = false;
        self.slot().set_state(SlotState::Suspended);
    }

    /// Records the beginning, an error or the end of a flush, if the ring has a free slot.
    pub(crate) fn record_flush(&self, event: EventId, data: &[u8]) {
        let filter = self.slot().filter();
        if !self.record_system(event, data, filter) {
            self.slot().count_lost();
        }
    }

    /// Requests a flush of the stream to its log. The status shows its end.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream has no log, or was shut down.
    pub fn flush(&self) -> Result<(), TraceError> {
        let _control = self.control()?;
        let flusher = self.flusher.as_ref();
        let flusher = flusher.ok_or_else(|| TraceError::invalid("the stream has no log"))?;
        flusher.request(self);
        Ok(())
    }

    /// The event types that are not recorded.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn filter(&self) -> Result<EventTypeSet, TraceError> {
        Ok(self.control()?.filter)
    }

    /// Changes the filter. In a running stream the change is recorded.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn set_filter(&self, set: EventTypeSet, how: FilterChange) -> Result<(), TraceError> {
        let mut control = self.control()?;
        let old = control.filter;
        let new = match how {
            FilterChange::Set => set,
            FilterChange::Add => old.union(set),
            FilterChange::Subtract => old.difference(set),
        };
        if control.running {
            let data = [filter_bytes(old), filter_bytes(new)].concat();
            if !self.record_system(EventId::FILTER, &data, new) {
                self.slot().count_lost();
            }
        }
        self.apply_filter(&mut control, new);
        self.filter_kernel(old, new);
        Ok(())
    }

    fn apply_filter(&self, control: &mut Control, filter: EventTypeSet) {
        control.filter = filter;
        self.slot().set_filter(filter);
        lock(&self.reader).set_filter(filter);
        if control.running {
            self.area.open_gate(self.index, filter);
        }
    }

    /// Discards all events. The stream is as after its creation, with an empty filter, except that
    /// it still runs if it did.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn clear(&self) -> Result<(), TraceError> {
        let mut control = self.control()?;
        self.apply_filter(&mut control, EventTypeSet::EMPTY);
        let _log = self.flusher.as_ref().map(Flusher::clear);
        let mut reader = lock(&self.reader);
        reader.clear(self.slot());
        control.reported = reader.losses().total() + self.slot().lost_full();
        Ok(())
    }

    /// The status. The overrun and the error of the flush are reported once.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn status(&self) -> Result<StreamStatus, TraceError> {
        let mut control = self.control()?;
        let log = self
            .flusher
            .as_ref()
            .map_or_else(LogStatus::default, Flusher::status);
        let reader = lock(&self.reader);
        let stopped = self.slot().is_stopped();
        let lost = reader.losses().total() + self.slot().lost_full();
        let overrun = lost > control.reported;
        control.reported = lost;
        Ok(StreamStatus {
            running: control.running && !stopped,
            full: stopped || reader.is_full(),
            overrun,
            flushing: log.flushing,
            flush_error: log.error,
            log_full: log.full,
            log_overrun: log.overrun,
        })
    }

    /// Events lost since the creation: found no room, and lost in the ring.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn lost(&self) -> Result<u64, TraceError> {
        let _control = self.control()?;
        Ok(lock(&self.reader).losses().total() + self.slot().lost_full())
    }

    fn is_full(&self) -> bool {
        let is_log_full = self.flusher.as_ref().is_some_and(Flusher::is_full);
        is_log_full || self.slot().is_stopped() || lock(&self.reader).is_full()
    }

    /// Records a system event; false if the ring has no free slot for it.
    fn record_system(&self, event: EventId, data: &[u8], filter: EventTypeSet) -> bool {
        if filter.contains(event) {
            return true;
        }
        let caller = std::process::id();
        let is_own = caller == self.target;
        let record = EventRecord {
            stamp: Ticks::from_raw(0),
            address: 0,
            thread: if is_own { this_thread() } else { 0 },
            pid: self.target,
            tid: if is_own {
                oh_posix_trace_thread_id_()
            } else {
                0
            },
            event: event.as_raw() as u16,
            flags: 0,
            data,
        };
        let is_hardware = self.clock != ClockId::Monotonic;
        let stamp = || Ticks::from_raw(stamp(is_hardware));
        let written = self.ring.write(&record, when_full(self.policy), stamp);
        if written.is_ok() {
            self.slot().wake_if_waiting();
        }
        written.is_ok()
    }

    /// Takes the next event and calls `read` with it; `None` if there is none and `wait` is
    /// [`Wait::Try`].
    ///
    /// # Errors
    /// [`TraceError`]: `EINVAL` if the stream was or is shut down, or the time is invalid and there
    /// is no event; `EINTR` if a signal handler ran; `ETIMEDOUT`.
    pub fn next_event<R>(
        &self,
        wait: Wait,
        read: impl FnOnce(TraceEvent<'_>) -> R,
    ) -> Result<Option<R>, TraceError> {
        if self.flusher.is_some() {
            return Err(TraceError::invalid(
                "the events of a stream with a log are in the log; shut the stream down and open the \
                 log",
            ));
        }
        self.check_creator()?;
        let _inside = Inside::new(self);
        let slot = self.slot();
        loop {
            match self.step()? {
                Found::Event(reader) => return Ok(reader.current().map(read)),
                Found::Late => match wait {
                    Wait::Try => return Ok(None),
                    _ => self.pause(wait)?,
                },
                Found::Empty => {
                    let until = match wait {
                        Wait::Try => return Ok(None),
                        Wait::Forever => Until::Woken,
                        Wait::Until(seconds, nanoseconds) => {
                            Until::Realtime(time(seconds, nanoseconds)?)
                        }
                    };
                    let value = futex::value(slot.wakes());
                    slot.begin_wait(false);
                    // The kernel does not wake the reader for its events: poll.
                    let is_ordered = order_writers() && lock(&self.reader).kernel().is_none();
                    // The writer of an event before the announcement does not wake the reader.
                    let woken = match self.step() {
                        Ok(Found::Empty) if is_ordered => futex::wait(slot.wakes(), value, until),
                        Ok(Found::Empty) => unordered_wait(slot, value, until),
                        Ok(Found::Event(reader)) => {
                            slot.end_wait(false);
                            return Ok(reader.current().map(read));
                        }
                        Ok(Found::Late) | Err(_) => Woken::Changed,
                    };
                    slot.end_wait(false);
                    after_wait(woken)?;
                }
            }
        }
    }

    /// Waits a little for a writer that has not finished.
    fn pause(&self, wait: Wait) -> Result<(), TraceError> {
        const LATE_WRITER_INTERVAL: Duration = Duration::from_micros(200);
        if let Wait::Until(seconds, nanoseconds) = wait {
            let time = time(seconds, nanoseconds)?;
            let now = realtime_now_ns();
            let until = u64::try_from(time.tv_sec)
                .unwrap_or(0)
                .saturating_mul(1_000_000_000);
            if until.saturating_add(time.tv_nsec as u64) <= now {
                return Err(timed_out());
            }
        }
        let nothing = AtomicU64::new(0);
        let span = Timespec {
            tv_sec: 0,
            tv_nsec: LATE_WRITER_INTERVAL.subsec_nanos().into(),
        };
        match futex::wait(&nothing, 0, Until::Span(span)) {
            Woken::Interrupted => Err(interrupted()),
            Woken::Changed | Woken::TimedOut => Ok(()),
        }
    }

    fn step(&self) -> Result<Found<'_>, TraceError> {
        // SYNC(end)
        if self.ended.load(Ordering::SeqCst) {
            return Err(ended());
        }
        let mut reader = lock(&self.reader);
        let step = reader.step(self.slot());
        self.report_kernel_failure(&mut reader);
        Ok(match step {
            Step::Event => Found::Event(reader),
            Step::Empty => Found::Empty,
            Step::Late => Found::Late,
        })
    }

    /// The name of an event type of the stream.
    #[must_use]
    pub fn event_name(&self, event: EventId) -> Option<Vec<u8>> {
        self.area.event_name(event)
    }

    /// The event type of a name, for all processes that are traced: a user event type, or one of
    /// Linux unless a user event type has its name. A new name defines a user event type.
    ///
    /// # Errors
    /// [`TraceError`]: `ENAMETOOLONG`, `EINVAL` if the stream was shut down.
    pub fn open_event_type(&self, name: &[u8]) -> Result<EventId, TraceError> {
        drop(self.control()?);
        let of_kernel = std::str::from_utf8(name).ok().and_then(EventId::kernel);
        match of_kernel {
            Some(event) if !self.area.has_name(name) => Ok(event),
            _ => self.area.open_name(name),
        }
    }

    /// The user event type of a name, for all processes that are traced.
    ///
    /// # Errors
    /// As [`Stream::open_event_type`].
    pub fn open_user_event_type(&self, name: &[u8]) -> Result<EventId, TraceError> {
        drop(self.control()?);
        self.area.open_name(name)
    }

    /// Whether the stream has a log.
    #[must_use]
    pub const fn has_log(&self) -> bool {
        self.flusher.is_some()
    }

    /// Whether the stream may get events of the kernel.
    pub(crate) fn has_kernel(&self) -> bool {
        self.reader()
            .kernel()
            .is_some_and(|kernel| kernel.is_active())
    }

    /// The next event type of the list of those that have a name.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn next_event_type(&self) -> Result<Option<EventId>, TraceError> {
        let _control = self.control()?;
        // Relaxed: changed under the lock of the control.
        let from = self.listed.load(Ordering::Relaxed) as u32;
        let mut rest = (from..EventId::COUNT as u32).filter_map(EventId::from_raw);
        let next = rest.find(|event| self.area.event_name(*event).is_some());
        let listed = next.map_or(EventId::COUNT as u32, |event| event.as_raw() + 1);
        // A type that is defined later is at the end of the list.
        if next.is_some() {
            self.listed.store(listed.into(), Ordering::Relaxed);
        }
        Ok(next)
    }

    /// Begins the list of event types again.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if the stream was shut down.
    pub fn rewind_event_types(&self) -> Result<(), TraceError> {
        let _control = self.control()?;
        self.listed.store(1, Ordering::Relaxed);
        Ok(())
    }

    /// Stops the stream, flushes it to its log, and frees its resources. Threads that wait for
    /// events get `EINVAL`.
    ///
    /// # Errors
    /// [`TraceError`] `EINVAL` if it was shut down already; errors of the log, like `ENOSPC`: the
    /// stream is shut down then, too.
    pub fn shut_down(&self) -> Result<(), TraceError> {
        let status = {
            let mut control = self.control()?;
            self.stop_locked(&mut control);
            self.area.close_gate(self.index);
            // SYNC(end): a reader that was counted before sees it, or the shutdown sees the reader.
            self.ended.store(true, Ordering::SeqCst);
            let full = self.is_full();
            let lost = self.reader().losses().total() + self.slot().lost_full();
            FinalStatus {
                full,
                overrun: lost > control.reported,
                ..FinalStatus::default()
            }
        };
        if let Some(kernel) = self.reader().kernel() {
            kernel.end();
        }
        // SYNC(end)
        while self.inside.load(Ordering::SeqCst) > 0 {
            self.slot().wake();
            std::thread::sleep(Duration::from_micros(50));
        }
        let completed = match &self.flusher {
            Some(flusher) => flusher.end(self, &status),
            None => Ok(()),
        };
        end_stream(&self.area, self.index)?;
        drop(lock(&self.ticket).take());
        completed
    }
}

/// A call that may wait. The resources of a stream are freed when no such call is left.
struct Inside<'a>(&'a Stream);

impl<'a> Inside<'a> {
    fn new(stream: &'a Stream) -> Self {
        // SYNC(end)
        stream.inside.fetch_add(1, Ordering::SeqCst);
        Self(stream)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // SYNC(end): when the shutdown sees no reader, all accesses of readers have ended.
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The calling thread as a `pthread_t`.
fn this_thread() -> u64 {
    // SAFETY: the function has no conditions.
    unsafe { libc::pthread_self() as u64 }
}

enum Found<'a> {
    Event(MutexGuard<'a, Reader>),
    Empty,
    Late,
}

/// Waits where the kernel cannot order writers: an event may come without a wake-up, so poll.
fn unordered_wait(slot: Slot<'_>, value: u64, until: Until) -> Woken {
    let often = Timespec {
        tv_sec: 0,
        tv_nsec: 5_000_000,
    };
    let woken = futex::wait(slot.wakes(), value, Until::Span(often));
    match (woken, until) {
        (Woken::TimedOut, Until::Realtime(time)) => {
            let passed = realtime_now_ns() as i128
                >= i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec);
            if passed {
                Woken::TimedOut
            } else {
                Woken::Changed
            }
        }
        (Woken::TimedOut, _) => Woken::Changed,
        (other, _) => other,
    }
}

fn after_wait(woken: Woken) -> Result<(), TraceError> {
    match woken {
        Woken::Changed => Ok(()),
        Woken::Interrupted => Err(interrupted()),
        Woken::TimedOut => Err(timed_out()),
    }
}

fn interrupted() -> TraceError {
    TraceError::new(
        libc::EINTR,
        "a signal handler ran during the wait; call again",
    )
}

fn timed_out() -> TraceError {
    TraceError::new(libc::ETIMEDOUT, "there was no event until the given time")
}

fn time(seconds: i64, nanoseconds: i64) -> Result<Timespec, TraceError> {
    if !(0..1_000_000_000).contains(&nanoseconds) {
        return Err(TraceError::invalid(format!(
            "tv_nsec is {nanoseconds}; it must be from 0 to 999,999,999"
        )));
    }
    // A time before the epoch has passed.
    let (tv_sec, tv_nsec) = if seconds < 0 {
        (0, 0)
    } else {
        (seconds, nanoseconds)
    };
    Ok(Timespec { tv_sec, tv_nsec })
}

fn end_stream(area: &Area, index: usize) -> Result<(), TraceError> {
    let lock = area.lock()?;
    area.end_stream(index, &lock);
    area.set_own(index, false, &lock);
    Ok(())
}

/// The header of the log of a stream.
fn log_header(attributes: &Attributes, about: &SlotOwner) -> LogHeader {
    let path = format!("/proc/{}/comm", about.target);
    #[expect(
        clippy::disallowed_methods,
        reason = "a file of the kernel, not of a recording"
    )]
    let comm = std::fs::read_to_string(path).unwrap_or_default();
    LogHeader {
        attributes: attributes.clone(),
        pid: about.target,
        comm: comm.trim_end().to_owned(),
        realtime_offset_ns: about.realtime_offset_ns,
        clock_resolution_ns: attributes.clock_resolution_ns,
    }
}

const fn when_full(policy: StreamFullPolicy) -> WhenFull {
    match policy {
        StreamFullPolicy::Loop => WhenFull::Overwrite,
        StreamFullPolicy::UntilFull | StreamFullPolicy::Flush => WhenFull::Refuse,
    }
}

/// The base-2 logarithm of the least capacity that holds all events of the stream size.
fn log2_capacity(attributes: &Attributes) -> Result<u32, TraceError> {
    if attributes.max_data_size > MAX_EVENT_DATA as usize {
        return Err(TraceError::invalid(format!(
            "the max-data-size is {} bytes; the maximum is {MAX_EVENT_DATA}",
            attributes.max_data_size
        )));
    }
    let bytes = attributes.event_bytes().unwrap_or(usize::MAX);
    let events = (attributes.stream_size / bytes).max(2).next_power_of_two() as u64;
    if events > MAX_RING_CAPACITY {
        return Err(TraceError::new(
            libc::ENOMEM,
            format!(
                "a stream-min-size of {} bytes is too large: a stream has at most {MAX_RING_CAPACITY} \
                 events",
                attributes.stream_size
            ),
        ));
    }
    Ok(events.trailing_zeros())
}

fn begin_stream(
    area: &Area,
    index: usize,
    config: SlotConfig,
    attributes: &Attributes,
    about: &SlotOwner,
    lock: &AreaLock<'_>,
) -> Result<(), TraceError> {
    let Some(member) = area.member_of(about.target, lock) else {
        area.free_ring(index);
        return Err(TraceError::new(
            libc::ESRCH,
            format!("process {} has ended", about.target),
        ));
    };
    area.close_gate(index);
    area.untrace(index, lock);
    area.slot(index).begin(config, attributes, about, lock);
    area.set_own(index, true, lock);
    member.mask().fetch_or(1 << index, Ordering::Relaxed);
    if about.target == about.controller {
        if let Some(local) = process::local() {
            local.prepare(index, config);
        }
    }
    Ok(())
}

/// The time of an event as `posix_timestamp`: nanoseconds of `CLOCK_REALTIME`.
pub(crate) fn realtime_ns(time: Timestamp, realtime_offset_ns: i64) -> u64 {
    time.as_monotonic_ns()
        .saturating_add_signed(realtime_offset_ns)
}
