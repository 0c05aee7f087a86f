// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory's second thread, for system calls that take long.
//!
//! It allocates, maps, locks and closes large buffers, and looks up the threads of laned sensors.
//! Users are served round robin, and each turn is bounded: a buffer is processed in pieces.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};

use crate::fair_queue::FairQueue;
use crate::memory::{Mapping, MemoryFile};
use crate::opening::Opening;
use crate::trace_area::AreaFiles;

/// Buffers up to this size take little time: the service's own thread prepares them.
pub(crate) const LARGE_BYTES: usize = 4 << 20;
/// Bytes of a buffer that are allocated or locked in one turn.
const PIECE_BYTES: usize = 8 << 20;
/// Time after which the thread looks after lanes, if no job comes.
const IDLE_TIMEOUT: Duration = Duration::from_millis(250);

/// The preparation of a buffer that its program has mapped, for monitors.
#[derive(Debug)]
struct Preparation {
    opening: Opening,
    file: MemoryFile,
    mapping: Option<Mapping>,
    // Bytes done in the current pass.
    done_bytes: usize,
    locked: io::Result<()>,
}

/// The result of a preparation.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) opening: Opening,
    pub(crate) result: PreparedBuffer,
}

/// A buffer with its map, and whether it is locked in memory; or the reason of the failure.
pub(crate) type PreparedBuffer = Result<(MemoryFile, Mapping, io::Result<()>), String>;

/// A job of the worker.
#[derive(Debug)]
enum Job {
    Prepare(Box<Preparation>),
    /// Closes memory: often the last reference, so that the kernel frees it.
    Close(MemoryFile, Arc<Mapping>),
    /// As `Close`, a trace area.
    CloseArea(Box<AreaFiles>),
}

/// The queue between the service's thread and the worker.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<State>,
    changed: Condvar,
    // An eventfd: readable when there are results.
    results: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    turns: FairQueue<u64>,
    jobs: BTreeMap<u64, (u32, Job)>,
    next: u64,
    prepared: Vec<Prepared>,
    stops: bool,
}

impl WorkQueue {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let results = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self {
            state: Mutex::default(),
            changed: Condvar::new(),
            results,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so the contents are consistent after a panic, too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, uid: u32, job: Job) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.jobs.insert(number, (uid, job));
        state.turns.push(uid, number);
        self.changed.notify_one();
    }

    /// Allocates the missing pages of a sealed buffer, maps it for reading, and locks it in memory.
    pub(crate) fn prepare(&self, uid: u32, file: MemoryFile, opening: Opening) {
        let preparation = Preparation {
            opening,
            file,
            mapping: None,
            done_bytes: 0,
            locked: Ok(()),
        };
        self.push(uid, Job::Prepare(Box::new(preparation)));
    }

    /// Closes a buffer.
    pub(crate) fn close(&self, uid: u32, file: MemoryFile, mapping: Arc<Mapping>) {
        self.push(uid, Job::Close(file, mapping));
    }

    /// Closes a trace area.
    pub(crate) fn close_area(&self, uid: u32, files: AreaFiles) {
        self.push(uid, Job::CloseArea(Box::new(files)));
    }

    /// Takes the results since the last call.
    pub(crate) fn take_prepared(&self) -> Vec<Prepared> {
        let mut count = [0; 8];
        // An error means that there was no result; then the list is empty.
        let _ = rustix::io::read(&self.results, &mut count);
        std::mem::take(&mut self.state().prepared)
    }

    /// The next job and its user; `Some(None)` if none came within [`IDLE_TIMEOUT`]. `None` at the
    /// end.
    fn next(&self) -> Option<Option<(u32, Job)>> {
        let mut state = self.state();
        if state.turns.is_empty() && !state.stops {
            let waited = self.changed.wait_timeout(state, IDLE_TIMEOUT);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.stops {
            return None;
        }
        let number = state.turns.pop();
        Some(number.and_then(|number| state.jobs.remove(&number)))
    }

    fn finish(&self, prepared: Prepared) {
        self.state().prepared.push(prepared);
        let one = 1_u64.to_ne_bytes();
        // It fails only if the count is at its maximum, and then it is readable.
        let _ = rustix::io::write(&self.results, &one);
    }

    fn stop(&self) {
        self.state().stops = true;
        self.changed.notify_one();
    }
}

impl AsFd for WorkQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.results.as_fd()
    }
}

/// The worker's thread. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Arc<WorkQueue>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(
        queue: Arc<WorkQueue>,
        mut upkeep: impl FnMut() + Send + 'static,
    ) -> io::Result<Self> {
        let own = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("oh-dir-worker".to_string());
        let thread = thread.spawn(move || {
            while let Some(job) = own.next() {
                if let Some((uid, job)) = job {
                    own.turn(uid, job);
                }
                upkeep();
            }
        })?;
        Ok(Self {
            queue,
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.queue.stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

impl WorkQueue {
    fn turn(&self, uid: u32, job: Job) {
        match job {
            Job::Close(file, mapping) => drop((file, mapping)),
            Job::CloseArea(files) => drop(files),
            Job::Prepare(mut preparation) => match preparation.turn() {
                Ok(false) => self.push(uid, Job::Prepare(preparation)),
                Ok(true) => {
                    let Preparation {
                        opening,
                        file,
                        mapping,
                        locked,
                        ..
                    } = *preparation;
                    if let Some(mapping) = mapping {
                        let result = Ok((file, mapping, locked));
                        self.finish(Prepared { opening, result });
                    }
                }
                Err(message) => {
                    let Preparation { opening, file, .. } = *preparation;
                    // Closed before the check whether that was the last reference.
                    drop(file);
                    let result = Err(message);
                    self.finish(Prepared { opening, result });
                }
            },
        }
    }
}

impl Preparation {
    /// Processes a piece; true if all is done.
    fn turn(&mut self) -> Result<bool, String> {
        let bytes = self.file.bytes();
        let piece = self.done_bytes..(self.done_bytes + PIECE_BYTES).min(bytes);
        match &self.mapping {
            None => {
                if self.file.allocated_bytes() < bytes as u64 {
                    let allocated = self.file.allocate(piece.clone());
                    allocated.map_err(|error| error.to_string())?;
                    self.done_bytes = piece.end;
                    if self.done_bytes < bytes {
                        return Ok(false);
                    }
                }
                let mapping = Mapping::read_only_later(&self.file, bytes);
                self.mapping = Some(mapping.map_err(|error| error.to_string())?);
                self.done_bytes = 0;
                Ok(false)
            }
            Some(mapping) => {
                // The first failure is reported.
                if let (Ok(()), Err(error)) = (&self.locked, mapping.lock_part(piece.clone())) {
                    self.locked = Err(error);
                }
                self.done_bytes = piece.end;
                Ok(self.done_bytes == bytes)
            }
        }
    }
}
