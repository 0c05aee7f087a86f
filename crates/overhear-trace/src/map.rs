// SPDX-License-Identifier: MIT OR Apache-2.0
//! Read-only maps of stream files, and how they are fetched from memory: with the module `foreign` the only `unsafe` of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::time::SystemTime;

use memmap2::Mmap;

/// The bytes that a stream file had when it was mapped, at most up to a length that is set
/// afterwards.
#[derive(Debug)]
pub(crate) struct Map {
    map: Option<Mmap>,
    length: usize,
    modified: Option<SystemTime>,
}

/// Has what lies so many bytes behind the beginning of these fetched into the nearest cache, without waiting for it, where
/// the processor can be told so. It need not be a part of them.
#[inline(always)]
pub(crate) fn fetch(bytes: &[u8], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: A prefetch is a hint. It reads nothing that a program could see and never faults, wherever it points.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(ahead).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    // Looking at it is enough.
    std::hint::black_box(bytes.get(ahead).copied().unwrap_or(0));
}

impl Map {
    /// A stream that has no file (yet), or an empty one.
    pub(crate) const fn empty() -> Self {
        Self {
            map: None,
            length: 0,
            modified: None,
        }
    }

    /// Maps a regular file, whole.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let about = file.metadata()?;
        if about.len() == 0 {
            return Ok(Self::empty());
        }
        // SAFETY: Mapped bytes must neither change nor vanish while they are borrowed. The one
        // process that writes stream files is a recorder: it opens them for appending, never
        // maps them, and after a failed write cuts them no shorter than the last whole packet.
        // `repair` cuts torn tails only, and only where no recorder holds the lock. Both leave
        // whole packets alone, and `keep` withdraws everything behind those once the reader has
        // looked. Whoever else truncates a trace under a running reader ends that reader with
        // SIGBUS, and whoever else overwrites one changes values that were never trusted: no
        // reference to anything but plain bytes is made from them, and every number is copied
        // out before it is checked, so that it is checked and used in the same version.
        let map = unsafe { Mmap::map(file) }?;
        let length = map.len();
        Ok(Self {
            map: Some(map),
            length,
            modified: about.modified().ok(),
        })
    }

    /// When the file was written last, by the clock of its file system.
    pub(crate) const fn modified(&self) -> Option<SystemTime> {
        self.modified
    }

    /// Forgets what comes after the first `length` bytes.
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
