// SPDX-License-Identifier: MIT OR Apache-2.0
//! Evaluation of an element by several updates, some in place and the others from a copy.
//!
//! An element is evaluated by all of them or missed by all: first every update prepares, or the
//! copy is made; then the element is checked once; then each update commits, or gets the copy.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use overhear_event::{ElementInPlace, ElementKey, ElementView, StreamDescriptor, StreamId};
use zerocopy::IntoBytes as _;

use crate::merge::StreamIdHasher;

/// Updates that can read in place: the bits of a word. Updates with a higher index get copies.
const MAX_IN_PLACE_UPDATES: usize = 64;

/// The updates that read each stream in place, and the state of an element between prepare and
/// commit.
#[derive(Debug, Default)]
pub(crate) struct InPlaceDispatch {
    // For each stream with large elements, the updates that read it in place: a bit each.
    readers: HashMap<StreamId, u64, BuildHasherDefault<StreamIdHasher>>,
    // Buffer for the largest payload of these.
    copy: Vec<u64>,
    // Updates that have prepared this element, and those of them that have a result to commit.
    prepared: u64,
    ready: u64,
}

/// The next call of an update after [`InPlaceDispatch::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextCall {
    /// `commit`, valid if this is true and the element was whole.
    Commit(bool),
    /// `element` with the copy, if the element was whole.
    Copy,
    /// None.
    None,
}

pub(crate) fn bit(update: usize) -> u64 {
    match update {
        0..MAX_IN_PLACE_UPDATES => 1 << update,
        _ => 0,
    }
}

impl InPlaceDispatch {
    /// Sets whether the update reads the elements of a stream in place.
    pub(crate) fn note(&mut self, stream: &StreamDescriptor, update: usize, reads: bool) {
        let readers = self.readers.entry(stream.id).or_default();
        *readers &= !bit(update);
        if reads {
            *readers |= bit(update);
        }
        let words = words_of(stream);
        if self.copy.len() < words {
            self.copy.resize(words, 0);
        }
    }

    /// The update was removed.
    pub(crate) fn forget(&mut self, update: usize) {
        for readers in self.readers.values_mut() {
            *readers &= !bit(update);
        }
    }

    /// The updates that read this stream in place.
    pub(crate) fn readers(&self, stream: StreamId) -> u64 {
        self.readers.get(&stream).copied().unwrap_or(0)
    }

    /// Begins with an element, which is copied if an update needs a copy.
    pub(crate) fn begin(&mut self, element: &ElementInPlace<'_>, copies: bool) {
        (self.prepared, self.ready) = (0, 0);
        if copies {
            let words = words_of(element.key().stream);
            element.load_words(0, &mut self.copy[..words]);
        }
    }

    /// The update has prepared the element.
    pub(crate) fn prepared(&mut self, update: usize, ready: bool) {
        self.prepared |= bit(update);
        if ready {
            self.ready |= bit(update);
        }
    }

    /// What the update at `place` is called with now.
    pub(crate) fn next_call(&self, stream: StreamId, update: usize) -> NextCall {
        let bit = bit(update);
        match (self.readers(stream) & bit != 0, self.prepared & bit != 0) {
            (true, true) => NextCall::Commit(self.ready & bit != 0),
            (true, false) => NextCall::None,
            (false, _) => NextCall::Copy,
        }
    }

    /// The copy.
    pub(crate) fn view<'a>(&'a self, key: &ElementKey<'a>) -> ElementView<'a> {
        let bytes = key.stream.schema.size() as usize;
        ElementView {
            stream: key.stream,
            sequence: key.sequence,
            time: key.time,
            payload: &self.copy[..words_of(key.stream)].as_bytes()[..bytes],
        }
    }
}

fn words_of(stream: &StreamDescriptor) -> usize {
    stream.schema.size().div_ceil(8) as usize
}
