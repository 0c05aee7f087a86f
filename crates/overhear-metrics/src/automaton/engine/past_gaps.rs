// SPDX-License-Identifier: MIT OR Apache-2.0
//! The newest gaps in the streams of a metric. A measurement whose begin is backdated contains the
//! gaps since that begin, although they were known before it.

use std::collections::VecDeque;

use overhear_event::{Gap, GapCause, StreamId, Timestamp};

/// Number of gaps that are remembered.
const MAX_PAST_GAPS: usize = 256;

/// The newest gaps, each with the only task that it concerns, if it is only one.
#[derive(Debug)]
pub(super) struct PastGaps {
    /// From the oldest to the newest.
    recent: VecDeque<(Gap, Option<u32>)>,
    /// Latest end of a gap.
    until: Timestamp,
    /// Latest end of a gap that is no longer remembered.
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
    /// Reserves the memory for all gaps and touches its pages, so that no page fault happens later.
    pub(super) fn reserve(&mut self) {
        let filler = Gap {
            stream: StreamId::from_raw(0),
            first: 0,
            missed: 0,
            from: Timestamp::ZERO,
            to: Timestamp::ZERO,
            cause: GapCause::Overwritten,
        };
        let known = self.recent.len();
        self.recent.reserve_exact(MAX_PAST_GAPS - known);
        self.recent.resize(MAX_PAST_GAPS, (filler, None));
        self.recent.truncate(known);
    }

    pub(super) fn remember(&mut self, gap: &Gap, only: Option<u32>) {
        if self.recent.len() == MAX_PAST_GAPS {
            let oldest = self.recent.pop_front();
            let end = oldest.map_or(Timestamp::ZERO, |(gap, _)| gap.to);
            self.forgotten = self.forgotten.max(end);
        }
        self.recent.push_back((*gap, only));
        self.until = self.until.max(gap.to);
    }

    /// Latest end of a gap: nothing is missing after it.
    #[inline(always)]
    pub(super) const fn until(&self) -> Timestamp {
        self.until
    }

    /// Whether all gaps that end after this time are remembered.
    pub(super) fn reach_back_to(&self, begin: Timestamp) -> bool {
        self.forgotten <= begin
    }

    pub(super) fn count(&self) -> usize {
        self.recent.len()
    }

    pub(super) fn get(&self, number: usize) -> (Gap, Option<u32>) {
        self.recent[number]
    }
}
