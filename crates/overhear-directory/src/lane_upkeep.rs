// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reclaims lanes whose threads have ended.
//!
//! Threads are looked up without the registry's lock: a look-up costs microseconds, and there may
//! be a thread for each of many thousand lanes. The time spent for a user is bounded: the next scan
//! of its lanes waits until the last one amounts to at most a twentieth of the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use overhear_event::StreamId;

use crate::registry::{lock, OwnedLane, Registry};
use crate::task::Threads;

/// Time between two rounds over all laned sensors.
const INTERVAL: Duration = Duration::from_millis(250);
/// Lanes collected while the registry is locked, at most.
const LANES_PER_LOCK: usize = 512;
/// Maximum length of a turn.
const MAX_TURN: Duration = Duration::from_millis(5);
/// A user's lanes may take one part in this many of the time.
const TIME_DIVISOR: u32 = 20;

/// Reclaims lanes of all sensors, round by round.
#[derive(Debug)]
pub(crate) struct LaneUpkeep {
    registry: Arc<Mutex<Registry>>,
    // The lane to continue at; `None` between two rounds.
    next_lane: Option<(StreamId, u32)>,
    next_round: Instant,
    // When the lanes of a user are scanned next, of users whose last scan took long.
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

    /// One turn, of bounded length.
    pub(crate) fn turn(&mut self) {
        let begun = Instant::now();
        if begun < self.next_round {
            return;
        }
        self.pauses.retain(|_, until| *until > begun);
        while begun.elapsed() < MAX_TURN {
            let from = self.next_lane.unwrap_or((StreamId::from_raw(0), 0));
            let pauses = &self.pauses;
            let rests = |uid| pauses.contains_key(&uid);
            let (owned, next) = lock(&self.registry).owned_lanes(from, LANES_PER_LOCK, rests);
            self.next_lane = next;
            let left = self.ended_lanes(owned);
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
    fn ended_lanes(&mut self, owned: Vec<OwnedLane>) -> Vec<OwnedLane> {
        let mut left = Vec::new();
        for lanes in owned.chunk_by(|one, other| one.pid == other.pid) {
            let begun = Instant::now();
            let [OwnedLane { pid, uid, .. }, ..] = lanes[0..1] else {
                continue;
            };
            // The user's budget may be used up by an earlier lane of this turn.
            if self.pauses.contains_key(&uid) {
                continue;
            }
            let mut threads = Threads::of(pid);
            let ended = lanes.iter().filter(|lane| threads.has_ended(lane.tid()));
            left.extend(ended.copied());
            let spent = begun.elapsed();
            if spent > INTERVAL / TIME_DIVISOR {
                self.pauses
                    .insert(uid, Instant::now() + spent * TIME_DIVISOR);
            }
        }
        left
    }
}
