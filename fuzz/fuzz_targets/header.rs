// SPDX-License-Identifier: MIT OR Apache-2.0
//! Headers that a hostile process wrote.
#![no_main]

#[path = "../subjects/header.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: subject::Input| subject::run(input));
