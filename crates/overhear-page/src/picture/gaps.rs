// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gaps as the picture shows them.

use std::collections::HashMap;
use std::sync::Arc;

use overhear_event::{Gap, StreamDescriptor, StreamId, Timestamp};

/// A gap of missed elements.
#[derive(Debug)]
pub(super) struct PicturedGap {
    pub(super) stream: Arc<StreamDescriptor>,
    pub(super) gap: Gap,
    /// Begin and end in compensated time, if costs are known.
    pub(super) moved: Option<(Timestamp, Timestamp)>,
}

/// The first gaps, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    kept: Vec<PicturedGap>,
    /// Streams of the gaps, which share their description.
    streams: HashMap<StreamId, Arc<StreamDescriptor>>,
    room: usize,
    /// Time of the first gap that found no room.
    cut_at: Option<Timestamp>,
    dropped: u64,
}

impl Gaps {
    pub(super) fn with_room(room: usize) -> Self {
        Self {
            room,
            ..Self::default()
        }
    }

    /// Keeps a gap if there is room. After the first one without room, all others are only counted.
    #[must_use]
    pub(super) fn push(
        &mut self,
        stream: &StreamDescriptor,
        gap: &Gap,
        moved: Option<(Timestamp, Timestamp)>,
    ) -> bool {
        if self.kept.len() >= self.room {
            self.cut_at.get_or_insert(gap.from);
            self.dropped += 1;
            return false;
        }
        let shared = self.streams.entry(stream.id);
        let shared = shared.or_insert_with(|| Arc::new(stream.clone()));
        self.kept.push(PicturedGap {
            stream: Arc::clone(shared),
            gap: *gap,
            moved,
        });
        true
    }

    pub(super) fn kept(&self) -> &[PicturedGap] {
        &self.kept
    }

    /// Time of the first gap that found no room, and the number of such gaps.
    pub(super) fn cut(&self) -> Option<(Timestamp, u64)> {
        Some((self.cut_at?, self.dropped))
    }
}
