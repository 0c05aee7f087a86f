// SPDX-License-Identifier: MIT OR Apache-2.0
//! When a thread was on a CPU, as far as context switches show it.

use std::collections::BTreeMap;

use overhear_event::kernel::Switch;
use overhear_event::{Nanos, Timestamp};

/// A thread that is preempted more often than this without ever waiting computes, and is not what
/// is measured here. The bound keeps memory small.
const MOST_STAYS: usize = 1_000;

/// The stays of one thread on a CPU since it *awoke*: since the first switch to it after a
/// voluntary switch away from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stays(Vec<(Timestamp, Timestamp)>);

impl Stays {
    /// When the thread awoke.
    pub(crate) fn awake(&self) -> Option<Timestamp> {
        self.0.first().map(|stay| stay.0)
    }

    /// For how long between two points in time the thread has been active, in nanoseconds.
    pub(crate) fn active_ns(&self, from: Timestamp, to: Timestamp) -> u64 {
        let inside = |&(begin, end): &(Timestamp, Timestamp)| end.min(to).since(begin.max(from));
        self.0.iter().map(|stay| inside(stay).as_ns()).sum()
    }
}

/// One thread.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// Time since which it is on a CPU; `None` while it is not, or if that is unknown.
    since: Option<Timestamp>,
    /// Whether its last switch away was voluntary.
    blocked: bool,
    /// Time since which it is awake; `None` if the wake-up was not recorded.
    stays: Option<Stays>,
}

impl Thread {
    fn arrive(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.blocked) {
            self.stays = Some(Stays::default());
        }
        self.since = Some(now);
    }

    /// Returns the stays since the thread awoke, if it now goes to wait and they are known.
    fn depart(&mut self, now: Timestamp, switch: &Switch) -> Option<Stays> {
        // Some arrivals are not recorded; then the departure contains their time.
        if self.since.is_none() && switch.prev_run_ns != Switch::UNKNOWN {
            self.arrive(now.minus(Nanos::from_ns(switch.prev_run_ns.into())));
        }
        match (self.since.take(), &mut self.stays) {
            (Some(since), Some(stays)) if stays.0.len() < MOST_STAYS => stays.0.push((since, now)),
            // It left without having come: the sum would be too small.
            _ => self.stays = None,
        }
        self.blocked = switch.is_voluntary();
        self.stays.take_if(|_| switch.is_voluntary())
    }
}

/// A thread went to wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocked {
    pub(crate) tid: u32,
    /// Its stays since it last awoke, up to now; `None` if they were not recorded.
    pub(crate) stays: Option<Stays>,
}

/// What is known of every monitored thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads(BTreeMap<u32, Thread>);

impl Threads {
    /// Follows one context switch. A BPF element names both threads, a perf record only the one
    /// that arrives or departs and [`Switch::UNKNOWN`] for the other; the flags say which of them
    /// is monitored, and an unknown one never is.
    pub(crate) fn switch(&mut self, now: Timestamp, switch: &Switch) -> Option<Blocked> {
        let mut blocked = None;
        if switch.flags & Switch::PREV_TRACKED != 0 {
            let tid = switch.prev_tid;
            let stays = self.0.entry(tid).or_default().depart(now, switch);
            blocked = switch.is_voluntary().then_some(Blocked { tid, stays });
        }
        if switch.flags & Switch::NEXT_TRACKED != 0 {
            self.0.entry(switch.next_tid).or_default().arrive(now);
        }
        blocked
    }

    /// Whether any switch of this thread was recorded.
    pub(crate) fn has_seen(&self, tid: u32) -> bool {
        self.0.contains_key(&tid)
    }

    /// Switches were missed: nothing is known of any thread until it blocks and awakes again.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::Switch;
    use overhear_event::Timestamp;

    use super::{Stays, Threads};

    const LEAVES: u16 = Switch::PREV_TRACKED | Switch::VOLUNTARY;

    fn at(ns: u64) -> Timestamp {
        Timestamp::from_monotonic_ns(ns)
    }

    fn switch(prev: u32, next: u32, flags: u16) -> Switch {
        Switch {
            prev_tid: prev,
            next_tid: next,
            prev_pid: prev,
            next_pid: next,
            prev_state: 0,
            flags,
            prev_run_ns: Switch::UNKNOWN,
        }
    }

    fn stays(times: &[(u64, u64)]) -> Option<Stays> {
        let times = times.iter().map(|&(begin, end)| (at(begin), at(end)));
        Some(Stays(times.collect()))
    }

    #[test]
    fn preemptions_divide_the_stays() {
        let mut threads = Threads::default();
        threads.switch(at(10), &switch(7, 8, LEAVES | Switch::NEXT_TRACKED));
        threads.switch(at(100), &switch(8, 7, LEAVES | Switch::NEXT_TRACKED));
        // Preempted from 140 to 200, by a thread that is not monitored.
        let preempted = threads.switch(at(140), &switch(7, 99, Switch::PREV_TRACKED));
        assert_eq!(preempted, None);
        threads.switch(at(200), &switch(99, 7, Switch::NEXT_TRACKED));
        let blocked = threads.switch(at(210), &switch(7, 0, LEAVES)).unwrap();
        assert_eq!(blocked.tid, 7);
        assert_eq!(blocked.stays, stays(&[(100, 140), (200, 210)]));
        let stays = blocked.stays.unwrap();
        assert_eq!(stays.awake(), Some(at(100)));
        assert_eq!(stays.active_ns(at(100), at(130)), 30);
        assert_eq!(stays.active_ns(at(130), at(205)), 15);
        assert_eq!(stays.active_ns(at(150), at(190)), 0);
        assert_eq!(stays.active_ns(at(0), at(900)), 50);
    }

    #[test]
    fn unknown_states_are_not_guessed() {
        let mut threads = Threads::default();
        // Recorded from the middle of a stay on.
        threads.switch(at(10), &switch(0, 7, Switch::NEXT_TRACKED));
        let blocked = threads.switch(at(30), &switch(7, 0, LEAVES)).unwrap();
        assert_eq!(blocked.stays, None);
        // An arrival is missing.
        let blocked = threads.switch(at(40), &switch(7, 0, LEAVES)).unwrap();
        assert_eq!(blocked.stays, None);
        threads.switch(at(50), &switch(0, 7, Switch::NEXT_TRACKED));
        threads.forget();
        let blocked = threads.switch(at(60), &switch(7, 0, LEAVES)).unwrap();
        assert_eq!(blocked.stays, None);
    }

    #[test]
    fn departure_proves_a_missed_arrival() {
        let mut threads = Threads::default();
        threads.switch(at(10), &switch(7, 0, LEAVES));
        let mut preempted = switch(7, 0, Switch::PREV_TRACKED);
        preempted.prev_run_ns = 20;
        threads.switch(at(50), &preempted);
        let mut leaves = switch(7, 0, LEAVES);
        leaves.prev_run_ns = 5;
        let blocked = threads.switch(at(90), &leaves).unwrap();
        assert_eq!(blocked.stays, stays(&[(30, 50), (85, 90)]));
    }
}
