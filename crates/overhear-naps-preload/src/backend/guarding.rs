// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages stay in place, read-write protected by userfaultfd (RWP, since Linux 7.3).
//!
//! *Protect*: the range is registered for protection and for missing pages, then its present pages
//! are protected: they keep their frames, and no access succeeds. *Access*: the thread, in the
//! program or inside a system call, waits in the kernel; the handler reads a message and ends the
//! registration, by which the kernel makes all pages of the range accessible and wakes the thread.
//! Without the mode for missing pages the first access to a page that was never used would not be
//! seen.
//!
//! Compared with `moving` there is no second range, no change of page tables but their protection,
//! and a child of `fork` has its memory at once.

use crate::backend::uffd::{last_error, Descriptor, Range, FEATURE_THREAD_ID, MODE_MISSING};
use crate::backend::Access;
use crate::sys::{self, PAGE};

const FEATURE_RWP: u64 = 1 << 17;
const MODE_RWP: u64 = 1 << 3;
const IOCTL_RWPROTECT: u64 = 0xc018_aa09;
const PROTECT_RWP: u64 = 1;
/// How often a call is tried while another thread changes the mappings of the process.
const MAX_TRIES: usize = 1000;

#[repr(C)]
struct RwProtect {
    range: Range,
    mode: u64,
}

pub(crate) struct Guarding(Descriptor);

impl Guarding {
    pub(crate) fn open() -> Result<Self, String> {
        let missing = "this kernel has no read-write protection by userfaultfd, which Linux 7.3 \
                       introduced";
        let backend = Self(Descriptor::open(FEATURE_RWP | FEATURE_THREAD_ID, missing)?);
        backend.try_out()?;
        Ok(backend)
    }

    /// Protects a page, and ends its protection.
    fn try_out(&self) -> Result<(), String> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let place = sys::map(None, PAGE, access, 0).ok_or("no memory is left")?;
        // SAFETY: the page was mapped above.
        unsafe { core::ptr::write_volatile(place as *mut u64, 0x5a5a) };
        let protected = self.guard(place, PAGE);
        let error = last_error();
        let returned = self.0.unregister(place, PAGE);
        // SAFETY: the page is accessible again, or was never protected.
        let kept = returned && unsafe { core::ptr::read_volatile(place as *const u64) } == 0x5a5a;
        sys::unmap(place, PAGE);
        if protected && kept {
            return Ok(());
        }
        Err(format!("pages cannot be protected ({error})"))
    }

    fn guard(&self, address: usize, bytes: usize) -> bool {
        if !self.0.register(address, bytes, MODE_MISSING | MODE_RWP) {
            return false;
        }
        let mut protect = RwProtect {
            range: Range::new(address, bytes),
            mode: PROTECT_RWP,
        };
        (0..MAX_TRIES).any(|_| {
            let done = self.0.ioctl(IOCTL_RWPROTECT, &raw mut protect);
            if !done {
                sys::yield_now();
            }
            done
        })
    }

    pub(crate) fn doorbell(&self) -> usize {
        self.0.doorbell()
    }

    pub(crate) fn protect(&self, address: usize, bytes: usize) -> bool {
        let done = self.guard(address, bytes);
        if !done {
            self.0.unregister(address, bytes);
        }
        done
    }

    pub(crate) fn unprotect(&self, address: usize, bytes: usize) {
        let mut tries = 0;
        while !self.0.unregister(address, bytes) {
            tries += 1;
            if tries == MAX_TRIES {
                sys::fatal("the kernel refuses to make protected memory accessible");
            }
            sys::yield_now();
        }
    }

    pub(crate) fn wake(&self, address: usize, bytes: usize) {
        self.0.wake(address, bytes);
    }

    pub(crate) fn accesses(&self, timeout_ns: u64, found: &mut Vec<Access>) -> u64 {
        // Pages that the program gives back are missing, which the registration covers.
        self.0.accesses(timeout_ns, found, |_, _| {})
    }
}
