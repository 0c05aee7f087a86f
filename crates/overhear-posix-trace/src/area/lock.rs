// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lock of an area, and the locks by which controllers show that they live.
//!
//! Both are locks of bytes of the file that belong to an open file description (`F_OFD_SETLK`):
//! each process opens the file for itself, and the kernel gives the locks back when the process
//! ends, however it ends, and when it executes another program. So no process waits for one that
//! has ended.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Area, SLOTS};
use crate::private_file::PrivateFile;
use crate::TraceError;

/// The byte of the area's lock; the bytes of the controllers follow.
const AREA_BYTE: i64 = 0;
const FIRST_CONTROLLER_BYTE: i64 = 64;
/// Longest wait for another process, which holds the lock for microseconds unless it is stopped.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_micros(200);

/// The right to change the slots, the members and the names of an area.
///
/// Holding one proves that no other thread of this process holds one, and no other process that
/// has `/proc`.
#[derive(Debug)]
pub(crate) struct AreaLock<'a> {
    private: MutexGuard<'a, Option<PrivateFile>>,
}

impl Drop for AreaLock<'_> {
    fn drop(&mut self) {
        if let Some(file) = &*self.private {
            let _ = lock_byte(file, AREA_BYTE, libc::F_UNLCK as i16);
        }
    }
}

impl Area {
    /// Takes the lock.
    ///
    /// # Errors
    /// [`TraceError`] `EAGAIN` if another process, which may be stopped, keeps it.
    pub(crate) fn lock(&self) -> Result<AreaLock<'_>, TraceError> {
        let mut private = self.private.lock().unwrap_or_else(PoisonError::into_inner);
        // The program may have closed the descriptor, and opened a file of its own there.
        drop(private.take_if(|file| !self.is(file.as_fd())));
        if private.is_none() {
            *private = self.reopen();
        }
        if let Some(file) = &*private {
            let begin = Instant::now();
            while !lock_byte(file, AREA_BYTE, libc::F_WRLCK as i16) {
                if begin.elapsed() > MAX_LOCK_WAIT {
                    return Err(TraceError::new(
                        libc::EAGAIN,
                        "another process has held the lock of the trace area for two seconds; \
                         continue it if it is stopped",
                    ));
                }
                std::thread::sleep(LOCK_RETRY_INTERVAL);
            }
        }
        Ok(AreaLock { private })
    }
}

impl AreaLock<'_> {
    /// Shows that the controller of a slot lives, until [`AreaLock::end_controller`] or the end of
    /// the process. False if this process cannot open the file: it has no `/proc`, or has given up
    /// the rights of the user who made the area.
    pub(crate) fn begin_controller(&self, index: usize) -> bool {
        let file = self.private.as_ref();
        file.is_some_and(|file| lock_byte(file, controller_byte(index), libc::F_WRLCK as i16))
    }

    /// Ends what [`AreaLock::begin_controller`] began.
    pub(crate) fn end_controller(&self, index: usize) {
        if let Some(file) = &*self.private {
            let _ = lock_byte(file, controller_byte(index), libc::F_UNLCK as i16);
        }
    }

    /// Whether another process shows that it controls the stream of a slot. Without `/proc` this
    /// cannot be found out, and the result is true.
    pub(crate) fn has_controller(&self, index: usize) -> bool {
        let Some(file) = &*self.private else {
            return true;
        };
        let mut lock = byte(controller_byte(index), libc::F_WRLCK as i16);
        // SAFETY: a system call on an open descriptor, which fills the structure.
        let result =
            unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        result != 0 || lock.l_type != libc::F_UNLCK as i16
    }
}

fn controller_byte(index: usize) -> i64 {
    debug_assert!(index < SLOTS);
    FIRST_CONTROLLER_BYTE + index as i64
}

fn byte(start: i64, kind: i16) -> libc::flock {
    libc::flock {
        l_type: kind,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: 1,
        // The kernel demands 0 here.
        l_pid: 0,
    }
}

/// Locks or unlocks a byte without waiting; returns whether it succeeded.
fn lock_byte(file: &PrivateFile, start: i64, kind: i16) -> bool {
    let lock = byte(start, kind);
    // SAFETY: a system call on an open descriptor, which reads the structure.
    unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
}
