// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counts of missed elements.

use std::collections::BTreeMap;

use overhear_event::{Analysis, ElementView, Gap, GapCause, StreamDescriptor, StreamId, Timestamp};

/// The missed elements of one stream, for one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// Elements missed.
    pub missed: u64,
    /// Number of gaps. A gap with 0 missed elements is damage of unknown extent.
    pub gaps: u64,
}

/// Counts gaps per stream and cause. It is an [`Analysis`], so that a recorded trace gives the same
/// counts as the live run.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    // For each stream its label and the losses, in the order of the causes.
    streams: BTreeMap<StreamId, (String, [Loss; GapCause::ALL.len()])>,
}

impl Losses {
    /// Elements missed in all streams, for any cause.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.iter().fold(0, |sum: u64, (_, _, _, loss)| {
            sum.saturating_add(loss.missed)
        })
    }

    /// Stream, its label, cause and loss, in the order of streams and causes.
    pub fn iter(&self) -> impl Iterator<Item = (StreamId, &str, GapCause, Loss)> {
        self.streams.iter().flat_map(|(id, (label, losses))| {
            let causes = GapCause::ALL.iter().zip(losses);
            causes
                .filter(|(_, loss)| loss.gaps > 0)
                .map(move |(cause, loss)| (*id, label.as_str(), *cause, *loss))
        })
    }
}

impl Analysis for Losses {
    /// Allocates the stream's entry, so that counting allocates nothing.
    fn open(&mut self, stream: &StreamDescriptor) {
        self.streams
            .entry(stream.id)
            .or_insert_with(|| (stream.label(), Default::default()));
    }

    fn element(&mut self, _: &ElementView<'_>) {}

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        let (_, losses) = self
            .streams
            .entry(gap.stream)
            .or_insert_with(|| (stream.label(), Default::default()));
        // In the order of `GapCause::ALL`, which is that of the variants.
        let loss = &mut losses[gap.cause as usize];
        loss.missed = loss.missed.saturating_add(gap.missed);
        loss.gaps += 1;
    }

    fn advance(&mut self, _: Timestamp) {}
}
