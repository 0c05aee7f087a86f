// SPDX-License-Identifier: MIT OR Apache-2.0
//! The routes of all streams, by the id of the stream.

use overhear_event::{ElementView, StreamId};
use rustc_hash::FxHashMap;

use super::decode_cache::DecodeCache;
use crate::automaton::compile::decoded::Decoded;
use crate::automaton::compile::part::Parts;
use crate::automaton::compile::route::Route;

/// Stream ids below this one index an array; others are hashed. The directory counts streams from 1
/// on.
const DENSE_STREAM_IDS: usize = 1 << 16;

/// The routes of the streams.
#[derive(Debug, Default)]
pub(super) struct Routes {
    /// Indexed by route number.
    pub(super) all: Vec<Route>,
    /// Indexed by route number.
    caches: Vec<DecodeCache>,
    /// The parts of all routes.
    pub(super) parts: Parts,
    /// Indexed by stream id: the route number, or `u32::MAX` for an unknown stream.
    dense: Vec<u32>,
    /// The route numbers of streams with larger ids.
    sparse: FxHashMap<StreamId, u32>,
}

impl Routes {
    /// The caches, for lookups.
    pub(super) fn caches(&self) -> Caches<'_> {
        Caches {
            caches: &self.caches,
            dense: &self.dense,
        }
    }

    /// Decodes an element, from the cache if it is there. The element of a new stream takes the
    /// slow path.
    #[inline(never)]
    pub(super) fn decode(&mut self, element: &ElementView<'_>) -> Decoded {
        let Some(number) = self.number(element.stream.id) else {
            return Decoded::SLOW_PATH;
        };
        if let Some(decoded) = self.caches[number].lookup(element.payload) {
            return *decoded;
        }
        if !self.all[number].wants(element) {
            return Decoded::default();
        }
        let decoded = self.all[number].decode(element);
        self.caches[number].insert(element.payload, decoded);
        decoded
    }

    /// The route number of a stream; `None` if the stream is new.
    pub(super) fn number(&self, stream: StreamId) -> Option<usize> {
        let dense = self.dense.get(stream.as_raw() as usize);
        let number = *dense.or_else(|| self.sparse.get(&stream))? as usize;
        (number < self.all.len()).then_some(number)
    }

    /// Adds the route of a new stream. Returns its number.
    pub(super) fn add(&mut self, stream: StreamId, route: Route) -> usize {
        let (number, id) = (self.all.len(), stream.as_raw() as usize);
        if id < DENSE_STREAM_IDS {
            let streams = self.dense.len().max(id + 1);
            self.dense.resize(streams, u32::MAX);
            self.dense[id] = number as u32;
        } else {
            self.sparse.insert(stream, number as u32);
        }
        self.caches.push(DecodeCache::of_route(&route));
        self.all.push(route);
        number
    }
}

/// The decode caches of the streams with [small ids](DENSE_STREAM_IDS).
#[derive(Clone, Copy)]
pub(super) struct Caches<'a> {
    caches: &'a [DecodeCache],
    dense: &'a [u32],
}

impl<'a> Caches<'a> {
    /// The cached result of an element. `None` if its stream is new or has a large id, or if the
    /// cache misses.
    #[inline(always)]
    pub(super) fn lookup(self, element: &ElementView<'_>) -> Option<&'a Decoded> {
        let number = *self.dense.get(element.stream.id.as_raw() as usize)?;
        self.caches.get(number as usize)?.lookup(element.payload)
    }
}
