// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writers of a queue that are killed at every step of a write, while others go on.
//!
//! The queue lies in a file. Each victim is a process of its own: this test's binary again, its
//! environment contains the step of its death. What was published before a death is read; the dead
//! keep one element at most; no other thread is blocked.
#![cfg(all(target_os = "linux", not(any(loom, miri))))]

use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::ptr::NonNull;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::Ordering;
use overhear_stream::{
    KeptWords, QueueGeometry, QueueWriter, ReadItem, Reader, Shape, SharedWords, Words,
};

const PAYLOAD: u32 = 16;
const FILE: &str = "OVERHEAR_TEST_QUEUE";
const DEATH: &str = "OVERHEAR_TEST_DEATH";
const TID: &str = "OVERHEAR_TEST_TID";

type Memory = KeptWords<MmapRaw>;

fn map(file: &Path) -> Memory {
    let opened = OpenOptions::new().read(true).write(true).open(file);
    let map = MmapOptions::new().map_raw(&opened.unwrap()).unwrap();
    let (base, words) = (
        NonNull::new(map.as_mut_ptr().cast()).unwrap(),
        map.len() / 8,
    );
    // SAFETY: the map is aligned to pages, has these words, is reached through them alone and is
    // kept with them.
    unsafe { SharedWords::new(base, words) }.kept_by(map)
}

fn create(name: &str, capacity: u64) -> (PathBuf, QueueGeometry) {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let queue = QueueGeometry::new(PAYLOAD, capacity).unwrap();
    let _ = std::fs::remove_file(&file);
    File::create(&file)
        .unwrap()
        .set_len(queue.bytes() as u64)
        .unwrap();
    let memory = map(&file);
    for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
        for (index, word) in words.into_iter().enumerate() {
            memory.word(at / 8 + index).store(word, Ordering::Relaxed);
        }
    }
    (file, queue)
}

fn payload(tid: u32, number: u64) -> [u8; PAYLOAD as usize] {
    let mut payload = [0; PAYLOAD as usize];
    payload[..8].copy_from_slice(&number.to_ne_bytes());
    payload[8..].copy_from_slice(&(number ^ u64::from(tid) << 32).to_ne_bytes());
    payload
}

/// The step at which a victim dies, after a write that it completes.
const DEATHS: [&str; 5] = ["taken", "filled", "published", "committed", "anywhere"];

fn victim(file: &str, death: &str, tid: u32) {
    let memory = map(Path::new(file));
    let capacity: u64 = std::env::var("OVERHEAR_TEST_CAPACITY")
        .unwrap()
        .parse()
        .unwrap();
    let queue = QueueGeometry::new(PAYLOAD, capacity).unwrap();
    let other = map(Path::new(file));
    let writer = QueueWriter::new(memory, queue).unwrap();
    let stamp = || Ticks::from_raw(1);
    writer.write(tid, &payload(tid, 0), stamp).unwrap();
    if death == "anywhere" {
        let mut number = 1;
        loop {
            let _ = writer.write(tid, &payload(tid, number), stamp);
            number += 1;
        }
    }
    if death == "published" {
        publish(&writer, &other, queue, tid);
        die();
    }
    let mut taken = writer.take().unwrap();
    if death == "taken" {
        die();
    }
    taken.fill(&payload(tid, 1));
    if death == "filled" {
        die();
    }
    taken.commit(tid, stamp);
    die();
}

/// The steps of a write up to the index word, by hand: `head` is not moved. The victim is alone.
fn publish(writer: &QueueWriter<Memory>, words: &Memory, queue: QueueGeometry, tid: u32) {
    let at = |position: u64| queue.index_word(position);
    let load = |index: usize| words.word(index).load(Ordering::Acquire);
    // Section 2: head at 64, tail at 128.
    let (head, tail) = (load(8), load(16));
    let element = load(at(tail >> 16)) as u16;
    let mut taken = writer.take().unwrap();
    taken.fill(&payload(tid, 1));
    std::mem::forget(taken);
    let start = queue.element_word(element);
    words.word(start).store(1, Ordering::Relaxed);
    let mut signed = [0; 8];
    signed[..4].copy_from_slice(&tid.to_ne_bytes());
    let signed = u64::from_ne_bytes(signed);
    words.word(start + 1).store(signed, Ordering::Relaxed);
    let filled = head >> 16 << 16 | u64::from(element);
    words.word(at(head >> 16)).store(filled, Ordering::Release);
}

fn die() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::raise(libc::SIGKILL) };
    unreachable!("the signal cannot be refused")
}

/// Not a test of its own: the program of a victim.
#[test]
fn victims_begin_here() {
    if let (Ok(file), Ok(death), Ok(tid)) = (
        std::env::var(FILE),
        std::env::var(DEATH),
        std::env::var(TID),
    ) {
        victim(&file, &death, tid.parse().unwrap());
    }
}

fn spawn(file: &Path, capacity: u64, death: &str, tid: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victims_begin_here", "--nocapture", "-q"])
        .env(FILE, file)
        .env(DEATH, death)
        .env(TID, tid.to_string())
        .env("OVERHEAR_TEST_CAPACITY", capacity.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

/// Reads everything: intact elements, those of each thread in order. Returns (thread, number), and
/// the number of missed ones. Together these are all positions that the reader has passed.
fn read(reader: &mut Reader<Memory>) -> (Vec<(u32, u64)>, u64) {
    let from = reader.position();
    let mut seen = Vec::new();
    let report = reader.poll_until(u64::MAX / 4, |found| {
        if let ReadItem::Element(element) = found {
            let tid = u32::from_ne_bytes(element.payload[..4].try_into().unwrap());
            let number = u64::from_ne_bytes(element.payload[8..16].try_into().unwrap());
            assert_eq!(element.payload[8..], payload(tid, number), "whole");
            seen.push((tid, number));
        }
    });
    let report = report.unwrap();
    assert_eq!(report.void, 0, "the dead leave none");
    assert_eq!(report.delivered, seen.len() as u64);
    assert_eq!(reader.position() - from, report.delivered + report.missed);
    (seen, report.missed)
}

/// Dequeues all remaining elements.
fn left(writer: &QueueWriter<Memory>) -> u64 {
    let mut taken = Vec::new();
    while let Ok(element) = writer.take() {
        taken.push(element);
    }
    let left = taken.len() as u64;
    taken.into_iter().for_each(std::mem::forget);
    left
}

#[test]
fn death_at_each_step_costs_one_element_at_most() {
    const CAPACITY: u64 = 16;
    for (&death, (published, kept)) in DEATHS.iter().zip([(1, 1), (1, 1), (2, 0), (2, 0)]) {
        let (file, queue) = create(&format!("queue-death-{death}"), CAPACITY);
        let status = spawn(&file, CAPACITY, death, 7).wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{death}");
        let mut reader = Reader::from_start(map(&file), queue).unwrap();
        let (seen, missed) = read(&mut reader);
        let expected: Vec<_> = (0..published).map(|number| (7, number)).collect();
        assert_eq!((seen, missed), (expected, 0), "{death}");

        // The others continue, around the ring and past the position of the death.
        let writer = QueueWriter::new(map(&file), queue).unwrap();
        for number in 0..3 * CAPACITY {
            let written = writer.write(8, &payload(8, number), || Ticks::from_raw(2));
            written.unwrap();
        }
        let (seen, missed) = read(&mut reader);
        assert_eq!(seen.len() as u64 + missed, 3 * CAPACITY, "{death}");
        assert_eq!(seen.last(), Some(&(8, 3 * CAPACITY - 1)), "{death}");
        assert_eq!(seen.len() as u64, CAPACITY - kept, "{death}");
        assert_eq!(left(&writer), CAPACITY - kept, "{death}");
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn deaths_at_any_step_disturb_no_other_process() {
    const CAPACITY: u64 = 64;
    const VICTIMS: u32 = 20;
    let (file, queue) = create("queue-deaths", CAPACITY);
    let writer = QueueWriter::new(map(&file), queue).unwrap();
    let mut reader = Reader::from_start(map(&file), queue).unwrap();
    let (mut mine, mut next) = (0, [0_u64; VICTIMS as usize + 1]);
    let (mut delivered, mut missed, mut of_victims) = (0_u64, 0_u64, 0_u64);
    let mut poll = |reader: &mut Reader<Memory>| {
        let (seen, missed_now) = read(reader);
        missed += missed_now;
        for (tid, number) in seen {
            let expected = &mut next[tid as usize];
            assert!(number >= *expected, "no element comes twice");
            *expected = number + 1;
            delivered += 1;
            of_victims += u64::from(tid > 0);
        }
    };
    for tid in 1..=VICTIMS {
        let mut child = spawn(&file, CAPACITY, "anywhere", tid);
        // Until the victim writes, then for some time; always writing and reading.
        let mut turns = 0;
        while reader.published() <= mine + u64::from(tid) || turns < 300 + 37 * tid {
            writer
                .write(0, &payload(0, mine), || Ticks::from_raw(2))
                .unwrap();
            mine += 1;
            turns += 1;
            poll(&mut reader);
            if turns % 16 == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(child.try_wait().unwrap().is_none(), "the victim lives");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let before = reader.published();
    poll(&mut reader);
    for number in 0..2 * CAPACITY {
        let written = writer.write(0, &payload(0, mine + number), || Ticks::from_raw(2));
        written.unwrap();
    }
    let published = before + 2 * CAPACITY;
    assert_eq!(reader.published(), published);
    poll(&mut reader);
    assert_eq!(delivered + missed, published, "each is read or counted");
    // Elements that are not overwritten are read: the last ones of the living threads.
    assert_eq!(next[0], mine + 2 * CAPACITY);
    let left = left(&writer);
    assert!(left >= CAPACITY - u64::from(VICTIMS), "{left} are left");
    println!("{VICTIMS} killed, {left} of {CAPACITY} elements left, {of_victims} elements of theirs read");
    std::fs::remove_file(file).unwrap();
}
