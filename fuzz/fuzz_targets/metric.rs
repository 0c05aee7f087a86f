// SPDX-License-Identifier: MIT OR Apache-2.0
//! `.metric` files of arbitrary text.
#![no_main]

#[path = "../subjects/metric.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: &[u8]| subject::run(input));
