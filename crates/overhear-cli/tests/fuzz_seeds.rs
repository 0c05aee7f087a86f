// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the fuzz targets of `overhear.toml` and of the documents of a recording over their seeds
//! and inputs near them.

#[path = "../../../fuzz/subjects/config.rs"]
mod config;
#[path = "../../../fuzz/subjects/documents.rs"]
mod documents;
#[path = "../../../fuzz/subjects/recording.rs"]
mod recording;
#[path = "../../../fuzz/runner.rs"]
mod runner;

use recording::Recording;

#[test]
fn configurations_survive_fuzz_seeds_and_their_neighbours() {
    runner::near_seeds("config", 1_000, config::run);
}

#[test]
fn documents_survive_fuzz_seeds_and_their_neighbours() {
    let recording = Recording::new();
    runner::near_seeds("documents", 400, |input| documents::run(&recording, input));
}
