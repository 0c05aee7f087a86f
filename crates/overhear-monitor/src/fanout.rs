// SPDX-License-Identifier: MIT OR Apache-2.0
//! Several updates as one.

use overhear_event::{Analysis, ElementView, EventSet, Gap, StreamDescriptor, Timestamp};

/// Passes every item on to each update, in order.
///
/// A batch is passed on as a batch: an update gets all of it before the next update gets it. Gaps
/// and advances keep their positions between batches.
pub struct Fanout<'a>(pub Vec<&'a mut dyn Analysis>);

impl Analysis for Fanout<'_> {
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
