// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches: consecutive elements that the merge delivers in one call.
//!
//! Elements that follow each other in the total order, of one or several streams, without another
//! item between them, are collected and delivered in one call: the cost of calling an analysis,
//! of selecting the updates of a stream and of catching a panic is paid once for many. The order
//! within a batch is the total order. A gap, an element in place or an advance first flushes the
//! batch.
//!
//! If the caller limits the release after each element ([`UntilEnough`]), every element is
//! delivered alone: the limit depends on how the preceding element is evaluated.
//!
//! Elements of a call that panics have left their queues. They are kept as [`Lost`], and reported
//! as missed by the next release. If they were delivered one by one, these are the elements after
//! the last one that returned; if they were delivered in one call, all of them, because the
//! progress of the call is not known.

use std::cell::{Cell, RefCell};

use overhear_event::{
    ElementInPlace, ElementView, Gap, Item, StreamDescriptor, StreamId, Timestamp,
};

/// Maximum number of elements in a batch: few enough to stay in the first-level cache.
const BATCH_ELEMENTS: usize = 64;

/// A delivery of the merge: an [`Item`], or a batch of elements.
pub(crate) enum Released<'a> {
    /// A batch. A sink that delivers the elements one by one counts them in the cell.
    Elements(&'a [ElementView<'a>], &'a Cell<usize>),
    InPlace(&'a ElementInPlace<'a>),
    Gap(&'a StreamDescriptor, Gap),
    Advance(Timestamp),
}

impl Released<'_> {
    /// Delivers the items one by one.
    pub(crate) fn each(self, mut sink: impl FnMut(Item<'_>)) {
        match self {
            Self::Elements(elements, delivered) => {
                for (element, number) in elements.iter().zip(1..) {
                    delivered.set(number);
                    sink(Item::Element(*element));
                }
            }
            Self::InPlace(element) => sink(Item::InPlace(element)),
            Self::Gap(stream, gap) => sink(Item::Gap(stream, gap)),
            Self::Advance(time) => sink(Item::Advance(time)),
        }
    }
}

/// An element of a call that panicked before it was delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) stream: StreamId,
    pub(crate) sequence: u64,
    pub(crate) time: Timestamp,
}

/// The limit of a release.
pub(crate) trait ReleaseLimit {
    /// Maximum number of elements per batch.
    const MAX_ELEMENTS: usize;

    /// Whether the release ends before the next element.
    fn is_enough(&mut self) -> bool;
}

/// No limit.
pub(crate) struct Unlimited;

impl ReleaseLimit for Unlimited {
    const MAX_ELEMENTS: usize = BATCH_ELEMENTS;

    #[inline(always)]
    fn is_enough(&mut self) -> bool {
        false
    }
}

/// A function that ends the release.
pub(crate) struct UntilEnough<F>(pub(crate) F);

impl<F: FnMut() -> bool> ReleaseLimit for UntilEnough<F> {
    const MAX_ELEMENTS: usize = 1;

    #[inline(always)]
    fn is_enough(&mut self) -> bool {
        self.0()
    }
}

/// Collects elements and delivers them.
pub(crate) struct Batch<'q, P, S> {
    // Only the first `count` are valid.
    elements: [ElementView<'q>; BATCH_ELEMENTS],
    count: usize,
    // Number of elements in a call of the sink that has not returned, and the delivered ones of
    // these.
    handed: usize,
    delivered: Cell<usize>,
    // The element in place of a call of the sink that has not returned.
    in_place: Option<Lost>,
    lost: &'q RefCell<Vec<Lost>>,
    limit: P,
    sink: S,
}

impl<'q, P: ReleaseLimit, S: FnMut(Released<'_>)> Batch<'q, P, S> {
    /// An empty batch, for elements of any stream. `stream` is a placeholder for unused elements.
    pub(crate) fn new(
        stream: &'q StreamDescriptor,
        lost: &'q RefCell<Vec<Lost>>,
        limit: P,
        sink: S,
    ) -> Self {
        let nothing = ElementView {
            stream,
            sequence: 0,
            time: Timestamp::ZERO,
            payload: &[],
        };
        Self {
            elements: [nothing; BATCH_ELEMENTS],
            count: 0,
            handed: 0,
            delivered: Cell::new(0),
            in_place: None,
            lost,
            limit,
            sink,
        }
    }

    /// Whether the release ends before the next element.
    #[inline(always)]
    pub(crate) fn is_enough(&mut self) -> bool {
        self.limit.is_enough()
    }

    /// Adds the next element.
    #[inline(always)]
    pub(crate) fn push(&mut self, element: ElementView<'q>) {
        self.elements[self.count] = element;
        self.count += 1;
        if self.count == P::MAX_ELEMENTS {
            self.flush();
        }
    }

    /// Delivers the collected elements, then another item.
    pub(crate) fn flush_with(&mut self, other: Released<'_>) {
        self.flush();
        (self.sink)(other);
    }

    /// Delivers the collected elements, then an element in place.
    pub(crate) fn flush_in_place(&mut self, element: &ElementInPlace<'_>) {
        self.flush();
        let key = element.key();
        self.in_place = Some(Lost {
            stream: key.stream.id,
            sequence: key.sequence,
            time: key.time,
        });
        (self.sink)(Released::InPlace(element));
        self.in_place = None;
    }

    /// Delivers the collected elements.
    #[inline(never)]
    pub(crate) fn flush(&mut self) {
        let count = std::mem::take(&mut self.count);
        if count > 0 {
            self.handed = count;
            self.delivered.set(0);
            (self.sink)(Released::Elements(&self.elements[..count], &self.delivered));
            self.handed = 0;
        }
    }
}

impl<P, S> Drop for Batch<'_, P, S> {
    /// Keeps the elements that a panic left. Without a panic there are none.
    fn drop(&mut self) {
        let handed = self.elements[..self.handed].iter();
        let handed = handed.skip(self.delivered.get());
        let left = handed.chain(&self.elements[..self.count]);
        self.lost.borrow_mut().extend(left.map(|element| Lost {
            stream: element.stream.id,
            sequence: element.sequence,
            time: element.time,
        }));
        self.lost.borrow_mut().extend(self.in_place.take());
    }
}
