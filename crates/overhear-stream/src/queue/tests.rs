// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queue with one thread, compared with an obvious reference, and with rubbish in memory.

extern crate std;

use alloc::vec::Vec;

use overhear_event::{ClockId, Ticks};
use proptest::prelude::{any, prop, proptest, ProptestConfig};

use super::{difference, QueueFull, QueuePos, QueueWriter, HEAD_WORD, TAIL_WORD};
use crate::layout::LayoutError;
use crate::reader::{ReadItem, Reader};
use crate::shape::{QueueGeometry, Shape};
use crate::sync::Ordering;
use crate::words::{OwnedWords, Words};

pub(super) fn memory(queue: QueueGeometry) -> OwnedWords {
    let memory = OwnedWords::zeroed(queue.bytes() / 8);
    for (at, words) in Shape::Concurrent(queue).initial(ClockId::Monotonic, 1) {
        for (index, word) in words.into_iter().enumerate() {
            memory.word(at / 8 + index).store(word, Ordering::Relaxed);
        }
    }
    memory
}

fn queue(capacity: u64) -> (QueueWriter<OwnedWords>, Reader<OwnedWords>) {
    let queue = QueueGeometry::new(8, capacity).unwrap();
    let memory = memory(queue);
    let writer = QueueWriter::new(memory.share(), queue).unwrap();
    (writer, Reader::from_start(memory, queue).unwrap())
}

/// Thread 7 writes the numbers; the stamp is ten times the number.
fn write(writer: &QueueWriter<OwnedWords>, numbers: core::ops::Range<u64>) {
    for number in numbers {
        let stamp = || Ticks::from_raw(number * 10);
        writer.write(7, &number.to_ne_bytes(), stamp).unwrap();
    }
}

type Pairs = Vec<(u64, u64)>;

/// Sequence and number of each element until `end`, and (first, count) of the missed ones.
fn read(reader: &mut Reader<OwnedWords>, end: u64) -> (Pairs, Pairs) {
    let (mut seen, mut gaps) = (Vec::new(), Vec::new());
    let from = reader.position();
    let report = reader.poll_until(end, |found| match found {
        ReadItem::Element(element) => {
            assert_eq!(element.payload[..4], 7_u32.to_ne_bytes());
            let number = u64::from_ne_bytes(element.payload[8..].try_into().unwrap());
            assert_eq!(element.stamp.as_raw(), number * 10);
            seen.push((element.sequence, number));
        }
        ReadItem::Missed { first, count } => gaps.push((first, count)),
    });
    let report = report.unwrap();
    assert_eq!(report.delivered, seen.len() as u64);
    assert_eq!(report.missed, gaps.iter().map(|gap| gap.1).sum::<u64>());
    assert_eq!(
        report.delivered + report.missed + report.void,
        reader.position() - from
    );
    (seen, gaps)
}

fn numbered(numbers: core::ops::Range<u64>) -> Pairs {
    numbers.map(|number| (number, number)).collect()
}

#[test]
fn lapped_reader_keeps_the_newest_and_counts_the_rest() {
    let (writer, mut reader) = queue(4);
    assert_eq!(read(&mut reader, 9), ([].to_vec(), [].to_vec()));
    write(&writer, 0..4);
    // No thread holds an element: the complete capacity is readable.
    assert_eq!(read(&mut reader, 9), (numbered(0..4), [].to_vec()));
    write(&writer, 4..1_000);
    assert_eq!(
        read(&mut reader, 998),
        (numbered(996..998), [(4, 992)].to_vec())
    );
    let held = writer.take().unwrap();
    assert_eq!(
        read(&mut reader, 2_000),
        (numbered(998..1_000), [].to_vec())
    );
    drop(held);
}

#[test]
fn readers_start_at_the_given_position() {
    let (writer, _) = queue(4);
    let words = || (writer.words().share(), *writer.geometry());
    let now = || {
        let (words, queue) = words();
        Reader::from_now(words, queue).unwrap().position()
    };
    let oldest = || {
        let (words, queue) = words();
        Reader::from_oldest(words, queue).unwrap().position()
    };
    assert_eq!((now(), oldest()), (0, 0));
    write(&writer, 0..3);
    assert_eq!((now(), oldest()), (3, 0));
    write(&writer, 3..10);
    assert_eq!((now(), oldest()), (10, 6));
    let held = writer.take().unwrap();
    assert_eq!((now(), oldest()), (10, 7));
    drop(held);
}

#[test]
fn empty_queue_refuses_and_counts() {
    let (writer, mut reader) = queue(4);
    let held: Vec<_> = (0..4).map(|_| writer.take().unwrap()).collect();
    assert!(writer.take().is_err());
    assert_eq!(
        writer.write(7, &[0; 8], || Ticks::from_raw(0)),
        Err(QueueFull)
    );
    assert_eq!(writer.lost_full(), 2);
    // All were abandoned: all are free again, and nothing is missed.
    drop(held);
    write(&writer, 0..2);
    assert_eq!(
        read(&mut reader, 9),
        ([(4, 0), (5, 1)].to_vec(), [(0, 2)].to_vec())
    );
    assert_eq!(writer.lost_full(), 2);
}

#[test]
fn abandoned_elements_are_passed_over() {
    let (writer, mut reader) = queue(8);
    write(&writer, 0..1);
    let mut taken = writer.take().unwrap();
    taken.fill(&[9; 8]);
    drop(taken);
    write(&writer, 1..2);
    let end = reader.published();
    assert_eq!(end, 3);
    assert_eq!(
        read(&mut reader, end),
        ([(0, 0), (2, 1)].to_vec(), [].to_vec())
    );
}

#[test]
fn held_element_does_not_block_others() {
    let (writer, mut reader) = queue(4);
    let mut slow = writer.take().unwrap();
    core::mem::forget(writer.take().unwrap());
    write(&writer, 0..100);
    slow.fill(&100_u64.to_ne_bytes());
    slow.commit(7, || Ticks::from_raw(1_000));
    let (seen, gaps) = read(&mut reader, 101);
    // Of four, one was leaked.
    assert_eq!((seen, gaps), (numbered(98..101), [(0, 98)].to_vec()));
    assert_eq!(writer.lost_full(), 0);
}

#[test]
fn positions_wrap_around_after_48_bits() {
    let geometry = QueueGeometry::new(8, 4).unwrap();
    let memory = memory(geometry);
    // As if 2^48 - 6 elements had been dequeued.
    let tail = (1_u64 << 48) - 6;
    for position in tail..tail + 4 {
        let place = QueuePos(position << 16 | (position & 3));
        memory
            .word(geometry.index_word(position))
            .store(place.0, Ordering::Relaxed);
    }
    memory
        .word(TAIL_WORD)
        .store(tail << 16 | tail & 3, Ordering::Relaxed);
    let head = tail + 4;
    memory
        .word(HEAD_WORD)
        .store(head << 16 | head & 3, Ordering::Relaxed);
    let writer = QueueWriter::new(memory.share(), geometry).unwrap();
    let mut reader = Reader::from_now(memory, geometry).unwrap();
    let first = reader.position();
    write(&writer, 0..9);
    let (seen, gaps) = read(&mut reader, first + 9);
    assert_eq!(gaps, [(first, 5)]);
    let expected: Vec<_> = (5..9).map(|number| (first + number, number)).collect();
    assert_eq!(seen, expected);
    assert_eq!(difference(1, (1 << 48) - 1), 2);
    assert_eq!(difference((1 << 48) - 1, 1), -2);
}

#[test]
fn damage_is_an_error_and_ends_a_write() {
    let (writer, mut reader) = queue(4);
    write(&writer, 0..3);
    let words = writer.words().share();
    let at = writer.geometry().index_word(1 + 4);
    let good = words.word(at).load(Ordering::Relaxed);
    words.word(at).store(77 << 16, Ordering::Relaxed);
    let error = reader.poll_until(9, |_| ()).unwrap_err();
    assert_eq!(error, LayoutError::BadIndex { position: 1 });
    words.word(at).store(good, Ordering::Relaxed);
    // An index word that is ahead of a `head` and a `tail` that do not move.
    let all = writer.geometry().index_word(0);
    (0..4).for_each(|slot| {
        words
            .word(all + slot)
            .store(u64::MAX >> 2, Ordering::Relaxed)
    });
    assert!(writer.take().is_err());
    words.word(HEAD_WORD).store(5, Ordering::Relaxed);
    assert!(matches!(
        Reader::from_start(words.share(), *writer.geometry())
            .unwrap()
            .poll(9, |_| ()),
        Err(LayoutError::CounterBackwards { .. })
    ));
    words.word(HEAD_WORD).store(u64::MAX / 4, Ordering::Relaxed);
    words.word(TAIL_WORD).store(u64::MAX / 3, Ordering::Relaxed);
    let _ = writer.take();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The reference: held elements are absent, the other ones of the newest `capacity` are
    /// readable.
    #[test]
    fn polls_are_those_of_the_reference(
        steps in prop::collection::vec((0_u64..20, 0_u64..200, 0_usize..3), 1..30),
        power in 2_u32..5,
    ) {
        let capacity = 1 << power;
        let (writer, mut reader) = queue(capacity);
        let (mut held, mut written) = (Vec::new(), 0_u64);
        let mut taken_before = 0;
        for (writes, bound, holders) in steps {
            while held.len() < holders {
                held.push(writer.take().unwrap());
                taken_before += 1;
            }
            write(&writer, written..written + writes);
            written += writes;
            let from = reader.position();
            let end = bound.min(written).max(from);
            // Every write and every holder has dequeued one.
            let gone = (written + taken_before).saturating_sub(capacity).clamp(from, end);
            let (seen, gaps) = read(&mut reader, bound);
            assert_eq!(seen, numbered(gone..end));
            let expected = (gone > from).then_some((from, gone - from));
            assert_eq!(gaps, expected.into_iter().collect::<Vec<_>>());
        }
        held.into_iter().for_each(core::mem::forget);
    }

    #[test]
    fn arbitrary_memory_neither_panics_nor_loops(
        words in prop::collection::vec(any::<u64>(), 1_200),
        heads in prop::collection::vec(any::<u64>(), 1..8),
        power in 1_u32..5,
        payload in 0_u32..40,
    ) {
        let geometry = QueueGeometry::new(payload, 1 << power).unwrap();
        let size = geometry.bytes() / 8;
        let memory = OwnedWords::zeroed(size.max(1_200));
        for (index, word) in words.into_iter().enumerate() {
            memory.word(index).store(word, Ordering::Relaxed);
        }
        let mut reader = Reader::from_start(memory.share(), geometry).unwrap();
        let writer = QueueWriter::new(memory.share(), geometry).unwrap();
        let content = alloc::vec![1; payload as usize];
        for head in heads {
            memory.word(HEAD_WORD).store(head, Ordering::Relaxed);
            let mut seen = 0;
            if let Ok(report) = reader.poll(usize::MAX, |_| seen += 1) {
                assert_eq!(report.delivered, seen);
                assert!(seen <= geometry.capacity());
            }
            let _ = writer.write(1, &content, || Ticks::from_raw(1));
        }
    }
}
