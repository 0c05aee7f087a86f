// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that are killed: programs at each step of their registration, monitors while they
//! read. No other process is disturbed, and nothing of them remains.

mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use overhear_directory::{Begin, Mapping, MonitorConnection, Query, SensorState};
use overhear_event::Source;
use serde_json::json;

use support::{
    eventually, register_packet, register_patiently, Raw, Received, TestDirectory, Writer,
};

/// The actions of a process before it is killed.
const ROLE: &str = "ROLE_OF_A_CHILD";
/// Steps of a registration, as the root documentation counts the hand-over; the last one writes.
const STEPS: [&str; 7] = [
    "connected",
    "asked",
    "granted",
    "mapped",
    "told",
    "sealed",
    "written",
];
const WRITTEN: u64 = 30;

/// A process in a role, which has reported that it runs.
struct Played(Child);

impl Played {
    fn start(role: &str, socket: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "play", "--nocapture"])
            .env(ROLE, format!("{role}@{}", socket.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let there = lines
            .map_while(Result::ok)
            .any(|line| line.ends_with("@ there"));
        assert!(there, "{role}");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The process of [`Played`]; does nothing in an ordinary run.
#[test]
fn play() {
    let Some(role) = std::env::var(ROLE).ok() else {
        return;
    };
    let (role, socket) = role.split_once('@').unwrap();
    let socket = Path::new(socket);
    if role == "monitor" {
        let connection = MonitorConnection::connect(socket).unwrap();
        let mut source = connection.attach(Query::all(), Begin::Buffer).unwrap();
        println!("@ there");
        loop {
            source.poll(&mut Received::default()).unwrap();
        }
    }
    if role == "tireless" {
        let mut writer = Writer::new(register_patiently(socket, "tireless").unwrap());
        println!("@ there");
        loop {
            writer.write(1);
        }
    }
    // Kept until the process is killed.
    let mut all: Vec<Box<dyn std::any::Any>> = Vec::new();
    let step = STEPS.iter().position(|step| *step == role).unwrap();
    if role == "written" {
        let mut writer = Writer::new(register_patiently(socket, "victim").unwrap());
        writer.write(WRITTEN);
        all.push(Box::new(writer));
    } else {
        let raw = Raw::connect(socket);
        if step >= 1 {
            assert!(raw.send(&register_packet("victim")));
        }
        let file = (step >= 2).then(|| raw.receive().1.unwrap());
        if let (Some(file), true) = (&file, step >= 3) {
            let bytes = usize::try_from(rustix::fs::fstat(file).unwrap().st_size).unwrap();
            all.push(Box::new(Mapping::writable(file, bytes).unwrap()));
        }
        if step >= 4 {
            assert!(raw.send(&json!("mapped")));
        }
        if step >= 5 {
            assert_eq!(raw.receive().0, json!("sealed"));
        }
        all.push(Box::new((raw, file)));
    }
    println!("@ there");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn program_may_die_at_any_step_of_its_registration() {
    let here = TestDirectory::standalone();
    let mut witness = Writer::new(here.register("witness"));
    let mut source = MonitorConnection::connect(&here.socket())
        .unwrap()
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| received.opened.len() == 1);
    let bytes = here.directory.status().bytes;
    let mut seen = 0;
    for (step, role) in STEPS.iter().enumerate() {
        let victim = Played::start(role, &here.socket());
        witness.write(10);
        victim.kill();
        witness.write(10);
        // From the step "told" on monitors may have the sensor, from "sealed" on they have it. All
        // its elements are read, and then nothing of it is left, so the name is free again.
        let written = if *role == "written" { WRITTEN } else { 0 };
        seen += 20 + written;
        received.until(&mut source, |received| received.elements == seen);
        received.until(&mut source, |_| {
            let status = here.directory.status();
            status.sensors == 1 && status.bytes == bytes
        });
        let victims = received.opened.len() - 1;
        assert_eq!(received.closed.len(), victims, "{role}");
        assert!(victims <= step.saturating_sub(3), "{role}");
    }
    assert!(received.opened.len() >= 3, "sealed sensors were received");
    assert!(received.gaps.is_empty(), "{:?}", received.gaps);
    let own: Vec<u64> = received
        .sequences
        .iter()
        .filter(|(stream, _)| *stream == witness.registration.stream)
        .map(|(_, sequence)| *sequence)
        .collect();
    assert_eq!(own, (0..20 * STEPS.len() as u64).collect::<Vec<_>>());
}

#[test]
fn elements_of_a_killed_program_are_read_or_counted() {
    let here = TestDirectory::standalone();
    let connect = || MonitorConnection::connect(&here.socket()).unwrap();
    for _ in 0..5 {
        let victim = Played::start("tireless", &here.socket());
        let mut source = connect().attach(Query::all(), Begin::Buffer).unwrap();
        let mut received = Received::default();
        // It laps the reader continuously, and dies inside a write.
        received.until(&mut source, |received| !received.gaps.is_empty());
        victim.kill();
        let record = || connect().list(&Query::all()).unwrap().remove(0);
        let record = eventually(record, |record| record.state == SensorState::Retained);
        received.until(&mut source, |received| !received.closed.is_empty());
        // The first element that was read: elements that were overwritten before it do not count as
        // missed.
        let first = received.sequences[0].1.min(received.gaps[0].1);
        let missed: u64 = received.gaps.iter().map(|gap| gap.2).sum();
        assert_eq!(received.elements + missed, record.published - first);
        let last = received.sequences.last().unwrap().1;
        assert_eq!(last, record.published - 1, "the newest is read");
        assert!(received.complaints.is_empty(), "{:?}", received.complaints);
        eventually(|| here.directory.status().sensors, |left| *left == 0);
    }
}

#[test]
fn monitors_may_die_while_they_read() {
    let here = TestDirectory::standalone();
    let mut writer = Writer::new(here.register("queue"));
    let capacity = writer.registration.shape.elements().capacity();
    let connect = || MonitorConnection::connect(&here.socket()).unwrap();
    let mut source = connect().attach(Query::all(), Begin::Buffer).unwrap();
    let mut received = Received::default();
    let mut written = 0;
    for round in 0..20 {
        let monitor = Played::start("monitor", &here.socket());
        // It reads a ring that is lapped repeatedly, and dies inside a read.
        for _ in 0..=round {
            writer.write(capacity / 2);
            written += capacity / 2;
            source.poll(&mut received).unwrap();
        }
        std::thread::sleep(Duration::from_micros(round * 97));
        monitor.kill();
        writer.write(5);
        written += 5;
        source.poll(&mut received).unwrap();
    }
    // The living monitor has missed nothing: it always read in time.
    assert_eq!((received.elements, received.gaps.len()), (written, 0));
    // Nothing of the dead processes remains, and the sensor continues.
    let monitors = || connect().list(&Query::all()).unwrap()[0].monitors;
    eventually(monitors, |monitors| *monitors == 1);
    writer.write(1);
    received.until(&mut source, |received| received.elements == written + 1);
}
