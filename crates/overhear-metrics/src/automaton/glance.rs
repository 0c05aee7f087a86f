// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an element says, seen at a glance: by the bits that its conditions look at.
//!
//! The conditions on the elements of a stream look at a few bits, which lie close together nearly always and take
//! few values. So the last values are remembered with what they were found to say, and only a new one is looked
//! at condition by condition. A whole number that is compared with one constant, like a duration that is not known, may
//! have any value: of it only the outcome is remembered.

use std::hint::select_unpredictable as select;

use super::reading::Probe;

/// Bytes that are seen together.
const WORD: usize = size_of::<u64>();
/// How many values are remembered.
const PLACES: usize = 16;
/// Spreads values over the places: 2^64 divided by the golden ratio (Knuth, TAOCP 3, section 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What some elements concern: metrics, a bit each, of which those behind the last bit share that; and in the highest
/// bits what some [parts](super::part::Part) are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Concerns(u64);

impl Concerns {
    /// Nothing.
    const NONE: Self = Self(0);
    /// Some are not plain.
    pub(super) const NOT_PLAIN: Self = Self(1 << 63);
    /// Some are several symbols of a metric, or one that stands in for others.
    pub(super) const SEVERAL: Self = Self(1 << 62);

    /// These metrics.
    pub(super) fn of(metrics: impl Iterator<Item = u32>) -> Self {
        metrics.map(Self::one).fold(Self::NONE, Self::with)
    }

    const fn one(metric: u32) -> Self {
        Self(1 << if metric < 61 { metric } else { 61 })
    }

    /// These if that is so, else nothing.
    pub(super) const fn only_if(self, is_so: bool) -> Self {
        match is_so {
            true => self,
            false => Self::NONE,
        }
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

    /// Whether all parts are plain.
    pub(super) const fn are_plain(self) -> bool {
        self.0 & Self::NOT_PLAIN.0 == 0
    }

    /// Whether each part is one symbol of a metric, and none that stands in for others.
    pub(super) const fn are_single(self) -> bool {
        self.0 & Self::SEVERAL.0 == 0
    }
}

/// What an element says to plain metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// The first of its parts among those of all routes, and how many there are.
    pub(super) parts: (u32, u32),
    /// What these concern.
    pub(super) concerns: Concerns,
}

impl Sight {
    /// It does more than to say something to plain metrics.
    pub(super) const MORE: Self = Self {
        parts: (0, u32::MAX),
        concerns: Concerns::NONE,
    };

    /// How many parts that are; more than there can ever be if the element does more.
    #[inline(always)]
    pub(super) const fn count(&self) -> usize {
        self.parts.1 as usize
    }

    /// Whether that is all that the element does.
    #[inline(always)]
    pub(super) const fn is_all(&self) -> bool {
        self.parts.1 != u32::MAX
    }
}

/// The values of a stream's bits that were seen last, and what they say.
#[derive(Clone, Debug)]
pub(super) struct Glance {
    /// Where the bits are.
    word: u32,
    /// The bits that are looked at as they are.
    mask: u64,
    /// Of these bits it matters only whether they have this value. No bit means that there are none.
    compared: (u64, u64),
    /// What stands for that: one of these bits.
    is_equal: u64,
    known: [(u64, Sight); PLACES],
}

/// No element has a word there.
const NOWHERE: u32 = u32::MAX;

impl Glance {
    /// At elements that say nothing, whatever they are.
    pub(super) fn idle() -> Self {
        let mut glance = Self::blind();
        glance.known[0] = (0, Sight::default());
        glance
    }

    /// At elements of which nothing is seen.
    pub(super) fn blind() -> Self {
        let mut glance = Self {
            word: NOWHERE,
            mask: 0,
            compared: (0, 0),
            is_equal: 0,
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
            ..Self::blind()
        };
        let places = probes.iter().flat_map(Probe::places);
        let Some(first) = places.map(|(place, _, _)| place).min() else {
            return Some(glance);
        };
        let begin = first.min(bytes.checked_sub(WORD)?);
        glance.word = u32::try_from(begin).ok()?;
        let probes = probes.iter().map(|probe| within(probe, begin));
        let probes = probes.collect::<Option<Vec<(u64, u64)>>>()?;
        glance.compared = most_compared(&probes);
        glance.is_equal = glance.compared.0 & glance.compared.0.wrapping_neg();
        let others = probes.iter().filter(|probe| **probe != glance.compared);
        glance.mask = others.fold(0, |all, (mask, _)| all | mask);
        Some(glance)
    }

    /// The bits of an element, with one for what is compared. Where there is no condition it may have less than a word.
    #[inline(always)]
    fn bits(&self, payload: &[u8]) -> u64 {
        let begin = self.word as usize;
        let word = payload.get(begin..begin + WORD);
        let word = word.and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| {
            let word = u64::from_ne_bytes(*word);
            let (mask, value) = self.compared;
            word & self.mask | select(word & mask == value, self.is_equal, 0)
        })
    }

    #[inline(always)]
    const fn place(bits: u64) -> usize {
        (bits.wrapping_mul(SPREAD) >> (u64::BITS - PLACES.trailing_zeros())) as usize
    }

    /// What an element says, if its bits were seen lately.
    #[inline(always)]
    pub(super) fn find(&self, payload: &[u8]) -> Option<&Sight> {
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

/// The mask and the value of a probe in the word that begins there; `None` if it lies elsewhere.
fn within(probe: &Probe, begin: usize) -> Option<(u64, u64)> {
    let (mut mask, mut value) = ([0; WORD], [0; WORD]);
    for (place, bits, wanted) in probe.places() {
        *mask.get_mut(place - begin)? = bits;
        *value.get_mut(place - begin)? = wanted;
    }
    Some((u64::from_ne_bytes(mask), u64::from_ne_bytes(value)))
}

/// The probe that looks at the most bits, if they are more than a byte and no other probe looks at any of them: what
/// many bits have may be different each time, and what is known of them would be known once.
fn most_compared(probes: &[(u64, u64)]) -> (u64, u64) {
    let is_alone = |probe: &&(u64, u64)| {
        let others = probes.iter().filter(|other| other != probe);
        others.into_iter().all(|(mask, _)| mask & probe.0 == 0)
    };
    let many = probes
        .iter()
        .filter(|(mask, _)| mask.count_ones() > u8::BITS);
    let most = many
        .filter(is_alone)
        .max_by_key(|(mask, _)| mask.count_ones());
    most.copied().unwrap_or((0, 0))
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
            parts: (first, 1),
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
    fn who_is_blind_remembers_nothing_and_who_is_idle_nothing_else() {
        let mut blind = Glance::blind();
        assert_eq!(found(&blind, 0, 0), None);
        blind.remember(&payload(0, 0), sight(5));
        assert_eq!(found(&blind, 0, 0), None);
        let mut idle = Glance::idle();
        idle.remember(&payload(1, 1), sight(5));
        assert_eq!(idle.find(&[]).unwrap().parts, (0, 0));
        assert_eq!(found(&idle, 1, 1), Some(0));
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
    fn of_a_number_that_is_compared_only_the_outcome_matters() {
        let unknown = |mask, value| Probe::with(4, mask, value);
        let all = u64::from(u32::MAX);
        let probes = [Probe::at(0, 6), unknown(all, all), Probe::at(0, 0xff00)];
        let mut glance = Glance::at(&probes, BYTES).unwrap();
        let low = |number: u64, flags: u64| number << 32 | flags;
        glance.remember(&payload(low(77, 2), 0), sight(1));
        glance.remember(&payload(low(all, 2), 0), sight(2));
        for number in [0, 1, 78, all - 1, 1 << 31] {
            assert_eq!(found(&glance, low(number, 2), 5), Some(1), "{number}");
            assert_ne!(found(&glance, low(number, 4), 5), Some(1), "{number}");
        }
        assert_eq!(found(&glance, low(all, 3), 5), Some(2));
        // Where two constants are wanted, or some of the bits, all bits matter.
        for other in [unknown(all, 5), unknown(0xf0, 0)] {
            let mut glance = Glance::at(&[unknown(all, all), other], BYTES).unwrap();
            glance.remember(&payload(low(77, 2), 0), sight(1));
            assert_eq!(found(&glance, low(78, 2), 0), None);
            assert_eq!(found(&glance, low(77, 0), 0), Some(1));
        }
    }

    #[test]
    fn without_conditions_all_elements_say_the_same() {
        let mut glance = Glance::at(&[], 3).unwrap();
        assert!(glance.find(&[1, 2, 3]).is_none());
        glance.remember(&[1, 2, 3], sight(4));
        assert_eq!(glance.find(&[9, 9, 9]).map(|sight| sight.parts.0), Some(4));
    }
}
