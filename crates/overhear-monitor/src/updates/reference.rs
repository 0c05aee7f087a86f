// SPDX-License-Identifier: MIT OR Apache-2.0
//! References to updates, and how those outside talk to a set that another thread runs.
//!
//! # Protocol
//!
//! One mutex guards the *board* between the set and everybody else. The set only ever tries to lock
//! it, once at the end of a round; if somebody holds it, the set goes on without, and tries again in
//! the next round. So the thread that evaluates never waits for another. Under the lock it moves
//! values, and neither allocates nor frees: commands and the dead lie in vectors with room for all
//! updates that a set can have, and an update that was removed is put there whole. Who holds a
//! reference, or reaps, drops it.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use overhear_event::{ElementView, Gap, Timestamp, Update};

use super::binding::Binding;
use super::member::Member;
use super::MOST_UPDATES;

/// An update that a set can hold and give back with its own type.
pub(crate) trait AnyUpdate: Update + Send + Any {
    /// Evaluates elements, one after the other, until the update has failed, and says whether it has. Counts
    /// those that reached it, also when it panics: the last of them is the one at which it did. One call for
    /// many: where no update of the type can fail, asking each time costs nothing.
    fn evaluate(&mut self, elements: &[ElementView<'_>], reached: &mut usize) -> bool;
}

impl<U: Update + Send + Any> AnyUpdate for U {
    #[inline]
    fn evaluate(&mut self, elements: &[ElementView<'_>], reached: &mut usize) -> bool {
        elements.iter().any(|element| {
            *reached += 1;
            self.element(element);
            self.failure().is_some()
        })
    }
}

/// How an update is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum UpdateState {
    /// It was added and is called from the next round on.
    #[default]
    Waiting,
    /// It evaluates.
    Running,
    /// It missed elements and is stopped ([`MissedPolicy::Stop`](super::MissedPolicy::Stop)).
    Stopped(Gap),
    /// It panicked, or says that it has failed ([`Update::failure`]), and is called no more; the sentence
    /// says why.
    Failed(String),
    /// It was removed, or its set is gone.
    Removed,
}

/// What an update has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateStatus {
    /// How it is doing.
    pub state: UpdateState,
    /// Elements that reached it: the last of them is the one at which it failed, if it has.
    pub elements: u64,
    /// Elements of its streams that it missed.
    pub missed: u64,
    /// In how many gaps. A gap that missed no element is a damage whose extent is unknown.
    pub gaps: u64,
    /// Streams that it asked for and that are not of its type: a sentence for each.
    pub complaints: Vec<String>,
}

/// What is between a set and everybody else.
#[derive(Debug)]
pub(crate) struct Board {
    pub(crate) state: Mutex<BoardState>,
    pub(crate) changed: Condvar,
}

#[derive(Debug)]
pub(crate) struct BoardState {
    pub(crate) commands: Vec<Command>,
    /// Members that were removed and are to be dropped outside the evaluating thread.
    pub(crate) dead: Vec<Member>,
    /// Everything before this time has been evaluated.
    pub(crate) evaluated: Timestamp,
    /// How many threads wait for `evaluated`.
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

impl Default for Board {
    fn default() -> Self {
        Self {
            state: Mutex::new(BoardState {
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

impl Board {
    /// A number that no other member has.
    pub(crate) fn next_key(&self) -> u64 {
        let mut state = self.lock();
        state.next_key += 1;
        state.next_key
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, BoardState> {
        // A panic under the lock leaves nothing half done: values are moved as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a member and the references to it share.
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
/// The update lives as long as a set evaluates it or somebody holds a reference. It is destroyed
/// where the last of them lets go, but never in a round: a set hands its dead to whoever reaps.
pub struct UpdateRef<U> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) board: Arc<Board>,
    pub(crate) kind: PhantomData<fn() -> U>,
}

impl<U> Clone for UpdateRef<U> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            board: Arc::clone(&self.board),
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

impl<U: Update + Send + 'static> UpdateRef<U> {
    /// The name it was added by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// How it is doing: as of the end of some round, not long ago.
    #[must_use]
    pub fn status(&self) -> UpdateStatus {
        reap(&self.board);
        self.shared.lock().status.clone()
    }

    /// Has it removed at the end of a round; the others do not notice.
    pub fn remove(&self) {
        reap(&self.board);
        self.board
            .lock()
            .commands
            .push(Command::Remove(self.shared.key));
    }

    /// The update itself, with what it has found, once it was removed or its set is gone. `None`
    /// until then, and for everybody who comes later.
    #[must_use]
    pub fn take(&self) -> Option<U> {
        reap(&self.board);
        let update: Box<dyn Any> = self.shared.lock().update.take()?;
        // Always of this type: the reference was made together with the member.
        update.downcast().ok().map(|update| *update)
    }
}

/// Takes over the dead of a set: those that nobody refers to are dropped here, in the calling
/// thread. Returns how many there were.
fn reap(board: &Board) -> usize {
    // Taken out one by one, so that the vector keeps its room; dropped without the lock.
    let mut count = 0;
    loop {
        let Some(dead) = board.lock().dead.pop() else {
            return count;
        };
        count += 1;
        dead.bury();
    }
}

/// Adds and removes updates of a set, and waits for it, from any thread.
#[derive(Clone, Debug)]
pub struct Supervisor {
    pub(crate) board: Arc<Board>,
}

/// What a program waited for has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// Not within the time.
    #[error("elements up to {until} are not evaluated yet, the evaluation has reached {reached}; wait longer, or see whether the monitor runs")]
    TimedOut {
        /// What was waited for.
        until: Timestamp,
        /// How far the evaluation is.
        reached: Timestamp,
    },
    /// The set has gone, and nobody will evaluate.
    #[error("the evaluation has ended at {reached}; there is nobody to wait for")]
    Ended {
        /// How far the evaluation came.
        reached: Timestamp,
    },
}

/// No update can be added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// There is no place for another one.
    #[error("update `{name}`: a set has room for {MOST_UPDATES} updates; use another set")]
    Full {
        /// The update that was to be added.
        name: String,
    },
    /// The set is gone.
    #[error("update `{name}`: the set it is added to has ended")]
    Ended {
        /// The update that was to be added.
        name: String,
    },
}

impl Supervisor {
    /// Adds an update: it is called from the end of the current round on.
    ///
    /// # Errors
    /// [`AddError::Ended`] if the set is gone. Whether there is room turns out in the round: an
    /// update that finds none is removed again at once.
    pub fn add<U: Update + Send + 'static>(
        &self,
        update: U,
        binding: Binding,
    ) -> Result<UpdateRef<U>, AddError> {
        reap(&self.board);
        let member = Member::new(Box::new(update), binding, self.board.next_key());
        let shared = Arc::clone(member.shared());
        let mut state = self.board.lock();
        if state.has_ended {
            let name = shared.name.clone();
            return Err(AddError::Ended { name });
        }
        state.commands.push(Command::Add(member));
        Ok(UpdateRef {
            shared,
            board: Arc::clone(&self.board),
            kind: PhantomData,
        })
    }

    /// Ends the lenience of a set ([`UpdateSet::lenient`](super::UpdateSet::lenient)) at the end of the
    /// current round.
    pub fn enforce(&self) {
        self.board.lock().commands.push(Command::Enforce);
    }

    /// Drops the updates that were removed and that nobody refers to, in the calling thread. Those
    /// who add, or ask for a status, do so too; a thread that calls this now and then is needed only
    /// where nobody does. Returns how many were taken over.
    #[allow(clippy::must_use_candidate, reason = "the number is for the curious")]
    pub fn reap(&self) -> usize {
        reap(&self.board)
    }

    /// Everything that was stamped before this time has been evaluated, or counted as missed.
    #[must_use]
    pub fn evaluated(&self) -> Timestamp {
        self.board.lock().evaluated
    }

    /// Waits until everything stamped before `until` has been evaluated: a program that needs the
    /// verdict on an element before it goes on writes the element, reads the clock and waits for
    /// that time (seed 000, section 3.1: synchronous evaluation is the program's own decision). It
    /// takes at least the monitor's hold-back. Returns how far the evaluation is.
    ///
    /// # Errors
    /// [`WaitError`] if that does not happen within `timeout`, or never will.
    pub fn wait_evaluated(
        &self,
        until: Timestamp,
        timeout: Duration,
    ) -> Result<Timestamp, WaitError> {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.board.lock();
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
            let woken = self.board.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }
}
