// SPDX-License-Identifier: MIT OR Apache-2.0
//! The preload library of `overhear naps`.
//!
//! ```text
//! malloc, mmap, ... --hooks--> table of allocations --events--> handler thread
//!                                                               |  ^
//!                                          protects, by a back end  accesses
//!                                                               v
//!                                                 document in the session's folder
//! ```
//!
//! A program that is started with this library in `LD_PRELOAD` runs as without it. Allocations of
//! at least the least size get pages of their own, in an address range of the library (`table`).
//! One thread, the `handler`, protects them as often as the budget allows, learns of the
//! next access from the kernel (`backend`), and writes what it found as a JSON document. Without
//! the variable `OVERHEAR_NAPS_FOLDER` the library does nothing.
//!
//! What it must not do, and how that is kept:
//!
//! - *Call itself.* The handler has a `heap` of its own and takes no lock of the program. Hooks
//!   that unwind a stack set a mark of the thread; calls of `malloc` below it are not watched.
//! - *Show descriptors.* The handler thread has its own table of descriptors, so no number changes,
//!   and `closefrom` harms nothing.
//! - *Lose memory in a child.* The fork handler of the child is the first that runs (the linker
//!   option `-z initfirst`), and moves protected pages back. The parent stays protected.
//! - *Get signals.* All are blocked in the handler thread.
#![expect(
    clippy::disallowed_types,
    reason = "a library inside malloc has no locks and channels but its own; they are labelled SYNC(naps_...)"
)]

mod backend;
mod credit;
mod document;
mod engine;
mod handler;
mod heap;
mod hooks;
mod hot;
mod mappings;
mod mark;
mod next;
mod settings;
mod stack;
mod sys;
mod table;
