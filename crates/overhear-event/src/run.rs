// SPDX-License-Identifier: MIT OR Apache-2.0
//! Consecutive elements of one stream that are delivered together.

use crate::Timestamp;

/// Bytes of an element before its payload: its time.
const LEAD: usize = 8;

/// Consecutive elements of one stream, without a gap between them, as a [`Source`](crate::Source)
/// copies them.
///
/// Each takes `stride` bytes: its time, in nanoseconds and the machine's byte order, then its
/// payload.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    first: u64,
    bytes: &'a [u8],
    stride: usize,
    payload: usize,
}

impl<'a> Run<'a> {
    /// A run whose first element has the position `first`. Each element takes `stride` bytes: eight
    /// for its time, then `payload` bytes. Bytes after the last whole element are ignored.
    ///
    /// # Panics
    /// If time and payload do not fit into the stride.
    #[must_use]
    pub fn new(first: u64, bytes: &'a [u8], stride: usize, payload: usize) -> Self {
        assert!(
            stride >= LEAD + payload,
            "a payload of {payload} bytes and its time do not fit into {stride}"
        );
        Self {
            first,
            bytes,
            stride,
            payload,
        }
    }

    /// How many elements there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The position of the first element.
    #[must_use]
    pub const fn first(&self) -> u64 {
        self.first
    }

    /// Bytes of each payload.
    #[must_use]
    pub const fn payload_bytes(&self) -> usize {
        self.payload
    }

    /// The elements from this index in the run on.
    #[must_use]
    pub fn behind(self, index: usize) -> Self {
        let begin = (index * self.stride).min(self.bytes.len());
        Self {
            first: self.first.wrapping_add(index as u64),
            bytes: &self.bytes[begin..],
            ..self
        }
    }

    /// Times and payloads, in the order of positions.
    #[inline(always)]
    pub fn iter(&self) -> impl Iterator<Item = (Timestamp, &'a [u8])> + 'a {
        let payload = self.payload;
        let elements = self.bytes.chunks_exact(self.stride);
        elements.map(move |element| {
            let (time, rest) = element.split_at(LEAD);
            (time_of(time), &rest[..payload])
        })
    }

    /// Positions, times and payloads.
    pub fn sequenced(&self) -> impl Iterator<Item = (u64, Timestamp, &'a [u8])> + 'a {
        let first = self.first;
        let sequences = (0..).map(move |index| first.wrapping_add(index));
        sequences
            .zip(self.iter())
            .map(|(at, (time, payload))| (at, time, payload))
    }

    /// As [`Run::iter`], for payloads of one word without padding, the most common ones: the sizes
    /// are constants for the compiler. `None` for others.
    #[inline(always)]
    #[must_use]
    pub fn iter_words(&self) -> Option<impl Iterator<Item = (Timestamp, &'a [u8])> + 'a> {
        let (elements, _) = self.bytes.as_chunks::<{ 2 * LEAD }>();
        let has_words = self.stride == 2 * LEAD && self.payload == LEAD;
        has_words.then(|| {
            elements
                .iter()
                .map(|it| (time_of(&it[..LEAD]), &it[LEAD..]))
        })
    }
}

#[inline(always)]
fn time_of(bytes: &[u8]) -> Timestamp {
    let ns = bytes.try_into().map_or(0, u64::from_ne_bytes);
    Timestamp::from_monotonic_ns(ns)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use alloc::vec::Vec;
    use std::panic::catch_unwind;

    use super::Run;

    #[test]
    fn elements_lie_in_equal_distances() {
        let word = |at: u8| [[at; 8], [at + 1; 8], [at + 2; 8]].concat();
        let bytes = [word(10), word(20), word(30), [7; 9].to_vec()].concat();
        for payload in [0, 3, 8, 16] {
            let run = Run::new(u64::MAX, &bytes, 24, payload);
            assert_eq!((run.len(), run.payload_bytes()), (3, payload));
            assert!(run.iter_words().is_none());
            let each: Vec<_> = run.sequenced().collect();
            let positions: Vec<_> = each.iter().map(|it| it.0).collect();
            assert_eq!(positions, [u64::MAX, 0, 1]);
            let times = each.iter().map(|it| it.1.as_monotonic_ns().to_ne_bytes());
            assert_eq!(times.collect::<Vec<_>>(), [[10; 8], [20; 8], [30; 8]]);
            assert_eq!(each[2].2, &word(30)[8..][..payload]);
            let rest: Vec<_> = run.behind(2).sequenced().collect();
            assert_eq!(rest, each[2..]);
            assert!(run.behind(3).is_empty() && run.behind(4).is_empty());
        }
        let words = Run::new(5, &bytes[..33], 16, 8);
        let known: Vec<_> = words.iter_words().unwrap().collect();
        assert_eq!(known, words.iter().collect::<Vec<_>>());
        assert_eq!(known.len(), 2);
        assert!(catch_unwind(|| Run::new(0, &[], 16, 9)).is_err());
    }
}
