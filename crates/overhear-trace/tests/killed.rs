// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recorder that is killed at any moment leaves a trace with every whole packet.

mod support;

use std::fs;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use overhear_event::{GapCause, Nanos, Origin, StreamDescriptor};
use overhear_trace::{repair, TraceReader, TraceWriter};

use support::plan::gap;
use support::{
    at, babeltrace_events, descriptor, has_babeltrace, identity, pair, pair_payload, program,
    Memory, Owned,
};

/// The variable with the directory for the child's recording.
const DIR: &str = "OVERHEAR_TRACE_TEST_DIR";

fn streams() -> [StreamDescriptor; 3] {
    [
        descriptor(1, "tick", program(), pair()),
        descriptor(2, "hook", Origin::Kernel { cpu: 1 }, pair()),
        descriptor(3, "sample", Origin::Sampler, pair()),
    ]
}

/// Records small packets and gaps; streams begin one after the other, so that a kill may hit
/// their announcement.
fn record(writer: &mut TraceWriter, rounds: u64) {
    let streams = streams();
    let begun = Instant::now();
    for round in 0..rounds {
        // Without a parent, no process would kill the child.
        if begun.elapsed() > Duration::from_secs(10) {
            return;
        }
        for stream in &streams[..(1 + round as usize / 50).min(3)] {
            let sequence = round;
            let now = at(round * 1_000 + u64::from(stream.id.as_raw()));
            if round % 97 == 96 {
                let from = now.as_monotonic_ns() - 1_000;
                let missed = gap(
                    stream.id,
                    round,
                    1,
                    from,
                    from + 1_000,
                    GapCause::Overwritten,
                );
                writer.gap(stream, &missed).unwrap();
                continue;
            }
            let item = Owned::Element {
                stream: stream.id.as_raw(),
                sequence,
                time: now,
                payload: pair_payload(round).to_vec(),
            };
            item.give(writer, &streams);
        }
        writer.advance(at(round * 1_000)).unwrap();
    }
}

/// Not a test: the process that is killed.
#[test]
#[ignore = "started by the other tests"]
fn child_that_records() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let mut writer = TraceWriter::create(Path::new(&dir), identity())
        .unwrap()
        .with_packet_bytes(400)
        .with_pending(Nanos::from_us(30));
    record(&mut writer, u64::MAX);
}

/// Bytes and records of the whole packets of a file: a slow, obvious reference.
fn whole(file: &Path, record_bytes: usize) -> (u64, u64) {
    let bytes = fs::read(file).unwrap_or_default();
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8)?;
        Some(u64::from_ne_bytes(bytes.try_into().unwrap()) as usize)
    };
    let (mut at, mut records) = (0, 0);
    while let (Some(content), Some(packet)) = (number(at + 32), number(at + 40)) {
        if at + packet / 8 > bytes.len() {
            break;
        }
        records += (content / 8 - 68) / record_bytes;
        at += packet / 8;
    }
    (at as u64, records as u64)
}

/// Checks the trace of the killed recorder, repairs it, and checks it again with babeltrace2.
fn examine(dir: &Path, babeltrace: bool) -> u64 {
    let reader = TraceReader::open(dir).unwrap();
    assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
    let mut torn = 0;
    for stream in reader.streams() {
        let file = dir.join(format!("trace/stream-{}", stream.id));
        // The heads of the other origins are longer, by less than a record.
        let (bytes, records) = whole(&file, 24);
        assert_eq!(reader.count(stream.id).unwrap().0, records);
        let length = fs::metadata(&file).map_or(0, |about| about.len());
        let tail = reader.torn().iter().find(|tail| tail.stream == stream.id);
        assert_eq!(tail.map_or(0, |tail| tail.bytes), length - bytes);
        torn += u64::from(tail.is_some());
    }
    let mut memory = Memory::default();
    let replayed = reader.replay(&mut [&mut memory]);
    assert_eq!(replayed.events, reader.events());
    assert_eq!(memory.items.len() as u64, replayed.events + replayed.gaps);

    let report = repair(dir).unwrap();
    assert_eq!(report.cut.len() as u64, torn);
    let repaired = TraceReader::open(dir).unwrap();
    assert_eq!(repaired.uncut_tails(), 0);
    assert_eq!(repaired.torn(), reader.torn());
    assert_eq!(repaired.events(), reader.events());
    assert_eq!(repaired.bytes(), reader.bytes());
    let mut again = Memory::default();
    assert_eq!(repaired.replay(&mut [&mut again]), replayed);
    assert_eq!(again.items, memory.items);
    assert_eq!(
        repair(dir).unwrap(),
        overhear_trace::RepairReport::default()
    );
    if babeltrace {
        assert_eq!(babeltrace_events(dir), repaired.events());
    }
    repaired.events()
}

/// Pseudo-random numbers, the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn traces_of_a_hundred_killed_recorders_are_readable() {
    let babeltrace = has_babeltrace();
    let mut chance = Chance(0x9E37_79B9_7F4A_7C15);
    let (mut events, mut traces) = (0, 0);
    for round in 0..100 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_records", "--ignored"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Half of the kills are meant for the begin, half for the recording.
        let patience = Instant::now();
        while round % 2 == 0
            && !dir.path().join("trace/stream-1").exists()
            && patience.elapsed() < Duration::from_secs(5)
        {
            sleep(Duration::from_micros(200));
        }
        sleep(Duration::from_micros(chance.below(30_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        if !dir.path().join("trace/metadata").exists() {
            // Killed before there was a trace: then there is no stream either.
            assert!(!dir.path().join("trace/stream-1").exists());
            assert!(TraceReader::open(dir.path()).is_err());
            continue;
        }
        traces += 1;
        events += examine(dir.path(), babeltrace);
    }
    assert!(traces >= 50 && events > 0);
    println!("{traces} traces with {events} events in 100 kills");
}

#[test]
fn traces_with_a_hundred_torn_tails_are_readable() {
    let babeltrace = has_babeltrace();
    let model = tempfile::tempdir().unwrap();
    let mut writer = TraceWriter::create(model.path(), identity())
        .unwrap()
        .with_packet_bytes(400)
        .with_pending(Nanos::from_us(30));
    record(&mut writer, 400);
    writer.finish().unwrap();
    // A killed recorder writes neither.
    for name in ["summary.json", "ends.json"] {
        fs::remove_file(model.path().join("trace/overhear").join(name)).unwrap();
    }
    let mut chance = Chance(0x1234_5678_9ABC_DEF1);
    let mut torn = 0;
    for round in 0..100 {
        let dir = tempfile::tempdir().unwrap();
        copy(&model.path().join("trace"), &dir.path().join("trace"));
        for id in 1..=3 {
            let file = dir.path().join(format!("trace/stream-{id}"));
            let length = fs::metadata(&file).unwrap().len();
            let cut = match (round, id) {
                (0, _) => 0,
                (1, 1) => 1,
                _ => chance.below(length + 1),
            };
            let file = File::options().write(true).open(&file).unwrap();
            file.set_len(cut).unwrap();
            if round % 7 == 3 && id == 2 {
                // A state after a crash of the machine: the length was on disk before the data.
                file.set_len(cut + 1 + chance.below(5_000)).unwrap();
            }
        }
        torn += TraceReader::open(dir.path()).unwrap().torn().len();
        if round % 7 != 3 {
            examine(dir.path(), babeltrace);
        } else {
            let events = TraceReader::open(dir.path()).unwrap().events();
            let report = repair(dir.path()).unwrap();
            assert!(report.corrupt.len() <= 1, "{:?}", report.corrupt);
            assert_eq!(TraceReader::open(dir.path()).unwrap().events(), events);
        }
        if round == 0 {
            assert!(!dir.path().join("trace/stream-1").exists());
        }
    }
    assert!(torn > 200, "{torn}");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}
