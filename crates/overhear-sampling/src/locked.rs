// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that stays in RAM, and threads that are woken in time.
#![allow(unsafe_code)]

use overhear_stream::Words;

/// Locks the memory. False if the limit of locked memory, or a permission, forbids it.
pub(crate) fn lock(words: &impl Words) -> bool {
    let range = words.range(0, words.len());
    let begin = range.as_ptr().cast_mut().cast();
    // SAFETY: `range` is borrowed memory of this length, and locking it changes no byte.
    unsafe { rustix::mm::mlock(begin, size_of_val(range)) }.is_ok()
}

/// Gives the calling thread the lowest real-time priority, above all threads without one. False
/// without the permission.
pub(crate) fn run_first() -> bool {
    // SAFETY: the parameter is a valid structure for the length of the call.
    unsafe {
        let mut parameter: libc::sched_param = std::mem::zeroed();
        parameter.sched_priority = 1;
        libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameter) == 0
    }
}
