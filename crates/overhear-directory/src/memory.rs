// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory files and maps of them: the only unsafe code of the directory.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use overhear_stream::{KeptWords, SharedWords};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Memory for a stream could not be allocated or mapped.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {bytes} bytes for a stream: {source}")]
pub struct MapError {
    /// The operation that failed.
    action: &'static str,
    /// Bytes of the memory.
    bytes: usize,
    /// The kernel's error.
    source: io::Error,
}

impl MapError {
    fn new(action: &'static str, bytes: usize, errno: rustix::io::Errno) -> Self {
        Self {
            action,
            bytes,
            source: errno.into(),
        }
    }
}

/// A memory file: a sensor's memory, or a page that the directory alone writes.
///
/// Holding one proves that the size of the file cannot change: the seals are set before anybody
/// else gets it.
#[derive(Debug)]
pub(crate) struct MemoryFile {
    // An open file description that no program gets: see `is_open_elsewhere`.
    file: OwnedFd,
    bytes: usize,
}

impl MemoryFile {
    /// Makes the file and writes its initial words; each entry of `initial` has the byte offset of
    /// its words. Other pages do not exist yet: a program allocates those of its buffer itself, so
    /// that its own control group is charged for them.
    pub(crate) fn create(
        name: &str,
        bytes: usize,
        initial: &[(usize, Vec<u64>)],
    ) -> Result<Self, MapError> {
        let fail = |action| move |errno| MapError::new(action, bytes, errno);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Not executable; kernels before 6.3 refuse the flag.
        let made = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))
            .map_err(fail("create a memory file of"))?;
        rustix::fs::ftruncate(&made, bytes as u64).map_err(fail("size a memory file to"))?;
        let size = SealFlags::SHRINK | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&made, size).map_err(fail("seal"))?;
        for (at, words) in initial {
            let head: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            rustix::io::pwrite(&made, &head, *at as u64).map_err(fail("write the header of"))?;
        }
        // The kernel counts writers of a file only from the second open on.
        let file = reopen(&made, OFlags::RDWR).map_err(fail("open"))?;
        Ok(Self { file, bytes })
    }

    /// A file from before a restart.
    pub(crate) fn adopt(file: OwnedFd) -> Self {
        let size = rustix::fs::fstat(&file).map_or(0, |stat| stat.st_size);
        let bytes = usize::try_from(size).unwrap_or(0);
        Self { file, bytes }
    }

    /// Allocates the missing pages of a part of the file, so that writers never fault for lack of
    /// memory.
    pub(crate) fn allocate(&self, part: Range<usize>) -> Result<(), MapError> {
        let fail = |errno| MapError::new("allocate", self.bytes, errno);
        let part = part.start..part.end.min(self.bytes);
        if part.is_empty() {
            return Ok(());
        }
        let (from, bytes) = (part.start as u64, part.len() as u64);
        allocate(&self.file, from, bytes).map_err(fail)
    }

    /// Bytes of the pages that exist.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let blocks = rustix::fs::fstat(&self.file).map_or(0, |stat| stat.st_blocks);
        u64::try_from(blocks).unwrap_or(0) * 512
    }

    /// Seals the size, and forbids further seals; the directory can still write, also after a
    /// restart.
    pub(crate) fn seal_size(&self) -> Result<(), MapError> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if rustix::fs::fcntl_get_seals(&self.file).is_ok_and(|present| present.contains(seals)) {
            return Ok(()); // Sealed before a restart.
        }
        rustix::fs::fcntl_add_seals(&self.file, seals)
            .map_err(|errno| MapError::new("seal", self.bytes, errno))
    }

    /// A read-only descriptor, for pages that the directory alone writes. Its holder cannot reopen
    /// it for writing either: the mode of the file permits that only to its owner, who could as
    /// well trace the directory, and to root.
    pub(crate) fn reader(&self) -> Result<OwnedFd, MapError> {
        let fail = |errno| MapError::new("share", self.bytes, errno);
        rustix::fs::fchmod(&self.file, Mode::RUSR).map_err(fail)?;
        reopen(&self.file, OFlags::RDONLY).map_err(fail)
    }

    /// A descriptor for the program that writes the file. [`MemoryFile::is_open_elsewhere`] is true
    /// as long as the program, or another process that has it from there, keeps a descriptor or a
    /// map.
    pub(crate) fn share(&self) -> Result<OwnedFd, MapError> {
        reopen(&self.file, OFlags::RDWR).map_err(|errno| MapError::new("share", self.bytes, errno))
    }

    /// Whether a descriptor or map from [`MemoryFile::share`] still exists: the kernel grants a
    /// lease on a file only to its sole opener. True where leases are switched off.
    pub(crate) fn is_open_elsewhere(&self) -> bool {
        const F_SETLEASE: libc::c_int = 1024;
        const WRITE_LEASE: libc::c_int = 1;
        const NO_LEASE: libc::c_int = 2;
        let file = self.file.as_raw_fd();
        // SAFETY: system calls on a descriptor that `self` owns, without memory.
        let granted = unsafe { libc::fcntl(file, F_SETLEASE, WRITE_LEASE) } == 0;
        if granted {
            // SAFETY: as above.
            unsafe { libc::fcntl(file, F_SETLEASE, NO_LEASE) };
        }
        !granted
    }

    /// Forbids new writable maps, writes and changes of size, permanently and for everybody. The
    /// map that the sensor's process already has stays writable.
    pub(crate) fn seal(&self) -> Result<(), MapError> {
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.file, seals)
            .map_err(|errno| MapError::new("seal", self.bytes, errno))
    }

    /// Size of the file in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Opens a memory file again: a new open file description, not a duplicate.
pub(crate) fn reopen(file: impl AsFd, access: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
}

/// Allocates pages of a file. After a signal the kernel has allocated nothing, and it is repeated.
fn allocate(file: impl AsFd, from: u64, bytes: u64) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), from, bytes))
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A map of a stream. Unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a map belongs to the process, not to a thread; the value gives no access by itself.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file for reading.
    ///
    /// # Errors
    /// [`MapError`] with the kernel's reason.
    pub fn read_only(file: impl AsFd, bytes: usize) -> Result<Self, MapError> {
        Self::shared(file, bytes, ProtFlags::READ)
    }

    /// As [`Mapping::read_only`], without faulting pages in: see [`Mapping::lock_part`].
    pub(crate) fn read_only_later(file: impl AsFd, bytes: usize) -> Result<Self, MapError> {
        Self::with_flags(file, bytes, ProtFlags::READ, MapFlags::SHARED)
    }

    /// As [`Mapping::read_only_later`], for writing: pages exist once they are touched.
    pub(crate) fn writable_later(file: impl AsFd, bytes: usize) -> Result<Self, MapError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        Self::with_flags(file, bytes, protection, MapFlags::SHARED)
    }

    /// Maps a file for writing and faults its pages in.
    ///
    /// # Errors
    /// [`MapError`] with the kernel's reason.
    pub fn writable(file: impl AsFd, bytes: usize) -> Result<Self, MapError> {
        Self::shared(file, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// As [`Mapping::writable`], and guarantees that every page exists: pages that the map did not
    /// fault in are allocated by a call that can fail.
    ///
    /// # Errors
    /// [`MapError`] with the kernel's reason.
    pub(crate) fn allocated(file: impl AsFd, bytes: usize) -> Result<Self, MapError> {
        let mapping = Self::writable(&file, bytes)?;
        let blocks = rustix::fs::fstat(&file).map_or(0, |about| about.st_blocks);
        if u64::try_from(blocks).unwrap_or(0) * 512 < bytes as u64 {
            allocate(&file, 0, bytes as u64)
                .map_err(|errno| MapError::new("allocate", bytes, errno))?;
        }
        Ok(mapping)
    }

    /// Private zeroed memory, for a sensor without a directory.
    ///
    /// # Errors
    /// [`MapError`] with the kernel's reason.
    pub fn private(bytes: usize) -> Result<Self, MapError> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh private map at an address of the kernel's choice touches nothing else.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
        };
        Self::from_kernel(base, "map", bytes)
    }

    fn shared(file: impl AsFd, bytes: usize, protection: ProtFlags) -> Result<Self, MapError> {
        Self::with_flags(
            file,
            bytes,
            protection,
            MapFlags::SHARED | MapFlags::POPULATE,
        )
    }

    fn with_flags(
        file: impl AsFd,
        bytes: usize,
        protection: ProtFlags,
        flags: MapFlags,
    ) -> Result<Self, MapError> {
        // SAFETY: a fresh map at an address of the kernel's choice touches nothing else.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                flags,
                file.as_fd(),
                0,
            )
        };
        Self::from_kernel(base, "map", bytes)
    }

    fn from_kernel(
        base: rustix::io::Result<*mut std::ffi::c_void>,
        action: &'static str,
        bytes: usize,
    ) -> Result<Self, MapError> {
        let base = base.map_err(|errno| MapError::new(action, bytes, errno))?;
        let base = NonNull::new(base.cast()).ok_or(MapError::new(
            action,
            bytes,
            rustix::io::Errno::NOMEM,
        ))?;
        Ok(Self { base, bytes })
    }

    /// Address of the map.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Length of the map.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The map as words, for a reader or writer.
    ///
    /// # Safety
    /// The map outlives the words.
    #[must_use]
    pub const unsafe fn words(&self) -> SharedWords {
        // SAFETY: maps are aligned to pages and `bytes` long; they stay for as long as `self`,
        // which the caller keeps. This process accesses them through words alone.
        unsafe { SharedWords::new(self.base.cast(), self.bytes / 8) }
    }

    /// A part of the map as words that keep the map alive: whole words from the byte `at` on, cut
    /// at the end of the map.
    pub(crate) fn part(self: &Arc<Self>, at: usize, bytes: usize) -> KeptWords<Arc<Self>> {
        let at = at.next_multiple_of(8).min(self.bytes);
        let words = bytes.min(self.bytes - at) / 8;
        // SAFETY: within the map, or its very end for no words, and aligned by the lines above. The
        // words keep the map. This process accesses it through words alone; where it is mapped for
        // reading, nobody builds a writer on it.
        unsafe { SharedWords::new(self.base.add(at).cast(), words) }.kept_by(Arc::clone(self))
    }

    /// Replaces the pages by private zeroed ones at the same address, so that no reader sees later
    /// writes: a forked child does this to its parent's streams. Async-signal-safe: one system
    /// call.
    pub fn make_private(&self) {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: exactly the pages of this map are replaced, by pages of the same size that
        // allow what the old ones allowed; nobody holds references into them, only words.
        let replaced = unsafe {
            rustix::mm::mmap_anonymous(
                self.base.as_ptr().cast(),
                self.bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        };
        if replaced.is_err() {
            // The kernel is out of map entries. The child must not write its parent's stream, and
            // an unmapped range could be reused by another map: the process cannot continue.
            std::process::abort();
        }
    }

    /// Faults the pages of a part in and locks them in memory.
    ///
    /// # Errors
    /// As for [`Mapping::lock`]; the pages are faulted in all the same.
    pub(crate) fn lock_part(&self, part: Range<usize>) -> std::io::Result<()> {
        let page = rustix::param::page_size();
        let (from, end) = (part.start / page * page, part.end.min(self.bytes));
        if from >= end {
            return Ok(());
        }
        // SAFETY: `from` lies within the map.
        let begin = unsafe { self.base.as_ptr().add(from) }.cast();
        // SAFETY: locks pages of this map alone.
        let locked = unsafe { rustix::mm::mlock(begin, end - from) };
        if locked.is_err() {
            let advice = rustix::mm::Advice::LinuxPopulateRead;
            // SAFETY: faults pages of this map in and changes nothing. Kernels before 5.14 refuse
            // the advice; there the readers fault the pages in.
            let _ = unsafe { rustix::mm::madvise(begin, end - from, advice) };
        }
        Ok(locked?)
    }

    /// Locks the pages in memory. Without permission for that they may be swapped out.
    ///
    /// # Errors
    /// The kernel's error: `ENOMEM` or `EPERM` where the limit of locked memory is too low.
    pub fn lock(&self) -> std::io::Result<()> {
        // SAFETY: locks exactly the pages of this map.
        unsafe { rustix::mm::mlock(self.base.as_ptr().cast(), self.bytes) }?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the map was made by this value and words do not outlive it (contract of
        // `words`).
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
