// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements that the merge hands over together.
//!
//! Elements of several streams that follow each other in the total order, and between which nothing else
//! comes, are collected and handed over at once: what it costs to call an evaluation, to ask who wants a
//! stream and to be ready for a panic is paid once for many. The order is that of the elements, one by
//! one. A gap, an element in place and an advance are handed over behind what was collected before them.
//!
//! Where somebody asks before each element whether there have been enough, every element is handed over
//! by itself: what the answer depends on is known only when the one before has been evaluated.
//!
//! An evaluation that panics leaves what it was handed behind: these elements have left their queues, and nobody
//! has them any more. They are kept as [`Lost`], and missed by whoever releases next. Handed over one by one
//! they are those behind the one at which it panicked; handed over together it is not known how far it had come,
//! and all of them are missed.

use std::cell::{Cell, RefCell};

use overhear_event::{
    ElementInPlace, ElementView, Gap, Item, StreamDescriptor, StreamId, Timestamp,
};

/// So many are handed over at once at most: few enough that they lie in the nearest cache.
const MOST: usize = 64;

/// What the merge hands over: an [`Item`], or several elements.
pub(crate) enum Released<'a> {
    /// And how many of them have been delivered, for who delivers them one by one.
    Elements(&'a [ElementView<'a>], &'a Cell<usize>),
    InPlace(&'a ElementInPlace<'a>),
    Gap(&'a StreamDescriptor, Gap),
    Advance(Timestamp),
}

impl Released<'_> {
    /// One by one.
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

/// An element that a call which panicked has not delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) stream: StreamId,
    pub(crate) sequence: u64,
    pub(crate) time: Timestamp,
}

/// When elements have to be handed over.
pub(crate) trait Portion {
    /// How many elements may be collected.
    const MOST: usize;

    /// Asked before each element.
    fn is_enough(&mut self) -> bool;
}

/// All that there is.
pub(crate) struct Everything;

impl Portion for Everything {
    const MOST: usize = MOST;

    #[inline(always)]
    fn is_enough(&mut self) -> bool {
        false
    }
}

/// Until somebody says that there have been enough.
pub(crate) struct Until<F>(pub(crate) F);

impl<F: FnMut() -> bool> Portion for Until<F> {
    const MOST: usize = 1;

    #[inline(always)]
    fn is_enough(&mut self) -> bool {
        self.0()
    }
}

/// Collects elements and hands them over.
pub(crate) struct Batch<'q, P, S> {
    // Those behind `count` mean nothing.
    elements: [ElementView<'q>; MOST],
    count: usize,
    // How many are in a call of the sink that has not returned, and of these how many are delivered.
    handed: usize,
    delivered: Cell<usize>,
    // What is evaluated in place by a call of the sink that has not returned.
    in_place: Option<Lost>,
    lost: &'q RefCell<Vec<Lost>>,
    portion: P,
    sink: S,
}

impl<'q, P: Portion, S: FnMut(Released<'_>)> Batch<'q, P, S> {
    /// An empty one, for elements of any streams; one of them is given.
    pub(crate) fn new(
        stream: &'q StreamDescriptor,
        lost: &'q RefCell<Vec<Lost>>,
        portion: P,
        sink: S,
    ) -> Self {
        let nothing = ElementView {
            stream,
            sequence: 0,
            time: Timestamp::ZERO,
            payload: &[],
        };
        Self {
            elements: [nothing; MOST],
            count: 0,
            handed: 0,
            delivered: Cell::new(0),
            in_place: None,
            lost,
            portion,
            sink,
        }
    }

    /// Whether there have been enough elements; asked before the next one.
    #[inline(always)]
    pub(crate) fn is_enough(&mut self) -> bool {
        self.portion.is_enough()
    }

    /// Takes the next element.
    #[inline(always)]
    pub(crate) fn push(&mut self, element: ElementView<'q>) {
        self.elements[self.count] = element;
        self.count += 1;
        if self.count == P::MOST {
            self.hand_over();
        }
    }

    /// Hands over something else, behind what was collected.
    pub(crate) fn pass(&mut self, other: Released<'_>) {
        self.hand_over();
        (self.sink)(other);
    }

    /// Hands over an element that stays where it is, behind what was collected.
    pub(crate) fn pass_in_place(&mut self, element: &ElementInPlace<'_>) {
        self.hand_over();
        let key = element.key();
        self.in_place = Some(Lost {
            stream: key.stream.id,
            sequence: key.sequence,
            time: key.time,
        });
        (self.sink)(Released::InPlace(element));
        self.in_place = None;
    }

    /// Hands over what was collected.
    #[inline(never)]
    pub(crate) fn hand_over(&mut self) {
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
    /// Keeps what a panic has left: otherwise there is nothing.
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
