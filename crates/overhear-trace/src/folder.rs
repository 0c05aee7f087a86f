// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of a recording, opened so that their owner cannot turn them against the reader.
//!
//! Root reads recordings of ordinary users, and the owner of a folder decides on its content: links
//! to files of others, FIFOs without a writer, devices, files of any size. All of it may change at
//! any time. [`Folder`] is the only way to these files, for reading and for writing.
//!
//! # Rules
//!
//! 1. A file is opened by a single name relative to the descriptor of its folder, by `openat2` with
//!    `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS`. A kernel or a seccomp filter
//!    without `openat2` gets `openat` with `O_NOFOLLOW`, which is as strict for a single name.
//! 2. Only a regular file is opened. `O_NONBLOCK` keeps a FIFO that appears after the check from
//!    blocking; the descriptor is checked again.
//! 3. A file is read up to a limit that its caller states. A larger one is refused before memory is
//!    taken.
//! 4. A new file is created with `O_EXCL`. A file is replaced by a new one with a random name
//!    ([`Replacement`]), which is renamed within the folder. A file that is changed in place has a
//!    single name (no hard link).
//! 5. Only folders of root or of the caller are written to ([`Folder::create`],
//!    [`Folder::check_owner`]). Root writes to none that other users can write to, unless it is
//!    sticky and the file is in a folder of root below it.
//!
//! The path of the topmost folder comes from the user, and links in it are followed.
//! [`Folder::create`] does not follow a link of another user there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    fstat, mkdirat, openat, openat2, renameat, statat, unlinkat, AtFlags, Dir, FileType, Mode,
    OFlags, ResolveFlags, Stat, CWD,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Reason why a folder is not written to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderError {
    /// Its owner is another user.
    #[error("{} belongs to user {owner}, neither to root nor to this user: overhear does not write there; name a folder of this user", .path.display())]
    Foreign {
        /// The folder or link.
        path: PathBuf,
        /// Number of the user that owns it.
        owner: u32,
    },
    /// Other users can write to it.
    #[error("{} can be written to by other users: root does not write there; name another folder, or run `chmod go-w` on it", .path.display())]
    Shared {
        /// The folder.
        path: PathBuf,
    },
    /// It cannot be opened or created.
    #[error("cannot create {}: {cause}; choose a directory you may write to", .path.display())]
    Create {
        /// The folder.
        path: PathBuf,
        /// The error of the operating system.
        cause: String,
    },
}

/// An open folder.
///
/// Holding one proves that it is a directory. It proves nothing about its owner
/// ([`Folder::check_owner`]) and nothing about its content, which may change at any time.
#[derive(Debug)]
pub struct Folder {
    /// Used in error messages only, and never opened again.
    path: PathBuf,
    descriptor: OwnedFd,
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Folder {
    /// Opens a folder for reading its content. Links in the path are followed.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_path_buf(),
            descriptor: openat(CWD, whole(path), FOLDER, Mode::empty())?,
        })
    }

    /// Opens a folder for writing. If it does not exist, it is created, with all missing folders
    /// above it.
    ///
    /// # Errors
    /// [`FolderError`] if it, or the folder in which it would be created, is not trusted (rule 5),
    /// or if it cannot be created.
    pub fn create(path: &Path) -> Result<Self, FolderError> {
        let failed = |error: Errno| create_error(path, &error.into());
        let nofollow = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(CWD, whole(path), nofollow, Mode::empty()) {
            Ok(found) => {
                let about = fstat(&found).map_err(failed)?;
                if FileType::from_raw_mode(about.st_mode) == FileType::Symlink {
                    check_user(path, &about)?;
                }
                let folder = Self::open(path).map_err(|error| create_error(path, &error))?;
                folder.check_owner()?;
                Ok(folder)
            }
            Err(Errno::NOENT) => {
                let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
                    return Err(failed(Errno::NOENT));
                };
                match Self::open(above) {
                    // A missing one is checked when it is created.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(above)?,
                    Err(error) => return Err(create_error(above, &error)),
                    Ok(above) => above,
                }
                .create_subfolder(name)
                .map_err(|error| match error {
                    // The path as the user has given it.
                    FolderError::Create { cause, .. } => FolderError::Create {
                        path: path.to_path_buf(),
                        cause,
                    },
                    refused => refused,
                })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Opens the folder of a file, which need not exist, and returns the name of the file.
    ///
    /// # Errors
    /// The errors of the operating system; also if the path is not that of a file.
    pub fn above(file: &Path) -> io::Result<(Self, OsString)> {
        match (file.parent(), file.file_name()) {
            (Some(above), Some(name)) => Ok((Self::open(above)?, name.to_owned())),
            _ => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        }
    }

    /// The path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a folder in this one; a link is not followed.
    ///
    /// # Errors
    /// The errors of the operating system; of the kind [`io::ErrorKind::Other`] if it is something
    /// else than a folder.
    pub fn subfolder(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        match self.kind(name)? {
            None => return Err(io::ErrorKind::NotFound.into()),
            Some(FileType::Directory) => {}
            Some(other) => return Err(is_no(other, "folder")),
        }
        Ok(Self {
            path: self.path.join(name),
            descriptor: self.open_beneath(name, FOLDER, Mode::empty())?,
        })
    }

    /// Opens a folder in this one for writing, or creates it.
    ///
    /// # Errors
    /// [`FolderError`] if it, or the owner of this one, is not trusted (rule 5), or if it cannot be
    /// created.
    pub fn create_subfolder(&self, name: impl AsRef<OsStr>) -> Result<Self, FolderError> {
        let name = single(name.as_ref()).map_err(|error| create_error(&self.path, &error))?;
        let path = self.path.join(name);
        // A shared folder suffices, as long as other users cannot exchange the folders that root
        // creates in it: the new folder is opened without following links, and its owner is
        // checked.
        let about = fstat(&self.descriptor).map_err(|error| create_error(&path, &error.into()))?;
        check_user(&self.path, &about)?;
        match mkdirat(&self.descriptor, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(create_error(&path, &error.into())),
        }
        let folder = self
            .subfolder(name)
            .map_err(|error| create_error(&path, &error))?;
        folder.check_owner()?;
        Ok(folder)
    }

    /// Whether files may be written here (rule 5).
    ///
    /// # Errors
    /// [`FolderError::Foreign`] or [`FolderError::Shared`] if not.
    pub fn check_owner(&self) -> Result<(), FolderError> {
        let about =
            fstat(&self.descriptor).map_err(|error| create_error(&self.path, &error.into()))?;
        check_user(&self.path, &about)?;
        let mode = Mode::from_raw_mode(about.st_mode);
        let by_group = mode.contains(Mode::WGRP) && about.st_gid != 0;
        let by_others = mode.contains(Mode::WOTH);
        if geteuid().is_root() && (by_group || by_others) && !mode.contains(Mode::SVTX) {
            return Err(FolderError::Shared {
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// The type of the file with this name, `None` if there is none. A link counts as a link.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn kind(&self, name: impl AsRef<OsStr>) -> io::Result<Option<FileType>> {
        let name = single(name.as_ref())?;
        match statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(Some(FileType::from_raw_mode(about.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The bytes that a file or folder of this name takes on the disk; 0 if there is none. Those of
    /// the content of a folder are not added.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn allocated(&self, name: impl AsRef<OsStr>) -> io::Result<u64> {
        let name = single(name.as_ref())?;
        match statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) => Ok(allocated(&about)),
            Err(Errno::NOENT) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// The bytes that this folder itself takes on the disk.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn own_allocated(&self) -> io::Result<u64> {
        Ok(allocated(&fstat(&self.descriptor)?))
    }

    /// The names of all files here, in no particular order.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = openat(&self.descriptor, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(own)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name).to_owned());
            }
        }
        Ok(names)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The errors of the operating system; of the kind [`io::ErrorKind::Other`] if it is no regular
    /// file.
    pub fn file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.regular(name.as_ref(), OFlags::RDONLY)
    }

    /// Opens a file for reading and writing in place.
    ///
    /// # Errors
    /// As [`Folder::file`]; also of the kind [`io::ErrorKind::Other`] if the file has further
    /// names.
    pub fn file_to_change(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let file = self.regular(name.as_ref(), OFlags::RDWR | OFlags::APPEND)?;
        has_one_name(&file)?;
        Ok(file)
    }

    /// Opens a file for its lock, or creates it. Its content is kept.
    ///
    /// # Errors
    /// As [`Folder::file_to_change`].
    pub fn file_to_lock(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let file = self.regular(name.as_ref(), OFlags::RDWR | OFlags::CREATE)?;
        has_one_name(&file)?;
        Ok(file)
    }

    /// Opens a FIFO of the caller's or of root's for writing. It waits for a reader.
    ///
    /// # Errors
    /// The errors of the operating system; of the kind [`io::ErrorKind::Other`] if it is no FIFO,
    /// or another user's.
    pub fn own_fifo(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = single(name.as_ref())?;
        let check = |about: &Stat| match FileType::from_raw_mode(about.st_mode) {
            FileType::Fifo => check_user(&self.path.join(name), about).map_err(io::Error::other),
            other => Err(is_no(other, "FIFO")),
        };
        check(&statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW)?)?;
        let fifo = self.open_beneath(name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        check(&fstat(&fifo)?)?;
        Ok(fifo.into())
    }

    /// Creates a file that does not exist yet, for appending.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn new_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        self.regular(
            name.as_ref(),
            OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::EXCL,
        )
    }

    /// Reads a whole file of at most this size.
    ///
    /// # Errors
    /// As [`Folder::file`]; also of the kind [`io::ErrorKind::Other`] if the file is larger.
    pub fn read(&self, name: impl AsRef<OsStr>, most_bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        let bytes = file.metadata()?.len();
        let too_large = |bytes: u64| {
            io::Error::other(format!(
                "it has {bytes} bytes, more than the {most_bytes} that are allowed"
            ))
        };
        if bytes > most_bytes {
            return Err(too_large(bytes));
        }
        let mut content = Vec::with_capacity(bytes as usize);
        file.take(most_bytes + 1).read_to_end(&mut content)?;
        match content.len() as u64 {
            grown if grown > most_bytes => Err(too_large(grown)),
            _ => Ok(content),
        }
    }

    /// Begins the new content of a file. The old content remains until [`Replacement::commit`].
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn replace(&self, name: impl AsRef<OsStr>) -> io::Result<Replacement<'_>> {
        self.replace_in(self, name)
    }

    /// As [`Folder::replace`]; the new content grows in this folder, and becomes a file of another
    /// one on the same file system.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn replace_in<'a>(
        &'a self,
        target: &'a Self,
        name: impl AsRef<OsStr>,
    ) -> io::Result<Replacement<'a>> {
        let name = single(name.as_ref())?.to_owned();
        // Two random names do not collide; an attacker guesses one with a probability of 2^-64.
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let suffix = u64::from_ne_bytes(random);
        let mut temporary = OsString::from(".");
        temporary.push(&name);
        temporary.push(format!(".{suffix:016x}"));
        Ok(Replacement {
            file: self.new_file(&temporary)?,
            folder: self,
            temporary,
            target,
            name,
            is_committed: false,
        })
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn remove_file(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = single(name.as_ref())?;
        Ok(unlinkat(&self.descriptor, name, AtFlags::empty())?)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn remove_subfolder(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        let name = single(name.as_ref())?;
        Ok(unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR)?)
    }

    /// Opens a regular file (rules 1 and 2).
    fn regular(&self, name: &OsStr, flags: OFlags) -> io::Result<File> {
        // Opening a device can have effects of its own, so its type is checked first.
        match self.kind(name)? {
            Some(FileType::RegularFile) | None => {}
            Some(other) => return Err(is_no(other, "regular file")),
        }
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mode = match flags.contains(OFlags::CREATE) {
            true => Mode::from_raw_mode(0o666),
            false => Mode::empty(),
        };
        let descriptor = self.open_beneath(name, flags, mode)?;
        match FileType::from_raw_mode(fstat(&descriptor)?.st_mode) {
            FileType::RegularFile => Ok(descriptor.into()),
            other => Err(is_no(other, "regular file")),
        }
    }

    /// Opens a name in this folder without following a link.
    fn open_beneath(&self, name: &OsStr, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let name = single(name)?;
        match self.by_openat2(name, flags, mode) {
            // Seccomp filters return EPERM. So does the kernel for files that are immutable; then
            // the second attempt returns the same.
            Err(Errno::NOSYS | Errno::PERM) => {}
            // A rename elsewhere happened during the look-up. Nothing was opened.
            Err(Errno::AGAIN) => {}
            opened => return explained(opened),
        }
        explained(self.by_openat(name, flags, mode))
    }

    fn by_openat2(&self, name: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::NOFOLLOW;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(&self.descriptor, name, flags, mode, resolve)
    }

    /// For a single name it is equally strict.
    fn by_openat(&self, name: &OsStr, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        openat(&self.descriptor, name, flags | OFlags::NOFOLLOW, mode)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// New content of a file, which is invisible until [`Replacement::commit`]. Dropping it removes the
/// new content.
///
/// It is not forced to the disk: the guarantee is about killed processes, and a recorder must not
/// wait for disks.
#[derive(Debug)]
pub struct Replacement<'a> {
    file: File,
    folder: &'a Folder,
    temporary: OsString,
    target: &'a Folder,
    name: OsString,
    is_committed: bool,
}

impl Replacement<'_> {
    /// Puts the new content in place of the old one. A link of this name is replaced, not followed.
    ///
    /// # Errors
    /// The errors of the operating system.
    pub fn commit(mut self) -> io::Result<()> {
        renameat(
            &self.folder.descriptor,
            &self.temporary,
            &self.target.descriptor,
            &self.name,
        )?;
        self.is_committed = true;
        Ok(())
    }
}

impl Write for Replacement<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if !self.is_committed {
            // The user needs the first error.
            let _ = self.folder.remove_file(&self.temporary);
        }
    }
}

/// The bytes of a file on the disk, at least its size. `stat` counts in units of 512 bytes.
fn allocated(about: &Stat) -> u64 {
    let blocks = u64::try_from(about.st_blocks).unwrap_or(0);
    let size = u64::try_from(about.st_size).unwrap_or(0);
    blocks.saturating_mul(512).max(size)
}

/// The bytes that an open file takes on the disk.
pub(crate) fn size_on_disk(file: &File) -> io::Result<u64> {
    Ok(allocated(&fstat(file)?))
}

/// The current folder has an empty path as a parent.
fn whole(path: &Path) -> &Path {
    match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    }
}

/// Checks that a name stays in its folder.
fn single(name: &OsStr) -> io::Result<&OsStr> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(only)), None) if only == name => Ok(name),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

fn check_user(path: &Path, about: &Stat) -> Result<(), FolderError> {
    let is_trusted = about.st_uid == 0 || about.st_uid == geteuid().as_raw();
    is_trusted
        .then_some(())
        .ok_or_else(|| FolderError::Foreign {
            path: whole(path).to_path_buf(),
            owner: about.st_uid,
        })
}

fn has_one_name(file: &File) -> io::Result<()> {
    match fstat(file)?.st_nlink {
        0 | 1 => Ok(()),
        names => Err(io::Error::other(format!(
            "it is known by {names} names (hard links), and the others would change with it"
        ))),
    }
}

fn create_error(path: &Path, cause: &io::Error) -> FolderError {
    FolderError::Create {
        path: path.to_path_buf(),
        cause: cause.to_string(),
    }
}

/// Explains the errors of the kernel: with `O_NOFOLLOW`, ELOOP means a link; ENXIO means a socket
/// or a FIFO.
fn explained(opened: Result<OwnedFd, Errno>) -> io::Result<OwnedFd> {
    opened.map_err(|error| match error {
        Errno::LOOP => is_no(FileType::Symlink, "regular file"),
        Errno::NXIO => io::Error::other("it is no regular file"),
        error => error.into(),
    })
}

fn is_no(found: FileType, expected: &str) -> io::Error {
    let found = match found {
        FileType::Symlink => "a symbolic link",
        FileType::Directory => "a folder",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::RegularFile => "a regular file",
        _ => "something else",
    };
    io::Error::other(format!("it is {found}, not a {expected}"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{self, Write};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rustix::fs::{mknodat, FileType, Mode, CWD};
    use rustix::io::Errno;

    use super::{Folder, FolderError};

    fn folder() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::open(place.path()).unwrap();
        (place, folder)
    }

    fn fifo(at: &Path) {
        mknodat(CWD, at, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
    }

    #[track_caller]
    fn is_refused<T: std::fmt::Debug>(result: io::Result<T>, words: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (place, folder) = folder();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), "text").unwrap();
        fs::create_dir(at("folder")).unwrap();
        fifo(&at("fifo"));
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        symlink("file", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        symlink("/dev/zero", at("zero")).unwrap();
        assert_eq!(folder.read("file", 4).unwrap(), b"text");
        for (name, words) in [
            ("folder", "a folder, not a regular file"),
            ("fifo", "a FIFO, not a regular file"),
            ("socket", "a socket, not a regular file"),
            ("link", "a symbolic link, not a regular file"),
            ("dangling", "a symbolic link"),
            ("zero", "a symbolic link"),
        ] {
            is_refused(folder.file(name), words);
            is_refused(folder.file_to_change(name), words);
            is_refused(folder.file_to_lock(name), words);
            is_refused(folder.read(name, 100), words);
        }
        // Nothing was created through a link.
        assert!(!at("nowhere").exists());
        assert_eq!(
            folder.file("none").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn both_ways_to_open_follow_no_link_and_wait_for_nobody() {
        use rustix::fs::OFlags;
        let (place, folder) = folder();
        let at = |name: &str| place.path().join(name);
        fs::write(at("file"), "text").unwrap();
        fs::create_dir(at("folder")).unwrap();
        fifo(&at("fifo"));
        symlink("file", at("link")).unwrap();
        symlink("folder", at("folder link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let ways = [Folder::by_openat2, Folder::by_openat];
        for open in ways {
            let read = OFlags::RDONLY | OFlags::NONBLOCK;
            let open = |name: &str, flags: OFlags| {
                let mode = match flags.contains(OFlags::CREATE) {
                    true => Mode::from_raw_mode(0o600),
                    false => Mode::empty(),
                };
                open(&folder, name.as_ref(), flags, mode).map(drop)
            };
            assert_eq!(open("file", read), Ok(()));
            assert_eq!(open("link", read), Err(Errno::LOOP));
            let folders = read | OFlags::DIRECTORY;
            assert_eq!(open("folder", folders), Ok(()));
            assert!(open("folder link", folders).is_err());
            assert!(open("dangling", read | OFlags::CREATE).is_err());
            assert!(!at("nowhere").exists());
            // Opened without a wait; its type is checked afterwards.
            assert_eq!(open("fifo", read), Ok(()));
        }
    }

    #[test]
    fn names_lead_nowhere_else() {
        let (place, folder) = folder();
        fs::create_dir(place.path().join("inside")).unwrap();
        fs::write(place.path().join("inside/file"), "").unwrap();
        for name in [
            "",
            ".",
            "..",
            "/etc/passwd",
            "inside/file",
            "inside/",
            "../x",
        ] {
            let error = folder.file(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
            assert!(folder.subfolder(name).is_err(), "{name}");
            assert!(folder.replace(name).is_err(), "{name}");
        }
    }

    #[test]
    fn links_to_folders_are_not_followed() {
        let (place, folder) = folder();
        fs::create_dir(place.path().join("folder")).unwrap();
        symlink("folder", place.path().join("link")).unwrap();
        assert!(folder.subfolder("folder").is_ok());
        is_refused(folder.subfolder("link"), "a symbolic link, not a folder");
        assert!(folder.create_subfolder("link").is_err());
        // The topmost path comes from the user.
        assert!(Folder::open(&place.path().join("link")).is_ok());
    }

    #[test]
    fn files_are_read_up_to_their_limit() {
        let (place, folder) = folder();
        fs::write(place.path().join("file"), "12345").unwrap();
        assert_eq!(folder.read("file", 5).unwrap(), b"12345");
        is_refused(folder.read("file", 4), "5 bytes, more than the 4");
        let sparse = fs::File::create(place.path().join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        is_refused(folder.read("sparse", 1 << 20), "more than the 1048576");
    }

    #[test]
    fn new_content_appears_at_once_or_not_at_all() {
        let (place, folder) = folder();
        let target = place.path().join("file");
        fs::write(&target, "old").unwrap();
        let mut replacement = folder.replace("file").unwrap();
        replacement.write_all(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old");
        drop(replacement);
        assert_eq!(folder.names().unwrap(), ["file"]);
        let mut replacement = folder.replace("file").unwrap();
        replacement.write_all(b"new").unwrap();
        replacement.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(folder.names().unwrap(), ["file"]);
    }

    #[test]
    fn links_are_replaced_and_their_targets_stay() {
        let (place, folder) = folder();
        fs::write(place.path().join("target"), "precious").unwrap();
        symlink("target", place.path().join("file")).unwrap();
        let mut replacement = folder.replace("file").unwrap();
        replacement.write_all(b"new").unwrap();
        replacement.commit().unwrap();
        assert_eq!(fs::read(place.path().join("target")).unwrap(), b"precious");
        assert_eq!(folder.read("file", 9).unwrap(), b"new");
        assert!(folder.new_file("file").is_err());
    }

    #[test]
    fn hard_links_are_not_changed() {
        let (place, folder) = folder();
        fs::write(place.path().join("one"), "").unwrap();
        fs::hard_link(place.path().join("one"), place.path().join("two")).unwrap();
        is_refused(folder.file_to_change("one"), "2 names");
        is_refused(folder.file_to_lock("two"), "2 names");
        assert!(folder.file("one").is_ok());
    }

    #[test]
    fn folders_are_made_with_those_above_them() {
        let (place, _) = folder();
        let inner = place.path().join("a/b/c");
        Folder::create(&inner).unwrap();
        assert!(inner.is_dir());
        Folder::create(&inner).unwrap();
        fs::write(place.path().join("file"), "").unwrap();
        for bad in ["file", "file/x"] {
            let error = Folder::create(&place.path().join(bad)).unwrap_err();
            assert!(matches!(error, FolderError::Create { .. }), "{error}");
        }
    }

    #[test]
    fn root_writes_only_to_folders_that_others_cannot_change() {
        use std::os::unix::fs::{chown, lchown, PermissionsExt};
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root can give folders away");
            return;
        }
        let (place, _) = folder();
        let at = |name: &str| place.path().join(name);
        let refused = |path: &Path| match Folder::create(path) {
            Err(error @ FolderError::Create { .. }) => panic!("{error}"),
            Err(error) => Some(error),
            Ok(_) => None,
        };
        fs::create_dir_all(at("theirs/inside")).unwrap();
        chown(at("theirs"), Some(65_534), None).unwrap();
        // Everything below is under their control, too, until it is opened; also folders of root.
        assert_eq!(refused(&at("theirs/inside")), None);
        let foreign = |name: &str| {
            Some(FolderError::Foreign {
                path: at(name),
                owner: 65_534,
            })
        };
        assert_eq!(refused(&at("theirs")), foreign("theirs"));
        assert_eq!(refused(&at("theirs/new/inside")), foreign("theirs"));
        assert!(!at("theirs/new").exists());
        symlink("theirs/inside", at("link")).unwrap();
        assert_eq!(refused(&at("link")), None);
        lchown(at("link"), Some(65_534), None).unwrap();
        assert_eq!(refused(&at("link")), foreign("link"));
        fs::create_dir(at("shared")).unwrap();
        for (mode, is_shared) in [(0o777, true), (0o1777, false), (0o755, false)] {
            fs::set_permissions(at("shared"), fs::Permissions::from_mode(mode)).unwrap();
            let shared = FolderError::Shared { path: at("shared") };
            assert_eq!(refused(&at("shared")), is_shared.then_some(shared));
        }
        // A new folder in a shared one belongs to root alone.
        fs::set_permissions(at("shared"), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(refused(&at("shared/new")), None);
    }
}
