// SPDX-License-Identifier: MIT OR Apache-2.0
//! An update that uses memory of every kind. It uses all of it for the first time at the first
//! element, and counts the page faults of its thread meanwhile.

use std::cell::Cell;
use std::hint::black_box;

use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_monitor::plugin::{Exported, Results};
use overhear_monitor::PageFaults;

const WORDS: usize = 32 * 1024;

thread_local! {
    static LOCAL: Cell<[u64; 4096]> = const { Cell::new([0; 4096]) };
}

struct Greedy {
    // Memory that nobody has written to.
    own: Vec<u64>,
    elements: u64,
    warmed: u64,
    before: u64,
    base: PageFaults,
    first: u64,
    faults: u64,
}

#[inline(never)]
fn deep(value: u64) -> u64 {
    let stack = [value; 8192];
    black_box(&stack)[4096]
}

impl Analysis for Greedy {
    fn warm_up(&mut self) {
        self.warmed += 1;
        self.before = self.elements;
    }

    fn element(&mut self, element: &ElementView<'_>) {
        if self.elements == 0 {
            self.base = PageFaults::so_far();
        }
        self.own.clear();
        self.own.resize(WORDS, element.sequence);
        LOCAL.set([deep(element.sequence); 4096]);
        let faults = PageFaults::so_far().since(self.base);
        self.faults = faults.minor + faults.major;
        if self.elements == 0 {
            self.first = self.faults;
        }
        self.elements += 1;
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

impl Exported for Greedy {
    const NAME: &'static str = "greedy";

    fn create(_: &str) -> Result<Self, String> {
        Ok(Self {
            own: Vec::with_capacity(WORDS),
            elements: 0,
            warmed: 0,
            before: 0,
            base: PageFaults::default(),
            first: 0,
            faults: 0,
        })
    }

    fn report(&self, results: &mut Results) {
        results.set("elements", self.elements);
        results.set("warmed", self.warmed);
        results.set("before", self.before);
        results.set("first", self.first);
        results.set("faults", self.faults);
    }
}

overhear_monitor::export_updates!(Greedy);
