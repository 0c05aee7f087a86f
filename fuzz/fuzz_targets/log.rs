// SPDX-License-Identifier: MIT OR Apache-2.0
//! POSIX trace logs of arbitrary bytes.
#![no_main]

#[path = "../subjects/frames.rs"]
mod frames;
#[path = "../subjects/log.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: &[u8]| subject::run(input));
