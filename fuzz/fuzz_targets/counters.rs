// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of counters of arbitrary text.
#![no_main]

#[path = "../subjects/counters.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: &[u8]| subject::run(input));
