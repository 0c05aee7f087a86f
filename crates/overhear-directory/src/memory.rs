// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory files and maps of them: the only unsafe code of the directory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use overhear_stream::{KeptWords, SharedWords};
use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Memory for a stream could not be made or mapped.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {bytes} bytes for a stream: {source}")]
pub struct MapError {
    /// What was tried.
    action: &'static str,
    /// How much memory.
    bytes: usize,
    /// What the kernel said.
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
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: OwnedFd,
    bytes: usize,
}

impl MemoryFile {
    /// Allocates the file and writes what must stand in it: words, and the byte at which they begin.
    /// The pages exist afterwards, so writers never fault for want of memory.
    pub(crate) fn create(
        name: &str,
        bytes: usize,
        initial: &[(usize, Vec<u64>)],
    ) -> Result<Self, MapError> {
        let fail = |action| move |errno| MapError::new(action, bytes, errno);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Not executable; kernels before 6.3 do not know the flag.
        let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))
            .map_err(fail("create a memory file of"))?;
        rustix::fs::ftruncate(&file, bytes as u64).map_err(fail("size a memory file to"))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)
            .map_err(fail("allocate"))?;
        for (at, words) in initial {
            let head: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            rustix::io::pwrite(&file, &head, *at as u64).map_err(fail("write the header of"))?;
        }
        Ok(Self { file, bytes })
    }

    /// A file that this directory made in an earlier life.
    pub(crate) fn adopt(file: OwnedFd) -> Self {
        let mut adopted = Self { file, bytes: 0 };
        adopted.bytes = usize::try_from(adopted.size()).unwrap_or(0);
        adopted
    }

    /// Forbids changes of size for good; the directory can still write, also after a restart.
    pub(crate) fn seal_size(&self) -> Result<(), MapError> {
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if rustix::fs::fcntl_get_seals(&self.file).is_ok_and(|present| present.contains(seals)) {
            return Ok(()); // In an earlier life.
        }
        rustix::fs::fcntl_add_seals(&self.file, seals)
            .map_err(|errno| MapError::new("seal", self.bytes, errno))
    }

    /// A descriptor through which the file can only be read: what others get of a page that the
    /// directory writes. They cannot open it anew for writing either, because the mode of the file
    /// forbids it to everybody but its owner, who could just as well trace the directory, and root.
    pub(crate) fn reader(&self) -> Result<OwnedFd, MapError> {
        let fail = |errno| MapError::new("share", self.bytes, errno);
        rustix::fs::fchmod(&self.file, Mode::RUSR).map_err(fail)?;
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty()).map_err(fail)
    }

    /// Forbids new writable maps, writes and changes of size, for everybody and for good. The map
    /// that the sensor's process already has keeps working.
    pub(crate) fn seal(&self) -> Result<(), MapError> {
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.file, seals)
            .map_err(|errno| MapError::new("seal", self.bytes, errno))
    }

    /// The file's number, by which lists of maps name it; 0 if the kernel does not say.
    pub(crate) fn inode(&self) -> u64 {
        rustix::fs::fstat(&self.file).map_or(0, |about| about.st_ino)
    }

    /// How large the file is now: less than [`MemoryFile::bytes`] if somebody cut it before the seal.
    pub(crate) fn size(&self) -> u64 {
        let size = rustix::fs::fstat(&self.file).map_or(0, |stat| stat.st_size);
        u64::try_from(size).unwrap_or(0)
    }

    /// Bytes that the file was made with.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A map of a stream, undone when dropped.
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

    /// Maps a file for writing and faults its pages in.
    ///
    /// # Errors
    /// [`MapError`] with the kernel's reason.
    pub fn writable(file: impl AsFd, bytes: usize) -> Result<Self, MapError> {
        Self::shared(file, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Private memory of zeros, for a sensor that nobody hears.
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
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
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

    /// Where the map begins.
    #[must_use]
    pub const fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// How long it is.
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

    /// A part of the map as words that keep the map: whole words from the byte `at` on, as far as the
    /// map goes.
    pub(crate) fn part(self: &Arc<Self>, at: usize, bytes: usize) -> KeptWords<Arc<Self>> {
        let at = at.next_multiple_of(8).min(self.bytes);
        let words = bytes.min(self.bytes - at) / 8;
        // SAFETY: within the map, or its very end for no words, and aligned by the lines above. The
        // words keep the map. This process accesses it through words alone; where it is mapped for
        // reading, nobody builds a writer on it.
        unsafe { SharedWords::new(self.base.add(at).cast(), words) }.kept_by(Arc::clone(self))
    }

    /// Replaces the pages by private zeros at the same address. Writers that still point here
    /// write where nobody reads: this is what a forked child does to its parent's streams.
    /// Async-signal-safe: one system call.
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
            // The kernel is out of map entries. The child must not go on with its parent's stream,
            // and an unmapped range would be given to somebody else: there is no way on.
            std::process::abort();
        }
    }

    /// Asks for the pages to stay in memory; without the right to that they may be swapped out.
    ///
    /// # Errors
    /// What the kernel said: `ENOMEM` or `EPERM` where the limit of locked memory is too low.
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
