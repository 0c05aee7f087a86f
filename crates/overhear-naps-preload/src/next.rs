// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions behind those that this library replaces: of the C library, or of another
//! allocator that the program loads.

use core::cell::Cell;
use core::ffi::{c_int, c_void, CStr};

use overhear_stream::sync::{AtomicU64, Ordering};

use crate::hot;

thread_local! {
    /// The thread is inside `dlsym`, which may allocate.
    static RESOLVING: Cell<bool> = const { Cell::new(false) };
}

/// Memory for allocations inside `dlsym`. It is never freed.
#[repr(C, align(16))]
struct Bootstrap(core::cell::UnsafeCell<[u8; BOOTSTRAP_BYTES]>);

// SAFETY: each byte belongs to the one allocation that took it from the counter.
unsafe impl Sync for Bootstrap {}

const BOOTSTRAP_BYTES: usize = 64 * 1024;
static BOOTSTRAP: Bootstrap = Bootstrap(core::cell::UnsafeCell::new([0; BOOTSTRAP_BYTES]));
static BOOTSTRAP_USED: AtomicU64 = AtomicU64::new(0);

fn bootstrap(size: usize) -> *mut c_void {
    let bytes = size.max(1).next_multiple_of(16);
    // Relaxed: only the sum matters, each caller gets its own part.
    let used = BOOTSTRAP_USED.fetch_add(bytes as u64, Ordering::Relaxed) as usize;
    if used + bytes > BOOTSTRAP_BYTES {
        return core::ptr::null_mut();
    }
    BOOTSTRAP.0.get().cast::<u8>().wrapping_add(used).cast()
}

fn is_bootstrap(block: *const c_void) -> bool {
    (block as usize).wrapping_sub(BOOTSTRAP.0.get() as usize) < BOOTSTRAP_BYTES
}

/// The next definition of a function, or 0 while the thread is inside `dlsym`.
fn resolve(slot: &AtomicU64, name: &CStr) -> usize {
    // Relaxed: the address is a constant of the process.
    match slot.load(Ordering::Relaxed) {
        0 => lookup(slot, name),
        address => address as usize,
    }
}

#[cold]
fn lookup(slot: &AtomicU64, name: &CStr) -> usize {
    // `dlsym` locks the loader. A program with one thread does so without atomic operations, and
    // would not wake the handler.
    debug_assert!(
        !crate::credit::is_handler(),
        "the handler looks up {name:?}"
    );
    if RESOLVING.get() {
        return 0;
    }
    RESOLVING.set(true);
    // SAFETY: the name is a C string.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    RESOLVING.set(false);
    slot.store(address as u64, Ordering::Relaxed);
    address as usize
}

/// Defines functions that call the next definition.
macro_rules! next {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $missing:expr;)*) => {
        /// Addresses of the next definitions; 0: not looked up.
        mod slots {
            $(
                #[expect(non_upper_case_globals, reason = "the name of the function")]
                pub(super) static $name: super::AtomicU64 = super::AtomicU64::new(0);
            )*
        }

        $(
        /// The next definition of the function with this name.
        ///
        /// # Safety
        /// As the function.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            const NAME: &CStr = match CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => panic!("a name without a NUL"),
            };
            let address = resolve(&slots::$name, NAME);
            if address == 0 {
                return $missing;
            }
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the function with this name has this type.
            let function = unsafe { core::mem::transmute::<usize, Function>(address) };
            // SAFETY: the caller's promise.
            unsafe { function($($argument),*) }
        }
    )*};
}

/// Looks up what the handler calls, and what handlers of signals may call: neither may wait for the
/// loader, which the interrupted thread, or the only other one, may have locked.
pub(crate) fn look_up_early() {
    for (slot, name) in [
        (&slots::syscall, c"syscall"),
        (&slots::prctl, c"prctl"),
        (&slots::mmap, c"mmap"),
        (&slots::munmap, c"munmap"),
        (&slots::mprotect, c"mprotect"),
        (&slots::madvise, c"madvise"),
        (&slots::mremap, c"mremap"),
        (&slots::execve, c"execve"),
        (&slots::clone, c"clone"),
        (&slots::malloc, c"malloc"),
        (&slots::calloc, c"calloc"),
        (&FORK_ALONE, c"_Fork"),
        (&unchecked::FREE, c"free"),
        (&unchecked::REALLOC, c"realloc"),
    ] {
        resolve(slot, name);
    }
}

/// What hooks call without a look, after [`look_up_early`].
pub(crate) fn hot() -> hot::Next {
    let is_plain = BOOTSTRAP_USED.load(Ordering::Relaxed) == 0;
    hot::Next {
        malloc: resolve(&slots::malloc, c"malloc"),
        calloc: resolve(&slots::calloc, c"calloc"),
        free: match is_plain {
            true => resolve(&unchecked::FREE, c"free"),
            false => free_checked as *const () as usize,
        },
    }
}

unsafe extern "C" fn free_checked(block: Untyped) {
    // SAFETY: the caller's promise.
    unsafe { free(block) }
}

static FORK_ALONE: AtomicU64 = AtomicU64::new(0);

fn not_there() -> c_int {
    crate::sys::set_errno(libc::ENOSYS);
    -1
}

/// Without jemalloc no block is of its kind.
const fn leak() {}

type Untyped = *mut c_void;

next! {
    malloc(size: usize) -> Untyped, bootstrap(size);
    calloc(count: usize, size: usize) -> Untyped, bootstrap(count.saturating_mul(size));
    aligned_alloc(align: usize, size: usize) -> Untyped, core::ptr::null_mut();
    memalign(align: usize, size: usize) -> Untyped, core::ptr::null_mut();
    posix_memalign(place: *mut Untyped, align: usize, size: usize) -> c_int, libc::ENOMEM;
    malloc_usable_size(block: Untyped) -> usize, 0;
    dallocx(block: Untyped, flags: c_int) -> (), leak();
    sdallocx(block: Untyped, size: usize, flags: c_int) -> (), leak();
    munmap(address: Untyped, length: usize) -> c_int, not_there();
    mprotect(address: Untyped, length: usize, protection: c_int) -> c_int, not_there();
    pkey_mprotect(address: Untyped, length: usize, protection: c_int, key: c_int) -> c_int,
        not_there();
    madvise(address: Untyped, length: usize, advice: c_int) -> c_int, not_there();
    mlock(address: *const c_void, length: usize) -> c_int, not_there();
    mlock2(address: *const c_void, length: usize, flags: c_int) -> c_int, not_there();
    mlockall(flags: c_int) -> c_int, not_there();
    unshare(flags: c_int) -> c_int, not_there();
    setns(fd: c_int, kind: c_int) -> c_int, not_there();
    pthread_attr_setstack(attributes: Untyped, stack: Untyped, size: usize) -> c_int, libc::ENOSYS;
    pthread_mutex_init(mutex: Untyped, attributes: *const c_void) -> c_int, libc::ENOSYS;
    execve(path: *const i8, arguments: *const Untyped, variables: *const Untyped) -> c_int,
        not_there();
    execv(path: *const i8, arguments: *const Untyped) -> c_int, not_there();
    execvp(path: *const i8, arguments: *const Untyped) -> c_int, not_there();
    execvpe(path: *const i8, arguments: *const Untyped, variables: *const Untyped) -> c_int,
        not_there();
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int, not_there();
    setuid(user: u32) -> c_int, not_there();
    seteuid(user: u32) -> c_int, not_there();
    setreuid(real: u32, effective: u32) -> c_int, not_there();
    setresuid(real: u32, effective: u32, saved: u32) -> c_int, not_there();
    setgid(group: u32) -> c_int, not_there();
    setegid(group: u32) -> c_int, not_there();
    setregid(real: u32, effective: u32) -> c_int, not_there();
    setresgid(real: u32, effective: u32, saved: u32) -> c_int, not_there();
    setgroups(count: usize, groups: *const u32) -> c_int, not_there();
    initgroups(user: *const i8, group: u32) -> c_int, not_there();
    mmap(
        address: Untyped,
        length: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64
    ) -> Untyped, libc::MAP_FAILED;
    mremap(address: Untyped, length: usize, new: usize, flags: c_int, to: Untyped) -> Untyped,
        libc::MAP_FAILED;
    syscall(
        number: i64,
        a: usize,
        b: usize,
        c: usize,
        d: usize,
        e: usize,
        f: usize
    ) -> i64, i64::from(not_there());
    clone(
        function: Untyped,
        stack: Untyped,
        flags: c_int,
        argument: Untyped,
        a: Untyped,
        b: Untyped,
        c: Untyped
    ) -> c_int, not_there();
}

/// The next `_Fork`.
///
/// # Safety
/// As `_Fork`.
pub(crate) unsafe fn fork_alone() -> c_int {
    let address = resolve(&FORK_ALONE, c"_Fork");
    if address == 0 {
        return not_there();
    }
    // SAFETY: the function with this name has this type.
    let function: unsafe extern "C" fn() -> c_int = unsafe { core::mem::transmute(address) };
    // SAFETY: the caller's promise.
    unsafe { function() }
}

mod unchecked {
    use super::{resolve, AtomicU64, Untyped};

    pub(super) static FREE: AtomicU64 = AtomicU64::new(0);
    pub(super) static REALLOC: AtomicU64 = AtomicU64::new(0);

    pub(super) unsafe fn free(block: Untyped) {
        let address = resolve(&FREE, c"free");
        if address != 0 {
            // SAFETY: the function with this name has this type.
            let function: unsafe extern "C" fn(Untyped) = unsafe { core::mem::transmute(address) };
            // SAFETY: the caller's promise.
            unsafe { function(block) }
        }
    }

    pub(super) unsafe fn realloc(block: Untyped, size: usize) -> Untyped {
        let address = resolve(&REALLOC, c"realloc");
        if address == 0 {
            return super::bootstrap(size);
        }
        // SAFETY: the function with this name has this type.
        let function: unsafe extern "C" fn(Untyped, usize) -> Untyped =
            unsafe { core::mem::transmute(address) };
        // SAFETY: the caller's promise.
        unsafe { function(block, size) }
    }
}

/// The next `free`, which ignores blocks from inside `dlsym`.
///
/// # Safety
/// As `free`.
pub(crate) unsafe fn free(block: Untyped) {
    if !is_bootstrap(block) {
        // SAFETY: the caller's promise.
        unsafe { unchecked::free(block) }
    }
}

/// The next `realloc`, which copies blocks from inside `dlsym`.
///
/// # Safety
/// As `realloc`.
pub(crate) unsafe fn realloc(block: Untyped, size: usize) -> Untyped {
    if !is_bootstrap(block) {
        // SAFETY: the caller's promise.
        return unsafe { unchecked::realloc(block, size) };
    }
    // SAFETY: a new block.
    let new = unsafe { malloc(size) };
    if !new.is_null() {
        let rest = BOOTSTRAP.0.get() as usize + BOOTSTRAP_BYTES - block as usize;
        // SAFETY: both have so many bytes; what is copied too much is memory of nobody else's
        // concern.
        unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), size.min(rest)) };
    }
    new
}
