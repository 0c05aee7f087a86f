// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of other tracers with arbitrary metadata or packets.
#![no_main]

#[path = "../subjects/recording.rs"]
mod recording;
#[path = "../subjects/import.rs"]
mod subject;

thread_local! {
    static RECORDING: recording::Recording = recording::Recording::new();
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| RECORDING.with(|it| subject::run(it, input)));
