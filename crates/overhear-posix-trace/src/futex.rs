// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a word in memory that several processes share.

use overhear_stream::sync::{AtomicU32, AtomicU64, Ordering};
use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::Timespec;

/// The reason for the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The word changed, or might have.
    Changed,
    /// A signal handler ran.
    Interrupted,
    /// The time is over.
    TimedOut,
}

/// Until when to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// For ever.
    Woken,
    /// A time of `CLOCK_REALTIME`.
    Realtime(Timespec),
    /// For this time.
    Span(Timespec),
}

/// The half of a word that the kernel compares: the low one.
fn low(word: &AtomicU64) -> &AtomicU32 {
    let half = usize::from(cfg!(target_endian = "big"));
    let pointer = std::ptr::from_ref(word).cast::<u32>().cast_mut();
    // SAFETY: the half of a valid word is valid and aligned as long as the word. Its other accesses
    // are atomic; the mixed sizes only meet in the kernel, which compares whole halves.
    unsafe { AtomicU32::from_ptr(pointer.add(half)) }
}

/// Waits while the word has this value.
pub(crate) fn wait(word: &AtomicU64, value: u64, until: Until) -> Woken {
    let expected = value as u32;
    let shared = futex::Flags::empty();
    let result = match until {
        Until::Woken => futex::wait(low(word), shared, expected, None),
        Until::Span(span) => futex::wait(low(word), shared, expected, Some(&span)),
        Until::Realtime(time) => futex::wait_bitset(
            low(word),
            futex::Flags::CLOCK_REALTIME,
            expected,
            Some(&time),
            std::num::NonZeroU32::MAX,
        ),
    };
    match result {
        Err(Errno::INTR) => Woken::Interrupted,
        Err(Errno::TIMEDOUT) => Woken::TimedOut,
        _ => Woken::Changed,
    }
}

/// Wakes all threads that wait for the word. Async-signal-safe.
pub(crate) fn wake_all(word: &AtomicU64) {
    let _ = futex::wake(low(word), futex::Flags::empty(), i32::MAX as u32);
}

/// SYNC(wait): the value of the word, before the check that decides whether to wait.
pub(crate) fn value(word: &AtomicU64) -> u64 {
    word.load(Ordering::SeqCst)
}
