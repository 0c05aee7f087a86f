// SPDX-License-Identifier: MIT OR Apache-2.0
//! The reader and the writer of a queue over memory that a hostile process writes.
#![no_main]

#[path = "../subjects/queue.rs"]
mod subject;

libfuzzer_sys::fuzz_target!(|input: subject::Input| subject::run(input));
