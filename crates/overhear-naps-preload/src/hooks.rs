// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that this library replaces.
//!
//! Functions that allocate decide whether an allocation is watched. Functions that change mappings
//! keep protection and mapping consistent. Functions that change what threads may do end the
//! observation first. All others are those of the C library.
#![expect(
    unreachable_pub,
    reason = "the functions are exported by their symbols"
)]

use core::ffi::{c_char, c_int, c_void};

use overhear_stream::sync::Ordering;

use crate::credit::{self, INSIDE};
use crate::engine;
use crate::hot;
use crate::mark;
use crate::next;
use crate::settings;
use crate::stack::{self, Stack};
use crate::sys::signals::Blocked;
use crate::sys::{self, Errno, PAGE};
use crate::table::{self, BUSY, COUNTS, ENABLED, RECORD};

type Untyped = *mut c_void;

/// Name of [`overhear_naps::LOADED`].
const LOADED: &core::ffi::CStr = c"loaded";

const MALLOC: u32 = 0;
const CALLOC: u32 = 1;
const REALLOC: u32 = 2;
const ALIGNED: u32 = 3;
const MMAP: u32 = 4;

/// A watched allocation is not begun with less credit. Its cost is measured: unwinding, records and
/// system calls.
const ALLOCATION_NS: u64 = 4_000;
/// Longest time that counts as cost: a longer one contains other threads.
const MAX_COST_NS: u64 = 50_000;
/// Larger allocations get fresh pages from the C library, too.
const MAX_PRICED_PAGES: u64 = 32;
/// Larger blocks move by their page tables, smaller ones are copied.
const MIN_MOVED_BYTES: usize = 128 * 1024;

#[used]
#[link_section = ".init_array"]
static CONSTRUCTOR: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) =
    construct;

unsafe extern "C" fn construct(
    _count: c_int,
    _arguments: *const *const c_char,
    variables: *const *const c_char,
) {
    next::look_up_early();
    // SAFETY: the loader passes the environment, and no other thread exists.
    let is_observed = unsafe { settings::read(variables) } && table::reserve();
    let (arena, bytes) = table::arena();
    hot::open(next::hot(), arena, bytes);
    if !is_observed {
        return;
    }
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        );
    }
    engine::set_loaded();
    leave_mark();
    mark::look_up();
    ENABLED.store(true, Ordering::Relaxed);
    let first = overhear_naps::ProtectionPacer::new(settings::counted_budget(), 0);
    credit::grant(first.grant());
    let least = settings::get().min_size.max(PAGE as u64);
    credit::watch_from(least);
}

/// Leaves a file in the folder: the session sees that the library was loaded, also by a program
/// without a large allocation.
fn leave_mark() {
    let folder = settings::get().folder;
    // SAFETY: the paths are C strings, because the array is longer than the text.
    unsafe {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let folder = libc::open(folder.as_ptr().cast(), flags);
        if folder >= 0 {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOFOLLOW;
            let mark = libc::openat(folder, LOADED.as_ptr(), flags, 0o600);
            if mark >= 0 {
                libc::close(mark);
            }
            libc::close(folder);
        }
    }
}

unsafe extern "C" fn before_fork() {
    engine::before_fork();
}

unsafe extern "C" fn after_fork_in_parent() {
    engine::after_fork_in_parent();
}

unsafe extern "C" fn after_fork_in_child() {
    engine::after_fork_in_child();
}

#[used]
#[link_section = ".fini_array"]
static DESTRUCTOR: extern "C" fn() = destruct;

extern "C" fn destruct() {
    engine::request(engine::WRITE, 0);
}

/// Whether an allocation of this size may be watched. One that may not starts a handler, if one is
/// to start.
fn is_large(size: usize) -> bool {
    if !hot::is_looked_at(size) {
        return false;
    }
    // Relaxed: a setting.
    if size as u64 >= credit::MIN_SIZE.load(Ordering::Relaxed) {
        return true;
    }
    engine::start_later();
    false
}

/// A watched allocation, or none if it is not watched.
#[inline(never)]
fn watch(size: usize, kind: u32) -> Option<usize> {
    if credit::is_passed_over(ALLOCATION_NS as i64) {
        return None;
    }
    watch_now(size, kind)
}

#[cold]
#[inline(never)]
fn watch_now(size: usize, kind: u32) -> Option<usize> {
    if INSIDE.get() || !ENABLED.load(Ordering::Relaxed) || size > isize::MAX as usize {
        return None;
    }
    let _errno = Errno::keep();
    let begin = sys::now_ns();
    let _blocked = Blocked::begin();
    INSIDE.set(true);
    let pages = table::pages_used_again(size).min(MAX_PRICED_PAGES);
    let place = place(size, kind);
    if place.is_some() && kind != MMAP {
        engine::start();
    } else if place.is_some() && !engine::is_started() {
        // The call may come from an allocator that holds its locks, so it starts no thread.
        credit::start_handler_later(true);
    }
    INSIDE.set(false);
    let time = (sys::now_ns() - begin).min(MAX_COST_NS);
    charge(time + pages * credit::page_price_ns());
    place
}

/// Charges a measured cost of the calling thread.
fn charge(cost_ns: u64) {
    credit::pay(cost_ns);
    table::add(&COUNTS.cost_ns, cost_ns);
}

fn place(size: usize, kind: u32) -> Option<usize> {
    let place = match table::claim(size) {
        Ok(place) => place,
        Err(table::Refusal::Space) => {
            table::add(&COUNTS.unwatched_space, 1);
            return None;
        }
        Err(table::Refusal::Full) => {
            table::add(&COUNTS.unwatched_full, 1);
            return None;
        }
    };
    let bytes = size.next_multiple_of(PAGE);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    if place.fresh && !sys::protect(place.address, bytes, access) {
        table::abandon(&place, size);
        table::add(&COUNTS.unwatched_full, 1);
        return None;
    }
    let site = stack::site_of(&Stack::here());
    let record = &RECORD[place.index];
    // Relaxed: LIVE publishes them.
    record.site.store(site, Ordering::Relaxed);
    record.kind.store(kind, Ordering::Relaxed);
    record.excluded.store(0, Ordering::Relaxed);
    record.start.store(place.address as u64, Ordering::Relaxed);
    record.pages.store((bytes / PAGE) as u64, Ordering::Relaxed);
    record.size.store(size as u64, Ordering::Relaxed);
    record.allocated_ns.store(sys::now_ns(), Ordering::Relaxed);
    record.freed_ns.store(0, Ordering::Relaxed);
    table::publish(place.index);
    Some(place.address)
}

/// The block of this address. A mapping is none: the next allocator may have made it, and given out
/// its beginning as a block of its own.
fn find_block(address: usize) -> Option<usize> {
    let is_block = |&index: &usize| RECORD[index].kind.load(Ordering::Relaxed) != MMAP;
    table::find(address).filter(is_block)
}

/// Frees a block that may be of the arena.
#[cold]
#[inline(never)]
extern "C" fn free_inside(block: Untyped) {
    match find_block(block as usize) {
        Some(index) => release(index),
        // Another allocator has mappings there, or got addresses that were free for a moment.
        // SAFETY: as the caller's call.
        None => unsafe { next::free(block) },
    }
}

/// Frees an allocation of the arena.
fn release(index: usize) {
    let _errno = Errno::keep();
    let freed_ns = sys::now_ns();
    let _blocked = Blocked::begin();
    let Some(state) = table::seize(index) else {
        sys::fatal("an allocation is freed twice");
    };
    RECORD[index].freed_ns.store(freed_ns, Ordering::Relaxed);
    table::release(index, state, false);
    charge((sys::now_ns() - freed_ns).min(MAX_COST_NS));
}

#[no_mangle]
pub unsafe extern "C" fn malloc(size: usize) -> Untyped {
    if hot::is_looked_at(size) {
        // SAFETY: as the caller's call.
        return unsafe { malloc_looked_at(size) };
    }
    // SAFETY: the size is not looked at.
    unsafe { hot::malloc(size) }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn malloc_looked_at(size: usize) -> Untyped {
    if is_large(size) {
        if let Some(address) = watch(size, MALLOC) {
            return address as Untyped;
        }
    }
    // SAFETY: as the caller's call.
    unsafe { next::malloc(size) }
}

#[no_mangle]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> Untyped {
    let bytes = count.checked_mul(size);
    if bytes.is_none_or(hot::is_looked_at) {
        // SAFETY: as the caller's call.
        return unsafe { calloc_looked_at(count, size) };
    }
    // SAFETY: the size is not looked at.
    unsafe { hot::calloc(count, size) }
}

#[cold]
#[inline(never)]
unsafe extern "C" fn calloc_looked_at(count: usize, size: usize) -> Untyped {
    if let Some(bytes) = count.checked_mul(size).filter(|&bytes| is_large(bytes)) {
        // Pages of the arena are zero.
        if let Some(address) = watch(bytes, CALLOC) {
            return address as Untyped;
        }
    }
    // SAFETY: as the caller's call.
    unsafe { next::calloc(count, size) }
}

#[no_mangle]
pub unsafe extern "C" fn free(block: Untyped) {
    if hot::is_outside(block) {
        // SAFETY: as the caller's call, and the block is outside.
        unsafe { hot::free(block) };
        return;
    }
    free_inside(block);
}

/// A `free` of jemalloc, which permits it for blocks of `malloc`.
#[no_mangle]
pub unsafe extern "C" fn dallocx(block: Untyped, flags: c_int) {
    if table::is_inside(block as usize) {
        free_inside(block);
        return;
    }
    // SAFETY: as the caller's call.
    unsafe { next::dallocx(block, flags) }
}

/// A `free` of jemalloc, which permits it for blocks of `malloc`.
#[no_mangle]
pub unsafe extern "C" fn sdallocx(block: Untyped, size: usize, flags: c_int) {
    if table::is_inside(block as usize) {
        free_inside(block);
        return;
    }
    // SAFETY: as the caller's call.
    unsafe { next::sdallocx(block, size, flags) }
}

#[no_mangle]
pub unsafe extern "C" fn realloc(block: Untyped, size: usize) -> Untyped {
    if block.is_null() {
        // SAFETY: a call with the same meaning.
        return unsafe { malloc(size) };
    }
    if !table::is_inside(block as usize) {
        if is_large(size) && size <= isize::MAX as usize {
            // SAFETY: the block is one of the next allocator.
            return unsafe { adopt(block, size) };
        }
        // SAFETY: as the caller's call.
        return unsafe { next::realloc(block, size) };
    }
    // SAFETY: the block is one of the arena.
    unsafe { resize(block, size) }
}

/// Moves a growing block of the next allocator into the arena.
unsafe fn adopt(block: Untyped, size: usize) -> Untyped {
    // SAFETY: the block is one of the next allocator.
    let old = unsafe { next::malloc_usable_size(block) };
    // The C library resizes what it mapped without a copy.
    if old < MIN_MOVED_BYTES {
        if let Some(address) = watch(size, REALLOC) {
            // SAFETY: both blocks have so many bytes.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    block.cast::<u8>(),
                    address as *mut u8,
                    old.min(size),
                );
                next::free(block);
            }
            return address as Untyped;
        }
    }
    // SAFETY: as the caller's call.
    unsafe { next::realloc(block, size) }
}

#[cold]
unsafe fn resize(block: Untyped, size: usize) -> Untyped {
    let address = block as usize;
    let Some(index) = find_block(address) else {
        // As in `free_inside`.
        // SAFETY: as the caller's call.
        return unsafe { next::realloc(block, size) };
    };
    if size == 0 {
        release(index);
        return core::ptr::null_mut();
    }
    let record = &RECORD[index];
    let bytes = record.bytes();
    let old_size = record.size.load(Ordering::Relaxed) as usize;
    if size <= bytes && size.next_multiple_of(PAGE) == bytes {
        // Its pages stay. The record keeps the first size, which differs by less than a page.
        return block;
    }
    let new = if is_large(size) {
        watch(size, REALLOC)
    } else {
        None
    };
    let Some(new) = new else {
        // SAFETY: a new block of the next allocator.
        let new = unsafe { next::malloc(size) };
        if !new.is_null() {
            let count = old_size.max(bytes).min(size);
            // SAFETY: both have so many bytes.
            unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), count) };
            release(index);
        }
        return new;
    };
    let new_bytes = size.next_multiple_of(PAGE);
    let moved = bytes.min(new_bytes);
    if moved >= MIN_MOVED_BYTES {
        let _blocked = Blocked::begin();
        let target = table::find(new);
        if let Some(target) = target.filter(|&target| table::hold(target, BUSY)) {
            let freed_ns = sys::now_ns();
            let Some(state) = table::seize_movable(index) else {
                sys::fatal("an allocation is freed while it is reallocated");
            };
            RECORD[index].freed_ns.store(freed_ns, Ordering::Relaxed);
            let from = match state {
                table::AWAY => table::shadow_of(address),
                _ => address,
            };
            // One mapping results, which can move aside as a whole.
            let done = sys::move_pages(from, moved, new, new_bytes, 0);
            if !done {
                sys::fatal("the kernel refuses to move a block that grows");
            }
            if state == table::AWAY {
                sys::map_at(table::shadow_of(address), bytes, libc::PROT_NONE);
            }
            table::release(
                index,
                if state == table::AWAY {
                    table::LIVE
                } else {
                    state
                },
                true,
            );
            RECORD[target].enter(table::LIVE);
            return new as Untyped;
        }
    }
    // SAFETY: both blocks have so many bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(block.cast::<u8>(), new as *mut u8, bytes.min(size));
    }
    release(index);
    new as Untyped
}

#[no_mangle]
pub unsafe extern "C" fn reallocarray(block: Untyped, count: usize, size: usize) -> Untyped {
    let Some(bytes) = count.checked_mul(size) else {
        sys::set_errno(libc::ENOMEM);
        return core::ptr::null_mut();
    };
    // SAFETY: as the caller's call.
    unsafe { realloc(block, bytes) }
}

#[no_mangle]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> Untyped {
    if align.is_power_of_two() && align <= PAGE && is_large(size) {
        if let Some(address) = watch(size, ALIGNED) {
            return address as Untyped;
        }
    }
    // SAFETY: as the caller's call.
    unsafe { next::aligned_alloc(align, size) }
}

#[no_mangle]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> Untyped {
    if align.is_power_of_two() && align <= PAGE && is_large(size) {
        if let Some(address) = watch(size, ALIGNED) {
            return address as Untyped;
        }
    }
    // SAFETY: as the caller's call.
    unsafe { next::memalign(align, size) }
}

#[no_mangle]
pub unsafe extern "C" fn posix_memalign(place: *mut Untyped, align: usize, size: usize) -> c_int {
    let allowed =
        align.is_power_of_two() && align.is_multiple_of(size_of::<usize>()) && align <= PAGE;
    if allowed && is_large(size) {
        if let Some(address) = watch(size, ALIGNED) {
            // SAFETY: the caller's place for the result.
            unsafe { *place = address as Untyped };
            return 0;
        }
    }
    // SAFETY: as the caller's call.
    unsafe { next::posix_memalign(place, align, size) }
}

#[no_mangle]
pub unsafe extern "C" fn valloc(size: usize) -> Untyped {
    // SAFETY: a call with the same meaning.
    unsafe { memalign(PAGE, size) }
}

#[no_mangle]
pub unsafe extern "C" fn pvalloc(size: usize) -> Untyped {
    let Some(bytes) = size.checked_next_multiple_of(PAGE) else {
        sys::set_errno(libc::ENOMEM);
        return core::ptr::null_mut();
    };
    // SAFETY: a call with the same meaning.
    unsafe { memalign(PAGE, bytes) }
}

#[no_mangle]
pub unsafe extern "C" fn malloc_usable_size(block: Untyped) -> usize {
    if let Some(index) = find_block(block as usize) {
        return RECORD[index].bytes();
    }
    // SAFETY: as the caller's call.
    unsafe { next::malloc_usable_size(block) }
}

#[no_mangle]
pub unsafe extern "C" fn mmap(
    address: Untyped,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Untyped {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let plain = flags & !libc::MAP_NORESERVE == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let large = length as u64 >= credit::MIN_SIZE.load(Ordering::Relaxed);
    if address.is_null() && protection == access && plain && large {
        if let Some(address) = watch(length, MMAP) {
            return address as Untyped;
        }
    }
    if flags & libc::MAP_FIXED != 0 && table::is_inside(address as usize) {
        exclude(address as usize, length);
    }
    // SAFETY: as the caller's call.
    unsafe { next::mmap(address, length, protection, flags, fd, offset) }
}

#[no_mangle]
pub unsafe extern "C" fn mmap64(
    address: Untyped,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Untyped {
    // SAFETY: a call with the same meaning.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// Excludes the allocations that overlap a range whose mapping the program changes.
#[cold]
fn exclude(address: usize, length: usize) {
    let _errno = Errno::keep();
    let _blocked = Blocked::begin();
    for index in table::overlapping(address, length) {
        table::exclude(index);
    }
}

#[no_mangle]
pub unsafe extern "C" fn munmap(address: Untyped, length: usize) -> c_int {
    if table::is_inside(address as usize) {
        let whole = table::find(address as usize).filter(|&index| {
            let record = &RECORD[index];
            let kind = record.kind.load(Ordering::Relaxed);
            kind == MMAP && length.checked_next_multiple_of(PAGE) == Some(record.bytes())
        });
        if let Some(index) = whole {
            release(index);
            return 0;
        }
        exclude(address as usize, length);
    }
    // SAFETY: as the caller's call.
    unsafe { next::munmap(address, length) }
}

#[no_mangle]
pub unsafe extern "C" fn mremap(
    address: Untyped,
    length: usize,
    new: usize,
    flags: c_int,
    to: Untyped,
) -> Untyped {
    if table::is_inside(address as usize) {
        exclude(address as usize, length);
        // What follows in the address space belongs to this library.
        if new > length && flags & libc::MREMAP_MAYMOVE == 0 {
            sys::set_errno(libc::ENOMEM);
            return libc::MAP_FAILED;
        }
    }
    // SAFETY: as the caller's call; without MREMAP_FIXED the last argument is not used.
    unsafe { next::mremap(address, length, new, flags, to) }
}

#[no_mangle]
pub unsafe extern "C" fn mprotect(address: Untyped, length: usize, protection: c_int) -> c_int {
    if table::is_inside(address as usize) {
        exclude(address as usize, length);
    }
    // SAFETY: as the caller's call.
    unsafe { next::mprotect(address, length, protection) }
}

#[no_mangle]
pub unsafe extern "C" fn pkey_mprotect(
    address: Untyped,
    length: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    if table::is_inside(address as usize) {
        exclude(address as usize, length);
    }
    // SAFETY: as the caller's call.
    unsafe { next::pkey_mprotect(address, length, protection, key) }
}

#[no_mangle]
pub unsafe extern "C" fn mlock(address: *const c_void, length: usize) -> c_int {
    if table::is_inside(address as usize) {
        exclude(address as usize, length);
    }
    // SAFETY: as the caller's call.
    unsafe { next::mlock(address, length) }
}

#[no_mangle]
pub unsafe extern "C" fn mlock2(address: *const c_void, length: usize, flags: c_int) -> c_int {
    if table::is_inside(address as usize) {
        exclude(address as usize, length);
    }
    // SAFETY: as the caller's call.
    unsafe { next::mlock2(address, length, flags) }
}

#[no_mangle]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    engine::end(3);
    // SAFETY: as the caller's call.
    unsafe { next::mlockall(flags) }
}

#[no_mangle]
pub unsafe extern "C" fn madvise(address: Untyped, length: usize, advice: c_int) -> c_int {
    if !table::is_inside(address as usize) {
        // SAFETY: as the caller's call.
        return unsafe { next::madvise(address, length, advice) };
    }
    if ![libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_WILLNEED].contains(&advice) {
        exclude(address as usize, length);
        // SAFETY: as the caller's call.
        return unsafe { next::madvise(address, length, advice) };
    }
    // The pages stay in place while the call removes them.
    let mut result = 0;
    let mut found = false;
    for index in table::overlapping(address as usize, length) {
        found = true;
        let _blocked = Blocked::begin();
        let held = table::hold(index, BUSY);
        // SAFETY: as the caller's call.
        result = unsafe { next::madvise(address, length, advice) };
        if held {
            RECORD[index].enter(table::LIVE);
        }
    }
    if !found {
        // SAFETY: as the caller's call.
        result = unsafe { next::madvise(address, length, advice) };
    }
    result
}

#[no_mangle]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    const OF_THREADS: c_int = libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_THREAD
        | libc::CLONE_VM
        | libc::CLONE_SIGHAND;
    if flags & OF_THREADS != 0 {
        // The kernel refuses this with a second thread.
        engine::request(engine::STOP, 1);
    }
    // SAFETY: as the caller's call.
    unsafe { next::unshare(flags) }
}

#[no_mangle]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    engine::request(engine::STOP, 1);
    // SAFETY: as the caller's call.
    unsafe { next::setns(fd, kind) }
}

/// Defines functions that change the credentials of all threads.
macro_rules! of_all_threads {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[no_mangle]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: as the caller's call.
            mark::with_all_threads(|| unsafe { next::$name($($argument),*) })
        }
    )*};
}

of_all_threads! {
    setuid(user: u32);
    seteuid(user: u32);
    setreuid(real: u32, effective: u32);
    setresuid(real: u32, effective: u32, saved: u32);
    setgid(group: u32);
    setegid(group: u32);
    setregid(real: u32, effective: u32);
    setresgid(real: u32, effective: u32, saved: u32);
    setgroups(count: usize, groups: *const u32);
    initgroups(user: *const c_char, group: u32);
}

#[no_mangle]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        engine::end(2);
    }
    // SAFETY: as the caller's call; superfluous arguments are not used.
    unsafe { next::prctl(option, a, b, c, d) }
}

#[no_mangle]
pub unsafe extern "C" fn syscall(
    number: i64,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> i64 {
    let forks = match number {
        // SAFETY: clone3 takes a struct that begins with its flags.
        libc::SYS_clone3 if a != 0 => unsafe { *(a as *const u64) & libc::CLONE_VM as u64 == 0 },
        libc::SYS_clone => a & libc::CLONE_VM as usize == 0,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => true,
        libc::SYS_seccomp => {
            engine::end(2);
            false
        }
        _ => false,
    };
    if forks {
        engine::before_raw_fork();
    }
    // SAFETY: as the caller's call; superfluous arguments are not used.
    let result = unsafe { next::syscall(number, a, b, c, d, e, f) };
    if forks {
        engine::after_raw_fork();
    }
    result
}

#[no_mangle]
pub unsafe extern "C" fn clone(
    function: Untyped,
    stack: Untyped,
    flags: c_int,
    argument: Untyped,
    a: Untyped,
    b: Untyped,
    c: Untyped,
) -> c_int {
    let forks = flags & libc::CLONE_VM == 0;
    if forks {
        // The child begins elsewhere, so nothing would bring its memory back.
        engine::before_raw_fork();
    }
    // SAFETY: as the caller's call; superfluous arguments are not used.
    let result = unsafe { next::clone(function, stack, flags, argument, a, b, c) };
    if forks {
        engine::after_raw_fork();
    }
    result
}

/// `_Fork` calls no fork handlers.
#[no_mangle]
pub unsafe extern "C" fn _Fork() -> c_int {
    engine::before_fork();
    // SAFETY: as the caller's call.
    let child = unsafe { next::fork_alone() };
    if child == 0 {
        engine::after_fork_in_child();
    } else {
        engine::after_fork_in_parent();
    }
    child
}

/// The kernel writes to the stack of a thread that ends, and cannot wait there.
#[no_mangle]
pub unsafe extern "C" fn pthread_attr_setstack(
    attributes: Untyped,
    stack: Untyped,
    size: usize,
) -> c_int {
    if table::is_inside(stack as usize) {
        exclude(stack as usize, size);
    }
    // SAFETY: as the caller's call.
    unsafe { next::pthread_attr_setstack(attributes, stack, size) }
}

/// The kernel writes to robust mutexes of a thread that ends, and cannot wait there.
#[no_mangle]
pub unsafe extern "C" fn pthread_mutex_init(mutex: Untyped, attributes: *const c_void) -> c_int {
    if !attributes.is_null() && table::is_inside(mutex as usize) {
        exclude(mutex as usize, 1);
    }
    // SAFETY: as the caller's call.
    unsafe { next::pthread_mutex_init(mutex, attributes) }
}

#[no_mangle]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    engine::request(engine::WRITE, 0);
    // SAFETY: it does not return.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    sys::fatal("the process does not end");
}

#[no_mangle]
pub unsafe extern "C" fn _Exit(status: c_int) -> ! {
    // SAFETY: a call with the same meaning.
    unsafe { _exit(status) }
}

#[no_mangle]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const Untyped,
    variables: *const Untyped,
) -> c_int {
    engine::request(engine::WRITE, 0);
    // SAFETY: as the caller's call.
    unsafe { next::execve(path, arguments, variables) }
}

#[no_mangle]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: *const Untyped) -> c_int {
    engine::request(engine::WRITE, 0);
    // SAFETY: as the caller's call.
    unsafe { next::execv(path, arguments) }
}

#[no_mangle]
pub unsafe extern "C" fn execvp(path: *const c_char, arguments: *const Untyped) -> c_int {
    engine::request(engine::WRITE, 0);
    // SAFETY: as the caller's call.
    unsafe { next::execvp(path, arguments) }
}

#[no_mangle]
pub unsafe extern "C" fn execvpe(
    path: *const c_char,
    arguments: *const Untyped,
    variables: *const Untyped,
) -> c_int {
    engine::request(engine::WRITE, 0);
    // SAFETY: as the caller's call.
    unsafe { next::execvpe(path, arguments, variables) }
}
