// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file descriptor of a log that is written. Partial writes, interruptions and non-blocking
//! descriptors are handled here.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{fcntl_getfl, fstat, ftruncate, seek, FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use super::LogError;
use crate::private_file::PrivateFile;
use crate::LogFullPolicy;

/// The kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) is_regular: bool,
    /// All writes go to the end of the file.
    pub(super) appends: bool,
}

/// Checks that a log with this policy can be written to the descriptor.
pub(super) fn check(fd: BorrowedFd<'_>, policy: LogFullPolicy) -> Result<Kind, LogError> {
    let flags = fcntl_getfl(fd).map_err(|_| {
        let message = "the log's file descriptor is not open";
        LogError::new(libc::EBADF, message)
    })?;
    let access = flags & OFlags::ACCMODE;
    if (access != OFlags::WRONLY && access != OFlags::RDWR) || flags.contains(OFlags::PATH) {
        let message = "the log's file descriptor is not open for writing";
        return Err(LogError::new(libc::EBADF, message));
    }
    let stat = fstat(fd).map_err(|error| LogError::system("examine", &error.into()))?;
    let file_type = FileType::from_raw_mode(stat.st_mode);
    let kind = Kind {
        is_regular: file_type == FileType::RegularFile,
        appends: flags.contains(OFlags::APPEND),
    };
    let can_loop = kind.is_regular && !kind.appends && access == OFlags::RDWR;
    let can_append = matches!(
        file_type,
        FileType::RegularFile | FileType::Fifo | FileType::Socket | FileType::CharacterDevice
    );
    match policy {
        LogFullPolicy::Loop if !can_loop => Err(LogError::new(
            libc::EINVAL,
            "a log with the policy LOOP needs a regular file, opened for reading and writing \
             without O_APPEND",
        )),
        _ if !can_append => Err(LogError::new(
            libc::EINVAL,
            "a log needs a regular file, a pipe, a socket or a character device",
        )),
        _ => Ok(kind),
    }
}

/// The descriptor, and bytes that are still to be written to it.
#[derive(Debug)]
pub(super) struct Output {
    /// A child of the controller closes its copy, so that the reader of a pipe finds its end.
    fd: PrivateFile,
    kind: Kind,
    /// Position of the log in the file, if it is a file.
    base: u64,
    /// Position of the next byte after the log's base.
    position: u64,
    /// Number of bytes of the buffer that are already written.
    written: usize,
}

impl Output {
    /// The log begins at the begin of a file, or at its end with `O_APPEND`.
    pub(super) fn new(fd: OwnedFd, kind: Kind) -> Result<Self, LogError> {
        let base = match kind.is_regular && kind.appends {
            true => fstat(&fd).map(|stat| stat.st_size as u64),
            false => Ok(0),
        };
        Ok(Self {
            base: base.map_err(|error| LogError::system("find the end of", &error.into()))?,
            fd: PrivateFile::new(fd),
            kind,
            position: 0,
            written: 0,
        })
    }

    /// Whether parts that were written can be written again.
    pub(super) const fn is_rewritable(&self) -> bool {
        self.kind.is_regular && !self.kind.appends
    }

    /// Position of the next byte after the log's base, if the buffer is empty.
    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    /// Position of the first byte of the buffer, also if a part of it is written.
    pub(super) const fn begin_of_pending(&self) -> u64 {
        self.position - self.written as u64
    }

    /// Continues elsewhere. The buffer must be empty.
    pub(super) fn seek(&mut self, position: u64) {
        self.position = position;
    }

    /// Cuts a file to the log's begin, and continues there; false if the descriptor is no file.
    pub(super) fn truncate(&mut self) -> Result<bool, LogError> {
        if self.kind.is_regular {
            self.check_open()?;
            ftruncate(&self.fd, self.base)
                .map_err(|error| LogError::system("clear", &error.into()))?;
            (self.position, self.written) = (0, 0);
        }
        Ok(self.kind.is_regular)
    }

    /// Writes the buffer and empties it. After an error, the next call continues at the first byte
    /// that was not written.
    pub(super) fn drain(&mut self, buffer: &mut Vec<u8>) -> Result<(), LogError> {
        if !buffer.is_empty() {
            self.check_open()?;
        }
        let mut blocked = None;
        while self.written < buffer.len() {
            let rest = &buffer[self.written..];
            let result = match self.is_rewritable() {
                true => {
                    let at = self.base.saturating_add(self.position);
                    self.write(rest, Some(at), &mut blocked)
                }
                false => self.write(rest, None, &mut blocked),
            };
            match result {
                Ok(0) => return Err(LogError::system("write", &Errno::NOSPC.into())),
                Ok(count) => {
                    self.written += count;
                    self.position += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait()?,
                Err(error) => return Err(LogError::system("write", &error.into())),
            }
        }
        buffer.clear();
        self.written = 0;
        Ok(())
    }

    /// Overwrites a part of a file; the position stays.
    pub(super) fn overwrite(&self, position: u64, mut bytes: &[u8]) -> Result<(), LogError> {
        self.check_open()?;
        let mut at = self.base.saturating_add(position);
        let mut blocked = None;
        while !bytes.is_empty() {
            match self.write(bytes, Some(at), &mut blocked) {
                Ok(0) => return Err(LogError::system("write", &Errno::NOSPC.into())),
                Ok(count) => {
                    bytes = &bytes[count..];
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(LogError::system("write", &error.into())),
            }
        }
        Ok(())
    }

    /// Moves the position of the descriptor to the log's end, for a program that continues there.
    pub(super) fn leave_at_end(&self, end: u64) {
        if self.is_rewritable() && self.fd.is_open() {
            // The log is complete without it.
            let _ = seek(&self.fd, SeekFrom::Start(self.base.saturating_add(end)));
        }
    }

    /// Whether the descriptor still is the log's. A program that closes all descriptors may have a
    /// file of its own there, which must not be written to.
    fn check_open(&self) -> Result<(), LogError> {
        match self.fd.is_open() {
            true => Ok(()),
            false => Err(LogError::new(
                libc::EBADF,
                "the program has closed the file descriptor of its log",
            )),
        }
    }

    fn write(
        &self,
        bytes: &[u8],
        at: Option<u64>,
        blocked: &mut Option<BlockedSignals>,
    ) -> Result<usize, Errno> {
        blocked.get_or_insert_with(BlockedSignals::new);
        match at {
            Some(at) => rustix::io::pwrite(&self.fd, bytes, at),
            None => rustix::io::write(&self.fd, bytes),
        }
    }

    /// Waits until a non-blocking descriptor takes bytes again.
    fn wait(&self) -> Result<(), LogError> {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(LogError::system("wait for", &error.into())),
        }
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The signals that the kernel sends to the thread whose write fails. They are blocked as long as
/// the value lives, and consumed at its end, so that a full log does not end the program.
#[derive(Debug)]
struct BlockedSignals {
    signals: libc::sigset_t,
    before: libc::sigset_t,
    /// One of them was pending before, and stays.
    was_pending: bool,
}

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: a set of signals is plain data; each one is initialised by sigemptyset or by the
        // call that fills it in before it is read, and lives during the calls.
        unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            libc::sigaddset(&raw mut signals, libc::SIGPIPE);
            libc::sigaddset(&raw mut signals, libc::SIGXFSZ);
            libc::sigpending(&raw mut pending);
            let was_pending = [libc::SIGPIPE, libc::SIGXFSZ]
                .into_iter()
                .any(|signal| libc::sigismember(&raw const pending, signal) == 1);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, &raw mut before);
            Self {
                signals,
                before,
                was_pending,
            }
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        let now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the sets were initialised in `new`; the pointer for information is null.
        unsafe {
            if !self.was_pending {
                while libc::sigtimedwait(
                    &raw const self.signals,
                    std::ptr::null_mut(),
                    &raw const now,
                ) > 0
                {}
            }
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}
