// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read-only maps of stream files, and prefetches from them: with the module `foreign` the only
//! `unsafe` of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::time::SystemTime;

use memmap2::Mmap;

/// The bytes that a stream file had when it was mapped, possibly cut to a length that is set
/// afterwards.
#[derive(Debug)]
pub(crate) struct Map {
    map: Option<Mmap>,
    length: usize,
    modified: Option<SystemTime>,
}

/// Prefetches the memory `ahead` bytes after the begin of these bytes into the nearest cache,
/// without waiting for it, if the processor has an instruction for it. The place need not be a part
/// of them.
#[inline(always)]
pub(crate) fn fetch(bytes: &[u8], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: A prefetch is a hint. It has no effect that a program could observe, and never
    // faults, at any address.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(ahead).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    // A read of the byte is enough.
    std::hint::black_box(bytes.get(ahead).copied().unwrap_or(0));
}

impl Map {
    /// A map for a stream that has no file (yet), or an empty one.
    pub(crate) const fn empty() -> Self {
        Self {
            map: None,
            length: 0,
            modified: None,
        }
    }

    /// Maps a whole regular file.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let about = file.metadata()?;
        if about.len() == 0 {
            return Ok(Self::empty());
        }
        // SAFETY: Mapped bytes must neither change nor vanish while they are borrowed. Only a
        // recorder writes stream files. It opens them for appending, never maps them, and after a
        // failed write cuts them no shorter than the last whole packet. `repair` cuts torn tails
        // only, and only if no recorder holds the lock. Neither changes whole packets, and `keep`
        // removes everything after those from the map once the reader has scanned it. Another
        // process that truncates a trace under a running reader ends that reader with SIGBUS; one
        // that overwrites a trace changes values that were never trusted: no reference to anything
        // but plain bytes is made from them, and every number is copied out before it is checked,
        // so that the checked and the used value are the same.
        let map = unsafe { Mmap::map(file) }?;
        let length = map.len();
        Ok(Self {
            map: Some(map),
            length,
            modified: about.modified().ok(),
        })
    }

    /// Time of the last write to the file, by the clock of its file system.
    pub(crate) const fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// Drops the bytes after the first `length` ones.
    pub(crate) fn keep(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// The bytes, untrusted.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.map {
            Some(map) => &map[..self.length],
            None => &[],
        }
    }
}
