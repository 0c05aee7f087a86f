// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private folder for the socket of an embedded directory.
//!
//! Its parent folder may be writable by all users, such as `/tmp`. So its name is random, and
//! existing folders are not trusted. The next command of the same user removes the folder of a
//! killed command: through descriptors of folders, without following links, and only if it belongs
//! to that user.
//!
//! The folder contains a file that its command keeps locked. The kernel releases the lock when the
//! process ends, in every pid namespace. A process id and its start time would not distinguish a
//! command in another container from a dead one.
//!
//! The lock is the first file in the folder and the last one to be removed. So a folder without a
//! lock is empty, whenever its command was killed. `rmdir` decides a race with a command that is
//! about to create the lock: either the folder is removed and that command creates another one, or
//! it is no longer empty and stays.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Largest length of the parent folder's path, in bytes. The address of a Unix socket has 108
/// bytes, and the rest of the path takes less than 50.
const MAX_PARENT_BYTES: usize = 55;
/// Prefix of the folders' names, before the digits.
const PREFIX: &str = "overhear-";
/// Number of hexadecimal digits in the folders' names.
const DIGITS: usize = 16;
/// The file that is locked as long as the folder is in use.
const LOCK: &CStr = c"lock";
/// The folder of a recording in it.
const RECORDING: &CStr = c"recording";
/// Most folders inside each other in a recording.
const RECORDING_DEPTH: usize = 4;
/// Limit of the entries of a parent folder that are checked for abandoned folders.
const MAX_ENTRIES: usize = 10_000;

/// A new folder that no other user can list or change. It is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    // Locked until the folder has been removed.
    _lock: OwnedFd,
}

impl Scratch {
    /// Creates it in the user's runtime folder, or in a folder for temporary files.
    pub(crate) fn create() -> io::Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty());
        let parents = runtime
            .map(PathBuf::from)
            .into_iter()
            .chain([
                std::env::temp_dir(),
                PathBuf::from("/tmp"),
                PathBuf::from("/dev/shm"),
            ])
            .filter(|parent| parent.as_os_str().len() <= MAX_PARENT_BYTES);
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for parent in parents {
            // After an error, abandoned folders stay.
            let _ = remove_abandoned(&parent);
            for _ in 0..16 {
                match Self::create_in(&parent) {
                    Ok(scratch) => return Ok(scratch),
                    Err(error) => last = error,
                }
            }
        }
        Err(last)
    }

    /// In memory, for files that are mapped; where temporary files go if there is no such place.
    pub(crate) fn in_memory() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let _ = remove_abandoned(memory);
        Self::create_in(memory).or_else(|_| Self::create())
    }

    /// For a recording, which may be large: where temporary files go.
    pub(crate) fn for_recording() -> io::Result<Self> {
        let place = std::env::temp_dir();
        let _ = remove_abandoned(&place);
        Self::create_in(&place)
    }

    /// Where the recording goes.
    pub(crate) fn recording(&self) -> PathBuf {
        self.path.join("recording")
    }

    fn create_in(parent: &Path) -> io::Result<Self> {
        // Programs of root may drop their privileges, and must still reach the socket. The
        // directory decides which users may connect. No other user can list the folder.
        let mode = if rustix::process::geteuid().is_root() {
            0o711
        } else {
            0o700
        };
        let mut random = [0; DIGITS / 2];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let number = u64::from_ne_bytes(random);
        let path = parent.join(format!("{PREFIX}{number:0digits$x}", digits = DIGITS));
        std::fs::DirBuilder::new().mode(mode).create(&path)?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let folder = open_folder(rustix::fs::CWD, &path);
        let lock = folder.and_then(|folder| open_lock(&folder, flags));
        let locked = lock.and_then(|lock| {
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            // Before the lock, another command may have removed it as abandoned.
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

/// Removes the files of a folder and a recording in it, the lock last. A folder with other
/// subfolders was not created by this program, and stays.
fn remove_files(folder: &OwnedFd) -> rustix::io::Result<()> {
    let unlink = |name: &CStr| match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        // The directory also removes its socket.
        Err(Errno::NOENT) => Ok(()),
        result => result,
    };
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        if entry.file_type() != FileType::Directory && entry.file_name() != LOCK {
            unlink(entry.file_name())?;
        }
    }
    match remove_tree(folder, RECORDING, RECORDING_DEPTH) {
        Err(Errno::NOENT) => {}
        result => result?,
    }
    unlink(LOCK)
}

/// Removes a folder with its content. Links are not followed.
fn remove_tree(parent: &OwnedFd, name: &CStr, depth: usize) -> rustix::io::Result<()> {
    let folder = open_folder(parent, name)?;
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        match (entry.file_type(), entry.file_name()) {
            (_, name) if [c".", c".."].contains(&name) => {}
            (FileType::Directory, name) if depth > 0 => remove_tree(&folder, name, depth - 1)?,
            (_, name) => rustix::fs::unlinkat(&folder, name, AtFlags::empty())?,
        }
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
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

/// Removes the folders of this user in `parent` whose commands have ended.
fn remove_abandoned(parent: &Path) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = rustix::fs::open(parent, flags, Mode::empty())?;
    for entry in Dir::read_from(&parent)?.take(MAX_ENTRIES) {
        let entry = entry?;
        let name = entry.file_name();
        if has_our_name(name.to_bytes()) {
            // After an error, the other folders are still checked.
            let _ = remove_if_abandoned(&parent, name);
        }
    }
    Ok(())
}

fn has_our_name(name: &[u8]) -> bool {
    let digits = name.strip_prefix(PREFIX.as_bytes());
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit))
}

fn remove_if_abandoned(parent: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    let folder = open_folder(parent, name)?;
    let stat = rustix::fs::fstat(&folder)?;
    let own = rustix::process::geteuid().as_raw();
    // No other user can write to it.
    if stat.st_uid != own || stat.st_mode & 0o022 != 0 {
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
    let removed = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
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
    fn folder_of_a_killed_command_is_removed_at_each_step() {
        let place = tempfile::tempdir().unwrap();
        // The steps of creation and removal.
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
    fn recording_is_removed_with_its_folder() {
        let place = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("precious"), "").unwrap();
        let fill = |folder: &Path| {
            let own = folder.join("recording/trace/overhear");
            fs::create_dir_all(&own).unwrap();
            fs::write(own.join("run.json"), "{}").unwrap();
            symlink(outside.path(), own.join("link")).unwrap();
        };
        let left = abandoned(place.path());
        fill(&left);
        remove_abandoned(place.path()).unwrap();
        let scratch = Scratch::create_in(place.path()).unwrap();
        assert_eq!(scratch.recording(), scratch.path().join("recording"));
        fill(scratch.path());
        drop(scratch);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
        assert!(outside.path().join("precious").exists());
    }

    #[test]
    fn folders_of_other_users_stay() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can create files of another user");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let folder = abandoned(place.path());
        std::os::unix::fs::chown(&folder, Some(65_534), Some(65_534)).unwrap();
        remove_abandoned(place.path()).unwrap();
        assert!(folder.join("directory.sock").exists());
    }
}
