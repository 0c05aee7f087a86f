// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lanes without threads, then with many.

extern crate std;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::num::NonZeroU64;

use overhear_event::Ticks;
use proptest::prelude::{any, prop, prop_assert_eq, proptest, ProptestConfig};

use super::{Claimant, Frame, Lane, LaneClaims, Nested};
use crate::control::{ControlLayout, ControlLine};
use crate::layout::{LOST_FULL_WORD, OWNER_WORD};
use crate::reader::Reader;
use crate::shape::LanePool;
use crate::sync::Ordering;
use crate::words::{OwnedWords, Words};

type Claims = LaneClaims<OwnedWords, OwnedWords>;

struct Pool {
    claims: Claims,
    lanes: Vec<Lane<OwnedWords>>,
    control: ControlLine<OwnedWords>,
}

/// A pool of lanes with 16 slots for payloads of 8 bytes, and its line in a control page.
fn pool(lanes: u32) -> Pool {
    let shape = LanePool::new(8, 16, lanes).unwrap();
    let words = OwnedWords::zeroed(shape.bytes() / 8);
    let lines = ControlLayout::new(ControlLayout::lines_of_sensor(lanes)).unwrap();
    let control = OwnedWords::zeroed(lines.bytes() / 8);
    let line = || ControlLine::new(control.share(), 0, lanes).unwrap();
    let part = |lane| words.part(shape.lane_offset(lane) / 8, shape.lane().words());
    Pool {
        lanes: (0..lanes)
            .map(|lane| Lane::new(part(lane), *shape.lane()).unwrap())
            .collect(),
        claims: LaneClaims::new(words.share(), shape, Some(line())).unwrap(),
        control: line(),
    }
}

fn thread(tid: u32, number: u64) -> Claimant {
    let number = NonZeroU64::new(number).unwrap();
    Claimant { tid, number }
}

impl Pool {
    fn claim(&self, thread: Claimant) -> Option<u32> {
        let prepare = |lane: u32| self.lanes[lane as usize].take(thread.tid);
        self.claims.claim(thread, prepare)
    }

    fn owner(&self, lane: u32) -> u64 {
        self.claims.owner(lane).load(Ordering::Relaxed)
    }

    fn reader(&self, lane: u32) -> Reader<OwnedWords> {
        let lane = &self.lanes[lane as usize];
        Reader::from_start(lane.words.share(), lane.geometry).unwrap()
    }
}

fn never(_: Frame, _: Frame) -> bool {
    false
}

fn by_depth(open: Frame, now: Frame) -> bool {
    now.is_not_deeper(open)
}

fn put(lane: &Lane<OwnedWords>, value: u64) -> Result<(), Nested> {
    let frame = Frame::from_raw(0x1000, 0);
    lane.write(frame, never, &value.to_ne_bytes(), || {
        Ticks::from_raw(value)
    })
}

/// Writers and values, in order, and the number of void elements between them.
fn read(reader: &mut Reader<OwnedWords>) -> (Vec<(u32, u64)>, u64) {
    let mut seen = Vec::new();
    let report = reader.poll(usize::MAX, |element| {
        let tid = u32::from_ne_bytes(element.payload[..4].try_into().unwrap());
        let value = u64::from_ne_bytes(element.payload[8..].try_into().unwrap());
        assert_eq!(element.payload[4..8], [0; 4], "no flags");
        assert_eq!(element.stamp.as_raw(), value);
        seen.push((tid, value));
    });
    (seen, report.unwrap().void)
}

#[test]
fn each_thread_has_a_lane_and_keeps_it() {
    let pool = pool(3);
    let lanes = [1, 2, 3].map(|id| pool.claim(thread(100 + id, u64::from(id))).unwrap());
    assert_eq!(BTreeMap::from(lanes.map(|lane| (lane, ()))).len(), 3);
    assert_eq!(pool.claim(thread(101, 1)), Some(lanes[0]));
    assert_eq!(pool.owner(lanes[0]), 1 << 32 | 101);
    assert!(!pool.claims.is_exhausted());
    assert_eq!(pool.claim(thread(104, 4)), None);
    assert!(pool.claims.is_exhausted());
    pool.control.reclaim(lanes[0], 0);
    assert!(!pool.claims.is_exhausted());
    pool.claims.refuse();
    let lost = pool.claims.words.word(LOST_FULL_WORD);
    assert_eq!(lost.load(Ordering::Relaxed), 1);
}

#[test]
fn lane_is_free_when_its_own_claim_was_reclaimed() {
    let pool = pool(1);
    assert_eq!(pool.claim(thread(7, 1)), Some(0));
    pool.control.reclaim(0, pool.owner(0));
    assert_eq!(pool.claim(thread(8, 2)), Some(0));
    // The directory's report about the first claim does not free the second.
    pool.control.reclaim(0, 1 << 32 | 7);
    assert_eq!(pool.claim(thread(9, 3)), None);
    assert_eq!(pool.owner(0), 2 << 32 | 8);
}

#[test]
fn reused_tid_adopts_lane_and_late_reclaim_frees_nothing() {
    let pool = pool(1);
    assert_eq!(pool.claim(thread(7, 1)), Some(0));
    let old_owner = pool.owner(0);
    assert_eq!(pool.claim(thread(7, 2)), Some(0));
    assert_eq!(pool.owner(0), 2 << 32 | 7);
    pool.control.reclaim(0, old_owner);
    assert_eq!(pool.claim(thread(8, 3)), None);
    // The adopted lane is found again without another claim.
    assert_eq!(pool.claim(thread(7, 2)), Some(0));
    assert_eq!(pool.owner(0), 2 << 32 | 7);
}

#[test]
fn lane_goes_on_behind_its_last_owner() {
    let pool = pool(1);
    let mut reader = pool.reader(0);
    let lane = &pool.lanes[0];
    pool.claim(thread(7, 1)).unwrap();
    put(lane, 1).unwrap();
    // The owner dies in the middle of a write.
    lane.begin(Frame::from_raw(9, 0), never, || Ticks::from_raw(0))
        .unwrap();
    lane.fill(&99_u64.to_ne_bytes());
    pool.control.reclaim(0, pool.owner(0));
    pool.claim(thread(8, 2)).unwrap();
    put(lane, 2).unwrap();
    assert_eq!(read(&mut reader), ([(7, 1), (8, 2)].to_vec(), 0));
}

#[test]
fn lane_claimed_by_a_handler_belongs_to_its_thread() {
    let pool = pool(2);
    let claimed = Cell::new(None);
    let prepare = |lane: u32| {
        if claimed.get().is_none() {
            // A signal handler of the same thread comes right after the exchange, and writes.
            let within = pool.claim(thread(7, 1)).unwrap();
            put(&pool.lanes[within as usize], 5).unwrap();
            claimed.set(Some(within));
        }
        pool.lanes[lane as usize].take(7);
    };
    let lane = pool.claims.claim(thread(7, 1), prepare).unwrap();
    assert_eq!(claimed.get(), Some(lane));
    put(&pool.lanes[lane as usize], 6).unwrap();
    assert_eq!(read(&mut pool.reader(lane)).0, [(7, 5), (7, 6)]);
}

#[test]
fn nested_write_is_refused_and_counted() {
    let pool = pool(1);
    let lane = &pool.lanes[0];
    pool.claim(thread(7, 1)).unwrap();
    let outer = Frame::from_raw(0x1000, 0);
    let position = lane.begin(outer, by_depth, || Ticks::from_raw(0)).unwrap();
    let inner = Frame::from_raw(0xf00, 0);
    let nested = lane.write(inner, by_depth, &[0; 8], || Ticks::from_raw(0));
    assert_eq!((nested, lane.lost_nested()), (Err(Nested), 1));
    assert!(lane.is_open(outer, position));
    lane.fill(&3_u64.to_ne_bytes());
    lane.commit(|| Ticks::from_raw(3));
    assert_eq!(read(&mut pool.reader(0)), ([(7, 3)].to_vec(), 0));
}

#[test]
fn abandoned_write_becomes_void_and_is_no_loss() {
    let pool = pool(1);
    let lane = &pool.lanes[0];
    pool.claim(thread(7, 1)).unwrap();
    let mut reader = pool.reader(0);
    let begin = |frame| lane.begin(frame, by_depth, || Ticks::from_raw(1)).is_ok();
    let deep = Frame::from_raw(0x1000, 0);
    assert!(begin(deep));
    // The same frame begins a new write, unless a guard there is alive.
    assert!(begin(deep));
    assert!(begin(deep.guarded()));
    assert!(!begin(deep));
    assert!(begin(Frame::from_raw(0x1010, 0)));
    lane.fill(&1_u64.to_ne_bytes());
    lane.commit(|| Ticks::from_raw(1));
    assert_eq!(read(&mut reader), ([(7, 1)].to_vec(), 3));
    assert_eq!(lane.lost_nested(), 1);
    // Given up by its own thread: not even a void element.
    assert!(begin(deep));
    lane.abandon();
    put(lane, 2).unwrap();
    assert_eq!(read(&mut reader), ([(7, 2)].to_vec(), 0));
}

#[test]
fn frame_is_identified_by_its_address_and_its_mark() {
    let frame = Frame::from_raw(0x1008 | 2, 77);
    assert_eq!((frame.address(), frame.witness()), (0x1008, Some(77)));
    assert_eq!(Frame::from_raw(0x1008, 77).witness(), None);
    assert_eq!(Frame::from_raw(0x1008 | 2, 0).witness(), None);
    let pool = pool(1);
    let lane = &pool.lanes[0];
    pool.claim(thread(7, 1)).unwrap();
    lane.begin(frame, never, || Ticks::from_raw(0)).unwrap();
    let seen = |open: Frame, _: Frame| open == Frame::from_raw(0x1008 | 2, 77);
    let inner = Frame::from_raw(0x1000 | 2, 78);
    lane.begin(inner, seen, || Ticks::from_raw(0)).unwrap();
    lane.commit(|| Ticks::from_raw(0));
    let mark = lane.mark.load(Ordering::Relaxed);
    assert_eq!((mark, lane.open.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn wrong_abandonment_tears_no_element() {
    let pool = pool(1);
    let lane = &pool.lanes[0];
    pool.claim(thread(7, 1)).unwrap();
    let outer = Frame::from_raw(0x1000, 0);
    let position = lane.begin(outer, by_depth, || Ticks::from_raw(0)).unwrap();
    let slot = lane.geometry.slot(position);
    lane.write(
        Frame::from_raw(0x2000, 0),
        by_depth,
        &5_u64.to_ne_bytes(),
        || Ticks::from_raw(5),
    )
    .unwrap();
    // The open write was alive, and continues.
    lane.words.word(slot + 2).store(99, Ordering::Relaxed);
    assert!(!lane.is_open(outer, position));
    assert_eq!(read(&mut pool.reader(0)), ([(7, 5)].to_vec(), 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The reference: a map from living threads to lanes. Threads claim, end with or without
    /// notice, and tids are reused.
    #[test]
    fn claims_are_those_of_the_reference(
        steps in prop::collection::vec((0_u32..6, any::<bool>(), any::<bool>()), 1..60),
    ) {
        const LANES: u32 = 3;
        let pool = pool(LANES);
        // For each tid: the number of the living thread. For each lane: its owner, and whether this
        // thread lives or is known to be dead.
        let mut living = BTreeMap::new();
        let mut owners: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
        let mut free: Vec<u32> = (0..LANES).collect();
        let mut numbers = 0;
        for (tid, ends, noticed) in steps {
            let tid = 50 + tid;
            if ends {
                living.remove(&tid);
                if noticed {
                    let held = owners.iter().find(|(_, (owner, _))| *owner == tid);
                    if let Some((&lane, _)) = held {
                        pool.control.reclaim(lane, pool.owner(lane));
                        owners.remove(&lane);
                        free.push(lane);
                    }
                }
                continue;
            }
            let number = *living.entry(tid).or_insert_with(|| { numbers += 1; numbers });
            let claimed = pool.claim(thread(tid, number));
            let held = owners.iter().find(|(_, (owner, _))| *owner == tid);
            let held = held.map(|(&lane, &(_, number))| (lane, number));
            match (held, claimed) {
                // Rules 2 and 3.
                (Some((lane, _)), claimed) => {
                    prop_assert_eq!(claimed, Some(lane));
                    owners.insert(lane, (tid, number));
                }
                (None, Some(lane)) => {
                    prop_assert_eq!(free.iter().filter(|at| **at == lane).count(), 1);
                    free.retain(|at| *at != lane);
                    owners.insert(lane, (tid, number));
                }
                (None, None) => prop_assert_eq!(free.len(), 0),
            }
        }
    }
}

#[test]
fn many_threads_share_few_lanes_and_lose_nothing() {
    const THREADS: u32 = 24;
    const ELEMENTS: u64 = 5;
    let pool = Arc::new(pool(4));
    let mut readers: Vec<_> = (0..4).map(|lane| pool.reader(lane)).collect();
    let mut refused = 0;
    let mut seen = Vec::new();
    for round in 0..THREADS / 6 {
        let writing: Vec<_> = (0..6)
            .map(|index| {
                let (pool, tid) = (Arc::clone(&pool), round * 6 + index + 1);
                std::thread::spawn(move || {
                    let lane = pool.claim(thread(tid, tid.into()))?;
                    (0..ELEMENTS).for_each(|value| {
                        put(&pool.lanes[lane as usize], value).expect("nothing nests");
                    });
                    Some(tid)
                })
            })
            .collect();
        let ended = writing.into_iter().map(|thread| thread.join().unwrap());
        refused += ended.filter(Option::is_none).count();
        for lane in 0..4 {
            pool.control.reclaim(lane, pool.owner(lane));
        }
        for reader in &mut readers {
            seen.extend(read(reader).0);
        }
    }
    // Each round has two threads more than the pool has lanes.
    assert_eq!(refused, THREADS as usize / 6 * 2);
    assert_eq!(
        seen.len() as u64,
        (u64::from(THREADS) - refused as u64) * ELEMENTS
    );
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(
        seen.len() as u64,
        (u64::from(THREADS) - refused as u64) * ELEMENTS
    );
}

#[test]
fn owner_word_has_the_documented_offset() {
    assert_eq!(OWNER_WORD * 8, 160);
    let pool = pool(2);
    pool.claim(thread(2, 1)).unwrap();
    let at = pool.claims.pool().lane_offset(0) / 8 + 20;
    let word = pool.claims.words().word(at).load(Ordering::Relaxed);
    assert_eq!(word, 1 << 32 | 2);
}
