// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements that some of several updates evaluate in place, and the others as copies.
//!
//! All of them decide together, so that an element is evaluated by all or missed by all: first every
//! update prepares, or the copy is made, then it is looked up once whether the element was whole, then each
//! commits, or gets the copy.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use overhear_event::{ElementInPlace, ElementKey, ElementView, StreamDescriptor, StreamId};
use zerocopy::IntoBytes as _;

use crate::merge::Spread;

/// How many updates can be told apart: the bits of a word. What has a higher place gets copies.
const PLACES: usize = 64;

/// Who reads what in place, and the element between prepare and commit.
#[derive(Debug, Default)]
pub(crate) struct Mixed {
    // For each stream with large elements a bit for each update that reads it in place.
    wanted: HashMap<StreamId, u64, BuildHasherDefault<Spread>>,
    // Room for the largest payload of these.
    copy: Vec<u64>,
    // Updates that were asked to prepare this element, and those of them that have something to commit.
    prepared: u64,
    ready: u64,
}

/// What an update is called with after [`Mixed::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Commit, if this is true and the element was whole.
    Commit(bool),
    /// A copy, if the element was whole.
    Copy,
    /// Nothing.
    None,
}

pub(crate) fn bit(place: usize) -> u64 {
    match place {
        0..PLACES => 1 << place,
        _ => 0,
    }
}

impl Mixed {
    /// A stream whose elements the update at `place` reads in place, or not.
    pub(crate) fn note(&mut self, stream: &StreamDescriptor, place: usize, reads: bool) {
        let wanted = self.wanted.entry(stream.id).or_default();
        *wanted &= !bit(place);
        if reads {
            *wanted |= bit(place);
        }
        let words = words_of(stream);
        if self.copy.len() < words {
            self.copy.resize(words, 0);
        }
    }

    /// The update at this place has gone.
    pub(crate) fn forget(&mut self, place: usize) {
        for wanted in self.wanted.values_mut() {
            *wanted &= !bit(place);
        }
    }

    /// The updates that read this stream in place.
    pub(crate) fn wanted(&self, stream: StreamId) -> u64 {
        self.wanted.get(&stream).copied().unwrap_or(0)
    }

    /// Begins with an element, which is copied if somebody needs a copy.
    pub(crate) fn begin(&mut self, element: &ElementInPlace<'_>, copies: bool) {
        (self.prepared, self.ready) = (0, 0);
        if copies {
            let words = words_of(element.key().stream);
            element.load_words(0, &mut self.copy[..words]);
        }
    }

    /// The update at `place` was asked to prepare.
    pub(crate) fn prepared(&mut self, place: usize, ready: bool) {
        self.prepared |= bit(place);
        if ready {
            self.ready |= bit(place);
        }
    }

    /// What the update at `place` is called with now.
    pub(crate) fn turn(&self, stream: StreamId, place: usize) -> Turn {
        let bit = bit(place);
        match (self.wanted(stream) & bit != 0, self.prepared & bit != 0) {
            (true, true) => Turn::Commit(self.ready & bit != 0),
            (true, false) => Turn::None,
            (false, _) => Turn::Copy,
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
