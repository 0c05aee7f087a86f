// SPDX-License-Identifier: MIT OR Apache-2.0
//! The time of one replay of a trace: a lower bound for everything that reads it.
//!
//! `cargo bench -p overhear-trace --bench replay_count -- DIR` prints the elements and the
//! nanoseconds of opening and replaying them; DIR is absolute. `python/benches/replay_speed.py`
//! runs it, too.
#![allow(missing_docs)]

mod support;

use std::error::Error;
use std::time::Instant;

use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_trace::TraceReader;

/// An analysis that reads every element: its time and its first byte.
#[derive(Default)]
struct Count {
    elements: u64,
    sum: u64,
}

impl Analysis for Count {
    fn element(&mut self, element: &ElementView<'_>) {
        self.elements += 1;
        let first = element.payload.first().copied().unwrap_or(0);
        let time = element.time.as_monotonic_ns();
        self.sum = self.sum.wrapping_add(time).wrapping_add(first.into());
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    let words = support::arguments();
    let dir = words.first().ok_or("give the trace's folder")?;
    let begun = Instant::now();
    let mut count = Count::default();
    TraceReader::open(dir)?.replay(&mut [&mut count]);
    let took = begun.elapsed();
    std::hint::black_box(count.sum);
    println!("{} {}", count.elements, took.as_nanos());
    Ok(())
}
