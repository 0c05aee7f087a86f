// SPDX-License-Identifier: MIT OR Apache-2.0
//! The atomics of the whole project, replaced by loom's under `--cfg loom`, and by shuttle's under
//! `--cfg loom --cfg shuttle`: the same small layout, other schedules.
//!
//! Every operation stronger than relaxed carries a label `SYNC(name)` in the code; its partner
//! carries the same label. The labels of this crate:
//!
//! - `SYNC(publish)`: the writer's release store of the counter, the reader's acquire load. Whoever
//!   sees counter `c` sees the elements before `c`, unless they have been overwritten since.
//! - `SYNC(overwrite)`: the writer's release fence after the store of the counter, the reader's
//!   acquire fence after its copy. A reader whose copy saw any word of a later element also sees
//!   the counter that allowed that element to be written, and so rejects the copy. In a queue the
//!   fence follows the change of `tail`, and the reader loads `tail`; in an event ring it follows
//!   the store of a busy turn, and the reader loads the turn.
//! - `SYNC(take)`, `SYNC(give)`, `SYNC(advance)`: `tail`, the index words and `head` of a queue,
//!   each from the compare-and-exchange that changes it (release) to its loads (acquire). Whoever
//!   sees position t in `tail` sees that t was taken no earlier than its predecessors were; whoever
//!   finds an element through its index word sees what its last owner stored into it; whoever sees
//!   position h in `head` sees the index words before h, or later ones.
//! - `SYNC(reclaim)`: the directory's release store of a reclaimed word, the acquire load of the
//!   thread that claims the lane. Who claims a lane finds its counter as the dead owner left it.
//! - `SYNC(claim)`: the exchange of a lane's owner word, with itself in the thread that claims
//!   next.
//! - `SYNC(position)`, `SYNC(turn)`, `SYNC(void)`, `SYNC(free)`: `head`, the turns, the void words
//!   and `tail` of an event ring, each from the store or compare-and-exchange that changes it
//!   (release) to its loads (acquire). A thread that sees a position in `head` also sees
//!   the turns that its claimer saw, or later ones. A thread that sees a published turn also sees
//!   the event, and may store over it. A thread that sees a count of void positions also sees
//!   `head` after the last of them. A thread that sees a position in `tail` may store over the
//!   events before it.

#[cfg(not(loom))]
pub use core::hint::spin_loop;
#[cfg(not(loom))]
pub use core::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(all(loom, not(shuttle)))]
pub use loom::hint::spin_loop;
#[cfg(all(loom, not(shuttle)))]
pub use loom::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
pub use shuttle::hint::spin_loop;
#[cfg(shuttle)]
pub use shuttle::sync::atomic::{fence, AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A number that a signal handler adds to and anybody reads. Nothing else follows from it, so all
/// of its accesses are relaxed; they are async-signal-safe and wait-free.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub struct SignalCount(AtomicU64);

#[cfg(not(loom))]
impl SignalCount {
    /// One more.
    pub fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many there were.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Orders the memory accesses of a thread for the signal handlers that interrupt it: the compiler
/// moves none across. It costs no instruction.
#[inline(always)]
pub fn signal_fence() {
    // Loom has no signal handlers, and nothing that one could see out of order.
    #[cfg(not(loom))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}
