// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mark of a process with one thread, by which glibc leaves out its locks.
//!
//! Until a program creates a thread, `malloc` of glibc takes no lock, and mutexes need no atomic
//! operation. The handler thread would end that for the whole program, at 10 to 20 ns per `malloc`
//! and
//! `free`. But the handler uses nothing that these locks protect: it has a heap of its own, and
//! calls neither `malloc` nor `stdio`, nor a mutex of the C library, nor the loader. So the mark is
//! set again when the handler has started. The first thread of the program removes it, as always.
//!
//! Functions that change the credentials of all threads look at the mark, too: without it they
//! would leave out the handler. They run under [`with_all_threads`].

use core::ffi::c_char;

use overhear_stream::sync::{AtomicU64, Ordering};

/// Address of `__libc_single_threaded` in the C library; 0: not looked up, 1: there is none.
static PLACE: AtomicU64 = AtomicU64::new(0);
const NONE: u64 = 1;

/// Looks the mark up. Not inside a hook of `malloc`: the loader may allocate.
pub(crate) fn look_up() {
    // The definition of the C library follows this one in the order of the loader. A program may
    // have a copy of its own, which glibc does not read.
    // SAFETY: the name is a C string.
    let place = unsafe { libc::dlsym(libc::RTLD_NEXT, c"__libc_single_threaded".as_ptr()) };
    PLACE.store((place as u64).max(NONE), Ordering::Relaxed);
}

fn place() -> Option<*mut c_char> {
    // Relaxed: a constant of the process.
    match PLACE.load(Ordering::Relaxed) {
        0 | NONE => None,
        address => Some(address as *mut c_char),
    }
}

/// Whether glibc takes this process for one with a single thread.
pub(crate) fn is_set() -> bool {
    // SAFETY: the address is that of a byte of the C library, which lives as long as the process.
    place().is_some_and(|place| unsafe { place.read_volatile() } != 0)
}

/// Sets the mark. The caller is the only thread of the program, apart from the handler.
pub(crate) fn set() {
    write(1);
}

fn write(value: c_char) {
    if let Some(place) = place() {
        // SAFETY: as in `is_set`. With the mark there is no other thread of the program that could
        // read or write it.
        unsafe { place.write_volatile(value) };
    }
}

/// Runs a function of the C library that must know all threads.
pub(crate) fn with_all_threads<T>(function: impl FnOnce() -> T) -> T {
    if !is_set() {
        return function();
    }
    write(0);
    let result = function();
    write(1);
    result
}
