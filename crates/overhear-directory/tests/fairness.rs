// SPDX-License-Identifier: MIT OR Apache-2.0
//! With one user at full effort all others are served: measured by counts, with enough attempts for
//! a busy machine.
#![cfg(feature = "daemon")]

mod support;

use std::io::Write;
use std::path::Path;

use overhear_directory::client::{register_at, Registration};
use overhear_directory::{MonitorConnection, Query};
use serde_json::json;

use support::mallory::{attack, ATTACKS};
use support::users::{directory_of_root, is_root, socket, Other, Prepared, ALICE, MALLORY};
use support::{eventually, request, Raw};

/// The variable with the attack for a process of another user.
const ATTACK: &str = "OVERHEAR_TEST_WAY";
/// Sensors that each other user registers.
const SENSORS: usize = 25;
/// Attempts of half a second each.
const ATTEMPTS: usize = 10;

/// The other user's part; does nothing in an ordinary run.
#[test]
fn mallory_attacks() {
    let (Some(socket), Some(attack_name)) = (socket(), std::env::var(ATTACK).ok()) else {
        return;
    };
    attack(&attack_name, &socket);
}

/// Registers as programs do; returns the number of attempts, too.
#[track_caller]
fn register_all(socket: &Path, of: &str) -> (Vec<Registration>, usize) {
    let mut attempts = 0;
    let sensors = (0..SENSORS).map(|number| {
        let wanted = request(&format!("of {of} {number}"));
        let mut last = String::new();
        for _ in 0..ATTEMPTS {
            attempts += 1;
            match register_at(socket, wanted.clone()) {
                Ok(registration) => return registration,
                Err(error) => last = error.to_string(),
            }
        }
        panic!("sensor {number} of {of} is not connected: {last}");
    });
    let sensors: Vec<Registration> = sensors.collect();
    (sensors, attempts)
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn alice_registers_all() {
    let Some(socket) = socket() else { return };
    let (sensors, attempts) = register_all(&socket, "alice");
    println!("alice: {} in {attempts} attempts", sensors.len());
}

#[track_caller]
fn other_programs_are_connected(attacks: &[&str]) {
    if !is_root() {
        return;
    }
    let manager = directory_of_root("");
    let mallory: Vec<Other> = attacks
        .iter()
        .map(|attack_name| {
            let mut mallory = Other::prepare(MALLORY, "mallory_attacks", &manager.socket);
            mallory.env(ATTACK, attack_name);
            if *attack_name == "lanes" {
                mallory.in_pid_namespace();
            }
            mallory.begin("@ begun")
        })
        .collect();
    let alice = Other::start(ALICE, "alice_registers_all", &manager.socket);
    let (sensors, attempts) = register_all(&manager.socket, "root");
    println!("root: {} in {attempts} attempts", sensors.len());
    println!("{}", alice.passes());
    let own = Query::parse("of root*").unwrap();
    let listed = || {
        let mut monitor = MonitorConnection::connect(&manager.socket).ok()?;
        Some(monitor.list(&own).ok()?.len())
    };
    eventually(listed, |listed| *listed == Some(SENSORS));
    drop(mallory);
}

#[test]
fn unmapped_grants_block_no_other_user() {
    other_programs_are_connected(&["grants"]);
}

#[test]
fn patterns_delay_no_other_user() {
    other_programs_are_connected(&["patterns"]);
}

#[test]
fn lanes_of_many_threads_delay_no_other_user() {
    other_programs_are_connected(&["lanes"]);
}

#[test]
fn many_maps_delay_no_other_user() {
    other_programs_are_connected(&["maps"]);
}

#[test]
fn large_buffers_delay_no_other_user() {
    other_programs_are_connected(&["buffers"]);
}

#[test]
fn endless_connections_and_requests_delay_no_other_user() {
    other_programs_are_connected(&["flood", "requests"]);
}

#[test]
fn attacks_together_delay_no_other_user() {
    other_programs_are_connected(&ATTACKS);
}

/// The other user's part; does nothing in an ordinary run. It opens connections, sends a request on
/// each if it has to, and prints the number of served ones.
#[test]
fn one_of_many_connects() {
    let Some(socket) = socket() else { return };
    let count = std::env::var("OVERHEAR_TEST_CONNECTIONS").unwrap();
    let count: usize = count.parse().unwrap();
    let sends_request = std::env::var("OVERHEAR_TEST_ASKS").is_ok();
    let all: Vec<Raw> = (0..count).map(|_| Raw::connect(&socket)).collect();
    if sends_request {
        let status = json!({ "status": { "version": 1 } });
        let served = all.iter().filter(|raw| {
            raw.send(&status);
            raw.receive().0["status"].is_object()
        });
        println!("@ {} served", served.count());
    } else {
        println!("@ connected");
    }
    let _ = std::io::stdout().flush();
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

fn connections(uid: u32, count: usize, sends_request: bool, socket: &Path) -> Prepared {
    let mut other = Other::prepare(uid, "one_of_many_connects", socket);
    other.env("OVERHEAR_TEST_CONNECTIONS", &count.to_string());
    if sends_request {
        other.env("OVERHEAR_TEST_ASKS", "1");
    }
    other
}

#[test]
fn ordinary_users_leave_monitors_to_root() {
    if !is_root() {
        return;
    }
    let manager = directory_of_root("");
    // Each has a quarter of 256, and all together leave an eighth.
    let served = [
        "@ 64 served",
        "@ 64 served",
        "@ 64 served",
        "@ 32 served",
        "@ 0 served",
    ];
    let mut users = Vec::new();
    for (uid, served) in (60_001..).zip(served) {
        users.push(connections(uid, 80, true, &manager.socket).begin(served));
    }
    let mut root = MonitorConnection::connect(&manager.socket).unwrap();
    assert!(root.status().is_ok());
    // Sensors are registered nevertheless.
    let (_sensors, attempts) = register_all(&manager.socket, "root");
    println!("root: {attempts} attempts");
    drop(users);
}

#[test]
fn largest_user_makes_room_for_another() {
    if !is_root() {
        return;
    }
    let quota = "[quota]\ntotal_connections = 16\nconnections = 8\n";
    let manager = directory_of_root(quota);
    let users: Vec<Other> = [60_001, 60_002]
        .map(|uid| connections(uid, 8, false, &manager.socket).begin("@ connected"))
        .into();
    // All connections of ordinary users are in use; one of them closes for each of hers. This is
    // tested right after they have connected, before they have been silent for too long.
    Other::start(ALICE, "alice_registers_all", &manager.socket).passes();
    let (_sensors, attempts) = register_all(&manager.socket, "root");
    println!("root: {attempts} attempts");
    drop(users);
}
