// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that mean harm, or break off: the directory and its monitor go on, and say what is not
//! heard.

mod support;

use overhear_directory::ProgramSource;
use overhear_event::Source;
use serde_json::json;

use support::{register_packet, Heard, Here, Raw};

#[test]
fn a_buffer_that_was_cut_is_not_opened() {
    let here = Here::start();
    let raw = Raw::connect(&here.socket());
    raw.send(&register_packet("cut"));
    let (granted, file) = raw.receive();
    assert!(granted["granted"].is_object(), "{granted}");
    // A monitor that maps the file now and looks at its counter dies of SIGBUS.
    rustix::fs::ftruncate(file.expect("the memory comes along"), 0).unwrap();
    raw.send(&json!("mapped"));
    let sentence = raw.receive().0["refused"]["sentence"].to_string();
    assert!(sentence.contains("changed the size"), "{sentence}");
    let mut heard = Heard::default();
    ProgramSource::new(&here.directory)
        .poll(&mut heard)
        .unwrap();
    assert!(heard.opened.is_empty());
    assert_eq!(here.directory.take_unheard().count, 1);
}

#[test]
fn a_grant_that_is_not_taken_up_is_told() {
    let here = Here::start();
    let raw = Raw::connect(&here.socket());
    raw.send(&register_packet("given up"));
    assert!(raw.receive().0["granted"].is_object());
    drop(raw);
    here.register("witness");
    let unheard = here.directory.take_unheard();
    assert_eq!(unheard.count, 1, "{unheard:?}");
    assert!(unheard.sentences[0].contains("given up"), "{unheard:?}");
}

#[test]
fn silent_connections_make_room() {
    let here = Here::start();
    let silent: Vec<Raw> = (0..300).map(|_| Raw::connect(&here.socket())).collect();
    here.register("witness");
    drop(silent);
}
