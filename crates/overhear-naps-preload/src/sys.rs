// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that bypass the functions which this library replaces.

use overhear_stream::sync::{AtomicU32, Ordering};

pub(crate) const PAGE: usize = 4096;

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of the process in nanoseconds.
pub(crate) fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) fn pid() -> u32 {
    // SAFETY: the system call has no arguments. The number is not cached: a child of `vfork` gets
    // its own.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

/// Keeps `errno` over the calls of a hook.
pub(crate) struct Errno(i32);

impl Errno {
    pub(crate) fn keep() -> Self {
        // SAFETY: the address is that of the thread's errno.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

pub(crate) fn set_errno(value: i32) {
    // SAFETY: the address is that of the thread's errno.
    unsafe { *libc::__errno_location() = value };
}

/// Maps private anonymous memory at this address, in place of what is there.
pub(crate) fn map_at(address: usize, bytes: usize, protection: i32) -> bool {
    map(Some(address), bytes, protection, libc::MAP_FIXED).is_some()
}

/// Maps private anonymous memory.
pub(crate) fn map(
    address: Option<usize>,
    bytes: usize,
    protection: i32,
    flags: i32,
) -> Option<usize> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED it is new memory; with it, the caller owns the range.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address.unwrap_or(0),
            bytes,
            protection,
            flags,
            -1,
            0,
        )
    };
    (result != -1).then_some(result as usize)
}

/// Maps inaccessible memory where nothing is mapped. False if somebody else got the addresses.
pub(crate) fn reserve_at(address: usize, bytes: usize) -> bool {
    let flags = libc::MAP_FIXED_NOREPLACE;
    match map(Some(address), bytes, libc::PROT_NONE, flags) {
        Some(place) if place == address => true,
        // A kernel before 4.17 takes the address as a hint.
        Some(place) => {
            unmap(place, bytes);
            false
        }
        None => false,
    }
}

pub(crate) fn unmap(address: usize, bytes: usize) -> bool {
    // SAFETY: the caller owns the range.
    unsafe { libc::syscall(libc::SYS_munmap, address, bytes) == 0 }
}

pub(crate) fn protect(address: usize, bytes: usize, protection: i32) -> bool {
    // SAFETY: the caller owns the range.
    unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, protection) == 0 }
}

pub(crate) fn advise(address: usize, bytes: usize, advice: i32) -> bool {
    // SAFETY: the caller owns the range.
    unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) == 0 }
}

/// Moves pages to another address, in place of what is there.
pub(crate) fn move_pages(
    from: usize,
    bytes: usize,
    to: usize,
    new_bytes: usize,
    flags: i32,
) -> bool {
    let flags = flags | libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the caller owns both ranges.
    let result = unsafe { libc::syscall(libc::SYS_mremap, from, bytes, new_bytes, flags, to) };
    result as usize == to
}

/// Sleeps while the word has this value, at most this long.
pub(crate) fn futex_wait(word: &AtomicU32, value: u32, timeout_ns: u64) {
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns % 1_000_000_000) as i64,
    };
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let place = core::ptr::from_ref(word);
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, place, operation, value, &raw const timeout) };
}

pub(crate) fn futex_wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let place = core::ptr::from_ref(word);
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, place, operation, i32::MAX) };
}

/// Signals of the calling thread.
pub(crate) mod signals {
    /// What was blocked before.
    #[derive(Clone, Copy, Debug)]
    #[must_use]
    pub(crate) struct Before(u64);

    impl Before {
        pub(crate) const fn from_bits(bits: u64) -> Self {
            Self(bits)
        }

        pub(crate) const fn bits(self) -> u64 {
            self.0
        }
    }

    fn set(blocked: u64) -> u64 {
        let mut before = 0u64;
        // SAFETY: the kernel's set of signals has 8 bytes; both places are valid.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const blocked,
                &raw mut before,
                size_of::<u64>(),
            )
        };
        before
    }

    /// Blocks all signals, also those by which the C library cancels threads. Keeps `errno`.
    pub(crate) fn block() -> Before {
        let _errno = super::Errno::keep();
        Before(set(u64::MAX))
    }

    /// Gives back what [`block`] returned. Keeps `errno`.
    pub(crate) fn restore(before: Before) {
        let _errno = super::Errno::keep();
        set(before.0);
    }

    /// All signals are blocked while it lives. A thread that holds a lock of this library, or a
    /// record, has one: a handler of signals that runs in between may end the process, fork, or map
    /// memory, and would wait for its own thread.
    #[derive(Debug)]
    pub(crate) struct Blocked(Before);

    impl Blocked {
        pub(crate) fn begin() -> Self {
            Self(block())
        }
    }

    impl Drop for Blocked {
        fn drop(&mut self) {
            restore(self.0);
        }
    }
}

/// Keeps the handler from moving pages while threads fork. Forks do not exclude each other, so a
/// handler of signals may fork within a fork.
#[derive(Debug)]
pub(crate) struct Stillness(AtomicU32);

/// The handler moves pages.
const MOVES: u32 = 1 << 31;

impl Stillness {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Begins a fork: waits until the handler has moved what it is moving.
    pub(crate) fn begin(&self) {
        // SYNC(naps_stillness): what the handler did before it left is seen.
        let mut seen = self.0.fetch_add(1, Ordering::AcqRel);
        while seen & MOVES != 0 {
            yield_now();
            seen = self.0.load(Ordering::Acquire);
        }
    }

    /// Ends a fork, in the parent.
    pub(crate) fn end(&self) {
        // SYNC(naps_stillness)
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// In a forked child, whose only thread forks no longer.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The handler may move pages until [`Stillness::leave`], if no thread forks.
    pub(crate) fn try_enter(&self) -> bool {
        // SYNC(naps_stillness)
        let entered = self
            .0
            .compare_exchange(0, MOVES, Ordering::AcqRel, Ordering::Relaxed);
        entered.is_ok()
    }

    pub(crate) fn leave(&self) {
        // SYNC(naps_stillness)
        self.0.fetch_and(!MOVES, Ordering::Release);
    }
}

/// A mutex of one word: 0 free, 1 taken, 2 taken and waited for. It works in forked children,
/// where [`Mutex::reset`] frees what another thread of the parent held.
#[derive(Debug)]
pub(crate) struct Mutex(AtomicU32);

impl Mutex {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn lock(&self) {
        // SYNC(naps_lock): the acquiring exchange sees what the last owner did before its release.
        if self.try_lock() {
            return;
        }
        while self.0.swap(2, Ordering::Acquire) != 0 {
            futex_wait(&self.0, 2, 1_000_000_000);
        }
    }

    pub(crate) fn try_lock(&self) -> bool {
        // SYNC(naps_lock)
        let taken = self
            .0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    pub(crate) fn unlock(&self) {
        // SYNC(naps_lock)
        if self.0.swap(0, Ordering::Release) == 2 {
            futex_wake(&self.0);
        }
    }

    /// In a forked child, whose other threads do not exist.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

pub(crate) fn yield_now() {
    // SAFETY: the system call has no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) };
}

/// Ends the process with a message, as the C library does for invalid pointers.
pub(crate) fn fatal(message: &str) -> ! {
    // The handler has no descriptors of the program.
    // SAFETY: the path is a C string.
    let own = unsafe { libc::open(c"/proc/self/fd/2".as_ptr(), libc::O_WRONLY | libc::O_APPEND) };
    for text in ["overhear naps: ", message, "\n"] {
        // SAFETY: the text is valid.
        unsafe {
            libc::write(
                if own < 0 { 2 } else { own },
                text.as_ptr().cast(),
                text.len(),
            )
        };
    }
    // SAFETY: it does not return.
    unsafe { libc::abort() }
}
