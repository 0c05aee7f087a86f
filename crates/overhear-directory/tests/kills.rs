// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overheard` is killed repeatedly, as fast as a manager starts it, while sensors write, begin and
//! end: every element is delivered, in order and at its time, and all counts agree.
#![cfg(feature = "daemon")]
#![allow(
    clippy::disallowed_types,
    reason = "the test's own threads publish their progress"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use overhear_directory::client::{register_at, SensorRequest};
use overhear_directory::{monotonic_now, Begin, MonitorConnection, Query};
use overhear_event::{GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId, Timestamp};

use overhear_stream::sync::{AtomicBool, AtomicU64, Ordering};
use support::manager::Manager;
use support::{eventually, request, request_until_granted, Writer};

/// Default number of kills; `make hostile` sets another one in the environment.
const KILLS: u64 = 50;
/// Sensors that write continuously.
const STEADY: usize = 4;
/// Maximum error of a time; a clock with a break would have a larger one.
const TOLERANCE_NS: u64 = 20_000_000;

fn kills() -> u64 {
    let named = std::env::var("OVERHEAR_TEST_KILLS").ok();
    named.and_then(|text| text.parse().ok()).unwrap_or(KILLS)
}

/// The items of a monitor.
#[derive(Debug, Default)]
struct Received {
    names: BTreeMap<StreamId, String>,
    elements: BTreeMap<StreamId, u64>,
    last: BTreeMap<StreamId, Timestamp>,
    missed: BTreeMap<StreamId, u64>,
    closed: BTreeSet<StreamId>,
    faults: Vec<String>,
}

impl Inbox for Received {
    fn open(&mut self, stream: std::sync::Arc<StreamDescriptor>) {
        let before = self.names.insert(stream.id, stream.sensor.clone());
        if before.is_some() {
            self.faults
                .push(format!("{} is opened twice", stream.sensor));
        }
    }

    fn element(&mut self, stream: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        let elements = self.elements.entry(stream).or_default();
        let missed = self.missed.get(&stream).copied().unwrap_or(0);
        if sequence != *elements + missed {
            let fault = format!("{stream:?}: {sequence} behind {elements}");
            self.faults.push(fault);
        }
        *elements += 1;
        // The payload has a time right before the write; the element has been written by now.
        let before = u64::from_ne_bytes(payload[..8].try_into().unwrap());
        let after = monotonic_now().as_monotonic_ns();
        if !(before - TOLERANCE_NS..=after + TOLERANCE_NS).contains(&time.as_monotonic_ns()) {
            let fault = format!("{stream:?}: {time} is not between {before} and {after}");
            self.faults.push(fault);
        }
        if self
            .last
            .insert(stream, time)
            .is_some_and(|last| last > time)
        {
            self.faults.push(format!("{stream:?}: time went back"));
        }
    }

    fn gap(&mut self, stream: StreamId, first: u64, missed: u64, cause: GapCause) {
        *self.missed.entry(stream).or_default() += missed;
        self.faults
            .push(format!("{stream:?}: {missed} {cause:?} at {first}"));
    }

    fn complain(&mut self, _: SourceError) {}

    fn close(&mut self, stream: StreamId) {
        self.closed.insert(stream);
    }
}

/// A sensor with a large ring and the time of writing in its elements.
fn wanted(name: &str) -> SensorRequest {
    let mut wanted = request(name);
    wanted.capacity = 1 << 14;
    wanted
}

fn write(writer: &mut Writer) {
    let now = monotonic_now().as_monotonic_ns();
    writer.write_number(now);
}

/// The actions of a program with short-lived sensors.
#[derive(Default)]
struct Churn {
    written: BTreeMap<StreamId, u64>,
    not_connected: Vec<String>,
}

fn churn(socket: &Path, goes_on: &AtomicBool) -> Churn {
    let mut own = Churn::default();
    for number in 0_u64.. {
        if !goes_on.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("brief {number}");
        match register_at(socket, wanted(&name)) {
            Ok(registration) => {
                let mut writer = Writer::new(registration);
                (0..3).for_each(|_| write(&mut writer));
                // If the directory is dead at this moment, the sensor is freed when the process
                // ends.
                let _ = writer.registration.unregister();
                own.written.insert(writer.registration.stream, 3);
            }
            Err(_) => own.not_connected.push(name),
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    own
}

#[test]
fn directory_survives_many_kills() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let socket = manager.socket.clone();
    let goes_on = AtomicBool::new(true);
    let written: Vec<AtomicU64> = (0..STEADY).map(|_| AtomicU64::new(0)).collect();
    let (mut received, mut own) = (Received::default(), Churn::default());
    let mut source = MonitorConnection::connect(&socket)
        .unwrap()
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    std::thread::scope(|scope| {
        for (number, written) in written.iter().enumerate() {
            let steady = wanted(&format!("steady {number}"));
            let registration = request_until_granted(&socket, &steady).unwrap();
            let goes_on = &goes_on;
            scope.spawn(move || {
                let mut writer = Writer::new(registration);
                while goes_on.load(Ordering::Relaxed) {
                    write(&mut writer);
                    written.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1));
                }
                let _ = writer.registration.unregister();
            });
        }
        let program = scope.spawn(|| churn(&socket, &goes_on));
        let monitor = scope.spawn(|| {
            while goes_on.load(Ordering::Relaxed) {
                source.poll(&mut received).unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut chance = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..kills() {
            chance ^= chance << 13;
            chance ^= chance >> 7;
            chance ^= chance << 17;
            // Most of them before the clock has been measured twice.
            std::thread::sleep(Duration::from_micros(chance % 90_000));
            manager.kill();
            manager.start();
        }
        goes_on.store(false, Ordering::Relaxed);
        own = program.join().unwrap();
        monitor.join().unwrap();
    });
    // All elements have been written: the rest of them is read.
    let mut all_closed = |received: &mut Received| {
        source.poll(received).unwrap();
        let open = received
            .names
            .keys()
            .filter(|id| !received.closed.contains(id));
        open.count()
    };
    eventually(|| all_closed(&mut received), |open| *open == 0);
    let faults: Vec<_> = received.faults.iter().take(20).collect();
    assert!(
        faults.is_empty(),
        "{} faults: {faults:#?}",
        received.faults.len()
    );

    let of_name: BTreeMap<&str, StreamId> = received
        .names
        .iter()
        .map(|(id, name)| (name.as_str(), *id))
        .collect();
    for (number, written) in written.iter().enumerate() {
        let stream = of_name[format!("steady {number}").as_str()];
        let elements = received.elements[&stream];
        assert_eq!(elements, written.load(Ordering::Relaxed), "steady {number}");
    }
    // A sensor whose registration was answered is read completely, or it was registered and
    // unregistered while the monitor had no directory.
    let (mut whole, mut between) = (0, 0);
    for (stream, written) in &own.written {
        match received.names.get(stream) {
            Some(name) => {
                assert_eq!(received.elements.get(stream), Some(written), "{name}");
                whole += 1;
            }
            None => between += 1,
        }
    }
    // If an answer was lost, the program registered again: a sensor that it does not know is empty.
    let brief = received
        .names
        .iter()
        .filter(|(_, name)| name.starts_with("brief"));
    for (stream, name) in brief {
        let known = own.written.contains_key(stream);
        assert!(known || !received.elements.contains_key(stream), "{name}");
    }
    println!(
        "{} kills: {whole} brief sensors received whole, {between} came and went between two lives, \
         {} got no answer",
        kills(),
        own.not_connected.len()
    );
    assert!(whole > 0);
    let mut monitor = MonitorConnection::connect(&socket).unwrap();
    let look = || {
        let status = monitor.status().unwrap();
        let kept: Vec<String> = manager.shelf.lock().unwrap().keys().cloned().collect();
        (status, kept)
    };
    // The clock, the journal and the watch are kept, and nothing else.
    let settled = eventually(look, |(status, kept)| {
        (status.sensors, status.bytes, kept.len()) == (0, 0, 3)
    });
    assert_eq!(settled.0.restarts, kills());
}
