// SPDX-License-Identifier: MIT OR Apache-2.0
//! Patterns of sensors of arbitrary text.
#![no_main]

#[path = "../subjects/glob.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: &[u8]| subject::run(input));
