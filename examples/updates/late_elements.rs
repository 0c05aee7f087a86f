// SPDX-License-Identifier: MIT OR Apache-2.0
//! An update: which elements came later after their predecessors than they should?
//!
//! ```text
//! cargo build --release -p overhear-cli --example late_elements
//! overhear run --out DIR --update target/release/examples/liblate_elements.so=2000000 -- PROGRAM
//! overhear report DIR --update target/release/examples/liblate_elements.so=1000000
//! ```
//!
//! The argument is the longest distance that is not late, in nanoseconds; 1 ms without it.

use std::collections::HashMap;

use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, StreamId, Timestamp};
use overhear_monitor::plugin::{Exported, Results};

/// Counts late elements.
struct LateElements {
    limit: Nanos,
    elements: u64,
    late: u64,
    missed: u64,
    longest: Nanos,
    // The time of each stream's last element; none before the first and behind a gap.
    last: HashMap<StreamId, Option<Timestamp>>,
}

impl Analysis for LateElements {
    /// Memory is had here, not where elements are evaluated.
    fn open(&mut self, stream: &StreamDescriptor) {
        self.last.insert(stream.id, None);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        let last = self.last.insert(element.stream.id, Some(element.time));
        let distance = match last.flatten() {
            Some(last) => element.time.since(last),
            None => Nanos::ZERO,
        };
        self.elements += 1;
        self.late += u64::from(distance > self.limit);
        self.longest = self.longest.max(distance);
    }

    /// Across a gap no distance is known.
    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.missed += gap.missed;
        self.last.insert(stream.id, None);
    }

    fn advance(&mut self, _: Timestamp) {}
}

impl Exported for LateElements {
    const NAME: &'static str = "late_elements";

    fn create(argument: &str) -> Result<Self, String> {
        let limit_ns = match argument {
            "" => 1_000_000,
            number => number.parse().map_err(|_| {
                "the argument is a number of nanoseconds, for example 1000000".to_string()
            })?,
        };
        Ok(Self {
            limit: Nanos::from_ns(limit_ns),
            elements: 0,
            late: 0,
            missed: 0,
            longest: Nanos::ZERO,
            last: HashMap::new(),
        })
    }

    fn report(&self, results: &mut Results) {
        results.set("elements", self.elements);
        results.set("late", self.late);
        results.set("longest_ns", self.longest.as_ns());
        results.set("missed", self.missed);
    }
}

overhear_monitor::export_updates!(LateElements);
