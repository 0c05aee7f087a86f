// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments from a clock page.
#![no_main]

#[path = "../subjects/clock.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: subject::Input| subject::run(input));
