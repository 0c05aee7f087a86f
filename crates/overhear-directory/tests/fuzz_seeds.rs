// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the fuzzer of patterns runs, over its seeds and what is near them. Conversations are in
//! `mutations.rs`.

#[path = "../../../fuzz/subjects/glob.rs"]
mod glob;
#[path = "../../../fuzz/runner.rs"]
mod runner;

#[test]
fn patterns_survive_the_fuzzers_seeds_and_what_is_near_them() {
    runner::near_seeds("glob", 1_500, glob::run);
}
