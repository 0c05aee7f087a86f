// SPDX-License-Identifier: MIT OR Apache-2.0
//! The streams of this process by their identifiers of C.
//!
//! An identifier is never used twice, and one of the parent means nothing in the child of a fork.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use overhear_stream::sync::{AtomicU64, Ordering};

use crate::local::oh_posix_trace_thread_id_;
use crate::per_process::PerProcess;
use crate::prerecorded::Prerecorded;
use crate::{ActiveStream, TraceError};

/// The stream of an identifier.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Active(Arc<ActiveStream>),
    Prerecorded(OpenLog),
}

/// A log that a program has open.
#[derive(Clone, Debug)]
pub(crate) struct OpenLog(Arc<Mutex<Prerecorded>>);

impl OpenLog {
    /// Makes the log usable by several threads.
    pub(crate) fn new(log: Prerecorded) -> Self {
        Self(Arc::new(Mutex::new(log)))
    }

    /// Calls `body` with the log, one thread at a time.
    pub(crate) fn with<R>(&self, body: impl FnOnce(&mut Prerecorded) -> R) -> R {
        body(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Default)]
struct Streams {
    entries: BTreeMap<u64, Entry>,
    /// The threads that shut streams down, which have no identifier any more.
    ending: Vec<u32>,
}

/// A stream that the holder shuts down. The program does not exit before the value is dropped.
pub(crate) struct Ending(Arc<ActiveStream>);

impl std::ops::Deref for Ending {
    type Target = ActiveStream;

    fn deref(&self) -> &ActiveStream {
        &self.0
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut streams = streams();
        let thread = oh_posix_trace_thread_id_();
        let place = streams.ending.iter().position(|ending| *ending == thread);
        if let Some(place) = place {
            streams.ending.swap_remove(place);
        }
    }
}

/// How often the exit looks whether other threads have shut their streams down.
const PAUSE: Duration = Duration::from_millis(1);

static STREAMS: PerProcess<Mutex<Streams>> = PerProcess::new();
/// The last identifier that was assigned; the child of a fork continues from it.
static LAST: AtomicU64 = AtomicU64::new(0);

fn streams() -> MutexGuard<'static, Streams> {
    let streams = STREAMS.get_or_init(Mutex::default);
    streams.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Assigns an identifier to a stream.
pub(crate) fn add(entry: Entry) -> u64 {
    let trid = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    streams().entries.insert(trid, entry);
    trid
}

/// The stream of an identifier in this process.
///
/// # Errors
/// [`TraceError`] `EINVAL` if there is none.
pub(crate) fn get(trid: u64) -> Result<Entry, TraceError> {
    let _ = crate::process::own();
    let entry = streams().entries.get(&trid).cloned();
    entry.ok_or_else(|| unknown(trid))
}

/// The active stream of an identifier.
///
/// # Errors
/// [`TraceError`] `EINVAL` if it stands for none.
pub(crate) fn active(trid: u64) -> Result<Arc<ActiveStream>, TraceError> {
    match get(trid)? {
        Entry::Active(stream) => Ok(stream),
        Entry::Prerecorded(_) => Err(TraceError::invalid(format!(
            "{trid} is a log, not an active trace stream"
        ))),
    }
}

/// The log of an identifier.
///
/// # Errors
/// [`TraceError`] `EINVAL` if it stands for none.
pub(crate) fn prerecorded(trid: u64) -> Result<OpenLog, TraceError> {
    match get(trid)? {
        Entry::Prerecorded(log) => Ok(log),
        Entry::Active(_) => Err(TraceError::invalid(format!(
            "{trid} is an active trace stream, not a log"
        ))),
    }
}

/// Removes a log.
///
/// # Errors
/// As [`prerecorded`].
pub(crate) fn close_prerecorded(trid: u64) -> Result<(), TraceError> {
    prerecorded(trid)?;
    streams()
        .entries
        .remove(&trid)
        .map(drop)
        .ok_or_else(|| unknown(trid))
}

/// Removes an active stream, which the caller shuts down.
///
/// # Errors
/// As [`active`].
pub(crate) fn remove_active(trid: u64) -> Result<Ending, TraceError> {
    active(trid)?;
    let mut streams = streams();
    match streams.entries.remove(&trid) {
        Some(Entry::Active(stream)) => {
            streams.ending.push(oh_posix_trace_thread_id_());
            Ok(Ending(stream))
        }
        // Another thread was faster.
        _ => Err(unknown(trid)),
    }
}

fn unknown(trid: u64) -> TraceError {
    TraceError::invalid(format!(
        "the identifier {trid} is of no trace stream that this process has created or opened"
    ))
}

/// Removes the streams of the parent, in the child of a fork.
pub(crate) fn forget() {
    STREAMS.forget();
}

/// Shuts all active streams down, when the program exits, and waits for other threads that do so.
pub(crate) fn shut_down_all() {
    let Some(all) = STREAMS.get() else {
        return;
    };
    let lock = || all.lock().unwrap_or_else(PoisonError::into_inner);
    let entries = std::mem::take(&mut lock().entries);
    for entry in entries.into_values() {
        if let Entry::Active(stream) = entry {
            let _ = stream.shut_down();
        }
    }
    // Not for this one, which exits in a handler that has interrupted a shutdown.
    let thread = oh_posix_trace_thread_id_();
    while lock().ending.iter().any(|ending| *ending != thread) {
        std::thread::sleep(PAUSE);
    }
}
