// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an element says, seen at a glance: by the bits that its conditions look at.
//!
//! The conditions on the elements of a stream look at a few bits, which lie close together nearly always and take
//! few values. So the last values are remembered with what they were found to say, and only a new one is looked
//! at condition by condition.

use super::reading::Probe;

/// Bytes that are seen together.
const WORD: usize = size_of::<u64>();
/// How many values are remembered.
const PLACES: usize = 16;
/// Spreads values over the places: 2^64 divided by the golden ratio (Knuth, TAOCP 3, section 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Metrics, a bit each; those behind the last bit share that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Concerns(u64);

impl Concerns {
    /// None of them.
    const NONE: Self = Self(0);

    /// These metrics.
    pub(super) fn of(metrics: impl Iterator<Item = u32>) -> Self {
        metrics.map(Self::one).fold(Self::default(), Self::with)
    }

    const fn one(metric: u32) -> Self {
        Self(
            1 << if metric < u64::BITS {
                metric
            } else {
                u64::BITS - 1
            },
        )
    }

    /// These and those.
    #[inline(always)]
    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether the metric may be among them.
    pub(super) const fn have(self, metric: usize) -> bool {
        self.0 & Self::one(metric as u32).0 != 0
    }
}

/// What an element says to plain metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// From where to where among the parts of all routes.
    pub(super) parts: (u32, u32),
    /// The metrics that these concern.
    pub(super) concerns: Concerns,
}

impl Sight {
    /// It does more than to say something to plain metrics.
    pub(super) const MORE: Self = Self {
        parts: (u32::MAX, 0),
        concerns: Concerns::NONE,
    };

    /// Whether that is all that the element does.
    #[inline(always)]
    pub(super) const fn is_all(&self) -> bool {
        self.parts.0 != u32::MAX
    }
}

/// The values of a stream's bits that were seen last, and what they say.
#[derive(Clone, Debug)]
pub(super) struct Glance {
    /// Bytes of an element that anybody wants to know of.
    bytes: usize,
    /// Where the bits are.
    word: u32,
    mask: u64,
    known: [(u64, Sight); PLACES],
}

/// No element has a word there.
const NOWHERE: u32 = u32::MAX;

/// Nothing.
static NOTHING: Sight = Sight {
    parts: (0, 0),
    concerns: Concerns::NONE,
};

impl Glance {
    /// At elements of so many bytes, of which nothing is seen.
    pub(super) fn blind(bytes: usize) -> Self {
        let mut glance = Self {
            bytes,
            word: NOWHERE,
            mask: 0,
            known: [(0, Sight::MORE); PLACES],
        };
        // No value is known: zero has the first place, and one has another.
        glance.known[0].0 = 1;
        glance
    }

    /// At what these probes look at, in elements of so many bytes; `None` if that lies too far apart.
    pub(super) fn at(probes: &[Probe], bytes: usize) -> Option<Self> {
        let mut glance = Self {
            word: 0,
            ..Self::blind(bytes)
        };
        let places = || probes.iter().flat_map(Probe::places);
        let Some(first) = places().map(|(place, _)| place).min() else {
            return Some(glance);
        };
        let begin = first.min(bytes.checked_sub(WORD)?);
        let mut mask = [0; WORD];
        for (place, bits) in places() {
            *mask.get_mut(place - begin)? |= bits;
        }
        glance.word = u32::try_from(begin).ok()?;
        glance.mask = u64::from_ne_bytes(mask);
        Some(glance)
    }

    /// The bits of an element. Where there is no condition it may have less than a word.
    #[inline(always)]
    fn bits(&self, payload: &[u8]) -> u64 {
        let begin = self.word as usize;
        let word = payload.get(begin..begin + WORD);
        let word = word.and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| u64::from_ne_bytes(*word) & self.mask)
    }

    #[inline(always)]
    const fn place(bits: u64) -> usize {
        (bits.wrapping_mul(SPREAD) >> (u64::BITS - PLACES.trailing_zeros())) as usize
    }

    /// What an element says, if its bits were seen lately. One that nobody wants to know of says nothing.
    #[inline(always)]
    pub(super) fn find(&self, payload: &[u8]) -> Option<&Sight> {
        if payload.len() < self.bytes {
            return Some(&NOTHING);
        }
        let bits = self.bits(payload);
        let (known, sight) = &self.known[Self::place(bits)];
        (*known == bits).then_some(sight)
    }

    /// Elements with the bits of this one say this. Who is blind remembers nothing.
    pub(super) fn remember(&mut self, payload: &[u8], sight: Sight) {
        if self.word == NOWHERE {
            return;
        }
        let bits = self.bits(payload);
        self.known[Self::place(bits)] = (bits, sight);
    }
}

#[cfg(test)]
mod tests {
    use super::{Glance, Sight};
    use crate::automaton::reading::Probe;

    /// Of elements that have two words.
    const BYTES: usize = 16;

    fn payload(low: u64, high: u64) -> Vec<u8> {
        [low.to_ne_bytes(), high.to_ne_bytes()].concat()
    }

    fn sight(first: u32) -> Sight {
        Sight {
            parts: (first, first + 1),
            ..Sight::default()
        }
    }

    fn found(glance: &Glance, low: u64, high: u64) -> Option<u32> {
        let sight = glance.find(&payload(low, high));
        sight.map(|sight| sight.parts.0)
    }

    #[test]
    fn elements_that_differ_only_in_other_bits_say_the_same() {
        let probe = |mask| Probe::at(8, mask);
        let mut glance = Glance::at(&[probe(0xff), probe(0x8000)], BYTES).unwrap();
        for value in 0..200 {
            // Whatever the value, zero included: nothing has been seen.
            assert_eq!(found(&glance, 0, value), None);
        }
        glance.remember(&payload(1, 0x8001), sight(7));
        for (low, high, expected) in [
            (1, 0x8001, Some(7)),
            (9, 0x8001, Some(7)),
            (1, 0x18f01, Some(7)),
            (1, 0x8002, None),
            (1, 0x0001, None),
        ] {
            assert_eq!(found(&glance, low, high), expected, "{low:x} {high:x}");
        }
        // A few are remembered, each with its own.
        glance.remember(&payload(0, 0), sight(0));
        let known = (0..16_u64).filter(|value| {
            glance.remember(&payload(0, *value), sight(*value as u32));
            found(&glance, 3, *value) == Some(*value as u32)
        });
        assert_eq!(known.count(), 16);
        let mut kept = (0..16).filter_map(|value| found(&glance, 0, value).map(|it| (value, it)));
        assert!(kept.clone().count() >= 8);
        assert!(kept.all(|(value, it)| u64::from(it) == value));
    }

    #[test]
    fn who_is_blind_remembers_nothing_and_nobody_wants_to_know_of_what_is_too_short() {
        let mut blind = Glance::blind(BYTES);
        assert_eq!(found(&blind, 0, 0), None);
        blind.remember(&payload(0, 0), sight(5));
        assert_eq!(found(&blind, 0, 0), None);
        assert_eq!(blind.find(&[0; BYTES - 1]).unwrap().parts, (0, 0));
    }

    #[test]
    fn bits_may_lie_across_words_but_not_far_apart() {
        let near = Glance::at(&[Probe::at(0, 0xff << 56), Probe::at(8, 0xff)], BYTES);
        let mut near = near.unwrap();
        near.remember(&payload(5 << 56, 6), sight(3));
        assert_eq!(found(&near, 5 << 56 | 1, 0x106), Some(3));
        assert_eq!(found(&near, 4 << 56, 6), None);
        assert_eq!(found(&near, 5 << 56, 7), None);
        assert!(Glance::at(&[Probe::at(0, 1), Probe::at(8, 0xff << 8)], BYTES).is_none());
        // The word does not go beyond the element.
        assert!(Glance::at(&[Probe::at(8, 1 << 63)], BYTES).is_some());
    }

    #[test]
    fn without_conditions_all_elements_say_the_same() {
        let mut glance = Glance::at(&[], 3).unwrap();
        assert!(glance.find(&[1, 2, 3]).is_none());
        glance.remember(&[1, 2, 3], sight(4));
        assert_eq!(glance.find(&[9, 9, 9]).map(|sight| sight.parts.0), Some(4));
    }
}
