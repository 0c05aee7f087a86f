// SPDX-License-Identifier: MIT OR Apache-2.0
//! A monitor: sources, the merge, and the account of losses.

use std::sync::Arc;

use overhear_event::{
    Inbox, Item, Nanos, Source, SourceError, StreamDescriptor, Timestamp, Update,
};

use crate::losses::Losses;
use crate::merge::Merge;

/// How long elements are held back by default: longer than a preemption between stamp and
/// publication usually lasts.
pub const HOLD_BACK: Nanos = Nanos::from_ms(2);

/// Reads sources and feeds an update in total order, one round at a time.
pub struct Monitor {
    sources: Vec<Box<dyn Source>>,
    merge: Merge,
    losses: Losses,
    hold_back: Nanos,
    elements: u64,
}

impl Monitor {
    /// A monitor that holds elements back for this long.
    #[must_use]
    pub fn new(hold_back: Nanos) -> Self {
        Self {
            sources: Vec::new(),
            merge: Merge::new(),
            losses: Losses::default(),
            hold_back,
            elements: 0,
        }
    }

    /// Reads this source too, from the next round on.
    pub fn add_source(&mut self, source: Box<dyn Source>) {
        self.sources.push(source);
    }

    /// Reads all sources once and evaluates what is older than the hold-back.
    ///
    /// `now` is the time just before the call.
    pub fn round(&mut self, now: Timestamp, update: &mut dyn Update) {
        self.read(now);
        self.release(now.minus(self.hold_back), update);
    }

    /// Reads all sources for the last time and evaluates everything.
    pub fn finish(&mut self, now: Timestamp, update: &mut dyn Update) {
        self.read(now);
        self.release(Timestamp::MAX, update);
    }

    fn read(&mut self, now: Timestamp) {
        self.merge.begin_round(now);
        for source in &mut self.sources {
            if let Err(error) = source.poll(&mut self.merge) {
                self.merge.complain(error);
            }
        }
    }

    fn release(&mut self, until: Timestamp, update: &mut dyn Update) {
        let (losses, elements) = (&mut self.losses, &mut self.elements);
        self.merge.release(until, |item| match item {
            Item::Element(element) => {
                *elements += 1;
                update.element(&element);
            }
            Item::Gap(stream, gap) => {
                losses.gap(stream, &gap);
                update.gap(stream, &gap);
            }
            Item::Advance(time) => update.advance(time),
        });
    }

    /// Elements evaluated so far.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.elements
    }

    /// What was missed so far, per stream and cause.
    #[must_use]
    pub const fn losses(&self) -> &Losses {
        &self.losses
    }

    /// The streams that were discovered since the last call.
    #[must_use]
    pub fn take_opened(&mut self) -> Vec<Arc<StreamDescriptor>> {
        self.merge.take_opened()
    }

    /// Sentences about sources since the last call: what broke, what is damaged.
    #[must_use]
    pub fn take_complaints(&mut self) -> Vec<SourceError> {
        self.merge.take_complaints()
    }
}
