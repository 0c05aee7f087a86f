// SPDX-License-Identifier: MIT OR Apache-2.0
//! A monitor: sources, the merge, and the losses.

use std::sync::Arc;

use overhear_event::{
    Analysis, GapCause, InPlaceMemory, Inbox, Nanos, Run, Source, SourceError, StreamDescriptor,
    StreamId, Timestamp,
};

use crate::batch::{ReleaseLimit, Released, Unlimited, UntilEnough};
use crate::losses::Losses;
use crate::merge::{Merge, QueueMemory};

/// How long elements are held back by default: longer than a preemption between stamp and
/// publication usually lasts.
pub const HOLD_BACK: Nanos = Nanos::from_ms(2);

/// Identifies a source of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey(u32);

struct SourceEntry {
    key: SourceKey,
    source: Box<dyn Source>,
    // The streams that it has opened.
    streams: Vec<StreamId>,
}

/// The merge as an inbox that lets the update choose the streams to evaluate in place.
struct InPlaceInbox<'a> {
    merge: &'a mut Merge,
    update: &'a dyn Analysis,
}

impl Inbox for InPlaceInbox<'_> {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        self.merge.open(stream);
    }

    fn open_in_place(
        &mut self,
        stream: Arc<StreamDescriptor>,
        payloads: Arc<dyn InPlaceMemory>,
    ) -> bool {
        let wanted = self.update.reads_in_place(&stream);
        self.merge.open_queue(stream, wanted.then_some(payloads));
        wanted
    }

    #[inline]
    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        self.merge.element(stream, sequence, time, payload);
    }

    fn run(&mut self, stream: StreamId, run: &Run<'_>) {
        self.merge.run(stream, run);
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        self.merge.gap(stream, first, missed, cause);
    }

    fn room(&mut self, stream: StreamId) -> u64 {
        self.merge.room(stream)
    }

    fn leave(&mut self, stream: StreamId) {
        self.merge.leave(stream);
    }

    fn close(&mut self, stream: StreamId) {
        self.merge.close(stream);
    }

    fn complain(&mut self, complaint: SourceError) {
        self.merge.complain(complaint);
    }
}

/// Passes of reading and evaluating per round, at most: a writer that is faster than the evaluation
/// would make it endless.
const MAX_PASSES: usize = 64;

/// Reads sources and feeds an update in total order, one round at a time.
pub struct Monitor {
    sources: Vec<SourceEntry>,
    next_key: u32,
    merge: Merge,
    losses: Losses,
    hold_back: Nanos,
    elements: u64,
}

impl Monitor {
    /// A monitor with this hold-back.
    #[must_use]
    pub fn new(hold_back: Nanos) -> Self {
        Self {
            sources: Vec::new(),
            next_key: 0,
            merge: Merge::new(),
            losses: Losses::default(),
            hold_back,
            elements: 0,
        }
    }

    /// A monitor with this memory for its queues.
    #[must_use]
    pub fn with_memory(hold_back: Nanos, room: QueueMemory) -> Self {
        Self {
            merge: Merge::with_memory(room),
            ..Self::new(hold_back)
        }
    }

    /// Adds a source, read from the next round on.
    pub fn add_source(&mut self, source: Box<dyn Source>) -> SourceKey {
        let key = SourceKey(self.next_key);
        self.next_key += 1;
        self.sources.push(SourceEntry {
            key,
            source,
            streams: Vec::new(),
        });
        key
    }

    /// Removes a source and returns it, so that the caller pays for its end. Items that were read
    /// from it are still evaluated, then its streams are closed. Other sources are not affected.
    pub fn remove_source(&mut self, key: SourceKey) -> Option<Box<dyn Source>> {
        let at = self.sources.iter().position(|found| found.key == key)?;
        let removed = self.sources.remove(at);
        for stream in removed.streams {
            self.merge.close(stream);
        }
        Some(removed.source)
    }

    /// Bytes of the queues' memory now.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.merge.memory_bytes()
    }

    /// Reads all sources and evaluates items older than the hold-back. A backlog that does not fit
    /// into memory is read and evaluated in several passes.
    ///
    /// `now` is the time just before the call.
    pub fn round(&mut self, now: Timestamp, update: &mut dyn Analysis) {
        let until = now.minus(self.hold_back);
        for _ in 0..MAX_PASSES {
            self.read(now, update);
            self.release(until, Unlimited, update);
            if !self.merge.has_left() || self.merge.watermark() >= until {
                return;
            }
        }
    }

    /// As [`Monitor::round`], but ends before an element if `enough` returns true. Later rounds
    /// evaluate the rest.
    pub fn round_within(
        &mut self,
        now: Timestamp,
        enough: &dyn Fn() -> bool,
        update: &mut dyn Analysis,
    ) {
        self.read(now, update);
        self.release(now.minus(self.hold_back), UntilEnough(enough), update);
    }

    /// All older elements have been evaluated, or counted as missed.
    #[must_use]
    pub const fn evaluated_until(&self) -> Timestamp {
        self.merge.watermark()
    }

    /// Ends all sources, reads them for the last time and evaluates everything.
    pub fn finish(&mut self, now: Timestamp, update: &mut dyn Analysis) {
        for attended in &mut self.sources {
            attended.source.end();
        }
        loop {
            self.read(now, update);
            self.release(Timestamp::MAX, Unlimited, update);
            if !self.merge.has_left() {
                return;
            }
        }
    }

    fn read(&mut self, now: Timestamp, update: &dyn Analysis) {
        self.merge.begin_round(now);
        for attended in &mut self.sources {
            let known = self.merge.opened().len();
            self.merge.begin_source(attended.key.0);
            let mut asking = InPlaceInbox {
                merge: &mut self.merge,
                update,
            };
            if let Err(error) = attended.source.poll(&mut asking) {
                self.merge.complain(error);
            }
            let opened = &self.merge.opened()[known..];
            attended.streams.extend(opened.iter().map(|it| it.id));
        }
    }

    fn release(&mut self, until: Timestamp, limit: impl ReleaseLimit, update: &mut dyn Analysis) {
        let (losses, elements) = (&mut self.losses, &mut self.elements);
        self.merge.announce(|stream| {
            losses.open(stream);
            update.open(stream);
        });
        let merge = &mut self.merge;
        merge.release_batches(until, limit, |released| match released {
            Released::Elements(batch, _) => {
                update.elements(batch);
                // After the call: elements of a call that panics are missed, not evaluated.
                *elements += batch.len() as u64;
            }
            Released::InPlace(element) => {
                element.evaluate(update);
                // If not, it is missed, and a gap follows.
                *elements += u64::from(element.is_whole());
            }
            Released::Gap(stream, gap) => {
                losses.gap(stream, &gap);
                update.gap(stream, &gap);
            }
            Released::Advance(time) => update.advance(time),
        });
    }

    /// Elements evaluated so far.
    #[must_use]
    pub const fn elements(&self) -> u64 {
        self.elements
    }

    /// The losses so far, per stream and cause.
    #[must_use]
    pub const fn losses(&self) -> &Losses {
        &self.losses
    }

    /// The streams that were discovered since the last call.
    #[must_use]
    pub fn take_opened(&mut self) -> Vec<Arc<StreamDescriptor>> {
        self.merge.take_opened()
    }

    /// Takes the complaints about sources since the last call: failures and damage.
    #[must_use]
    pub fn take_complaints(&mut self) -> Vec<SourceError> {
        self.merge.take_complaints()
    }
}
