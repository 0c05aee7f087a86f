// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quotas bound the resources that a user can take from a directory of root: by keeping, enlarging
//! or describing sensors.
#![cfg(feature = "daemon")]

mod support;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use overhear_directory::{Mapping, MonitorConnection, Query};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use serde_json::{json, Value};

use support::users::{directory_of_root, is_root, memory_of, socket, Other, ALICE, MALLORY};
use support::{eventually, register_packet, Raw};

const MIB: u64 = 1 << 20;

/// A buffer of three quarters of a mebibyte.
fn large_packet(sensor: &str) -> Value {
    let mut packet = register_packet(sensor);
    packet["register"]["capacity"] = json!(32 * 1024);
    packet
}

/// Registers; returns the file and the token to unregister the sensor, or the message of a
/// refusal.
fn register(socket: &Path, packet: &Value) -> Result<(OwnedFd, Value), String> {
    let raw = Raw::connect(socket);
    assert!(raw.send(packet));
    let (answer, file) = raw.receive();
    let Some(granted) = answer["granted"].as_object() else {
        return Err(answer.to_string());
    };
    let unregister =
        json!({ "unregister": { "stream": granted["stream"], "token": granted["token"] } });
    assert!(raw.send(&json!("mapped")));
    assert_eq!(raw.receive().0, json!("sealed"));
    Ok((file.expect("the memory comes along"), unregister))
}

fn unregister(socket: &Path, packet: &Value) {
    let raw = Raw::connect(socket);
    assert!(raw.send(packet));
    assert_eq!(raw.receive().0, json!("unregistered"));
}

/// A reference to memory that was given back.
#[derive(Debug)]
#[expect(dead_code, reason = "what is kept need not be used")]
enum Kept {
    Descriptor(OwnedFd),
    Map(Mapping),
    Path(OwnedFd),
    Message(OwnedFd, OwnedFd),
}

/// Keeps a file by one of the methods of the kernel.
fn keep(file: OwnedFd, way: usize) -> Kept {
    match way % 4 {
        0 => Kept::Descriptor(file),
        1 => Kept::Map(Mapping::read_only(&file, MIB as usize / 2).unwrap()),
        2 => {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            Kept::Path(rustix::fs::open(path, flags, Mode::empty()).unwrap())
        }
        _ => {
            let (one, other) = rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::DGRAM,
                SocketFlags::CLOEXEC,
                None,
            )
            .unwrap();
            support::send_with_files(&one, b"file", &[std::os::fd::AsFd::as_fd(&file)]);
            Kept::Message(one, other)
        }
    }
}

#[test]
fn memory_counts_until_the_last_reference_to_it_is_gone() {
    if !is_root() {
        return;
    }
    let manager = directory_of_root("[quota]\nbytes = 8388608\n");
    Other::start(
        MALLORY,
        "mallory_keeps_unregistered_buffers",
        &manager.socket,
    )
    .passes();
    // All resources end with the process.
    let mut monitor = MonitorConnection::connect(&manager.socket).unwrap();
    eventually(|| monitor.status().unwrap(), |status| status.bytes == 0);
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn mallory_keeps_unregistered_buffers() {
    let Some(socket) = socket() else { return };
    let mut kept = Vec::new();
    let message = loop {
        match register(&socket, &large_packet("kept")) {
            Ok((file, packet)) => {
                unregister(&socket, &packet);
                kept.push(keep(file, kept.len()));
            }
            Err(message) => break message,
        }
        assert!(kept.len() < 100, "the quota bounds nothing");
    };
    assert!(
        message.contains("of the quota of 8388608 of user 65534"),
        "{message}"
    );
    let bytes = || {
        let status = MonitorConnection::connect(&socket)
            .unwrap()
            .status()
            .unwrap();
        status.bytes
    };
    // All of them count, although the directory has no sensor of them.
    assert_eq!(kept.len(), 10);
    assert!(bytes() > 7 * MIB && bytes() <= 8 * MIB, "{}", bytes());
    assert!(MonitorConnection::connect(&socket)
        .unwrap()
        .list(&Query::all())
        .unwrap()
        .is_empty());
    // One of each kind, so each kind is noticed.
    for _ in 0..4 {
        drop(kept.remove(0));
        let (file, packet) = register(&socket, &large_packet("kept")).unwrap();
        unregister(&socket, &packet);
        assert!(register(&socket, &large_packet("kept")).is_err());
        kept.push(Kept::Descriptor(file));
    }
    kept.clear();
    eventually(bytes, |bytes| *bytes == 0);
}

#[test]
fn buffer_has_the_size_that_was_counted() {
    if !is_root() {
        return;
    }
    let manager = directory_of_root("");
    Other::start(MALLORY, "mallory_enlarges_a_buffer", &manager.socket).passes();
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn mallory_enlarges_a_buffer() {
    let Some(socket) = socket() else { return };
    let raw = Raw::connect(&socket);
    assert!(raw.send(&register_packet("enlarged")));
    let (granted, file) = raw.receive();
    let file = file.unwrap_or_else(|| panic!("{granted}"));
    assert_eq!(rustix::fs::ftruncate(&file, 256 * MIB), Err(Errno::PERM));
    for flags in [FallocateFlags::empty(), FallocateFlags::KEEP_SIZE] {
        assert_eq!(
            rustix::fs::fallocate(&file, flags, 0, 256 * MIB),
            Err(Errno::PERM)
        );
    }
    assert!(raw.send(&json!("mapped")));
    assert_eq!(raw.receive().0, json!("sealed"));
    let blocks = rustix::fs::fstat(&file).unwrap().st_blocks.unsigned_abs();
    let mut monitor = MonitorConnection::connect(&socket).unwrap();
    let counted = monitor.status().unwrap().bytes;
    assert_eq!(blocks * 512, counted.next_multiple_of(4096));
}

/// A sensor with the largest description that fits into a packet.
fn fat_packet(sensor: &str) -> Value {
    let field = |number: u32| json!({ "name": format!("f{number}"), "kind": "u8", "offset": number, "unit": "" });
    let fields: Vec<Value> = (0..1200).map(field).collect();
    let mut packet = register_packet(sensor);
    packet["register"]["schema"] = json!({ "id": "fat", "size": 1200, "fields": fields });
    packet
}

#[test]
fn descriptions_count_with_all_that_they_take() {
    const SHARE: u64 = 8 * MIB;
    if !is_root() {
        return;
    }
    let manager = directory_of_root(&format!("[quota]\nrecord_bytes = {SHARE}\n"));
    let anonymous = || memory_of(manager.pid(), "RssAnon");
    let before = anonymous();
    let mallory = Other::start(MALLORY, "mallory_describes_at_length", &manager.socket);
    let mut monitor = MonitorConnection::connect(&manager.socket).unwrap();
    eventually(
        || monitor.status().unwrap(),
        |status| status.not_connected > 0 && status.sensors > 10,
    );
    let sensors = monitor.status().unwrap().sensors;
    let journal: u64 = {
        let shelf = manager.shelf.lock().unwrap();
        let journals = shelf.iter().filter(|(name, _)| name.starts_with('j'));
        let sizes = journals.map(|(_, file)| rustix::fs::fstat(file).unwrap().st_size);
        sizes.map(i64::unsigned_abs).sum()
    };
    let taken = anonymous().saturating_sub(before) + journal;
    println!("{sensors} sensors take {taken} bytes, {journal} of them in the journal");
    assert!(taken < SHARE, "{taken}");
    // Others have a share of their own.
    Other::start(ALICE, "alice_registers", &manager.socket).passes();
    drop(mallory);
    eventually(
        || monitor.status().unwrap(),
        // Alice's process has ended, too.
        |status| status.retained > sensors,
    );
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn mallory_describes_at_length() {
    let Some(socket) = socket() else { return };
    let fat =
        (0..).map_while(|number| register(&socket, &fat_packet(&format!("fat {number}"))).ok());
    let _kept: Vec<_> = fat.collect();
    // Until its parent ends it.
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn alice_registers() {
    let Some(socket) = socket() else { return };
    register(&socket, &register_packet("of alice")).unwrap();
}

#[test]
fn patterns_count() {
    if !is_root() {
        return;
    }
    let manager = directory_of_root("");
    let before = memory_of(manager.pid(), "RssAnon");
    Other::start(MALLORY, "mallory_sends_patterns", &manager.socket).passes();
    let taken = memory_of(manager.pid(), "RssAnon").saturating_sub(before);
    assert!(taken < 32 * MIB, "{taken}");
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn mallory_sends_patterns() {
    let Some(socket) = socket() else { return };
    let patterns: Vec<Value> = (0..1500)
        .map(|number| json!({ "names": format!("a*[b-d]{number}") }))
        .collect();
    let packet = json!({ "attach": {
        "version": 1,
        "query": {},
        "needs": { "all": false, "sensors": patterns },
    } });
    let monitors: Vec<Raw> = (0..60).map(|_| Raw::connect(&socket)).collect();
    let answers: Vec<Value> = monitors
        .iter()
        .map(|monitor| {
            assert!(monitor.send(&packet));
            monitor.receive().0
        })
        .collect();
    let attached = answers
        .iter()
        .filter(|answer| answer["attached"].is_object());
    let attached = attached.count();
    assert!((1..10).contains(&attached), "{attached}");
    let refused = answers.iter().find(|answer| answer["refused"].is_object());
    let message = refused.expect("some are refused").to_string();
    assert!(message.contains("characters"), "{message}");
}
