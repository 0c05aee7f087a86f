// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine of a process: starts the handler thread, asks it for documents, stops it, and follows
//! forks.
//!
//! The thread starts with the first watched allocation. In a forked child it starts again after
//! some calls of `malloc`, so that a child that only executes another program pays nothing.

use core::ffi::c_void;

use overhear_stream::sync::{AtomicU32, AtomicU64, Ordering};

use crate::backend::Backend;
use crate::credit;
use crate::handler;
use crate::mark;
use crate::settings;
use crate::sys::{self, signals, Mutex, Stillness};
use crate::table::{self, ENABLED};

/// No handler exists.
pub(crate) const STOPPED: u32 = 0;
/// A handler runs, or is about to.
pub(crate) const RUNNING: u32 = 1;
/// There will be no handler any more.
pub(crate) const OVER: u32 = 2;

pub(crate) static STATE: AtomicU32 = AtomicU32::new(STOPPED);
/// Process of the running handler.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Requests to the handler, and what it did: it adds what it has answered.
pub(crate) static REQUEST: AtomicU32 = AtomicU32::new(0);
pub(crate) static ANSWER: AtomicU32 = AtomicU32::new(0);
/// Address that the handler registered as a doorbell; 0 without one.
pub(crate) static DOORBELL: AtomicU64 = AtomicU64::new(0);
/// The handler has left.
pub(crate) static LEFT: AtomicU32 = AtomicU32::new(0);
/// While a thread forks, nothing moves.
pub(crate) static STILL: Stillness = Stillness::new();
/// Signals that the forking thread had blocked, under the lock of the table.
static BLOCKED_BEFORE_FORK: AtomicU64 = AtomicU64::new(0);
/// The handler thread, to wait for its end.
static THREAD: AtomicU64 = AtomicU64::new(0);
static TID: AtomicU32 = AtomicU32::new(0);
/// Serialises requests.
static REQUESTING: Mutex = Mutex::new();
/// Handlers that were started in this process.
static STARTS: AtomicU32 = AtomicU32::new(0);
/// Time at which the process loaded this library, or was forked.
static LOADED_NS: AtomicU64 = AtomicU64::new(0);
/// Calls of `malloc` since the engine stopped.
static CALLS: AtomicU32 = AtomicU32::new(0);
/// Reason to stop, as an index of [`REASONS`].
pub(crate) static REASON: AtomicU32 = AtomicU32::new(0);

pub(crate) const WRITE: u32 = 1;
pub(crate) const STOP: u32 = 2;

/// Calls of `malloc` after which a forked child is observed.
const CALLS_BEFORE_START: u32 = 64;
/// How long a request waits: the handler may lack CPU time.
const PATIENCE_NS: u64 = 5_000_000_000;

/// Reasons why an observation ends before its process.
pub(crate) const REASONS: [&str; 6] = [
    "",
    "the program changes its namespaces",
    "the program installs a filter of system calls",
    "the program locks all of its memory",
    "the program executes another one",
    "the program forks by a system call of its own",
];

/// A slow path of `malloc`: starts the handler if it is time.
#[cold]
pub(crate) fn start_later() {
    // Relaxed: a count, and a state that is decided by the exchange below.
    if STATE.load(Ordering::Relaxed) == STOPPED
        && CALLS.fetch_add(1, Ordering::Relaxed) >= CALLS_BEFORE_START
    {
        start();
    }
}

/// Starts the handler, if none runs.
pub(crate) fn start() {
    // Relaxed: whoever exchanges starts the thread, which synchronises.
    let first = STATE.compare_exchange(STOPPED, RUNNING, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err() {
        return;
    }
    let _errno = sys::Errno::keep();
    credit::start_handler_later(false);
    OWNER.store(sys::pid(), Ordering::Relaxed);
    STARTS.fetch_add(1, Ordering::Relaxed);
    CALLS.store(0, Ordering::Relaxed);
    LEFT.store(0, Ordering::Relaxed);
    DOORBELL.store(0, Ordering::Relaxed);
    REQUEST.store(0, Ordering::Relaxed);
    ANSWER.store(0, Ordering::Relaxed);
    if !spawn() {
        // Observed without protection: nothing is lost but the NAPs.
        STATE.store(OVER, Ordering::Relaxed);
        ENABLED.store(false, Ordering::Relaxed);
        credit::watch_no_more();
    }
}

/// The process loads this library.
pub(crate) fn set_loaded() {
    LOADED_NS.store(sys::now_ns(), Ordering::Relaxed);
}

/// Time since which this process is observed, and its CPU time then. The first handler pays from
/// the CPU time since the start of the process.
pub(crate) fn observed_since() -> (u64, u64) {
    match STARTS.load(Ordering::Relaxed) {
        0 | 1 => (LOADED_NS.load(Ordering::Relaxed), 0),
        _ => (sys::now_ns(), sys::process_cpu_ns()),
    }
}

/// Whether a handler runs, or none will any more.
pub(crate) fn is_started() -> bool {
    STATE.load(Ordering::Relaxed) != STOPPED
}

fn spawn() -> bool {
    // SAFETY: plain calls of the C library with valid places. All signals are blocked in the new
    // thread, so handlers of the program never run in it.
    unsafe {
        let mut all = core::mem::zeroed::<libc::sigset_t>();
        let mut before = core::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let mut attributes = core::mem::zeroed::<libc::pthread_attr_t>();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstacksize(&raw mut attributes, 512 * 1024);
        let mut thread = core::mem::zeroed::<libc::pthread_t>();
        let is_single = mark::is_set();
        let result = libc::pthread_create(
            &raw mut thread,
            &raw const attributes,
            main,
            core::ptr::null_mut(),
        );
        if is_single {
            mark::set();
        }
        libc::pthread_attr_destroy(&raw mut attributes);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
        THREAD.store(thread, Ordering::Relaxed);
        result == 0
    }
}

extern "C" fn main(_argument: *mut c_void) -> *mut c_void {
    credit::enter_handler();
    // SAFETY: the system call has no arguments.
    TID.store(
        unsafe { libc::syscall(libc::SYS_gettid) } as u32,
        Ordering::Relaxed,
    );
    // SAFETY: the thread gets a name, and then a table of descriptors of its own, which it empties:
    // the program may close descriptors and count them as it likes.
    let alone = unsafe {
        libc::prctl(libc::PR_SET_NAME, c"overhear-naps".as_ptr(), 0, 0, 0);
        const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;
        libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, CLOSE_RANGE_UNSHARE) == 0
    };
    // Nothing is due earlier, and a program that ends until then pays for nothing more.
    let first_ns = sys::now_ns() + handler::least_delay_ns();
    loop {
        let now = sys::now_ns();
        // SYNC(naps_request)
        if now >= first_ns || REQUEST.load(Ordering::Acquire) != 0 {
            break;
        }
        crate::backend::wait_for_bell(first_ns - now);
    }
    let (backend, reason) = if alone {
        Backend::choose(settings::get().backend)
    } else {
        (None, "close_range needs Linux 5.9".to_owned())
    };
    if let Some(backend) = &backend {
        // SYNC(naps_doorbell): whoever sees the address finds it registered.
        DOORBELL.store(backend.doorbell() as u64, Ordering::Release);
    }
    handler::run(backend, reason);
    LEFT.store(1, Ordering::Release);
    sys::futex_wake(&LEFT);
    core::ptr::null_mut()
}

/// Whether the handler of this process runs: not in a child of `vfork`, nor in one of a `clone` of
/// the program's own.
fn is_ours() -> bool {
    STATE.load(Ordering::Relaxed) == RUNNING && OWNER.load(Ordering::Relaxed) == sys::pid()
}

/// Asks the handler and waits for its answer. Whoever asks for [`STOP`] waits until it has left.
pub(crate) fn request(what: u32, reason: u32) {
    if !is_ours() || credit::is_handler() {
        return;
    }
    let _errno = sys::Errno::keep();
    // A handler of signals that ends the process would wait here for the request that it
    // interrupted.
    let _blocked = signals::Blocked::begin();
    credit::flush();
    REQUESTING.lock();
    if reason != 0 {
        REASON.store(reason, Ordering::Relaxed);
    }
    // SYNC(naps_request)
    REQUEST.store(what, Ordering::Release);
    ring();
    let start = sys::now_ns();
    let word = if what == STOP { &LEFT } else { &ANSWER };
    let done = if what == STOP { 1 } else { what };
    // SYNC(naps_request)
    while word.load(Ordering::Acquire) != done && sys::now_ns() - start < PATIENCE_NS {
        let seen = word.load(Ordering::Acquire);
        if seen != done {
            sys::futex_wait(word, seen, 1_000_000);
            ring();
        }
    }
    if what == STOP {
        if LEFT.load(Ordering::Acquire) == 1 {
            // SAFETY: the thread was not joined before, because requests are serialised.
            unsafe { libc::pthread_join(THREAD.load(Ordering::Relaxed), core::ptr::null_mut()) };
            // The kernel forgets it a moment later. Then the process may have one thread.
            let tid = TID.load(Ordering::Relaxed);
            // SAFETY: signal 0 only asks whether the thread exists.
            while unsafe { libc::syscall(libc::SYS_tgkill, sys::pid(), tid, 0) } == 0 {
                sys::yield_now();
            }
        }
        STATE.store(STOPPED, Ordering::Relaxed);
        CALLS.store(0, Ordering::Relaxed);
        credit::start_handler_later(true);
    } else {
        ANSWER.store(0, Ordering::Relaxed);
    }
    REQUESTING.unlock();
}

/// Wakes the handler.
fn ring() {
    // SYNC(naps_doorbell)
    let doorbell = DOORBELL.swap(0, Ordering::AcqRel) as usize;
    if doorbell != 0 {
        // A page fault that the handler resolves: the only message that its descriptor can carry.
        table::touch(doorbell);
    }
    crate::backend::ring_bell();
}

/// The handler ends the process: nobody is left to answer requests.
pub(crate) fn leave_process() {
    STATE.store(OVER, Ordering::Relaxed);
    credit::leave_handler();
}

/// Ends the observation for good.
pub(crate) fn end(reason: u32) {
    ENABLED.store(false, Ordering::Relaxed);
    request(STOP, reason);
    STATE.store(OVER, Ordering::Relaxed);
    credit::watch_no_more();
}

/// Before a fork: nothing moves away until it is over.
pub(crate) extern "C" fn before_fork() {
    let before = signals::block();
    STILL.begin();
    table::LOCK.lock();
    // Relaxed: the lock of the table is held.
    BLOCKED_BEFORE_FORK.store(before.bits(), Ordering::Relaxed);
}

pub(crate) extern "C" fn after_fork_in_parent() {
    let before = BLOCKED_BEFORE_FORK.load(Ordering::Relaxed);
    table::LOCK.unlock();
    STILL.end();
    signals::restore(signals::Before::from_bits(before));
}

pub(crate) extern "C" fn after_fork_in_child() {
    let _errno = sys::Errno::keep();
    // The handler exists in the parent alone.
    table::bring_back(pages_are_at);
    table::recover();
    table::LOCK.reset();
    STILL.reset();
    REQUESTING.reset();
    crate::heap::HEAP.reset();
    if STATE.load(Ordering::Relaxed) == RUNNING {
        STATE.store(STOPPED, Ordering::Relaxed);
    }
    CALLS.store(0, Ordering::Relaxed);
    REQUEST.store(0, Ordering::Relaxed);
    DOORBELL.store(0, Ordering::Relaxed);
    REASON.store(0, Ordering::Relaxed);
    credit::forget();
    STARTS.store(0, Ordering::Relaxed);
    set_loaded();
    if table::get(&table::COUNTS.live_bytes) > 0 && STATE.load(Ordering::Relaxed) == STOPPED {
        credit::start_handler_later(true);
    }
    table::forget_counts();
    let before = BLOCKED_BEFORE_FORK.load(Ordering::Relaxed);
    signals::restore(signals::Before::from_bits(before));
}

/// Whether a range has pages of its own, also in swap.
fn pages_are_at(address: usize, bytes: usize) -> bool {
    let mut entries = [0u64; 512];
    // SAFETY: the path is a C string, the buffer has its size.
    unsafe {
        let fd = libc::open(
            c"/proc/self/pagemap".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        );
        if fd < 0 {
            sys::fatal("a forked child needs /proc/self/pagemap to find its memory");
        }
        let mut page = address / sys::PAGE;
        let end = (address + bytes) / sys::PAGE;
        let mut found = false;
        while page < end && !found {
            let count = (end - page).min(entries.len());
            let offset = (page * 8) as i64;
            let read = libc::pread(fd, entries.as_mut_ptr().cast(), count * 8, offset);
            if read <= 0 {
                break;
            }
            let read = read as usize / 8;
            // Bit 63: present, bit 62: in swap.
            found = entries[..read].iter().any(|entry| entry >> 62 != 0);
            page += read;
        }
        libc::close(fd);
        found
    }
}

/// Makes all memory accessible, and keeps it so until [`after_raw_fork`].
pub(crate) fn before_raw_fork() {
    STILL.begin();
    for record in table::used() {
        while [table::AWAY, table::GUARDED].contains(&record.state()) {
            table::touch(record.start());
        }
        while record.state() == table::RETURNING {
            sys::yield_now();
        }
    }
}

pub(crate) fn after_raw_fork() {
    STILL.end();
}
