// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory as atomic 64-bit words: the only way this crate touches a stream.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::NonNull;

use crate::sync::{AtomicU64, Ordering};

/// Words of memory that others may read and write at the same time.
///
/// All accesses are atomic, so no race is undefined behaviour; what the values mean is for the
/// caller to find out. Indices out of bounds panic: they are broken internal invariants, because
/// every index is computed from a checked [`Geometry`](crate::Geometry).
pub trait Words {
    /// Number of words.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at `index`.
    ///
    /// # Panics
    /// If `index` is out of bounds.
    fn word(&self, index: usize) -> &AtomicU64;

    /// `count` words from `start` on, with one bounds check for all.
    ///
    /// # Panics
    /// If they are out of bounds.
    fn range(&self, start: usize, count: usize) -> &[AtomicU64];

    /// As [`Self::range`], without a bounds check, for callers that have proven the bounds: a
    /// thread that has just been woken has less code to fetch.
    ///
    /// # Safety
    /// They are in bounds.
    #[inline(always)]
    unsafe fn range_unchecked(&self, start: usize, count: usize) -> &[AtomicU64] {
        self.range(start, count)
    }
}

impl<W: Words> Words for &W {
    #[inline(always)]
    fn len(&self) -> usize {
        W::len(self)
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        W::word(self, index)
    }

    #[inline(always)]
    fn range(&self, start: usize, count: usize) -> &[AtomicU64] {
        W::range(self, start, count)
    }
}

/// Stores bytes into words, relaxed. The rest of the last word is zeroed. Later words are
/// unchanged.
///
/// # Panics
/// If the bytes do not fit.
#[inline(always)]
pub(crate) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let (whole, rest) = words.split_at(bytes.len() / 8);
    let mut chunks = bytes.chunks_exact(8);
    for (word, chunk) in whole.iter().zip(&mut chunks) {
        let chunk = chunk.try_into().unwrap_or_default();
        // Relaxed: SYNC(publish) makes the payload visible.
        word.store(u64::from_ne_bytes(chunk), Ordering::Relaxed);
    }
    let tail = chunks.remainder();
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        rest[0].store(u64::from_ne_bytes(last), Ordering::Relaxed);
    }
}

/// Loads words up to the shorter length, relaxed. Other threads may store them at the same time, so
/// the values are valid only after a check.
#[inline(always)]
pub(crate) fn load_words(to: &mut [u64], from: &[AtomicU64]) {
    // The compiler neither widens atomic loads nor unrolls their loops.
    let (to_runs, to_rest) = to.as_chunks_mut::<8>();
    let (from_runs, from_rest) = from.as_chunks::<8>();
    for (to, from) in to_runs.iter_mut().zip(from_runs) {
        *to = load_line(from);
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = from.load(Ordering::Relaxed);
    }
}

/// Loads eight words.
#[inline(always)]
#[cfg(any(loom, miri, not(target_arch = "x86_64")))]
fn load_line(from: &[AtomicU64; 8]) -> [u64; 8] {
    core::array::from_fn(|at| from[at].load(Ordering::Relaxed))
}

/// Loads eight words by the vector loads that every x86-64 CPU has: half the time of word by word.
///
/// The compiler sees one opaque reader of memory, which it moves neither across fences nor across
/// other accesses to memory, and no data race. To the CPU these are loads like all others, ordered
/// with the loads before and behind them; a pair of words may be torn apart, as two single loads
/// may be.
#[inline(always)]
#[cfg(not(any(loom, miri, not(target_arch = "x86_64"))))]
fn load_line(from: &[AtomicU64; 8]) -> [u64; 8] {
    use core::arch::x86_64::__m128i;

    let (a, b, c, d): (__m128i, __m128i, __m128i, __m128i);
    // SAFETY: reads the 64 bytes of the array, which are mapped, and writes the four registers;
    // these are plain bits of the same size.
    unsafe {
        core::arch::asm!(
            "movdqu {a}, xmmword ptr [{from}]",
            "movdqu {b}, xmmword ptr [{from} + 16]",
            "movdqu {c}, xmmword ptr [{from} + 32]",
            "movdqu {d}, xmmword ptr [{from} + 48]",
            from = in(reg) from.as_ptr(),
            a = out(xmm_reg) a,
            b = out(xmm_reg) b,
            c = out(xmm_reg) c,
            d = out(xmm_reg) d,
            options(nostack, preserves_flags, readonly),
        );
        core::mem::transmute::<[__m128i; 4], [u64; 8]>([a, b, c, d])
    }
}

/// Memory mapped from elsewhere.
///
/// Holding one proves that the words exist and are aligned for as long as the value lives; it
/// proves nothing about who else writes them.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(C)]
pub struct SharedWords {
    // First, because a lane that C writes begins with it.
    base: NonNull<u64>,
    len: usize,
}

#[cfg(not(loom))]
impl SharedWords {
    /// Takes memory as words.
    ///
    /// # Safety
    /// `base` is aligned to 8 bytes and `len` words from there stay mapped readable, and writable
    /// if a writer is built on them, until the value is dropped. No code in this process accesses
    /// them by other than atomic operations.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u64>, len: usize) -> Self {
        Self { base, len }
    }
}

// SAFETY: the words are only reached through atomics, and the mapping is bound to the value, not
// to a thread (contract of `new`).
#[cfg(not(loom))]
unsafe impl Send for SharedWords {}
// SAFETY: as for Send; shared references allow atomic operations alone.
#[cfg(not(loom))]
unsafe impl Sync for SharedWords {}

#[cfg(not(loom))]
impl Words for SharedWords {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        if index >= self.len {
            out_of_bounds(index, 1, self.len);
        }
        // SAFETY: in bounds by the lines above; mapped, aligned and accessed atomically only, by
        // the contract of `new`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(index)) }
    }

    #[inline(always)]
    fn range(&self, start: usize, count: usize) -> &[AtomicU64] {
        if start > self.len || count > self.len - start {
            out_of_bounds(start, count, self.len);
        }
        // SAFETY: in bounds by the lines above.
        unsafe { self.range_unchecked(start, count) }
    }

    #[inline(always)]
    unsafe fn range_unchecked(&self, start: usize, count: usize) -> &[AtomicU64] {
        debug_assert!(start <= self.len && count <= self.len - start);
        // SAFETY: in bounds by contract; mapped, aligned and accessed atomically only, by the
        // contract of `new`. An atomic has the layout of its integer.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr().add(start).cast(), count) }
    }
}

/// Out of line, so that no write carries the arguments of a message that is never printed.
#[cfg(not(loom))]
#[cold]
#[inline(never)]
fn out_of_bounds(start: usize, count: usize, len: usize) -> ! {
    panic!("{count} words at {start} of {len}")
}

/// Mapped memory together with the value that keeps it mapped. Several streams can share a mapping:
/// then `K` is a share of it.
#[derive(Debug)]
pub struct KeptWords<K> {
    words: SharedWords,
    // Dropped after the words, which have no destructor.
    keeper: K,
}

impl SharedWords {
    /// Ties the words to the value that the contract of `new` depends on.
    #[must_use]
    pub const fn kept_by<K>(self, keeper: K) -> KeptWords<K> {
        KeptWords {
            words: self,
            keeper,
        }
    }
}

#[cfg(not(loom))]
impl<T> KeptWords<Arc<T>> {
    /// The same words, kept by another share of the same value.
    #[must_use]
    pub fn share(&self) -> Self {
        // The contract of `SharedWords::new` holds for as long as the value lives, and so for each
        // of its shares.
        Self {
            words: SharedWords {
                base: self.words.base,
                len: self.words.len,
            },
            keeper: Arc::clone(&self.keeper),
        }
    }
}

impl<K> KeptWords<K> {
    /// The value that keeps the memory mapped.
    #[must_use]
    pub const fn keeper(&self) -> &K {
        &self.keeper
    }
}

impl<K> Words for KeptWords<K> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.words.len()
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        self.words.word(index)
    }

    #[inline(always)]
    fn range(&self, start: usize, count: usize) -> &[AtomicU64] {
        self.words.range(start, count)
    }
}

/// Memory of this process, shared between its owners: for private streams and for tests.
#[derive(Clone, Debug)]
pub struct OwnedWords {
    all: Arc<Vec<AtomicU64>>,
    // The part that this owner sees.
    start: usize,
    len: usize,
}

impl OwnedWords {
    /// `len` words of zero.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let all = Arc::new((0..len).map(|_| AtomicU64::new(0)).collect());
        Self { all, start: 0, len }
    }

    /// An owner of some of the words alone: a lane of a pool.
    ///
    /// # Panics
    /// If they are out of bounds.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Self {
        let len = self.range(start, len).len();
        let (all, start) = (Arc::clone(&self.all), self.start + start);
        Self { all, start, len }
    }

    /// Another owner of the same words.
    #[must_use]
    pub fn share(&self) -> Self {
        self.clone()
    }
}

impl Words for OwnedWords {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.all[self.start..][..self.len][index]
    }

    #[inline(always)]
    fn range(&self, start: usize, count: usize) -> &[AtomicU64] {
        &self.all[self.start..][..self.len][start..][..count]
    }
}

#[cfg(loom)]
/// Mapped memory does not exist under loom; the stub keeps the crate's shape.
#[derive(Debug)]
pub struct SharedWords(NonNull<u64>);

#[cfg(loom)]
impl Words for SharedWords {
    fn len(&self) -> usize {
        0
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        panic!("word {index} of 0 at {:?}", self.0)
    }

    fn range(&self, start: usize, count: usize) -> &[AtomicU64] {
        panic!("{count} words at {start} of 0 at {:?}", self.0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;

    use alloc::sync::Arc;
    use core::ptr::NonNull;
    use std::panic::catch_unwind;

    use super::{store_bytes, OwnedWords, SharedWords, Words};
    use crate::sync::Ordering;

    fn load(words: &impl Words) -> [u64; 4] {
        core::array::from_fn(|index| words.word(index).load(Ordering::Relaxed))
    }

    #[test]
    fn bytes_fill_whole_words_and_zero_the_rest_of_the_last() {
        let words = OwnedWords::zeroed(4);
        (0..4).for_each(|index| words.word(index).store(u64::MAX, Ordering::Relaxed));
        store_bytes(words.range(1, 2), &[1; 9]);
        let expected = [u64::MAX, 0x0101_0101_0101_0101, 1_u64.to_le(), u64::MAX];
        assert_eq!(load(&words), expected);
        store_bytes(words.range(4, 0), &[]);
        assert_eq!(load(&words), expected);
    }

    #[test]
    fn kept_words_are_the_part_and_keep_the_whole() {
        let whole = Arc::new(OwnedWords::zeroed(6));
        (0..6).for_each(|index| whole.word(index).store(index as u64, Ordering::Relaxed));
        let part = NonNull::from(whole.range(2, 4)).cast();
        // SAFETY: the words are tied to a share of the memory, which is reached through them alone.
        let words = unsafe { SharedWords::new(part, 4) }.kept_by(Arc::clone(&whole));
        assert_eq!(load(&words), [2, 3, 4, 5]);
        assert_eq!((words.len(), words.range(4, 0).len()), (4, 0));
        assert!(catch_unwind(|| words.range(3, 2).len()).is_err());
        assert_eq!(Arc::strong_count(words.keeper()), 2);
        let again = words.share();
        drop(words);
        assert_eq!(load(&again), [2, 3, 4, 5]);
        drop(again);
        assert_eq!(Arc::strong_count(&whole), 1);
    }

    #[test]
    fn mapped_words_are_the_memory_and_end_where_it_ends() {
        let mut memory = [1_u64, 2, 3, 4];
        let base = NonNull::from(&mut memory).cast();
        // SAFETY: the array outlives the words and is reached through them alone.
        let words = unsafe { SharedWords::new(base, 4) };
        assert_eq!(load(&words), [1, 2, 3, 4]);
        assert_eq!(words.range(1, 3).len(), 3);
        assert_eq!(words.range(4, 0).len(), 0);
        for (start, count) in [(0, 5), (4, 1), (5, 0), (1, usize::MAX), (usize::MAX, 2)] {
            let beyond = catch_unwind(|| words.range(start, count).len());
            assert!(beyond.is_err(), "{count} words at {start}");
        }
        assert!(catch_unwind(|| words.word(4).load(Ordering::Relaxed)).is_err());
    }
}
