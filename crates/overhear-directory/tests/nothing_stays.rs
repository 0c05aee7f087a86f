// SPDX-License-Identifier: MIT OR Apache-2.0
//! Resources of clients in the directory's process after their end: no descriptor, no memory.
//!
//! One test, because both belong to the whole process.

mod support;

use overhear_directory::Mapping;
use serde_json::{json, Value};

use support::{eventually, register_packet, Raw, TestDirectory};

/// Number of descriptors of this process, without the one that is used for counting.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Memory of this process in use, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// Requests sensors and breaks off, with the grant or before it.
fn break_off(here: &TestDirectory, times: u32) {
    for number in 0..times {
        let raw = Raw::connect(&here.socket());
        raw.send(&register_packet(&format!("dropped {number}")));
        if number % 2 == 0 {
            assert!(raw.receive().0["granted"].is_object());
        }
    }
    let status = || here.directory.status();
    eventually(status, |status| status.bytes == 0 && status.sensors == 0);
}

/// Registers and keeps sensors: returns their maps, and the tokens to unregister them.
fn register(here: &TestDirectory, number: u32) -> (Mapping, Value) {
    let mut packet = register_packet(&format!("sensor {number}"));
    packet["register"]["capacity"] = json!(64);
    packet["register"]["rate"] = json!({ "period": 1_000_000_000, "distance": 0, "jitter": 0 });
    let raw = Raw::connect(&here.socket());
    raw.send(&packet);
    let (granted, file) = raw.receive();
    assert!(granted["granted"].is_object(), "{granted}");
    let file = file.expect("the memory comes along");
    let bytes = rustix::fs::fstat(&file).unwrap().st_size as usize;
    let mapping = Mapping::writable(&file, bytes).unwrap();
    drop(file);
    raw.send(&json!("mapped"));
    assert_eq!(raw.receive().0, json!("sealed"));
    let unregister = json!({ "unregister": {
        "stream": granted["granted"]["stream"],
        "token": granted["granted"]["token"],
    } });
    (mapping, unregister)
}

#[test]
fn ended_clients_leave_no_resources() {
    /// A leak of the pages of every fourth grant would be larger.
    const MOST_GROWTH_BYTES: u64 = 4 << 20;
    let here = TestDirectory::standalone();
    // Allocations that happen only once: the control page, the allocator's first pieces, the pidfd
    // of this process.
    break_off(&here, 200);
    register_and_take_out(&here, 10, None);
    let settled = descriptors();
    let before = resident();
    break_off(&here, 2_000);
    // A grant that is not mapped leaves no resources.
    eventually(descriptors, |now| *now <= settled);
    let grown = resident().saturating_sub(before);
    assert!(grown < MOST_GROWTH_BYTES, "grown by {grown} bytes");
    assert!(here.directory.take_not_connected().count > 0);

    // One descriptor for each sensor, for monitors that attach later.
    register_and_take_out(&here, 1_000, Some(settled));
    // An unregistered sensor leaves none either.
    eventually(descriptors, |now| *now <= settled);
    let grown = resident().saturating_sub(before);
    assert!(grown < MOST_GROWTH_BYTES, "grown by {grown} bytes");
}

fn register_and_take_out(here: &TestDirectory, sensors: u32, settled: Option<usize>) {
    let all: Vec<_> = (0..sensors).map(|number| register(here, number)).collect();
    if let Some(settled) = settled {
        // Plus the few of their task: its process, and its control page.
        let expected = settled + sensors as usize + 8;
        // Connections of those that were served last may still be open, on the directory's side.
        eventually(descriptors, |now| *now <= expected);
    }
    for (mapping, unregister) in all {
        drop(mapping);
        let raw = Raw::connect(&here.socket());
        raw.send(&unregister);
        assert_eq!(raw.receive().0, json!("unregistered"));
    }
    eventually(|| here.directory.status().sensors, |left| *left == 0);
}
