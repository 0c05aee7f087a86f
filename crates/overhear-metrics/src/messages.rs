// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages out of parts: variable-sized output of sensors, rejoined.

use std::collections::BTreeMap;

use overhear_event::parts::{PartLayout, Rejoined, Rejoiner};
use overhear_event::{ElementView, Gap, StreamDescriptor, StreamId, Timestamp, Update};

/// Rejoins the messages of every stream whose elements are parts, and hands each to a closure: the
/// stream, the time of the last part (of a lost message: when the loss was known), and the message or
/// how many were lost.
#[derive(Debug)]
pub struct Messages<F> {
    found: F,
    /// `None` for streams whose elements are no parts.
    rejoiners: BTreeMap<StreamId, Option<Rejoiner>>,
}

impl<F: FnMut(&StreamDescriptor, Timestamp, Rejoined<'_>)> Messages<F> {
    /// Hands everything found to `found`.
    pub const fn new(found: F) -> Self {
        Self {
            found,
            rejoiners: BTreeMap::new(),
        }
    }

    /// Messages of all streams of which a part was missed.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.rejoiners
            .values()
            .flatten()
            .map(Rejoiner::lost)
            .fold(0, u64::saturating_add)
    }

    /// Parts that contradict themselves or their predecessors.
    #[must_use]
    pub fn rejected_corrupt(&self) -> u64 {
        let rejoiners = self.rejoiners.values().flatten();
        rejoiners.map(Rejoiner::rejected_corrupt).sum()
    }

    /// The observation ends: a message that is not whole is lost.
    pub fn finish(&mut self, streams: &[&StreamDescriptor], now: Timestamp) {
        for stream in streams {
            if let Some(Some(rejoiner)) = self.rejoiners.get_mut(&stream.id) {
                rejoiner.interrupted(|what| (self.found)(stream, now, what));
            }
        }
    }

    /// `first` is the stream's first position that anybody heard of.
    fn rejoiner<'a>(
        rejoiners: &'a mut BTreeMap<StreamId, Option<Rejoiner>>,
        stream: &StreamDescriptor,
        first: u64,
    ) -> Option<&'a mut Rejoiner> {
        rejoiners
            .entry(stream.id)
            .or_insert_with(|| {
                let layout = PartLayout::of(&stream.schema)?;
                Some(match first {
                    0 => Rejoiner::from_start(layout),
                    _ => Rejoiner::from_now(layout),
                })
            })
            .as_mut()
    }
}

impl<F: FnMut(&StreamDescriptor, Timestamp, Rejoined<'_>)> Update for Messages<F> {
    fn element(&mut self, element: &ElementView<'_>) {
        let (stream, time) = (element.stream, element.time);
        if let Some(rejoiner) = Self::rejoiner(&mut self.rejoiners, stream, element.sequence) {
            rejoiner.part(element.payload, |what| (self.found)(stream, time, what));
        }
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if let Some(rejoiner) = Self::rejoiner(&mut self.rejoiners, stream, gap.first) {
            rejoiner.interrupted(|what| (self.found)(stream, gap.to, what));
        }
    }

    fn advance(&mut self, _: Timestamp) {}
}
