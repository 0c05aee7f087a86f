// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fuzz target of `.metric` files, over its seeds and mutations of them.
#![cfg(not(miri))]

#[path = "../../../fuzz/subjects/metric.rs"]
mod metric;
#[path = "../../../fuzz/runner.rs"]
mod runner;

#[test]
fn mutated_fuzzer_seeds_do_not_panic() {
    runner::near_seeds("metric", 1_500, metric::run);
}
