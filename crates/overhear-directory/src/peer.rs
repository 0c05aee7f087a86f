// SPDX-License-Identifier: MIT OR Apache-2.0
//! The peer of a connection, as the kernel identifies it.
//!
//! A process id alone does not identify a process: it is reused after the process has ended. So a
//! peer has a pidfd, taken when the connection is accepted, and data that is read by the id
//! (`/proc`) is valid only if the process is still alive afterwards.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use crate::task::start_of;

/// `SO_PEERPIDFD` of Linux 6.5, on all architectures that Overhear runs on.
const SO_PEERPIDFD: libc::c_int = 77;
/// The most supplementary groups of a process (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// A process, with its user and groups at the time of the connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    pub(crate) groups: Groups,
    // The pidfd of the process, if it was alive when the connection was accepted.
    process: Option<Arc<OwnedFd>>,
}

/// The groups of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Groups {
    /// The process' primary group, then its supplementary ones.
    Known(Arc<[u32]>),
    /// The kernel does not report them. A rule with groups applies then if it forbids, and does not
    /// if it permits.
    Unknown,
}

impl Peer {
    /// The peer of a connection; `None` if the kernel does not report it.
    pub(crate) fn of(connection: impl AsFd) -> Option<Self> {
        let (pid, uid, own_group) = credentials(&connection)?;
        let groups = match groups(connection.as_fd()) {
            Some(others) => Groups::Known([own_group].into_iter().chain(others).collect()),
            None => Groups::Unknown,
        };
        let process = peer_process(connection.as_fd(), pid, uid);
        Some(Self {
            pid,
            uid,
            groups,
            process: process.map(Arc::new),
        })
    }

    /// The user of a connection's peer: one system call, so that a refusal is cheap.
    pub(crate) fn user_of(connection: impl AsFd) -> Option<u32> {
        credentials(connection).map(|(_, uid, _)| uid)
    }

    /// The process, if it is alive. Until it ends its id is unique.
    pub(crate) fn process(&self) -> Option<&Arc<OwnedFd>> {
        self.process.as_ref().filter(|process| is_alive(process))
    }

    #[cfg(test)]
    pub(crate) const fn for_test(pid: u32, uid: u32, groups: Groups) -> Self {
        Self {
            pid,
            uid,
            groups,
            process: None,
        }
    }
}

/// Process, user and group of a connection's peer. The process id is 0 if the process is in a PID
/// namespace that is not visible here.
fn credentials(connection: impl AsFd) -> Option<(u32, u32, u32)> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut bytes = libc::socklen_t::try_from(size_of_val(&peer)).ok()?;
    // SAFETY: the kernel writes at most `bytes` bytes into the structure, which is as long.
    let result = unsafe {
        libc::getsockopt(
            connection.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut bytes,
        )
    };
    (result == 0).then_some((peer.pid.unsigned_abs(), peer.uid, peer.gid))
}

/// Whether the process of a pidfd is alive.
pub(crate) fn is_alive(process: impl AsFd) -> bool {
    let mut waited = [PollFd::new(&process, PollFlags::IN)];
    let no_time = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut waited, Some(&no_time)), Ok(0))
}

/// A pidfd of the process that connected; `None` if it has ended.
fn peer_process(connection: BorrowedFd<'_>, pid: u32, uid: u32) -> Option<OwnedFd> {
    let process = match peer_pidfd(connection) {
        Ok(process) => process,
        Err(libc::ENOPROTOOPT) => process_by_id(pid, uid)?,
        Err(_) => return None,
    };
    is_alive(&process).then_some(process)
}

/// A pidfd of the process with this id, if it belongs to this user and its start time is the same
/// before and after the pidfd was made. For Linux before 6.5. If the process that connected ended
/// at once, its id may by then belong to another process of the same user.
fn process_by_id(pid: u32, uid: u32) -> Option<OwnedFd> {
    let start = start_of(pid)?;
    let raw = Pid::from_raw(pid.cast_signed())?;
    let process = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    let is_same = user_of_process(pid)? == uid && start_of(pid)? == start;
    is_same.then_some(process)
}

fn peer_pidfd(connection: BorrowedFd<'_>) -> Result<OwnedFd, i32> {
    let mut process: RawFd = -1;
    let mut bytes = libc::socklen_t::try_from(size_of::<RawFd>()).unwrap_or(0);
    // SAFETY: the kernel writes at most `bytes` bytes into the number, which is as long.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut process).cast(),
            &raw mut bytes,
        )
    };
    match result {
        // SAFETY: the kernel made the descriptor for this call; nothing else owns it. It is
        // close-on-exec, as every pidfd.
        0 => Ok(unsafe { OwnedFd::from_raw_fd(process) }),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)),
    }
}

/// A pidfd of a process, if it is alive.
pub(crate) fn process_of(pid: u32) -> Option<OwnedFd> {
    let raw = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let process = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    is_alive(&process).then_some(process)
}

/// The effective user of a process.
pub(crate) fn user_of_process(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("Uid:"))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

/// The supplementary groups of a socket's peer; `None` if the kernel does not report them.
fn groups(connection: BorrowedFd<'_>) -> Option<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut bytes = libc::socklen_t::try_from(size_of_val(&*groups)).ok()?;
        // SAFETY: the kernel writes at most `bytes` bytes into the vector, which is as long.
        let result = unsafe {
            libc::getsockopt(
                connection.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let found = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(found);
            return Some(groups);
        }
        // Too many for the vector: the kernel returns the size.
        let error = std::io::Error::last_os_error().raw_os_error();
        if error != Some(libc::ERANGE) || found <= groups.len() || found > MAX_GROUPS {
            return None;
        }
        groups.resize(found, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::{is_alive, process_by_id, Groups, Peer};

    #[test]
    fn process_without_peer_pidfd_is_known_by_user_and_start() {
        let (own, user) = (std::process::id(), rustix::process::geteuid().as_raw());
        let process = process_by_id(own, user).unwrap();
        assert!(is_alive(&process));
        assert!(process_by_id(own, user + 1).is_none());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(process_by_id(child.id(), user).is_none());
    }

    #[test]
    fn process_knows_itself() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(Peer::user_of(&one), Some(peer.uid));
        assert!(peer.process().is_some());
        let Groups::Known(groups) = &peer.groups else {
            panic!("{peer:?}");
        };
        assert_eq!(groups[0], rustix::process::getegid().as_raw());
        let own: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .iter()
            .map(|group| group.as_raw())
            .collect();
        assert_eq!(groups[1..], own);
    }
}
