// SPDX-License-Identifier: MIT OR Apache-2.0
//! References to updates, and the command queue from other threads to a set.
//!
//! # Protocol
//!
//! One mutex guards the command queue. The set only tries to lock it, once at the end of a round;
//! if another thread holds it, the set continues, and tries again in the next round. So the
//! evaluating thread never waits for another. Under the lock it moves values, and neither allocates
//! nor frees: the vectors of commands and of removed members have memory for all updates of a set,
//! and a removed update is moved there as a whole. The holder of a reference, or a call that reaps,
//! drops it.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overhear_event::{Analysis, ElementView, Gap, Timestamp};

use super::binding::Binding;
use super::member::Member;
use super::MOST_UPDATES;

/// An update that a set can return with its own type.
pub(crate) trait AnyUpdate: Analysis + Send + Any {
    /// Evaluates consecutive elements until the update has failed, and returns whether it has.
    /// Counts the delivered elements, also when it panics: the last one is that of the failure. It
    /// is generic, so that the check of a failure is optimised away for updates that cannot fail.
    fn evaluate(&mut self, elements: &[ElementView<'_>], reached: &mut usize) -> bool;
}

impl<U: Analysis + Send + Any> AnyUpdate for U {
    #[inline]
    fn evaluate(&mut self, elements: &[ElementView<'_>], reached: &mut usize) -> bool {
        elements.iter().any(|element| {
            *reached += 1;
            self.element(element);
            self.failure().is_some()
        })
    }
}

/// The state of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UpdateState {
    /// It was added and is called from the next round on.
    #[default]
    Waiting,
    /// It is called.
    Running,
    /// It missed elements and is stopped ([`MissedPolicy::Stop`](super::MissedPolicy::Stop)).
    Stopped(Gap),
    /// It panicked, or has failed ([`Analysis::failure`]), and is not called any more. The message
    /// has the reason.
    Failed(String),
    /// It was removed, or its set is gone.
    Removed,
}

/// The status of an update.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateStatus {
    /// Its state.
    pub state: UpdateState,
    /// Number of delivered elements. If it failed, it failed at the last one.
    pub elements: u64,
    /// Number of missed elements of its streams.
    pub missed: u64,
    /// Number of gaps. A gap with 0 missed elements is damage of unknown extent.
    pub gaps: u64,
    /// Matching streams of another type: a message for each.
    pub complaints: Vec<String>,
}

/// The queue between a set and other threads.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    pub(crate) state: Mutex<CommandQueueState>,
    pub(crate) changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct CommandQueueState {
    pub(crate) commands: Vec<Command>,
    /// Members that were removed and are to be dropped outside the evaluating thread.
    pub(crate) dead: Vec<Member>,
    /// All items before this time have been evaluated.
    pub(crate) evaluated: Timestamp,
    /// Number of threads that wait for `evaluated`.
    pub(crate) waiting: u32,
    pub(crate) has_ended: bool,
    next_key: u64,
}

#[derive(Debug)]
pub(crate) enum Command {
    Add(Member),
    Remove(u64),
    Enforce,
}

impl Default for CommandQueue {
    fn default() -> Self {
        Self {
            state: Mutex::new(CommandQueueState {
                commands: Vec::with_capacity(2 * MOST_UPDATES),
                dead: Vec::with_capacity(2 * MOST_UPDATES),
                evaluated: Timestamp::ZERO,
                waiting: 0,
                has_ended: false,
                next_key: 0,
            }),
            changed: Condvar::new(),
        }
    }
}

impl CommandQueue {
    /// A number that no other member has.
    pub(crate) fn next_key(&self) -> u64 {
        let mut state = self.lock();
        state.next_key += 1;
        state.next_key
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, CommandQueueState> {
        // A panic under the lock leaves consistent data, because values are moved as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state shared by a member and its references.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) key: u64,
    pub(crate) name: String,
    pub(crate) state: Mutex<SharedState>,
}

#[derive(Default)]
pub(crate) struct SharedState {
    pub(crate) status: UpdateStatus,
    /// The update, when it was removed and reaped.
    pub(crate) update: Option<Box<dyn AnyUpdate>>,
}

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SharedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A counted reference to an update in a set.
///
/// The update lives as long as a set evaluates it or a reference exists. It is destroyed with the
/// last of these, but never in a round: removed updates are dropped by the thread that reaps.
pub struct UpdateRef<U> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) queue: Arc<CommandQueue>,
    pub(crate) kind: PhantomData<fn() -> U>,
}

impl<U> Clone for UpdateRef<U> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            queue: Arc::clone(&self.queue),
            kind: PhantomData,
        }
    }
}

impl<U> fmt::Debug for UpdateRef<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateRef")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl<U: Analysis + Send + 'static> UpdateRef<U> {
    /// The name it was added by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its status at the end of a recent round.
    #[must_use]
    pub fn status(&self) -> UpdateStatus {
        reap(&self.queue);
        self.shared.lock().status.clone()
    }

    /// Removes it at the end of a round; other updates are not affected.
    pub fn remove(&self) {
        reap(&self.queue);
        self.queue
            .lock()
            .commands
            .push(Command::Remove(self.shared.key));
    }

    /// Takes the update with its results, once it was removed or its set is gone. `None` before
    /// that, and for later callers.
    #[must_use]
    pub fn take(&self) -> Option<U> {
        reap(&self.queue);
        let update: Box<dyn Any> = self.shared.lock().update.take()?;
        // Always of this type: the reference was made with the member.
        update.downcast().ok().map(|update| *update)
    }
}

/// Takes the removed updates of a set, and drops those without references in the calling thread.
/// Returns their number.
fn reap(queue: &CommandQueue) -> usize {
    // Taken out one by one, so that the vector keeps its memory; dropped without the lock.
    let mut count = 0;
    loop {
        let Some(dead) = queue.lock().dead.pop() else {
            return count;
        };
        count += 1;
        dead.drop_update();
    }
}

/// Adds and removes updates of a set, and waits for it, from any thread.
#[derive(Clone, Debug)]
pub struct Supervisor {
    pub(crate) queue: Arc<CommandQueue>,
}

/// Why a wait failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The timeout has passed.
    #[error("elements up to {until} are not evaluated yet, the evaluation has reached {reached}; wait longer, or see whether the monitor runs")]
    TimedOut {
        /// The time that was waited for.
        until: Timestamp,
        /// The time up to which items have been evaluated.
        reached: Timestamp,
    },
    /// The set is gone.
    #[error("the evaluation has ended at {reached}; there is nobody to wait for")]
    Ended {
        /// The time up to which items were evaluated.
        reached: Timestamp,
    },
}

/// Why an update was not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The set is full.
    #[error("update `{name}`: a set has room for {MOST_UPDATES} updates; use another set")]
    Full {
        /// Name of the update.
        name: String,
    },
    /// The set is gone.
    #[error("update `{name}`: the set it is added to has ended")]
    Ended {
        /// Name of the update.
        name: String,
    },
}

impl Supervisor {
    /// Adds an update: it is called from the end of the current round on.
    ///
    /// # Errors
    /// [`AddError::Ended`] if the set is gone. Whether there is room turns out in the round: an
    /// update that finds none is removed again at once.
    pub fn add<U: Analysis + Send + 'static>(
        &self,
        update: U,
        binding: Binding,
    ) -> Result<UpdateRef<U>, AddError> {
        reap(&self.queue);
        let member = Member::new(Box::new(update), binding, self.queue.next_key());
        let shared = Arc::clone(member.shared());
        let mut state = self.queue.lock();
        if state.has_ended {
            let name = shared.name.clone();
            return Err(AddError::Ended { name });
        }
        state.commands.push(Command::Add(member));
        Ok(UpdateRef {
            shared,
            queue: Arc::clone(&self.queue),
            kind: PhantomData,
        })
    }

    /// Applies the policies for missed elements from the end of the current round on; see
    /// [`UpdateSet::lenient`](super::UpdateSet::lenient).
    pub fn enforce(&self) {
        self.queue.lock().commands.push(Command::Enforce);
    }

    /// Drops removed updates without references, in the calling thread. Returns the number of
    /// updates taken over. Adding an update and reading a status do it too, so an extra call is
    /// needed only if a program does neither.
    #[allow(clippy::must_use_candidate, reason = "the number is for the curious")]
    pub fn reap(&self) -> usize {
        reap(&self.queue)
    }

    /// All elements stamped before this time have been evaluated, or counted as missed.
    #[must_use]
    pub fn evaluated(&self) -> Timestamp {
        self.queue.lock().evaluated
    }

    /// Waits until all elements stamped before `until` have been evaluated. A program that needs
    /// the verdict on an element writes the element, reads the clock and waits for that time (seed
    /// 000, section 3.1: synchronous evaluation is the program's own decision). It takes at least
    /// the monitor's hold-back. Returns the time up to which items have been evaluated.
    ///
    /// # Errors
    /// [`WaitError`] if that does not happen within `timeout`, or never will.
    pub fn wait_evaluated(
        &self,
        until: Timestamp,
        timeout: Duration,
    ) -> Result<Timestamp, WaitError> {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.queue.lock();
        loop {
            let reached = state.evaluated;
            if reached >= until {
                return Ok(reached);
            }
            if state.has_ended {
                return Err(WaitError::Ended { reached });
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(WaitError::TimedOut { until, reached });
            }
            state.waiting += 1;
            let left = left.unwrap_or(Duration::from_secs(3600));
            let woken = self.queue.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }
}
