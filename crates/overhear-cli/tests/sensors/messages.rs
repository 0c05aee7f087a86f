// SPDX-License-Identifier: MIT OR Apache-2.0
//! Output of variable size: written in parts, recorded, rejoined, also where parts were
//! overwritten.

use overhear::MessageSensor;
use overhear_event::parts::Rejoined;
use overhear_metrics::Messages;
use overhear_trace::TraceReader;

use crate::program::program;
use crate::support::{folder, path, run_json};

const MESSAGES: u64 = 3_000;

/// Message `number` of the program; the same as in C.
fn text(number: u64) -> Vec<u8> {
    let length = (number * 37 % 501) as usize;
    (0..length).map(|at| (number as usize + at) as u8).collect()
}

/// Not a test: the program in Rust.
#[test]
#[ignore = "started by the other tests"]
fn message_program() {
    let mut log = MessageSensor::builder("log")
        .data_bytes(40)
        .capacity(64)
        .register()
        .unwrap();
    for number in 0..MESSAGES {
        log.write(&text(number)).unwrap();
    }
}

/// Runs the program, which is faster than any reader, and compares every message with the written
/// one.
#[track_caller]
fn assert_complete_or_counted(program: &[&str]) {
    let folder = folder();
    let out = folder.path().join("out");
    let (ended, report) = run_json(&["--kernel", "off", "--out", path(&out)], program);
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    let (mut read, mut lost) = (Vec::new(), Vec::new());
    let mut messages = Messages::new(|_: &_, _, found: Rejoined<'_>| match found {
        Rejoined::Message { number, bytes } => {
            assert_eq!(bytes, text(number), "message {number}");
            read.push(number);
        }
        Rejoined::Lost { first, count } => lost.extend(first..first + count),
    });
    TraceReader::open(&out)
        .unwrap()
        .replay(&mut [&mut messages]);
    assert_eq!(messages.rejected_corrupt(), 0);
    let counted = messages.lost();
    drop(messages);
    assert_eq!(counted, lost.len() as u64);
    // The last message is never overwritten.
    assert_eq!(read.last(), Some(&(MESSAGES - 1)));
    let mut all = [&read[..], &lost[..]].concat();
    all.sort_unstable();
    assert_eq!(all, (0..MESSAGES).collect::<Vec<_>>());
    assert_eq!(report["complete"] == true, lost.is_empty());
}

#[test]
fn messages_of_a_program_in_rust_are_complete_or_counted() {
    let here = std::env::current_exe().unwrap();
    assert_complete_or_counted(&[
        path(&here),
        "--exact",
        "messages::message_program",
        "--ignored",
    ]);
}

#[test]
fn messages_of_a_program_in_c_are_complete_or_counted() {
    let messages = MESSAGES.to_string();
    assert_complete_or_counted(&[path(program()), "talk", &messages]);
}
