// SPDX-License-Identifier: MIT OR Apache-2.0
//! One user at full effort against a directory of root: the time until the programs of others are
//! registered, and the time of a list. Each attack alone, then all together.
//!
//! The limit on a calm machine: of 100 programs all are registered within half a second, and a list
//! takes at most a second. Whether the machine is calm is measured before: by the delay of a thread
//! that sleeps for a millisecond at a time. On any other machine the table is printed without a
//! conclusion.
//!
//! `cargo bench -p overhear-directory --bench hostile`, as root; `make hostile` runs it with the
//! long forms of the tests.
#![allow(missing_docs)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use overhear_directory::client::register_at;
use overhear_directory::{MonitorConnection, Query};

use support::mallory::{attack, ATTACKS};
use support::request;
use support::users::{directory_of_root, is_root, socket, Other, ALICE, MALLORY};

/// Number of programs of the other user, and of root.
const PROGRAMS: usize = 50;
/// The limits.
const CONNECTED_WITHIN: Duration = Duration::from_millis(500);
const LISTED_WITHIN: Duration = Duration::from_secs(1);
/// A machine is busy if its threads wake up later than this.
const CALM: Duration = Duration::from_millis(20);
const ATTACK: &str = "OVERHEAR_TEST_WAY";

fn main() -> ExitCode {
    if let Some(socket) = socket() {
        match std::env::var(ATTACK) {
            Ok(attack_name) => attack(&attack_name, &socket),
            Err(_) => {
                println!("test one ... ok\n1 passed");
                for took in register_all(&socket, "alice") {
                    println!("@ {}", took.as_micros());
                }
            }
        }
        return ExitCode::SUCCESS;
    }
    if !is_root() {
        return ExitCode::SUCCESS;
    }
    let late = lateness();
    println!("calm before: a thread that sleeps wakes up {late:.1?} late at most");
    println!(
        "{:<10} {:>8} {:>10} {:>10} {:>10}",
        "way", "connected", "median", "longest", "list"
    );
    let mut holds = true;
    let mut attacks: Vec<Vec<&str>> = ATTACKS
        .iter()
        .map(|attack_name| vec![*attack_name])
        .collect();
    attacks.insert(0, Vec::new());
    attacks.push(ATTACKS.to_vec());
    for attacks in &attacks {
        holds &= measure(attacks);
    }
    match (holds, late <= CALM) {
        (true, _) => println!("The promise holds."),
        (false, true) => println!("The promise does NOT hold."),
        (false, false) => println!("INCONCLUSIVE: the machine is not calm."),
    }
    match holds || late > CALM {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The longest delay of a thread in a second.
fn lateness() -> Duration {
    let begun = Instant::now();
    let mut worst = Duration::ZERO;
    while begun.elapsed() < Duration::from_secs(1) {
        let before = Instant::now();
        std::thread::sleep(Duration::from_millis(1));
        worst = worst.max(before.elapsed().saturating_sub(Duration::from_millis(1)));
    }
    worst
}

/// Time of each program's registration; one without an answer took its whole timeout.
fn register_all(socket: &Path, of: &str) -> Vec<Duration> {
    let mut sensors = Vec::new();
    let each = (0..PROGRAMS).map(|number| {
        let begun = Instant::now();
        match register_at(socket, request(&format!("of {of} {number}"))) {
            Ok(registration) if !registration.is_deferred() => {
                sensors.push(registration);
                begun.elapsed()
            }
            _ => 2 * CONNECTED_WITHIN,
        }
    });
    each.collect()
}

fn measure(attacks: &[&str]) -> bool {
    let manager = directory_of_root("");
    let mallory: Vec<Other> = attacks
        .iter()
        .map(|attack_name| {
            let mut mallory = Other::prepare(MALLORY, "mallory", &manager.socket);
            mallory.env(ATTACK, attack_name);
            if *attack_name == "lanes" {
                mallory.in_pid_namespace();
            }
            mallory.begin("@ begun")
        })
        .collect();
    let alice = Other::start(ALICE, "alice", &manager.socket);
    let mut all = register_all(&manager.socket, "root");
    let text = alice.passes();
    let hers = text
        .lines()
        .filter_map(|line| line.strip_prefix("@ ")?.parse().ok());
    all.extend(hers.map(Duration::from_micros));
    let begun = Instant::now();
    let own = Query::parse("of root*").unwrap();
    let listed = MonitorConnection::connect(&manager.socket).map(|mut it| it.list(&own));
    let list = match listed {
        Ok(Ok(_)) => begun.elapsed(),
        _ => 2 * LISTED_WITHIN,
    };
    drop(mallory);
    all.sort_unstable();
    let connected = all.iter().filter(|took| **took <= CONNECTED_WITHIN).count();
    let name = match attacks {
        [] => "nobody",
        [attack_name] => attack_name,
        _ => "together",
    };
    println!(
        "{:<10} {:>8} {:>7.2} ms {:>7.2} ms {:>7.2} ms",
        name,
        format!("{connected}/{}", 2 * PROGRAMS),
        all[all.len() / 2].as_secs_f64() * 1e3,
        all[all.len() - 1].as_secs_f64() * 1e3,
        list.as_secs_f64() * 1e3,
    );
    all.len() == 2 * PROGRAMS && connected == all.len() && list <= LISTED_WITHIN
}
