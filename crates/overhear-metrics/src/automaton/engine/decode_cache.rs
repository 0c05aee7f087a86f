// SPDX-License-Identifier: MIT OR Apache-2.0
//! A cache of decoded elements, per stream.
//!
//! The conditions on the elements of a stream test a few bits, which nearly always lie close
//! together and take few values. So the last values are kept with their [`Decoded`] result, and
//! conditions are evaluated one by one only for a new value. A number that is compared with one
//! constant, such as a duration that may be unknown, can have any value: of it the key contains
//! only the outcome of the comparison.

use std::hint::select_unpredictable as select;

use crate::automaton::compile::decoded::Decoded;
use crate::automaton::compile::fields::MaskTest;
use crate::automaton::compile::route::{Route, Selection};

/// Bytes of the payload that a key is made of.
const WORD: usize = size_of::<u64>();
/// Entries per stream.
const CACHE_ENTRIES: usize = 16;
/// Multiplier of Fibonacci hashing: 2^64 divided by the golden ratio (Knuth, TAOCP 3, section 6.4).
const FIB_HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The decoded results of the newest payloads of a stream. Direct-mapped: a key has one entry where
/// it can be.
#[derive(Clone, Debug)]
pub(super) struct DecodeCache {
    /// Offset in the payload of the word that the key is made of, or [`NO_OFFSET`].
    offset: u32,
    /// Bits of the word that are part of the key.
    mask: u64,
    /// Mask and value of the comparison of which only the outcome is part of the key; no bits if
    /// there is none.
    compared: (u64, u64),
    /// The bit of the key for that outcome: one of the bits of the comparison.
    is_equal: u64,
    entries: [(u64, Decoded); CACHE_ENTRIES],
}

/// The cache has no word: nothing is cached.
const NO_OFFSET: u32 = u32::MAX;

impl DecodeCache {
    /// The cache for the elements of this route.
    pub(super) fn of_route(route: &Route) -> Self {
        match route.selection() {
            Selection::Constant => Self::constant(),
            Selection::Masks(tests, bytes) => {
                Self::of_tests(tests, bytes).unwrap_or_else(Self::uncacheable)
            }
            Selection::General => Self::uncacheable(),
        }
    }

    /// Every element decodes to nothing.
    fn constant() -> Self {
        let mut cache = Self::uncacheable();
        cache.entries[0] = (0, Decoded::default());
        cache
    }

    /// No element is found.
    fn uncacheable() -> Self {
        let mut cache = Self {
            offset: NO_OFFSET,
            mask: 0,
            compared: (0, 0),
            is_equal: 0,
            entries: [(0, Decoded::SLOW_PATH); CACHE_ENTRIES],
        };
        // Unused entries match no key: key 0 belongs to entry 0, so it marks the others as unused,
        // and key 1 does not belong to entry 0.
        cache.entries[0].0 = 1;
        cache
    }

    /// A cache by the bits that these tests read, in payloads of this number of bytes; `None` if
    /// the bits do not lie in one word.
    fn of_tests(tests: &[MaskTest], bytes: usize) -> Option<Self> {
        let mut cache = Self {
            offset: 0,
            ..Self::uncacheable()
        };
        let tested = tests.iter().flat_map(MaskTest::bytes);
        let Some(first) = tested.map(|(offset, _, _)| offset).min() else {
            return Some(cache);
        };
        let begin = first.min(bytes.checked_sub(WORD)?);
        cache.offset = u32::try_from(begin).ok()?;
        let tests = tests.iter().map(|test| within(test, begin));
        let tests = tests.collect::<Option<Vec<(u64, u64)>>>()?;
        cache.compared = most_compared(&tests);
        cache.is_equal = cache.compared.0 & cache.compared.0.wrapping_neg();
        let others = tests.iter().filter(|test| **test != cache.compared);
        cache.mask = others.fold(0, |all, (mask, _)| all | mask);
        Some(cache)
    }

    /// The key of a payload. Without conditions the payload may be shorter than a word; the key is
    /// 0 then.
    #[inline(always)]
    fn key(&self, payload: &[u8]) -> u64 {
        let begin = self.offset as usize;
        let word = payload.get(begin..begin + WORD);
        let word = word.and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| {
            let word = u64::from_ne_bytes(*word);
            let (mask, value) = self.compared;
            word & self.mask | select(word & mask == value, self.is_equal, 0)
        })
    }

    #[inline(always)]
    const fn index(key: u64) -> usize {
        let shift = u64::BITS - CACHE_ENTRIES.trailing_zeros();
        (key.wrapping_mul(FIB_HASH_MULTIPLIER) >> shift) as usize
    }

    /// The decoded result of an element, if one with the same key is cached.
    #[inline(always)]
    pub(super) fn lookup(&self, payload: &[u8]) -> Option<&Decoded> {
        let key = self.key(payload);
        let (cached, decoded) = &self.entries[Self::index(key)];
        (*cached == key).then_some(decoded)
    }

    /// Caches the decoded result of an element. An uncacheable or constant cache stays as it is.
    pub(super) fn insert(&mut self, payload: &[u8], decoded: Decoded) {
        if self.offset == NO_OFFSET {
            return;
        }
        let key = self.key(payload);
        self.entries[Self::index(key)] = (key, decoded);
    }
}

/// The mask and the value of a test within the word at `begin`; `None` if it reads other bytes.
fn within(test: &MaskTest, begin: usize) -> Option<(u64, u64)> {
    let (mut mask, mut value) = ([0; WORD], [0; WORD]);
    for (offset, bits, wanted) in test.bytes() {
        *mask.get_mut(offset - begin)? = bits;
        *value.get_mut(offset - begin)? = wanted;
    }
    Some((u64::from_ne_bytes(mask), u64::from_ne_bytes(value)))
}

/// The test of the most bits, if it reads more than a byte and shares no bit with another test: a
/// number of many bits may be different each time, and no key would be found twice.
fn most_compared(tests: &[(u64, u64)]) -> (u64, u64) {
    let is_alone = |test: &&(u64, u64)| {
        let others = tests.iter().filter(|other| other != test);
        others.into_iter().all(|(mask, _)| mask & test.0 == 0)
    };
    let many = tests
        .iter()
        .filter(|(mask, _)| mask.count_ones() > u8::BITS);
    let most = many
        .filter(is_alone)
        .max_by_key(|(mask, _)| mask.count_ones());
    most.copied().unwrap_or((0, 0))
}

#[cfg(test)]
mod tests {
    use super::{DecodeCache, Decoded};
    use crate::automaton::compile::fields::MaskTest;

    /// Bytes of a payload: two words.
    const BYTES: usize = 16;

    fn payload(low: u64, high: u64) -> Vec<u8> {
        [low.to_ne_bytes(), high.to_ne_bytes()].concat()
    }

    fn decoded(first: u32) -> Decoded {
        Decoded {
            parts: (first, 1),
            ..Decoded::default()
        }
    }

    fn found(cache: &DecodeCache, low: u64, high: u64) -> Option<u32> {
        let found = cache.lookup(&payload(low, high));
        found.map(|found| found.parts.0)
    }

    #[test]
    fn elements_with_equal_tested_bits_share_an_entry() {
        let test = |mask| MaskTest::at(8, mask);
        let mut cache = DecodeCache::of_tests(&[test(0xff), test(0x8000)], BYTES).unwrap();
        for value in 0..200 {
            // The cache is empty: no value is found, not even zero.
            assert_eq!(found(&cache, 0, value), None);
        }
        cache.insert(&payload(1, 0x8001), decoded(7));
        for (low, high, expected) in [
            (1, 0x8001, Some(7)),
            (9, 0x8001, Some(7)),
            (1, 0x18f01, Some(7)),
            (1, 0x8002, None),
            (1, 0x0001, None),
        ] {
            assert_eq!(found(&cache, low, high), expected, "{low:x} {high:x}");
        }
        // Each of several values has its own result.
        cache.insert(&payload(0, 0), decoded(0));
        let known = (0..16_u64).filter(|value| {
            cache.insert(&payload(0, *value), decoded(*value as u32));
            found(&cache, 3, *value) == Some(*value as u32)
        });
        assert_eq!(known.count(), 16);
        let mut cached = (0..16).filter_map(|value| found(&cache, 0, value).map(|it| (value, it)));
        assert!(cached.clone().count() >= 8);
        assert!(cached.all(|(value, it)| u64::from(it) == value));
    }

    #[test]
    fn uncacheable_and_constant_caches_stay_as_they_are() {
        let mut uncacheable = DecodeCache::uncacheable();
        assert_eq!(found(&uncacheable, 0, 0), None);
        uncacheable.insert(&payload(0, 0), decoded(5));
        assert_eq!(found(&uncacheable, 0, 0), None);
        let mut constant = DecodeCache::constant();
        constant.insert(&payload(1, 1), decoded(5));
        assert_eq!(constant.lookup(&[]).unwrap().parts, (0, 0));
        assert_eq!(found(&constant, 1, 1), Some(0));
    }

    #[test]
    fn tested_bits_lie_within_eight_bytes() {
        let near =
            DecodeCache::of_tests(&[MaskTest::at(0, 0xff << 56), MaskTest::at(8, 0xff)], BYTES);
        let mut near = near.unwrap();
        near.insert(&payload(5 << 56, 6), decoded(3));
        assert_eq!(found(&near, 5 << 56 | 1, 0x106), Some(3));
        assert_eq!(found(&near, 4 << 56, 6), None);
        assert_eq!(found(&near, 5 << 56, 7), None);
        assert!(
            DecodeCache::of_tests(&[MaskTest::at(0, 1), MaskTest::at(8, 0xff << 8)], BYTES)
                .is_none()
        );
        // The word does not go beyond the element.
        assert!(DecodeCache::of_tests(&[MaskTest::at(8, 1 << 63)], BYTES).is_some());
    }

    #[test]
    fn compared_number_is_keyed_by_its_outcome() {
        let unknown = |mask, value| MaskTest::with(4, mask, value);
        let all = u64::from(u32::MAX);
        let tests = [
            MaskTest::at(0, 6),
            unknown(all, all),
            MaskTest::at(0, 0xff00),
        ];
        let mut cache = DecodeCache::of_tests(&tests, BYTES).unwrap();
        let low = |number: u64, flags: u64| number << 32 | flags;
        cache.insert(&payload(low(77, 2), 0), decoded(1));
        cache.insert(&payload(low(all, 2), 0), decoded(2));
        for number in [0, 1, 78, all - 1, 1 << 31] {
            assert_eq!(found(&cache, low(number, 2), 5), Some(1), "{number}");
            assert_ne!(found(&cache, low(number, 4), 5), Some(1), "{number}");
        }
        assert_eq!(found(&cache, low(all, 3), 5), Some(2));
        // With two constants, or a mask of some bits, the whole number is part of the key.
        for other in [unknown(all, 5), unknown(0xf0, 0)] {
            let mut cache = DecodeCache::of_tests(&[unknown(all, all), other], BYTES).unwrap();
            cache.insert(&payload(low(77, 2), 0), decoded(1));
            assert_eq!(found(&cache, low(78, 2), 0), None);
            assert_eq!(found(&cache, low(77, 0), 0), Some(1));
        }
    }

    #[test]
    fn elements_without_conditions_share_an_entry() {
        let mut cache = DecodeCache::of_tests(&[], 3).unwrap();
        assert!(cache.lookup(&[1, 2, 3]).is_none());
        cache.insert(&[1, 2, 3], decoded(4));
        assert_eq!(cache.lookup(&[9, 9, 9]).map(|found| found.parts.0), Some(4));
    }
}
