// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which allocations are watched: what hooks may spend, which allocations are passed over, and which
//! threads are not watched.
//!
//! The handler grants a credit in nanoseconds and a mean gap. A hook that watches an allocation draws
//! the number of allocations that are passed over until the next one. So an allocation that is passed
//! over costs one subtraction.

use core::cell::Cell;

use overhear_naps::AllocationGrant;
use overhear_stream::sync::{AtomicU64, Ordering};

use crate::table::{self, COUNTS};

/// Fixed-point unit of the mean gap.
const ONE: f64 = 65_536.0;
/// Without credit so many allocations are passed over before the next look.
const BLIND: i64 = 16;
/// Price of an allocation that is passed over and freed, in nanoseconds: the hooks, and the locks that
/// the C library takes as soon as there is a second thread.
const PASSED_OVER_NS: u64 = 20;
/// Largest gap.
const MAX_GAP: f64 = 1e6;

/// Nanoseconds that allocations may spend, as a signed number; negative: debt.
static CREDIT: AtomicU64 = AtomicU64::new(0);
/// Mean number of allocations between two watched ones, in parts of [`ONE`].
static MEAN_GAP: AtomicU64 = AtomicU64::new(0);
/// Allocations to pass over before the next watched one, as a signed number. Below 1: the next one is
/// watched.
static GAP: AtomicU64 = AtomicU64::new(0);
/// Sum of all drawn gaps.
static DRAWN: AtomicU64 = AtomicU64::new(0);
static RANDOM: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);

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
pub(crate) fn grant(grant: AllocationGrant) {
    // Relaxed, as all words of this file: only sums matter. Debt is in the account of the handler.
    CREDIT.store(grant.credit_ns.min(i64::MAX as u64), Ordering::Relaxed);
    let gap = grant.mean_gap.clamp(0.0, MAX_GAP) * ONE;
    MEAN_GAP.store(gap as u64, Ordering::Relaxed);
    // A gap that was drawn under a smaller share may be longer than all that follow.
    let most = (2.0 * grant.mean_gap).clamp(0.0, MAX_GAP) as i64 + BLIND;
    let excess = gap_ahead() - most;
    if excess > 0 {
        // Allocations that come in between are passed over in any case.
        GAP.fetch_sub(excess as u64, Ordering::Relaxed);
        DRAWN.fetch_sub(excess as u64, Ordering::Relaxed);
    }
}

/// Whether an allocation of this price is passed over.
#[inline(always)]
pub(crate) fn is_passed_over(price_ns: i64) -> bool {
    // Several threads may watch one allocation each where one was meant.
    (GAP.fetch_sub(1, Ordering::Relaxed) as i64) > 0 || draw(price_ns)
}

fn gap_ahead() -> i64 {
    GAP.load(Ordering::Relaxed) as i64
}

/// Draws the next gap. Returns whether there is no credit.
#[cold]
fn draw(price_ns: i64) -> bool {
    if (CREDIT.load(Ordering::Relaxed) as i64) < price_ns {
        GAP.store(BLIND as u64 - 1, Ordering::Relaxed);
        DRAWN.fetch_add(BLIND as u64, Ordering::Relaxed);
        return true;
    }
    let mean = MEAN_GAP.load(Ordering::Relaxed) as f64 / ONE;
    let gap = if mean > 0.0 {
        // Uniform from 0 to twice the mean, rounded at random.
        (2.0 * mean * random() + random()) as u64
    } else {
        0
    };
    GAP.store(gap, Ordering::Relaxed);
    DRAWN.fetch_add(gap, Ordering::Relaxed);
    false
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

/// Allocations that were passed over to keep the budget.
pub(crate) fn passed_over() -> u64 {
    let ahead = gap_ahead().max(0) as u64;
    DRAWN.load(Ordering::Relaxed).saturating_sub(ahead)
}

/// Cost of all that hooks did.
pub(crate) fn cost_ns() -> u64 {
    let watched = table::get(&COUNTS.cost_ns);
    watched + passed_over() * PASSED_OVER_NS
}

/// In a forked child: the count begins again.
pub(crate) fn forget() {
    GAP.store(0, Ordering::Relaxed);
    DRAWN.store(0, Ordering::Relaxed);
}
