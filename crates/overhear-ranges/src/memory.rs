// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of the runtime: mapped results, and an arena beside the program's own allocator.
//!
//! The slow path may run inside malloc of the program, or in a signal handler that interrupts it.
//! So it takes memory from the kernel alone. Nothing here keeps a file open: programs may close all
//! descriptors.

use std::ffi::{c_int, c_void};
use std::ptr::{addr_of, null_mut};

use crate::layout::{pages, FileHeader, PAGE};

/// Longest path of a results file, with its final zero.
const PATH_BYTES: usize = 4096;
/// Bytes that the arena takes from the kernel at once.
const ARENA_BYTES: usize = 1 << 18;

/// Anonymous zeroed memory of at least this size, or null.
pub(crate) fn anonymous(bytes: usize) -> *mut u8 {
    // SAFETY: a new anonymous mapping touches no memory that exists.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(
            null_mut(),
            pages(bytes),
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        null_mut()
    } else {
        memory.cast()
    }
}

/// Hands out zeroed memory that is never given back.
pub(crate) struct Arena {
    next: *mut u8,
    left: usize,
}

impl Arena {
    pub(crate) const fn new() -> Self {
        Self {
            next: null_mut(),
            left: 0,
        }
    }

    /// Zeroed memory, aligned to 64 bytes; null if the kernel has none.
    pub(crate) fn take(&mut self, bytes: usize) -> *mut u8 {
        let bytes = bytes.div_ceil(64) * 64;
        if bytes > ARENA_BYTES / 4 {
            return anonymous(bytes);
        }
        if bytes > self.left {
            self.next = anonymous(ARENA_BYTES);
            self.left = if self.next.is_null() { 0 } else { ARENA_BYTES };
            if self.left == 0 {
                return null_mut();
            }
        }
        let taken = self.next;
        // SAFETY: `left` bytes from `next` on belong to the arena, and `bytes` is not more.
        self.next = unsafe { self.next.add(bytes) };
        self.left -= bytes;
        taken
    }
}

/// The results file of this process.
pub(crate) struct ResultFile {
    path: [u8; PATH_BYTES],
    bytes: usize,
    header: *mut FileHeader,
}

impl ResultFile {
    /// No file: chunks are anonymous memory.
    pub(crate) const fn none() -> Self {
        Self {
            path: [0; PATH_BYTES],
            bytes: 0,
            header: null_mut(),
        }
    }

    /// Creates `FOLDER/PID-NUMBER.ranges`, with the first number that is free. On failure there is
    /// no file.
    pub(crate) fn create(&mut self, folder: &[u8]) {
        *self = Self::none();
        // SAFETY: getpid has no conditions.
        let pid = unsafe { libc::getpid() };
        for number in 0..1000_u32 {
            let mut cursor = Cursor {
                bytes: &mut self.path,
                length: 0,
            };
            cursor.text(folder);
            cursor.text(b"/");
            cursor.number(u64::from(pid.unsigned_abs()));
            cursor.text(b"-");
            cursor.number(u64::from(number));
            cursor.text(b".ranges");
            if !cursor.end() {
                self.path = [0; PATH_BYTES];
                return;
            }
            let flags = libc::O_CREAT | libc::O_EXCL;
            match self.open(flags) {
                Ok(descriptor) => {
                    close(descriptor);
                    self.header = self.append(size_of::<FileHeader>()).cast();
                    if self.header.is_null() {
                        self.path = [0; PATH_BYTES];
                    }
                    return;
                }
                Err(libc::EEXIST) => {}
                Err(_) => break,
            }
        }
        self.path = [0; PATH_BYTES];
    }

    /// Whether there is a file.
    pub(crate) const fn exists(&self) -> bool {
        self.path[0] != 0
    }

    /// The header; null without a file.
    pub(crate) const fn header(&self) -> *mut FileHeader {
        self.header
    }

    fn open(&self, flags: c_int) -> Result<c_int, c_int> {
        let flags = flags | libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW;
        // SAFETY: `path` ends with a zero: `Cursor::end` has checked it.
        let descriptor = unsafe { libc::open(self.path.as_ptr().cast(), flags, 0o600) };
        if descriptor >= 0 {
            Ok(descriptor)
        } else {
            Err(errno())
        }
    }

    /// Appends zeroed memory to the file; null without a file, or if the disk is full.
    pub(crate) fn append(&mut self, bytes: usize) -> *mut u8 {
        self.append_at(null_mut(), bytes)
    }

    /// As [`append`](Self::append), at an address that is mapped already and is replaced.
    pub(crate) fn append_at(&mut self, address: *mut u8, bytes: usize) -> *mut u8 {
        if !self.exists() {
            return null_mut();
        }
        let bytes = pages(bytes);
        let Ok(descriptor) = self.open(0) else {
            return null_mut();
        };
        let (Ok(offset), Ok(length)) = (i64::try_from(self.bytes), i64::try_from(bytes)) else {
            return null_mut();
        };
        // Reserves the space: a full disk is an error here, and not a SIGBUS of the program later.
        // SAFETY: the descriptor is open.
        let failed = unsafe { libc::posix_fallocate(descriptor, offset, length) };
        let mut memory = libc::MAP_FAILED;
        if failed == 0 {
            let fixed = if address.is_null() {
                0
            } else {
                libc::MAP_FIXED
            };
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | fixed;
            // SAFETY: a new mapping, or one that replaces memory of the runtime: the caller passes
            // the address of a chunk of the same size.
            memory =
                unsafe { libc::mmap(address.cast(), bytes, protection, flags, descriptor, offset) };
        }
        close(descriptor);
        if memory == libc::MAP_FAILED {
            return null_mut();
        }
        self.bytes += bytes;
        memory.cast()
    }
}

/// Writes a path without an allocation.
struct Cursor<'a> {
    bytes: &'a mut [u8; PATH_BYTES],
    length: usize,
}

impl Cursor<'_> {
    fn text(&mut self, text: &[u8]) {
        for byte in text {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = *byte;
            }
            self.length += 1;
        }
    }

    fn number(&mut self, number: u64) {
        if number >= 10 {
            self.number(number / 10);
        }
        let digit = u8::try_from(number % 10).unwrap_or(0);
        self.text(&[b'0' + digit]);
    }

    /// Whether all of it fits with a final zero.
    fn end(&mut self) -> bool {
        self.text(&[0]);
        self.length <= PATH_BYTES
    }
}

fn close(descriptor: c_int) {
    // SAFETY: the descriptor was opened here and is used no more.
    unsafe { libc::close(descriptor) };
}

/// The error of the last call of the C library in this thread.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library returns the address of the thread's own errno.
    unsafe { *libc::__errno_location() }
}

/// Sets the error, so that the slow path leaves it as it was.
pub(crate) fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

/// Copies the first bytes of a file without an allocation; returns how many.
pub(crate) fn read_start(path: &[u8], buffer: &mut [u8]) -> usize {
    debug_assert_eq!(path.last(), Some(&0));
    // SAFETY: the path ends with a zero, and the buffer has the length that is passed.
    unsafe {
        let descriptor = libc::open(path.as_ptr().cast(), libc::O_RDONLY | libc::O_CLOEXEC);
        if descriptor < 0 {
            return 0;
        }
        let read = libc::read(
            descriptor,
            buffer.as_mut_ptr().cast::<c_void>(),
            buffer.len(),
        );
        libc::close(descriptor);
        usize::try_from(read).unwrap_or(0)
    }
}

/// A lock that a signal handler cannot meet: it is held with all signals blocked.
pub(crate) struct SignalSafeLock {
    mutex: std::cell::UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: a mutex of the C library is made for use by several threads.
unsafe impl Sync for SignalSafeLock {}

/// Proof that the lock is held; holds the signal mask to restore.
pub(crate) struct Held<'a> {
    lock: &'a SignalSafeLock,
    mask: libc::sigset_t,
}

impl SignalSafeLock {
    pub(crate) const fn new() -> Self {
        Self {
            mutex: std::cell::UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
        }
    }

    /// Blocks all signals of this thread, and takes the lock.
    pub(crate) fn lock(&self) -> Held<'_> {
        let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the sets are written before they are read, and the mutex is initialised.
        unsafe {
            let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), mask.as_mut_ptr());
            libc::pthread_mutex_lock(self.mutex.get());
            Held {
                lock: self,
                mask: mask.assume_init(),
            }
        }
    }

    /// Makes the lock new in a child of fork, where the thread that held it does not exist.
    pub(crate) fn renew(&self) {
        // SAFETY: the child has one thread, and it is here.
        unsafe { self.mutex.get().write(libc::PTHREAD_MUTEX_INITIALIZER) };
    }
}

impl Held<'_> {
    /// Restores the signal mask without giving the lock back: it was made new.
    pub(crate) fn restore_mask(self) {
        // SAFETY: `mask` is what the signals of this thread were.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, addr_of!(self.mask), null_mut()) };
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the mutex, and `mask` is what its signals were.
        unsafe {
            libc::pthread_mutex_unlock(self.lock.mutex.get());
            libc::pthread_sigmask(libc::SIG_SETMASK, addr_of!(self.mask), null_mut());
        }
    }
}

/// A volatile read of a word that another thread may write.
///
/// # Safety
/// The pointer is valid and aligned.
pub(crate) unsafe fn get<T: Copy>(word: *const T) -> T {
    // SAFETY: the caller's promise.
    unsafe { word.read_volatile() }
}

/// A volatile write of a word that another thread may read.
///
/// # Safety
/// The pointer is valid and aligned.
pub(crate) unsafe fn set<T>(word: *mut T, value: T) {
    // SAFETY: the caller's promise.
    unsafe { word.write_volatile(value) }
}

/// Keeps `addr_of_mut` in one place for fields of structs behind raw pointers.
macro_rules! field {
    ($pointer:expr, $field:ident) => {
        std::ptr::addr_of_mut!((*$pointer).$field)
    };
}
pub(crate) use field;

const _: () = assert!(PAGE.is_multiple_of(4096));
