// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thousands of broken conversations of an ordinary user with a directory of root: mutated packets,
//! random bytes, nesting, ends in the wrong place, up to 80 descriptors with a packet. Afterwards
//! the directory has the descriptors and the memory that it had before, and answers.
#![cfg(feature = "daemon")]

mod support;

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use overhear_directory::{MonitorConnection, Query};
use serde_json::{json, Value};

use support::mutations::{mutate, nasty, Chance};
use support::users::{directory_of_root, is_root, memory_of, socket, Other, MALLORY};
use support::{eventually, register_packet, register_patiently, Raw};

/// Default number; `make hostile` sets another one in the environment.
const CONVERSATIONS: u64 = 3_000;
/// Permitted permanent growth of the heap: pieces that the allocator keeps.
const MOST_GROWTH_BYTES: u64 = 8 << 20;

fn conversations() -> u64 {
    let named = std::env::var("OVERHEAR_TEST_CONVERSATIONS").ok();
    named
        .and_then(|text| text.parse().ok())
        .unwrap_or(CONVERSATIONS)
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count()
}

#[test]
fn broken_connections_leave_no_resources() {
    if !is_root() {
        return;
    }
    // Now and then one of them makes a sensor.
    let manager = directory_of_root("retention_seconds = 1\n");
    let talk = |count: u64| {
        let mut mallory = Other::prepare(MALLORY, "mallory_talks_rubbish", &manager.socket);
        mallory.env("OVERHEAR_TEST_CONVERSATIONS", &count.to_string());
        let text = mallory.start().passes();
        let counts = text
            .lines()
            .find(|line| line.contains("conversations"))
            .unwrap();
        println!("{counts}");
    };
    let settle = || {
        let mut monitor = MonitorConnection::connect(&manager.socket).unwrap();
        let status = || monitor.status().unwrap();
        eventually(status, |status| {
            (
                status.sensors,
                status.deferred,
                status.bytes,
                status.monitors,
            ) == (0, 0, 0, 0)
        });
    };
    // Memory that is allocated only once: tables, and the allocator's first pieces.
    talk(500);
    settle();
    let (files, heap) = (
        descriptors(manager.pid()),
        memory_of(manager.pid(), "RssAnon"),
    );
    talk(conversations());
    settle();
    let left = || descriptors(manager.pid());
    eventually(left, |left| *left <= files);
    let grown = memory_of(manager.pid(), "RssAnon").saturating_sub(heap);
    println!(
        "{files} descriptors as before, heap grown by {} KiB",
        grown / 1024
    );
    assert!(grown < MOST_GROWTH_BYTES, "{grown} bytes");
    let witness = register_patiently(&manager.socket, "witness").unwrap();
    let mut monitor = MonitorConnection::connect(&manager.socket).unwrap();
    assert_eq!(monitor.list(&Query::all()).unwrap().len(), 1);
    drop(witness);
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn mallory_talks_rubbish() {
    let Some(socket) = socket() else { return };
    let mut chance = Chance::new(0x9E37_79B9_7F4A_7C15);
    let count = conversations();
    let (mut answered, mut closed) = (0_u64, 0_u64);
    for number in 0..count {
        match converse(&socket, number, &mut chance) {
            true => answered += 1,
            false => closed += 1,
        }
    }
    println!("{count} conversations: {answered} with an answer, {closed} closed without");
    assert!(
        answered > count / 4 && closed > count / 50,
        "{answered} {closed}"
    );
}

/// One conversation; returns whether it was answered.
fn converse(socket: &Path, number: u64, chance: &mut Chance) -> bool {
    let raw = Raw::connect(socket);
    rustix::net::sockopt::set_socket_timeout(
        &raw,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_secs(20)),
    )
    .unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let mut answered = false;
    for _ in 0..=chance.below(3) {
        let packet = packet(number, chance);
        // A packet has 64 KiB at most; some have more.
        let files: Vec<BorrowedFd<'_>> = match chance.below(4) {
            0 => vec![null.as_fd(); 1 + chance.below(80)],
            _ => Vec::new(),
        };
        let sent = match files.is_empty() {
            true => raw.send_bytes(&packet),
            false => raw.send_with_files(&packet, &files),
        };
        if !sent {
            break;
        }
        // Some answers are not read, and some connections close before the answer.
        if chance.below(4) == 0 || is_silent(&packet) {
            continue;
        }
        match raw.receive().0 {
            Value::Null => break,
            _ => answered = true,
        }
    }
    answered
}

/// Whether the directory may leave a packet unanswered: a monitor's acknowledgement of what it has
/// read, and an empty packet.
fn is_silent(packet: &[u8]) -> bool {
    let text = String::from_utf8_lossy(packet);
    packet.is_empty() || text.contains("finished")
}

fn packet(number: u64, chance: &mut Chance) -> Vec<u8> {
    let name = format!("victim {number}");
    let mut deferring = register_packet(&name);
    deferring["register"]["may_defer"] = json!(true);
    deferring["register"]["capacity"] = json!(1_u64 << chance.below(40));
    let mut laned = register_packet(&name);
    laned["register"]["kind"] = json!("laned");
    laned["register"]["lanes"] = json!(chance.below(5000));
    let seeds = [
        register_packet(&name),
        deferring,
        laned,
        json!("mapped"),
        json!({ "unregister": { "stream": chance.below(100), "token": 1 } }),
        json!({ "list": { "version": 1, "query": { "names": "*/victim*#{a,b}", "type_id": "s[a-z]*" } } }),
        json!({ "attach": { "version": 1, "query": {}, "needs": {
            "all": false, "only": true, "sensors": [{ "names": "vic*" }, { "names": "*" }] } } }),
        json!({ "switch": { "version": 1, "query": { "stream": 3 }, "enabled": false } }),
        json!({ "finished": { "streams": [1, 2, 3] } }),
        json!({ "status": { "version": 1 } }),
        json!({ "not_connected": { "version": 1 } }),
        json!({ "publish_area": { "version": 1 } }),
        json!({ "list_areas": { "version": 1, "known": chance.below(3) } }),
        json!({ "open_area": { "version": 1, "pid": chance.below(3000), "access": "read" } }),
        json!({ "open_area": { "version": 1, "area": 1, "access": "control" } }),
    ];
    let mut packet = seeds[chance.below(seeds.len())].clone();
    match chance.below(8) {
        // Valid values, in any order.
        0 | 1 => {}
        // A value of another kind.
        2 => packet = nasty(chance),
        _ => (0..=chance.below(3)).for_each(|_| mutate(&mut packet, chance)),
    }
    let mut bytes = packet.to_string().into_bytes();
    match chance.below(16) {
        // Deeper than any parser accepts, and larger than any packet is.
        0 => bytes = [b"[".repeat(1 + chance.below(60_000)), bytes].concat(),
        1 => bytes.resize(chance.below(80_000), b' '),
        2 => {
            bytes = (0..chance.below(4_000))
                .map(|_| chance.below(256) as u8)
                .collect()
        }
        3 | 4 => {
            for _ in 0..=chance.below(3) {
                let at = chance.below(bytes.len());
                bytes[at] ^= 1 << chance.below(8);
            }
        }
        5 => bytes.truncate(chance.below(bytes.len())),
        _ => {}
    }
    bytes
}
