// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors without memory are deferred: switched off, and open for monitors once memory is
//! released. Their programs need to do nothing.
#![cfg(feature = "daemon")]

mod support;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use overhear_directory::client::{register_at, Registration};
use overhear_directory::{
    AttachedSource, Begin, Directory, MonitorConnection, Needs, Query, SensorState,
};
use overhear_event::{EventSet, Source, WriterKind};
use overhear_stream::sync::Ordering;
use overhear_stream::Words;
use serde_json::json;

use support::users::{directory_of_root, is_root, socket, Other, ALICE, MALLORY};
use support::{
    eventually, register_packet, register_patiently, request, request_until_granted, Raw, Received,
    TestDirectory, Writer,
};

/// A directory with room for `sensors` of the smallest buffers.
fn with_room_for(sensors: u64) -> TestDirectory {
    let probe = TestDirectory::standalone();
    let bytes = probe.register("any").shape.bytes() as u64;
    let builder = Directory::builder().standalone();
    TestDirectory::with(builder.quota_bytes(sensors * bytes))
}

fn is_on(registration: &Registration) -> bool {
    let control = registration.control.as_ref().expect("a control page");
    control.line().unwrap().state() == overhear_stream::SwitchState::On
}

fn attach(here: &TestDirectory) -> AttachedSource {
    let connection = MonitorConnection::connect(here.directory.socket()).unwrap();
    connection.attach(Query::all(), Begin::Now).unwrap()
}

#[track_caller]
fn until_admitted(registration: &Registration) {
    eventually(|| registration.is_deferred(), |deferred| !deferred);
    eventually(|| is_on(registration), |on| *on);
}

#[test]
fn deferred_sensor_opens_when_memory_is_released() {
    let here = with_room_for(1);
    let first = here.register("first");
    let mut source = attach(&here);
    let mut received = Received::default();
    let mut second = Writer::new(here.register("second"));
    let shortage = second.registration.deferred.clone().unwrap();
    assert!(shortage.contains("0 bytes left of the quota"), "{shortage}");
    assert!(second.registration.is_deferred() && !is_on(&second.registration));
    let status = here.directory.status();
    assert_eq!(
        (status.deferred, status.sensors, status.not_connected),
        (1, 1, 1)
    );
    let refusals = here.directory.take_not_connected().messages;
    assert!(refusals[0].contains("waits for memory"), "{refusals:?}");

    first.unregister().unwrap();
    drop(first);
    // The monitor keeps the first one until it has read it.
    let poll = || {
        source.poll(&mut received).unwrap();
        second.registration.is_deferred()
    };
    let mut poll = poll;
    eventually(&mut poll, |deferred| !deferred);
    until_admitted(&second.registration);
    second.write(5);
    received.until(&mut source, |received| received.elements == 5);
    assert_eq!(received.opened.len(), 2);
    assert!(received.gaps.is_empty(), "{:?}", received.gaps);
    let numbers = received.sequences.iter().map(|(_, sequence)| *sequence);
    assert!(numbers.eq(0..5), "from its first element on");
    let status = here.directory.status();
    assert_eq!((status.deferred, status.sensors), (0, 1));
    // From here on it is an ordinary sensor.
    second.registration.unregister().unwrap();
    received.until(&mut source, |received| received.closed.len() == 2);
}

#[test]
fn every_kind_of_sensor_can_be_deferred() {
    for kind in [WriterKind::Laned, WriterKind::Concurrent] {
        let mut wanted = request("of several threads");
        (wanted.kind, wanted.lanes) = (kind, 4);
        let probe = TestDirectory::standalone();
        let bytes = request_until_granted(&probe.socket(), &wanted)
            .unwrap()
            .shape
            .bytes();
        let builder = Directory::builder().standalone();
        let here = TestDirectory::with(builder.quota_bytes(bytes as u64 + 100));
        let first = here.register("first");
        let waiting = request_until_granted(&here.socket(), &wanted).unwrap();
        assert!(waiting.is_deferred(), "{kind:?}");
        first.unregister().unwrap();
        drop(first);
        until_admitted(&waiting);
        // The headers existed from the begin: the program's changes of them are still valid.
        let mut monitor = MonitorConnection::connect(here.directory.socket()).unwrap();
        let listed = monitor.list(&Query::all()).unwrap();
        assert_eq!(listed[0].kind, kind);
        assert_eq!(listed[0].bytes, bytes as u64);
        let mut received = Received::default();
        let mut source = attach(&here);
        received.until(&mut source, |received| !received.opened.is_empty());
        assert!(
            received.complaints.is_empty() && received.gaps.is_empty(),
            "{received:?}"
        );
    }
}

#[test]
fn large_buffers_can_be_deferred() {
    const LARGE: u64 = 1 << 20;
    let here = TestDirectory::with(Directory::builder().standalone().quota_bytes(40 << 20));
    let wanted = |name: &str| {
        let mut wanted = request(name);
        wanted.capacity = LARGE;
        wanted
    };
    let first = request_until_granted(&here.socket(), &wanted("first")).unwrap();
    assert!(!first.is_deferred());
    let mut second = Writer::new(request_until_granted(&here.socket(), &wanted("second")).unwrap());
    assert!(second.registration.is_deferred());
    first.unregister().unwrap();
    drop(first);
    until_admitted(&second.registration);
    second.write(LARGE);
    let mut monitor = MonitorConnection::connect(here.directory.socket()).unwrap();
    assert_eq!(monitor.list(&Query::all()).unwrap()[0].published, LARGE);
}

#[test]
fn deferred_sensors_are_admitted_in_order_of_registration() {
    let here = with_room_for(1);
    let mut there = here.register("there");
    let mut waiting: Vec<Registration> = (0..5)
        .map(|number| here.register(&format!("waiting {number}")))
        .collect();
    assert!(waiting.iter().all(Registration::is_deferred));
    while !waiting.is_empty() {
        there.unregister().unwrap();
        drop(there);
        until_admitted(&waiting[0]);
        assert!(waiting[1..].iter().all(Registration::is_deferred));
        there = waiting.remove(0);
    }
}

#[test]
fn unneeded_deferred_sensor_stays_off() {
    let probe = TestDirectory::standalone();
    let bytes = probe.register("any").shape.bytes() as u64;
    let builder = Directory::builder().standalone().quota_bytes(bytes);
    let here = TestDirectory::with(builder.needs(Needs::events(EventSet::new())));
    let first = here.register("first");
    let second = here.register("second");
    first.unregister().unwrap();
    drop(first);
    eventually(|| second.is_deferred(), |deferred| !deferred);
    assert!(!is_on(&second));
    let _source = attach(&here);
    eventually(|| is_on(&second), |on| *on);
}

#[test]
fn programs_without_support_for_deferral_are_refused() {
    let here = with_room_for(1);
    let _first = here.register("first");
    let raw = Raw::connect(&here.socket());
    raw.is_refused(&register_packet("second"), &["left of the quota"]);
    assert_eq!(here.directory.status().deferred, 0);
}

#[test]
fn sensor_larger_than_the_quota_is_not_deferred() {
    let here = with_room_for(4);
    let mut wanted = request("huge");
    wanted.capacity = 1 << 20;
    assert!(register_at(&here.socket(), wanted).is_err());
    let status = here.directory.status();
    assert_eq!((status.deferred, status.not_connected), (0, 1));
}

#[test]
fn ended_programs_are_not_deferred_any_more() {
    let here = with_room_for(1);
    let first = here.register("first");
    let waiting = |names: &[&str]| -> Vec<Registration> {
        let all = names.iter().map(|name| here.register(name));
        all.inspect(|registration| assert!(registration.is_deferred()))
            .collect()
    };
    let mut all = waiting(&["taken out", "unmapped", "touched", "patient"]);
    let twin = register_at(&here.socket(), request("patient"));
    let message = twin.expect_err("there is one already").to_string();
    assert!(message.contains("has such a sensor already"), "{message}");
    all[0].unregister().unwrap();
    drop(all.remove(1));
    let deferred = |count| {
        let status = || here.directory.status();
        eventually(status, move |status| status.deferred == count);
    };
    deferred(2);
    // A program that fills memory which it was not granted.
    let mut large = request("filled");
    large.capacity = 0;
    let bytes = touch_all(&here, "greedy");
    assert!(bytes > 1 << 17);
    deferred(2);
    first.unregister().unwrap();
    drop(first);
    until_admitted(&all[1]);
    // The memory belongs to the program; the directory has no record of it any more.
    let status = here.directory.status();
    assert_eq!((status.sensors, status.deferred), (1, 1));
}

/// Writes to every page of a deferred sensor that has all memory of the quota; returns its size.
fn touch_all(here: &TestDirectory, name: &str) -> usize {
    let builder = Directory::builder().standalone().quota_bytes(300_000);
    let other = TestDirectory::with(builder);
    let mut wanted = request("first");
    wanted.capacity = 1 << 13;
    let _first = request_until_granted(&other.socket(), &wanted).unwrap();
    wanted.sensor = name.to_string();
    let waiting = request_until_granted(&other.socket(), &wanted).unwrap();
    assert!(waiting.is_deferred());
    // SAFETY: the registration keeps the map.
    let words = unsafe { waiting.mapping.words() };
    for index in (512..words.len()).step_by(512) {
        words.word(index).store(1, Ordering::Relaxed);
    }
    eventually(|| other.directory.status(), |status| status.deferred == 0);
    assert_eq!(here.directory.status().deferred, 2);
    waiting.mapping.bytes()
}

/// Starts a process with a deferred sensor.
fn waiting_process(socket: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_that_waits", "--nocapture"])
        .env("SENSOR_THAT_WAITS", socket)
        .stdout(Stdio::null())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The process of [`waiting_process`]; does nothing in an ordinary run.
#[test]
fn process_that_waits() {
    let Some(socket) = std::env::var_os("SENSOR_THAT_WAITS") else {
        return;
    };
    let _waiting = register_patiently(Path::new(&socket), "of a child").unwrap();
    // Its parent ends it, or ends.
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

#[test]
fn deferred_sensor_of_an_ended_process_is_removed() {
    let here = with_room_for(1);
    let _first = here.register("first");
    let mut child = waiting_process(&here.socket());
    eventually(|| here.directory.status(), |status| status.deferred == 1);
    child.kill().unwrap();
    child.wait().unwrap();
    eventually(|| here.directory.status(), |status| status.deferred == 0);
}

#[test]
fn deferred_sensor_outlives_a_restart() {
    let probe = TestDirectory::standalone();
    let bytes = probe.register("any").shape.bytes();
    let mut manager = support::manager::Manager::new(&[]);
    let file = manager.folder.path().join("directory.toml");
    std::fs::write(&file, format!("[quota]\ntotal_bytes = {bytes}\n")).unwrap();
    manager.arguments = vec!["--config".to_string(), file.display().to_string()];
    manager.start();
    let register = |name| register_patiently(&manager.socket, name).unwrap();
    let first = register("first");
    let mut second = Writer::new(register("second"));
    let third = register("third");
    assert!(second.registration.is_deferred() && third.is_deferred());
    manager.kill();
    drop(third);
    manager.start();
    let connect =
        |manager: &support::manager::Manager| MonitorConnection::connect(&manager.socket).unwrap();
    let status = || connect(&manager).status().unwrap();
    let settled = eventually(status, |status| status.deferred == 1);
    assert_eq!((settled.sensors, settled.bytes), (1, bytes as u64));
    assert!(second.registration.is_deferred());
    first.unregister().unwrap();
    drop(first);
    until_admitted(&second.registration);
    second.write(7);
    manager.kill();
    manager.start();
    let listed = connect(&manager).list(&Query::all()).unwrap();
    assert_eq!((listed.len(), listed[0].published), (1, 7));
    assert_eq!(listed[0].state, SensorState::Live);
    assert!(is_on(&second.registration));
    second.registration.unregister().unwrap();
    drop(second);
    let status = || connect(&manager).status().unwrap();
    eventually(status, |status| (status.sensors, status.bytes) == (0, 0));
}

/// The share is three, and the rest is common: a user that requests more waits for its own sensors
/// only.
#[test]
fn users_take_turns() {
    if !is_root() {
        return;
    }
    let probe = TestDirectory::standalone();
    let bytes = probe.register("any").shape.bytes();
    let quota = format!("[quota]\nbytes = {}\n", 3 * bytes);
    let manager = directory_of_root(&quota);
    let mallory = Other::prepare(MALLORY, "one_of_several_users", &manager.socket);
    let _mallory = mallory.begin("@ waits");
    let alice = Other::prepare(ALICE, "one_of_several_users", &manager.socket);
    let _alice = alice.begin("@ waits");
    let mut monitor = MonitorConnection::connect(&manager.socket).unwrap();
    let status = monitor.status().unwrap();
    assert_eq!((status.sensors, status.deferred), (6, 4));
    let listed = monitor.list(&Query::all()).unwrap();
    for uid in [MALLORY, ALICE] {
        assert_eq!(listed.iter().filter(|sensor| sensor.uid == uid).count(), 3);
    }
}

/// The other user's part; does nothing in an ordinary run.
#[test]
fn one_of_several_users() {
    let Some(socket) = socket() else { return };
    let sensors = (0..5).map(|number| register_patiently(&socket, &format!("sensor {number}")));
    let sensors: Vec<Registration> = sensors.map(Result::unwrap).collect();
    let waiting = sensors.iter().filter(|sensor| sensor.is_deferred()).count();
    assert_eq!(waiting, 2);
    println!("@ waits");
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

#[test]
fn sensors_not_connected_are_listed() {
    let here = with_room_for(1);
    let _first = here.register("first");
    let _second = here.register("second");
    for _ in 0..3 {
        assert!(register_at(&here.socket(), request("first")).is_err());
    }
    let raw = Raw::connect(&here.socket());
    assert!(raw.send(&json!({ "not_connected": { "version": 1 } })));
    let answer = raw.receive().0;
    let sensors = answer["not_connected"]["sensors"]
        .as_array()
        .expect("a list");
    let names = sensors
        .iter()
        .map(|sensor| sensor["sensor"].as_str().unwrap());
    assert!(names.eq(["second", "first"]), "{answer}");
    assert_eq!(sensors[1]["count"], 3);
    assert_eq!(sensors[1]["pid"], std::process::id());
}
