// SPDX-License-Identifier: MIT OR Apache-2.0
//! What flows: elements, gaps and advances, from a [`Source`] through an [`Inbox`] to an
//! [`Update`].

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    ElementInPlace, ElementKey, EventSet, Places, Run, StreamDescriptor, StreamId, Timestamp, Value,
};

/// One element, validated and ordered, lent to an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct ElementView<'a> {
    /// The stream it belongs to.
    pub stream: &'a StreamDescriptor,
    /// Its position in the stream since the stream's start.
    pub sequence: u64,
    /// When it was committed.
    pub time: Timestamp,
    /// The payload, exactly `stream.schema.size()` bytes, a copy nobody else writes to.
    pub payload: &'a [u8],
}

impl<'a> ElementView<'a> {
    /// The value of the field with this name, `None` if the schema has no such field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Value<'a>> {
        let index = self.stream.schema.index_of(name)?;
        self.stream.schema.read(index, self.payload)
    }
}

/// Why elements are missing. Each cause is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// The writer lapped the reader: the ring was too small or the reader too slow.
    Overwritten,
    /// The element arrived after the merge had passed its time: the writer was preempted between
    /// stamp and publication for longer than the hold-back. Or the evaluation panicked over it or just before it,
    /// and was called again.
    Late,
    /// A write nested in another of the same thread or CPU was refused.
    Nested,
    /// A write was refused because no element of the queue, or no lane, was free.
    Full,
    /// The kernel or its buffer reported a loss of its own.
    Kernel,
    /// The element's time lies before its predecessor's, or in the future: the writer's process
    /// damaged the stream.
    Corrupt,
    /// The clock began a new epoch (suspend, restored virtual machine).
    Epoch,
    /// Elements of the stream, or of those beside it, contradict each other: one between them was never recorded, and
    /// nobody counted it. The number of missed elements is the least that is certain.
    Inconsistent,
}

impl GapCause {
    /// Every cause, in the order in which losses are shown.
    pub const ALL: [Self; 8] = [
        Self::Overwritten,
        Self::Late,
        Self::Nested,
        Self::Full,
        Self::Kernel,
        Self::Corrupt,
        Self::Epoch,
        Self::Inconsistent,
    ];

    /// The number that C has for it, `OH_GAP_*` of `update.h`: in their order, from 1 on.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32 + 1
    }

    /// The name used in JSON and in traces.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overwritten => "overwritten",
            Self::Late => "late",
            Self::Nested => "nested",
            Self::Full => "full",
            Self::Kernel => "kernel",
            Self::Corrupt => "corrupt",
            Self::Epoch => "epoch",
            Self::Inconsistent => "inconsistent",
        }
    }
}

impl fmt::Display for GapCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Elements of one stream that no evaluation saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The stream they belong to.
    pub stream: StreamId,
    /// The position of the first missed element.
    pub first: u64,
    /// How many were missed; exact for honest writers, but of [`GapCause::Inconsistent`] the least number.
    pub missed: u64,
    /// The time of the last element before them, or the start of the observation.
    pub from: Timestamp,
    /// The time of the first element after them, or the end of the observation.
    pub to: Timestamp,
    /// Why.
    pub cause: GapCause,
}

/// What an evaluation is called with.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// The next element in total order.
    Element(ElementView<'a>),
    /// The next element in total order, where its writer put it. Only a consumer that asked for it gets
    /// this one: see [`Inbox::open_in_place`].
    InPlace(&'a ElementInPlace<'a>),
    /// Elements that were missed, at their place in the order.
    Gap(&'a StreamDescriptor, Gap),
    /// Nothing older than this time can still come.
    Advance(Timestamp),
}

/// An evaluation: ordinary code that sees every item of the streams in total order.
///
/// It runs unchanged live, guaranteed or over a trace, so it must not read clocks of its
/// own: all time comes in through its arguments.
pub trait Update {
    /// The events this evaluation needs; an empty set stands for all that there are.
    fn requires(&self) -> EventSet {
        EventSet::new()
    }

    /// Learns of a stream before the first of its items, so that what it costs to get to know one
    /// (tables, checks of its type) falls into no evaluation. A stream that is not announced is one
    /// all the same: its descriptor comes with every item.
    fn open(&mut self, stream: &StreamDescriptor) {
        let _ = stream;
    }

    /// Why this evaluates nothing of a stream: its elements are not what it understands. A sentence, or
    /// `None` where it evaluates. Asked when the stream appears, before [`Update::open`]; who refuses one is
    /// not called for it, and none of its elements counts as evaluated.
    fn refuses(&self, stream: &StreamDescriptor) -> Option<String> {
        let _ = stream;
        None
    }

    /// Why this evaluates nothing any more, whatever it is called with: one of its functions has failed. A
    /// sentence, or `None` as long as it goes on. Asked after each call; who has failed is called no more.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// Prepares for evaluations that must neither allocate nor fault, with whatever the first of them would
    /// do only once: caches, tables, thread-local variables. An executor that guarantees something calls it
    /// once, in the thread that evaluates, when the streams that it waits for have been opened and all memory
    /// is locked; others need not, so no result may depend on it.
    fn warm_up(&mut self) {}

    /// Evaluates one element.
    fn element(&mut self, element: &ElementView<'_>);

    /// Evaluates elements between which nothing else comes: as [`Update::element`] of one after the other,
    /// which is what is done unless an evaluation knows a faster way. Monitors and replays call this one; who
    /// counts at which element an update has failed, or times each, calls the other.
    fn elements(&mut self, elements: &[ElementView<'_>]) {
        for element in elements {
            self.element(element);
        }
    }

    /// Whether the elements of this stream are to be evaluated in place, by [`Update::prepare`] and
    /// [`Update::commit`]. Asked when the stream appears, and only where its payload has more than
    /// [`IN_PLACE_BYTES`](crate::IN_PLACE_BYTES).
    ///
    /// A yes is a wish: queues of several writers, replays and executors that copy hand out copies, so
    /// [`Update::element`] evaluates them as well.
    fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        let _ = stream;
        false
    }

    /// Prepares the evaluation of an element that its writer may overwrite meanwhile, without any effect
    /// that is noticed elsewhere; says whether there is something to commit (seed 000, section 4.3).
    ///
    /// What is loaded may be anything: indices and lengths in it are checked before they are used.
    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let _ = element;
        false
    }

    /// Ends what [`Update::prepare`] began. `valid`: it had something to commit, and the element was whole
    /// until after it. Else what was prepared is dropped; an overwritten element comes as a gap, too.
    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        let _ = (element, valid);
    }

    /// Learns of elements that were missed. What is computed across a gap is incomplete.
    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap);

    /// Learns that nothing older than `now` can still come: decides absence and deadlines.
    fn advance(&mut self, now: Timestamp);
}

/// Where a [`Source`] puts what it has read.
///
/// The contract of the calls, per stream: `open` comes first and once; element times never
/// decrease; sequences increase by one, or a `gap` accounts for the positions between.
pub trait Inbox {
    /// Announces a stream.
    fn open(&mut self, stream: Arc<StreamDescriptor>);

    /// Announces a stream whose elements can be read where they lie, and returns whether they will be: then
    /// each comes by [`Inbox::in_place`], without its payload; else by [`Inbox::element`].
    fn open_in_place(&mut self, stream: Arc<StreamDescriptor>, places: Arc<dyn Places>) -> bool {
        drop(places);
        self.open(stream);
        false
    }

    /// Delivers one element.
    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]);

    /// Delivers elements that follow each other: as [`Inbox::element`] of one after the other, which is what is
    /// done unless an inbox knows a faster way.
    fn run(&mut self, stream: StreamId, run: &Run<'_>) {
        for (sequence, time, payload) in run.sequenced() {
            self.element(stream, sequence, time, payload);
        }
    }

    /// Delivers one element that stays where it lies, of a stream for which [`Inbox::open_in_place`] said
    /// yes.
    fn in_place(&mut self, stream: StreamId, sequence: u64, time: Timestamp) {
        self.element(stream, sequence, time, &[]);
    }

    /// Delivers a gap; its `from` and `to` need not be known to the source: the merge fills in
    /// the times of the neighbours.
    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause);

    /// How many elements of a stream it takes in this poll. A source that can leave elements where they are
    /// delivers no more, and calls [`Inbox::leave`] if there are others; any other source ignores it.
    fn room(&mut self, stream: StreamId) -> u64 {
        let _ = stream;
        u64::MAX
    }

    /// Elements that were committed before the poll began were left for want of [room](Inbox::room). They
    /// come with the next polls.
    fn leave(&mut self, stream: StreamId) {
        let _ = stream;
    }

    /// The stream has ended: nothing of it can still come.
    fn close(&mut self, stream: StreamId);

    /// Passes on a sentence about something that is wrong but does not stop the source: a damaged
    /// header, one broken stream among many. An inbox that has nobody to tell may drop it; what is
    /// missing because of it has a gap of its own.
    fn complain(&mut self, complaint: SourceError) {
        let _ = complaint;
    }
}

/// Something that yields streams: sensors of programs, kernel rings, a recorded trace.
pub trait Source {
    /// Delivers what can be read now. Afterwards every element committed before the call began
    /// has been delivered or accounted for by a gap, but for those of streams that it has
    /// [left](Inbox::leave).
    ///
    /// # Errors
    /// [`SourceError`] if the whole source broke; the monitor reports it and goes on with the
    /// others.
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError>;

    /// The next poll is the last one, or the next ones until nothing is [left](Inbox::leave). A source that only knows at its end what it has lost, or has to be
    /// told to stop, learns of it here; this may wait.
    fn end(&mut self) {}
}

/// A source broke: one sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);
