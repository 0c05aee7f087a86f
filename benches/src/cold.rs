// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is evicted from the caches.

use std::ffi::c_void;

/// Pieces of memory that a write touches.
#[derive(Clone, Debug)]
pub(crate) struct Lines(Vec<(*const u8, usize)>);

impl Lines {
    pub(crate) fn of<T>(value: &T) -> Self {
        Self::at((&raw const *value).cast(), size_of::<T>())
    }

    pub(crate) fn at(begin: *const c_void, bytes: usize) -> Self {
        Self(vec![(begin.cast(), bytes)])
    }

    pub(crate) fn and(mut self, begin: *const c_void, bytes: usize) -> Self {
        self.0.push((begin.cast(), bytes));
        self
    }

    /// Evicts them from every cache. If programs on this CPU have no such instruction, it does
    /// nothing.
    pub(crate) fn flush(&self) {
        #[cfg(target_arch = "x86_64")]
        for &(begin, bytes) in &self.0 {
            for at in (0..bytes).step_by(64) {
                // SAFETY: the pieces stay mapped until the process ends; flushing a line changes no
                // value.
                unsafe { core::arch::x86_64::_mm_clflush(begin.add(at)) };
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: waits for the flushes, nothing else.
        unsafe {
            core::arch::x86_64::_mm_mfence();
        }
    }
}
