// SPDX-License-Identifier: MIT OR Apache-2.0
//! One update in a set: how it is called, what is counted, how it ends.

use std::any::Any;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;
use std::sync::{Arc, Mutex};

use overhear_event::{
    ElementInPlace, ElementKey, ElementView, EventSet, Gap, StreamDescriptor, Timestamp,
};

use super::binding::{Answer, Binding, MissedPolicy, Subscription};
use super::reference::{AnyUpdate, Shared, SharedState, UpdateState};

/// An update, its binding and its account.
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

/// Why a member is called no more.
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

/// What came of a member's [`Update::prepare`](overhear_event::Update::prepare).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Prepared {
    /// It evaluates later elements only.
    Skipped,
    /// It was called, and has something to commit or not.
    Done { ready: bool },
    /// It is called no more.
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

    /// Whether the update is called for this stream. A complaint about its type is kept.
    pub(crate) fn takes(&self, stream: &StreamDescriptor) -> bool {
        let complaint = match self.subscription.answer(stream) {
            Answer::No => return false,
            Answer::OtherType(sentence) => {
                Some(format!("update `{}`: {sentence}", self.shared.name))
            }
            Answer::Yes => {
                let update = &self.update;
                // Who panics here may do so over its elements.
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

    /// Evaluates elements that follow each other in the order of time. Also returns of how many it heard before
    /// it ended, if it did: of all, else.
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
        // Who panics here gets copies, and may panic over these.
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

    /// Ends what was prepared.
    pub(crate) fn commit(&mut self, element: &ElementKey<'_>, whole: bool, ready: bool) -> Next {
        // What was overwritten comes as a gap.
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

    /// Calls the update. A panic ends it, and nobody else.
    #[inline(always)]
    fn call(&mut self, call: impl FnOnce(&mut dyn AnyUpdate)) -> Next {
        let update = &mut *self.update;
        let called = catch_unwind(AssertUnwindSafe(|| {
            call(update);
            update.failure().is_some()
        }));
        self.ended_by(called)
    }

    /// What a call that says whether the update has failed means for it. It is not called again after a
    /// panic, so whatever state that left behind is seen by its owner alone, who learns of it.
    #[inline(always)]
    fn ended_by(&mut self, called: std::thread::Result<bool>) -> Next {
        let why = match called {
            Ok(false) => return Next::GoOn,
            Ok(true) => self.update.failure().unwrap_or_default().to_string(),
            Err(panic) => sentence_of(&*panic),
        };
        self.end = Some(End::Failed(why));
        Next::Ended
    }

    /// Tells the references how it is doing, unless somebody is looking just now.
    pub(crate) fn publish(&self) {
        if let Ok(mut state) = self.shared.state.try_lock() {
            self.tell(&mut state, UpdateState::Running);
        }
    }

    fn tell(&self, state: &mut SharedState, otherwise: UpdateState) {
        let status = &mut state.status;
        status.elements = self.counts.elements;
        status.missed = self.counts.missed;
        status.gaps = self.counts.gaps;
        match (&self.end, &status.state) {
            // Told once: the sentence is not copied in every round.
            (Some(_), UpdateState::Stopped(_) | UpdateState::Failed(_)) => {}
            (Some(End::Stopped(gap)), _) => status.state = UpdateState::Stopped(*gap),
            (Some(End::Failed(why)), _) => status.state = UpdateState::Failed(why.clone()),
            (None, _) => status.state = otherwise,
        }
    }

    /// Ends it, for this reason, without having called it.
    pub(crate) fn refuse(&mut self, why: &str) {
        self.end = Some(End::Failed(why.to_string()));
    }

    /// Leaves the update to those who refer to it; if there is nobody, it is dropped here.
    pub(crate) fn bury(self) {
        let mut state = self.shared.lock();
        self.tell(&mut state, UpdateState::Removed);
        state.update = Some(self.update);
        drop(state);
    }
}

/// What a panic said.
pub(crate) fn sentence_of(panic: &(dyn Any + Send)) -> String {
    let said = panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned());
    said.map_or_else(
        || "it panicked".to_string(),
        |said| format!("it panicked: {said}"),
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
