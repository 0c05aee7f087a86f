// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacks of allocating threads, and the table of distinct ones.
//!
//! Stacks are unwound by the tables of `.eh_frame`, which programs compiled without frame pointers
//! have, too. Each stack is stored once.

use core::cell::UnsafeCell;
use core::ffi::c_void;

use overhear_stream::sync::{AtomicU32, Ordering};

use crate::table;

pub(crate) const FRAMES: usize = 24;
/// Frames of this library below the allocating function.
const MAX_OWN: usize = 12;
const SITES: usize = 4096;

/// Return addresses, innermost first.
#[derive(Clone, Copy)]
pub(crate) struct Stack {
    pub(crate) frames: [u64; FRAMES],
    pub(crate) count: usize,
}

struct Walk {
    stack: Stack,
    own: usize,
}

extern "C" {
    fn _Unwind_Backtrace(
        callback: extern "C" fn(*mut c_void, *mut c_void) -> i32,
        argument: *mut c_void,
    ) -> i32;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
    // The bounds of this library.
    static __ehdr_start: u8;
    static _end: u8;
}

fn is_own(address: usize) -> bool {
    let (start, end) = (&raw const __ehdr_start, &raw const _end);
    (start as usize..end as usize).contains(&address)
}

extern "C" fn frame(context: *mut c_void, walk: *mut c_void) -> i32 {
    // SAFETY: the argument is that of `Stack::here`.
    let walk = unsafe { &mut *walk.cast::<Walk>() };
    // SAFETY: the context is that of the unwinder.
    let address = unsafe { _Unwind_GetIP(context) };
    if walk.stack.count == 0 && is_own(address) && walk.own < MAX_OWN {
        walk.own += 1;
        return 0;
    }
    if address == 0 || walk.stack.count == FRAMES {
        // Any value but 0 ends the walk.
        return 5;
    }
    walk.stack.frames[walk.stack.count] = address as u64;
    walk.stack.count += 1;
    0
}

impl Stack {
    /// The stack of the calling thread without this library.
    pub(crate) fn here() -> Self {
        let mut walk = Walk {
            stack: Self {
                frames: [0; FRAMES],
                count: 0,
            },
            own: 0,
        };
        // SAFETY: the callback gets the walk, which outlives the call.
        unsafe { _Unwind_Backtrace(frame, (&raw mut walk).cast()) };
        walk.stack
    }

    fn hash(&self) -> usize {
        let frames = self.frames.iter().take(self.count);
        let hash = frames.fold(0u64, |hash, frame| {
            (hash ^ frame)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(23)
        });
        hash as usize
    }
}

struct Sites(UnsafeCell<[Stack; SITES]>);

// SAFETY: a stack is written under the lock of the table before its number is published, and never
// changed.
unsafe impl Sync for Sites {}

static STACKS: Sites = Sites(UnsafeCell::new(
    [Stack {
        frames: [0; FRAMES],
        count: 0,
    }; SITES],
));
/// Hash table from stacks to their number plus 1.
static INDEX: [AtomicU32; 2 * SITES] = [const { AtomicU32::new(0) }; 2 * SITES];
static USED: AtomicU32 = AtomicU32::new(1);

/// The number of a stack. Number 0 stands for those that found no room.
pub(crate) fn site_of(stack: &Stack) -> u32 {
    table::LOCK.lock();
    let site = site_locked(stack);
    table::LOCK.unlock();
    site
}

fn site_locked(stack: &Stack) -> u32 {
    let first = stack.hash() % INDEX.len();
    for probe in 0..INDEX.len() {
        let slot = &INDEX[(first + probe) % INDEX.len()];
        match slot.load(Ordering::Relaxed) {
            0 => {
                let site = USED.load(Ordering::Relaxed);
                if site as usize == SITES {
                    return 0;
                }
                // SAFETY: the lock is held and nobody knows the number yet.
                unsafe { (*STACKS.0.get())[site as usize] = *stack };
                slot.store(site + 1, Ordering::Relaxed);
                USED.store(site + 1, Ordering::Relaxed);
                return site;
            }
            known => {
                if frames(known - 1) == &stack.frames[..stack.count] {
                    return known - 1;
                }
            }
        }
    }
    0
}

/// The frames of a site that a record has.
pub(crate) fn frames(site: u32) -> &'static [u64] {
    // SAFETY: the stack of a known number is constant; the event with the number came later.
    let stack = unsafe { &(*STACKS.0.get())[site as usize] };
    &stack.frames[..stack.count]
}
