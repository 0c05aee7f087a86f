// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trace areas: the memory files in which processes record events of POSIX trace streams.
//!
//! The library of a traced process makes the file, because tracing works without a directory. So
//! its contents, and its process, are not trusted: the directory never maps it. It checks the file,
//! keeps two open file descriptions of it, one for writing and one for reading, and passes them on.
//!
//! # Rules
//!
//! 1. The size is sealed: no map of it can fault. Writes are not sealed: a process maps the file
//!    when it is forked or executed.
//! 2. The program makes both descriptions. The directory would need the right to open files of
//!    other users, which it does not have as a service.
//! 3. The file belongs to the user that announces it, and no other user may open it: a receiver of
//!    the description for reading cannot open the file again for writing. Exceptions are this user
//!    and root, which may trace the process anyway.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use overhear_event::Task;
use rustix::fs::{FileType, Mode, OFlags, SealFlags};
use serde::{Deserialize, Serialize};

use crate::memory::reopen;

/// The id of trace areas in rules: `server*/posix-trace` matches those of processes `server*`.
pub(crate) const AREA_SENSOR: &str = "posix-trace";
/// Maximum size of an area in bytes. Its pages exist when they are written.
const MAX_BYTES: u64 = 64 << 30;
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Only the owner may open the file.
const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// The access to a trace area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AreaAccess {
    /// To read events: the file cannot be mapped for writing.
    Read,
    /// To create and control streams.
    Control,
}

/// The number of an area. It is not reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct AreaId(u64);

impl AreaId {
    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn as_raw(self) -> u64 {
        self.0
    }

    /// The next number.
    pub(crate) const fn following(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Progress of a `list_areas` request.
#[derive(Debug)]
pub(crate) struct AreaListProgress {
    pub(crate) generation: u64,
    pub(crate) next: AreaId,
}

/// A trace area, as a directory lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AreaRecord {
    /// Its number; no other area of the directory has it.
    pub area: u64,
    /// The user whose processes record into it.
    pub uid: u32,
    /// Size of the file. Most of its pages may not exist.
    pub bytes: u64,
    /// Processes that record into it, at most 256 of them; the last one of an area that has ended.
    pub members: Vec<Task>,
    /// Whether all its processes have ended.
    pub ended: bool,
}

/// The two descriptions of an area's file.
///
/// Holding one proves: both are of one shared memory file of its user, with a sealed size; no other
/// user may open it; the first one can be mapped for writing, the second one only for reading. It
/// does not prove anything about the contents.
#[derive(Debug)]
pub(crate) struct AreaFiles {
    writer: OwnedFd,
    reader: OwnedFd,
    identity: FileIdentity,
    bytes: u64,
}

/// Identifies a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl AreaFiles {
    /// Checks the files that a process of this user has sent.
    ///
    /// # Errors
    /// A message about the wrong property, and the files.
    pub(crate) fn checked(files: Vec<OwnedFd>, uid: u32) -> Result<Self, (String, Vec<OwnedFd>)> {
        match check(&files, uid) {
            Ok((identity, bytes)) => {
                let mut files = files.into_iter();
                match (files.next(), files.next()) {
                    (Some(writer), Some(reader)) => Ok(Self {
                        writer,
                        reader,
                        identity,
                        bytes,
                    }),
                    _ => unreachable!("the check demands two files"),
                }
            }
            Err(message) => Err((message, files)),
        }
    }

    pub(crate) const fn identity(&self) -> FileIdentity {
        self.identity
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the pages that exist.
    pub(crate) fn allocated_bytes(&self) -> u64 {
        let blocks = rustix::fs::fstat(&self.reader).map_or(0, |stat| stat.st_blocks);
        u64::try_from(blocks).unwrap_or(0) * 512
    }

    /// The description with this access.
    pub(crate) fn with(&self, access: AreaAccess) -> BorrowedFd<'_> {
        match access {
            AreaAccess::Read => self.reader.as_fd(),
            AreaAccess::Control => self.writer.as_fd(),
        }
    }
}

/// Checks two descriptors from another process. The seals come first: a file of a file system in
/// user space has none, and any other request could wait for its owner.
fn check(files: &[OwnedFd], uid: u32) -> Result<(FileIdentity, u64), String> {
    let [writer, reader] = files else {
        let count = files.len();
        return Err(format!(
            "its announcement of a trace area came with {count} files, not with two"
        ));
    };
    let mut seen = None;
    for (file, access) in [(writer, OFlags::RDWR), (reader, OFlags::RDONLY)] {
        let seals = rustix::fs::fcntl_get_seals(file)
            .map_err(|_| "its trace area is no memory file that can be sealed".to_string())?;
        let size = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        if !seals.contains(size) || seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            let message = "its trace area must be sealed against changes of its size and further \
                           seals, and not against writes";
            return Err(message.to_string());
        }
        let wrong_kind = |_| "its trace area is no shared memory".to_string();
        let about = rustix::fs::fstatfs(file).map_err(wrong_kind)?;
        let stat = rustix::fs::fstat(file).map_err(wrong_kind)?;
        let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_regular || u64::try_from(about.f_type) != Ok(TMPFS_MAGIC) {
            return Err("its trace area is no shared memory".to_string());
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if stat.st_uid != uid || !OWNER_ONLY.contains(mode) {
            return Err(format!(
                "its trace area must belong to user {uid}, and no other user may open it (it has \
                 owner {} and mode {:o})",
                stat.st_uid,
                mode.as_raw_mode()
            ));
        }
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let page = rustix::param::page_size() as u64;
        if bytes == 0 || bytes > MAX_BYTES || bytes % page != 0 {
            return Err(format!(
                "its trace area has {bytes} bytes; it must have whole pages, at most {MAX_BYTES}"
            ));
        }
        let flags = rustix::fs::fcntl_getfl(file)
            .map_err(|_| "its trace area cannot be read".to_string())?;
        if flags & OFlags::RWMODE != access {
            let message = "the first file of its trace area must be open for reading and writing, \
                           the second one for reading";
            return Err(message.to_string());
        }
        let identity = FileIdentity {
            device: stat.st_dev,
            inode: stat.st_ino,
        };
        match seen {
            Some((first, _)) if first != identity => {
                return Err("the two files of its trace area are not the same".to_string());
            }
            _ => seen = Some((identity, bytes)),
        }
    }
    seen.ok_or_else(|| "its trace area is missing".to_string())
}

/// The two descriptions that a program sends: new ones, so that their locks and flags are not those
/// of the program's own descriptor.
///
/// # Errors
/// The kernel's error, `EACCES` if the file belongs to another user.
pub(crate) fn descriptions(area: BorrowedFd<'_>) -> rustix::io::Result<[OwnedFd; 2]> {
    let mode = rustix::fs::fstat(area)?.st_mode;
    if Mode::from_raw_mode(mode) != OWNER_ONLY {
        rustix::fs::fchmod(area, OWNER_ONLY)?;
    }
    Ok([reopen(area, OFlags::RDWR)?, reopen(area, OFlags::RDONLY)?])
}

/// A new description of a file that the directory passed on, if this user may open it: all holders
/// of a description share its locks and flags.
pub(crate) fn own_description(file: OwnedFd, access: AreaAccess) -> OwnedFd {
    let flags = match access {
        AreaAccess::Read => OFlags::RDONLY,
        AreaAccess::Control => OFlags::RDWR,
    };
    reopen(file.as_fd(), flags).unwrap_or(file)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};

    use super::{descriptions, own_description, AreaAccess, AreaFiles};
    use crate::memory::reopen;

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn memory(bytes: u64, seals: SealFlags) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("area", flags).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    }

    fn size_sealed() -> SealFlags {
        SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
    }

    fn refusal(files: impl IntoIterator<Item = OwnedFd>) -> String {
        let files = files.into_iter().collect();
        AreaFiles::checked(files, own_uid()).unwrap_err().0
    }

    #[test]
    fn sealed_memory_of_the_user_is_accepted() {
        let area = memory(1 << 20, size_sealed());
        let files = descriptions(area.as_fd()).unwrap();
        let files = AreaFiles::checked(files.into(), own_uid()).unwrap();
        assert_eq!((files.bytes(), files.allocated_bytes()), (1 << 20, 0));
        rustix::io::pwrite(files.with(AreaAccess::Control), b"x", 0).unwrap();
        assert!(files.allocated_bytes() >= 4096);
        assert!(rustix::io::pwrite(files.with(AreaAccess::Read), b"x", 0).is_err());
        let again = AreaFiles::checked(descriptions(area.as_fd()).unwrap().into(), own_uid());
        assert_eq!(again.unwrap().identity(), files.identity());
    }

    #[test]
    fn received_description_is_replaced_by_an_own_one() {
        let area = memory(4096, size_sealed());
        let shared = area.try_clone().unwrap();
        let own = own_description(shared, AreaAccess::Control);
        rustix::fs::fcntl_setfl(&own, OFlags::APPEND).unwrap();
        let flags = rustix::fs::fcntl_getfl(&area).unwrap();
        assert!(!flags.contains(OFlags::APPEND));
    }

    #[test]
    fn other_files_are_refused() {
        let sealed = || memory(8192, size_sealed());
        let pair = |file: OwnedFd| descriptions(file.as_fd()).unwrap();
        let read_only = |file: &OwnedFd| reopen(file.as_fd(), OFlags::RDONLY).unwrap();
        let words = |files: Vec<OwnedFd>, words: &str| {
            let message = refusal(files);
            assert!(message.contains(words), "{words}: {message}");
        };
        words(Vec::new(), "with 0 files");
        words(vec![sealed()], "with 1 files");
        words(
            pair(memory(8192, SealFlags::SHRINK | SealFlags::SEAL)).into(),
            "must be sealed",
        );
        words(
            pair(memory(8192, SealFlags::SHRINK | SealFlags::GROW)).into(),
            "must be sealed",
        );
        let frozen = memory(8192, size_sealed() | SealFlags::FUTURE_WRITE);
        words(
            vec![read_only(&frozen), read_only(&frozen)],
            "not against writes",
        );
        words(pair(memory(100, size_sealed())).into(), "whole pages");
        words(pair(memory(0, size_sealed())).into(), "0 bytes");
        words(pair(memory(128 << 30, size_sealed())).into(), "whole pages");
        let [writer, reader] = pair(sealed());
        words(vec![reader, writer], "open for reading and writing");
        let [writer, _] = pair(sealed());
        let [_, other] = pair(sealed());
        words(vec![writer, other], "not the same");
        let open = sealed();
        rustix::fs::fchmod(&open, Mode::from_raw_mode(0o606)).unwrap();
        let reader = read_only(&open);
        words(vec![open, reader], "mode 606");
        let (one, other) = rustix::pipe::pipe().unwrap();
        words(vec![one, other], "no memory file");
        let plain = || OwnedFd::from(tempfile::tempfile().unwrap());
        words(vec![plain(), plain()], "sealed");
        let path = |file: &OwnedFd| reopen(file.as_fd(), OFlags::PATH).unwrap();
        let file = sealed();
        words(vec![path(&file), path(&file)], "no memory file");
        let huge = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        if let Ok(file) = rustix::fs::memfd_create("huge", huge) {
            let two_mib = 2 << 20;
            if rustix::fs::ftruncate(&file, two_mib).is_ok() {
                rustix::fs::fcntl_add_seals(&file, size_sealed()).unwrap();
                words(vec![file.try_clone().unwrap(), file], "no shared memory");
            }
        }
        let files = pair(sealed());
        let message = AreaFiles::checked(files.into(), own_uid() + 1)
            .unwrap_err()
            .0;
        assert!(message.contains("must belong to user"), "{message}");
    }
}
