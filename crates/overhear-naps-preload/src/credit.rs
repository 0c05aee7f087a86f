// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which allocations are watched: what hooks may spend, which allocations are passed over, and
//! which threads are not watched.
//!
//! The handler grants a credit in nanoseconds and a mean gap. A thread that watches an allocation
//! draws the number of allocations that it passes over until the next one. It counts them in words
//! of its own, and adds them to the sum of the process in batches. So an allocation that is passed
//! over costs one subtraction, and threads do not wait for a common cache line.

use core::cell::Cell;

use overhear_naps::AllocationGrant;
use overhear_stream::sync::{AtomicU64, Ordering};

use crate::hot;
use crate::table::{self, COUNTS};

/// Fixed-point unit of the mean gap.
const ONE: f64 = 65_536.0;
/// Number of allocations that a thread without credit passes over before it looks again.
const BLIND: u64 = 16;
/// Largest number of allocations that a thread passes over before it adds them to the sum.
const BATCH: u64 = 256;
/// Price of an allocation that is passed over and freed, in nanoseconds: the hooks.
const PASSED_OVER_NS: u64 = 8;
/// Largest gap.
const MAX_GAP: f64 = 1e6;

/// Least size of a watched allocation: none before the constructor.
pub(crate) static MIN_SIZE: AtomicU64 = AtomicU64::new(u64::MAX);
/// Price of a page fault with a zeroed page in nanoseconds, until the handler has measured it.
static PAGE_NS: AtomicU64 = AtomicU64::new(700);
/// Nanoseconds that allocations may spend, as a signed number; negative: debt.
static CREDIT: AtomicU64 = AtomicU64::new(0);
/// Mean number of allocations between two watched ones, in parts of [`ONE`].
static MEAN_GAP: AtomicU64 = AtomicU64::new(0);
/// Allocations that all threads passed over, without the last batches of threads that ended or run.
static PASSED_OVER: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);

thread_local! {
    /// The thread is inside this library, or is its handler.
    pub(crate) static INSIDE: Cell<bool> = const { Cell::new(false) };
    static HANDLER: Cell<bool> = const { Cell::new(false) };
    /// Allocations to pass over before the next look at the gap.
    static LEFT: Cell<u64> = const { Cell::new(0) };
    /// Allocations to pass over after those.
    static GAP: Cell<u64> = const { Cell::new(0) };
    /// Allocations of the batch that [`LEFT`] counts down, as far as the sum lacks them.
    static BOOKED: Cell<u64> = const { Cell::new(0) };
}

/// Marks the calling thread as the handler.
pub(crate) fn enter_handler() {
    INSIDE.set(true);
    HANDLER.set(true);
}

/// The handler is the last thread, and ends the process as any other one would.
pub(crate) fn leave_handler() {
    HANDLER.set(false);
}

pub(crate) fn is_handler() -> bool {
    HANDLER.get()
}

/// Lets calls of `malloc` start a handler, or no longer.
pub(crate) fn start_handler_later(later: bool) {
    // Relaxed: a hint; a call that comes too early or too late does no harm.
    let least = MIN_SIZE.load(Ordering::Relaxed);
    hot::look_from(if later { 0 } else { least });
}

/// Sets the measured price of a page.
pub(crate) fn set_page_price(ns: u64) {
    PAGE_NS.store(ns, Ordering::Relaxed);
}

/// Nothing is watched any more.
pub(crate) fn watch_no_more() {
    MIN_SIZE.store(u64::MAX, Ordering::Relaxed);
    hot::look_from(u64::MAX);
}

/// Price of a page fault with a zeroed page.
pub(crate) fn page_price_ns() -> u64 {
    PAGE_NS.load(Ordering::Relaxed)
}

/// Allocations of this size are watched from now on.
pub(crate) fn watch_from(bytes: u64) {
    MIN_SIZE.store(bytes, Ordering::Relaxed);
    hot::look_from(bytes);
}

/// Lets allocations spend this much until the next call.
pub(crate) fn grant(grant: AllocationGrant) {
    // Relaxed, as all words of this file: only sums matter. Debt is in the account of the handler.
    CREDIT.store(grant.credit_ns.min(i64::MAX as u64), Ordering::Relaxed);
    let gap = grant.mean_gap.clamp(0.0, MAX_GAP) * ONE;
    MEAN_GAP.store(gap as u64, Ordering::Relaxed);
}

/// Whether an allocation of this price is passed over.
#[inline(always)]
pub(crate) fn is_passed_over(price_ns: i64) -> bool {
    let left = LEFT.get();
    if left > 0 {
        LEFT.set(left - 1);
        return true;
    }
    begin_batch(price_ns)
}

/// Begins the next batch of the gap, or draws the next gap. Returns whether the allocation is
/// passed over, as the first of a batch.
#[cold]
fn begin_batch(price_ns: i64) -> bool {
    flush();
    let has_credit = CREDIT.load(Ordering::Relaxed) as i64 >= price_ns;
    let mean = MEAN_GAP.load(Ordering::Relaxed) as f64 / ONE;
    // A gap that was drawn under a smaller share may be longer than all that follow.
    let gap = GAP.get().min((2.0 * mean) as u64 + 1);
    let batch = match (gap, has_credit) {
        (0, true) => {
            // Uniform from 0 to twice the mean, rounded at random.
            GAP.set((2.0 * mean * random() + random()) as u64);
            return false;
        }
        (0, false) => BLIND,
        (gap, _) => gap.min(BATCH),
    };
    GAP.set(gap.saturating_sub(batch));
    BOOKED.set(batch);
    LEFT.set(batch - 1);
    true
}

/// Adds what the calling thread passed over to the sum.
pub(crate) fn flush() {
    let left = LEFT.get();
    let passed = BOOKED.replace(left).saturating_sub(left);
    PASSED_OVER.fetch_add(passed, Ordering::Relaxed);
}

/// From 0 to 1. Threads that race draw the same number.
fn random() -> f64 {
    let mut word = RANDOM.load(Ordering::Relaxed);
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    RANDOM.store(word, Ordering::Relaxed);
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// Takes a cost from the credit.
pub(crate) fn pay(cost_ns: u64) {
    CREDIT.fetch_sub(cost_ns, Ordering::Relaxed);
}

/// Allocations that were passed over to keep the budget: at most [`BATCH`] less one per thread are
/// missing.
pub(crate) fn passed_over() -> u64 {
    PASSED_OVER.load(Ordering::Relaxed)
}

/// Cost of all that hooks did.
pub(crate) fn cost_ns() -> u64 {
    let watched = table::get(&COUNTS.cost_ns);
    watched + passed_over() * PASSED_OVER_NS
}

/// In a forked child: the count begins again.
pub(crate) fn forget() {
    flush();
    PASSED_OVER.store(0, Ordering::Relaxed);
}
