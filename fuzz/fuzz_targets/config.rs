// SPDX-License-Identifier: MIT OR Apache-2.0
//! overhear.toml of arbitrary text.
#![no_main]

#[path = "../subjects/config.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: &[u8]| subject::run(input));
