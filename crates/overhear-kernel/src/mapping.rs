// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with the kernel: the crate's only map calls.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{io, ptr};

use overhear_stream::{KeptWords, SharedWords};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

/// What this process may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Loads only; a store would be a fault.
    Read,
    /// Loads and stores.
    Write,
}

/// A shared mapping, undone when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u64>,
    bytes: usize,
}

/// A part of a mapping as words: one ring of several. It keeps the mapping.
pub(crate) type MappedWords = KeptWords<Arc<Mapping>>;

// SAFETY: the mapping belongs to this value alone and is not bound to a thread; the value gives
// access through atomic words only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file, shared.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: usize, access: Access) -> io::Result<Arc<Self>> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self { base, bytes }))
    }

    /// `bytes` from `offset` on, both multiples of 8, as words.
    ///
    /// # Panics
    /// If they are not within the mapping: offsets come from our own geometry.
    pub(crate) fn part(self: &Arc<Self>, offset: usize, bytes: usize) -> MappedWords {
        assert!(
            offset.is_multiple_of(8) && offset <= self.bytes && bytes <= self.bytes - offset,
            "{bytes} bytes at {offset} are not within a mapping of {}",
            self.bytes
        );
        // SAFETY: the lines above check that the part lies within the mapping, and that it begins
        // at a multiple of 8 from the page-aligned base. The words keep a share of the mapping from
        // here on. The process accesses it through words alone; nothing builds a writer on a
        // read-only mapping, and `load.rs` and `perf` store into writable ones only.
        unsafe { SharedWords::new(self.base.add(offset / 8), bytes / 8) }.kept_by(Arc::clone(self))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and all words in it held a share of the value.
        // The kernel rounds a length up to the page size, as it did when the memory was mapped.
        let result = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        // Unmapping one's own mapping fails only for arguments that were never mapped.
        debug_assert!(result.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use overhear_stream::sync::Ordering;
    use overhear_stream::Words;
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    use super::{Access, Mapping};

    #[test]
    fn parts_are_where_they_should_be_and_keep_the_mapping() {
        let file = memfd_create("parts", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let writable = Mapping::new(file.as_fd(), 8192, Access::Write).unwrap();
        let readable = Mapping::new(file.as_fd(), 8192, Access::Read).unwrap();
        let (whole, part) = (writable.part(0, 8192), readable.part(4096, 64));
        drop((writable, readable));
        whole.word(512 + 7).store(7, Ordering::Relaxed);
        assert_eq!(part.len(), 8);
        assert_eq!(part.word(7).load(Ordering::Relaxed), 7);
    }

    #[test]
    #[should_panic(expected = "not within")]
    fn parts_end_with_the_mapping() {
        let file = memfd_create("parts", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let mapping = Mapping::new(file.as_fd(), 4096, Access::Read).unwrap();
        mapping.part(8, 4096);
    }
}
