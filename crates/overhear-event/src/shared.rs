// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sources and updates that their owner uses while a monitor has them, in the same thread.
//!
//! The owner keeps one [`Rc`], the monitor gets another one. Each call borrows the value, and no
//! borrow lasts from one round of the monitor to the next: between rounds the owner may borrow it.
//!
//! [`Analysis::failure`] lends text of the update and cannot be passed on. An update that can fail
//! is given to the monitor itself.

use alloc::rc::Rc;
use alloc::string::String;
use core::cell::RefCell;

use crate::{
    Analysis, ElementInPlace, ElementKey, ElementView, EventSet, Gap, Inbox, Source, SourceError,
    StreamDescriptor, Timestamp,
};

impl<S: Source + ?Sized> Source for Rc<RefCell<S>> {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        self.borrow_mut().poll(inbox)
    }

    fn end(&mut self) {
        self.borrow_mut().end();
    }
}

impl<U: Analysis + ?Sized> Analysis for Rc<RefCell<U>> {
    fn requires(&self) -> EventSet {
        self.borrow().requires()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.borrow_mut().open(stream);
    }

    fn refuses(&self, stream: &StreamDescriptor) -> Option<String> {
        self.borrow().refuses(stream)
    }

    fn warm_up(&mut self) {
        self.borrow_mut().warm_up();
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.borrow_mut().element(element);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        self.borrow_mut().elements(elements);
    }

    fn reads_in_place(&self, stream: &StreamDescriptor) -> bool {
        self.borrow().reads_in_place(stream)
    }

    fn prepare(&mut self, element: &ElementInPlace<'_>) -> bool {
        self.borrow_mut().prepare(element)
    }

    fn commit(&mut self, element: &ElementKey<'_>, valid: bool) {
        self.borrow_mut().commit(element, valid);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.borrow_mut().gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.borrow_mut().advance(now);
    }
}

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::cell::RefCell;

    use crate::{
        Analysis, ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
    };

    /// Number of elements of each call.
    #[derive(Default)]
    struct Calls(Vec<usize>);

    impl Analysis for Calls {
        fn element(&mut self, _: &ElementView<'_>) {
            self.0.push(1);
        }

        fn elements(&mut self, elements: &[ElementView<'_>]) {
            self.0.push(elements.len());
        }

        fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

        fn advance(&mut self, _: Timestamp) {}
    }

    #[test]
    fn consecutive_elements_are_passed_on_in_one_call() {
        let stream = StreamDescriptor {
            id: StreamId::from_raw(1),
            origin: Origin::Sampler,
            sensor: "s".into(),
            instance: "".into(),
            lane: None,
            schema: Arc::new(TypeSchema::builder("t").build().unwrap()),
            rate: None,
            capacity: 8,
        };
        let element = |sequence| ElementView {
            stream: &stream,
            sequence,
            time: Timestamp::from_monotonic_ns(sequence),
            payload: &[],
        };
        let elements: Vec<_> = (0..5).map(element).collect();
        let calls = Rc::new(RefCell::new(Calls::default()));
        let mut shared = Rc::clone(&calls);
        shared.elements(&elements);
        assert_eq!(calls.borrow().0, [5]);
    }
}
