// SPDX-License-Identifier: MIT OR Apache-2.0
//! A member of a set: the calls of its update, its counters, its end.

use std::any::Any;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::{Arc, Mutex};

use overhear_event::{
    ElementInPlace, ElementKey, ElementView, EventSet, Gap, StreamDescriptor, Timestamp,
};

use super::binding::{Binding, MissedPolicy, Subscription, SubscriptionMatch};
use super::handle::{AnyUpdate, Shared, SharedState, UpdateState};

/// An update, its binding and its counters.
pub(crate) struct Member {
    update: Box<dyn AnyUpdate>,
    subscription: Subscription,
    start: Timestamp,
    policy: MissedPolicy,
    counts: Counts,
    end: Option<End>,
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    elements: u64,
    missed: u64,
    gaps: u64,
}

/// Why a member is not called any more.
#[derive(Clone, Debug)]
enum End {
    Stopped(Gap),
    Failed(String),
}

/// Whether a member is to be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Next {
    GoOn,
    Ended,
}

/// The result of a member's [`Analysis::prepare`](overhear_event::Analysis::prepare).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Prepared {
    /// It starts with later elements.
    Skipped,
    /// It was called; whether it has a result to commit.
    Done { ready: bool },
    /// It is not called any more.
    Ended,
}

impl Member {
    pub(crate) fn new(update: Box<dyn AnyUpdate>, binding: Binding, key: u64) -> Self {
        let subscription = binding
            .subscription
            .unwrap_or_else(|| Subscription::of(&*update));
        Self {
            update,
            subscription,
            start: binding.start.time(),
            policy: binding.missed,
            counts: Counts::default(),
            end: None,
            shared: Arc::new(Shared {
                key,
                name: binding.name,
                state: Mutex::new(SharedState::default()),
            }),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The update, if it is of this type.
    pub(crate) fn update_mut<U: 'static>(&mut self) -> Option<&mut U> {
        let update: &mut dyn Any = &mut *self.update;
        update.downcast_mut()
    }

    pub(crate) fn requires(&self) -> EventSet {
        self.update.requires()
    }

    /// Whether the update is called for this stream. Records a complaint if the type does not
    /// match.
    pub(crate) fn takes(&self, stream: &StreamDescriptor) -> bool {
        let complaint = match self.subscription.answer(stream) {
            SubscriptionMatch::No => return false,
            SubscriptionMatch::OtherType(message) => {
                Some(format!("update `{}`: {message}", self.shared.name))
            }
            SubscriptionMatch::Yes => {
                let update = &self.update;
                // After a panic here the stream is delivered, and a panic there ends the update.
                let refused = catch_unwind(AssertUnwindSafe(|| update.refuses(stream)));
                refused.unwrap_or(None)
            }
        };
        let Some(complaint) = complaint else {
            return true;
        };
        let mut state = self.shared.lock();
        if !state.status.complaints.contains(&complaint) {
            state.status.complaints.push(complaint);
        }
        false
    }

    pub(crate) fn open(&mut self, stream: &StreamDescriptor) -> Next {
        self.call(|update| update.open(stream))
    }

    pub(crate) fn warm_up(&mut self) -> Next {
        self.call(|update| update.warm_up())
    }

    #[inline]
    pub(crate) fn element(&mut self, element: &ElementView<'_>) -> Next {
        self.elements(slice::from_ref(element)).0
    }

    /// Evaluates consecutive elements. Also returns the number of elements that it got: all, unless
    /// it ended.
    #[inline]
    pub(crate) fn elements(&mut self, elements: &[ElementView<'_>]) -> (Next, usize) {
        let early = match elements.first() {
            Some(first) if first.time < self.start => {
                elements.partition_point(|element| element.time < self.start)
            }
            _ => 0,
        };
        let (update, mut reached) = (&mut *self.update, 0);
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            update.evaluate(&elements[early..], &mut reached)
        }));
        self.counts.elements += reached as u64;
        (self.ended_by(evaluated), early + reached)
    }

    pub(crate) fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        let update = &self.update;
        // After a panic here the update gets copies.
        catch_unwind(AssertUnwindSafe(|| update.reads_in_place(stream))).unwrap_or(false)
    }

    pub(crate) fn prepare(&mut self, element: &ElementInPlace<'_>) -> Prepared {
        if element.key().time < self.start {
            return Prepared::Skipped;
        }
        let mut ready = false;
        match self.call(|update| ready = update.prepare(element)) {
            Next::GoOn => Prepared::Done { ready },
            Next::Ended => Prepared::Ended,
        }
    }

    /// Commits or drops the prepared result.
    pub(crate) fn commit(&mut self, element: &ElementKey<'_>, whole: bool, ready: bool) -> Next {
        // An overwritten element follows as a gap.
        self.counts.elements += u64::from(whole);
        self.call(|update| update.commit(element, whole && ready))
    }

    pub(crate) fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap, lenient: bool) -> Next {
        if gap.to < self.start {
            return Next::GoOn;
        }
        self.counts.gaps += 1;
        self.counts.missed = self.counts.missed.saturating_add(gap.missed);
        let next = self.call(|update| update.gap(stream, gap));
        if self.policy == MissedPolicy::Stop && !lenient && next == Next::GoOn {
            self.end = Some(End::Stopped(*gap));
            return Next::Ended;
        }
        next
    }

    pub(crate) fn advance(&mut self, now: Timestamp) -> Next {
        if now < self.start {
            return Next::GoOn;
        }
        self.call(|update| update.advance(now))
    }

    /// Calls the update. A panic ends this update alone.
    #[inline(always)]
    fn call(&mut self, call: impl FnOnce(&mut dyn AnyUpdate)) -> Next {
        let update = &mut *self.update;
        let called = catch_unwind(AssertUnwindSafe(|| {
            call(update);
            update.failure().is_some()
        }));
        self.ended_by(called)
    }

    /// Handles the result of a call. After a panic the update is not called again: only its owner,
    /// who gets the failure, can access the state that the panic left.
    #[inline(always)]
    fn ended_by(&mut self, called: std::thread::Result<bool>) -> Next {
        let why = match called {
            Ok(false) => return Next::GoOn,
            Ok(true) => self.update.failure().unwrap_or_default().to_string(),
            Err(panic) => message_of(&*panic),
        };
        self.end = Some(End::Failed(why));
        Next::Ended
    }

    /// Publishes the status to the references, unless its lock is held.
    pub(crate) fn publish(&self) {
        if let Ok(mut state) = self.shared.state.try_lock() {
            self.publish_state(&mut state, UpdateState::Running);
        }
    }

    fn publish_state(&self, state: &mut SharedState, otherwise: UpdateState) {
        let status = &mut state.status;
        status.elements = self.counts.elements;
        status.missed = self.counts.missed;
        status.gaps = self.counts.gaps;
        match (&self.end, &status.state) {
            // Set once: the message is not copied in every round.
            (Some(_), UpdateState::Stopped(_) | UpdateState::Failed(_)) => {}
            (Some(End::Stopped(gap)), _) => status.state = UpdateState::Stopped(*gap),
            (Some(End::Failed(why)), _) => status.state = UpdateState::Failed(why.clone()),
            (None, _) => status.state = otherwise,
        }
    }

    /// Ends it for this reason, before its first call.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.end = Some(End::Failed(why.to_string()));
    }

    /// Passes the update to its references; without any, it is dropped here.
    pub(crate) fn drop_update(self) {
        let mut state = self.shared.lock();
        self.publish_state(&mut state, UpdateState::Removed);
        state.update = Some(self.update);
        drop(state);
    }
}

/// The message of a panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    let message = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned());
    message.map_or_else(
        || "it panicked".to_string(),
        |message| format!("it panicked: {message}"),
    )
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("subscription", &self.subscription)
            .field("counts", &self.counts)
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}
