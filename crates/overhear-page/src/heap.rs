// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heap of the process: freed memory goes back to the system.

/// Gives the free memory between used blocks back to the system. Otherwise the C library keeps it.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back() {
    // SAFETY: it is called like any function of the allocator, and changes free memory only.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries give memory back on their own.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back() {}
