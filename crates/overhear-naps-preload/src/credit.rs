// SPDX-License-Identifier: MIT OR Apache-2.0
//! What allocations may spend, and which threads are not watched.

use core::cell::Cell;

use overhear_stream::sync::{AtomicU64, Ordering};

/// What may be spent before the handler grants more.
const START_NS: u64 = 5_000_000;
/// Nanoseconds that allocations may spend, as a signed number.
pub(crate) static CREDIT: AtomicU64 = AtomicU64::new(START_NS);

thread_local! {
    /// The thread is inside this library, or is its handler.
    pub(crate) static INSIDE: Cell<bool> = const { Cell::new(false) };
    static HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Marks the calling thread as the handler.
pub(crate) fn enter_handler() {
    INSIDE.set(true);
    HANDLER.set(true);
}

pub(crate) fn is_handler() -> bool {
    HANDLER.get()
}

/// Lets allocations spend this much until the next call.
pub(crate) fn grant(credit_ns: u64) {
    // Relaxed: only the sum matters. Debt is in the account of the handler.
    CREDIT.store(credit_ns, Ordering::Relaxed);
}
