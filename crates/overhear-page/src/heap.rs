// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heap of the command: what was freed goes back to the system.

/// Gives back the free memory between blocks that are in use. The C library keeps it otherwise.
#[cfg(target_env = "gnu")]
pub(crate) fn give_back() {
    // SAFETY: It is called like any function of the allocator, and changes free memory alone.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries give memory back by themselves.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn give_back() {}
