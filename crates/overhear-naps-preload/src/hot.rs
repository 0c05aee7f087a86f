// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words that every call of `malloc` and `free` reads, in one line of the cache.
//!
//! Most calls are passed on: to small allocations this library is not to add more than a comparison
//! and a jump. So one comparison also covers what is rare: until [`open`] all words are 0, and
//! while a handler is to start the least size is, so that calls take the slow path.

use core::ffi::c_void;

use overhear_stream::sync::{AtomicU64, Ordering};

#[repr(C, align(64))]
struct Hot {
    /// Least size of an allocation that a hook looks at.
    look_size: AtomicU64,
    /// Address after the arena, and the bytes from there around to its first address: a block there
    /// is one of the next allocator. At first these are no bytes.
    outside: AtomicU64,
    outside_bytes: AtomicU64,
    /// Addresses of the next definitions, valid where the comparisons above pass a call on.
    malloc: AtomicU64,
    calloc: AtomicU64,
    free: AtomicU64,
}

// Relaxed, as all accesses in this file: the constructor writes before another thread exists, and
// later only the least size changes, which is a hint.
static HOT: Hot = Hot {
    look_size: AtomicU64::new(0),
    outside: AtomicU64::new(0),
    outside_bytes: AtomicU64::new(0),
    malloc: AtomicU64::new(0),
    calloc: AtomicU64::new(0),
    free: AtomicU64::new(0),
};

/// Addresses of the next definitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) malloc: usize,
    pub(crate) calloc: usize,
    pub(crate) free: usize,
}

/// Lets calls be passed on, from the constructor. Without one of the addresses all calls keep to
/// the slow path.
pub(crate) fn open(next: Next, arena: usize, arena_bytes: usize) {
    if [next.malloc, next.calloc, next.free].contains(&0) {
        return;
    }
    HOT.malloc.store(next.malloc as u64, Ordering::Relaxed);
    HOT.calloc.store(next.calloc as u64, Ordering::Relaxed);
    HOT.free.store(next.free as u64, Ordering::Relaxed);
    // Without an arena all addresses but the last one are outside, where no block begins.
    let outside_bytes = (arena_bytes as u64).wrapping_neg().wrapping_sub(1);
    let end = (arena + arena_bytes) as u64;
    HOT.outside.store(end, Ordering::Relaxed);
    HOT.outside_bytes.store(outside_bytes, Ordering::Relaxed);
    look_from(u64::MAX);
}

/// Sets the least size of an allocation that a hook looks at.
pub(crate) fn look_from(bytes: u64) {
    if HOT.malloc.load(Ordering::Relaxed) != 0 {
        HOT.look_size.store(bytes, Ordering::Relaxed);
    }
}

/// Whether a hook looks at an allocation of this size. The others are for [`malloc`] and
/// [`calloc`].
#[inline(always)]
pub(crate) fn is_looked_at(size: usize) -> bool {
    size as u64 >= HOT.look_size.load(Ordering::Relaxed)
}

/// Whether a block is surely not of the arena. Such blocks are for [`free`].
#[inline(always)]
pub(crate) fn is_outside(block: *mut c_void) -> bool {
    (block as u64).wrapping_sub(HOT.outside.load(Ordering::Relaxed))
        < HOT.outside_bytes.load(Ordering::Relaxed)
}

/// The next `malloc`.
///
/// # Safety
/// The size is not looked at.
#[inline(always)]
pub(crate) unsafe fn malloc(size: usize) -> *mut c_void {
    let address = HOT.malloc.load(Ordering::Relaxed) as usize;
    // SAFETY: a size that is not looked at proves that `open` has set the address.
    let next: unsafe extern "C" fn(usize) -> *mut c_void = unsafe { core::mem::transmute(address) };
    // SAFETY: as the caller's call.
    unsafe { next(size) }
}

/// The next `calloc`.
///
/// # Safety
/// The size is not looked at.
#[inline(always)]
pub(crate) unsafe fn calloc(count: usize, size: usize) -> *mut c_void {
    let address = HOT.calloc.load(Ordering::Relaxed) as usize;
    // SAFETY: as in `malloc`.
    let next: unsafe extern "C" fn(usize, usize) -> *mut c_void =
        unsafe { core::mem::transmute(address) };
    // SAFETY: as the caller's call.
    unsafe { next(count, size) }
}

/// The next `free`.
///
/// # Safety
/// As `free`, and the block is outside.
#[inline(always)]
pub(crate) unsafe fn free(block: *mut c_void) {
    let address = HOT.free.load(Ordering::Relaxed) as usize;
    // SAFETY: a block that is outside proves that `open` has set the address.
    let next: unsafe extern "C" fn(*mut c_void) = unsafe { core::mem::transmute(address) };
    // SAFETY: as the caller's call.
    unsafe { next(block) }
}
