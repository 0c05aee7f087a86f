// SPDX-License-Identifier: MIT OR Apache-2.0
//! The golden image of a concurrent stream (`docs/abi/stream-layout.md`, section 5.3): Rust and C
//! both read and write it (`native/tests/golden_concurrent.c`).
//!
//! The image is a queue of 8 elements with the payloads of `golden.rs`. The element of sequence s
//! holds `{ s, s * s, -s }`, was written by thread `100 + s % 3` and stamped `1,000,000 + 250 s`.
//! Its story: 0 to 3 are written; one element is taken; 4 and 5 are written; the one that was taken
//! is abandoned (6); 7 and 8 are written; two are taken, the second is committed first (9, 10). One
//! write was refused. So the index array is no longer in order, and 3 to 10 are readable. The
//! stream's id is 9.
//!
//! `OVERHEAR_GOLDEN=write cargo test -p overhear-stream --test golden_queue` makes the image anew.
//! That is right after a change of the layout page only, never to make this test pass.
#![cfg(not(any(loom, miri)))]

use std::path::PathBuf;

use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::Ordering;
use overhear_stream::{
    HeaderUntrusted, OwnedWords, QueueGeometry, QueueWriter, ReadItem, Reader, Shape, Taken, Words,
};

const CAPACITY: u64 = 8;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/concurrent-v1.bin")
}

fn shape() -> (QueueGeometry, Shape) {
    let queue = QueueGeometry::new(12, CAPACITY).unwrap();
    (queue, Shape::Concurrent(queue))
}

fn payload(sequence: u64) -> [u8; 12] {
    let number = sequence as u32;
    let mut payload = [0; 12];
    payload[..4].copy_from_slice(&number.to_ne_bytes());
    payload[4..8].copy_from_slice(&(number * number).to_ne_bytes());
    payload[8..].copy_from_slice(&(-(number as i32)).to_ne_bytes());
    payload
}

fn stamp(sequence: u64) -> Ticks {
    Ticks::from_raw(1_000_000 + 250 * sequence)
}

fn tid(sequence: u64) -> u32 {
    100 + (sequence % 3) as u32
}

fn write() -> Vec<u8> {
    let (queue, shape) = shape();
    let memory = OwnedWords::zeroed(queue.bytes() / 8);
    for (at, words) in shape.initial(ClockId::X86Tsc, 9) {
        for (index, word) in words.into_iter().enumerate() {
            memory.word(at / 8 + index).store(word, Ordering::Relaxed);
        }
    }
    let writer = QueueWriter::new(memory.share(), queue).unwrap();
    let put = |sequence| {
        let written = writer.write(tid(sequence), &payload(sequence), || stamp(sequence));
        written.unwrap();
    };
    let commit = |mut taken: Taken<'_, OwnedWords>, sequence| {
        taken.fill(&payload(sequence));
        taken.commit(tid(sequence), || stamp(sequence));
    };
    (0..4).for_each(put);
    let held = writer.take().unwrap();
    (4..6).for_each(put);
    drop(held);
    (7..9).for_each(put);
    let (first, second) = (writer.take().unwrap(), writer.take().unwrap());
    commit(second, 9);
    commit(first, 10);
    // The refused write: it needs a full sensor, so the test increments the counter by hand.
    memory.word(144 / 8).store(1, Ordering::Relaxed);
    (0..memory.len())
        .flat_map(|index| memory.word(index).load(Ordering::Relaxed).to_ne_bytes())
        .collect()
}

fn golden() -> Option<Vec<u8>> {
    if cfg!(target_endian = "big") {
        println!("skipped: the image is little-endian, this machine is not");
        return None;
    }
    if std::env::var_os("OVERHEAR_GOLDEN").is_some_and(|what| what == "write") {
        std::fs::create_dir_all(path().parent().unwrap()).unwrap();
        std::fs::write(path(), write()).unwrap();
    }
    Some(std::fs::read(path()).unwrap())
}

#[test]
fn reader_reads_the_image() {
    let Some(image) = golden() else { return };
    let (queue, shape) = shape();
    assert_eq!(image.len(), queue.bytes());
    let memory = OwnedWords::zeroed(queue.bytes() / 8);
    for (index, word) in image.chunks_exact(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().unwrap());
        memory.word(index).store(word, Ordering::Relaxed);
    }
    let found = HeaderUntrusted::load(&memory).unwrap();
    assert_eq!(found.check(&shape.header(ClockId::X86Tsc, 9)), Ok(()));
    let mut reader = Reader::from_start(memory, queue).unwrap();
    let mut seen = Vec::new();
    let report = reader
        .poll_until(u64::MAX / 4, |found| match found {
            ReadItem::Element(element) => {
                let sequence = element.sequence;
                assert_eq!(element.stamp, stamp(sequence));
                assert_eq!(element.payload[..4], tid(sequence).to_ne_bytes());
                assert_eq!(element.payload[4..8], [0; 4]);
                assert_eq!(element.payload[8..], payload(sequence));
                seen.push(sequence);
            }
            ReadItem::Missed { first, count } => assert_eq!((first, count), (0, 3)),
        })
        .unwrap();
    assert_eq!(seen, [3, 4, 5, 7, 8, 9, 10]);
    assert_eq!((report.delivered, report.missed, report.void), (7, 3, 1));
}

#[test]
fn writer_writes_the_image() {
    let Some(image) = golden() else { return };
    assert!(
        write() == image,
        "the writer and {} differ",
        path().display()
    );
}
