// SPDX-License-Identifier: MIT OR Apache-2.0
//! Monitors outside the directory's process: their events, the elements that they read, and their
//! start positions.

mod support;

use overhear_directory::client::register_at;
use overhear_directory::{
    monotonic_now, AttachError, Begin, MonitorConnection, ProgramSource, Query, SensorState,
};
use overhear_event::{ClockId, GapCause, Source, StreamId, Ticks, WriterKind};
use overhear_stream::sync::Ordering;
use overhear_stream::{read_hardware_ticks_ordered, QueueWriter, Shape, Words};

use support::{request, Received, TestDirectory, Writer};

fn connect(here: &TestDirectory) -> MonitorConnection {
    MonitorConnection::connect(here.directory.socket()).unwrap()
}

fn query(names: &str) -> Query {
    Query::parse(names).unwrap()
}

fn sequences(received: &Received) -> Vec<u64> {
    received
        .sequences
        .iter()
        .map(|(_, sequence)| *sequence)
        .collect()
}

#[test]
fn list_has_all_fields_of_a_sensor() {
    let here = TestDirectory::standalone();
    let mut queue = Writer::new(here.register("queue"));
    let _cache = here.register("cache");
    queue.write(5);
    let mut monitor = connect(&here);
    let all = monitor.list(&Query::all()).unwrap();
    assert_eq!(all.len(), 2);
    let found = monitor.list(&query("*/qu*")).unwrap();
    assert_eq!(found.len(), 1);
    let sensor = &found[0];
    assert_eq!(sensor.descriptor.id, queue.registration.stream);
    assert_eq!(sensor.descriptor.sensor, "queue");
    assert_eq!(*sensor.descriptor.schema, support::schema());
    assert_eq!((sensor.kind, sensor.lanes), (WriterKind::Simple, 0));
    assert_eq!(sensor.published, 5);
    assert_eq!((sensor.state, sensor.enabled), (SensorState::Live, true));
    assert_eq!(sensor.uid, rustix::process::geteuid().as_raw());
    assert_eq!(sensor.bytes, queue.registration.shape.bytes() as u64);
    assert_eq!(monitor.list(&query("nothing")).unwrap(), []);
    let status = monitor.status().unwrap();
    assert_eq!((status.sensors, status.retained), (2, 0));
    assert_eq!(status.pid, std::process::id());
}

#[test]
fn list_of_many_sensors_comes_in_packets_and_is_complete() {
    let here = TestDirectory::standalone();
    let registrations: Vec<_> = (0..500).map(|n| here.register(&format!("{n}"))).collect();
    let all = connect(&here).list(&Query::all()).unwrap();
    let ids: Vec<StreamId> = all.iter().map(|sensor| sensor.descriptor.id).collect();
    let expected: Vec<StreamId> = registrations.iter().map(|r| r.stream).collect();
    assert_eq!(ids, expected);
    // Attaching to all of them: more than a socket holds at once.
    let source = connect(&here).attach(Query::all(), Begin::Now).unwrap();
    assert_eq!(source.sensors(), 500);
}

#[test]
fn bad_pattern_is_refused_and_the_connection_goes_on_elsewhere() {
    let here = TestDirectory::standalone();
    let raw = support::Raw::connect(here.directory.socket());
    let packet = serde_json::json!({ "list": { "version": 1, "query": { "names": "[" } } });
    raw.is_refused(&packet, &["is not a pattern"]);
    let packet = serde_json::json!({ "attach": { "version": 2, "query": {} } });
    support::Raw::connect(here.directory.socket()).is_refused(&packet, &["version 2"]);
}

#[test]
fn monitor_begins_now_or_with_the_buffered_elements() {
    let here = TestDirectory::standalone();
    let mut writer = Writer::new(here.register("queue"));
    writer.write(100);
    let capacity = writer.registration.shape.elements().capacity();
    assert_eq!(capacity, 64);
    let mut now = connect(&here).attach(Query::all(), Begin::Now).unwrap();
    let mut buffer = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    writer.write(3);
    let (mut later, mut earlier) = (Received::default(), Received::default());
    now.poll(&mut later).unwrap();
    buffer.poll(&mut earlier).unwrap();
    assert_eq!(sequences(&later), [100, 101, 102]);
    assert!(later.gaps.is_empty());
    // Three elements that were written meanwhile replaced three older ones: these are missed.
    let stream = writer.registration.stream;
    assert_eq!(earlier.gaps, [(stream, 37, 3, GapCause::Overwritten)]);
    assert_eq!(sequences(&earlier), (40..103).collect::<Vec<_>>());
    for received in [&later, &earlier] {
        assert_eq!(received.opened.len(), 1);
        for ((_, sequence), payload) in received.sequences.iter().zip(&received.payloads) {
            assert_eq!(payload[..8], sequence.to_ne_bytes());
        }
    }
}

#[test]
fn monitor_gets_new_and_ended_sensors() {
    let here = TestDirectory::standalone();
    let mut source = connect(&here)
        .attach(query("*/wanted*"), Begin::Now)
        .unwrap();
    assert_eq!(source.sensors(), 0);
    let _other = here.register("other");
    let mut wanted = Writer::new(here.register("wanted"));
    // Written before the monitor has the sensor: no element of it is lost.
    wanted.write(7);
    let mut received = Received::default();
    received.until(&mut source, |received| received.elements == 7);
    assert_eq!(sequences(&received), [0, 1, 2, 3, 4, 5, 6]);
    wanted.write(2);
    wanted.registration.unregister().unwrap();
    received.until(&mut source, |received| !received.closed.is_empty());
    assert_eq!(received.elements, 9);
    assert_eq!(received.closed, [wanted.registration.stream]);
    assert_eq!(received.opened.len(), 1);
    // Read and freed.
    let mut monitor = connect(&here);
    let known = || monitor.list(&Query::all()).unwrap().len();
    support::eventually(known, |known| *known == 1);
    assert!(received.complaints.is_empty());
}

#[test]
fn monitor_in_the_directory_and_one_outside_read_the_same() {
    let here = TestDirectory::start();
    let mut inside = ProgramSource::new(&here.directory);
    let mut writer = Writer::new(here.register("queue"));
    let mut outside = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    writer.write(10);
    writer.registration.unregister().unwrap();
    let (mut one, mut other) = (Received::default(), Received::default());
    one.until(&mut inside, |received| !received.closed.is_empty());
    other.until(&mut outside, |received| !received.closed.is_empty());
    assert_eq!(sequences(&one), sequences(&other));
    assert_eq!(one.payloads, other.payloads);
    assert_eq!(one.elements, 10);
}

#[test]
fn switch_reaches_the_sensor() {
    let here = TestDirectory::standalone();
    let [one, two] = ["one", "two"].map(|name| here.register(name));
    let on = |registration: &overhear_directory::client::Registration| {
        let control = registration.control.as_ref().expect("a control page");
        control.line().unwrap().state() == overhear_stream::SwitchState::On
    };
    assert!(on(&one) && on(&two));
    let mut monitor = connect(&here);
    assert_eq!(monitor.set_enabled(&query("*/one"), false).unwrap(), 1);
    assert_eq!(monitor.set_enabled(&query("*/one"), false).unwrap(), 0);
    assert!(!on(&one) && on(&two));
    let enabled: Vec<bool> = monitor
        .list(&Query::all())
        .unwrap()
        .iter()
        .map(|sensor| sensor.enabled)
        .collect();
    assert_eq!(enabled, [false, true]);
    let both = monitor.set_enabled(&Query::all(), true).unwrap();
    assert_eq!(both, 1);
    let second = Query::stream(two.stream);
    assert_eq!(monitor.set_enabled(&second, false).unwrap(), 1);
    assert!(on(&one) && !on(&two));
}

#[test]
fn connecting_without_a_directory_fails() {
    let error = MonitorConnection::connect(std::path::Path::new("/nonexistent/sock")).unwrap_err();
    assert!(matches!(error, AttachError::Link(_)));
    assert!(error.to_string().contains("/nonexistent/sock"), "{error}");
}

#[test]
fn lanes_are_streams_of_one_sensor_and_losses_are_reported_once() {
    let here = TestDirectory::standalone();
    let mut laned = request("laned");
    (laned.kind, laned.lanes) = (WriterKind::Laned, 3);
    let registration = register_at(&here.socket(), laned).unwrap();
    let Shape::Laned(pool) = &registration.shape else {
        panic!("{:?}", registration.shape);
    };
    assert_eq!(pool.lanes(), 3);
    let behind = here.register("behind");
    assert_eq!(behind.stream.as_raw(), registration.stream.as_raw() + 3);
    let mut source = connect(&here).attach(Query::all(), Begin::Now).unwrap();
    let mut received = Received::default();
    source.poll(&mut received).unwrap();
    assert_eq!(
        received.opened.len(),
        2,
        "the first lane, and the other sensor"
    );
    assert_eq!(received.opened[0].lane, Some(0));
    assert_eq!(received.opened[0].schema.fields()[0].name, "writer_tid");
    // SAFETY: the registration keeps the map.
    let words = unsafe { registration.mapping.words() };
    let set = |word: usize, value: u64| words.word(word).store(value, Ordering::Release);
    let lane = pool.lane_offset(2) / 8;
    // An element of thread 7: stamp, tid, payload; then the counter.
    set(lane + 512, 1);
    set(lane + 513, 7);
    set(lane + 514, 99);
    set(lane + 8, 1);
    set(lane + 136 / 8, 5);
    set(144 / 8, 6);
    let before = received.opened.len();
    source.poll(&mut received).unwrap();
    source.poll(&mut received).unwrap();
    let third = StreamId::from_raw(registration.stream.as_raw() + 2);
    assert_eq!(received.opened[before..].len(), 1);
    assert_eq!(
        (received.opened[before].id, received.opened[before].lane),
        (third, Some(2))
    );
    assert_eq!(received.sequences, [(third, 0)]);
    assert_eq!(received.payloads[0][..4], 7_u32.to_ne_bytes());
    assert_eq!(received.payloads[0][8..16], 99_u64.to_ne_bytes());
    let nested = (third, 1, 5, GapCause::Nested);
    let full = (registration.stream, 0, 6, GapCause::Full);
    assert_eq!(received.gaps, [nested, full]);
    let record = &connect(&here).list(&query("laned")).unwrap()[0];
    assert_eq!(
        (record.published, record.lost_nested, record.lost_full),
        (1, 5, 6)
    );
    registration.unregister().unwrap();
    received.until(&mut source, |received| received.closed.len() == 2);
}

#[test]
fn concurrent_sensor_is_one_stream_in_the_order_of_commits() {
    let here = TestDirectory::standalone();
    let mut concurrent = request("concurrent");
    // 64 elements for the rate, and those of the writers in addition.
    (concurrent.kind, concurrent.lanes) = (WriterKind::Concurrent, 3);
    let registration = register_at(&here.socket(), concurrent).unwrap();
    let Shape::Concurrent(queue) = registration.shape else {
        panic!("{:?}", registration.shape);
    };
    assert_eq!(queue.capacity(), 128);
    // SAFETY: the registration keeps the map.
    let words = unsafe { registration.mapping.words() };
    let writer = QueueWriter::new(words, queue).unwrap();
    let stamp = || match registration.clock {
        ClockId::Monotonic => Ticks::from_raw(monotonic_now().as_monotonic_ns()),
        _ => read_hardware_ticks_ordered(),
    };
    for thread in 0..200 {
        writer.write(thread, &[7; 16], stamp).unwrap();
    }
    // The present streams, without the ended ones.
    let mut source = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    let mut received = Received::default();
    source.poll(&mut received).unwrap();
    assert_eq!(received.opened[0].schema.fields()[0].name, "writer_tid");
    assert_eq!(sequences(&received), (72..200).collect::<Vec<_>>());
    let mut first = writer.take().unwrap();
    first.fill(&[8; 16]);
    writer.write(2, &[9; 16], stamp).unwrap();
    first.commit(1, stamp);
    drop(writer.take().unwrap());
    let held: Vec<_> = std::iter::from_fn(|| writer.take().ok()).collect();
    let before = received.payloads.len();
    source.poll(&mut received).unwrap();
    // All elements are held by writers, so the three unread ones are lost; they are reported with
    // the refused ones.
    let stream = registration.stream;
    let gone = (stream, 200, 3, GapCause::Overwritten);
    let full = (stream, 203, 1, GapCause::Full);
    assert_eq!(received.payloads.len(), before);
    assert_eq!(received.gaps, [gone, full]);
    drop(held);
    writer.write(4, &[6; 16], stamp).unwrap();
    source.poll(&mut received).unwrap();
    // There are 128 void elements in between; 127 of them still exist.
    assert_eq!(received.sequences.last(), Some(&(stream, 203 + 128)));
    assert_eq!(
        received.gaps[2..],
        [(stream, 203, 1, GapCause::Overwritten)]
    );
    assert_eq!(received.payloads[before][..4], 4_u32.to_ne_bytes());
    let record = &connect(&here).list(&query("concurrent")).unwrap()[0];
    assert_eq!((record.published, record.lost_full), (332, 1));
    assert_eq!(received.complaints, [""; 0]);
}
