// SPDX-License-Identifier: MIT OR Apache-2.0
//! Malicious or interrupted programs: the directory and its monitor go on, and report the sensors
//! that are not connected.

mod support;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use serde_json::json;

use support::{register_packet, Raw, TestDirectory};

#[test]
fn buffer_cannot_be_cut_or_grown_by_its_program() {
    let here = TestDirectory::start();
    let raw = Raw::connect(&here.socket());
    raw.send(&register_packet("kept in size"));
    let (granted, file) = raw.receive();
    assert!(granted["granted"].is_object(), "{granted}");
    let file = file.expect("the memory comes along");
    let size = rustix::fs::fstat(&file).unwrap().st_size.unsigned_abs();
    // A shorter file would end a monitor that maps it with SIGBUS at its first read; a longer one
    // would be memory without a charge.
    for other in [0, size - 1, size + 1, 256 << 20] {
        assert_eq!(rustix::fs::ftruncate(&file, other), Err(Errno::PERM));
    }
    for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
        let grown = rustix::fs::fallocate(&file, flags, 0, 256 << 20);
        assert_eq!(grown, Err(Errno::PERM));
    }
    raw.send(&json!("mapped"));
    assert_eq!(raw.receive().0, json!("sealed"));
    assert_eq!(here.directory.status().bytes, size);
}

#[test]
fn unmapped_grant_is_reported() {
    let here = TestDirectory::start();
    let raw = Raw::connect(&here.socket());
    raw.send(&register_packet("given up"));
    assert!(raw.receive().0["granted"].is_object());
    drop(raw);
    here.register("witness");
    let not_connected = here.directory.take_not_connected();
    assert_eq!(not_connected.count, 1, "{not_connected:?}");
    assert!(
        not_connected.messages[0].contains("given up"),
        "{not_connected:?}"
    );
}

#[test]
fn silent_connections_make_room() {
    let here = TestDirectory::start();
    let silent: Vec<Raw> = (0..300).map(|_| Raw::connect(&here.socket())).collect();
    here.register("witness");
    drop(silent);
}
