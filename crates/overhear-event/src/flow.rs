// SPDX-License-Identifier: MIT OR Apache-2.0
//! Items (elements, gaps and advances), and the traits that they pass: from a [`Source`] through an
//! [`Inbox`] to an [`Analysis`].

use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    ElementInPlace, ElementKey, EventSet, InPlaceMemory, Run, StreamDescriptor, StreamId,
    Timestamp, Value,
};

/// One element, validated and in total order, borrowed by an analysis.
#[derive(Clone, Copy, Debug)]
pub struct ElementView<'a> {
    /// The stream it belongs to.
    pub stream: &'a StreamDescriptor,
    /// Its position in the stream since the stream's start.
    pub sequence: u64,
    /// When it was committed.
    pub time: Timestamp,
    /// The payload: exactly `stream.schema.size()` bytes, in memory that no other process writes.
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

/// The cause of a gap. Each cause is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GapCause {
    /// The writer lapped the reader: the ring was too small or the reader too slow.
    Overwritten,
    /// The element arrived after the merge had passed its time: the writer was preempted between
    /// stamp and publication for longer than the hold-back. Or the analysis panicked at or
    /// shortly before it.
    Late,
    /// A write nested in another of the same thread or CPU was refused.
    Nested,
    /// A write was refused because no element of the queue, or no lane, was free.
    Full,
    /// The kernel or its buffer reported a loss of its own.
    Kernel,
    /// The element's time is before its predecessor's, or in the future: the writer's process
    /// damaged the stream.
    Corrupt,
    /// The clock started a new epoch (suspend, restored virtual machine).
    Epoch,
    /// Elements of the stream, or of related streams, contradict each other: an element between
    /// them was never recorded, nor counted. The number of missed elements is a lower bound.
    Inconsistent,
    /// A budget had switched the sensor off: its writer counted the write and did not make it.
    /// Events of a kernel sensor or a probe that was detached are not counted: each such gap stands
    /// for an unknown number, and counts as one.
    Budget,
    /// The recorder left the elements out of the recording, to keep the rate or the size that the
    /// user had set for it. They were written and evaluated live, so this cause is in recordings
    /// only, and differs from [`GapCause::Budget`].
    Disk,
    /// A sampler took no sample in a period: its thread was not woken in time, or the source could
    /// not be read.
    Unsampled,
}

impl GapCause {
    /// Every cause, in the order in which losses are shown.
    pub const ALL: [Self; 11] = [
        Self::Overwritten,
        Self::Late,
        Self::Nested,
        Self::Full,
        Self::Kernel,
        Self::Corrupt,
        Self::Epoch,
        Self::Inconsistent,
        Self::Budget,
        Self::Disk,
        Self::Unsampled,
    ];

    /// Whether the elements were left out on purpose, to keep a limit that the user had set: the
    /// others are a sample.
    #[must_use]
    pub const fn is_deliberate(self) -> bool {
        matches!(self, Self::Budget | Self::Disk)
    }

    /// The number of the cause in C: `OH_GAP_*` of `update.h`, from 1 on in this order.
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
            Self::Budget => "budget",
            Self::Disk => "disk",
            Self::Unsampled => "unsampled",
        }
    }
}

impl fmt::Display for GapCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Missed elements of one stream: no analysis has received them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// The stream they belong to.
    pub stream: StreamId,
    /// The position of the first missed element.
    pub first: u64,
    /// Number of missed elements: exact for honest writers; a lower bound with
    /// [`GapCause::Inconsistent`].
    pub missed: u64,
    /// The time of the last element before them, or the start of the observation.
    pub from: Timestamp,
    /// The time of the first element after them, or the end of the observation.
    pub to: Timestamp,
    /// The cause.
    pub cause: GapCause,
}

/// The argument of one call of an analysis.
#[derive(Clone, Copy, Debug)]
pub enum Item<'a> {
    /// The next element in total order.
    Element(ElementView<'a>),
    /// The next element in total order, in its writer's memory. Only for consumers that returned
    /// true from [`Inbox::open_in_place`].
    InPlace(&'a ElementInPlace<'a>),
    /// Missed elements, at their position in the order.
    Gap(&'a StreamDescriptor, Gap),
    /// No item older than this time follows.
    Advance(Timestamp),
}

/// Code that gets every item of the streams in total order.
///
/// The same code runs live, with a guarantee, or over a trace. So it must not read clocks: all time
/// comes in through its arguments.
pub trait Analysis {
    /// The events that this analysis needs; an empty set stands for all events.
    fn requires(&self) -> EventSet {
        EventSet::new()
    }

    /// Called once per stream, before its first item, so that setup (tables, checks of the type) is
    /// not part of an analysis. A caller may omit it: every item has the stream's descriptor.
    fn open(&mut self, stream: &StreamDescriptor) {
        let _ = stream;
    }

    /// Called once per stream, before [`Analysis::open`]. If it returns `Some`, a message with the
    /// reason, the update gets nothing of that stream, and its elements do not count as evaluated.
    fn refuses(&self, stream: &StreamDescriptor) -> Option<String> {
        let _ = stream;
        None
    }

    /// Called after each other call. If it returns `Some`, a message with the reason, one of the
    /// update's functions has failed, and the update is not called any more.
    fn failure(&self) -> Option<&str> {
        None
    }

    /// Prepares for evaluations without allocations and page faults: does everything that the first
    /// evaluation would do only once, for caches, tables and thread-local variables. An executor
    /// with a guarantee calls it once, in the evaluating thread, after the expected streams have
    /// been opened and all memory has been locked. Other executors need not call it, so results
    /// must not depend on it.
    fn warm_up(&mut self) {}

    /// Evaluates one element.
    fn element(&mut self, element: &ElementView<'_>);

    /// Evaluates consecutive elements, with no other item between them. The default calls
    /// [`Analysis::element`] for each; an implementation may be faster, with the same result.
    /// Monitors and replays call this function. Executors that time each element, or stop at a
    /// failed one, call [`Analysis::element`].
    fn elements(&mut self, elements: &[ElementView<'_>]) {
        for element in elements {
            self.element(element);
        }
    }

    /// Whether the elements of this stream are to be evaluated in place, by [`Analysis::prepare`]
    /// and [`Analysis::commit`]. Called once per stream, only if its payload has more than
    /// [`IN_PLACE_BYTES`](crate::IN_PLACE_BYTES).
    ///
    /// Even then copies may come, from queues of several writers, replays and executors that copy.
    /// So [`Analysis::element`] must evaluate these elements, too.
    fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        let _ = stream;
        false
    }

    /// Prepares the evaluation of an element that its writer may overwrite at any moment, without
    /// an effect outside the update. Returns whether there is a result to commit
    /// [GRTMon, section 4.3].
    ///
    /// The loaded words can have any value: indices and lengths must be checked before use.
    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        let _ = element;
        false
    }

    /// Ends an evaluation in place. If `valid`, [`Analysis::prepare`] returned true and the element
    /// was whole until after it: the result is applied. If not, it is dropped; an overwritten
    /// element is reported by a gap, too.
    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        let _ = (element, valid);
    }

    /// Reports missed elements. A result across a gap is incomplete.
    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap);

    /// Promises that no item older than `now` follows: so absence and deadlines can be decided.
    fn advance(&mut self, now: Timestamp);
}

impl<U: Analysis + ?Sized> Analysis for &mut U {
    fn requires(&self) -> EventSet {
        (**self).requires()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        (**self).open(stream);
    }

    fn refuses(&self, stream: &StreamDescriptor) -> Option<String> {
        (**self).refuses(stream)
    }

    fn failure(&self) -> Option<&str> {
        (**self).failure()
    }

    fn warm_up(&mut self) {
        (**self).warm_up();
    }

    fn element(&mut self, element: &ElementView<'_>) {
        (**self).element(element);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        (**self).elements(elements);
    }

    fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        (**self).reads_in_place(stream)
    }

    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        (**self).prepare(element)
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        (**self).commit(element, valid);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        (**self).gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        (**self).advance(now);
    }
}

/// Receives the items of a [`Source`].
///
/// The contract of the calls, per stream: `open` comes first and once; element times never
/// decrease; sequences increase by one, or a `gap` accounts for the positions between.
pub trait Inbox {
    /// Opens a stream.
    fn open(&mut self, stream: Arc<StreamDescriptor>);

    /// Opens a stream whose elements can be read in place, and returns whether they will be. If
    /// true, each element comes by [`Inbox::in_place`], without its payload; if false, by
    /// [`Inbox::element`].
    fn open_in_place(
        &mut self,
        stream: Arc<StreamDescriptor>,
        payloads: Arc<dyn InPlaceMemory>,
    ) -> bool {
        drop(payloads);
        self.open(stream);
        false
    }

    /// Delivers one element.
    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]);

    /// Delivers consecutive elements. The default calls [`Inbox::element`] for each; an
    /// implementation may be faster, with the same result.
    fn run(&mut self, stream: StreamId, run: &Run<'_>) {
        for (sequence, time, payload) in run.sequenced() {
            self.element(stream, sequence, time, payload);
        }
    }

    /// Delivers one element without its payload, of a stream for which [`Inbox::open_in_place`]
    /// returned true.
    fn in_place(&mut self, stream: StreamId, sequence: u64, time: Timestamp) {
        self.element(stream, sequence, time, &[]);
    }

    /// Delivers a gap. The merge adds its `from` and `to`, the times of the neighbouring elements.
    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause);

    /// Number of elements of a stream that it accepts in this poll. A source that can leave
    /// elements in its buffer delivers no more, and calls [`Inbox::leave`] if there are others.
    /// Other sources ignore it.
    fn room(&mut self, stream: StreamId) -> u64 {
        let _ = stream;
        u64::MAX
    }

    /// Elements that were committed before the poll began were not delivered, because the inbox had
    /// no [room](Inbox::room). Later polls deliver them.
    fn leave(&mut self, stream: StreamId) {
        let _ = stream;
    }

    /// Closes a stream: no item of it follows.
    fn close(&mut self, stream: StreamId);

    /// Reports, as a message, an error that does not stop the source: a damaged header, one broken
    /// stream among many. An inbox may drop it; the missed elements have a gap of their own.
    fn complain(&mut self, complaint: SourceError) {
        let _ = complaint;
    }
}

/// A source of streams: sensors of programs, kernel rings, a recorded trace.
pub trait Source {
    /// Delivers all readable items. After the call every element that was committed before it has
    /// been delivered, or counted by a gap, except elements that it has [left](Inbox::leave).
    ///
    /// # Errors
    /// [`SourceError`] if the whole source failed. The monitor reports it and continues with the
    /// others.
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError>;

    /// Announces that the next poll is the last one, or the next ones until no element is
    /// [left](Inbox::leave). A source that counts its losses only at its end, or has to be stopped,
    /// does that here. The call may block.
    fn end(&mut self) {}
}

/// Why a source failed, as a message for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);
