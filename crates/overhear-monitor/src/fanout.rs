// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several evaluations as one.

use overhear_event::{ElementView, EventSet, Gap, StreamDescriptor, Timestamp, Update};

/// Passes every item on to each update, in order.
///
/// Elements that come together are passed on together: an update hears of all of them before the next one hears of
/// the first. Gaps and advances keep their places between them.
pub struct Fanout<'a>(pub Vec<&'a mut dyn Update>);

impl Update for Fanout<'_> {
    fn requires(&self) -> EventSet {
        self.0.iter().flat_map(|update| update.requires()).collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        for update in &mut self.0 {
            update.open(stream);
        }
    }

    fn warm_up(&mut self) {
        for update in &mut self.0 {
            update.warm_up();
        }
    }

    fn element(&mut self, element: &ElementView<'_>) {
        for update in &mut self.0 {
            update.element(element);
        }
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        for update in &mut self.0 {
            update.elements(elements);
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        for update in &mut self.0 {
            update.gap(stream, gap);
        }
    }

    fn advance(&mut self, now: Timestamp) {
        for update in &mut self.0 {
            update.advance(now);
        }
    }
}
