// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several updates in one monitor, each with its own sensors, start and end.
//!
//! An [`UpdateSet`] is itself an [`Analysis`]: an executor or a replay calls it like any other, and
//! it calls its members in the order of their indices, each for the streams of its subscription. A
//! set is evaluated serially and in chronological order, so an evaluation is atomic with respect to
//! all others, and shared data needs no locks [GRTMon, section 4.3]; see [`Group`](crate::Group)
//! for updates that share a context.
//!
//! Members can be added and removed while the monitor runs: by its own thread with
//! [`UpdateSet::add`], by others with a [`Supervisor`]. Commands of other threads are applied at
//! the end of a round. The evaluating thread never waits for another and destroys no update;
//! `handle.rs` has the protocol.
//!
//! ```
//! use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Analysis};
//! use overhear_monitor::{Binding, MissedPolicy, UpdateSet};
//!
//! #[derive(Default)]
//! struct Count(u64);
//! impl Analysis for Count {
//!     fn element(&mut self, _: &ElementView<'_>) {
//!         self.0 += 1;
//!     }
//!     fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}
//!     fn advance(&mut self, _: Timestamp) {}
//! }
//!
//! let mut set = UpdateSet::new();
//! let binding = Binding::new("count").on_missed(MissedPolicy::Stop);
//! let count = set.add(Count::default(), binding)?;
//! // `set` goes to `Monitor::round`, an executor, or a replay.
//! drop(set);
//! assert_eq!(count.take().map(|count| count.0), Some(0));
//! # Ok::<(), overhear_monitor::AddError>(())
//! ```

mod binding;
mod handle;
mod member;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::marker::PhantomData;
use std::sync::{Arc, TryLockError};

use overhear_event::{
    Analysis, ElementInPlace, ElementKey, ElementView, EventSet, Gap, StreamDescriptor, StreamId,
    Timestamp, IN_PLACE_BYTES,
};

use crate::in_place::{InPlaceDispatch, NextCall};
use crate::merge::StreamIdHasher;
use handle::{Command, CommandQueue, CommandQueueState};
use member::{Member, Next, Prepared};

pub(crate) use binding::{describe, is_of_type, SubscriptionMatch};
pub use binding::{Binding, MissedPolicy, Start, Subscription};
pub use handle::{AddError, Supervisor, UpdateRef, UpdateState, UpdateStatus, WaitError};
pub(crate) use member::message_of;

/// Maximum number of updates in a set: the bits of a word, so that one load gives the updates of an
/// element.
pub const MOST_UPDATES: usize = 64;

/// Streams with larger numbers are looked up in a hash table.
const QUICK: usize = 4096;

/// Updates that are evaluated together. See the module's documentation.
#[derive(Debug)]
pub struct UpdateSet {
    // MOST_UPDATES entries.
    members: Vec<Option<Member>>,
    // The members that are called: a bit each.
    active: u64,
    // For each stream its members: a bit each.
    routes: HashMap<StreamId, u64, BuildHasherDefault<StreamIdHasher>>,
    // The same for small stream numbers, as directories give them, indexed by the number: for
    // elements of many streams that alternate.
    quick: Vec<Option<u64>>,
    // The same streams, for members that come later.
    streams: Vec<StreamDescriptor>,
    // The streams with large elements.
    in_place: InPlaceDispatch,
    // The stream of the last element: elements of a stream come in runs.
    last: (Option<StreamId>, u64),
    queue: Arc<CommandQueue>,
    // The last advance.
    evaluated: Timestamp,
    // Elements that reached a member.
    elements: u64,
    // Whether missed elements do not stop updates yet.
    lenient: bool,
    // Whether members were warmed up: then later ones are warmed up, too.
    warm: bool,
}

impl Default for UpdateSet {
    fn default() -> Self {
        Self {
            members: (0..MOST_UPDATES).map(|_| None).collect(),
            active: 0,
            routes: HashMap::default(),
            quick: Vec::new(),
            streams: Vec::new(),
            in_place: InPlaceDispatch::default(),
            last: (None, 0),
            queue: Arc::default(),
            evaluated: Timestamp::ZERO,
            elements: 0,
            lenient: false,
            warm: false,
        }
    }
}

impl UpdateSet {
    /// A set without updates.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops no update for missed elements until [`Supervisor::enforce`]: for executors whose
    /// guarantee begins later. Missed elements are reported in any case.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Adds an update; it is called from the next item on.
    ///
    /// # Errors
    /// [`AddError::Full`] if the set is full.
    pub fn add<U: Analysis + Send + 'static>(
        &mut self,
        update: U,
        binding: Binding,
    ) -> Result<UpdateRef<U>, AddError> {
        let member = Member::new(Box::new(update), binding, self.queue.next_key());
        let shared = Arc::clone(member.shared());
        if self.insert(member).is_some() {
            let name = shared.name.clone();
            return Err(AddError::Full { name });
        }
        Ok(UpdateRef {
            shared,
            queue: Arc::clone(&self.queue),
            kind: PhantomData,
        })
    }

    /// An update of this set, to show its results between two rounds. `None` if it was removed, is
    /// not placed yet, or belongs to another set.
    pub fn get_mut<U: Analysis + Send + 'static>(&mut self, of: &UpdateRef<U>) -> Option<&mut U> {
        let mut members = self.members.iter_mut().flatten();
        let member = members.find(|member| Arc::ptr_eq(member.shared(), &of.shared))?;
        member.update_mut()
    }

    /// A handle by which other threads add and remove updates, and wait for evaluations.
    #[must_use]
    pub fn supervisor(&self) -> Supervisor {
        Supervisor {
            queue: Arc::clone(&self.queue),
        }
    }

    /// Whether all updates were removed, or have ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active == 0
    }

    /// Number of elements that reached at least one member. Elements without a subscription,
    /// refused by all members, or after the end of their members do not count.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Applies commands of other threads. Every advance does it too; a caller that adds updates by
    /// a [`Supervisor`] before the first round calls it itself.
    pub fn settle(&mut self) {
        let queue = Arc::clone(&self.queue);
        let mut state = match queue.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread holds the lock: the next round applies its command.
            Err(TryLockError::WouldBlock) => return,
        };
        let CommandQueueState { commands, dead, .. } = &mut *state;
        let room = dead.capacity() - dead.len();
        for command in commands.drain(..commands.len().min(room)) {
            let end = match command {
                Command::Add(member) => self.insert(member).map(|mut member| {
                    member.refuse("there is no place for another update in its set");
                    member
                }),
                Command::Remove(key) => self.remove(key),
                Command::Enforce => {
                    self.lenient = false;
                    None
                }
            };
            // The vector has room: one entry at most for each command.
            dead.extend(end);
        }
        state.evaluated = self.evaluated;
        if state.waiting > 0 {
            queue.changed.notify_all();
        }
    }

    /// Adds a member; returns it if the set is full.
    fn insert(&mut self, mut member: Member) -> Option<Member> {
        let Some(slot) = self.members.iter().position(Option::is_none) else {
            return Some(member);
        };
        let bit = 1 << slot;
        let mut next = Next::GoOn;
        for stream in &self.streams {
            if member.takes(stream) {
                *self.routes.entry(stream.id).or_default() |= bit;
                note(&mut self.in_place, stream, slot, &member);
                if next == Next::GoOn {
                    next = member.open(stream);
                }
            }
        }
        if next == Next::GoOn && self.warm {
            next = member.warm_up();
        }
        if next == Next::GoOn {
            self.active |= bit;
        }
        member.publish();
        self.members[slot] = Some(member);
        self.remember();
        None
    }

    fn remove(&mut self, key: u64) -> Option<Member> {
        let is_it = |member: &Option<Member>| {
            let member = member.as_ref();
            member.is_some_and(|member| member.shared().key == key)
        };
        let slot = self.members.iter().position(is_it)?;
        let bit = 1 << slot;
        self.active &= !bit;
        for members in self.routes.values_mut() {
            *members &= !bit;
        }
        self.in_place.forget(slot);
        self.remember();
        self.members[slot].take()
    }

    /// The members that are called for this stream.
    #[inline]
    fn members_of(&mut self, stream: &StreamDescriptor) -> u64 {
        if self.last.0 == Some(stream.id) {
            return self.last.1;
        }
        let quick = self.quick.get(stream.id.as_raw() as usize);
        let members = match quick.copied().flatten() {
            Some(members) => members,
            None => self.look_up(stream),
        };
        self.last = (Some(stream.id), members);
        members
    }

    #[cold]
    fn look_up(&mut self, stream: &StreamDescriptor) -> u64 {
        match self.routes.get(&stream.id) {
            Some(&members) => members,
            None => self.meet(stream),
        }
    }

    /// Copies a changed entry of `routes` to `quick`.
    fn remember(&mut self) {
        self.last = (None, 0);
        self.quick.fill(None);
        for (stream, &members) in &self.routes {
            let at = stream.as_raw() as usize;
            if at < QUICK {
                if self.quick.len() <= at {
                    self.quick.resize(at + 1, None);
                }
                self.quick[at] = Some(members);
            }
        }
    }

    /// Finds the members of a new stream.
    #[cold]
    fn meet(&mut self, stream: &StreamDescriptor) -> u64 {
        let mut members = 0;
        let mut active = self.active;
        each(self.active, |slot| {
            if let Some(member) = &mut self.members[slot] {
                if member.takes(stream) {
                    members |= 1 << slot;
                    note(&mut self.in_place, stream, slot, member);
                    if member.open(stream) == Next::Ended {
                        active &= !(1 << slot);
                    }
                }
            }
        });
        self.active = active;
        self.streams.push(stream.clone());
        self.routes.insert(stream.id, members);
        self.remember();
        members
    }

    /// Evaluates consecutive elements that have the same members. A single member gets all of them
    /// in one call. Several members are called for one element after the other, so that shared data
    /// changes in the total order.
    fn evaluate(&mut self, elements: &[ElementView<'_>], members: u64) {
        let called = members & self.active;
        let sole = if called.is_power_of_two() {
            self.members[called.trailing_zeros() as usize].as_mut()
        } else {
            None
        };
        let Some(member) = sole else {
            for element in elements {
                self.evaluate_one(element, members);
            }
            return;
        };
        let (next, consumed) = member.elements(elements);
        self.elements += consumed as u64;
        if next == Next::Ended {
            self.active &= !called;
        }
    }

    #[inline]
    fn evaluate_one(&mut self, element: &ElementView<'_>, members: u64) {
        self.elements += u64::from(members & self.active != 0);
        self.call(members, |member| member.element(element));
    }

    /// Calls members, and drops those that end.
    #[inline(always)]
    fn call(&mut self, members: u64, mut call: impl FnMut(&mut Member) -> Next) {
        let (all, active) = (&mut self.members, &mut self.active);
        each(members & *active, |slot| {
            if let Some(member) = &mut all[slot] {
                if call(member) == Next::Ended {
                    *active &= !(1 << slot);
                }
            }
        });
    }
}

/// Records whether a member reads a stream in place.
fn note(in_place: &mut InPlaceDispatch, stream: &StreamDescriptor, slot: usize, member: &Member) {
    if stream.schema.size() > IN_PLACE_BYTES {
        in_place.note(stream, slot, member.reads_in_place(stream));
    }
}

/// Calls the function with the index of each set bit.
#[inline(always)]
fn each(mut bits: u64, mut call: impl FnMut(usize)) {
    while bits != 0 {
        call(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

impl Analysis for UpdateSet {
    /// The events that the members require; the empty set if one of them requires all.
    fn requires(&self) -> EventSet {
        let mut all = EventSet::new();
        for member in self.members.iter().flatten() {
            let required = member.requires();
            if required.is_empty() {
                return required;
            }
            all.extend(required);
        }
        all
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        if self.routes.remove(&stream.id).is_some() {
            // A new directory reuses stream numbers.
            self.streams.retain(|known| known.id != stream.id);
        }
        self.meet(stream);
    }

    fn warm_up(&mut self) {
        self.warm = true;
        self.call(u64::MAX, Member::warm_up);
    }

    #[inline]
    fn element(&mut self, element: &ElementView<'_>) {
        let members = self.members_of(element.stream);
        self.evaluate_one(element, members);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        let mut rest = elements;
        while let Some(first) = rest.first() {
            let members = self.members_of(first.stream);
            // Reset for streams outside the quick table.
            let (sole, quick) = (first.stream.id, &self.quick);
            let is_other = |id: StreamId| {
                id != sole && quick.get(id.as_raw() as usize) != Some(&Some(members))
            };
            let others = rest.iter().position(|it| is_other(it.stream.id));
            let (same, behind) = rest.split_at(others.unwrap_or(rest.len()));
            self.evaluate(same, members);
            rest = behind;
        }
    }

    fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        let mut members = self.members.iter().flatten();
        members.any(|member| member.takes(stream) && member.reads_in_place(stream))
    }

    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let stream = element.key().stream;
        let members = self.members_of(stream) & self.active;
        let wanted = self.in_place.readers(stream.id);
        self.in_place.begin(element, members & !wanted != 0);
        let (all, in_place, active) = (&mut self.members, &mut self.in_place, &mut self.active);
        each(members & wanted, |slot| {
            let prepared = all[slot].as_mut().map(|member| member.prepare(element));
            match prepared {
                Some(Prepared::Done { ready }) => in_place.prepared(slot, ready),
                Some(Prepared::Ended) => *active &= !(1 << slot),
                Some(Prepared::Skipped) | None => {}
            }
        });
        true
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        let members = self.members_of(element.stream) & self.active;
        self.elements += u64::from(valid && members != 0);
        let (all, in_place, active) = (&mut self.members, &self.in_place, &mut self.active);
        each(members, |slot| {
            let Some(member) = &mut all[slot] else {
                return;
            };
            let next = match in_place.next_call(element.stream.id, slot) {
                NextCall::Commit(ready) => member.commit(element, valid, ready),
                NextCall::Copy if valid => member.element(&in_place.view(element)),
                NextCall::Copy | NextCall::None => Next::GoOn,
            };
            if next == Next::Ended {
                *active &= !(1 << slot);
            }
        });
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let members = self.members_of(stream);
        let lenient = self.lenient;
        self.call(members, |member| member.gap(stream, gap, lenient));
    }

    fn advance(&mut self, now: Timestamp) {
        self.call(u64::MAX, |member| member.advance(now));
        self.evaluated = self.evaluated.max(now);
        for member in self.members.iter().flatten() {
            member.publish();
        }
        self.settle();
    }
}

impl Drop for UpdateSet {
    /// Passes every update to its references. Not for a thread with a guarantee: updates without
    /// references are destroyed here.
    fn drop(&mut self) {
        let mut dead: Vec<Member> = self.members.drain(..).flatten().collect();
        let mut state = self.queue.lock();
        state.has_ended = true;
        state.evaluated = self.evaluated;
        let never = state
            .commands
            .drain(..)
            .filter_map(|command| match command {
                Command::Add(member) => Some(member),
                Command::Remove(_) | Command::Enforce => None,
            });
        dead.extend(never);
        dead.append(&mut state.dead);
        drop(state);
        // First the updates, then the notification: a thread that waited for the end finds them.
        dead.into_iter().for_each(Member::drop_update);
        self.queue.changed.notify_all();
    }
}
