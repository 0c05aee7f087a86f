// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overheard` is killed while sensors write, and started again with the kept files: every buffer
//! is there, the state is complete, and nothing is lost. The test plays the service manager.
#![cfg(feature = "daemon")]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use overhear_directory::client::{register_at, RegisterError, Registration};
use overhear_directory::{monotonic_now, Begin, MonitorConnection, Needs, Query, SensorState};
use overhear_event::{
    EventName, GapCause, Inbox, Source, SourceError, StreamDescriptor, StreamId, Timestamp,
    WriterKind,
};
use overhear_stream::sync::Ordering;
use overhear_stream::{Shape, SwitchState, Words};

use support::manager::Manager;
use support::users::{directory_of_root, is_root, socket, Other, ALICE, MALLORY};
use support::{eventually, register_patiently, request, Received, Writer};

fn connect(manager: &Manager) -> MonitorConnection {
    MonitorConnection::connect(&manager.socket).unwrap()
}

#[track_caller]
fn register(manager: &Manager, sensor: &str) -> Registration {
    register_patiently(&manager.socket, sensor).unwrap()
}

fn is_on(registration: &Registration) -> bool {
    let control = registration.control.as_ref().expect("a control page");
    control.line().unwrap().state() != SwitchState::Off
}

#[test]
fn killed_directory_comes_back_with_everything() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut writers: Vec<Writer> = (0..20)
        .map(|number| Writer::new(register(&manager, &format!("sensor {number}"))))
        .collect();
    writers.iter_mut().for_each(|writer| writer.write(10));
    let mut source = connect(&manager)
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| received.elements == 200);
    let off = writers[3].registration.stream;
    connect(&manager)
        .set_enabled(&Query::stream(off), false)
        .unwrap();
    let before = connect(&manager).list(&Query::all()).unwrap();

    manager.kill();
    // No directory runs, and the clients are not disturbed.
    writers.iter_mut().for_each(|writer| writer.write(10));
    received.until(&mut source, |received| received.elements == 400);
    manager.start();

    let after = connect(&manager).list(&Query::all()).unwrap();
    assert_eq!(after.len(), 20);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.descriptor, after.descriptor);
        assert_eq!((before.uid, before.bytes), (after.uid, after.bytes));
        assert_eq!(before.enabled, after.enabled);
        assert_eq!(after.published, 20);
        assert_eq!(after.state, SensorState::Live);
    }
    let status = connect(&manager).status().unwrap();
    assert_eq!((status.sensors, status.restarts), (20, 1));
    assert_eq!(
        status.bytes,
        after.iter().map(|sensor| sensor.bytes).sum::<u64>()
    );
    // A late monitor finds every element.
    let mut late = connect(&manager)
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    let mut found = Received::default();
    found.until(&mut late, |received| received.elements == 400);
    assert!(found.gaps.is_empty());
    // The control page is the same.
    assert!(!is_on(&writers[3].registration));
    connect(&manager).set_enabled(&Query::all(), true).unwrap();
    assert!(is_on(&writers[3].registration));
    // Numbers continue, used names are refused, tokens are valid.
    let next = register(&manager, "next");
    assert!(next.stream > writers[19].registration.stream);
    let Err(RegisterError::Refused { message, .. }) =
        register_patiently(&manager.socket, "sensor 0")
    else {
        panic!("not refused");
    };
    assert!(message.contains("has such a sensor already"), "{message}");
    writers[0].registration.unregister().unwrap();
    // The earlier monitor continues, and gets the new sensor and the end.
    writers[1].write(5);
    received.until(&mut source, |received| {
        received.elements == 405 && received.opened.len() == 21
    });
    received.until(&mut source, |received| !received.closed.is_empty());
    assert_eq!(received.closed, [writers[0].registration.stream]);
    assert!(received.gaps.is_empty(), "{:?}", received.gaps);
    assert!(source.is_connected());
    let mut each = std::collections::BTreeMap::new();
    for (stream, sequence) in &received.sequences {
        let next = each.entry(*stream).or_insert(0);
        assert_eq!(sequence, next, "in order, and each once");
        *next += 1;
    }
    // Once more: sensors that came after the first restart are kept as well.
    manager.kill();
    manager.start();
    let status = connect(&manager).status().unwrap();
    assert_eq!(status.restarts, 2);
    let names = connect(&manager)
        .list(&Query::parse("*/next").unwrap())
        .unwrap();
    assert_eq!(names[0].descriptor.id, next.stream);
    assert!(manager.terminate().success());
}

#[test]
fn finished_sensor_is_not_read_again() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut child = sensor_process(&manager.socket);
    let query = Query::parse("*/of a child").unwrap();
    eventually(
        || connect(&manager).list(&query).unwrap(),
        |found| found.first().is_some_and(|sensor| sensor.published == 30),
    );
    let mut source = connect(&manager)
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    let mut other = connect(&manager)
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| !received.closed.is_empty());
    // The other monitor has not read it, so the directory still has it when it is killed.
    manager.kill();
    manager.start();
    eventually(
        || {
            source.poll(&mut received).unwrap();
            source.is_connected()
        },
        |connected| *connected,
    );
    let late = register(&manager, "late");
    Writer::new(late).write(3);
    received.until(&mut source, |received| received.elements == 33);
    assert_eq!((received.opened.len(), received.closed.len()), (2, 1));
    let mut received = Received::default();
    received.until(&mut other, |received| received.elements == 33);
    eventually(|| connect(&manager).list(&query).unwrap(), Vec::is_empty);
}

#[test]
fn sensor_read_by_a_detached_monitor_is_not_freed_unread_after_a_restart() {
    let mut manager = Manager::new(&[]);
    let config = manager.folder.path().join("directory.toml");
    manager.arguments = vec!["--config".to_string(), config.display().to_string()];
    std::fs::write(&config, "").unwrap();
    manager.start();
    let mut child = sensor_process(&manager.socket);
    let query = Query::parse("*/of a child").unwrap();
    eventually(
        || connect(&manager).list(&query).unwrap(),
        |found| found.first().is_some_and(|sensor| sensor.published == 30),
    );
    let attach = || {
        connect(&manager)
            .attach(Query::all(), Begin::Buffer)
            .unwrap()
    };
    let (mut reader, other) = (attach(), attach());
    child.kill().unwrap();
    child.wait().unwrap();
    let mut received = Received::default();
    received.until(&mut reader, |received| !received.closed.is_empty());
    drop(reader);
    // When one of the two does not have it any more, the directory has received its report.
    eventually(
        || connect(&manager).list(&query).unwrap(),
        |found| found.first().is_none_or(|sensor| sensor.monitors < 2),
    );
    // The other monitor ends, and the directory is killed before it notices that.
    manager.kill();
    drop(other);
    std::fs::write(&config, "retention_seconds = 1\n").unwrap();
    manager.start();
    eventually(|| connect(&manager).list(&query).unwrap(), Vec::is_empty);
    let status = connect(&manager).status().unwrap();
    assert_eq!((status.freed_unread, status.restarts), (0, 1));
}

#[test]
fn sensor_that_never_pauses_is_evaluated_through_restarts() {
    const ELEMENTS: u64 = 40_000;
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut wanted = request("busy");
    wanted.capacity = 1 << 16;
    let registration = register_at(&manager.socket, wanted).unwrap();
    let stream = registration.stream;
    let mut source = connect(&manager)
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    let mut received = Received::default();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut writer = Writer::new(registration);
            for _ in 0..ELEMENTS / 100 {
                writer.write(100);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            writer
        });
        for _ in 0..3 {
            received.until(&mut source, |received| received.elements > 0);
            manager.kill();
            source.poll(&mut received).unwrap();
            manager.start();
            let found = connect(&manager).list(&Query::stream(stream)).unwrap();
            assert_eq!(found.len(), 1);
        }
        let writer = writer.join().unwrap();
        received.until(&mut source, |received| received.elements == ELEMENTS);
        writer.registration.unregister().unwrap();
    });
    received.until(&mut source, |received| !received.closed.is_empty());
    assert!(received
        .sequences
        .iter()
        .map(|(_, sequence)| *sequence)
        .eq(0..ELEMENTS));
    assert!(received.gaps.is_empty(), "{:?}", received.gaps);
}

#[test]
fn elements_overwritten_without_a_directory_are_counted_exactly() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut writer = Writer::new(register(&manager, "fast"));
    let capacity = writer.registration.shape.elements().capacity();
    let mut source = connect(&manager)
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    let mut received = Received::default();
    writer.write(10);
    received.until(&mut source, |received| received.elements == 10);
    let mut written = 10;
    for turn in 1..=3 {
        manager.kill();
        // The ring is lapped before and after the start of the next directory.
        writer.write(turn * capacity + 7);
        source.poll(&mut received).unwrap();
        writer.write(turn * capacity + 11);
        manager.start();
        writer.write(2 * capacity);
        written += (2 * turn + 2) * capacity + 18;
        let missed = |received: &Received| received.gaps.iter().map(|gap| gap.2).sum::<u64>();
        received.until(&mut source, |received| {
            received.elements + missed(received) == written
        });
        // Two runs of each turn are missing; the content of the ring was read after each of them.
        assert_eq!(received.gaps.len() as u64, 2 * turn, "{:?}", received.gaps);
        assert_eq!(received.elements, 10 + 2 * turn * (capacity - 1));
        assert!(received
            .gaps
            .iter()
            .all(|gap| gap.3 == GapCause::Overwritten));
        // A later monitor has missed nothing.
        let mut late = connect(&manager)
            .attach(Query::all(), Begin::Buffer)
            .unwrap();
        let mut found = Received::default();
        found.until(&mut late, |found| found.elements == capacity - 1);
        assert!(found.gaps.is_empty());
        assert_eq!(found.sequences.last(), received.sequences.last());
    }
}

#[test]
fn process_that_ends_without_a_directory_is_noticed() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut child = sensor_process(&manager.socket);
    let query = Query::parse("*/of a child").unwrap();
    eventually(
        || connect(&manager).list(&query).unwrap(),
        |found| found.first().is_some_and(|sensor| sensor.published == 30),
    );
    manager.kill();
    child.kill().unwrap();
    child.wait().unwrap();
    manager.start();
    let found = connect(&manager).list(&query).unwrap();
    assert_eq!(found[0].state, SensorState::Retained);
    let mut source = connect(&manager)
        .attach(query.clone(), Begin::Buffer)
        .unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| !received.closed.is_empty());
    assert_eq!(received.elements, 30);
    // It was read, and is gone with its files.
    let query = || connect(&manager).list(&query).unwrap();
    eventually(query, Vec::is_empty);
    let kept = || {
        manager
            .shelf
            .lock()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    let left = eventually(kept, |names| names.len() == 3);
    assert!(
        left[0] == "clock" && left[1].starts_with('j') && left[2] == "watch",
        "{left:?}"
    );
}

#[test]
fn sensor_freed_during_a_restart_is_not_kept() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let registration = register(&manager, "held");
    let source = connect(&manager).attach(Query::all(), Begin::Now).unwrap();
    // Its monitor has to read it first.
    registration.unregister().unwrap();
    assert_eq!(connect(&manager).status().unwrap().sensors, 1);
    manager.kill();
    drop((source, registration));
    manager.start();
    let look = || {
        let status = connect(&manager).status().unwrap();
        let kept: Vec<String> = manager.shelf.lock().unwrap().keys().cloned().collect();
        (status.sensors, status.bytes, kept)
    };
    // Neither the buffer nor the control page of its process remains.
    let (.., kept) = eventually(look, |(sensors, bytes, kept)| {
        (*sensors, *bytes, kept.len()) == (0, 0, 3)
    });
    assert!(
        kept[0] == "clock" && kept[1].starts_with('j') && kept[2] == "watch",
        "{kept:?}"
    );
}

#[test]
fn user_cannot_exhaust_the_store_of_others() {
    if !is_root() {
        return;
    }
    // Mallory's share is ten of sixteen, and two are reserved for root. Each process has a control
    // page, too.
    let mut manager = directory_of_root("[quota]\ntotal_kept_files = 16\nkept_files = 10\n");
    let begin = |uid| Other::prepare(uid, "child_that_registers_ten", &manager.socket);
    let others = [MALLORY, ALICE].map(|uid| begin(uid).begin("@ registered"));
    let _own = register(&manager, "of root");
    let count = |manager: &Manager| {
        let listed = connect(manager).list(&Query::all()).unwrap();
        let of = |uid| listed.iter().filter(|sensor| sensor.uid == uid).count();
        [of(MALLORY), of(ALICE), of(0)]
    };
    // All are served. The sensors for which the store has room survive the restart, and the rest is
    // counted.
    assert_eq!(count(&manager), [10, 10, 1]);
    // The clock, the journal and the watch belong to no user.
    let shelf = || manager.shelf.lock().unwrap().len();
    eventually(shelf, |files| *files == 16 + 3);
    manager.kill();
    manager.start();
    assert_eq!(count(&manager), [9, 3, 1]);
    let status = connect(&manager).status().unwrap();
    assert_eq!(status.freed_unread, 8);
    // The end of others frees room.
    drop(others);
    let look = || connect(&manager).status().unwrap().retained;
    eventually(look, |retained| *retained == 12);
}

/// The action of another user; does nothing in an ordinary run.
#[test]
fn child_that_registers_ten() {
    let Some(socket) = socket() else { return };
    let one = |number| register_patiently(&socket, &format!("sensor {number}")).unwrap();
    let _sensors: Vec<Registration> = (0..10).map(one).collect();
    println!("@ registered");
    let _ = std::io::stdout().flush();
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
}

#[test]
fn lanes_are_given_back_also_after_a_restart() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut laned = request("laned");
    (laned.kind, laned.lanes) = (WriterKind::Laned, 9);
    let registration = register_at(&manager.socket, laned).unwrap();
    manager.kill();
    manager.start();
    let Shape::Laned(pool) = &registration.shape else {
        panic!("{:?}", registration.shape);
    };
    // SAFETY: the registration keeps the map.
    let words = unsafe { registration.mapping.words() };
    let claim = |lane: u32, owner: u64| {
        let word = (pool.lane_offset(lane) + 160) / 8;
        words.word(word).store(owner, Ordering::Release);
    };
    let ended = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get());
    let ended = u64::from(ended.join().unwrap().unsigned_abs()) | 3 << 32;
    let alive = u64::from(
        rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs(),
    ) | 1 << 32;
    claim(8, ended);
    claim(2, alive);
    let control = registration.control.as_ref().unwrap().line().unwrap();
    eventually(|| control.reclaimed(8), |word| *word == ended);
    assert_eq!(
        control.reclaimed(2),
        0,
        "a thread that lives keeps its lane"
    );
    assert_eq!(control.reclaimed(0), 0);
}

#[test]
fn last_of_many_lanes_is_given_back_too() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let second = overhear_event::Nanos::from_ms(1_000);
    let rate = overhear_event::Rate::new(second, second, overhear_event::Nanos::ZERO).unwrap();
    let many = |sensor, lanes| {
        let mut laned = request(sensor);
        (laned.kind, laned.lanes, laned.rate) = (WriterKind::Laned, lanes, Some(rate));
        register_at(&manager.socket, laned).unwrap()
    };
    // More lanes than are processed at once, in one sensor and in several.
    let sensors = [many("first", 1300), many("second", 1), many("third", 2)];
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let alive = u64::from(own.unsigned_abs()) | 1 << 32;
    let ended = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get());
    let ended = u64::from(ended.join().unwrap().unsigned_abs()) | 3 << 32;
    for registration in &sensors {
        let Shape::Laned(pool) = &registration.shape else {
            panic!("{:?}", registration.shape);
        };
        // SAFETY: the registration keeps the map.
        let words = unsafe { registration.mapping.words() };
        for lane in 0..pool.lanes() {
            let is_last = lane + 1 == pool.lanes();
            let word = words.word((pool.lane_offset(lane) + 160) / 8);
            word.store(if is_last { ended } else { alive }, Ordering::Release);
        }
    }
    for registration in &sensors {
        let control = registration.control.as_ref().unwrap().line().unwrap();
        let last = registration.shape.lanes() - 1;
        eventually(|| control.reclaimed(last), |word| *word == ended);
        assert!((0..last).all(|lane| control.reclaimed(lane) == 0));
    }
}

/// Starts a process with one sensor, which has written 30 elements and waits to be killed.
fn sensor_process(socket: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_with_a_sensor", "--nocapture"])
        .env("SENSOR_OF_A_CHILD", socket)
        .stdout(Stdio::null())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The process of [`sensor_process`]; does nothing in an ordinary run.
#[test]
fn process_with_a_sensor() {
    let Some(socket) = std::env::var_os("SENSOR_OF_A_CHILD") else {
        return;
    };
    let registration = register_patiently(Path::new(&socket), "of a child").unwrap();
    Writer::new(registration).write(30);
    // Its parent ends it, or ends.
    let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
    std::process::abort();
}

#[test]
fn directory_without_kept_files_starts_empty() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut writer = Writer::new(register(&manager, "old"));
    writer.write(3);
    let mut source = connect(&manager)
        .attach(Query::all(), Begin::Buffer)
        .unwrap();
    let mut received = Received::default();
    received.until(&mut source, |received| received.elements == 3);
    manager.kill();
    writer.write(2);
    manager.shelf.lock().unwrap().clear();
    manager.start();
    assert_eq!(connect(&manager).status().unwrap().restarts, 0);
    let mut new = Writer::new(register(&manager, "new"));
    new.write(4);
    // The numbers begin anew, too; streams that were attached are read to their end first.
    assert_eq!(new.registration.stream, writer.registration.stream);
    received.until(&mut source, |received| received.elements == 9);
    assert_eq!((received.opened.len(), received.closed.len()), (2, 1));
    assert_eq!(received.opened[1].sensor, "new");
    assert!(!received.complaints.is_empty());
    source.poll(&mut received).unwrap();
}

#[test]
fn unneeded_sensor_is_on_again_after_a_restart() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let sensors = ["needed", "unneeded", "off"].map(|sensor| register(&manager, sensor));
    let off = Query::parse("off").unwrap();
    connect(&manager).set_enabled(&off, false).unwrap();
    let needs = Needs::events([EventName::user("needed")].into_iter().collect());
    let attached =
        connect(&manager).attach_needing(Query::all(), Begin::Now, needs.disable_unused());
    let mut source = attached.unwrap();
    assert_eq!(sensors.each_ref().map(is_on), [true, false, false]);
    manager.kill();
    manager.start();
    // The monitor that required it is not back yet.
    connect(&manager).status().unwrap();
    assert_eq!(sensors.each_ref().map(is_on), [true, true, false]);
    let mut received = Received::default();
    received.until(&mut source, |_| !is_on(&sensors[1]));
    assert_eq!(sensors.each_ref().map(is_on), [true, false, false]);
}

#[test]
fn count_of_refused_sensors_outlives_a_restart() {
    let mut manager = Manager::new(&[]);
    manager.start();
    let _first = register(&manager, "only one");
    for _ in 0..3 {
        let refused = register_patiently(&manager.socket, "only one");
        assert!(matches!(refused, Err(RegisterError::Refused { .. })));
    }
    let not_connected = connect(&manager).status().unwrap().not_connected;
    assert!(not_connected >= 3, "{not_connected}");
    manager.kill();
    manager.start();
    let status = connect(&manager).status().unwrap();
    assert_eq!((status.not_connected, status.restarts), (not_connected, 1));
}

/// Stores the times at which elements were written, by the directory's clock.
#[derive(Default)]
struct Times(Vec<u64>);

impl Times {
    #[track_caller]
    fn until(&mut self, source: &mut impl Source, elements: usize) {
        let poll = || {
            source.poll(self).unwrap();
            self.0.len()
        };
        eventually(poll, |received| *received >= elements);
    }
}

impl Inbox for Times {
    fn open(&mut self, _: std::sync::Arc<StreamDescriptor>) {}

    fn element(&mut self, _: StreamId, sequence: u64, time: Timestamp, _: &[u8]) {
        assert_eq!(sequence, self.0.len() as u64);
        self.0.push(time.as_monotonic_ns());
    }

    fn gap(&mut self, _: StreamId, _: u64, _: u64, cause: GapCause) {
        panic!("a gap: {cause:?}");
    }

    fn complain(&mut self, _: SourceError) {}

    fn close(&mut self, _: StreamId) {}
}

/// The clock page continues: times ascend over a restart, including those of the time in between,
/// and a later monitor gets exactly the same ones.
#[test]
fn times_go_on_without_a_break_over_a_restart() {
    const TOLERANCE_NS: u64 = 50_000_000;
    let mut manager = Manager::new(&[]);
    manager.start();
    let mut writer = Writer::new(register(&manager, "stamped"));
    let attach = |manager: &Manager| {
        let attached = connect(manager).attach(Query::all(), Begin::Buffer);
        attached.unwrap()
    };
    let mut source = attach(&manager);
    let (mut times, mut brackets) = (Times::default(), Vec::new());
    let mut write = |writer: &mut Writer| {
        for _ in 0..5 {
            let before = monotonic_now().as_monotonic_ns();
            writer.write(1);
            brackets.push((before, monotonic_now().as_monotonic_ns()));
        }
    };
    for _ in 0..3 {
        write(&mut writer);
        manager.kill();
        write(&mut writer);
        manager.start();
        write(&mut writer);
    }
    times.until(&mut source, brackets.len());
    assert_eq!(times.0.len(), brackets.len());
    assert!(times.0.is_sorted(), "{:?}", times.0);
    for (time, (before, after)) in times.0.iter().zip(&brackets) {
        // A clock that began anew, or jumped, would be off by the time since then.
        assert!(
            (before - TOLERANCE_NS..=after + TOLERANCE_NS).contains(time),
            "{time} is not between {before} and {after}"
        );
    }
    let mut late = Times::default();
    late.until(&mut attach(&manager), brackets.len());
    assert_eq!(late.0, times.0, "the time of a stamp is never revised");
}
