// SPDX-License-Identifier: MIT OR Apache-2.0
//! The directory's second thread: what takes the kernel longer than others should wait for.
//!
//! Large buffers are allocated, mapped, locked and given up here, and the threads of laned sensors are
//! looked up. Users take turns here as well, and each turn is bounded: a buffer is gone through in pieces.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{eventfd, EventfdFlags};

use crate::fair_queue::FairQueue;
use crate::lane_upkeep::LaneUpkeep;
use crate::memory::{Mapping, MemoryFile};
use crate::opening::Opening;
use crate::registry::Registry;

/// Buffers up to this size take so little time that the service's own thread sees to them.
pub(crate) const LARGE_BYTES: usize = 4 << 20;
/// What of a buffer is allocated, mapped or locked in one turn.
const PIECE_BYTES: usize = 8 << 20;
/// How long nothing but lanes is waited for.
const IDLE: Duration = Duration::from_millis(250);

/// A buffer that its program has mapped, and that monitors cannot read yet.
#[derive(Debug)]
struct Preparation {
    opening: Opening,
    file: MemoryFile,
    mapping: Option<Mapping>,
    // How far the present pass has come.
    done_bytes: usize,
    locked: io::Result<()>,
}

/// What came of a preparation.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) opening: Opening,
    pub(crate) result: PreparedBuffer,
}

/// A buffer with its map, and whether it is locked in memory; or why there is none.
pub(crate) type PreparedBuffer = Result<(MemoryFile, Mapping, io::Result<()>), String>;

/// Something to be done.
#[derive(Debug)]
enum Chore {
    Prepare(Box<Preparation>),
    /// Memory that the directory gives up: often the last reference.
    Close(MemoryFile, Arc<Mapping>),
}

/// What the service's thread and the worker share.
#[derive(Debug)]
pub(crate) struct WorkQueue {
    state: Mutex<State>,
    changed: Condvar,
    // Readable when there are results.
    results: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    turns: FairQueue<u64>,
    chores: BTreeMap<u64, (u32, Chore)>,
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
        // Every change is a single step, so the contents are good after a panic, too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, uid: u32, chore: Chore) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.chores.insert(number, (uid, chore));
        state.turns.push(uid, number);
        self.changed.notify_one();
    }

    /// Allocates what is missing of a sealed buffer, maps it for reading, and locks it in memory.
    pub(crate) fn prepare(&self, uid: u32, file: MemoryFile, opening: Opening) {
        let preparation = Preparation {
            opening,
            file,
            mapping: None,
            done_bytes: 0,
            locked: Ok(()),
        };
        self.push(uid, Chore::Prepare(Box::new(preparation)));
    }

    /// Gives memory up.
    pub(crate) fn close(&self, uid: u32, file: MemoryFile, mapping: Arc<Mapping>) {
        self.push(uid, Chore::Close(file, mapping));
    }

    /// The buffers that are ready since the last call.
    pub(crate) fn take_prepared(&self) -> Vec<Prepared> {
        let mut count = [0; 8];
        // An error means that there was no result; the list says so, too.
        let _ = rustix::io::read(&self.results, &mut count);
        std::mem::take(&mut self.state().prepared)
    }

    /// The next chore, and whose it is; waits for one for a while. `None` in the end.
    fn next(&self) -> Option<Option<(u32, Chore)>> {
        let mut state = self.state();
        if state.turns.is_empty() && !state.stops {
            let waited = self.changed.wait_timeout(state, IDLE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.stops {
            return None;
        }
        let number = state.turns.pop();
        Some(number.and_then(|number| state.chores.remove(&number)))
    }

    fn finish(&self, prepared: Prepared) {
        self.state().prepared.push(prepared);
        let one = 1_u64.to_ne_bytes();
        // It only fails if the count is at its greatest, and then it is readable.
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

/// The thread. It ends when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Arc<WorkQueue>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start(queue: Arc<WorkQueue>, registry: Arc<Mutex<Registry>>) -> io::Result<Self> {
        let own = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("oh-dir-worker".to_string());
        let thread = thread.spawn(move || {
            let mut lanes = LaneUpkeep::new(registry);
            while let Some(chore) = own.next() {
                if let Some((uid, chore)) = chore {
                    own.turn(uid, chore);
                }
                lanes.turn();
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
    fn turn(&self, uid: u32, chore: Chore) {
        match chore {
            Chore::Close(file, mapping) => drop((file, mapping)),
            Chore::Prepare(mut preparation) => match preparation.turn() {
                Ok(false) => self.push(uid, Chore::Prepare(preparation)),
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
                Err(sentence) => {
                    let Preparation { opening, file, .. } = *preparation;
                    // Closed before anybody asks whether that was the last reference.
                    drop(file);
                    let result = Err(sentence);
                    self.finish(Prepared { opening, result });
                }
            },
        }
    }
}

impl Preparation {
    /// A piece of the work; says whether all is done.
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
                // The first failure is the one to tell.
                if let (Ok(()), Err(error)) = (&self.locked, mapping.lock_part(piece.clone())) {
                    self.locked = Err(error);
                }
                self.done_bytes = piece.end;
                Ok(self.done_bytes == bytes)
            }
        }
    }
}
