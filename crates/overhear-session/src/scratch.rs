// SPDX-License-Identifier: MIT OR Apache-2.0
//! A private folder for the socket of an embedded directory.
//!
//! It lies where everybody may make folders. So its name cannot be foreseen, and nothing that is found
//! there is trusted: what a killed command left behind is removed by the next one of the same user, through
//! descriptors of folders, without following links, and only if it is the user's own.
//!
//! The folder holds a file that its command keeps locked. The kernel gives the lock back when the process
//! has ended, however it ended, and in whatever pid namespace: a process id and its start time would not
//! tell a command in another container from one that is dead.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// The address of a Unix socket has 108 bytes; our part of the path takes less than 50.
const LONGEST_PLACE: usize = 55;
/// How the folders' names begin; 16 digits follow.
const PREFIX: &str = "overhear-";
const DIGITS: usize = 16;
/// The file that is locked as long as the folder is in use.
const LOCK: &str = "lock";
/// A folder without a lock is being made, unless it is older than this.
const MAKING: Duration = Duration::from_secs(60);
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
            .filter(|place| place.as_os_str().len() <= LONGEST_PLACE);
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

    #[expect(clippy::disallowed_methods, reason = "a folder of our own")]
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
        let lock = open_lock(rustix::fs::CWD, &path.join(LOCK), flags);
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
                let _ = std::fs::remove_dir_all(&path);
                Err(errno.into())
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    #[expect(clippy::disallowed_methods, reason = "a folder of our own")]
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

fn open_lock(
    folder: impl std::os::fd::AsFd,
    path: &Path,
    more: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    rustix::fs::openat(folder, path, flags | more, Mode::RUSR | Mode::WUSR)
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

fn remove_if_abandoned(place: &OwnedFd, name: &std::ffi::CStr) -> rustix::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(place, name, flags, Mode::empty())?;
    let about = rustix::fs::fstat(&folder)?;
    let own = rustix::process::geteuid().as_raw();
    // Nobody but this user can put anything into it.
    if about.st_uid != own || about.st_mode & 0o022 != 0 {
        return Ok(());
    }
    let _lock = match open_lock(&folder, Path::new(LOCK), OFlags::empty()) {
        Ok(lock) => {
            rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            Some(lock)
        }
        Err(Errno::NOENT) if is_older(about.st_mtime, MAKING) => None,
        Err(errno) => return Err(errno),
    };
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        // Such a folder has no others in it; one that has is not ours after all, and stays.
        if entry.file_type() != FileType::Directory {
            rustix::fs::unlinkat(&folder, entry.file_name(), AtFlags::empty())?;
        }
    }
    rustix::fs::unlinkat(place, name, AtFlags::REMOVEDIR)
}

/// Whether a time in seconds since 1970 is longer ago than this.
fn is_older(seconds: i64, than: Duration) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let then = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    now.saturating_sub(then) > than
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
    fn a_folder_is_in_use_until_its_command_is_gone() {
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
    fn a_folder_that_is_made_beside_others_who_tidy_up_is_there() {
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
    fn what_others_prepared_is_neither_in_the_way_nor_removed() {
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
        // One without a lock, which somebody may be making, and a plain file.
        let fresh = place.path().join("overhear-00000000000000dd");
        fs::create_dir(&fresh).unwrap();
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
