// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last gaps in the streams of a metric, for measurements whose begin is told late: they miss what went missing
//! before anybody knew of them.

use std::collections::VecDeque;

use overhear_event::{Gap, GapCause, StreamId, Timestamp};

/// How many gaps are remembered.
const RECENT: usize = 256;

/// The last gaps, and the one task that each concerns, if it concerns one alone.
#[derive(Debug)]
pub(super) struct PastGaps {
    /// The newest one is at the end.
    recent: VecDeque<(Gap, Option<u32>)>,
    /// The latest end of a gap.
    until: Timestamp,
    /// The latest end of one that is not remembered.
    forgotten: Timestamp,
}

impl Default for PastGaps {
    fn default() -> Self {
        Self {
            recent: VecDeque::new(),
            until: Timestamp::ZERO,
            forgotten: Timestamp::ZERO,
        }
    }
}

impl PastGaps {
    /// Takes all the memory that it can ever need, and writes to all of it.
    pub(super) fn reserve(&mut self) {
        let nothing = Gap {
            stream: StreamId::from_raw(0),
            first: 0,
            missed: 0,
            from: Timestamp::ZERO,
            to: Timestamp::ZERO,
            cause: GapCause::Overwritten,
        };
        let known = self.recent.len();
        self.recent.reserve_exact(RECENT - known);
        self.recent.resize(RECENT, (nothing, None));
        self.recent.truncate(known);
    }

    pub(super) fn remember(&mut self, gap: &Gap, only: Option<u32>) {
        if self.recent.len() == RECENT {
            let oldest = self.recent.pop_front();
            let end = oldest.map_or(Timestamp::ZERO, |(gap, _)| gap.to);
            self.forgotten = self.forgotten.max(end);
        }
        self.recent.push_back((*gap, only));
        self.until = self.until.max(gap.to);
    }

    /// Nothing is missing from this time on.
    #[inline(always)]
    pub(super) const fn until(&self) -> Timestamp {
        self.until
    }

    /// Whether all gaps are remembered that end after this time.
    pub(super) fn reach(&self, begin: Timestamp) -> bool {
        self.forgotten <= begin
    }

    pub(super) fn count(&self) -> usize {
        self.recent.len()
    }

    pub(super) fn get(&self, number: usize) -> (Gap, Option<u32>) {
        self.recent[number]
    }
}
