// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Resumptions`]: marks the first switches after a monitor was resumed.
//!
//! Events in a pause are neither recorded nor missed. The state of threads after the pause does not
//! follow from earlier elements, so the first switch of each stream after it has the flag
//! [`Switch::RESUMED`]. Perf events are enabled and disabled CPU by CPU: switches that are recorded
//! meanwhile have the flag, too.

use std::borrow::Cow;
use std::collections::VecDeque;

use overhear_event::kernel::Switch;

/// Time spans in which the monitor was resumed or suspended, for one stream of switches, until a
/// later switch is marked.
#[derive(Debug, Default)]
pub(crate) struct Resumptions(VecDeque<(u64, u64)>);

impl Resumptions {
    /// Adds a time span in which the monitor was resumed or suspended.
    pub(crate) fn add(&mut self, from_ns: u64, until_ns: u64) {
        self.0.push_back((from_ns, until_ns));
    }

    /// The payload of the next switch, with the flag if it is the first one after the monitor was
    /// resumed.
    #[inline]
    pub(crate) fn mark<'a>(&mut self, stamp_ns: u64, payload: &'a [u8]) -> Cow<'a, [u8]> {
        match self.0.front() {
            Some(&(from_ns, _)) if from_ns <= stamp_ns => self.mark_first(stamp_ns, payload),
            _ => Cow::Borrowed(payload),
        }
    }

    #[cold]
    fn mark_first<'a>(&mut self, stamp_ns: u64, payload: &'a [u8]) -> Cow<'a, [u8]> {
        while self.0.front().is_some_and(|&(_, until)| until < stamp_ns) {
            self.0.pop_front();
        }
        match Switch::parse(payload) {
            Some(switch) => {
                let flags = switch.flags | Switch::RESUMED;
                Cow::Owned(Switch { flags, ..switch }.to_payload().to_vec())
            }
            None => Cow::Borrowed(payload),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Resumptions, Switch};

    #[test]
    fn first_switch_after_each_resumption_is_marked() {
        let plain = Switch {
            prev_tid: 1,
            next_tid: 2,
            prev_pid: 1,
            next_pid: 1,
            prev_state: 1,
            flags: Switch::PREV_TRACKED,
            prev_run_ns: 9,
        };
        let payload = plain.to_payload();
        let mut resumptions = Resumptions::default();
        for ns in [100, 200, 300] {
            resumptions.add(ns, ns);
        }
        // The second marked switch finds two time spans.
        for (stamp, marked) in [
            (50, false),
            (150, true),
            (160, false),
            (400, true),
            (500, false),
        ] {
            let found = Switch::parse(&resumptions.mark(stamp, &payload)).unwrap();
            let flags = if marked { Switch::RESUMED } else { 0 };
            let expected = Switch {
                flags: plain.flags | flags,
                ..plain
            };
            assert_eq!(found, expected, "at {stamp}");
        }
        // Switches in the time span, and the first one after it.
        resumptions.add(1_000, 1_200);
        let marks = [999, 1_000, 1_200, 1_201, 1_202].map(|stamp| {
            let found = Switch::parse(&resumptions.mark(stamp, &payload)).unwrap();
            found.flags & Switch::RESUMED != 0
        });
        assert_eq!(marks, [false, true, true, true, false]);
    }
}
