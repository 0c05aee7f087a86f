// SPDX-License-Identifier: MIT OR Apache-2.0
//! Detects when the kernel frees memory files: an inotify instance with a watch on each.
//!
//! A program that has a file may keep it for as long as it likes: by a descriptor, by a map, in a
//! message that nobody receives, in another process. The kernel frees the memory with the last of
//! these references, and reports it to a watch on the file (`IN_DELETE_SELF`), which is no
//! reference itself. The user's charge for the file is released then, and not when the directory
//! closes it.
//!
//! Watches belong to the instance. If the service manager stores the instance, they outlive a
//! restart.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use crate::quota::Amounts;

/// A watch on a file. Its number is reused only after a long time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct WatchId(i32);

impl WatchId {
    pub(crate) const fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    pub(crate) const fn as_raw(self) -> i32 {
        self.0
    }
}

/// The charge of a file, by the event that ends it.
#[derive(Debug)]
pub(crate) enum FileCharge {
    /// Ends when the kernel frees the file.
    Watched(WatchId),
    /// Ends when the directory closes the file, where files cannot be watched.
    Unwatched(u32, Amounts),
}

impl FileCharge {
    /// The watch, for a journal.
    pub(crate) const fn watch(&self) -> Option<i32> {
        match self {
            Self::Watched(watch) => Some(watch.as_raw()),
            Self::Unwatched(..) => None,
        }
    }

    /// The charge of a file from before a restart.
    pub(crate) const fn restored(watch: i32) -> Self {
        Self::Watched(WatchId::from_raw(watch))
    }
}

/// Watches memory files.
#[derive(Debug)]
pub(crate) struct FileWatch(OwnedFd);

/// Result of [`FileWatch::take_freed`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    These(Vec<WatchId>),
    /// The kernel's queue overflowed: files that [`FileWatch::live`] does not list have been freed.
    TooMany,
}

impl FileWatch {
    pub(crate) fn new() -> io::Result<Self> {
        let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self(instance))
    }

    /// The instance of an earlier directory.
    pub(crate) const fn adopt(instance: OwnedFd) -> Self {
        Self(instance)
    }

    /// Watches a file.
    ///
    /// # Errors
    /// `ENOSPC` where the directory's user has as many watches as `fs.inotify.max_user_watches`
    /// allows.
    pub(crate) fn add(&self, file: impl AsFd) -> io::Result<WatchId> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let watch = inotify::add_watch(&self.0, path, WatchFlags::DELETE_SELF)?;
        Ok(WatchId(watch))
    }

    /// Removes a watch.
    pub(crate) fn remove(&self, watch: WatchId) {
        // An error means that the file has been freed meanwhile, and the watch with it.
        let _ = inotify::remove_watch(&self.0, watch.0);
    }

    /// Takes the files that were freed since the last call.
    pub(crate) fn take_freed(&self) -> Freed {
        let mut freed = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.0, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    return Freed::TooMany
                }
                // Each file has two events: that of the file, and the removal of its watch.
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => {
                    freed.push(WatchId(event.wd()));
                }
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return Freed::These(freed),
            }
        }
    }

    /// The watches on files that exist.
    ///
    /// # Errors
    /// The kernel's reason if `/proc` does not list them.
    pub(crate) fn live(&self) -> io::Result<BTreeSet<WatchId>> {
        let path = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let text = std::fs::read_to_string(path)?;
        let watch = |line: &str| {
            let (raw, _) = line.strip_prefix("inotify wd:")?.split_once(' ')?;
            i32::from_str_radix(raw, 16).ok().map(WatchId)
        };
        Ok(text.lines().filter_map(watch).collect())
    }
}

impl AsFd for FileWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use rustix::fs::{Mode, OFlags};

    use super::{FileWatch, Freed};
    use crate::memory::{Mapping, MemoryFile};

    /// Tries every way to keep a reference to a memory file.
    #[test]
    fn file_is_freed_with_its_last_reference_of_any_kind() {
        let watch = FileWatch::new().unwrap();
        let file = MemoryFile::create("watched", 8192, &[]).unwrap();
        let id = watch.add(&file).unwrap();
        let none = Freed::These(Vec::new());
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let same = file.as_fd().try_clone_to_owned().unwrap();
        let map = Mapping::read_only(&file, 8192).unwrap();
        let anew = file.share().unwrap();
        let named = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        drop(file);
        assert_eq!(watch.take_freed(), none);
        drop(same);
        assert_eq!(watch.take_freed(), none);
        drop(anew);
        assert_eq!(watch.take_freed(), none);
        drop(map);
        assert_eq!(watch.take_freed(), none);
        assert!(watch.live().unwrap().contains(&id));
        drop(named);
        assert_eq!(watch.take_freed(), Freed::These(vec![id]));
        assert!(watch.live().unwrap().is_empty());
    }

    #[test]
    fn numbers_beyond_nine_are_listed() {
        let watch = FileWatch::new().unwrap();
        let files: Vec<_> = (0..40)
            .map(|_| MemoryFile::create("watched", 4096, &[]).unwrap())
            .collect();
        let all: Vec<_> = files.iter().map(|file| watch.add(file).unwrap()).collect();
        assert!(watch.live().unwrap().into_iter().eq(all.iter().copied()));
        watch.remove(all[7]);
        drop(files);
        let Freed::These(freed) = watch.take_freed() else {
            panic!("forty are not too many");
        };
        assert_eq!(freed.len(), 40);
    }
}
