// SPDX-License-Identifier: MIT OR Apache-2.0
//! A monitor: sources, the merge, and the account of losses.

use std::sync::Arc;

use overhear_event::{
    GapCause, Inbox, Nanos, Places, Run, Source, SourceError, StreamDescriptor, StreamId,
    Timestamp, Update,
};

use crate::batch::{Everything, Portion, Released, Until};
use crate::losses::Losses;
use crate::merge::{Merge, Room};

/// How long elements are held back by default: longer than a preemption between stamp and
/// publication usually lasts.
pub const HOLD_BACK: Nanos = Nanos::from_ms(2);

/// Names a source of a monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceKey(u32);

struct Attended {
    key: SourceKey,
    source: Box<dyn Source>,
    // What it has opened.
    streams: Vec<StreamId>,
}

/// The merge, where the update says which streams it evaluates in place.
struct Asking<'a> {
    merge: &'a mut Merge,
    update: &'a dyn Update,
}

impl Inbox for Asking<'_> {
    fn open(&mut self, stream: Arc<StreamDescriptor>) {
        self.merge.open(stream);
    }

    fn open_in_place(&mut self, stream: Arc<StreamDescriptor>, places: Arc<dyn Places>) -> bool {
        let wanted = self.update.reads_in_place(&stream);
        self.merge.open_queue(stream, wanted.then_some(places));
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

/// How often a round reads and evaluates by turns: a writer that is faster than the evaluation would keep it
/// for ever.
const MOST_TURNS: usize = 64;

/// Reads sources and feeds an update in total order, one round at a time.
pub struct Monitor {
    sources: Vec<Attended>,
    next_key: u32,
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
            next_key: 0,
            merge: Merge::new(),
            losses: Losses::default(),
            hold_back,
            elements: 0,
        }
    }

    /// A monitor whose memory is had like this; see [`Room`].
    #[must_use]
    pub fn with_room(hold_back: Nanos, room: Room) -> Self {
        Self {
            merge: Merge::with_room(room),
            ..Self::new(hold_back)
        }
    }

    /// Reads this source too, from the next round on.
    pub fn add_source(&mut self, source: Box<dyn Source>) -> SourceKey {
        let key = SourceKey(self.next_key);
        self.next_key += 1;
        self.sources.push(Attended {
            key,
            source,
            streams: Vec::new(),
        });
        key
    }

    /// Reads a source no more, and gives it back, so that its end costs the monitor nothing. What
    /// was read of its streams is still evaluated, then they are closed. The other sources do not
    /// notice.
    pub fn remove_source(&mut self, key: SourceKey) -> Option<Box<dyn Source>> {
        let at = self.sources.iter().position(|found| found.key == key)?;
        let removed = self.sources.remove(at);
        for stream in removed.streams {
            self.merge.close(stream);
        }
        Some(removed.source)
    }

    /// Bytes of the memory that elements are held back in, now.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.merge.memory_bytes()
    }

    /// Reads all sources and evaluates what is older than the hold-back. Where there is more than fits into
    /// memory, it is read and evaluated by turns.
    ///
    /// `now` is the time just before the call.
    pub fn round(&mut self, now: Timestamp, update: &mut dyn Update) {
        let until = now.minus(self.hold_back);
        for _ in 0..MOST_TURNS {
            self.read(now, update);
            self.release(until, Everything, update);
            if !self.merge.has_left() || self.merge.watermark() >= until {
                return;
            }
        }
    }

    /// Like [`Monitor::round`], but asks before each element whether there have been enough: the rest is
    /// left to the rounds that follow.
    pub fn round_within(
        &mut self,
        now: Timestamp,
        enough: &dyn Fn() -> bool,
        update: &mut dyn Update,
    ) {
        self.read(now, update);
        self.release(now.minus(self.hold_back), Until(enough), update);
    }

    /// Everything older has been evaluated, or counted as missed.
    #[must_use]
    pub const fn evaluated_until(&self) -> Timestamp {
        self.merge.watermark()
    }

    /// Ends all sources, reads them for the last time and evaluates everything.
    pub fn finish(&mut self, now: Timestamp, update: &mut dyn Update) {
        for attended in &mut self.sources {
            attended.source.end();
        }
        loop {
            self.read(now, update);
            self.release(Timestamp::MAX, Everything, update);
            if !self.merge.has_left() {
                return;
            }
        }
    }

    fn read(&mut self, now: Timestamp, update: &dyn Update) {
        self.merge.begin_round(now);
        for attended in &mut self.sources {
            let known = self.merge.opened().len();
            self.merge.begin_source(attended.key.0);
            let mut asking = Asking {
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

    fn release(&mut self, until: Timestamp, portion: impl Portion, update: &mut dyn Update) {
        let (losses, elements) = (&mut self.losses, &mut self.elements);
        self.merge.announce(|stream| {
            losses.open(stream);
            update.open(stream);
        });
        let merge = &mut self.merge;
        merge.release_batches(until, portion, |released| match released {
            Released::Elements(batch, _) => {
                update.elements(batch);
                // Behind the call: one that panics has evaluated nothing, and its elements are missed.
                *elements += batch.len() as u64;
            }
            Released::InPlace(element) => {
                element.evaluate(update);
                // Else it is missed, and follows as a gap.
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
