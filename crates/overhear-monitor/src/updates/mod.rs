// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several updates in one monitor, each with sensors, start and fate of its own.
//!
//! An [`UpdateSet`] is itself an [`Update`]: whatever runs rounds (an executor, a replay) calls it
//! like any other, and it calls its members, one after the other, in the order in which they have
//! their places. Each is called for the streams it subscribed to alone. Since a set is evaluated
//! serially and in chronological order, an evaluation is atomic with respect to all others and
//! needs no locks for what they share (seed 000, section 4.3); see [`Group`](crate::Group) for
//! updates that share a context.
//!
//! Members come and go while the monitor runs: its own thread uses [`UpdateSet::add`], every other
//! one a [`Supervisor`]. What another thread asks for happens at the end of a round. The evaluating
//! thread never waits for another and destroys no update; see `reference.rs` for how.
//!
//! ```
//! use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Update};
//! use overhear_monitor::{Binding, MissedPolicy, UpdateSet};
//!
//! #[derive(Default)]
//! struct Count(u64);
//! impl Update for Count {
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
mod member;
mod reference;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::marker::PhantomData;
use std::sync::{Arc, TryLockError};

use overhear_event::{
    ElementInPlace, ElementKey, ElementView, EventSet, Gap, StreamDescriptor, StreamId, Timestamp,
    Update, IN_PLACE_BYTES,
};

use crate::in_place::{Mixed, Turn};
use crate::merge::Spread;
use member::{Member, Next, Prepared};
use reference::{Board, BoardState, Command};

pub(crate) use binding::{describe, is_of_type, Answer};
pub use binding::{Binding, MissedPolicy, Start, Subscription};
pub(crate) use member::sentence_of;
pub use reference::{AddError, Supervisor, UpdateRef, UpdateState, UpdateStatus, WaitError};

/// How many updates a set has room for: the bits of a word, so that an element finds its updates by
/// one load.
pub const MOST_UPDATES: usize = 64;

/// Streams with larger numbers are looked up in a table that is not as quick.
const QUICK: usize = 4096;

/// Updates that are evaluated together. See the module's text.
#[derive(Debug)]
pub struct UpdateSet {
    // MOST_UPDATES places.
    members: Vec<Option<Member>>,
    // A bit for each member that is called.
    active: u64,
    // For each stream the members that subscribed to it.
    routes: HashMap<StreamId, u64, BuildHasherDefault<Spread>>,
    // The same by the number of the stream, for the small ones, which directories give: elements of
    // many streams that take turns look here one by one.
    quick: Vec<Option<u64>>,
    // The same streams, for members that come later.
    streams: Vec<StreamDescriptor>,
    // Those with large elements.
    mixed: Mixed,
    // The stream of the last element: elements of a stream come in runs.
    last: (Option<StreamId>, u64),
    board: Arc<Board>,
    // The last advance.
    evaluated: Timestamp,
    // Elements that reached a member.
    elements: u64,
    // Whether missed elements stop nobody yet.
    lenient: bool,
    // Whether members were warmed up: then those that come later are, too.
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
            mixed: Mixed::default(),
            last: (None, 0),
            board: Arc::default(),
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

    /// Stops no update for missed elements until [`Supervisor::enforce`]: for an executor whose guarantee
    /// begins later. Who missed some before that is told, as ever.
    #[must_use]
    pub fn lenient(mut self) -> Self {
        self.lenient = true;
        self
    }

    /// Adds an update; it is called from the next item on.
    ///
    /// # Errors
    /// [`AddError::Full`] if there is no room.
    pub fn add<U: Update + Send + 'static>(
        &mut self,
        update: U,
        binding: Binding,
    ) -> Result<UpdateRef<U>, AddError> {
        let member = Member::new(Box::new(update), binding, self.board.next_key());
        let shared = Arc::clone(member.shared());
        if self.place(member).is_some() {
            let name = shared.name.clone();
            return Err(AddError::Full { name });
        }
        Ok(UpdateRef {
            shared,
            board: Arc::clone(&self.board),
            kind: PhantomData,
        })
    }

    /// An update of this set, for whoever shows between two rounds what it has found so far. `None` if it was
    /// removed, has not been placed yet, or is another set's.
    pub fn get_mut<U: Update + Send + 'static>(&mut self, of: &UpdateRef<U>) -> Option<&mut U> {
        let mut members = self.members.iter_mut().flatten();
        let member = members.find(|member| Arc::ptr_eq(member.shared(), &of.shared))?;
        member.update_mut()
    }

    /// What other threads add and remove updates by, and wait for evaluations.
    #[must_use]
    pub fn supervisor(&self) -> Supervisor {
        Supervisor {
            board: Arc::clone(&self.board),
        }
    }

    /// Whether no update is called any more: all were removed, or have ended.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.active == 0
    }

    /// Elements that reached at least one member: not those that nobody subscribed to, that everybody
    /// refuses, or that came when those who wanted them had ended.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Does what was asked for from outside: for whoever adds updates by a [`Supervisor`] before the
    /// first round. Every advance does it too.
    pub fn settle(&mut self) {
        let board = Arc::clone(&self.board);
        let mut state = match board.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody is asking for something: the next round will see.
            Err(TryLockError::WouldBlock) => return,
        };
        let BoardState { commands, dead, .. } = &mut *state;
        let room = dead.capacity() - dead.len();
        for command in commands.drain(..commands.len().min(room)) {
            let end = match command {
                Command::Add(member) => self.place(member).map(|mut member| {
                    member.refuse("there is no place for another update in its set");
                    member
                }),
                Command::Remove(key) => self.remove(key),
                Command::Enforce => {
                    self.lenient = false;
                    None
                }
            };
            // There is room: one at most for each command.
            dead.extend(end);
        }
        state.evaluated = self.evaluated;
        if state.waiting > 0 {
            board.changed.notify_all();
        }
    }

    /// Gives a member a place, or the member back if there is none.
    fn place(&mut self, mut member: Member) -> Option<Member> {
        let Some(place) = self.members.iter().position(Option::is_none) else {
            return Some(member);
        };
        let bit = 1 << place;
        let mut next = Next::GoOn;
        for stream in &self.streams {
            if member.takes(stream) {
                *self.routes.entry(stream.id).or_default() |= bit;
                note(&mut self.mixed, stream, place, &member);
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
        self.members[place] = Some(member);
        self.remember();
        None
    }

    fn remove(&mut self, key: u64) -> Option<Member> {
        let is_it = |member: &Option<Member>| {
            let member = member.as_ref();
            member.is_some_and(|member| member.shared().key == key)
        };
        let place = self.members.iter().position(is_it)?;
        let bit = 1 << place;
        self.active &= !bit;
        for members in self.routes.values_mut() {
            *members &= !bit;
        }
        self.mixed.forget(place);
        self.remember();
        self.members[place].take()
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

    /// Makes `quick` say what `routes` does, after a change.
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

    /// Asks every member about a stream that nobody has heard of.
    #[cold]
    fn meet(&mut self, stream: &StreamDescriptor) -> u64 {
        let mut members = 0;
        let mut active = self.active;
        each(self.active, |place| {
            if let Some(member) = &mut self.members[place] {
                if member.takes(stream) {
                    members |= 1 << place;
                    note(&mut self.mixed, stream, place, member);
                    if member.open(stream) == Next::Ended {
                        active &= !(1 << place);
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

    /// Has elements evaluated that are for the same members. A sole one gets all of them at once. Several are
    /// called by turns with each, so that they hear of everything in the one order whatever they share.
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
        let (next, heard) = member.elements(elements);
        self.elements += heard as u64;
        if next == Next::Ended {
            self.active &= !called;
        }
    }

    #[inline]
    fn evaluate_one(&mut self, element: &ElementView<'_>, members: u64) {
        self.elements += u64::from(members & self.active != 0);
        self.call(members, |member| member.element(element));
    }

    /// Calls members; those that end are called no more.
    #[inline(always)]
    fn call(&mut self, members: u64, mut call: impl FnMut(&mut Member) -> Next) {
        let (all, active) = (&mut self.members, &mut self.active);
        each(members & *active, |place| {
            if let Some(member) = &mut all[place] {
                if call(member) == Next::Ended {
                    *active &= !(1 << place);
                }
            }
        });
    }
}

/// Takes note of whether a member reads a stream in place.
fn note(mixed: &mut Mixed, stream: &StreamDescriptor, place: usize, member: &Member) {
    if stream.schema.size() > IN_PLACE_BYTES {
        mixed.note(stream, place, member.reads_in_place(stream));
    }
}

/// Calls for the number of each bit that is set.
#[inline(always)]
fn each(mut bits: u64, mut call: impl FnMut(usize)) {
    while bits != 0 {
        call(bits.trailing_zeros() as usize);
        bits &= bits - 1;
    }
}

impl Update for UpdateSet {
    /// What all members require; the empty set if one of them wants everything.
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
            // A directory that begins anew gives its numbers anew.
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
            // Streams that are not in the quick table begin anew.
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
        let wanted = self.mixed.wanted(stream.id);
        self.mixed.begin(element, members & !wanted != 0);
        let (all, mixed, active) = (&mut self.members, &mut self.mixed, &mut self.active);
        each(members & wanted, |place| {
            let prepared = all[place].as_mut().map(|member| member.prepare(element));
            match prepared {
                Some(Prepared::Done { ready }) => mixed.prepared(place, ready),
                Some(Prepared::Ended) => *active &= !(1 << place),
                Some(Prepared::Skipped) | None => {}
            }
        });
        true
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        let members = self.members_of(element.stream) & self.active;
        self.elements += u64::from(valid && members != 0);
        let (all, mixed, active) = (&mut self.members, &self.mixed, &mut self.active);
        each(members, |place| {
            let Some(member) = &mut all[place] else {
                return;
            };
            let next = match mixed.turn(element.stream.id, place) {
                Turn::Commit(ready) => member.commit(element, valid, ready),
                Turn::Copy if valid => member.element(&mixed.view(element)),
                Turn::Copy | Turn::None => Next::GoOn,
            };
            if next == Next::Ended {
                *active &= !(1 << place);
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
    /// Leaves every update to those who refer to it. Not for a thread under real-time guarantees:
    /// what nobody refers to is destroyed here.
    fn drop(&mut self) {
        let mut dead: Vec<Member> = self.members.drain(..).flatten().collect();
        let mut state = self.board.lock();
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
        // First the updates, then the news of it: whoever waited for the end finds them.
        dead.into_iter().for_each(Member::bury);
        self.board.changed.notify_all();
    }
}
