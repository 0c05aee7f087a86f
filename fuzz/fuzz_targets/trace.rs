// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of which one file is arbitrary.
#![no_main]

#[path = "../subjects/recording.rs"]
mod recording;
#[path = "../subjects/trace.rs"]
mod subject;

thread_local! {
    static RECORDING: recording::Recording = recording::Recording::new();
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| RECORDING.with(|it| subject::run(it, input)));
