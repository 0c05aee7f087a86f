// SPDX-License-Identifier: MIT OR Apache-2.0
//! A message with descriptors through a Unix socket, which may be a stream or keep messages apart.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{read, retry_on_intr, Errno};
use rustix::net::{
    recvmsg, send, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// As many as the kernel passes on with one message.
pub(crate) const MOST_FILES: usize = 253;
/// No message is longer.
const MOST_BYTES: u64 = 1 << 20;
/// What a message begins with, before its length.
const MAGIC: u64 = u64::from_le_bytes(*b"ohkernel");

/// Sends a message, and the files with its head. Waits while there is no room.
pub(crate) fn pass(to: BorrowedFd<'_>, body: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&MAGIC.to_le_bytes());
    head[8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    // NOSIGNAL: a peer that went away must not kill this process.
    let flags = SendFlags::NOSIGNAL;
    // A head is shorter than anything that a socket divides.
    retry_on_intr(|| sendmsg(to, &[IoSlice::new(&head)], &mut ancillary, flags))?;
    let mut rest = body;
    while !rest.is_empty() {
        let sent = retry_on_intr(|| send(to, rest, flags))?;
        rest = &rest[sent..];
    }
    Ok(())
}

/// Waits for a message. An error of the kind `UnexpectedEof` says that the other side has closed, of the kind
/// `InvalidData` that what came is no such message.
pub(crate) fn take(from: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut head = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match recvmsg(
            from,
            &mut [IoSliceMut::new(&mut head)],
            &mut ancillary,
            flags,
        ) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    // Drained before anything else: files that are not taken out would stay open.
    let files: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let [magic, bytes] = [0, 8].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(word)
    });
    let is_cut = message.flags.contains(ReturnFlags::CTRUNC);
    if message.bytes != head.len() || is_cut || magic != MAGIC || bytes > MOST_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; bytes as usize];
    let mut filled = 0;
    while filled < body.len() {
        match retry_on_intr(|| read(from, &mut body[filled..]))? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => filled += count,
        }
    }
    Ok((body, files))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::{pass, take};

    #[test]
    fn a_message_brings_its_files() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let body = vec![7; 100_000];
        let files = [writer.as_fd()];
        // The body is longer than the socket holds: somebody must read meanwhile.
        let (read, passed) = std::thread::scope(|scope| {
            let taking = scope.spawn(|| take(there.as_fd()).unwrap());
            let passed = pass(here.as_fd(), &body, &files);
            (taking.join().unwrap(), passed)
        });
        passed.unwrap();
        assert!(read.0 == body && read.1.len() == 1);
        drop(writer);
        for file in read.1 {
            File::from(file).write_all(b"x").unwrap();
        }
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "x");
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&[1; 64]).unwrap();
        let error = take(there.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let error = take(there.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
