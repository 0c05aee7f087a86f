// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks of the files that determine the actions of a privileged user: `overhear.toml`, `.metric`
//! files, plug-ins, programs of reactions.
//!
//! A caller with privileges (user 0, or any effective capability) uses such a file only if no other
//! user could have chosen its content:
//!
//! - The file, each folder and each symbolic link on its path belong to root or to the caller.
//!   Under `sudo` they may also belong to the user who called it, who may run this program as root
//!   anyway.
//! - Group and others cannot write to any of them, except to folders with the sticky bit, in which
//!   no user can replace the files of others.
//!
//! The path is walked by descriptors from `/` on, each name once, and the checked file is the one
//! that is read. A path that is passed on (to the dynamic loader, to `exec`) is the real path, on
//! which no other user can change a name later. Libraries that a plug-in is linked with, and
//! interpreters of scripts, are not checked.
//!
//! For an ordinary user no file is refused: as with a Makefile, it runs with the user's own rights.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{fstat, openat, readlinkat, FileType, Mode, OFlags, Stat, CWD};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Symbolic links on one path, as in the kernel.
const MAX_LINKS: u32 = 40;
/// Write permission of group and others.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The error of a file that cannot be used.
#[derive(Debug)]
pub(crate) enum TrustError {
    /// It cannot be opened or read.
    Io(io::Error),
    /// Another user could have chosen its content. The message names the path and the remedy.
    Untrusted(String),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Untrusted(message) => f.write_str(message),
        }
    }
}

impl From<Errno> for TrustError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl From<io::Error> for TrustError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The text of a file.
#[expect(clippy::disallowed_methods, reason = "a file that the user names")]
pub(crate) fn read_to_string(path: &Path) -> Result<String, TrustError> {
    let mut file = match Owners::of_privileged() {
        None => File::open(path)?,
        Some(owners) => {
            let found = owners.walk(path)?;
            // The checked file, even if its name was changed since.
            File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?
        }
    };
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// The path by which a file is loaded or executed: for a privileged user the real one, every name
/// of which is checked.
#[expect(clippy::disallowed_methods, reason = "a file that the user names")]
pub(crate) fn checked_path(path: &Path) -> Result<PathBuf, TrustError> {
    match Owners::of_privileged() {
        None => Ok(path.to_path_buf()),
        Some(owners) => {
            let found = owners.walk(path)?;
            let link = format!("/proc/self/fd/{}", found.as_raw_fd());
            Ok(std::fs::read_link(link)?)
        }
    }
}

/// The path by which a shared object is loaded.
///
/// # Errors
/// A message.
pub(crate) fn plugin(path: &Path) -> Result<PathBuf, String> {
    checked_path(path).map_err(|error| match error {
        TrustError::Io(error) => {
            let path = path.display();
            format!("plug-in {path} does not load: cannot open shared object file: {error}")
        }
        TrustError::Untrusted(message) => message,
    })
}

/// Folders in which programs are looked for: for a privileged user those of the system.
pub(crate) fn search_path() -> OsString {
    match is_privileged() {
        true => SYSTEM_PATH.into(),
        false => std::env::var_os("PATH").unwrap_or_else(|| SYSTEM_PATH.into()),
    }
}

/// Whether this process has rights that other processes of its user do not have.
pub(crate) fn is_privileged() -> bool {
    let has_capabilities = || {
        let sets = rustix::thread::capabilities(None);
        sets.is_ok_and(|sets| !sets.effective.is_empty())
    };
    (geteuid().is_root() || has_capabilities()) && !is_alone_in_namespace()
}

/// Whether this process is in a user namespace of one user (`unshare --map-root-user`). Its
/// privileges concern that user only, and files of root have another owner there.
#[expect(clippy::disallowed_methods, reason = "a file of /proc")]
fn is_alone_in_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&str> = map.split_whitespace().collect();
    matches!(words.as_slice(), [_, _, "1"])
}

/// The users whose files are trusted.
#[derive(Debug)]
struct Owners(Vec<u32>);

impl Owners {
    /// The users for a privileged process; `None` for an ordinary one, which uses every file.
    fn of_privileged() -> Option<Self> {
        is_privileged().then(|| {
            let euid = geteuid().as_raw();
            let caller = std::env::var("SUDO_UID").ok();
            let caller = caller.and_then(|uid| uid.parse().ok());
            let caller = caller.filter(|_| euid == 0);
            Self([0, euid].into_iter().chain(caller).collect())
        })
    }

    /// Opens the file for its descriptor, and checks each name on the path.
    fn walk(&self, path: &Path) -> Result<OwnedFd, TrustError> {
        let look = OFlags::PATH | OFlags::CLOEXEC;
        let folder = look | OFlags::DIRECTORY;
        let mut rest = names(&std::path::absolute(path)?);
        let mut found = openat(CWD, "/", folder, Mode::empty())?;
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == "/" {
                found = openat(CWD, "/", folder, Mode::empty())?;
                at = PathBuf::from("/");
            } else if name == ".." {
                found = openat(&found, "..", folder, Mode::empty())?;
                at.pop();
            } else {
                let next = openat(&found, &name, look | OFlags::NOFOLLOW, Mode::empty())?;
                let stat = fstat(&next)?;
                at.push(&name);
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(Errno::LOOP.into());
                    }
                    self.check_owner(path, &at, &stat)?;
                    let target = readlinkat(&next, "", Vec::new())?;
                    let target =
                        PathBuf::from(OsString::from(target.to_string_lossy().into_owned()));
                    if target.is_absolute() || !is_in_proc(&found) {
                        at.pop();
                        let mut names = names(&target);
                        names.append(&mut rest);
                        rest = names;
                        continue;
                    }
                    // A descriptor of this process (`/dev/stdin`, `/dev/fd/N`) may have no name.
                    found = openat(&found, &name, look, Mode::empty())?;
                } else {
                    found = next;
                }
            }
            self.check(path, &at, &fstat(&found)?)?;
        }
        Ok(found)
    }

    fn check_owner(&self, path: &Path, at: &Path, stat: &Stat) -> Result<(), TrustError> {
        if self.0.contains(&stat.st_uid) {
            return Ok(());
        }
        let (path, at, uid) = (path.display(), at.display(), stat.st_uid);
        Err(TrustError::Untrusted(format!(
            "{path} is not used with privileges: {at} belongs to user {uid}, who could change what is done; type \
             `chown -h root {at}` if it is good, or drop the privileges"
        )))
    }

    fn check(&self, path: &Path, at: &Path, stat: &Stat) -> Result<(), TrustError> {
        self.check_owner(path, at, stat)?;
        let is_shared = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => stat.st_mode & STICKY == 0,
            // A write to a terminal or to /dev/null does not change what is read from it.
            FileType::CharacterDevice => false,
            _ => true,
        };
        if !is_shared || stat.st_mode & OTHERS_WRITE == 0 {
            return Ok(());
        }
        let (path, at) = (path.display(), at.display());
        Err(TrustError::Untrusted(format!(
            "{path} is not used with privileges: {at} can be written by other users, who could change what is done; \
             type `chmod go-w {at}` if it is good, or drop the privileges"
        )))
    }
}

/// The names of a path in their order; `/` is the root.
fn names(path: &Path) -> VecDeque<OsString> {
    let components = path.components();
    let components = components.filter(|it| !matches!(it, Component::CurDir));
    components.map(|it| it.as_os_str().to_os_string()).collect()
}

fn is_in_proc(folder: &OwnedFd) -> bool {
    rustix::fs::fstatfs(folder).is_ok_and(|it| it.f_type == rustix::fs::PROC_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, PermissionsExt};
    use std::path::Path;

    use rustix::process::geteuid;

    use super::{names, Owners, TrustError};

    /// The owners for this user.
    fn owners() -> Owners {
        Owners(vec![0, geteuid().as_raw()])
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[track_caller]
    fn refused(path: &Path, part: &str) {
        match owners().walk(path) {
            Err(TrustError::Untrusted(message)) => assert!(message.contains(part), "{message}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn writers_of_folder_and_file_decide_trust() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        let file = inner.join("overhear.toml");
        fs::create_dir(&inner).unwrap();
        fs::write(&file, "").unwrap();
        mode(&inner, 0o755);
        mode(&file, 0o644);
        owners().walk(&file).unwrap();
        owners()
            .walk(&inner.join("../inner/./overhear.toml"))
            .unwrap();
        for bad in [0o664, 0o646] {
            mode(&file, bad);
            refused(&file, "overhear.toml can be written by other users");
        }
        mode(&file, 0o644);
        for bad in [0o775, 0o757] {
            mode(&inner, bad);
            refused(&file, "inner can be written by other users");
        }
        // As /tmp: no user can replace the files of others there.
        mode(&inner, 0o1777);
        owners().walk(&file).unwrap();
    }

    #[test]
    fn links_are_walked_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let (open, closed) = (folder.path().join("open"), folder.path().join("closed"));
        for folder in [&open, &closed] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(open.join("file"), "").unwrap();
        mode(&open, 0o777);
        mode(&closed, 0o755);
        symlink("../open/file", closed.join("relative")).unwrap();
        symlink(open.join("file"), closed.join("absolute")).unwrap();
        symlink("loop", closed.join("loop")).unwrap();
        for name in ["relative", "absolute"] {
            refused(&closed.join(name), "open can be written");
        }
        mode(&open, 0o755);
        for name in ["relative", "absolute"] {
            owners().walk(&closed.join(name)).unwrap();
        }
        let looped = owners().walk(&closed.join("loop"));
        assert!(matches!(looped, Err(TrustError::Io(_))), "{looped:?}");
    }

    #[test]
    fn other_owners_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let owners = Owners(vec![0xffff_0000]);
        let refused = owners.walk(&file);
        assert!(
            matches!(refused, Err(TrustError::Untrusted(_))),
            "{refused:?}"
        );
    }

    #[test]
    fn names_are_in_order() {
        let all: Vec<_> = names(Path::new("/a/./b/../c")).into_iter().collect();
        assert_eq!(all, ["/", "a", "b", "..", "c"]);
    }
}
