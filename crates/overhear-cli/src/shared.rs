// SPDX-License-Identifier: MIT OR Apache-2.0
//! A source or an update that somebody else needs to talk to while the monitor uses it.

use std::cell::RefCell;
use std::rc::Rc;

use overhear_event::{
    ElementView, EventSet, Gap, Inbox, Source, SourceError, StreamDescriptor, Timestamp, Update,
};

/// Shares one with the monitor. Nobody holds a borrow across a round.
pub(crate) struct Shared<T>(pub(crate) Rc<RefCell<T>>);

impl<S: Source> Source for Shared<S> {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        self.0.borrow_mut().poll(inbox)
    }

    fn end(&mut self) {
        self.0.borrow_mut().end();
    }
}

impl<U: Update> Update for Shared<U> {
    fn requires(&self) -> EventSet {
        self.0.borrow().requires()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.0.borrow_mut().open(stream);
    }

    fn warm_up(&mut self) {
        self.0.borrow_mut().warm_up();
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.0.borrow_mut().element(element);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.borrow_mut().gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.0.borrow_mut().advance(now);
    }
}
