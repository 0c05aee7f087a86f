// SPDX-License-Identifier: MIT OR Apache-2.0
//! The routes of all streams, found for each element by the number of its stream.

use overhear_event::{ElementView, StreamId, Timestamp};
use rustc_hash::FxHashMap;

use super::glance::{Glance, Sight};
use super::route::{Parts, Route, RoutePart};

/// Places for streams whose routes are found without asking the index.
const NEAR: usize = 32;

/// The routes of the streams.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) all: Vec<Route>,
    /// By the numbers of the routes.
    glances: Vec<Glance>,
    /// What their letters say to plain metrics.
    pub(super) parts: Parts,
    by_stream: FxHashMap<StreamId, u32>,
    /// The streams of recent elements and the numbers of their routes, by the low bits of the streams'.
    near: [(StreamId, u32); NEAR],
}

impl Default for Routes {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            glances: Vec::new(),
            parts: Parts::default(),
            by_stream: FxHashMap::default(),
            // There are never so many routes.
            near: [(StreamId::from_raw(0), u32::MAX); NEAR],
        }
    }
}

impl Routes {
    /// What elements of a stream say at a glance, unless the stream is new, or not that of a recent element.
    #[inline(always)]
    pub(super) fn glance(&self, stream: StreamId) -> Option<&Glance> {
        let (known, number) = self.near[stream.as_raw() as usize % NEAR];
        let glance = self.glances.get(number as usize)?;
        (known == stream).then_some(glance)
    }

    /// What an element of a recent stream says.
    #[inline(never)]
    pub(super) fn look_closely(&mut self, element: &ElementView<'_>) -> Sight {
        let (_, number) = self.near[element.stream.id.as_raw() as usize % NEAR];
        let sight = self.all[number as usize].sight(element);
        if sight.is_all() {
            self.glances[number as usize].remember(element.payload, sight);
        }
        sight
    }

    /// The number of the stream's route, `None` if it is new.
    #[inline(never)]
    pub(super) fn number(&mut self, stream: StreamId) -> Option<usize> {
        let number = *self.by_stream.get(&stream)?;
        self.near[stream.as_raw() as usize % NEAR] = (stream, number);
        Some(number as usize)
    }

    /// Whose it is what a part of an element says, and for when: 0 if it is nobody's.
    #[inline(never)]
    pub(super) fn look_for(
        &self,
        part: &RoutePart,
        number: u32,
        element: &ElementView<'_>,
    ) -> (u32, Timestamp) {
        let meaning = self.parts.meaning(number);
        let route = &self.all[meaning.route as usize];
        let task = meaning.task.named_by(element.payload);
        (task.unwrap_or(0), route.time_of_part(part, element))
    }

    pub(super) fn add(&mut self, stream: StreamId, route: Route) -> usize {
        self.by_stream.insert(stream, self.all.len() as u32);
        self.glances.push(route.glance());
        self.all.push(route);
        self.all.len() - 1
    }
}
