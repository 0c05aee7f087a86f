// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives lanes back whose threads have ended.
//!
//! The kernel is asked without the lock: a look-up costs microseconds, and there may be a thread for each
//! of many thousand lanes. What looking after a user's lanes costs is bounded: the next look waits until
//! it has taken no more than a twentieth of the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overhear_event::StreamId;

use crate::registry::{lock, OwnedLane, Registry};
use crate::task::Threads;

/// How often the threads of laned sensors are looked after.
const INTERVAL: Duration = Duration::from_millis(250);
/// Lanes that are looked at while the registry is locked.
const LANES_AT_ONCE: usize = 512;
/// How long a turn lasts.
const TURN: Duration = Duration::from_millis(5);
/// The part of the time that may be spent for a user.
const SHARE: u32 = 20;

/// Looks after the lanes of all sensors, round by round.
#[derive(Debug)]
pub(crate) struct LaneUpkeep {
    registry: Arc<Mutex<Registry>>,
    // The lane at which the next look begins; none between two rounds.
    next_lane: Option<(StreamId, u32)>,
    next_round: Instant,
    // When a user whose lanes took long is looked after again.
    pauses: BTreeMap<u32, Instant>,
}

impl LaneUpkeep {
    pub(crate) fn new(registry: Arc<Mutex<Registry>>) -> Self {
        Self {
            registry,
            next_lane: None,
            next_round: Instant::now(),
            pauses: BTreeMap::new(),
        }
    }

    /// A bounded turn.
    pub(crate) fn turn(&mut self) {
        let begun = Instant::now();
        if begun < self.next_round {
            return;
        }
        self.pauses.retain(|_, until| *until > begun);
        while begun.elapsed() < TURN {
            let from = self.next_lane.unwrap_or((StreamId::from_raw(0), 0));
            let pauses = &self.pauses;
            let rests = |uid| pauses.contains_key(&uid);
            let (owned, next) = lock(&self.registry).owned_lanes(from, LANES_AT_ONCE, rests);
            self.next_lane = next;
            let left = self.left(owned);
            if !left.is_empty() {
                lock(&self.registry).reclaim(&left);
            }
            if next.is_none() {
                self.next_round = begun + INTERVAL;
                return;
            }
        }
    }

    /// The lanes whose threads have ended.
    fn left(&mut self, owned: Vec<OwnedLane>) -> Vec<OwnedLane> {
        let mut left = Vec::new();
        for lanes in owned.chunk_by(|one, other| one.pid == other.pid) {
            let begun = Instant::now();
            let [OwnedLane { pid, uid, .. }, ..] = lanes[0..1] else {
                continue;
            };
            // Whose turn it was before may have taken too long for this one.
            if self.pauses.contains_key(&uid) {
                continue;
            }
            let mut threads = Threads::of(pid);
            let ended = lanes.iter().filter(|lane| threads.has_ended(lane.tid()));
            left.extend(ended.copied());
            let spent = begun.elapsed();
            if spent > INTERVAL / SHARE {
                self.pauses.insert(uid, Instant::now() + spent * SHARE);
            }
        }
        left
    }
}
