// SPDX-License-Identifier: MIT OR Apache-2.0
//! The routes of all streams, found for each element by the number of its stream.

use overhear_event::{ElementView, StreamId};
use rustc_hash::FxHashMap;

use super::glance::{Glance, Sight};
use super::part::Parts;
use super::route::Route;

/// The numbers of streams below this one need not be looked up. The directory counts streams from 1 on.
const SMALL: usize = 1 << 16;

/// The routes of the streams.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub(super) all: Vec<Route>,
    /// By the numbers of the routes.
    glances: Vec<Glance>,
    /// What their letters say to plain metrics.
    pub(super) parts: Parts,
    /// By the small numbers of streams those of their routes; for streams that are unknown, more than there are.
    by_small: Vec<u32>,
    /// Those of the other streams.
    by_large: FxHashMap<StreamId, u32>,
}

impl Routes {
    /// What was seen so far.
    pub(super) fn seen(&self) -> Seen<'_> {
        Seen {
            glances: &self.glances,
            by_small: &self.by_small,
        }
    }

    /// What an element says; more than that if its stream is new.
    #[inline(never)]
    pub(super) fn sight(&mut self, element: &ElementView<'_>) -> Sight {
        let Some(number) = self.number(element.stream.id) else {
            return Sight::MORE;
        };
        if let Some(sight) = self.glances[number].find(element.payload) {
            return *sight;
        }
        if !self.all[number].wants(element) {
            return Sight::default();
        }
        let sight = self.all[number].sight(element);
        self.glances[number].remember(element.payload, sight);
        sight
    }

    /// The number of the stream's route, `None` if it is new.
    pub(super) fn number(&self, stream: StreamId) -> Option<usize> {
        let small = self.by_small.get(stream.as_raw() as usize);
        let number = *small.or_else(|| self.by_large.get(&stream))? as usize;
        (number < self.all.len()).then_some(number)
    }

    /// Adds that of a new stream. Returns its number.
    pub(super) fn add(&mut self, stream: StreamId, route: Route) -> usize {
        let (number, small) = (self.all.len(), stream.as_raw() as usize);
        if small < SMALL {
            let streams = self.by_small.len().max(small + 1);
            self.by_small.resize(streams, u32::MAX);
            self.by_small[small] = number as u32;
        } else {
            self.by_large.insert(stream, number as u32);
        }
        self.glances.push(route.glance());
        self.all.push(route);
        number
    }
}

/// What elements were seen to say, at hand.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    glances: &'a [Glance],
    by_small: &'a [u32],
}

impl<'a> Seen<'a> {
    /// What an element says at a glance: not if its stream is new or has a large number, or if it says something new.
    #[inline(always)]
    pub(super) fn glance(self, element: &ElementView<'_>) -> Option<&'a Sight> {
        let number = *self.by_small.get(element.stream.id.as_raw() as usize)?;
        self.glances.get(number as usize)?.find(element.payload)
    }
}
