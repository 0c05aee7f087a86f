// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fuzzer of `.metric` files runs, over its seeds and what is near them.
#![cfg(not(miri))]

#[path = "../../../fuzz/subjects/metric.rs"]
mod metric;
#[path = "../../../fuzz/runner.rs"]
mod runner;

#[test]
fn metrics_survive_the_fuzzers_seeds_and_what_is_near_them() {
    runner::near_seeds("metric", 1_500, metric::run);
}
