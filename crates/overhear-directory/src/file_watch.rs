// SPDX-License-Identifier: MIT OR Apache-2.0
//! Until when memory files exist: an inotify instance with a watch on each.
//!
//! A program that was given a file may keep it for as long as it likes: by a descriptor, by a map, in a
//! message that nobody receives, in another process. The kernel frees the memory with the last of these
//! references, and tells a watch on the file (`IN_DELETE_SELF`), which is no reference itself. What a user
//! is charged for a file is released then, and not when the directory has closed it.
//!
//! Watches belong to the instance. A service manager that keeps the instance keeps them over a restart.

use std::collections::BTreeSet;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A watch on a file; its number is not used again for a long time.
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

/// Watches memory files.
#[derive(Debug)]
pub(crate) struct FileWatch(OwnedFd);

/// Files that the kernel has freed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    These(Vec<WatchId>),
    /// There were more than the kernel could queue: see which ones [`FileWatch::live`] leaves.
    TooMany,
}

impl FileWatch {
    pub(crate) fn new() -> io::Result<Self> {
        let instance = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self(instance))
    }

    /// An instance that an earlier life of the directory has made.
    pub(crate) const fn adopt(instance: OwnedFd) -> Self {
        Self(instance)
    }

    /// Watches a file.
    ///
    /// # Errors
    /// `ENOSPC` where the directory's user has as many watches as `fs.inotify.max_user_watches` allows.
    pub(crate) fn add(&self, file: impl AsFd) -> io::Result<WatchId> {
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let watch = inotify::add_watch(&self.0, path, WatchFlags::DELETE_SELF)?;
        Ok(WatchId(watch))
    }

    /// Watches a file no longer.
    pub(crate) fn remove(&self, watch: WatchId) {
        // It may have been freed meanwhile, and with it the watch.
        let _ = inotify::remove_watch(&self.0, watch.0);
    }

    /// The files that have been freed since the last call.
    pub(crate) fn take_freed(&self) -> Freed {
        let mut freed = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.0, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    return Freed::TooMany
                }
                // Each is told twice: that the file is gone, and that the watch is.
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

    /// Every way to keep memory that a descriptor gives, and what the kernel thinks of it.
    #[test]
    fn a_file_is_freed_with_its_last_reference_of_any_kind() {
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
