// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overheard` is killed during registrations and their ends: programs continue, with or without a
//! directory, nothing hangs, and the restarted directory has each sensor completely or not at all.
#![cfg(feature = "daemon")]
#![allow(
    clippy::disallowed_types,
    reason = "the test's own threads publish their progress"
)]

mod support;

use std::collections::BTreeMap;

use overhear_directory::client::{register_at, Registration};
use overhear_directory::{Begin, MonitorConnection, Query, SensorRecord, SensorState};
use serde_json::{json, Value};

use overhear_stream::sync::{AtomicU32, Ordering};
use support::manager::Manager;
use support::{eventually, register_packet, register_patiently, request, Raw, Received, Writer};

fn connect(manager: &Manager) -> MonitorConnection {
    MonitorConnection::connect(&manager.socket).unwrap()
}

/// The directory's sensors, by name. Its sums agree with them once it has noticed the ended
/// clients.
#[track_caller]
fn known(manager: &Manager) -> BTreeMap<String, SensorRecord> {
    let look = || {
        let all = connect(manager).list(&Query::all()).unwrap();
        let status = connect(manager).status().unwrap();
        let bytes: u64 = all.iter().map(|sensor| sensor.bytes).sum();
        let agrees = (status.sensors, status.bytes) == (all.len() as u64, bytes);
        (agrees, all, status)
    };
    let (_, all, _) = eventually(look, |(agrees, ..)| *agrees);
    let count = all.len();
    let named = all
        .into_iter()
        .map(|sensor| (sensor.descriptor.sensor.clone(), sensor));
    let named: BTreeMap<_, _> = named.collect();
    assert_eq!(named.len(), count, "each name once");
    named
}

/// Steps of a registration, as the root documentation counts the hand-over.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Step {
    Connected,
    Asked,
    Granted,
    Told,
    Sealed,
}

#[test]
fn directory_may_be_killed_at_any_step_of_a_registration() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut witness = Writer::new(register_patiently(&manager.socket, "witness").unwrap());
    let mut source = connect(&manager)
        .attach(Query::parse("witness").unwrap(), Begin::Buffer)
        .unwrap();
    let (mut received, mut written) = (Received::default(), 0);
    for step in [
        Step::Connected,
        Step::Asked,
        Step::Granted,
        Step::Told,
        Step::Sealed,
    ] {
        let name = format!("{step:?}");
        let raw = Raw::connect(&manager.socket);
        if step >= Step::Asked {
            assert!(raw.send(&register_packet(&name)));
        }
        let mut file = None;
        if step >= Step::Granted {
            let granted = raw.receive();
            assert!(granted.0["granted"].is_object());
            // Kept instead of a map; a program keeps a map as well.
            file = granted.1;
        }
        if step >= Step::Told {
            assert!(raw.send(&json!("mapped")));
        }
        if step >= Step::Sealed {
            assert_eq!(raw.receive().0, json!("sealed"));
        }
        manager.kill();
        witness.write(10);
        written += 10;
        received.until(&mut source, |received| received.elements == written);
        if step == Step::Connected {
            // It was accepted, or waits for the next directory to accept it.
            raw.send(&register_packet(&name));
        }
        manager.start();
        if step > Step::Connected {
            // A client that waits for an answer gets the packets before the end, then the end.
            while raw.receive().0 != Value::Null {}
        }
        drop(raw);
        assert_eq!(file.is_some(), step >= Step::Granted);
        // Before the seal its program does not keep the file either.
        let _file = file.filter(|_| step == Step::Sealed);
        let names = || {
            let names = known(&manager).into_keys();
            names.filter(|known| *known == name).count()
        };
        match step {
            // It never got `mapped`.
            Step::Connected | Step::Asked | Step::Granted => {
                eventually(names, |count| *count == 0);
                let again = register_patiently(&manager.socket, &name);
                again.unwrap().unregister().unwrap();
            }
            Step::Told => assert!(names() <= 1),
            Step::Sealed => assert_eq!(names(), 1, "a completed step has its effect"),
        }
        assert_eq!(known(&manager)["witness"].published, written);
    }
    assert!(received.gaps.is_empty(), "{:?}", received.gaps);
}

/// A program's view of its sensors after a round.
#[derive(Default)]
struct Own {
    there: Vec<Registration>,
    names: Vec<String>,
    gone: Vec<String>,
    /// The answer did not come.
    unknown: Vec<String>,
}

/// Registers, writes, and unregisters every second sensor.
fn churn(manager: &std::path::Path, round: u32, progress: &AtomicU32, own: &mut Own) {
    for number in 0..6 {
        let name = format!("sensor {round} {number}");
        progress.fetch_add(1, Ordering::Relaxed);
        let Ok(registration) = register_at(manager, request(&name)) else {
            own.unknown.push(name);
            continue;
        };
        let mut writer = Writer::new(registration);
        writer.write(5);
        progress.fetch_add(1, Ordering::Relaxed);
        if number % 2 == 0 {
            own.names.push(name);
            own.there.push(writer.registration);
        } else if writer.registration.unregister().is_ok() {
            own.gone.push(name);
        } else {
            own.unknown.push(name);
        }
    }
}

#[test]
fn directory_may_be_killed_at_any_moment_of_registrations() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut own = Own::default();
    for round in 0..10 {
        let progress = AtomicU32::new(0);
        let socket = manager.socket.clone();
        std::thread::scope(|scope| {
            let program = scope.spawn(|| churn(&socket, round, &progress, &mut own));
            // Somewhere in the first, the second, ... registration or end.
            while progress.load(Ordering::Relaxed) <= round && !program.is_finished() {
                std::hint::spin_loop();
            }
            (0..round * 20_000).for_each(|turn| {
                std::hint::black_box(turn);
            });
            manager.kill();
            manager.start();
        });
        let known = known(&manager);
        for name in &own.names {
            let sensor = known.get(name).unwrap_or_else(|| panic!("{name} is lost"));
            assert_eq!(sensor.state, SensorState::Live);
            assert_eq!(sensor.published, 5);
        }
        for name in known.keys() {
            assert!(!own.gone.contains(name), "{name} was taken out");
            assert!(
                own.names.contains(name) || own.unknown.contains(name),
                "{name}"
            );
        }
    }
    println!(
        "{} are there, {} were taken out, of {} the answer did not come",
        own.names.len(),
        own.gone.len(),
        own.unknown.len()
    );
    // The program can unregister all sensors that it has, and no other one of its own remains.
    for registration in own.there.drain(..) {
        registration.unregister().unwrap();
    }
    let left = known(&manager);
    assert!(
        left.keys().all(|name| own.unknown.contains(name)),
        "{left:?}"
    );
}
