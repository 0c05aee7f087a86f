// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants and refusals of the directory with their messages; the behaviour of one program costs no
//! other program anything.

mod support;

use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use overhear_directory::client::{register_at, RegisterError};
use overhear_directory::{
    Directory, DirectoryBuilder, MonitorConnection, ProgramSource, Query, SensorRecord,
};
use overhear_event::{Nanos, Rate, Source};
use serde_json::{json, Value};

use support::{
    register_packet, register_patiently, request, request_until_granted, Raw, Received,
    TestDirectory, Writer,
};

/// The message of a refusal, or the reason for a deferral; it does not wait.
#[track_caller]
fn refusal(here: &TestDirectory, sensor: &str) -> String {
    match register_patiently(&here.socket(), sensor) {
        Err(RegisterError::Refused { message, .. }) => message,
        Ok(registration) if registration.is_deferred() => {
            registration.unregister().unwrap();
            registration.deferred.unwrap()
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// Size of the smallest buffer in bytes.
fn smallest() -> u64 {
    let here = TestDirectory::start();
    let bytes = here.register("any").shape.bytes();
    bytes as u64
}

#[test]
fn sensor_is_announced_and_taken_out_again() {
    let here = TestDirectory::start();
    let mut source = ProgramSource::new(&here.directory);
    let registration = here.register("queue");
    let mut received = Received::default();
    source.poll(&mut received).unwrap();
    assert_eq!(received.opened.len(), 1);
    let opened = &received.opened[0];
    assert_eq!(
        (opened.id, opened.sensor.as_str()),
        (registration.stream, "queue")
    );
    assert_eq!(*opened.schema, support::schema());
    assert!(received.closed.is_empty());
    registration.unregister().unwrap();
    source.poll(&mut received).unwrap();
    assert_eq!(received.closed, [registration.stream]);
    assert!(here.directory.take_not_connected().messages.is_empty());
}

#[test]
fn another_version_is_refused_by_number() {
    let here = TestDirectory::start();
    let mut packet = register_packet("queue");
    packet["register"]["version"] = json!(99);
    Raw::connect(&here.socket()).is_refused(&packet, &["version 99", "version 1"]);
    let refused = here.directory.take_not_connected().messages;
    assert!(
        refused.len() == 1 && refused[0].contains("sensor `queue`"),
        "{refused:?}"
    );
    here.register("queue");
}

#[test]
fn names_that_would_spoil_a_terminal_or_a_trace_are_refused() {
    let here = TestDirectory::start();
    let long = "x".repeat(129);
    for name in ["", "a\nb", "\u{1b}[2J", &long] {
        let packet = register_packet(name);
        Raw::connect(&here.socket()).is_refused(&packet, &["its id"]);
    }
    let mut packet = register_packet("good");
    packet["register"]["instance"] = json!("\t");
    Raw::connect(&here.socket()).is_refused(&packet, &["its instance"]);
    for refused in here.directory.take_not_connected().messages {
        assert!(!refused.chars().any(char::is_control), "{refused:?}");
    }
    here.register(&"x".repeat(128));
    here.register("Länge µs");
}

#[test]
fn twin_is_refused_until_the_first_one_is_gone() {
    let here = TestDirectory::start();
    let first = here.register("twin");
    assert!(refusal(&here, "twin").contains("give the second one an instance"));
    let mut other = request("twin");
    other.instance = "second".to_owned();
    register_at(&here.socket(), other).unwrap();
    first.unregister().unwrap();
    here.register("twin");
}

#[test]
fn registration_whose_program_forgot_it_does_not_block_its_name() {
    let here = TestDirectory::start();
    // Unmapped without a message, as exec does it.
    drop(here.register("forgotten"));
    here.register("forgotten");
}

#[test]
fn repeated_registration_leaves_nothing_of_the_first_attempt() {
    let here = TestDirectory::standalone();
    let listed = || {
        let mut monitor = MonitorConnection::connect(&here.socket()).unwrap();
        let all = monitor.list(&Query::all()).unwrap();
        let one = |sensor: SensorRecord| (sensor.descriptor.sensor, sensor.published);
        all.into_iter().map(one).collect::<Vec<_>>()
    };
    // As if the directory had been killed before its last answer.
    drop(here.register("repeated"));
    let again = here.register("repeated");
    assert_eq!(listed(), [("repeated".to_owned(), 0)]);
    again.unregister().unwrap();
    assert_eq!(listed(), []);
    // Elements of a program that has executed another one remain.
    let mut written = Writer::new(here.register("repeated"));
    written.write(5);
    drop(written);
    here.register("repeated").unregister().unwrap();
    assert_eq!(listed(), [("repeated".to_owned(), 5)]);
}

#[test]
fn quota_bounds_the_sum_of_all_buffers() {
    let one = smallest();
    let here = TestDirectory::with_quota(2 * one);
    let mut source = ProgramSource::new(&here.directory);
    let first = here.register("first");
    let _second = here.register("second");
    let message = refusal(&here, "third");
    assert!(
        message.contains("exceeds the 0 bytes left of the quota"),
        "{message}"
    );
    first.unregister().unwrap();
    // The memory is kept until it has been read, and until its program has unmapped it.
    refusal(&here, "third");
    source.poll(&mut Received::default()).unwrap();
    refusal(&here, "third");
    drop(first);
    here.register("third");
    let mut greedy = request("greedy");
    greedy.capacity = 1 << 32;
    let Err(RegisterError::Refused { message, .. }) = register_at(&here.socket(), greedy) else {
        panic!("not refused");
    };
    assert!(message.contains("quota"), "{message}");
}

#[test]
fn grants_that_are_not_mapped_yet_count() {
    let one = smallest();
    let here = TestDirectory::with_quota(one);
    let slow = Raw::connect(&here.socket());
    assert!(slow.send(&register_packet("slow")));
    assert!(slow.receive().0["granted"].is_object());
    assert!(refusal(&here, "other").contains("quota"));
    // The same connection may request again; its earlier grant is taken back first.
    assert!(slow.send(&register_packet("slow again")));
    assert!(slow.receive().0["granted"].is_object());
    drop(slow);
    // The directory notices it later.
    for _ in 0..10_000 {
        match register_at(&here.socket(), request("other")) {
            Ok(registration) if !registration.is_deferred() => return,
            _ => std::thread::sleep(std::time::Duration::from_millis(2)),
        }
    }
    panic!("the memory of an abandoned grant is never given back");
}

#[test]
fn silent_programs_delay_no_other_user_and_are_closed() {
    let here = TestDirectory::start();
    let mute: Vec<Raw> = (0..50).map(|_| Raw::connect(&here.socket())).collect();
    let granted = Raw::connect(&here.socket());
    assert!(granted.send(&register_packet("never mapped")));
    let file = granted.receive().1;
    assert!(file.is_some());
    for number in 0..20 {
        here.register(&format!("brisk {number}"));
    }
    // Closed after a while; a stream that was not mapped is not announced.
    assert_eq!(granted.receive().0, Value::Null);
    for raw in &mute {
        assert_eq!(raw.receive().0, Value::Null);
    }
    let mut received = Received::default();
    ProgramSource::new(&here.directory)
        .poll(&mut received)
        .unwrap();
    assert_eq!(received.opened.len(), 20);
}

#[test]
fn order_of_the_protocol_is_kept() {
    let here = TestDirectory::start();
    let raw = Raw::connect(&here.socket());
    assert!(raw.send(&json!("mapped")));
    assert_eq!(raw.receive().0, Value::Null, "nothing was granted");
    let raw = Raw::connect(&here.socket());
    assert!(raw.send_bytes(b""));
    assert_eq!(raw.receive().0, Value::Null);
}

#[test]
fn unregistering_needs_the_token() {
    let here = TestDirectory::start();
    let mut source = ProgramSource::new(&here.directory);
    let registration = here.register("mine");
    let stream = registration.stream.as_raw();
    for (stream, token) in [(stream, 0), (stream, u64::MAX), (stream + 1, 1), (0, 0)] {
        let packet = json!({ "unregister": { "stream": stream, "token": token } });
        Raw::connect(&here.socket()).is_refused(&packet, &["no such stream", "somebody else"]);
    }
    let mut received = Received::default();
    source.poll(&mut received).unwrap();
    assert!(received.closed.is_empty());
    registration.unregister().unwrap();
    source.poll(&mut received).unwrap();
    assert_eq!(received.closed.len(), 1);
}

#[test]
fn three_hundred_registrations_at_once_are_all_granted() {
    let here = TestDirectory::start();
    let socket = here.socket();
    let mut streams: Vec<u32> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..300)
            .map(|number| {
                let socket = &socket;
                scope.spawn(move || {
                    let name = format!("sensor {number}");
                    register_patiently(socket, &name).unwrap().stream.as_raw()
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), 300);
}

#[test]
fn unrequested_files_are_closed() {
    let here = TestDirectory::start();
    // Kept, so that the others are refused at once.
    let _before = here.register("before");
    let open = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let names = all.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        let null = |name: &PathBuf| name.as_path() == Path::new("/dev/null");
        names.filter(null).count()
    };
    let before = open();
    let file = std::fs::File::open("/dev/null").unwrap();
    for _ in 0..200 {
        let raw = Raw::connect(&here.socket());
        let files = [file.as_fd(); 4];
        let packet = register_packet("before").to_string();
        raw.send_with_files(packet.as_bytes(), &files);
        // Until the directory has closed.
        while raw.receive().0 != Value::Null {}
    }
    drop(file);
    assert_eq!(open(), before);
}

#[test]
fn socket_goes_with_the_directory_and_its_buffers_stay() {
    let here = TestDirectory::start();
    let socket = here.socket();
    assert!(std::fs::metadata(&socket).unwrap().file_type().is_socket());
    let registration = here.register("survivor");
    drop(here);
    assert!(!socket.exists());
    assert!(registration.unregister().is_err());
    // SAFETY: the registration keeps its map, whose first page this is.
    unsafe {
        registration
            .mapping
            .base()
            .as_ptr()
            .add(64)
            .write_volatile(1)
    };
}

#[test]
fn streams_are_sized_for_the_largest_period_of_a_monitor() {
    let mut wanted = request("steady");
    let ms = Nanos::from_ms(1);
    wanted.rate = Some(Rate::new(ms, ms, Nanos::ZERO).unwrap());
    let granted = |builder: DirectoryBuilder| {
        let here = TestDirectory::with(builder.standalone());
        let registration = request_until_granted(&here.socket(), &wanted).unwrap();
        registration.shape.elements().capacity()
    };
    // E(2 T_M + 50 ms) and two spare: 2,052 and 8,052.
    assert_eq!(granted(Directory::builder()), 4_096);
    let four_seconds = Nanos::from_ms(4_000);
    let builder = Directory::builder().largest_period(four_seconds);
    assert_eq!(granted(builder), 8_192);
}
