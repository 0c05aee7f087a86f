// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that are of this process alone.
//!
//! Locks of open file descriptions and names of sockets last as long as any process has a
//! descriptor of them. A child of `fork` has copies of all descriptors, so it closes those of its
//! parent at once; `exec` closes them anyhow.

use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use overhear_stream::sync::{AtomicU32, AtomicU64, Ordering};

/// More than the streams of a process and the areas that it may have open.
const MAX_FILES: usize = 256;

/// A descriptor in the table, and the file that it was opened for.
struct Place {
    /// The descriptor plus one, 0 for none, [`TAKEN`] until the identity is there.
    entry: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
}

const TAKEN: u32 = u32::MAX;

/// The descriptors. A plain table, because the child of a fork may take no lock.
static FILES: [Place; MAX_FILES] = [const {
    Place {
        entry: AtomicU32::new(0),
        device: AtomicU64::new(0),
        inode: AtomicU64::new(0),
    }
}; MAX_FILES];

/// A descriptor that a child of `fork` closes.
#[derive(Debug)]
pub(crate) struct PrivateFile {
    file: ManuallyDrop<OwnedFd>,
    identity: Option<(u64, u64)>,
}

/// Device and inode of an open file.
fn identity(file: impl AsFd) -> Option<(u64, u64)> {
    let stat = rustix::fs::fstat(file).ok()?;
    Some((stat.st_dev, stat.st_ino))
}

impl PrivateFile {
    /// Takes a descriptor, which is close-on-exec.
    pub(crate) fn new(file: OwnedFd) -> Self {
        let entry = file.as_raw_fd() as u32 + 1;
        let identity = identity(&file);
        let (relaxed, known) = (Ordering::Relaxed, identity.unwrap_or_default());
        // Relaxed: the fork orders everything for the child.
        let mut places = FILES.iter();
        let is_free = |place: &&Place| {
            let taken = place.entry.compare_exchange(0, TAKEN, relaxed, relaxed);
            taken.is_ok()
        };
        if let Some(place) = places.find(is_free) {
            place.device.store(known.0, relaxed);
            place.inode.store(known.1, relaxed);
            place.entry.store(entry, relaxed);
        }
        Self {
            identity,
            file: ManuallyDrop::new(file),
        }
    }

    /// Whether the descriptor still is that of its file: a program that closes all descriptors, as
    /// daemons do, may have a file of its own there.
    pub(crate) fn is_open(&self) -> bool {
        identity(&*self.file) == self.identity
    }

    fn unregister(&self) {
        let entry = self.file.as_raw_fd() as u32 + 1;
        for place in &FILES {
            let (entry_of, relaxed) = (&place.entry, Ordering::Relaxed);
            let ours = entry_of.compare_exchange(entry, 0, relaxed, relaxed);
            if ours.is_ok() {
                break;
            }
        }
    }
}

impl AsFd for PrivateFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for PrivateFile {
    fn drop(&mut self) {
        self.unregister();
        if !self.is_open() {
            return;
        }
        // SAFETY: the value is being dropped, so nothing uses the descriptor after this.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

/// Closes the descriptors of the parent, in the child of a fork. The values that held them must
/// never be dropped there.
pub(crate) fn close_in_child() {
    for place in &FILES {
        let entry = place.entry.swap(0, Ordering::Relaxed);
        if entry == 0 || entry == TAKEN {
            continue;
        }
        let number = (entry - 1) as i32;
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let known = (load(&place.device), load(&place.inode));
        // SAFETY: the number is used by the system calls of these lines alone; they fail if the
        // parent has closed the descriptor.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        // The parent may have closed it, and have a file of its own there.
        if identity(file) == Some(known) {
            // SAFETY: the copy of a descriptor that a `PrivateFile` of the parent owns; in the
            // child nothing else closes it.
            unsafe { libc::close(number) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use super::PrivateFile;

    #[test]
    fn file_of_the_program_at_the_same_number_stays_open() {
        let kept = PrivateFile::new(tempfile::tempfile().unwrap().into());
        let number = kept.as_fd().as_raw_fd();
        let other: File = tempfile::tempfile().unwrap();
        // SAFETY: the test closes its own descriptor, as a program does that closes all.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        drop(kept);
        // SAFETY: a system call without memory.
        assert!(unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0);
        // SAFETY: the copy that this test made.
        unsafe { libc::close(number) };
    }
}
