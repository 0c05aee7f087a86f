// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring with one thread that plays all parts, compared with an obvious reference, and with
//! rubbish in memory.

extern crate std;

use alloc::vec::Vec;

use overhear_event::Ticks;

use super::geometry::{Turn, SLOTS_WORD, TURN};
use super::{
    EventRecord, EventRing, LossCause, Next, RingConsumer, RingError, RingFull, RingGeometry,
    RingObserver, WhenFull,
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
    let error = RingGeometry::new(2, (1 << 20) + 1).unwrap_err();
    assert_eq!(error, RingError::BadData((1 << 20) + 1));
    for (data, stride) in [
        (0, 48),
        (1, 56),
        (8, 56),
        (80, 128),
        (1 << 20, 48 + (1 << 20)),
    ] {
        let geometry = RingGeometry::new(8, data).unwrap();
        assert_eq!(geometry.stride_bytes(), stride);
        assert_eq!(geometry.words() * 8, 256 + 8 * stride);
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

#[test]
fn pending_event_is_waited_for_or_abandoned() {
    for when_full in BOTH {
        let (ring, mut consumer) = ring(4, when_full);
        let claim = || ring.claim(when_full, || Ticks::from_raw(0)).unwrap();
        // 0 is published late, but in time; 1 too late; 2 never gets further than its position.
        let late = [claim(), claim()].map(|claimed| ring.own(claimed).unwrap());
        let dead = claim();
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
        ring.publish(late[1]);
        assert_eq!(read(&mut consumer), []);
        // No slot is lost: all of the capacity is held again.
        for number in 4..8 {
            assert_eq!(write(&ring, number, when_full), Ok(number));
        }
        assert_eq!(read(&mut consumer), events(4..8));
        // Whoever wakes up a lap later finds its slot taken.
        assert!(ring.own(dead).is_none());
    }
}

#[test]
fn dead_writer_costs_its_slot_alone() {
    for when_full in BOTH {
        let (ring, mut consumer) = ring(4, when_full);
        assert_eq!(write(&ring, 0, when_full), Ok(0));
        let dead = ring.claim(when_full, || Ticks::from_raw(0)).unwrap();
        let dead = ring.own(dead).unwrap();
        assert_eq!(read(&mut consumer), [Found::Event(0, 0), Found::Pending(1)]);
        assert!(consumer.abandon(1));
        for lap in 0..10 {
            let first = 2 + lap * 3;
            for number in first..first + 3 {
                assert_eq!(write(&ring, number, when_full), Ok(number), "{when_full:?}");
            }
            if when_full == WhenFull::Refuse {
                assert_eq!(write(&ring, 99, when_full), Err(RingFull::Unread));
            }
            assert_eq!(
                read(&mut consumer),
                events(first..first + 3),
                "{when_full:?}"
            );
        }
        // It was only stopped: nothing appears, and the slot is used again.
        ring.publish(dead);
        for number in 32..36 {
            assert_eq!(write(&ring, number, when_full), Ok(number));
        }
        assert_eq!(read(&mut consumer), events(32..36));
    }
}

#[test]
fn lapped_readers_count_exactly_over_a_dead_writer() {
    let (ring, mut consumer) = ring(4, WhenFull::Overwrite);
    let write = |number| write(&ring, number, WhenFull::Overwrite).unwrap();
    let dead = ring
        .claim(WhenFull::Overwrite, || Ticks::from_raw(0))
        .unwrap();
    let _dead = ring.own(dead).unwrap();
    for number in 1..1_000 {
        assert_eq!(write(number), number);
    }
    let lost = Found::Lost(0, 997, LossCause::Overwritten);
    assert_eq!(
        read(&mut consumer),
        [[lost].to_vec(), events(997..1_000)].concat()
    );
}

#[test]
fn ring_whose_slots_are_all_held_refuses() {
    for when_full in BOTH {
        let (ring, mut consumer) = ring(2, when_full);
        let hold = || {
            let claimed = ring.claim(when_full, || Ticks::from_raw(0)).unwrap();
            ring.own(claimed).unwrap()
        };
        let held = [hold(), hold()];
        let refused = match when_full {
            WhenFull::Overwrite => RingFull::Held,
            WhenFull::Refuse => RingFull::Unread,
        };
        assert_eq!(write(&ring, 9, when_full), Err(refused));
        // What is lost is lost; the ring goes on with what is left.
        assert_eq!(consumer.clear(), 2);
        assert_eq!(write(&ring, 9, when_full), Err(RingFull::Held));
        ring.publish(held[1]);
        assert_eq!(write(&ring, 2, when_full), Ok(2));
        assert_eq!(read(&mut consumer), events(2..3));
        ring.publish(held[0]);
        assert_eq!([3, 4].map(|it| write(&ring, it, when_full)), [Ok(3), Ok(4)]);
        assert_eq!(read(&mut consumer), events(3..5));
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
        // As if 2^62 - 6 events had been written and read.
        let first = geometry.cut(u64::MAX) - 5;
        let head = first << 2 | 2;
        words.word(0).store(head, Ordering::Relaxed);
        words.word(16).store(first, Ordering::Relaxed);
        for back in 1..=4 {
            let slot = SLOTS_WORD + ((2 + 4 - back) % 4) as usize * geometry.stride_words();
            let turn = Turn::published(&geometry, first - back);
            words.word(slot + TURN).store(turn.0, Ordering::Relaxed);
        }
        let ring = EventRing::new(words.share(), geometry).unwrap();
        let mut consumer = RingConsumer::new(words, geometry, when_full).unwrap();
        if when_full == WhenFull::Overwrite {
            consumer.clear();
        }
        for lap in 0..4 {
            for number in 0..4 {
                let position = geometry.cut(first + lap * 4 + number);
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
