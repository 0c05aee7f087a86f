// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring with one thread that plays all parts, compared with an obvious reference, and with
//! rubbish in memory.

extern crate std;

use alloc::vec::Vec;

use overhear_event::Ticks;
use proptest::prelude::{any, prop, proptest, ProptestConfig};

use super::geometry::{Head, Turn, HEAD_WORD, TAIL_WORD, TURN, VOIDS_WORD};
use super::{
    writer::Claimed, EventRecord, EventRing, LossCause, Next, RingConsumer, RingError, RingFull,
    RingGeometry, RingObserver, WhenFull,
};
use crate::sync::Ordering;
use crate::words::{OwnedWords, Words};

const BOTH: [WhenFull; 2] = [WhenFull::Overwrite, WhenFull::Refuse];

fn memory(capacity: u64) -> (OwnedWords, RingGeometry) {
    let geometry = RingGeometry::new(capacity, 20).unwrap();
    (OwnedWords::zeroed(geometry.words()), geometry)
}

fn ring(capacity: u64, when_full: WhenFull) -> (EventRing<OwnedWords>, RingConsumer<OwnedWords>) {
    let (words, geometry) = memory(capacity);
    let ring = EventRing::new(words.share(), geometry).unwrap();
    (ring, RingConsumer::new(words, geometry, when_full).unwrap())
}

/// An event whose fields all follow from its number.
fn event(number: u64, data: &[u8]) -> EventRecord<'_> {
    EventRecord {
        stamp: Ticks::from_raw(number * 10),
        address: number.wrapping_mul(0x1234_5678_9abc),
        thread: !number,
        pid: number as u32 + 1,
        tid: number as u32 + 2,
        event: number as u16 ^ 0x8000,
        flags: number as u16 ^ 0x0f0f,
        data,
    }
}

fn data(number: u64) -> Vec<u8> {
    (0..number % 21).map(|at| (number + at) as u8).collect()
}

fn write(ring: &EventRing<OwnedWords>, number: u64, when_full: WhenFull) -> Result<u64, RingFull> {
    let data = data(number);
    ring.write(&event(number, &data), when_full, || {
        Ticks::from_raw(number * 10)
    })
}

/// What a reader yields: numbers of events (equal to their positions in most tests), and losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Event(u64, u64),
    Lost(u64, u64, LossCause),
    Pending(u64),
}

fn found(next: Next<'_>) -> Option<Found> {
    match next {
        Next::Event {
            position,
            record,
            recorded,
        } => {
            let number = record.stamp.as_raw() / 10;
            assert_eq!(record, event(number, &data(number)), "the event is whole");
            assert_eq!(recorded, record.data.len());
            Some(Found::Event(position, number))
        }
        Next::Lost {
            first,
            missed,
            cause,
        } => Some(Found::Lost(first, missed, cause)),
        Next::Pending { position } => Some(Found::Pending(position)),
        Next::Empty => None,
    }
}

/// Everything up to the end, or the pending event.
fn drain(mut next: impl FnMut(&mut [u8]) -> Option<Found>) -> Vec<Found> {
    let (mut all, mut copy) = (Vec::new(), [0; 24]);
    while let Some(found) = next(&mut copy) {
        all.push(found);
        if matches!(found, Found::Pending(_)) {
            break;
        }
    }
    all
}

fn read(consumer: &mut RingConsumer<OwnedWords>) -> Vec<Found> {
    drain(|copy| found(consumer.next(copy)))
}

fn events(range: core::ops::Range<u64>) -> Vec<Found> {
    range.map(|number| Found::Event(number, number)).collect()
}

#[test]
fn geometry_is_checked() {
    for capacity in [0, 1, 3, 6, 1 << 21, u64::MAX] {
        let error = RingGeometry::new(capacity, 8).unwrap_err();
        assert_eq!(error, RingError::BadCapacity(capacity));
    }
    let error = RingGeometry::new(2, 65_536).unwrap_err();
    assert_eq!(error, RingError::BadData(65_536));
    for (data, stride) in [(0, 48), (1, 56), (8, 56), (80, 128), (65_535, 48 + 65_536)] {
        let geometry = RingGeometry::new(8, data).unwrap();
        assert_eq!(geometry.stride_bytes(), stride);
        assert_eq!(geometry.words() * 8, 256 + 8 * (stride + 8));
        assert_eq!((geometry.capacity(), geometry.data_bytes()), (8, data));
    }
    let (_, geometry) = memory(4);
    let small = OwnedWords::zeroed(geometry.words() - 1);
    let error = RingError::TooSmall {
        found: geometry.words() - 1,
        needed: geometry.words(),
    };
    assert_eq!(EventRing::new(&small, geometry).unwrap_err(), error);
    for when_full in BOTH {
        assert!(RingConsumer::new(&small, geometry, when_full).is_err());
    }
    assert!(RingObserver::from_start(&small, geometry).is_err());
    assert!(RingObserver::from_oldest(&small, geometry).is_err());
    assert!(RingObserver::from_now(&small, geometry).is_err());
}

#[test]
fn whole_capacity_is_held_without_loss() {
    for when_full in BOTH {
        for capacity in [2, 8] {
            let (ring, mut consumer) = ring(capacity, when_full);
            assert_eq!(read(&mut consumer), []);
            for lap in 0..5 {
                let first = lap * capacity;
                for number in first..first + capacity {
                    assert_eq!(write(&ring, number, when_full), Ok(number));
                }
                assert_eq!(consumer.unread(), capacity);
                assert_eq!(read(&mut consumer), events(first..first + capacity));
            }
            assert_eq!((ring.written(), consumer.unread()), (5 * capacity, 0));
        }
    }
}

#[test]
fn overwriting_keeps_the_newest_and_counts_the_rest() {
    let (ring, mut consumer) = ring(4, WhenFull::Overwrite);
    for number in 0..1_000 {
        assert_eq!(write(&ring, number, WhenFull::Overwrite), Ok(number));
    }
    let lost = Found::Lost(0, 996, LossCause::Overwritten);
    assert_eq!(
        read(&mut consumer),
        [[lost].to_vec(), events(996..1_000)].concat()
    );
}

#[test]
fn refusing_keeps_the_oldest() {
    let (ring, mut consumer) = ring(4, WhenFull::Refuse);
    let mut copy = [0; 24];
    for number in 0..4 {
        assert_eq!(write(&ring, number, WhenFull::Refuse), Ok(number));
    }
    for read in 0..9 {
        assert_eq!(write(&ring, 99, WhenFull::Refuse), Err(RingFull::Unread));
        assert_eq!(
            found(consumer.next(&mut copy)),
            Some(Found::Event(read, read))
        );
        assert_eq!(write(&ring, read + 4, WhenFull::Refuse), Ok(read + 4));
    }
    assert_eq!(read(&mut consumer), events(9..13));
    assert_eq!(ring.written(), 13);
}

#[test]
fn data_is_cut_to_the_ring_and_to_the_buffer() {
    let (ring, mut consumer) = ring(4, WhenFull::Overwrite);
    let long: Vec<u8> = (1..=30).collect();
    for _ in 0..2 {
        let written = ring.write(&event(0, &long), WhenFull::Overwrite, || Ticks::from_raw(0));
        assert!(written.is_ok());
    }
    let mut copy = [0; 24];
    for room in [24, 5] {
        let Next::Event {
            record, recorded, ..
        } = consumer.next(&mut copy[..room])
        else {
            panic!("an event");
        };
        assert_eq!((record.data, recorded), (&long[..room.min(20)], 20));
    }
    assert_eq!(read(&mut consumer), []);
}

/// Claims a position, and begins to fill its slot.
fn begin(ring: &EventRing<OwnedWords>, when_full: WhenFull) -> Claimed {
    let claimed = ring.claim(when_full, || Ticks::from_raw(0)).unwrap();
    ring.begin(claimed);
    claimed
}

#[test]
fn pending_event_is_waited_for_or_abandoned() {
    for when_full in BOTH {
        let (ring, mut consumer) = ring(4, when_full);
        // 0 is published late, but in time; 1 too late; 2 claims its position and nothing else.
        let late = [begin(&ring, when_full), begin(&ring, when_full)];
        let claimed = ring.claim(when_full, || Ticks::from_raw(0)).unwrap();
        assert_eq!(write(&ring, 3, when_full), Ok(3));
        assert_eq!(read(&mut consumer), [Found::Pending(0)]);
        assert!(!consumer.abandon(1), "not the next");
        ring.fill(late[0], &event(0, &data(0)));
        ring.publish(late[0]);
        assert!(!consumer.abandon(0), "published meanwhile");
        assert_eq!(read(&mut consumer), [Found::Event(0, 0), Found::Pending(1)]);
        assert!(consumer.abandon(1));
        assert_eq!(read(&mut consumer), [Found::Pending(2)]);
        assert!(consumer.abandon(2));
        assert_eq!(read(&mut consumer), events(3..4));
        assert!(!consumer.abandon(4), "nothing there");
        for claimed in [late[1], claimed] {
            ring.publish(claimed);
        }
        assert_eq!(read(&mut consumer), []);
        // No slot is lost: all of the capacity is held again.
        for number in 4..8 {
            assert_eq!(write(&ring, number, when_full), Ok(number));
        }
        assert_eq!(read(&mut consumer), events(4..8));
    }
}

/// The positions of the next events where slot 1 of 4 is not free.
fn around_slot_1(first: u64) -> impl Iterator<Item = u64> {
    (first..).filter(|position| position % 4 != 1)
}

#[test]
fn dead_writer_costs_its_slot_alone() {
    for when_full in BOTH {
        for has_begun in [false, true] {
            let (ring, mut consumer) = ring(4, when_full);
            assert_eq!(write(&ring, 0, when_full), Ok(0));
            let dead = ring.claim(when_full, || Ticks::from_raw(0)).unwrap();
            if has_begun {
                ring.begin(dead);
            }
            assert_eq!(read(&mut consumer), [Found::Event(0, 0), Found::Pending(1)]);
            assert!(consumer.abandon(1));
            let mut positions = around_slot_1(2);
            for lap in 0..10 {
                let mut written = Vec::new();
                for position in positions.by_ref().take(3) {
                    assert_eq!(write(&ring, position, when_full), Ok(position));
                    written.push(Found::Event(position, position));
                }
                if when_full == WhenFull::Refuse {
                    assert_eq!(write(&ring, 99, when_full), Err(RingFull::Unread), "{lap}");
                }
                assert_eq!(read(&mut consumer), written, "{when_full:?}");
                assert_eq!(consumer.unread(), 0);
            }
            // It was only stopped: nothing appears, and the slot is used again.
            ring.publish(dead);
            let first = ring.written();
            for number in first..first + 8 {
                assert_eq!(write(&ring, number, when_full), Ok(number));
                assert_eq!(read(&mut consumer), events(number..number + 1));
            }
            for number in first + 8..first + 12 {
                assert_eq!(write(&ring, number, when_full), Ok(number));
            }
            assert_eq!(read(&mut consumer), events(first + 8..first + 12));
        }
    }
}

#[test]
fn lapped_readers_count_exactly_over_void_positions() {
    let (ring, mut consumer) = ring(4, WhenFull::Overwrite);
    let write = |number| write(&ring, number, WhenFull::Overwrite).unwrap();
    assert_eq!(write(0), 0);
    let dead = begin(&ring, WhenFull::Overwrite);
    let mut positions = around_slot_1(2);
    let mut written = 2;
    let mut expect = |count: usize, consumer: &mut RingConsumer<_>| {
        let last: Vec<_> = positions.by_ref().take(count).collect();
        for &position in &last {
            assert_eq!(write(position), position);
        }
        written += count as u64;
        let last = last[count - 3..].iter().map(|&it| Found::Event(it, it));
        let expected: Vec<_> = last.collect();
        let found = read(consumer);
        let Found::Lost(_, missed, LossCause::Overwritten) = found[0] else {
            panic!("{found:?}");
        };
        assert_eq!(found[1..], expected);
        written - missed - 3
    };
    assert_eq!(expect(1_000, &mut consumer), 0, "two of them before");
    // All that were read before: 3.
    assert_eq!(expect(10, &mut consumer), 1_002);
    // More void positions than 16 bits count.
    assert_eq!(expect(300_000, &mut consumer), 1_012);
    assert_eq!(expect(5, &mut consumer), 301_012);
    ring.publish(dead);
}

#[test]
fn gap_is_reported_before_what_ends_it() {
    let (ring, mut consumer) = ring(4, WhenFull::Overwrite);
    let write = |number| write(&ring, number, WhenFull::Overwrite).unwrap();
    (0..10).for_each(|it| assert_eq!(write(it), it));
    // Positions 10 to 13: the oldest in the ring is pending, abandoned, and late.
    let late = begin(&ring, WhenFull::Overwrite);
    (11..14).for_each(|it| assert_eq!(write(it), it));
    assert_eq!(read(&mut consumer), [Found::Pending(10)]);
    assert!(consumer.abandon(10));
    let lost = |first, count| [Found::Lost(first, count, LossCause::Overwritten)].to_vec();
    assert_eq!(read(&mut consumer), [lost(0, 10), events(11..14)].concat());
    // 14 and 18 are void, 15 is overwritten.
    for position in [15, 16, 17] {
        assert_eq!(write(position), position);
    }
    let dead = begin(&ring, WhenFull::Overwrite);
    assert_eq!(dead.position, 19);
    ring.publish(late);
    assert_eq!(consumer.unread(), 6);
    assert_eq!(
        read(&mut consumer),
        [lost(14, 1), events(16..18), [Found::Pending(19)].to_vec()].concat()
    );
}

#[test]
fn ring_whose_slots_are_all_held_refuses() {
    for when_full in BOTH {
        let (ring, mut consumer) = ring(2, when_full);
        let held = [begin(&ring, when_full), begin(&ring, when_full)];
        let refused = match when_full {
            WhenFull::Overwrite => RingFull::Held,
            WhenFull::Refuse => RingFull::Unread,
        };
        assert_eq!(write(&ring, 9, when_full), Err(refused));
        // Pending events are discarded; the ring continues with the slots that are free.
        let voided = if when_full == WhenFull::Overwrite {
            2
        } else {
            0
        };
        assert_eq!(consumer.clear(), 2 + voided);
        assert_eq!(write(&ring, 9, when_full), Err(RingFull::Held));
        ring.publish(held[1]);
        assert_eq!(read(&mut consumer), []);
        let position = 5 + voided;
        assert_eq!(write(&ring, position, when_full), Ok(position));
        assert_eq!(read(&mut consumer), events(position..position + 1));
        ring.publish(held[0]);
        let next = position + 1;
        assert_eq!(
            [next, next + 1].map(|it| write(&ring, it, when_full)),
            [Ok(next), Ok(next + 1)]
        );
        assert_eq!(read(&mut consumer), events(next..next + 2));
    }
}

#[test]
fn cleared_ring_is_empty_and_has_all_of_its_capacity() {
    for when_full in BOTH {
        let (ring, mut consumer) = ring(4, when_full);
        for lap in 0..3 {
            for number in 0..4 {
                assert_eq!(write(&ring, number, when_full), Ok(lap * 4 + number));
            }
            assert_eq!(consumer.clear(), 4);
            assert_eq!((read(&mut consumer), consumer.unread()), ([].to_vec(), 0));
        }
        assert_eq!(consumer.position(), 12);
    }
}

#[test]
fn refused_ring_goes_on_with_a_new_consumer() {
    let (words, geometry) = memory(4);
    let ring = EventRing::new(words.share(), geometry).unwrap();
    let consumer = || RingConsumer::new(words.share(), geometry, WhenFull::Refuse).unwrap();
    assert_eq!(read(&mut consumer()), []);
    for number in 0..4 {
        assert_eq!(write(&ring, number, WhenFull::Refuse), Ok(number));
    }
    let mut copy = [0; 24];
    for number in 0..3 {
        let next = found(consumer().next(&mut copy));
        assert_eq!(next, Some(Found::Event(number, number)));
    }
    assert_eq!(write(&ring, 4, WhenFull::Refuse), Ok(4));
    assert_eq!(read(&mut consumer()), events(3..5));
    assert_eq!(read(&mut consumer()), []);
}

#[test]
fn observers_begin_where_they_should_and_disturb_nobody() {
    let (ring, mut consumer) = ring(4, WhenFull::Refuse);
    let observer = |make: fn(OwnedWords, RingGeometry) -> Result<_, _>| {
        make(ring.words().share(), *ring.geometry()).unwrap()
    };
    let seen = |mut it: RingObserver<OwnedWords>| drain(|copy| found(it.next(copy)));
    let write = |number| write(&ring, number, WhenFull::Refuse);
    let makes: [fn(_, _) -> _; 3] = [
        RingObserver::from_start,
        RingObserver::from_oldest,
        RingObserver::from_now,
    ];
    assert!(makes.iter().all(|&make| seen(observer(make)).is_empty()));
    let mut steady = observer(RingObserver::from_now);
    assert_eq!([0, 1, 2, 3].map(write), [Ok(0), Ok(1), Ok(2), Ok(3)]);
    let read_all = [0..4, 0..4, 4..4].map(events);
    assert_eq!(makes.map(|make| seen(observer(make))), read_all);
    assert_eq!(write(9), Err(RingFull::Unread), "observers free nothing");
    assert_eq!(read(&mut consumer), events(0..4));
    assert_eq!([4, 5].map(write), [Ok(4), Ok(5)]);
    let lost = |count| [Found::Lost(0, count, LossCause::Overwritten)].to_vec();
    let all = [[lost(2), events(2..6)].concat(), events(2..6), [].to_vec()];
    assert_eq!(makes.map(|make| seen(observer(make))), all);
    assert_eq!(steady.unread(), 6);
    assert_eq!(drain(|copy| found(steady.next(copy))), all[0]);
}

#[test]
fn positions_wrap_around() {
    for when_full in BOTH {
        let (words, geometry) = memory(4);
        // As if 2^48 - 6 positions had been given away, 7 of them void.
        let first = (1_u64 << 48) - 6;
        let store = |at: usize, value| words.word(at).store(value, Ordering::Relaxed);
        store(HEAD_WORD, Head::new(first, 7).0);
        store(TAIL_WORD, first);
        store(VOIDS_WORD, 7);
        for position in first - 4..first {
            let turn = Turn::done(&geometry, geometry.lap(position), 0);
            store(geometry.slot_word(position) + TURN, turn.0);
        }
        let ring = EventRing::new(words.share(), geometry).unwrap();
        let mut consumer = RingConsumer::new(words, geometry, when_full).unwrap();
        if when_full == WhenFull::Overwrite {
            consumer.clear();
        }
        for lap in 0..4 {
            for number in 0..4 {
                let position = (first + lap * 4 + number) & ((1 << 48) - 1);
                assert_eq!(write(&ring, number, when_full), Ok(position));
            }
            if when_full == WhenFull::Refuse {
                assert_eq!(write(&ring, 9, when_full), Err(RingFull::Unread));
            }
            let numbers: Vec<_> = read(&mut consumer)
                .into_iter()
                .map(|it| match it {
                    Found::Event(_, number) => number,
                    other => panic!("{other:?}"),
                })
                .collect();
            assert_eq!(numbers, [0, 1, 2, 3]);
        }
    }
}

#[test]
fn head_that_goes_back_is_damage() {
    let (ring, mut consumer) = ring(4, WhenFull::Refuse);
    assert_eq!(
        [0, 1, 2].map(|it| write(&ring, it, WhenFull::Refuse)),
        [Ok(0), Ok(1), Ok(2)]
    );
    assert_eq!(read(&mut consumer), events(0..3));
    let head = ring.words().word(0).swap(0, Ordering::Relaxed);
    assert_eq!(read(&mut consumer), [Found::Lost(3, 0, LossCause::Damaged)]);
    assert_eq!((read(&mut consumer), consumer.unread()), ([].to_vec(), 0));
    ring.words().word(0).store(head, Ordering::Relaxed);
    assert_eq!(write(&ring, 3, WhenFull::Refuse), Ok(3));
    assert_eq!(read(&mut consumer), events(3..4));
    // A second time.
    ring.words().word(0).store(0, Ordering::Relaxed);
    assert_eq!(read(&mut consumer).len(), 1);
}

/// Memory that is mapped twice: for writing, and read-only for observers.
#[cfg(not(miri))]
fn mapped(geometry: RingGeometry) -> (impl Words + Sync, impl Words + Send) {
    use alloc::sync::Arc;
    use core::ptr::NonNull;

    use crate::words::SharedWords;

    let bytes = geometry.words() * 8;
    // SAFETY: the name is a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"event-ring".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "a memory file");
    // SAFETY: the descriptor is new and has no other owner.
    let file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.set_len(bytes as u64).unwrap();
    // SAFETY: the file is of this test alone and keeps its size.
    let (mut all, seen) = unsafe {
        let all = memmap2::MmapMut::map_mut(&file).unwrap();
        (all, memmap2::Mmap::map(&file).unwrap())
    };
    let bases = [all.as_mut_ptr().cast(), seen.as_ptr().cast_mut().cast()];
    let [all_base, seen_base] = bases.map(|base| NonNull::new(base).unwrap());
    // SAFETY: the maps are kept with the words, and reached through these alone; nothing stores
    // into the read-only one.
    unsafe {
        (
            SharedWords::new(all_base, geometry.words()).kept_by(Arc::new(all)),
            SharedWords::new(seen_base, geometry.words()).kept_by(Arc::new(seen)),
        )
    }
}

/// Counts of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    delivered: u64,
    missed: u64,
    abandoned: u64,
}

impl Counts {
    fn sum(self) -> u64 {
        self.delivered + self.missed + self.abandoned
    }

    /// Checks what comes next, for the events of thread t have the numbers t + THREADS * i.
    fn add(&mut self, next: Next<'_>, last: &mut [u64]) {
        match found(next) {
            Some(Found::Event(_, number)) => {
                let of_thread = &mut last[(number % THREADS) as usize];
                assert!(number / THREADS >= *of_thread, "each thread's in order");
                *of_thread = number / THREADS + 1;
                self.delivered += 1;
            }
            Some(Found::Lost(_, missed, LossCause::Overwritten)) => self.missed += missed,
            other => panic!("{other:?}"),
        }
    }
}

#[cfg(not(miri))]
const THREADS: u64 = 4;
#[cfg(not(miri))]
const WRITES: u64 = 30_000;

/// Threads write, the consumer reads, and an observer watches through a read-only map. With
/// `deaths`, some writes end between two steps, or go on when others have written meanwhile.
#[cfg(not(miri))]
fn count_all(capacity: u64, when_full: WhenFull, deaths: bool) {
    use crate::sync::{AtomicBool, AtomicU64};

    let geometry = RingGeometry::new(capacity, 20).unwrap();
    let (words, seen) = mapped(geometry);
    let ring = EventRing::new(&words, geometry).unwrap();
    let (written, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let write_all = |thread: u64| {
        let mut count = 0;
        for turn in 0..WRITES {
            let number = turn * THREADS + thread;
            let data = data(number);
            let stamp = || Ticks::from_raw(number * 10);
            let record = event(number, &data);
            if !deaths || turn % 1_000 < 997 {
                count += u64::from(ring.write(&record, when_full, stamp).is_ok());
                continue;
            }
            let Ok(claimed) = ring.claim(when_full, stamp) else {
                continue;
            };
            count += 1;
            match (turn % 1_000, turn < 4_000 && thread == 0) {
                (997, _) => std::thread::yield_now(),
                // The thread dies here, as if another took its part from now on.
                (998, true) => continue,
                (999, true) => {
                    ring.begin(claimed);
                    continue;
                }
                _ => {}
            }
            ring.begin(claimed);
            std::thread::yield_now();
            ring.fill(claimed, &record);
            ring.publish(claimed);
        }
        written.fetch_add(count, Ordering::Relaxed);
    };
    let consume = || {
        let mut consumer = RingConsumer::new(&words, geometry, when_full).unwrap();
        let (mut counts, mut last, mut copy) = (Counts::default(), [0; THREADS as usize], [0; 24]);
        let mut waited = 0;
        loop {
            let is_last = ended.load(Ordering::Acquire);
            match consumer.next(&mut copy) {
                Next::Pending { position } if is_last || waited > 1_000 => {
                    counts.abandoned += u64::from(consumer.abandon(position));
                    waited = 0;
                }
                Next::Empty if is_last => return counts,
                Next::Empty => std::thread::yield_now(),
                Next::Pending { .. } => {
                    waited += 1;
                    std::thread::yield_now();
                }
                next => {
                    waited = 0;
                    counts.add(next, &mut last);
                }
            }
        }
    };
    let watch = |words| {
        let mut observer = RingObserver::from_start(words, geometry).unwrap();
        let (mut counts, mut last, mut copy) = (Counts::default(), [0; THREADS as usize], [0; 24]);
        loop {
            let is_last = ended.load(Ordering::Acquire);
            match observer.next(&mut copy) {
                Next::Pending { position } if is_last => {
                    counts.abandoned += u64::from(observer.abandon(position));
                }
                Next::Empty if is_last => return counts,
                Next::Pending { .. } | Next::Empty => std::thread::yield_now(),
                next => counts.add(next, &mut last),
            }
        }
    };
    let (consumed, watched) = std::thread::scope(|scope| {
        let consumer = scope.spawn(consume);
        let observer = scope.spawn(move || watch(seen));
        let writers = [0, 1, 2, 3].map(|thread| scope.spawn(move || write_all(thread)));
        for writer in writers {
            writer.join().expect("the writer ends");
        }
        ended.store(true, Ordering::Release);
        (
            consumer.join().expect("the consumer ends"),
            observer.join().expect("the observer ends"),
        )
    });
    let written = written.into_inner();
    assert_eq!(consumed.sum(), written, "{consumed:?} {when_full:?}");
    assert_eq!(watched.sum(), written, "{watched:?} {when_full:?}");
    if when_full == WhenFull::Refuse {
        assert_eq!(consumed.missed, 0);
    } else if !deaths {
        assert_eq!(written, THREADS * WRITES, "none is refused");
    }
    assert!(consumed.delivered >= capacity / 2);
}

#[test]
#[cfg(not(miri))]
fn written_events_are_read_or_counted_as_lost() {
    for capacity in [16, 1_024] {
        count_all(capacity, WhenFull::Overwrite, false);
        count_all(capacity, WhenFull::Refuse, false);
    }
}

#[test]
#[cfg(not(miri))]
fn events_of_dead_and_late_writers_are_counted_once() {
    for capacity in [16, 1_024] {
        count_all(capacity, WhenFull::Overwrite, true);
        count_all(capacity, WhenFull::Refuse, true);
    }
}

/// The state of a position in the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Void,
    Claimed(u64),
    /// Claimed, and its slot is being filled.
    Begun(u64),
    Published(u64),
}

/// The reference: all positions there ever were, looked through from the start for each question.
struct Reference {
    capacity: usize,
    when_full: WhenFull,
    positions: Vec<State>,
    tail: usize,
}

impl Reference {
    fn of_slot(&self, position: usize) -> impl Iterator<Item = (usize, State)> + '_ {
        let all = self.positions.iter().copied().enumerate();
        all.filter(move |it| it.0 % self.capacity == position % self.capacity)
    }

    fn claim(&mut self, number: u64) -> Result<usize, RingFull> {
        let mut voided = 0;
        loop {
            let next = self.positions.len();
            let is_full = self.when_full == WhenFull::Refuse && next - self.tail >= self.capacity;
            let is_owned = |state| matches!(state, State::Claimed(_) | State::Begun(_));
            let is_free = !self.of_slot(next).any(|it| is_owned(it.1));
            let all_held = voided == self.capacity;
            match (is_full, is_free) {
                (true, _) | (_, false) if all_held => return Err(RingFull::Held),
                (true, _) => return Err(RingFull::Unread),
                (false, true) => {
                    self.positions.push(State::Claimed(number));
                    return Ok(next);
                }
                (false, false) => {
                    self.positions.push(State::Void);
                    voided += 1;
                }
            }
        }
    }

    fn begin(&mut self, position: usize) -> u64 {
        let (State::Claimed(number) | State::Begun(number)) = self.positions[position] else {
            panic!("{position} is claimed");
        };
        self.positions[position] = State::Begun(number);
        number
    }

    fn publish(&mut self, position: usize) {
        let number = self.begin(position);
        self.positions[position] = State::Published(number);
    }
}

/// A reader of the reference.
#[derive(Clone, Default)]
struct Follower {
    next: usize,
    /// First position of the gap, and its events.
    gap: Option<(usize, u64)>,
    lapped: bool,
}

impl Follower {
    fn pass(&mut self, reference: &Reference, to: usize) {
        let gap = self.gap.get_or_insert((self.next, 0));
        let passed = &reference.positions[self.next..to];
        gap.1 += passed.iter().filter(|it| **it != State::Void).count() as u64;
        self.next = to;
    }

    fn close_gap(&mut self) -> Option<Found> {
        let (first, events) = self.gap.take()?;
        let lost = Found::Lost(first as u64, events, LossCause::Overwritten);
        (events > 0).then_some(lost)
    }

    /// The event at the cursor, even if void positions have lapped it, unless there is a gap.
    fn at_once(&self, reference: &Reference) -> Option<u64> {
        let begun = |it: &(usize, State)| matches!(it.1, State::Begun(_) | State::Published(_));
        match reference.of_slot(self.next).filter(begun).last()? {
            (at, State::Published(number)) if at == self.next && self.gap.is_none() => Some(number),
            _ => None,
        }
    }

    /// Passes void positions and those that are not in the ring any more.
    fn seek(&mut self, reference: &Reference) -> Option<State> {
        let (end, capacity) = (reference.positions.len(), reference.capacity);
        if end - self.next > capacity {
            let leave = if self.lapped { capacity / 4 } else { 0 };
            self.lapped = true;
            self.pass(reference, end - capacity + leave);
        }
        while reference.positions.get(self.next) == Some(&State::Void) {
            self.next += 1;
        }
        reference.positions.get(self.next).copied()
    }

    fn next(&mut self, reference: &Reference) -> Option<Found> {
        let mut number = self.at_once(reference);
        if number.is_none() {
            match self.seek(reference) {
                None => return self.close_gap(),
                Some(State::Published(found)) => {
                    if let Some(lost) = self.close_gap() {
                        return Some(lost);
                    }
                    number = Some(found);
                }
                Some(_) => return Some(Found::Pending(self.next as u64)),
            }
        }
        self.next += 1;
        self.lapped = false;
        Some(Found::Event(self.next as u64 - 1, number?))
    }

    fn abandon(&mut self, reference: &Reference, position: usize) -> bool {
        if position != self.next {
            return false;
        }
        let state = self.seek(reference);
        let is_owned = matches!(state, Some(State::Claimed(_) | State::Begun(_)));
        let abandons = is_owned && position == self.next;
        self.next += usize::from(abandons);
        abandons
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 400 }))]

    #[test]
    fn ring_is_the_reference(
        steps in prop::collection::vec((0_u8..12, any::<prop::sample::Index>()), 1..120),
        power in 1_u32..4,
        refuses: bool,
    ) {
        let when_full = if refuses { WhenFull::Refuse } else { WhenFull::Overwrite };
        let (ring, mut consumer) = ring(1 << power, when_full);
        let words = || (ring.words().share(), *ring.geometry());
        let mut observer = RingObserver::from_start(words().0, words().1).unwrap();
        let (positions, tail) = (Vec::new(), 0);
        let mut reference = Reference { capacity: 1 << power, when_full, positions, tail };
        let (mut follower, mut watcher) = (Follower::default(), Follower::default());
        let (mut held, mut copy) = (Vec::<Claimed>::new(), [0; 24]);
        for (number, (step, which)) in (0..).zip(steps) {
            match step {
                0..4 => {
                    let written = write(&ring, number, when_full);
                    let expected = reference.claim(number);
                    assert_eq!(written, expected.map(|it| it as u64));
                    if let Ok(position) = expected {
                        reference.publish(position);
                    }
                }
                4 => {
                    let claimed = ring.claim(when_full, || Ticks::from_raw(number * 10));
                    let position = claimed.map(|it| it.position);
                    assert_eq!(position, reference.claim(number).map(|it| it as u64));
                    held.extend(claimed);
                }
                5 if !held.is_empty() => {
                    let claimed = *which.get(&held);
                    ring.begin(claimed);
                    reference.begin(claimed.position as usize);
                }
                6 if !held.is_empty() => {
                    let claimed = held.swap_remove(which.index(held.len()));
                    let position = claimed.position as usize;
                    let number = reference.begin(position);
                    ring.begin(claimed);
                    ring.fill(claimed, &event(number, &data(number)));
                    ring.publish(claimed);
                    reference.publish(position);
                }
                7 => {
                    let position = follower.next;
                    let abandoned = follower.abandon(&reference, position);
                    assert_eq!(consumer.abandon(position as u64), abandoned);
                }
                8 => {
                    let seen = found(observer.next(&mut copy));
                    assert_eq!(seen, watcher.next(&reference));
                }
                _ => {
                    let seen = found(consumer.next(&mut copy));
                    assert_eq!(seen, follower.next(&reference));
                }
            }
            assert_eq!(consumer.position(), follower.next as u64);
            assert_eq!(ring.written(), reference.positions.len() as u64);
            reference.tail = if refuses { follower.next } else { 0 };
        }
    }

    #[test]
    fn arbitrary_memory_neither_panics_nor_loops(
        words in prop::collection::vec(any::<u64>(), 160),
        small: bool,
        heads in prop::collection::vec((any::<u64>(), any::<u64>()), 1..8),
        power in 1_u32..4,
    ) {
        let (memory, geometry) = memory(1 << power);
        // Of small numbers some fit together.
        let cut = |word: u64| if small { (word % 40) << (word % 3 * 16) } else { word };
        for (index, word) in words.into_iter().take(geometry.words()).enumerate() {
            memory.word(index).store(cut(word), Ordering::Relaxed);
        }
        let mut copy = [0; 24];
        for (head, tail) in heads {
            memory.word(HEAD_WORD).store(cut(head), Ordering::Relaxed);
            memory.word(TAIL_WORD).store(cut(tail), Ordering::Relaxed);
            let ring = EventRing::new(memory.share(), geometry).unwrap();
            for when_full in BOTH {
                let mut consumer = RingConsumer::new(memory.share(), geometry, when_full).unwrap();
                // Each call passes a position, or ends.
                let mut calls = 0;
                loop {
                    match consumer.next(&mut copy) {
                        Next::Empty => break,
                        Next::Pending { position } => {
                            consumer.abandon(position);
                        }
                        Next::Event { .. } | Next::Lost { .. } => {}
                    }
                    calls += 1;
                    assert!(calls < 200, "memory that does not change has an end");
                }
                consumer.clear();
                let _ = write(&ring, 3, when_full);
            }
            let mut observer = RingObserver::from_oldest(memory.share(), geometry).unwrap();
            let _ = observer.next(&mut copy);
        }
    }
}
