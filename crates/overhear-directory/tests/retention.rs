// SPDX-License-Identifier: MIT OR Apache-2.0
//! Buffers of dead processes are kept until they have been read, or for a while; elements that are
//! freed unread are counted.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use overhear_directory::client::register_at;
use overhear_directory::{Begin, Directory, MonitorConnection, Query, SensorState};
use overhear_event::Source;

use support::{eventually, register_patiently, request, Received, TestDirectory, Writer};

/// A process with one sensor and 30 elements in it.
fn sensor_process(socket: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_with_a_sensor", "--nocapture"])
        .env("SENSOR_OF_A_CHILD", socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let written = |line: std::io::Result<String>| line.is_ok_and(|line| line.contains("written"));
    assert!(lines.into_iter().any(written), "the process has no sensor");
    child
}

/// The process of [`sensor_process`]; does nothing in an ordinary run.
#[test]
fn process_with_a_sensor() {
    let Some(socket) = std::env::var_os("SENSOR_OF_A_CHILD") else {
        return;
    };
    let registration = register_patiently(Path::new(&socket), "of a child").unwrap();
    Writer::new(registration).write(30);
    println!("written");
    // Its parent ends it, or ends.
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    std::process::abort();
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn connect(here: &TestDirectory) -> MonitorConnection {
    MonitorConnection::connect(here.directory.socket()).unwrap()
}

fn until_retained(here: &TestDirectory, sensors: u64) {
    eventually(
        || here.directory.status(),
        |status| status.retained == sensors,
    );
}

#[test]
fn buffer_of_a_killed_process_is_read_by_a_later_monitor() {
    let here = TestDirectory::standalone();
    kill(sensor_process(&here.socket()));
    until_retained(&here, 1);
    let found = connect(&here).list(&Query::all()).unwrap();
    assert_eq!(found[0].state, SensorState::Retained);
    assert_eq!((found[0].published, found[0].monitors), (30, 0));
    let mut one = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    let mut other = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    let mut received = Received::default();
    received.until(&mut one, |received| !received.closed.is_empty());
    assert_eq!(received.elements, 30);
    // The second monitor has not read it yet.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(here.directory.status().sensors, 1);
    let mut received = Received::default();
    received.until(&mut other, |received| !received.closed.is_empty());
    assert_eq!(received.elements, 30);
    let status = eventually(|| here.directory.status(), |status| status.sensors == 0);
    assert_eq!((status.bytes, status.freed_unread), (0, 0));
}

#[test]
fn unread_buffer_is_freed_after_the_retention_and_counted() {
    let builder = Directory::builder().standalone();
    let here = TestDirectory::with(builder.retention(Duration::from_millis(200)));
    kill(sensor_process(&here.socket()));
    let status = eventually(
        || here.directory.status(),
        |status| status.freed_unread == 1,
    );
    assert_eq!((status.sensors, status.bytes), (0, 0));
    // A monitor that is attached and does not read gets no more time.
    let child = sensor_process(&here.socket());
    let mut lazy = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    kill(child);
    eventually(
        || here.directory.status(),
        |status| status.freed_unread == 2,
    );
    // But it still has its map, with readable elements.
    let mut received = Received::default();
    lazy.poll(&mut received).unwrap();
    assert_eq!((received.elements, received.closed.len()), (30, 1));
}

#[test]
fn monitor_that_leaves_has_not_read() {
    let here = TestDirectory::standalone();
    let child = sensor_process(&here.socket());
    let leaving = connect(&here).attach(Query::all(), Begin::Now).unwrap();
    kill(child);
    until_retained(&here, 1);
    drop(leaving);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(here.directory.status().retained, 1);
    let mut source = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| !received.closed.is_empty());
    assert_eq!(received.elements, 30);
}

#[test]
fn retained_buffers_make_room_for_new_sensors() {
    let probe = TestDirectory::standalone();
    let bytes = probe.register("any").shape.bytes() as u64;
    let here = TestDirectory::with(Directory::builder().standalone().quota_bytes(2 * bytes));
    kill(sensor_process(&here.socket()));
    kill(sensor_process(&here.socket()));
    until_retained(&here, 2);
    let _first = here.register("first");
    assert_eq!(here.directory.status().freed_unread, 1);
    let _second = here.register("second");
    assert_eq!(here.directory.status().freed_unread, 2);
    // Buffers of living processes stay.
    let third = register_at(&here.socket(), request("third")).unwrap();
    assert!(third.is_deferred(), "{third:?}");
}
