// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz targets (`fuzz/subjects`) over their seeds and thousands of inputs near them.
//!
//! The fuzzers need a nightly toolchain and a long time; this runs with every other test.
#![cfg(not(any(loom, miri)))]

use arbitrary::{Arbitrary, Unstructured};

#[path = "../../../fuzz/subjects/clock.rs"]
mod clock;
#[path = "../../../fuzz/subjects/header.rs"]
mod header;
#[path = "../../../fuzz/subjects/queue.rs"]
mod queue;
#[path = "../../../fuzz/subjects/reader.rs"]
mod reader;
#[path = "../../../fuzz/runner.rs"]
mod runner;

/// Number of inputs derived from each seed.
const NEAR: usize = 400;
/// Number of generated inputs, if a target has no seeds.
const FROM_NOTHING: usize = 2_000;

/// Runs a target over the input that these bytes form.
fn one<I: for<'a> Arbitrary<'a>>(run: impl Fn(I)) -> impl Fn(&[u8]) {
    move |bytes| {
        if let Ok(input) = I::arbitrary_take_rest(Unstructured::new(bytes)) {
            run(input);
        }
    }
}

#[test]
fn readers_survive_fuzz_seeds_and_mutations() {
    runner::near_seeds("reader", NEAR, one(reader::run));
}

#[test]
fn queues_survive_fuzz_seeds_and_mutations() {
    runner::near_seeds("queue", NEAR, one(queue::run));
}

#[test]
fn clock_pages_may_hold_anything() {
    runner::from_nothing(FROM_NOTHING, one(clock::run));
}

#[test]
fn headers_may_hold_anything() {
    runner::from_nothing(FROM_NOTHING, one(header::run));
}
