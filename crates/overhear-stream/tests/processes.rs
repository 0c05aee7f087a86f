// SPDX-License-Identifier: MIT OR Apache-2.0
//! A writer in C, compiled here, against the reader in Rust: two processes, one file.
//!
//! Loom explores the protocol; this test shows that the header's plain and atomic stores keep it on
//! a real CPU. The ring is small, so that the reader is lapped continuously.
#![cfg(not(any(loom, miri)))]

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::ptr::NonNull;

use memmap2::MmapOptions;
use overhear_event::ClockId;
use overhear_stream::{Geometry, Header, OwnedWords, Reader, SharedWords, Words, WriterKind};

const PAYLOAD_BYTES: u32 = 64;
const ELEMENTS: u64 = 1_000_000;

/// The helper built by a compiler; `None`, with a line that contains the reason, if the compiler is
/// not installed.
fn helper(compiler: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shared_writer-{compiler}"));
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]);
    command.arg("-I").arg(root.join("include"));
    command.arg("-o").arg(&binary);
    command.arg(root.join("native/helpers/shared_writer.c"));
    match command.status() {
        Ok(status) => assert!(status.success(), "{compiler} refuses the helper"),
        Err(_) => {
            println!("skipped: {compiler} is not installed");
            return None;
        }
    }
    Some(binary)
}

/// A stream with its header in a new file.
fn create(file: &Path, geometry: &Geometry) {
    let memory = OwnedWords::zeroed(geometry.words());
    Header::new(geometry, WriterKind::Simple, ClockId::Monotonic, 1).store(&memory);
    let bytes: Vec<u8> = (0..memory.len())
        .flat_map(|index| {
            let word = memory.word(index);
            word.load(overhear_stream::sync::Ordering::Relaxed)
                .to_ne_bytes()
        })
        .collect();
    std::fs::write(file, bytes).unwrap();
}

fn race(compiler: &str, capacity: u64) {
    let Some(helper) = helper(compiler) else {
        return;
    };
    let geometry = Geometry::new(PAYLOAD_BYTES, capacity).unwrap();
    let name = format!("stream-{compiler}-{capacity}");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    create(&file, &geometry);
    let opened = std::fs::File::open(&file).unwrap();
    // SAFETY: the file has its final size; what others write to it is read as atomic words only.
    let map = unsafe { MmapOptions::new().map(&opened) }.unwrap();
    let base = NonNull::new(map.as_ptr().cast_mut().cast()).unwrap();
    // SAFETY: maps are aligned to pages, this one holds all words and outlives the reader, which
    // is dropped first because it is declared later. A reader only loads.
    let words = unsafe { SharedWords::new(base, map.len() / 8) };
    let mut reader = Reader::from_start(words, geometry).unwrap();

    let arguments = [u64::from(PAYLOAD_BYTES), capacity, ELEMENTS].map(|number| number.to_string());
    let mut writer = Command::new(helper)
        .arg(&file)
        .args(arguments)
        .spawn()
        .unwrap();
    let (mut delivered, mut missed, mut during) = (0, 0, 0);
    loop {
        let ended = has_ended(&mut writer);
        let report = reader
            .poll(usize::MAX, |element| {
                let expected = element.sequence + 1;
                assert_eq!(element.stamp.as_raw(), expected);
                for word in element.payload.chunks_exact(8) {
                    assert_eq!(word, expected.to_ne_bytes(), "at {}", element.sequence);
                }
            })
            .unwrap();
        delivered += report.delivered;
        missed += report.missed;
        if ended {
            break;
        }
        during = delivered;
    }
    assert_eq!(delivered + missed, ELEMENTS);
    assert!(
        delivered >= capacity - 1,
        "the newest elements are readable"
    );
    println!("capacity {capacity}: {delivered} delivered, {during} of them while writing, {missed} missed");
    std::fs::remove_file(file).unwrap();
}

/// Whether the writer has ended; read before the last poll, so that this poll finds everything.
fn has_ended(writer: &mut Child) -> bool {
    let ended = writer.try_wait().unwrap();
    ended.inspect(|status| assert!(status.success())).is_some()
}

#[test]
fn every_element_of_a_writer_built_by_gcc_is_intact_or_missed() {
    race("gcc", 16);
    race("gcc", 4096);
}

#[test]
fn every_element_of_a_writer_built_by_clang_is_intact_or_missed() {
    race("clang-19", 16);
    race("clang-19", 4096);
}
