// SPDX-License-Identifier: MIT OR Apache-2.0
//! The golden image of layout v1 (`docs/abi/stream-layout.md`): Rust and C both read and write it
//! (`native/tests/golden.c`).
//!
//! The image is a simple stream of 8 slots with payloads of three words of 32 bits, `{ number: u32,
//! square: u32, negative: i32 }`, whose rest up to the stride is zero. Eleven elements were
//! written, so that the ring wrapped and seven are readable; position p holds `{ p, p * p, -p }`
//! and the stamp `1,000,000 + 250 p` of the x86 time stamp counter. The stream's id is 7.
//!
//! `OVERHEAR_GOLDEN=write cargo test -p overhear-stream --test golden` makes the image anew. That
//! is right after a change of the layout page only, never to make this test pass.
#![cfg(not(any(loom, miri)))]

use std::path::PathBuf;

use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::Ordering;
use overhear_stream::{
    Geometry, Header, HeaderUntrusted, OwnedWords, Reader, SimpleWriter, Words, WriterKind,
};

const ELEMENTS: u64 = 11;

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/simple-v1.bin")
}

fn geometry() -> Geometry {
    Geometry::new(12, 8).unwrap()
}

fn header() -> Header {
    Header::new(&geometry(), WriterKind::Simple, ClockId::X86Tsc, 7)
}

fn payload(position: u64) -> [u8; 12] {
    let number = position as u32;
    let mut payload = [0; 12];
    payload[..4].copy_from_slice(&number.to_ne_bytes());
    payload[4..8].copy_from_slice(&(number * number).to_ne_bytes());
    payload[8..].copy_from_slice(&(-(number as i32)).to_ne_bytes());
    payload
}

fn stamp(position: u64) -> Ticks {
    Ticks::from_raw(1_000_000 + 250 * position)
}

fn write() -> Vec<u8> {
    let memory = OwnedWords::zeroed(geometry().words());
    header().store(&memory);
    let mut writer = SimpleWriter::new(memory.share(), geometry()).unwrap();
    for position in 0..ELEMENTS {
        writer.write(&payload(position), || stamp(position));
    }
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
    assert_eq!(image.len(), geometry().bytes());
    let memory = OwnedWords::zeroed(geometry().words());
    for (index, word) in image.chunks_exact(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().unwrap());
        memory.word(index).store(word, Ordering::Relaxed);
    }
    let found = HeaderUntrusted::load(&memory).unwrap();
    assert_eq!(found.check(&header()), Ok(()));
    let mut reader = Reader::from_start(memory, geometry()).unwrap();
    let mut seen = Vec::new();
    let report = reader
        .poll(usize::MAX, |element| {
            assert_eq!(element.stamp, stamp(element.sequence));
            assert_eq!(element.payload, payload(element.sequence));
            seen.push(element.sequence);
        })
        .unwrap();
    assert_eq!(seen, [4, 5, 6, 7, 8, 9, 10]);
    assert_eq!((report.delivered, report.missed), (7, 4));
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
