// SPDX-License-Identifier: MIT OR Apache-2.0
//! A source or an update that somebody else needs to talk to while the monitor uses it.

use std::cell::RefCell;
use std::rc::Rc;

use overhear_event::{
    ElementView, EventSet, Gap, Inbox, Source, SourceError, StreamDescriptor, Timestamp, Update,
};

/// Shares one with the monitor. Nobody holds a borrow across a round.
pub struct Shared<T>(pub Rc<RefCell<T>>);

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

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        self.0.borrow_mut().elements(elements);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.0.borrow_mut().gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.0.borrow_mut().advance(now);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use overhear_event::{ElementView, Gap, StreamDescriptor, Timestamp, Update};
    use overhear_monitor::Fanout;

    use super::Shared;
    use crate::testing::plain_stream;

    /// How many elements came by each call.
    #[derive(Default)]
    struct Calls(Vec<usize>);

    impl Update for Calls {
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
    fn elements_that_come_together_are_passed_on_together() {
        let stream = plain_stream();
        let element = |sequence| ElementView {
            stream: &stream,
            sequence,
            time: Timestamp::from_monotonic_ns(sequence),
            payload: &[],
        };
        let elements: Vec<_> = (0..5).map(element).collect();
        let calls = Rc::new(RefCell::new(Calls::default()));
        let mut shared = Shared(Rc::clone(&calls));
        Fanout(vec![&mut shared]).elements(&elements);
        assert_eq!(calls.borrow().0, [5]);
    }
}
