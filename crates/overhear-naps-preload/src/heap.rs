// SPDX-License-Identifier: MIT OR Apache-2.0
//! The heap of the handler thread.
//!
//! The handler resolves accesses of all threads, also of one that holds a lock of the program's
//! allocator. So it never calls that allocator. Its own memory is never protected. Threads of the
//! program do not use this heap: a child of `fork` can forget it.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;

use crate::sys::{self, Mutex};

const CHUNK_BYTES: usize = 1 << 20;
/// Blocks are powers of two from 16 bytes to half a chunk; larger ones are mapped alone.
const CLASSES: usize = 16;

struct State {
    /// First free block of each class; a free block holds the address of the next one.
    free: [usize; CLASSES],
    next: usize,
    end: usize,
}

pub(crate) struct Heap {
    lock: Mutex,
    state: UnsafeCell<State>,
}

// SAFETY: the state is used under the lock only.
unsafe impl Sync for Heap {}

#[global_allocator]
pub(crate) static HEAP: Heap = Heap {
    lock: Mutex::new(),
    state: UnsafeCell::new(State {
        free: [0; CLASSES],
        next: 0,
        end: 0,
    }),
};

fn class_of(layout: Layout) -> Option<usize> {
    let bytes = layout
        .size()
        .max(layout.align())
        .max(16)
        .next_power_of_two();
    let class = bytes.trailing_zeros() as usize - 4;
    (class < CLASSES).then_some(class)
}

impl Heap {
    /// Forgets all blocks: in a forked child, where no thread of this heap exists.
    pub(crate) fn reset(&self) {
        self.lock.reset();
        // SAFETY: the child has one thread, which runs this.
        let state = unsafe { &mut *self.state.get() };
        *state = State {
            free: [0; CLASSES],
            next: 0,
            end: 0,
        };
    }
}

// SAFETY: blocks are aligned to their power of two (chunks are aligned to pages, and larger
// alignments are mapped alone), and no block is given out twice, because the lists are changed
// under the lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = class_of(layout).filter(|_| layout.align() <= 16);
        let Some(class) = class else {
            if layout.align() > sys::PAGE {
                return core::ptr::null_mut();
            }
            let mapped = sys::map(None, layout.size(), libc::PROT_READ | libc::PROT_WRITE, 0);
            return mapped.unwrap_or(0) as *mut u8;
        };
        let bytes = 16usize << class;
        self.lock.lock();
        // SAFETY: the lock is held.
        let state = unsafe { &mut *self.state.get() };
        let block = if state.free[class] != 0 {
            let block = state.free[class];
            // SAFETY: a free block holds the address of the next one.
            state.free[class] = unsafe { *(block as *const usize) };
            block
        } else {
            if state.end - state.next < bytes {
                let access = libc::PROT_READ | libc::PROT_WRITE;
                // The rest of the old chunk stays unused: at most half of it.
                if let Some(chunk) = sys::map(None, CHUNK_BYTES, access, 0) {
                    (state.next, state.end) = (chunk, chunk + CHUNK_BYTES);
                }
            }
            if state.end - state.next < bytes {
                0
            } else {
                state.next += bytes;
                state.next - bytes
            }
        };
        self.lock.unlock();
        block as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class_of(layout).filter(|_| layout.align() <= 16) else {
            sys::unmap(block as usize, layout.size());
            return;
        };
        self.lock.lock();
        // SAFETY: the lock is held.
        let state = unsafe { &mut *self.state.get() };
        // SAFETY: the block is free, of at least 16 bytes and aligned to 16.
        unsafe { *block.cast::<usize>() = state.free[class] };
        state.free[class] = block as usize;
        self.lock.unlock();
    }
}
