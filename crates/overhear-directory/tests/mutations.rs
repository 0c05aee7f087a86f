// SPDX-License-Identifier: MIT OR Apache-2.0
//! Thousands of broken packets: the directory answers each or closes, and continues to serve.

mod support;

use overhear_directory::ProgramSource;
use overhear_event::Source;
use serde_json::{json, Value};

use support::mutations::{mutate, Chance};
use support::{register_packet, Raw, Received, TestDirectory};

const PACKETS: u64 = 4_000;

#[test]
fn broken_packets_disturb_no_other_client() {
    let here = TestDirectory::start();
    let mut source = ProgramSource::new(&here.directory);
    let mut chance = Chance::new(0xD1B5_4A32_D192_ED03);
    let seeds = [
        register_packet("victim"),
        json!("mapped"),
        json!({ "unregister": { "stream": 1, "token": 1 } }),
        json!({ "list": { "version": 1, "query": { "names": "*/victim*", "type_id": "sam*" } } }),
        json!({ "attach": { "version": 1, "query": { "names": "vic[a-t]im/{a,b}#*" } } }),
        json!({ "switch": { "version": 1, "query": { "stream": 3 }, "enabled": false } }),
        json!({ "finished": { "streams": [1, 2, 3] } }),
        json!({ "status": { "version": 1 } }),
        json!({ "publish_area": { "version": 1 } }),
        json!({ "list_areas": { "version": 1, "known": 1 } }),
        json!({ "open_area": { "version": 1, "pid": 1, "area": 1, "access": "read" } }),
    ];
    let (mut granted, mut refused, mut closed) = (0_u64, 0_u64, 0_u64);
    let mut answered = 0_u64;
    for number in 0..PACKETS {
        let mut packet = seeds[if chance.below(2) > 0 {
            0
        } else {
            chance.below(seeds.len())
        }]
        .clone();
        let silent = packet["finished"].is_object();
        if packet["register"].is_object() {
            packet["register"]["sensor"] = json!(format!("victim {number}"));
        }
        for _ in 0..=chance.below(3) {
            mutate(&mut packet, &mut chance);
        }
        let mut bytes = packet.to_string().into_bytes();
        if chance.below(4) == 0 {
            // Below the level of JSON: flipped bits, and early ends.
            for _ in 0..=chance.below(3) {
                let at = chance.below(bytes.len());
                bytes[at] ^= 1 << chance.below(8);
            }
            if chance.below(2) == 0 {
                bytes.truncate(chance.below(bytes.len()));
            }
        }
        let raw = Raw::connect(&here.socket());
        raw.send_bytes(&bytes);
        if silent {
            // The read report of a monitor is not answered.
            continue;
        }
        let (answer, _file) = raw.receive();
        if answer["granted"].is_object() {
            granted += 1;
            if chance.below(2) == 0 {
                assert!(raw.send(&json!("mapped")));
                assert_eq!(raw.receive().0, json!("sealed"));
            }
        } else if answer["refused"]["message"].is_string() {
            refused += 1;
        } else if ["sensors", "attached", "switched", "status", "areas"]
            .iter()
            .any(|kind| answer[kind].is_object())
            || answer["no_area"].is_string()
        {
            answered += 1;
        } else {
            assert_eq!(answer, Value::Null, "{}", String::from_utf8_lossy(&bytes));
            closed += 1;
        }
        if number % 100 == 0 {
            source.poll(&mut Received::default()).unwrap();
            here.register(&format!("witness {number}"))
                .unregister()
                .unwrap();
        }
    }
    println!("{granted} granted, {refused} refused, {closed} closed, {answered} answered");
    // Mutations that change nothing are granted; most change something.
    assert!(granted > 10 && refused > PACKETS / 4 && closed > 10 && answered > 10);
    // Messages about them are bounded.
    let not_connected = here.directory.take_not_connected();
    assert_eq!(not_connected.messages.len(), 100, "the first hundred");
    // Refused monitors get a reply and are not counted: no sensor is refused because of them.
    assert!(
        not_connected.count > PACKETS / 5,
        "{} counted",
        not_connected.count
    );
    assert!(not_connected
        .messages
        .iter()
        .all(|message| message.len() < 2_000 + 2 * 20_000));
}

#[test]
fn packets_beyond_the_largest_are_not_read() {
    let here = TestDirectory::start();
    for bytes in [64 * 1024 + 1, 100_000] {
        let raw = Raw::connect(&here.socket());
        raw.send_bytes(&vec![b' '; bytes]);
        let message = raw.receive().0["refused"]["message"].to_string();
        assert!(message.contains("exceeds 65536 bytes"), "{message}");
    }
    assert_eq!(here.directory.take_not_connected().count, 2);
    here.register("witness");
}

/// The conversations that the fuzzer begins with, and the same with their ends cut off.
#[test]
fn directory_survives_the_fuzzers_seeds() {
    let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/protocol");
    let Ok(seeds) = std::fs::read_dir(seeds) else {
        println!("skipped: the fuzzer's seeds are not here");
        return;
    };
    let here = TestDirectory::standalone();
    let mut sensors = 0;
    for seed in seeds {
        let seed = std::fs::read(seed.unwrap().path()).unwrap();
        for end in (0..=seed.len()).rev().step_by(7) {
            let raw = Raw::connect(&here.socket());
            for packet in seed[..end].split(|&byte| byte == 0) {
                raw.send_bytes(packet);
                if packet.len() > 2 && !packet.starts_with(b"{\"fin") {
                    raw.receive();
                }
            }
            sensors = here.directory.status().sensors.max(sensors);
        }
    }
    assert!(sensors > 0, "some of them register");
    here.register("witness");
}
