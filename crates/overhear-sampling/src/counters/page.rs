// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of an event, `struct perf_event_mmap_page`: reads its counter without a system call.
//!
//! The kernel keeps the counter of the event on the CPU, and what was counted before, in a page
//! that the program maps. The protocol is a sequence lock whose writer is the kernel on the CPU of
//! the reading thread:
//!
//! 1. The reader loads `lock`, then `index`, `offset` and `pmc_width`, executes `rdpmc`, and loads
//!    `lock` again. If it has changed, the reader begins again.
//! 2. The kernel adds one to `lock` before and after each change of the page. It changes the page
//!    when it places the event on a CPU, removes it, or handles the overflow of its counter.
//!
//! The event counts the reading thread alone, so the kernel changes the page only while this thread
//! is interrupted or not running. So a reader never runs at the same time as the writer: `lock`
//! is even for every reader, and the order of the program is the order of all accesses. The
//! compiler must not move them, which volatile accesses and two compiler fences prevent; the CPU
//! need not order them. `rdpmc` could be executed early by the CPU, but not across an interrupt,
//! because interrupts take effect between instructions. So a value of one CPU is never added to the
//! `offset` of another.
//!
//! Losing path: the thread is switched or its counter overflows between the two loads. Each such
//! repetition needs an interrupt meanwhile, so the reader is lock-free and in practice wait-free.
//!
//! If `index` is 0, the event is on no counter (it is a software event, or it has been taken away),
//! or the program may not execute `rdpmc`. Then the caller reads by a system call.

use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use overhear_stream::sync::{signal_fence, SignalCount};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

/// The beginning of `struct perf_event_mmap_page`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Words {
    version: u32,
    compat_version: u32,
    lock: u32,
    index: u32,
    offset: i64,
    time_enabled: u64,
    time_running: u64,
    capabilities: u64,
    pmc_width: u16,
    time_shift: u16,
    time_mult: u32,
}

const _: () = {
    assert!(offset_of!(Words, offset) == 16);
    assert!(offset_of!(Words, capabilities) == 40);
    assert!(offset_of!(Words, time_mult) == 52);
};

/// Bit of `capabilities`: `rdpmc` is permitted.
const CAP_USER_RDPMC: u64 = 1 << 2;

/// The pages of a group, one per counter; none if the group is read by a system call.
///
/// The kernel does not copy these maps to the child of a `fork`, so the child must not read them:
/// [`CounterPages::retire`].
#[derive(Debug)]
pub struct CounterPages {
    pages: Vec<NonNull<Words>>,
    // The process that mapped them.
    pid: u32,
    retirements: SignalCount,
}

// SAFETY: a map belongs to the process, not to a thread. Reading the pages is private to
// `ThreadCounters`, which stays in its thread.
unsafe impl Send for CounterPages {}
// SAFETY: as for Send; the count is atomic.
unsafe impl Sync for CounterPages {}

impl CounterPages {
    /// Maps the page of each event. No pages if one cannot be mapped, or does not permit to read
    /// the counter.
    pub(super) fn map<'a>(events: impl Iterator<Item = BorrowedFd<'a>>) -> Self {
        let mut mapped = Self::none();
        for event in events {
            // A limit of locked memory may forbid it. Then a system call reads the group.
            let Ok(page) = map_page(event) else {
                return Self::none();
            };
            mapped.pages.push(page);
            // SAFETY: the page was just mapped.
            if unsafe { total(page, read_counter) }.is_none() {
                return Self::none();
            }
        }
        mapped
    }

    /// No pages.
    pub(super) fn none() -> Self {
        Self {
            pages: Vec::new(),
            pid: std::process::id(),
            retirements: SignalCount::default(),
        }
    }

    /// Whether the counters can be read without a system call.
    #[inline]
    pub(super) fn are_readable(&self) -> bool {
        !self.pages.is_empty() && self.retirements.get() == 0
    }

    /// Reads all totals; false if a system call is needed.
    ///
    /// Only for the thread that the events count.
    #[inline]
    pub(super) fn read(&self, totals: &mut [u64]) -> bool {
        if !self.are_readable() {
            return false;
        }
        assert_eq!(totals.len(), self.pages.len(), "one word for each counter");
        for (word, page) in totals.iter_mut().zip(&self.pages) {
            // SAFETY: the page is mapped as long as this value, in the process that mapped it. In
            // the child of a fork the value is retired.
            match unsafe { total(*page, read_counter) } {
                Some(counted) => *word = counted,
                None => return false,
            }
        }
        true
    }

    /// Ends the use of the pages, in the child of a `fork`: its reads are system calls, and read
    /// the parent's counters. Async-signal-safe.
    pub fn retire(&self) {
        self.retirements.add_one();
    }
}

impl Drop for CounterPages {
    fn drop(&mut self) {
        // In a child, other maps may lie there.
        if self.pid != std::process::id() || self.retirements.get() != 0 {
            return;
        }
        for page in &self.pages {
            // SAFETY: mapped by this value in this process; no reference to it exists.
            let _ = unsafe { munmap(page.as_ptr().cast(), rustix::param::page_size()) };
        }
    }
}

fn map_page(event: BorrowedFd<'_>) -> io::Result<NonNull<Words>> {
    // SAFETY: a fresh map at an address of the kernel's choice touches nothing else.
    let page = unsafe {
        mmap(
            std::ptr::null_mut(),
            rustix::param::page_size(),
            ProtFlags::READ,
            MapFlags::SHARED,
            event,
            0,
        )
    }?;
    NonNull::new(page.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// The protocol of the module's description; `counter` reads the counter with a number.
///
/// # Safety
/// The page is readable.
#[inline(always)]
unsafe fn total(page: NonNull<Words>, counter: impl Fn(u32) -> u64) -> Option<u64> {
    let page = page.as_ptr();
    loop {
        // SAFETY: the page is readable by contract; `Words` is its beginning.
        let lock = unsafe { (&raw const (*page).lock).read_volatile() };
        signal_fence();
        // SAFETY: as above.
        let (index, offset, width, capabilities) = unsafe {
            (
                (&raw const (*page).index).read_volatile(),
                (&raw const (*page).offset).read_volatile(),
                (&raw const (*page).pmc_width).read_volatile(),
                (&raw const (*page).capabilities).read_volatile(),
            )
        };
        if index == 0 || capabilities & CAP_USER_RDPMC == 0 {
            return None;
        }
        let counted = counter(index - 1);
        signal_fence();
        // SAFETY: as above.
        if unsafe { (&raw const (*page).lock).read_volatile() } == lock {
            // The kernel starts a counter at a negative value of `width` bits, so it is
            // sign-extended.
            let unused = 64_u32.saturating_sub(u32::from(width)).min(63);
            let counted = (counted << unused) as i64 >> unused;
            return Some(offset.wrapping_add(counted) as u64);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn read_counter(number: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a register that the kernel permits to read: the page has CAP_USER_RDPMC and an
    // index. If the permission is withdrawn, the kernel changes the page first. It is not declared
    // free of memory accesses, so that it stays between the two fences.
    unsafe {
        core::arch::asm!(
            "rdpmc",
            in("ecx") number,
            out("eax") low,
            out("edx") high,
            options(nostack, preserves_flags)
        );
    }
    u64::from(high) << 32 | u64::from(low)
}

/// The kernel permits it on no other architecture by default; [`is_supported`] is false.
#[cfg(not(target_arch = "x86_64"))]
fn read_counter(_number: u32) -> u64 {
    0
}

/// Whether this version reads counters without a system call on this architecture.
pub(super) const fn is_supported() -> bool {
    cfg!(target_arch = "x86_64")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ptr::NonNull;

    use super::{total, Words, CAP_USER_RDPMC};

    fn page() -> Words {
        Words {
            lock: 4,
            index: 3,
            offset: 1_000,
            capabilities: CAP_USER_RDPMC,
            pmc_width: 48,
            ..Words::default()
        }
    }

    fn read(page: &mut Words, counter: impl Fn(*mut Words, u32) -> u64) -> Option<u64> {
        let pointer = NonNull::from(page);
        // SAFETY: the page is a variable.
        unsafe { total(pointer, |number| counter(pointer.as_ptr(), number)) }
    }

    #[test]
    fn counter_is_added_to_the_offset() {
        let counted = read(&mut page(), |_, number| {
            assert_eq!(number, 2);
            234
        });
        assert_eq!(counted, Some(1_234));
    }

    #[test]
    fn counter_is_sign_extended_from_its_width() {
        let started_at = 1 << 31_u32;
        let raw = (-started_at + 7_i64) as u64 & ((1 << 48) - 1);
        let mut page = page();
        page.offset = started_at;
        assert_eq!(read(&mut page, |_, _| raw), Some(7));
        page.pmc_width = 64;
        assert_eq!(read(&mut page, |_, _| 5), Some(started_at as u64 + 5));
    }

    #[test]
    fn change_meanwhile_repeats_the_read() {
        let reads = Cell::new(0);
        let counted = read(&mut page(), |page, number| {
            reads.set(reads.get() + 1);
            if reads.get() == 1 {
                // The thread moves to another CPU and counter.
                // SAFETY: the page is a variable, and no reference to it is alive.
                unsafe {
                    (*page).lock += 2;
                    (*page).index = 6;
                    (*page).offset = 5_000;
                }
                return 900;
            }
            assert_eq!(number, 5);
            1
        });
        assert_eq!((reads.get(), counted), (2, Some(5_001)));
    }

    #[test]
    fn event_without_a_counter_needs_a_system_call() {
        let mut none = page();
        none.index = 0;
        assert_eq!(read(&mut none, |_, _| panic!("not permitted")), None);
        let mut forbidden = page();
        forbidden.capabilities = 0;
        assert_eq!(read(&mut forbidden, |_, _| panic!("not permitted")), None);
    }
}
