// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loom explores every interleaving, and every value the memory model allows, of small runs.

use loom::thread;
use overhear_event::Ticks;

use crate::layout::Geometry;
use crate::reader::{ReadItem, Reader};
use crate::words::OwnedWords;
use crate::writer::SimpleWriter;

/// A writer of `writes` elements against a reader that polls `polls` times while it runs and once
/// afterwards. Every delivered element must be intact; delivered and missed elements must add up.
fn race(capacity: u64, writes: u64, polls: usize) {
    loom::model(move || {
        let geometry = Geometry::new(8, capacity).expect("a valid geometry");
        // Only the words in use: loom tracks each one.
        let memory = OwnedWords::zeroed(geometry.words());
        let mut writer = SimpleWriter::new(memory.share(), geometry).expect("enough memory");
        let mut reader = Reader::from_start(memory, geometry).expect("enough memory");
        let writing = thread::spawn(move || {
            for value in 0..writes {
                writer.write(&(value + 100).to_ne_bytes(), || Ticks::from_raw(value + 10));
            }
        });
        let (mut delivered, mut missed) = (0, 0);
        let mut poll = |reader: &mut Reader<OwnedWords>| {
            let report = reader
                .poll(usize::MAX, |element| {
                    assert_eq!(element.stamp.as_raw(), element.sequence + 10);
                    assert_eq!(element.payload, (element.sequence + 100).to_ne_bytes());
                })
                .expect("an honest counter");
            delivered += report.delivered;
            missed += report.missed;
        };
        for _ in 0..polls {
            poll(&mut reader);
        }
        writing.join().expect("the writer ends");
        poll(&mut reader);
        assert_eq!(delivered + missed, writes);
        assert!(
            delivered >= capacity.min(writes + 1) - 1,
            "the newest elements are readable"
        );
    });
}

/// A writer of `writes` elements against a reader whose bound is taken first and may be outdated
/// when it is used: earlier elements are delivered intact or counted as missed, and no later
/// element is delivered.
fn race_to_a_bound(capacity: u64, writes: u64) {
    loom::model(move || {
        let geometry = Geometry::new(8, capacity).expect("a valid geometry");
        let memory = OwnedWords::zeroed(geometry.words());
        let mut writer = SimpleWriter::new(memory.share(), geometry).expect("enough memory");
        let mut reader = Reader::from_start(memory, geometry).expect("enough memory");
        let writing = thread::spawn(move || {
            for value in 0..writes {
                writer.write(&(value + 100).to_ne_bytes(), || Ticks::from_raw(value + 10));
            }
        });
        let end = reader.published();
        let mut next = 0;
        let report = reader.poll_until(end, |found| match found {
            ReadItem::Element(element) => {
                assert_eq!(element.sequence, next);
                assert_eq!(element.stamp.as_raw(), next + 10);
                assert_eq!(element.payload, (next + 100).to_ne_bytes());
                next += 1;
            }
            ReadItem::Missed { first, count } => {
                assert_eq!(first, next);
                next += count;
            }
        });
        let report = report.expect("an honest counter");
        assert_eq!((next, report.delivered + report.missed), (end, end));
        writing.join().expect("the writer ends");
    });
}

#[test]
fn loom_reader_keeps_its_bound() {
    race_to_a_bound(2, 3);
}

#[test]
fn loom_reader_rejects_overwritten_elements() {
    race(2, 3, 1);
}

#[test]
fn loom_reader_polls_twice() {
    race(2, 2, 2);
}

#[test]
fn loom_larger_ring() {
    race(4, 5, 1);
}
