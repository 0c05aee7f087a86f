// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz target of patterns over its seeds and inputs near them. Conversations are in
//! `mutations.rs`.

#[path = "../../../fuzz/subjects/glob.rs"]
mod glob;
#[path = "../../../fuzz/runner.rs"]
mod runner;

#[test]
fn patterns_survive_fuzz_seeds_and_mutations() {
    runner::near_seeds("glob", 1_500, glob::run);
}
