// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages move aside, and userfaultfd reports who misses them.
//!
//! *Protect*: the range is registered for missing pages, then `mremap` with `MREMAP_DONTUNMAP`
//! moves its pages to the shadow. The kernel does so in one step for all threads. *Access*: the
//! thread, in the program or inside a system call, waits in the kernel; this thread reads a
//! message, moves the pages back by `mremap`, which also ends the registration, and wakes the
//! thread. Both ranges stay mapped all the time, so no other thread gets their addresses. Pages are
//! never copied. Pages pinned for direct I/O keep their frames.

use crate::backend::uffd::{
    last_error, Descriptor, FEATURE_EVENT_REMOVE, FEATURE_THREAD_ID, MODE_MISSING,
};
use crate::backend::Access;
use crate::sys::{self, PAGE};
use crate::table;

/// How often moving back is tried if the kernel lacks memory.
const MAX_TRIES: usize = 1000;

pub(crate) struct Moving(Descriptor);

impl Moving {
    pub(crate) fn open() -> Result<Self, String> {
        let features = FEATURE_EVENT_REMOVE | FEATURE_THREAD_ID;
        let backend = Self(Descriptor::open(features, "userfaultfd lacks a feature")?);
        backend.try_out()?;
        Ok(backend)
    }

    /// Moves a page away and back.
    fn try_out(&self) -> Result<(), String> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let place = sys::map(None, 2 * PAGE, access, 0).ok_or("no memory is left")?;
        // SAFETY: the page was mapped above.
        unsafe { core::ptr::write_volatile(place as *mut u64, 0x5a5a) };
        let shadow = place + PAGE;
        let moved = self.0.register(place, PAGE, MODE_MISSING)
            && sys::move_pages(place, PAGE, shadow, PAGE, libc::MREMAP_DONTUNMAP);
        let returned = moved && sys::move_pages(shadow, PAGE, place, PAGE, libc::MREMAP_DONTUNMAP);
        let error = last_error();
        // SAFETY: if the page moved back, it is mapped again.
        let kept = returned && unsafe { core::ptr::read_volatile(place as *const u64) } == 0x5a5a;
        sys::unmap(place, 2 * PAGE);
        if kept {
            return Ok(());
        }
        Err(format!("pages cannot be moved aside ({error})"))
    }

    pub(crate) fn doorbell(&self) -> usize {
        self.0.doorbell()
    }

    pub(crate) fn protect(&mut self, address: usize, bytes: usize) -> bool {
        let shadow = table::shadow_of(address);
        if !self.0.register(address, bytes, MODE_MISSING) {
            return false;
        }
        if sys::move_pages(address, bytes, shadow, bytes, libc::MREMAP_DONTUNMAP) {
            return true;
        }
        // The call may have unmapped the shadow. If another thread got its addresses, that does not
        // matter: an allocation whose protection failed is excluded, and its range not used again.
        sys::reserve_at(shadow, bytes);
        // Without pages of its own the registered range would miss the untouched ones.
        self.0.unregister(address, bytes);
        false
    }

    pub(crate) fn unprotect(&mut self, address: usize, bytes: usize) {
        let shadow = table::shadow_of(address);
        let mut tries = 0;
        while !sys::move_pages(shadow, bytes, address, bytes, libc::MREMAP_DONTUNMAP) {
            tries += 1;
            if tries == MAX_TRIES {
                sys::fatal("the kernel refuses to move protected memory back: too many mappings?");
            }
            sys::yield_now();
        }
        self.0.wake(address, bytes);
    }

    pub(crate) fn wake(&self, address: usize, bytes: usize) {
        self.0.wake(address, bytes);
    }

    pub(crate) fn accesses(&self, timeout_ns: u64, found: &mut Vec<Access>) -> u64 {
        self.0.accesses(timeout_ns, found, |start, end| {
            // MADV_DONTNEED by a system call of the program's own: its pages are in the shadow.
            if table::is_inside(start) {
                let shadow = table::shadow_of(start);
                sys::advise(shadow, end - start, libc::MADV_DONTNEED);
            }
        })
    }
}
