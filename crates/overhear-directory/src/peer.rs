// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who is at the other end of a connection: the kernel vouches for it.

use std::os::fd::{AsFd, AsRawFd};

/// A process, its user and its groups at the time when it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// The process' own group first, then the others that its user is in.
    pub(crate) groups: Vec<u32>,
}

impl Peer {
    /// Asks the kernel; `None` if it does not say.
    pub(crate) fn of(connection: impl AsFd) -> Option<Self> {
        let peer = rustix::net::sockopt::socket_peercred(&connection).ok()?;
        let mut all = vec![peer.gid.as_raw()];
        all.extend(groups(&connection));
        Some(Self {
            pid: peer.pid.as_raw_nonzero().get().unsigned_abs(),
            uid: peer.uid.as_raw(),
            groups: all,
        })
    }
}

/// The supplementary groups of a socket's other end. A user can be in 65,536 of them; who is in more
/// than 1,024 has none here.
fn groups(connection: impl AsFd) -> Vec<u32> {
    let mut groups = [0_u32; 1024];
    let mut bytes = libc::socklen_t::try_from(size_of_val(&groups)).unwrap_or(0);
    // SAFETY: the kernel writes at most `bytes` bytes into the array, which is as long.
    let result = unsafe {
        libc::getsockopt(
            connection.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    let found = if result == 0 { bytes as usize / 4 } else { 0 };
    groups[..found.min(groups.len())].to_vec()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::Peer;

    #[test]
    fn a_process_knows_itself() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.groups[0], rustix::process::getegid().as_raw());
        let own: Vec<u32> = rustix::process::getgroups()
            .unwrap()
            .iter()
            .map(|group| group.as_raw())
            .collect();
        assert_eq!(peer.groups[1..], own);
    }
}
