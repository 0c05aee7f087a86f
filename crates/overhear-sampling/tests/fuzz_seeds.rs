// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz target of counters' names over its seeds and inputs near them.

#[path = "../../../fuzz/subjects/counters.rs"]
mod counters;
#[path = "../../../fuzz/runner.rs"]
mod runner;

#[test]
fn lists_of_counters_survive_fuzz_seeds_and_mutations() {
    runner::near_seeds("counters", 1_500, counters::run);
}
