// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private folder for the socket of an embedded directory.
//!
//! It lies where everybody may make folders. So its name cannot be foreseen, and nothing that is
//! found there is trusted: what a killed command left behind is removed by the next one of the same
//! user, through descriptors of folders, without following links, and only if it is the user's own.
//!
//! The folder holds a file that its command keeps locked. The kernel gives the lock back when the
//! process has ended, however it ended, and in whatever pid namespace: a process id and its start
//! time would not tell a command in another container from one that is dead.
//!
//! The lock is the first file in the folder and the last to be removed. So a folder without a lock
//! is empty, whenever its command was killed, and `rmdir` decides a race with a command that is
//! about to make the lock: either the folder goes and that command makes another one, or it is no
//! longer empty and stays.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The address of a Unix socket has 108 bytes; our part of the path takes less than 50.
const MAX_PARENT_BYTES: usize = 55;
/// How the folders' names begin; 16 digits follow.
const PREFIX: &str = "overhear-";
const DIGITS: usize = 16;
/// The file that is locked as long as the folder is in use.
const LOCK: &CStr = c"lock";
/// How many entries of a place are looked at for what others left.
const MAX_ENTRIES: usize = 10_000;

/// A fresh folder that nobody else can list or change, removed when dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    // Locked until the folder has been removed.
    _lock: OwnedFd,
}

impl Scratch {
    /// In the user's runtime folder, or where temporary files go.
    pub(crate) fn create() -> io::Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
        let places = runtime
            .map(PathBuf::from)
            .into_iter()
            .chain([
                std::env::temp_dir(),
                PathBuf::from("/tmp"),
                PathBuf::from("/dev/shm"),
            ])
            .filter(|place| place.as_os_str().len() <= MAX_PARENT_BYTES);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for place in places {
            // An error leaves what was there.
            let _ = remove_abandoned(&place);
            for _ in 0..16 {
                match Self::create_in(&place) {
                    Ok(scratch) => return Ok(scratch),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        // Programs of root may drop their privileges and must still find the socket; who may use it
        // is decided by the directory. Nobody can look around in the folder.
        let mode = if rustix::process::geteuid().is_root() {
            0o711
        } else {
            0o700
        };
        let mut random = [0; DIGITS / 2];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let number = u64::from_ne_bytes(random);
        let path = place.join(format!("{PREFIX}{number:0digits$x}", digits = DIGITS));
        std::fs::DirBuilder::new().mode(mode).create(&path)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let folder = open_folder(rustix::fs::CWD, &path);
        let lock = folder.and_then(|folder| open_lock(&folder, flags));
        let locked = lock.and_then(|lock| {
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            // Until it was locked another command could find it abandoned, and remove it.
            match rustix::fs::fstat(&lock)?.st_nlink {
                0 => Err(Errno::NOENT),
                _ => Ok(lock),
            }
        });
        match locked {
            Ok(lock) => Ok(Self { path, _lock: lock }),
            Err(errno) => {
                let _ = remove(&path);
                Err(errno.into())
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = remove(&self.path);
    }
}

/// Removes a folder of this command.
fn remove(path: &Path) -> rustix::io::Result<()> {
    remove_files(&open_folder(rustix::fs::CWD, path)?)?;
    rustix::fs::unlinkat(rustix::fs::CWD, path, AtFlags::REMOVEDIR)
}

/// Removes the files of a folder, the lock last. Such a folder has no folders in it; one that has
/// is not ours after all, and stays.
fn remove_files(folder: &OwnedFd) -> rustix::io::Result<()> {
    let unlink = |name: &CStr| match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        // The directory removes its socket, too.
        Err(Errno::NOENT) => Ok(()),
        result => result,
    };
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if entry.file_type() != FileType::Directory && entry.file_name() != LOCK {
            unlink(entry.file_name())?;
        }
    }
    unlink(LOCK)
}

fn open_folder(
    place: impl std::os::fd::AsFd,
    name: impl rustix::path::Arg,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(place, name, flags, Mode::empty())
}

fn open_lock(folder: &OwnedFd, more: OFlags) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    rustix::fs::openat(folder, LOCK, flags | more, Mode::RUSR | Mode::WUSR)
}

/// Removes the folders of this user in a place whose commands are gone.
fn remove_abandoned(place: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let place = rustix::fs::open(place, flags, Mode::empty())?;
    for entry in Dir::read_from(&place)?.take(MAX_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name();
        if is_of_ours(name.to_bytes()) {
            // The others are looked at all the same.
            let _ = remove_if_abandoned(&place, name);
        }
    }
    Ok(())
}

fn is_of_ours(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

fn remove_if_abandoned(place: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    let folder = open_folder(place, name)?;
    let about = rustix::fs::fstat(&folder)?;
    let own = rustix::process::geteuid().as_raw();
    // Nobody but this user can put anything into it.
    if about.st_uid != own || about.st_mode & 0o022 != 0 {
        return Ok(());
    }
    let lock = match open_lock(&folder, OFlags::empty()) {
        Ok(lock) => {
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            remove_files(&folder)?;
            Some(lock)
        }
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno),
    };
    let removed = rustix::fs::unlinkat(place, name, AtFlags::REMOVEDIR);
    drop(lock);
    removed
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::path::Path;

    use super::{remove_abandoned, Scratch};

    const ABANDONED: &str = "overhear-0123456789abcdef";

    fn abandoned(place: &Path) -> std::path::PathBuf {
        let folder = place.join(ABANDONED);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(folder.join("lock"), "").unwrap();
        fs::write(folder.join("directory.sock"), "").unwrap();
        folder
    }

    #[test]
    fn folder_is_in_use_until_its_command_is_gone() {
        let place = tempfile::tempdir().unwrap();
        let left = abandoned(place.path());
        let first = Scratch::create_in(place.path()).unwrap();
        let second = Scratch::create_in(place.path()).unwrap();
        assert_ne!(first.path(), second.path());
        remove_abandoned(place.path()).unwrap();
        assert!(!left.exists() && first.path().exists() && second.path().exists());
        let path = first.path().to_path_buf();
        drop(first);
        assert!(!path.exists() && second.path().exists());
    }

    #[test]
    fn folder_survives_concurrent_cleanup() {
        let place = tempfile::tempdir().unwrap();
        let made = std::thread::scope(|scope| {
            let place = place.path();
            let maker = || {
                let tries = (0..2_000).filter_map(|_| {
                    remove_abandoned(place).unwrap_or_default();
                    Scratch::create_in(place).ok()
                });
                let all_are_there = |scratch: Scratch| {
                    let socket = scratch.path().join("directory.sock");
                    assert!(File::create(socket).is_ok(), "{scratch:?}");
                };
                tries.map(all_are_there).count()
            };
            let makers = [(); 4].map(|()| scope.spawn(maker));
            makers.map(|maker| maker.join().unwrap())
        });
        assert!(made.iter().all(|&count| count > 0), "{made:?}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn foreign_folders_are_neither_used_nor_removed() {
        let place = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        let precious = abandoned(outside.path());
        // A link to a folder that looks abandoned.
        let link = place.path().join("overhear-00000000000000aa");
        symlink(&precious, &link).unwrap();
        // A link in place of the lock, and a folder that others can write.
        let linked = place.path().join("overhear-00000000000000bb");
        fs::create_dir(&linked).unwrap();
        symlink(precious.join("lock"), linked.join("lock")).unwrap();
        let shared = place.path().join("overhear-00000000000000cc");
        fs::create_dir(&shared).unwrap();
        File::create(shared.join("lock")).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
        // One without a lock that is not empty, and a plain file.
        let other = place.path().join("overhear-00000000000000dd");
        fs::create_dir(&other).unwrap();
        File::create(other.join("precious")).unwrap();
        let file = place.path().join("overhear-00000000000000ee");
        File::create(&file).unwrap();
        // The names of earlier versions.
        let pid = std::process::id();
        for attempt in 0..16 {
            fs::create_dir(place.path().join(format!("overhear-{pid}-{attempt}"))).unwrap();
        }
        let before = fs::read_dir(place.path()).unwrap().count();
        remove_abandoned(place.path()).unwrap();
        drop(Scratch::create_in(place.path()).unwrap());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), before);
        assert!(precious.join("directory.sock").exists());
        assert!(precious.join("lock").exists());
    }

    #[test]
    fn folder_is_removed_at_whatever_step_its_command_was_killed() {
        let place = tempfile::tempdir().unwrap();
        // The steps of making one, and those of removing one.
        for files in [&[][..], &["lock"], &["lock", "directory.sock"]] {
            let folder = place.path().join(ABANDONED);
            fs::create_dir(&folder).unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
            for file in files {
                fs::write(folder.join(file), "").unwrap();
            }
            remove_abandoned(place.path()).unwrap();
            assert!(!folder.exists(), "{files:?}");
        }
    }

    #[test]
    fn folders_of_other_users_stay() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can make what belongs to another user");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let folder = abandoned(place.path());
        std::os::unix::fs::chown(&folder, Some(65_534), Some(65_534)).unwrap();
        remove_abandoned(place.path()).unwrap();
        assert!(folder.join("directory.sock").exists());
    }
}
