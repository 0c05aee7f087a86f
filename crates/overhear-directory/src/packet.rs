// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packets with file descriptors over SEQPACKET sockets, and a client's end of such a connection.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    connect, recv, recvmsg, sockopt, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage,
    RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::Serialize;

/// The largest packet to the directory: a schema of some hundred fields.
pub(crate) const MAX_REQUEST: usize = 64 * 1024;
/// The largest packet from the directory: a sensor's description from its request, and the
/// directory's own data. The kernel's default socket buffers hold it.
pub(crate) const MAX_REPLY: usize = 128 * 1024;
/// The most files that come with a packet.
const MAX_FILES: usize = 2;

/// Receives a packet and its descriptors. An empty packet means that the peer has closed the
/// connection.
///
/// # Errors
/// The kernel's error; [`Errno::MSGSIZE`] for a packet larger than `limit`.
pub(crate) fn receive(
    fd: impl AsFd,
    limit: usize,
    flags: RecvFlags,
) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut packet = vec![0; limit];
    let (bytes, files) = receive_into(fd, &mut packet, flags)?;
    packet.truncate(bytes);
    Ok((packet, files))
}

/// The next packet, which stays in the socket's queue. Descriptors that come with it are not
/// received: a descriptor of another process can make even its receiver wait, when it closes it.
///
/// # Errors
/// As for [`receive`].
pub(crate) fn peek(fd: impl AsFd, limit: usize) -> rustix::io::Result<Vec<u8>> {
    let mut packet = vec![0; limit];
    let flags = RecvFlags::PEEK | RecvFlags::TRUNC;
    // With `TRUNC` the kernel returns the length of the packet.
    let (_, bytes) = rustix::io::retry_on_intr(|| recv(&fd, &mut packet, flags))?;
    if bytes > limit {
        // Its descriptors are dropped by the kernel.
        discard(fd)?;
        return Err(Errno::MSGSIZE);
    }
    packet.truncate(bytes);
    Ok(packet)
}

/// Removes a packet from the socket's queue. The kernel drops its descriptors.
///
/// # Errors
/// The kernel's error.
pub(crate) fn discard(fd: impl AsFd) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| recv(&fd, &mut [0_u8; 1], RecvFlags::empty())).map(drop)
}

/// As [`receive`], into existing memory. Returns the packet's length.
///
/// # Errors
/// As for [`receive`].
fn receive_into(
    fd: impl AsFd,
    packet: &mut [u8],
    flags: RecvFlags,
) -> rustix::io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::io::retry_on_intr(|| {
        let slices = &mut [IoSliceMut::new(packet)];
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        recvmsg(&fd, slices, &mut ancillary, flags)
    })?;
    // Drained first: descriptors that are not taken out would stay open.
    let files = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    if message.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((message.bytes, files))
}

/// Sends a packet with descriptors, without waiting for space.
///
/// # Errors
/// The kernel's error; [`Errno::AGAIN`] if the peer does not read.
pub(crate) fn send(
    fd: impl AsFd,
    packet: &[u8],
    files: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(files));
    }
    // NOSIGNAL: a peer that has gone must not kill this process.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(fd, &[IoSlice::new(packet)], &mut ancillary, flags)?;
    Ok(())
}

/// Why the communication with a directory failed.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A system call failed.
    #[error("cannot {action} the directory at {}: {source}", .socket.display())]
    Unreachable {
        /// The operation that failed.
        action: &'static str,
        /// The directory's socket.
        socket: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The directory has ended, or closed the connection because it is overloaded.
    #[error("the directory at {} closed the connection without an answer", .socket.display())]
    Closed {
        /// The directory's socket.
        socket: PathBuf,
    },
    /// The directory's answer cannot be decoded.
    #[error("the directory at {} answered something that this program does not understand; they may be of different versions", .socket.display())]
    Misunderstood {
        /// The directory's socket.
        socket: PathBuf,
    },
}

/// A client's connection to a directory.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    socket: PathBuf,
    // Time limit of each wait.
    timeout: Duration,
    // Time limit of all waits together, of a link for one exchange.
    end: Option<Instant>,
}

impl Link {
    /// A link for one exchange: connecting, sending and all answers together wait no longer than
    /// `timeout`.
    pub(crate) fn for_one_exchange(socket: &Path, timeout: Duration) -> Result<Self, LinkError> {
        let end = Instant::now() + timeout;
        let link = Self::open(socket, timeout)?;
        Ok(Self {
            end: Some(end),
            ..link
        })
    }

    pub(crate) fn open(socket: &Path, timeout: Duration) -> Result<Self, LinkError> {
        let fail = |action| {
            move |errno: Errno| LinkError::Unreachable {
                action,
                socket: socket.to_path_buf(),
                source: errno.into(),
            }
        };
        let address = SocketAddrUnix::new(socket).map_err(fail("address"))?;
        let fd = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(fail("open a socket to"))?;
        for direction in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&fd, direction, Some(timeout))
                .map_err(fail("limit the wait for"))?;
        }
        connect(&fd, &address).map_err(fail("connect to"))?;
        Ok(Self {
            fd,
            socket: socket.to_path_buf(),
            timeout,
            end: None,
        })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn misunderstood(&self) -> LinkError {
        LinkError::Misunderstood {
            socket: self.socket.clone(),
        }
    }

    fn unreachable(&self, action: &'static str, errno: Errno) -> LinkError {
        LinkError::Unreachable {
            action,
            socket: self.socket.clone(),
            source: errno.into(),
        }
    }

    /// Waits until the socket is ready, no longer than the timeout in all. An interval timer, as
    /// profilers set one, interrupts the wait again and again: each wait is for the rest of the
    /// time. A socket that is ready is used even after the deadline.
    fn wait_for(&self, flags: PollFlags, action: &'static str) -> Result<(), LinkError> {
        let deadline = self.end.unwrap_or_else(|| Instant::now() + self.timeout);
        self.wait_until(flags, action, deadline)
    }

    fn wait_until(
        &self,
        flags: PollFlags,
        action: &'static str,
        deadline: Instant,
    ) -> Result<(), LinkError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            match poll(&mut [PollFd::new(&self.fd, flags)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) if left.is_zero() => {
                    return Err(self.unreachable(action, Errno::TIMEDOUT));
                }
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(self.unreachable(action, errno)),
            }
        }
    }

    pub(crate) fn send(&self, request: &impl Serialize) -> Result<(), LinkError> {
        let packet = serde_json::to_vec(request).map_err(|_| self.misunderstood())?;
        self.wait_for(PollFlags::OUT, "write to")?;
        // NOSIGNAL: a directory that has gone must not kill the program.
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &packet, SendFlags::NOSIGNAL))
            .map_err(|errno| self.unreachable("write to", errno))?;
        Ok(())
    }

    /// As [`Self::send`], with descriptors.
    pub(crate) fn send_with(
        &self,
        request: &impl Serialize,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        let packet = serde_json::to_vec(request).map_err(|_| self.misunderstood())?;
        self.wait_for(PollFlags::OUT, "write to")?;
        rustix::io::retry_on_intr(|| send(&self.fd, &packet, files))
            .map_err(|errno| self.unreachable("write to", errno))
    }

    /// Waits until a packet has arrived, or `end`.
    pub(crate) fn wait_until_readable(&self, end: Instant) -> Result<(), LinkError> {
        self.wait_until(PollFlags::IN, "receive from", end)
    }

    /// Waits for an answer.
    pub(crate) fn receive<R: DeserializeOwned>(&self) -> Result<(R, Vec<OwnedFd>), LinkError> {
        self.wait_for(PollFlags::IN, "receive from")?;
        let (packet, files) = receive(&self.fd, MAX_REPLY, RecvFlags::empty())
            .map_err(|errno| self.unreachable("receive from", errno))?;
        Ok((self.parse(&packet)?, files))
    }

    /// Takes a packet that has arrived, if there is one. `packet` has [`MAX_REPLY`] bytes: monitors
    /// with a guarantee call this in every period, and must not have page faults for a new buffer.
    pub(crate) fn receive_now<R: DeserializeOwned>(
        &self,
        packet: &mut [u8],
    ) -> Result<Option<(R, Vec<OwnedFd>)>, LinkError> {
        match receive_into(&self.fd, packet, RecvFlags::DONTWAIT) {
            Ok((bytes, files)) => Ok(Some((self.parse(&packet[..bytes])?, files))),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(self.unreachable("receive from", errno)),
        }
    }

    fn parse<R: DeserializeOwned>(&self, packet: &[u8]) -> Result<R, LinkError> {
        if packet.is_empty() {
            let socket = self.socket.clone();
            return Err(LinkError::Closed { socket });
        }
        serde_json::from_slice(packet).map_err(|_| self.misunderstood())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

    use super::{Link, LinkError};

    /// Whether a link waits for the second answer of a directory that sends it late.
    fn waits_for_a_late_answer(link: impl FnOnce(&std::path::Path, Duration) -> Link) -> bool {
        const PATIENCE: Duration = Duration::from_millis(150);
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("slow.sock");
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let listener = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let begun = Instant::now();
        let link = link(&socket, PATIENCE);
        let other: OwnedFd = rustix::net::accept(&listener).unwrap();
        let answer = || rustix::net::send(&other, b"1", SendFlags::NOSIGNAL).unwrap();
        answer();
        // What is there is taken, however long it took until here.
        assert_eq!(link.receive::<u32>().unwrap().0, 1);
        std::thread::sleep(PATIENCE * 2 / 3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let late = begun + PATIENCE * 4 / 3;
                std::thread::sleep(late.saturating_duration_since(Instant::now()));
                answer();
            });
            match link.receive::<u32>() {
                Ok((1, _)) => true,
                Err(LinkError::Unreachable { source, .. }) => {
                    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut);
                    false
                }
                other => panic!("{other:?}"),
            }
        })
    }

    #[test]
    fn one_exchange_has_one_deadline() {
        // On a busy machine either may be late by chance, but not again and again.
        let one =
            |socket: &std::path::Path, timeout| Link::for_one_exchange(socket, timeout).unwrap();
        let many = |socket: &std::path::Path, timeout| Link::open(socket, timeout).unwrap();
        assert!((0..50).any(|_| !waits_for_a_late_answer(one)));
        assert!((0..50).any(|_| waits_for_a_late_answer(many)));
    }
}
