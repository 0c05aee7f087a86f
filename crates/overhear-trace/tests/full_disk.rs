// SPDX-License-Identifier: MIT OR Apache-2.0
//! A full disk ends the recording with one message; the written part stays readable.

#[path = "support/small_disk.rs"]
mod small_disk;
mod support;

use overhear_event::Analysis;
use overhear_trace::{repair, DiskLimits, TraceReader, TraceWriter, WriteError};

use small_disk::SmallDisk;
use support::{
    at, babeltrace_events, descriptor, has_babeltrace, identity, pair, pair_payload, program,
    Memory, Owned,
};

#[test]
fn full_disk_costs_only_the_unwritten_part() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path(), "size=256k") else {
        println!("skipped: mounting a small file system needs root");
        return;
    };
    let streams = [
        descriptor(1, "a", program(), pair()),
        descriptor(2, "b", program(), pair()),
    ];
    let trace = dir.path().join("t");
    let mut writer = TraceWriter::create(&trace, identity())
        .unwrap()
        .with_packet_bytes(10_000);
    let total = 40_000;
    for sequence in 0..total {
        let item = Owned::Element {
            stream: 1 + (sequence % 2) as u32,
            sequence,
            time: at(sequence),
            payload: pair_payload(sequence).to_vec(),
        };
        item.give(&mut writer, &streams);
    }
    Analysis::advance(&mut writer, at(total));
    let error = writer.finish().unwrap_err();
    assert!(matches!(error, WriteError::Write { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("No space left on device") && text.contains("stream-"));
    assert!(!text.contains('\n'));
    let summary = writer.summary();
    assert!(summary.events > 1_000);
    assert_eq!(summary.events + summary.unrecorded, total);

    let reader = TraceReader::open(&trace).unwrap();
    assert!(reader.torn().is_empty() && reader.corrupt().is_empty());
    assert_eq!(reader.events(), summary.events);
    let mut memory = Memory::default();
    reader.replay(&mut [&mut memory]);
    assert_eq!(memory.items.len() as u64, summary.events);
    assert!(repair(&trace).unwrap().cut.is_empty());
    if has_babeltrace() {
        assert_eq!(babeltrace_events(&trace), summary.events);
    }
    // Both have its folders open.
    drop((reader, writer));
    drop(disk);
}

/// The size is above that of the disk, so the disk ends the recording and not the ring; and below,
/// so that the ring turns before something else fills the disk.
#[test]
fn full_disk_ends_a_ring_with_its_newest_part_readable() {
    for (disk_size, takes_disk) in [("size=700k", false), ("size=1200k", true)] {
        let dir = tempfile::tempdir().unwrap();
        let Some(disk) = SmallDisk::mount(dir.path(), disk_size) else {
            println!("skipped: mounting a small file system needs root");
            return;
        };
        let streams = [
            descriptor(1, "a", program(), pair()),
            descriptor(2, "b", program(), pair()),
        ];
        let trace = dir.path().join("t");
        let limits = DiskLimits {
            max_bytes: Some(1 << 20),
            ..DiskLimits::default()
        };
        let writer = TraceWriter::create(&trace, identity()).unwrap();
        let mut writer = writer.with_limits(limits).unwrap();
        let total = 200_000;
        for sequence in 0..total {
            let item = Owned::Element {
                stream: 1 + (sequence % 2) as u32,
                sequence: sequence / 2,
                time: at(1 + sequence),
                payload: pair_payload(sequence).to_vec(),
            };
            item.give(&mut writer, &streams);
            if takes_disk && sequence == total / 2 {
                std::fs::write(dir.path().join("ballast"), vec![1; 500_000]).unwrap_err();
            }
        }
        Analysis::advance(&mut writer, at(1 + total));
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("No space left on device"), "{error}");
        let summary = writer.summary();
        let (read, left_out) = (summary.events, summary.left_out);
        assert_eq!(read + left_out + summary.unrecorded, total);
        assert_eq!(left_out > 0, takes_disk);
        assert!(read > 1_000 && summary.unrecorded > 0, "{summary:?}");
        let reader = TraceReader::open(&trace).unwrap();
        assert!(reader.torn().is_empty(), "{:?}", reader.torn());
        assert!(reader.corrupt().is_empty(), "{:?}", reader.corrupt());
        let mut memory = Memory::default();
        let replayed = reader.replay(&mut [&mut memory]);
        assert_eq!((replayed.events, replayed.discarded), (read, left_out));
        assert_eq!(reader.events(), read);
        if has_babeltrace() {
            assert_eq!(babeltrace_events(&trace), read);
        }
        drop((reader, writer));
        drop(disk);
    }
}

#[test]
fn disk_too_full_to_begin_is_reported_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = TraceWriter::create(file.path().join("t"), identity()).unwrap_err();
    assert!(error.to_string().starts_with("cannot create "), "{error}");

    let dir = tempfile::tempdir().unwrap();
    let Some(_disk) = SmallDisk::mount(dir.path(), "size=4k") else {
        println!("skipped: mounting a small file system needs root");
        return;
    };
    std::fs::write(dir.path().join("ballast"), [1; 4096]).unwrap();
    let error = TraceWriter::create(dir.path().join("t"), identity()).unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
}
