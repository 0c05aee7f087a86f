// SPDX-License-Identifier: MIT OR Apache-2.0
//! Monitors and programs that attack the directory itself: its memory and its time stay bounded,
//! and all others are served.

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use overhear_directory::client::{register_at, RegisterError};
use overhear_directory::{Begin, MonitorConnection, Query};
use overhear_event::{Source, WriterKind};
use overhear_stream::sync::Ordering;
use overhear_stream::Words;
use serde_json::{json, Value};

use support::{request, request_until_granted, Raw, Received, TestDirectory, Writer};

fn connect(here: &TestDirectory) -> MonitorConnection {
    MonitorConnection::connect(here.directory.socket()).unwrap()
}

#[test]
fn monitor_that_never_reads_blocks_no_other_client() {
    let here = TestDirectory::standalone();
    let attach = json!({ "attach": { "version": 1, "query": {} } });
    let list = json!({ "list": { "version": 1, "query": {} } });
    let lazy = Raw::connect(&here.socket());
    assert!(lazy.send(&attach));
    let _kept: Vec<_> = (0..600)
        .map(|n| here.register(&format!("kept {n}")))
        .collect();
    let lister = Raw::connect(&here.socket());
    for _ in 0..20 {
        lister.send(&list);
    }
    // Sensors begin and end. The directory keeps no more of them for the monitor than its limit.
    for number in 0..300 {
        here.register(&format!("brief {number}"))
            .unregister()
            .unwrap();
    }
    assert_eq!(connect(&here).list(&Query::all()).unwrap().len(), 900);
    drop(lazy);
    support::eventually(|| here.directory.status(), |status| status.sensors == 600);
    let mut writer = Writer::new(here.register("witness"));
    let mut source = connect(&here).attach(Query::all(), Begin::Buffer).unwrap();
    writer.write(1);
    Received::default().until(&mut source, |received| received.elements == 1);
    // The list that it requested is still complete.
    let mut listed = 0;
    while listed < 601 {
        let answer = lister.receive().0;
        let sensors = answer["sensors"]["sensors"].as_array().expect("a list");
        listed += sensors.len();
    }
}

#[test]
fn monitors_of_one_user_are_counted() {
    let here = TestDirectory::standalone();
    let status = json!({ "status": { "version": 1 } });
    let all: Vec<Raw> = (0..300)
        .map(|_| {
            let raw = Raw::connect(&here.socket());
            assert!(raw.send(&status));
            raw
        })
        .collect();
    let answers: Vec<Value> = all.iter().map(|raw| raw.receive().0).collect();
    let served = answers
        .iter()
        .filter(|answer| answer["status"].is_object())
        .count();
    // Root may use all connections, other users some of them.
    let most = if rustix::process::geteuid().is_root() {
        256
    } else {
        64
    };
    assert_eq!(served, most);
    let refused = answers.iter().find(|answer| answer["refused"].is_object());
    let message = refused.expect("some are refused").to_string();
    assert!(message.contains("monitors"), "{message}");
    here.register("programs register all the same");
    drop(all);
    support::eventually(
        || {
            MonitorConnection::connect(here.directory.socket())
                .unwrap()
                .status()
                .is_ok()
        },
        |served| *served,
    );
}

#[test]
fn sizes_beyond_reason_are_refused_with_a_message() {
    let here = TestDirectory::standalone();
    let refused = |change: &dyn Fn(&mut overhear_directory::client::SensorRequest)| {
        let mut wanted = request("huge");
        change(&mut wanted);
        match register_at(&here.socket(), wanted) {
            Err(RegisterError::Refused { message, .. }) => message,
            other => panic!("not refused: {other:?}"),
        }
    };
    let quota = "left of the quota";
    assert!(refused(&|wanted| wanted.capacity = 1 << 32).contains(quota));
    assert!(refused(&|wanted| wanted.capacity = u64::MAX).contains(quota));
    let lanes = |lanes| {
        refused(&|wanted| {
            (wanted.kind, wanted.lanes, wanted.capacity) = (WriterKind::Laned, lanes, 1 << 20);
        })
    };
    assert!(lanes(4096).contains(quota));
    assert!(lanes(4097).contains("a pool of 4097 lanes"));
    assert!(lanes(u32::MAX).contains("lanes is out of range"));
    let message = refused(&|wanted| {
        (wanted.kind, wanted.capacity) = (WriterKind::Concurrent, 1 << 17);
    });
    assert!(message.contains("131072"), "{message}");
    assert!(refused(&|wanted| wanted.kind = WriterKind::Kernel).contains("only the kernel"));
    assert_eq!(here.directory.status().bytes, 0, "nothing of it is counted");
    here.register("witness");
}

#[test]
fn rubbish_in_the_complete_buffer_disturbs_no_other_sensor() {
    let here = TestDirectory::standalone();
    let victim = here.register("rubbish");
    let mut laned = request("rubbish in lanes");
    (laned.kind, laned.lanes) = (WriterKind::Laned, 4);
    let laned = register_at(&here.socket(), laned).unwrap();
    let mut sound = Writer::new(here.register("sound"));
    let mut source = connect(&here).attach(Query::all(), Begin::Now).unwrap();
    let mut received = Received::default();
    let mut chance = 0x9E37_79B9_7F4A_7C15_u64;
    for round in 0..200 {
        for registration in [&victim, &laned] {
            // SAFETY: the registration keeps the map.
            let words = unsafe { registration.mapping.words() };
            for index in 0..words.len() {
                chance ^= chance << 13;
                chance ^= chance >> 7;
                chance ^= chance << 17;
                let value = if round % 3 == 0 { chance >> 40 } else { chance };
                words.word(index).store(value, Ordering::Relaxed);
            }
        }
        sound.write(10);
        source.poll(&mut received).unwrap();
        let _ = connect(&here).list(&Query::all()).unwrap();
    }
    let stream = sound.registration.stream;
    let mine = received.sequences.iter().filter(|(of, _)| *of == stream);
    assert!(mine.map(|(_, sequence)| *sequence).eq(0..2_000));
    assert!(received.gaps.iter().all(|(of, ..)| *of != stream));
    assert!(received
        .complaints
        .iter()
        .any(|it| it.contains("damaged") || it.contains("over")));
    assert!(!received.gaps.is_empty());
}

/// The variable with the directory for a process that writes random bytes.
const VANDAL: &str = "OVERHEAR_TEST_VANDAL";

/// A process that writes random bytes to all its writable memory, until it is ended.
struct Vandal(Child);

impl Vandal {
    fn start(socket: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "vandal", "--nocapture"])
            .env(VANDAL, socket)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let there = lines.any(|line| line.is_ok_and(|line| line.ends_with("@ there")));
        assert!(there, "it has no sensors");
        Self(child)
    }
}

impl Drop for Vandal {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of [`Vandal`]; does nothing in an ordinary run.
#[test]
fn vandal() {
    let Some(socket) = std::env::var_os(VANDAL) else {
        return;
    };
    let kinds = [
        WriterKind::Simple,
        WriterKind::Laned,
        WriterKind::Concurrent,
    ];
    let victims = kinds.map(|kind| {
        let mut wanted = request(&format!("rubbish {kind:?}"));
        (wanted.kind, wanted.lanes) = (kind, 4);
        request_until_granted(Path::new(&socket), &wanted).unwrap()
    });
    println!("@ there");
    let mut chance = 0x9E37_79B9_7F4A_7C15_u64;
    let parent = std::os::unix::process::parent_id();
    for round in 0_u64.. {
        for registration in &victims {
            // SAFETY: the registration keeps the map.
            let words = unsafe { registration.mapping.words() };
            for index in 0..words.len() {
                chance ^= chance << 13;
                chance ^= chance >> 7;
                chance ^= chance << 17;
                // Also plausible numbers: small ones, and positions in a queue.
                let value = match round % 4 {
                    0 => chance,
                    1 => chance >> 48,
                    2 => (chance >> 56) << 16 | chance & 63,
                    _ => chance >> (chance & 63),
                };
                words.word(index).store(value, Ordering::Relaxed);
            }
        }
        if std::os::unix::process::parent_id() != parent {
            return;
        }
    }
}

#[test]
fn monitors_survive_a_process_that_writes_rubbish_while_they_read() {
    let here = TestDirectory::standalone();
    let mut sound = Writer::new(here.register("sound"));
    let query = Query::parse("sound").unwrap();
    let mut steady = connect(&here).attach(query, Begin::Now).unwrap();
    let mut received = Received::default();
    let _vandal = Vandal::start(&here.socket());
    let (mut gaps, mut complaints) = (0, 0);
    for round in 0..100 {
        // A stream that is too damaged to be read is closed, so each round attaches again.
        let begin = if round % 2 == 0 {
            Begin::Now
        } else {
            Begin::Buffer
        };
        let mut source = connect(&here).attach(Query::all(), begin).unwrap();
        let mut found = Received::default();
        for _ in 0..10 {
            sound.write(3);
            source.poll(&mut found).unwrap();
        }
        // Reports are bounded by the capacity of rings, whatever their counters contain.
        let (polls, slots, streams) = (10, 128, 7);
        assert!(found.elements <= polls * slots * streams);
        assert!(found.complaints.len() as u64 <= polls * streams);
        gaps += found.gaps.len();
        complaints += found.complaints.len();
        assert_eq!(connect(&here).list(&Query::all()).unwrap().len(), 4);
        // Streams that were closed as damaged count as read.
        steady.poll(&mut received).unwrap();
    }
    assert_eq!((received.elements, received.gaps.len()), (3_000, 0));
    assert!(gaps > 0 && complaints > 0, "{gaps}, {complaints}");
    here.register("witness");
}
