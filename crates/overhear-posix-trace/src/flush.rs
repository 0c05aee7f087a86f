// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flush of a stream to its log, by a thread of the controller.
//!
//! A flush begins with `FLUSH_START` in the stream, moves everything up to there into the log, and
//! ends with `FLUSH_STOP`. Writers go on meanwhile. Policy `FLUSH`: a writer that makes the stream
//! half full wakes the thread, which also checks the stream every [`FLUSH_PERIOD`].
//!
//! Locks are taken in the order control, log, reader.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overhear_event::GapCause;
use overhear_stream::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use rustix::time::Timespec;

use crate::futex::{self, Until};
use crate::log::{FinalStatus, LogError, LogHeader, LogState, LogWriter};
use crate::reader::Step;
use crate::stream::Stream;
use crate::{
    EventId, EventTypeSet, LostEvents, StreamFullPolicy, TraceError, TraceEvent, Truncation,
};

/// Longest time that events of a stream with the policy `FLUSH` stay in the stream.
const FLUSH_PERIOD: Duration = Duration::from_millis(100);
/// Time between two checks for a writer that is late.
const LATE_WRITER_INTERVAL: Duration = Duration::from_micros(200);

/// The log of a stream, and the thread that writes it.
#[derive(Debug)]
pub(crate) struct Flusher {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// All atomic accesses: SYNC(flush).
#[derive(Debug)]
struct Shared {
    /// Numbers of requested and of completed flushes: a flush is in progress while they differ.
    requested: AtomicU64,
    done: AtomicU64,
    is_flushing: AtomicBool,
    ending: AtomicBool,
    /// Error number that no status has reported, 0 if there is none.
    error: AtomicU32,
    is_full: AtomicBool,
    is_overrun: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    /// `None` after the end.
    writer: Option<LogWriter>,
    /// Event types whose names are in the log.
    defined: EventTypeSet,
    /// Error number of the last recorded event `ERROR`, 0 after a flush without error.
    recorded_error: i32,
    /// Position of the stream after the last flush, and the time of that flush.
    flushed: (u64, Instant),
}

/// The status of the log of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogStatus {
    pub(crate) flushing: bool,
    pub(crate) error: i32,
    pub(crate) full: bool,
    pub(crate) overrun: bool,
}

impl Flusher {
    /// Begins a log.
    ///
    /// # Errors
    /// Those of [`LogWriter::create`].
    pub(crate) fn create(file: OwnedFd, header: &LogHeader) -> Result<Self, LogError> {
        let log = Log {
            writer: Some(LogWriter::create(file, header)?),
            defined: EventTypeSet::EMPTY,
            recorded_error: 0,
            flushed: (0, Instant::now()),
        };
        let shared = Arc::new(Shared {
            requested: AtomicU64::new(0),
            done: AtomicU64::new(0),
            is_flushing: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            error: AtomicU32::new(0),
            is_full: AtomicBool::new(false),
            is_overrun: AtomicBool::new(false),
            log: Mutex::new(log),
        });
        Ok(Self {
            shared,
            thread: Mutex::new(None),
        })
    }

    /// Starts the thread, which no signal interrupts.
    ///
    /// # Errors
    /// [`TraceError`] `EAGAIN` if the system has too many threads.
    pub(crate) fn start(&self, stream: &Arc<Stream>) -> Result<(), TraceError> {
        let (stream, shared) = (Arc::clone(stream), Arc::clone(&self.shared));
        let before = block_signals();
        let thread = std::thread::Builder::new()
            .name("oh-trace-flush".to_owned())
            .spawn(move || shared.run(&stream));
        restore_signals(&before);
        let thread = thread.map_err(|error| {
            TraceError::new(
                libc::EAGAIN,
                format!("cannot start the thread that flushes the stream: {error}"),
            )
        })?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Requests a flush; the status shows its end.
    pub(crate) fn request(&self, stream: &Stream) {
        self.shared.requested.fetch_add(1, Ordering::SeqCst);
        stream.slot().wake();
    }

    /// The status of the log. The error and the overrun are reported once.
    pub(crate) fn status(&self) -> LogStatus {
        let shared = &self.shared;
        LogStatus {
            flushing: shared.is_flushing(),
            error: shared.error.swap(0, Ordering::SeqCst) as i32,
            full: shared.is_full.load(Ordering::SeqCst),
            overrun: shared.is_overrun.swap(false, Ordering::SeqCst),
        }
    }

    /// Whether the log is full, and events are discarded.
    pub(crate) fn is_full(&self) -> bool {
        self.shared.is_full.load(Ordering::SeqCst)
    }

    /// Removes everything from the log. The caller clears the stream while the value lives.
    pub(crate) fn clear(&self) -> impl Drop + '_ {
        let mut log = lock(&self.shared.log);
        if let Some(writer) = &mut log.writer {
            if let Err(error) = writer.clear() {
                self.shared.fail(&error);
            }
        }
        self.shared.is_full.store(false, Ordering::SeqCst);
        self.shared.is_overrun.store(false, Ordering::SeqCst);
        log
    }

    /// Ends the thread, flushes the rest, and completes the log.
    ///
    /// # Errors
    /// Those of [`LogWriter::finish`].
    pub(crate) fn end(&self, stream: &Stream, status: &FinalStatus) -> Result<(), TraceError> {
        self.shared.ending.store(true, Ordering::SeqCst);
        if let Some(thread) = lock(&self.thread).take() {
            stream.slot().wake();
            let _ = thread.join();
        }
        let mut log = lock(&self.shared.log);
        self.shared.move_events(stream, &mut log, u64::MAX);
        for event in EventTypeSet::ALL.iter() {
            self.shared.define(stream, &mut log, event);
        }
        let status = FinalStatus {
            flush_error: self.shared.error.load(Ordering::SeqCst) as i32,
            log_full: self.is_full(),
            log_overrun: self.shared.is_overrun.load(Ordering::SeqCst),
            ..*status
        };
        match log.writer.take() {
            Some(writer) => Ok(writer.finish(&status)?),
            None => Ok(()),
        }
    }
}

impl Shared {
    fn is_flushing(&self) -> bool {
        self.is_flushing.load(Ordering::SeqCst)
            || self.requested.load(Ordering::SeqCst) != self.done.load(Ordering::SeqCst)
    }

    /// The thread.
    fn run(&self, stream: &Stream) {
        let slot = stream.slot();
        let period = Timespec {
            tv_sec: 0,
            tv_nsec: FLUSH_PERIOD.subsec_nanos().into(),
        };
        slot.begin_wait(true);
        while !self.ending.load(Ordering::SeqCst) {
            let value = futex::value(slot.wakes());
            let requested = self.requested.load(Ordering::SeqCst);
            if requested != self.done.load(Ordering::SeqCst) || self.is_due(stream) {
                self.flush(stream);
                self.done.store(requested, Ordering::SeqCst);
            } else {
                futex::wait(slot.wakes(), value, Until::Span(period));
            }
        }
        slot.end_wait(true);
    }

    /// Whether the policy demands a flush now.
    fn is_due(&self, stream: &Stream) -> bool {
        if stream.policy() != StreamFullPolicy::Flush {
            return false;
        }
        let (position, since) = lock(&self.log).flushed;
        let written = stream.written();
        let is_half_full = written.wrapping_sub(position) >= stream.capacity() / 2;
        let is_stopped = stream.slot().is_stopped();
        // Events of the kernel are in its own buffers, which report no fill level.
        let has_more = written != position || stream.has_kernel();
        is_half_full || is_stopped || (has_more && since.elapsed() >= FLUSH_PERIOD)
    }

    fn flush(&self, stream: &Stream) {
        self.is_flushing.store(true, Ordering::SeqCst);
        let was_full = self.is_full.load(Ordering::SeqCst);
        {
            let mut log = lock(&self.log);
            stream.record_flush(EventId::FLUSH_START, &[]);
            let until = stream.written();
            self.move_events(stream, &mut log, until);
            let mut number = 0;
            if let Some(Err(error)) = log.writer.as_mut().map(LogWriter::flush) {
                self.fail(&error);
                number = error.errno();
            }
            // Once for an error that lasts: each event would make another flush due.
            if number != 0 && number != log.recorded_error {
                stream.record_flush(EventId::ERROR, &number.to_ne_bytes());
            }
            log.recorded_error = number;
            stream.record_flush(EventId::FLUSH_STOP, &[]);
            log.flushed = (stream.written(), Instant::now());
        }
        if !was_full && self.is_full.load(Ordering::SeqCst) {
            stream.stop_for_log();
        }
        self.is_flushing.store(false, Ordering::SeqCst);
    }

    /// Moves events into the log, up to a position of the stream or until there is none.
    fn move_events(&self, stream: &Stream, log: &mut Log, until: u64) {
        loop {
            let mut reader = stream.reader();
            if reader.is_behind(until) && !stream.slot().is_stopped() {
                return;
            }
            let step = reader.step(stream.slot());
            stream.report_kernel_failure(&mut reader);
            match step {
                Step::Event => {
                    let loss = reader.take_loss();
                    if let Some(event) = reader.current() {
                        self.write(stream, log, &event, loss);
                    }
                }
                Step::Empty => return,
                Step::Late => {
                    drop(reader);
                    std::thread::sleep(LATE_WRITER_INTERVAL);
                }
            }
        }
    }

    fn write(
        &self,
        stream: &Stream,
        log: &mut Log,
        event: &TraceEvent<'_>,
        loss: Option<LostEvents>,
    ) {
        self.define(stream, log, event.event);
        let Some(writer) = &mut log.writer else {
            return;
        };
        if let Some(loss) = loss {
            let lost = writer.lost(loss);
            self.note(lost);
        }
        let was_full = self.is_full.load(Ordering::SeqCst);
        self.note(writer.event(event));
        if !was_full && self.is_full.load(Ordering::SeqCst) {
            // The last event of a full log.
            let stop = TraceEvent {
                event: EventId::STOP,
                tid: 0,
                thread: 0,
                address: 0,
                truncation: Truncation::None,
                data: &1_i32.to_ne_bytes(),
                ..*event
            };
            self.note(writer.event(&stop));
        }
    }

    fn note(&self, result: Result<LogState, LogError>) {
        match result {
            Ok(state) => {
                self.is_full.store(state.full, Ordering::SeqCst);
                if state.overrun {
                    self.is_overrun.store(true, Ordering::SeqCst);
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&self, error: &LogError) {
        self.error.store(error.errno() as u32, Ordering::SeqCst);
    }

    /// Writes the name of an event type to the log, if it has one.
    fn define(&self, stream: &Stream, log: &mut Log, event: EventId) {
        if log.defined.contains(event) {
            return;
        }
        let (Some(name), Some(writer)) = (stream.event_name(event), &mut log.writer) else {
            return;
        };
        match writer.define(event, &name) {
            Ok(()) => log.defined.insert(event),
            Err(error) => self.fail(&error),
        }
    }
}

/// The cause of losses in a ring, as logs name it.
pub(crate) const fn gap_cause(cause: overhear_stream::LossCause) -> GapCause {
    match cause {
        overhear_stream::LossCause::Overwritten => GapCause::Overwritten,
        overhear_stream::LossCause::Damaged => GapCause::Corrupt,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn block_signals() -> libc::sigset_t {
    // SAFETY: the sets are valid memory; filling one and changing the thread's mask has no other
    // conditions.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    }
}

fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: a set that `block_signals` filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}
