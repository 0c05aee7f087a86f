// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings with limits: the limits are kept, the rest is readable, and each element that was
//! left out is counted at its place.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, TryRecvError};
use std::time::{Duration, Instant};

use overhear_budget::ByteRate;
use overhear_event::kernel::{Life, TASK_LIFE};
use overhear_event::{
    FieldKind, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use overhear_trace::{repair, DiskLimits, TraceReader, TraceWriter, WriteError};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest, ProptestConfig};

use support::{
    at, babeltrace, babeltrace_events, descriptor, has_babeltrace, identity, pair, pair_payload,
    program, Memory, Owned,
};

const MIB: u64 = 1 << 20;

fn size(max_bytes: u64) -> DiskLimits {
    DiskLimits {
        max_bytes: Some(max_bytes),
        ..DiskLimits::default()
    }
}

fn rate(bytes: f64) -> DiskLimits {
    DiskLimits {
        rate: Some(ByteRate::per_second(bytes).unwrap()),
        ..DiskLimits::default()
    }
}

fn create(dir: &Path, limits: DiskLimits) -> TraceWriter {
    let writer = TraceWriter::create(dir, identity()).unwrap();
    writer.with_limits(limits).unwrap()
}

/// Sizes of all files: the sum of their lengths, and what they take on the disk with their folders.
fn sizes(dir: &Path) -> (u64, u64) {
    let about = fs::symlink_metadata(dir).unwrap();
    let (mut lengths, mut taken) = (0, about.blocks() * 512);
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match fs::symlink_metadata(&path) {
            Ok(about) if about.is_dir() => {
                let (length, blocks) = sizes(&path);
                lengths += length;
                taken += blocks;
            }
            Ok(about) => {
                lengths += about.len();
                taken += about.blocks() * 512;
            }
            // Removed meanwhile.
            Err(_) => {}
        }
    }
    (lengths, taken)
}

fn assert_within(dir: &Path, max_bytes: u64) {
    let (lengths, taken) = sizes(dir);
    let most = lengths.max(taken);
    assert!(most <= max_bytes, "{lengths} and {taken} of {max_bytes}");
}

fn text(bytes: u16) -> TypeSchema {
    let schema = TypeSchema::builder("t").field("text", FieldKind::Text(bytes), "");
    schema.build().unwrap()
}

fn replay(reader: &TraceReader) -> Vec<Owned> {
    let mut memory = Memory::default();
    let replayed = reader.replay(&mut [&mut memory]);
    assert_eq!(replayed.corrupt, []);
    assert_eq!(replayed.events, reader.events());
    for stream in reader.streams() {
        let missed = memory.items.iter().map(|item| match item {
            Owned::Gap(gap) if gap.stream == stream.id => gap.missed,
            _ => 0,
        });
        let counted = reader.count(stream.id).unwrap().1;
        assert_eq!(counted, missed.sum::<u64>(), "{}", stream.id);
    }
    memory.items
}

/// Checks streams whose sequences count all elements and gaps from 0 on: at each element, as many
/// elements precede it as were delivered and missed. Returns the missed elements by cause.
fn assert_counted(items: &[Owned]) -> BTreeMap<GapCause, u64> {
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    let mut causes = BTreeMap::new();
    for item in items {
        let next = next.entry(item.stream()).or_insert(0);
        match item {
            Owned::Element { sequence, .. } => {
                assert_eq!(sequence, next, "stream {}", item.stream());
                *next += 1;
            }
            Owned::Gap(gap) => {
                assert_eq!(gap.first, *next, "{gap:?}");
                *next += gap.missed;
                *causes.entry(gap.cause).or_insert(0) += gap.missed;
            }
        }
    }
    causes
}

/// What was given to a writer.
struct Given {
    streams: Vec<StreamDescriptor>,
    /// By stream.
    next: Vec<u64>,
    elements: Vec<Vec<Timestamp>>,
    missed: BTreeMap<GapCause, u64>,
}

impl Given {
    fn new(streams: Vec<StreamDescriptor>) -> Self {
        Self {
            next: vec![0; streams.len()],
            elements: vec![Vec::new(); streams.len()],
            missed: BTreeMap::new(),
            streams,
        }
    }

    fn element(&mut self, writer: &mut TraceWriter, stream: usize, time: Timestamp) {
        let mut payload = vec![0; self.streams[stream].schema.size() as usize];
        let number = self.next[stream].to_ne_bytes();
        let length = payload.len().min(8);
        payload[..length].copy_from_slice(&number[..length]);
        let item = Owned::Element {
            stream: self.streams[stream].id.as_raw(),
            sequence: self.next[stream],
            time,
            payload,
        };
        item.give(writer, &self.streams);
        self.next[stream] += 1;
        self.elements[stream].push(time);
    }

    fn gap(&mut self, writer: &mut TraceWriter, stream: usize, to: Timestamp, cause: GapCause) {
        let missed = 1 + self.next[stream] % 5;
        let from = self.elements[stream].last().copied().unwrap_or(to);
        let gap = Gap {
            stream: self.streams[stream].id,
            first: self.next[stream],
            missed,
            from,
            to,
            cause,
        };
        writer.gap(&self.streams[stream], &gap).unwrap();
        self.next[stream] += missed;
        *self.missed.entry(cause).or_insert(0) += missed;
    }

    /// Compares what can be read with what was given.
    fn assert_accounted(&self, items: &[Owned]) {
        let found = assert_counted(items);
        let given: usize = self.elements.iter().map(Vec::len).sum();
        let is_element = |item: &&Owned| matches!(item, Owned::Element { .. });
        let left_out = given - items.iter().filter(is_element).count();
        let mut expected = self.missed.clone();
        if left_out > 0 {
            expected.insert(GapCause::Disk, left_out as u64);
        }
        assert_eq!(found, expected);
        for (index, stream) in self.streams.iter().enumerate() {
            let own = || items.iter().filter(|it| it.stream() == stream.id.as_raw());
            // Each element is delivered with its time, or lies within a gap.
            let delivered: Vec<Timestamp> = own().filter(is_element).map(Owned::time).collect();
            let gaps: Vec<&Gap> = own()
                .filter_map(|item| match item {
                    Owned::Gap(gap) if gap.cause == GapCause::Disk => Some(gap),
                    _ => None,
                })
                .collect();
            let mut delivered = delivered.iter().peekable();
            for time in &self.elements[index] {
                if delivered.peek() == Some(&time) {
                    delivered.next();
                } else {
                    let is_within = |gap: &&Gap| gap.from <= *time && *time <= gap.to;
                    assert!(gaps.iter().any(is_within), "{time} {gaps:?}");
                }
            }
            assert_eq!(delivered.next(), None);
        }
    }
}

/// The packets of all streams: their end, and their bytes.
fn packets(dir: &Path) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir.join("trace")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("stream-") || name.contains("repeated") {
            continue;
        }
        let bytes = fs::read(path).unwrap();
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let mut offset = 0;
        while offset < bytes.len() {
            let packet_bytes = number(offset + 40) / 8;
            found.push((number(offset + 24), packet_bytes));
            offset += packet_bytes as usize;
        }
    }
    found.sort_unstable();
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Any streams in a ring, with and without a rate: the size is kept at each moment, and what is
    /// not delivered is counted where it was.
    #[test]
    fn rest_of_a_ring_and_its_gaps_are_everything(
        seed in any::<u64>(), streams in 1_usize..12, packet_bytes in 1_usize..40_000,
        pending in 0_u64..400_000_000, mebibytes in 2_u64..6, with_rate in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("r");
        let rate = with_rate.then(|| ByteRate::per_second(200_000.0).unwrap());
        let limits = DiskLimits { rate, max_bytes: Some(MIB) };
        let mut writer = create(&folder, limits)
            .with_packet_bytes(packet_bytes)
            .with_pending(Nanos::from_ns(pending));
        let mut random = Random(seed | 1);
        let streams: Vec<StreamDescriptor> = (0..streams)
            .map(|id| descriptor(1 + id as u32, "s", program(), text(8 + random.below(400) as u16)))
            .collect();
        let mut given = Given::new(streams);
        let (mut bytes, mut now, mut step) = (0, 1_000, 0);
        // With a rate, time makes the ring turn.
        while bytes < mebibytes * MIB || with_rate && now < 9_000_000_000 {
            // Some streams are rare.
            let stream = random.below(given.streams.len() as u64);
            let stream = (stream * random.below(9) / 8) as usize;
            now += random.below(if with_rate { 2_000_000 } else { 100_000 });
            if random.below(40) == 0 {
                // Gaps of the disk are the writer's own.
                let mut causes = GapCause::ALL.to_vec();
                causes.retain(|cause| *cause != GapCause::Disk);
                let cause = causes[random.below(causes.len() as u64) as usize];
                given.gap(&mut writer, stream, at(now), cause);
            } else {
                given.element(&mut writer, stream, at(now));
            }
            bytes += u64::from(given.streams[stream].schema.size()) + 8;
            if step % 16 == 0 {
                writer.advance(at(now)).unwrap();
            }
            if step % 500 == 0 {
                assert_within(&folder, MIB);
            }
            step += 1;
        }
        writer.attach_document("example", &vec![1; 20_000]).unwrap();
        let summary = writer.finish().unwrap();
        assert_within(&folder, MIB);
        let reader = TraceReader::open(&folder).unwrap();
        prop_assert_eq!(reader.limits(), limits);
        prop_assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
        let items = replay(&reader);
        given.assert_accounted(&items);
        prop_assert_eq!(summary.events, reader.events());
        let missed = items.iter().map(|item| match item {
            Owned::Gap(gap) => gap.missed,
            Owned::Element { .. } => 0,
        });
        prop_assert_eq!(summary.discarded, missed.sum::<u64>());
        prop_assert_eq!(summary.unrecorded, 0);
        prop_assert!(summary.left_out > 0);
        // At least the half of the size is in use.
        prop_assert!(with_rate || reader.bytes() > MIB / 4, "{}", reader.bytes());
        if with_rate {
            assert_rate(&folder, 200_000.0);
        }
        prop_assert_eq!(repair(&folder).unwrap(), overhear_trace::RepairReport::default());
    }
}

/// No second has more bytes than the rate permits. What is written at the end comes in addition.
fn assert_rate(dir: &Path, rate: f64) {
    let packets = packets(dir);
    let last = packets.last().unwrap().0;
    let (mut first, mut sum) = (0, 0);
    for (end, bytes) in &packets {
        if *end == last {
            break;
        }
        sum += bytes;
        while packets[first].0 + 1_000_000_000 <= *end {
            sum -= packets[first].1;
            first += 1;
        }
        assert!(sum as f64 <= rate, "{sum} bytes in the second up to {end}");
    }
}

/// Pseudo-random numbers, the same for each seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[test]
fn rate_is_kept_and_used_and_small_streams_lose_nothing() {
    const RATE: f64 = 500_000.0;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), rate(RATE));
    let streams = (1..=4)
        .map(|id| descriptor(id, "s", program(), text(92)))
        .collect();
    let mut given = Given::new(streams);
    // 100 bytes each: three streams with 1 MB/s, one with 1 kB/s.
    for step in 0..100_000_u64 {
        for stream in 0..3 {
            given.element(&mut writer, stream, at(step * 100_000));
        }
        if step % 1_000 == 0 {
            given.element(&mut writer, 3, at(step * 100_000));
        }
        writer.advance(at(step * 100_000)).unwrap();
    }
    let summary = writer.finish().unwrap();
    assert_rate(dir.path(), RATE);
    let reader = TraceReader::open(dir.path()).unwrap();
    assert!(
        reader.bytes() as f64 > 10.0 * RATE * 0.85,
        "{}",
        reader.bytes()
    );
    assert_eq!(reader.count(StreamId::from_raw(4)), Some((100, 0)));
    let items = replay(&reader);
    given.assert_accounted(&items);
    assert_eq!(summary.left_out + summary.events, 300_100);
    if has_babeltrace() {
        assert_eq!(babeltrace_events(dir.path()), summary.events);
        let text = babeltrace(dir.path(), &["--component=sink.utils.counter"]);
        assert!(text.contains("Discarded event"), "{text}");
    }
}

#[test]
fn millions_of_elements_stay_within_the_size_and_other_readers_read_the_rest() {
    const SIZE: u64 = 4 * MIB;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), size(SIZE));
    let streams = [
        descriptor(1, "a", program(), pair()),
        descriptor(2, "hook", Origin::Kernel { cpu: 1 }, pair()),
    ];
    let mut most = 0;
    for step in 0..1_000_000_u64 {
        for stream in &streams {
            let item = Owned::Element {
                stream: stream.id.as_raw(),
                sequence: step,
                time: at(step * 1_000),
                payload: pair_payload(step).to_vec(),
            };
            item.give(&mut writer, &streams);
        }
        if step % 1_000 == 0 {
            writer.advance(at(step * 1_000)).unwrap();
        }
        if step % 3_000 == 0 {
            assert_within(dir.path(), SIZE);
            most = most.max(sizes(dir.path()).1);
        }
    }
    assert!(most > SIZE / 4 * 3, "{most}");
    let summary = writer.finish().unwrap();
    assert_within(dir.path(), SIZE);
    let reader = TraceReader::open(dir.path()).unwrap();
    let items = replay(&reader);
    let causes = assert_counted(&items);
    assert_eq!(causes.values().sum::<u64>() + reader.events(), 2_000_000);
    assert_eq!(causes[&GapCause::Disk], summary.left_out);
    // The newest elements of both streams, from the same time on.
    assert_eq!(items.last().unwrap().time(), at(999_999_000));
    let begins = items.iter().filter_map(|item| match item {
        Owned::Gap(gap) => Some(gap.to.as_monotonic_ns()),
        Owned::Element { .. } => None,
    });
    let begins: Vec<u64> = begins.collect();
    assert!(begins.len() == 2 && begins[0].abs_diff(begins[1]) < 50_000_000);
    if has_babeltrace() {
        assert_eq!(babeltrace_events(dir.path()), summary.events);
    }
}

/// babeltrace2 sorts the packets of several files by their begins. Gaps begin and end at elements,
/// and packets of one element have no duration.
#[test]
fn other_readers_read_gaps_in_a_ring() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), size(MIB)).with_packet_bytes(1);
    let mut given = Given::new(vec![descriptor(1, "a", program(), pair())]);
    for step in 1..12_000 {
        let now = at(step * 10);
        if step % 3 == 0 {
            given.gap(&mut writer, 0, now, GapCause::Late);
            given.gap(&mut writer, 0, now, GapCause::Overwritten);
        }
        given.element(&mut writer, 0, now);
        writer.advance(now).unwrap();
    }
    let summary = writer.finish().unwrap();
    let reader = TraceReader::open(dir.path()).unwrap();
    given.assert_accounted(&replay(&reader));
    if has_babeltrace() {
        assert_eq!(babeltrace_events(dir.path()), summary.events);
    }
}

/// The stream of the lives of threads on a CPU.
fn lives(id: u32, cpu: u32) -> StreamDescriptor {
    descriptor(id, TASK_LIFE, Origin::Kernel { cpu }, Life::schema())
}

fn life(tid: u32, kind: u32, parent_tid: u32, name: &str) -> Life {
    let mut comm = [0; 16];
    comm[..name.len()].copy_from_slice(name.as_bytes());
    Life {
        tid,
        pid: 1,
        parent_tid,
        parent_pid: 1,
        kind,
        code: 0,
        cpu_ns: 0,
        comm,
    }
}

#[test]
fn begins_and_names_of_living_threads_outlive_their_packets() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), size(MIB));
    let streams = [
        lives(1, 0),
        lives(2, 1),
        descriptor(3, "filler", program(), text(500)),
    ];
    let (mut next, mut now) = ([0_u64; 3], 0);
    let mut give = |writer: &mut TraceWriter, stream: usize, payload: &[u8]| {
        now += 1_000_000;
        let item = Owned::Element {
            stream: streams[stream].id.as_raw(),
            sequence: next[stream],
            time: at(now),
            payload: payload.to_vec(),
        };
        next[stream] += 1;
        item.give(writer, &streams);
        writer.advance(at(now)).unwrap();
    };
    for tid in 1..=100_u32 {
        let cpu = tid as usize % 2;
        give(&mut writer, cpu, &life(tid, Life::FORK, 1, "").to_payload());
        let name = format!("old-{tid}");
        give(
            &mut writer,
            cpu,
            &life(tid, Life::NAME, 0, &name).to_payload(),
        );
        let name = format!("t-{tid}");
        give(
            &mut writer,
            1 - cpu,
            &life(tid, Life::NAME, 0, &name).to_payload(),
        );
        if tid % 10 == 3 {
            give(&mut writer, cpu, &life(tid, Life::EXIT, 0, "").to_payload());
        }
        for _ in 0..20 {
            give(&mut writer, 2, &[1; 500]);
        }
    }
    for _ in 0..4_000 {
        give(&mut writer, 2, &[1; 500]);
    }
    let summary = writer.finish().unwrap();
    let reader = TraceReader::open(dir.path()).unwrap();
    assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
    let items = replay(&reader);
    let mut delivered = Vec::new();
    let mut counted = [0; 3];
    for item in &items {
        match item {
            Owned::Element {
                stream, payload, ..
            } => {
                counted[*stream as usize - 1] += 1;
                if *stream < 3 {
                    let life = Life::parse(payload).unwrap();
                    delivered.push((life.kind, life.tid, life.comm().to_owned()));
                }
            }
            Owned::Gap(gap) => counted[gap.stream.as_raw() as usize - 1] += gap.missed,
        }
    }
    // Begin and last name of each living thread, in the order of their times, and no more.
    let living = (1..=100).filter(|tid| tid % 10 != 3);
    let expected: Vec<_> = living
        .flat_map(|tid| {
            [
                (Life::FORK, tid, String::new()),
                (Life::NAME, tid, format!("t-{tid}")),
            ]
        })
        .collect();
    assert_eq!(delivered, expected);
    assert_eq!(counted, next);
    assert_eq!(summary.events, reader.events());
    if has_babeltrace() {
        assert_eq!(babeltrace_events(dir.path()), summary.events);
    }
}

#[test]
fn lives_of_threads_are_kept_at_any_rate() {
    const RATE: f64 = 20_000.0;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), rate(RATE));
    let streams = vec![lives(1, 0), descriptor(2, "filler", program(), text(92))];
    let mut given = Given::new(streams);
    let mut written = Vec::new();
    // 3,200 bytes of lives and 1 MB of others per second.
    for step in 0..80_000_u64 {
        given.element(&mut writer, 1, at(1 + step * 100_000));
        if step % 200 == 0 {
            given.element(&mut writer, 0, at(1 + step * 100_000));
        }
        writer.advance(at(1 + step * 100_000)).unwrap();
        // A second has 10,000 steps.
        written.push(writer.summary().bytes);
        let before = written[written.len().saturating_sub(10_000)];
        let bytes = writer.summary().bytes - before;
        assert!(bytes as f64 <= RATE, "{bytes} at {step}");
    }
    writer.finish().unwrap();
    let reader = TraceReader::open(dir.path()).unwrap();
    assert_eq!(reader.count(StreamId::from_raw(1)), Some((400, 0)));
    let (kept, left_out) = reader.count(StreamId::from_raw(2)).unwrap();
    assert!(kept > 200 && left_out > 70_000, "{kept} {left_out}");
    given.assert_accounted(&replay(&reader));
}

#[test]
fn limits_without_room_are_refused_with_the_minimum() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, limits| {
        let writer = TraceWriter::create(dir.path().join(name), identity()).unwrap();
        writer.with_limits(limits).unwrap_err().to_string()
    };
    assert_eq!(
        refused("a", size(MIB - 1)),
        "a recording of at most 1048575 bytes has no room for elements; give at least 1048576 bytes (1MiB)"
    );
    assert_eq!(
        refused("b", rate(16_383.9)),
        "a recording with 16383 bytes per second has no room for a packet; give at least 16384 bytes per second (16KiB/s)"
    );
}

#[test]
fn descriptions_of_too_many_streams_end_the_recording_with_the_minimum() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), size(MIB));
    let streams: Vec<_> = (1..=600)
        .map(|id| descriptor(id, "s", program(), pair()))
        .collect();
    let mut refused = None;
    let mut given = 0;
    for step in 0..4_u64 {
        for stream in &streams {
            let element = overhear_event::ElementView {
                stream,
                sequence: step,
                time: at(1_000_000_000 * step),
                payload: &pair_payload(step),
            };
            given += 1;
            if let Err(error) = writer.element(&element) {
                refused.get_or_insert(error);
            }
        }
        if let Err(error) = writer.advance(at(1_000_000_000 * step + 900_000_000)) {
            refused.get_or_insert(error);
        }
        assert_within(dir.path(), MIB);
    }
    let refused = refused.unwrap();
    let text = refused.to_string();
    let WriteError::NoRoom {
        needed,
        streams: count,
        ..
    } = refused
    else {
        panic!("{text}");
    };
    assert!(text.contains(&format!("at least {needed};")), "{text}");
    assert_eq!(count, 600);
    assert_eq!(writer.finish().unwrap_err().to_string(), text);
    let summary = writer.summary();
    assert_eq!(summary.events + summary.unrecorded, given);
    // With the stated size it suffices.
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), size(needed));
    for step in 0..12_u64 {
        for stream in &streams {
            let item = Owned::Element {
                stream: stream.id.as_raw(),
                sequence: step,
                time: at(1_000_000_000 * step),
                payload: pair_payload(step).to_vec(),
            };
            item.give(&mut writer, std::slice::from_ref(stream));
        }
        writer
            .advance(at(1_000_000_000 * step + 900_000_000))
            .unwrap();
        assert_within(dir.path(), needed);
    }
    writer.finish().unwrap();
    assert!(TraceReader::open(dir.path()).unwrap().events() > 0);
}

#[test]
fn reader_of_a_turning_ring_gets_one_of_its_states() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), size(MIB));
    let (end, ended) = channel::<()>();
    std::thread::scope(|scope| {
        let path = dir.path();
        let reading = scope.spawn(move || {
            let mut most = 0;
            while ended.try_recv() == Err(TryRecvError::Empty) {
                let reader = TraceReader::open(path).unwrap();
                assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
                let items = replay(&reader);
                let causes = assert_counted(&items);
                most = most.max(causes.get(&GapCause::Disk).copied().unwrap_or(0));
            }
            most
        });
        let begun = Instant::now();
        let mut given = Given::new(vec![
            descriptor(1, "a", program(), text(120)),
            descriptor(2, "b", program(), text(40)),
        ]);
        let mut step = 0;
        while begun.elapsed() < Duration::from_secs(3) && !reading.is_finished() {
            step += 1;
            given.element(&mut writer, (step % 3 / 2) as usize, at(step * 1_000));
            if step % 50 == 0 {
                writer.advance(at(step * 1_000)).unwrap();
            }
        }
        drop(end);
        let most = reading.join().unwrap();
        assert!(most > 0);
    });
}

/// The variable with the directory for the child's recording.
const DIR: &str = "OVERHEAR_LIMITS_TEST_DIR";

/// Not a test: the process that is killed.
#[test]
#[ignore = "started by the other tests"]
fn child_that_records() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let limits = DiskLimits {
        rate: Some(ByteRate::per_second(2e7).unwrap()),
        ..size(MIB)
    };
    let mut writer = create(Path::new(&dir), limits).with_pending(Nanos::from_us(300));
    let mut given = Given::new(vec![
        descriptor(1, "a", program(), text(120)),
        descriptor(2, "b", program(), text(40)),
    ]);
    let lives = [lives(3, 0)];
    let begun = Instant::now();
    let mut step = 0_u64;
    // Without a parent, no process would kill the child.
    while begun.elapsed() < Duration::from_secs(10) {
        step += 1;
        given.element(&mut writer, (step % 3 / 2) as usize, at(step * 3_000));
        if step.is_multiple_of(50) {
            let tid = (step / 50 % 200) as u32;
            let item = Owned::Element {
                stream: 3,
                sequence: step / 50 - 1,
                time: at(step * 3_000),
                payload: life(tid, Life::NAME, 0, "name").to_payload().to_vec(),
            };
            item.give(&mut writer, &lives);
            writer.advance(at(step * 3_000)).unwrap();
        }
    }
}

#[test]
fn recorders_that_are_killed_while_the_ring_turns_leave_readable_recordings() {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let (mut turned, mut remains, mut thinned) = (0, 0, 0);
    for _ in 0..30 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_records", "--ignored"])
            .env(DIR, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // The first part was removed.
        let patience = Instant::now();
        let is_turning = || {
            let document = fs::read_to_string(dir.path().join("trace/overhear/disk.json"));
            document.is_ok_and(|text| !text.contains("\"first_part\":0"))
        };
        while !is_turning() && patience.elapsed() < Duration::from_secs(5) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(random.below(30_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_within(dir.path(), MIB);
        turned += u64::from(is_turning());
        let reader = TraceReader::open(dir.path()).unwrap();
        assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
        let items = replay(&reader);
        let of_pairs: Vec<Owned> = items.iter().filter(|it| it.stream() < 3).cloned().collect();
        let causes = assert_counted(&of_pairs);
        thinned += of_pairs
            .iter()
            .filter(|it| matches!(it, Owned::Gap(_)))
            .count();
        assert!(causes.keys().all(|cause| *cause == GapCause::Disk));
        let report = repair(dir.path()).unwrap();
        remains += report.removed.len();
        assert!(report.corrupt.is_empty(), "{:?}", report.corrupt);
        let repaired = TraceReader::open(dir.path()).unwrap();
        assert_eq!(replay(&repaired), items);
        assert_eq!(repaired.torn(), reader.torn());
        let again = repair(dir.path()).unwrap();
        assert_eq!(again, overhear_trace::RepairReport::default());
        if has_babeltrace() {
            assert_eq!(babeltrace_events(dir.path()), repaired.events());
        }
    }
    assert!(turned > 15 && thinned > 30, "{turned} {thinned}");
    println!("{turned} rings had turned; {remains} files were removed by repairs");
}

/// A small ring of two streams and of lives, finished, and the number of all elements.
fn turned() -> (tempfile::TempDir, u64) {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(dir.path(), size(MIB)).with_packet_bytes(2_000);
    let mut given = Given::new(vec![
        descriptor(1, "a", program(), text(120)),
        descriptor(2, "b", program(), text(40)),
        lives(3, 0),
    ]);
    for step in 0..9_000 {
        given.element(&mut writer, 0, at(step * 100_000));
        given.element(&mut writer, 1, at(step * 100_000));
        if step % 100 == 0 {
            let item = Owned::Element {
                stream: 3,
                sequence: step / 100,
                time: at(step * 100_000),
                payload: life(step as u32, Life::FORK, 1, "").to_payload().to_vec(),
            };
            item.give(&mut writer, &given.streams);
        }
        writer.advance(at(step * 100_000)).unwrap();
    }
    writer.finish().unwrap();
    (dir, 18_090)
}

/// Names of the files of `trace/`, sorted.
fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join("trace")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("stream-")).collect();
    names.sort();
    names
}

fn counts(items: &[Owned]) -> (u64, BTreeMap<GapCause, u64>) {
    let (mut events, mut missed) = (0, BTreeMap::new());
    for item in items {
        match item {
            Owned::Element { .. } => events += 1,
            Owned::Gap(gap) => *missed.entry(gap.cause).or_insert(0) += gap.missed,
        }
    }
    (events, missed)
}

#[test]
fn lost_part_of_a_ring_is_counted_as_damage() {
    let (dir, all) = turned();
    let before = counts(&replay(&TraceReader::open(dir.path()).unwrap()));
    assert_eq!(before.0 + before.1[&GapCause::Disk], all);
    let names = files(dir.path());
    let parts: Vec<&String> = names
        .iter()
        .filter(|it| it.starts_with("stream-1."))
        .collect();
    assert!(parts.len() > 4 && names.iter().any(|name| name.contains("repeated")));
    // The first kept one, one between others, and the last one.
    for lost in [parts[0], parts[parts.len() / 2], parts[parts.len() - 1]] {
        let path = dir.path().join("trace").join(lost);
        let good = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let reader = TraceReader::open(dir.path()).unwrap();
        assert_eq!(reader.corrupt().len(), 1, "{:?}", reader.corrupt());
        assert!(reader.corrupt()[0].to_string().contains("missing"));
        let mut memory = Memory::default();
        reader.replay(&mut [&mut memory]);
        let (events, missed) = counts(&memory.items);
        assert_eq!(events + missed[&GapCause::Corrupt], before.0, "{lost}");
        assert_eq!(missed[&GapCause::Disk], before.1[&GapCause::Disk]);
        fs::write(&path, good).unwrap();
    }
}

#[test]
fn ring_without_its_document_is_read_and_the_rest_is_damage() {
    let (dir, _) = turned();
    let (events, missed) = counts(&replay(&TraceReader::open(dir.path()).unwrap()));
    let document = dir.path().join("trace/overhear/disk.json");
    let good = fs::read_to_string(&document).unwrap();
    let repeated = |dir: &Path| {
        let names = files(dir);
        names
            .into_iter()
            .filter(|name| name.contains("repeated"))
            .count()
    };
    assert_eq!(repeated(dir.path()), 1);
    let stated = good.split("\"repeated\":").skip(1);
    let stated = stated.map(|it| it.split(',').next().unwrap().parse::<u64>().unwrap());
    let repeated_elements: u64 = stated.sum();
    assert!(repeated_elements > 10);
    for changed in [
        None,
        Some(good.replacen("\"first_part\":", "\"first_part\":1", 1)),
    ] {
        match &changed {
            None => fs::remove_file(&document).unwrap(),
            Some(text) => fs::write(&document, text).unwrap(),
        }
        let reader = TraceReader::open(dir.path()).unwrap();
        let reasons: Vec<String> = reader.corrupt().iter().map(ToString::to_string).collect();
        assert!(
            reasons.iter().any(|it| it.contains("disk.json")),
            "{reasons:?}"
        );
        assert!(
            reasons.iter().any(|it| it.contains("missing")),
            "{reasons:?}"
        );
        let mut memory = Memory::default();
        reader.replay(&mut [&mut memory]);
        let (found, lost) = counts(&memory.items);
        // The repeated elements cannot be read, and nothing removes them.
        assert_eq!(found + repeated_elements, events);
        // The number of missing elements is not known.
        assert!(lost.is_empty(), "{lost:?}");
        assert!(repair(dir.path()).unwrap().removed.is_empty());
        assert_eq!(repeated(dir.path()), 1);
    }
    fs::write(&document, good).unwrap();
    let again = counts(&replay(&TraceReader::open(dir.path()).unwrap()));
    assert_eq!(again, (events, missed));
}

#[test]
fn format_is_raised_only_by_limits() {
    let format = |limits| {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TraceWriter::create(dir.path(), identity()).unwrap();
        if let Some(limits) = limits {
            writer = writer.with_limits(limits).unwrap();
        }
        writer.finish().unwrap();
        let catalogue = fs::read_to_string(dir.path().join("trace/overhear/streams.json")).unwrap();
        let has_document = dir.path().join("trace/overhear/disk.json").exists();
        let format = (1..9).find(|it| catalogue.contains(&format!("\"format\": {it},")));
        (format.unwrap(), has_document)
    };
    assert_eq!(format(None), (4, false));
    assert_eq!(format(Some(DiskLimits::default())), (4, false));
    assert_eq!(format(Some(size(MIB))), (5, true));
    assert_eq!(format(Some(rate(1e6))), (5, true));
}

#[test]
fn thousands_of_mutations_of_a_ring_never_panic() {
    let (dir, _) = turned();
    let trace = dir.path().join("trace");
    let mut names = files(dir.path());
    // Documents are changed as often as streams.
    for _ in 0..4 {
        names
            .extend(["disk", "ends", "streams", "summary"].map(|it| format!("overhear/{it}.json")));
    }
    let before = counts(&replay(&TraceReader::open(dir.path()).unwrap())).0;
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    let (mut refused, mut partial, mut whole) = (0, 0, 0);
    for round in 0..200 {
        let file = trace.join(&names[random.below(names.len() as u64) as usize]);
        let good = fs::read(&file).unwrap();
        let mut bytes = good.clone();
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << random.below(8),
            2 => drop(bytes.drain(at..bytes.len().min(at + 5))),
            3 => bytes
                .splice(at..at, [random.below(256) as u8; 3])
                .for_each(drop),
            // A number of a document.
            _ => {
                let digits = bytes
                    .iter_mut()
                    .skip(at)
                    .filter(|byte| byte.is_ascii_digit());
                digits.take(20).for_each(|digit| *digit = b'9');
            }
        }
        match random.below(20) {
            0 => fs::remove_file(&file).unwrap(),
            _ => fs::write(&file, &bytes).unwrap(),
        }
        match TraceReader::open(dir.path()) {
            Err(error) => {
                refused += 1;
                assert!(error.to_string().contains(".json"), "{error}");
            }
            Ok(reader) => {
                let mut memory = Memory::default();
                let replayed = reader.replay(&mut [&mut memory]);
                assert_eq!(replayed.events + replayed.gaps, memory.items.len() as u64);
                match replayed.events < before {
                    true => partial += 1,
                    false => whole += 1,
                }
            }
        }
        if round % 5 == 0 {
            let copy = tempfile::tempdir().unwrap();
            copy_all(&trace, &copy.path().join("trace"));
            let _ = repair(copy.path()).map_err(|error| error.to_string());
        }
        fs::write(&file, good).unwrap();
    }
    assert!(
        refused > 1 && partial > 50 && whole > 10,
        "{refused} {partial} {whole}"
    );
    assert_eq!(
        counts(&replay(&TraceReader::open(dir.path()).unwrap())).0,
        before
    );
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_all(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}
