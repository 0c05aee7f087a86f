// SPDX-License-Identifier: MIT OR Apache-2.0
//! Transfer of a message with file descriptors through a Unix socket (SCM_RIGHTS), of type stream
//! or seqpacket.
//!
//! 1. The head has the number of bytes and of descriptors. The kernel passes at most 253
//!    descriptors at once, so they are sent in groups: the first with the head, each further one
//!    with a marker byte, and then the bytes.
//! 2. There is no answer, unless both sides have agreed on it: [`send_ack`] and [`await_ack`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::{read, retry_on_intr, Errno};
use rustix::net::{
    recvmsg, send, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};

/// Maximum number of descriptors that the kernel passes at once.
const GROUP: usize = 253;
/// Maximum number of descriptors of a message: the number that a process may have open under a high
/// limit.
pub(crate) const MAX_FILES: usize = 1 << 16;
/// Maximum length of a message in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// First word of a message, before its length and the number of descriptors.
const MAGIC: u64 = u64::from_le_bytes(*b"ohkernel");
/// Byte that each further group of descriptors is sent with.
const GROUP_MARK: u8 = b'+';
/// Byte of the acknowledgement.
const ACK: u8 = b'!';

/// Sends a message and files. Blocks while the socket is full.
pub(crate) fn send_message(
    to: BorrowedFd<'_>,
    body: &[u8],
    files: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if files.len() > MAX_FILES || body.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is too large for one message"));
    }
    let head: Vec<u8> = [MAGIC, body.len() as u64, files.len() as u64]
        .into_iter()
        .flat_map(u64::to_le_bytes)
        .collect();
    let (first, rest) = files.split_at(files.len().min(GROUP));
    send_with(to, &head, first)?;
    for group in rest.chunks(GROUP) {
        send_with(to, &[GROUP_MARK], group)?;
    }
    send_all(to, body)
}

/// Sends bytes that no socket divides, and a group of files with them.
fn send_with(to: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("too many descriptors for one group"));
    }
    // NOSIGNAL: a peer that went away must not kill this process.
    let flags = SendFlags::NOSIGNAL;
    retry_on_intr(|| sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, flags))?;
    Ok(())
}

fn send_all(to: BorrowedFd<'_>, mut rest: &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        let sent = retry_on_intr(|| send(to, rest, SendFlags::NOSIGNAL))?;
        rest = &rest[sent..];
    }
    Ok(())
}

/// Waits for a message. Errors: `UnexpectedEof` if the other side has closed, `InvalidData` if the
/// bytes are not such a message.
pub(crate) fn receive_message(from: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut head = [0; 24];
    let mut files = Vec::new();
    if receive_with(from, &mut head, &mut files)? != head.len() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let [magic, bytes, count] = [0, 8, 16].map(|at| {
        let mut word = [0; 8];
        word.copy_from_slice(&head[at..at + 8]);
        u64::from_le_bytes(word)
    });
    if magic != MAGIC || bytes > MAX_BYTES || count > MAX_FILES as u64 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    while (files.len() as u64) < count {
        let (mut more, before) = ([0], files.len());
        receive_with(from, &mut more, &mut files)?;
        if more != [GROUP_MARK] || files.len() == before {
            return Err(io::ErrorKind::InvalidData.into());
        }
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

/// Receives bytes and the files that come with them.
fn receive_with(
    from: BorrowedFd<'_>,
    bytes: &mut [u8],
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GROUP))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = loop {
        match recvmsg(from, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    // Drained before anything else: files that are not taken out would stay open.
    let came = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files.extend(came.flatten());
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // The buffer has room for the maximum, so a truncated message means that this process may open
    // no more descriptors.
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE.into());
    }
    Ok(message.bytes)
}

/// Acknowledges the message.
pub(crate) fn send_ack(to: BorrowedFd<'_>) -> io::Result<()> {
    send_all(to, &[ACK])
}

/// Waits for the acknowledgement.
pub(crate) fn await_ack(from: BorrowedFd<'_>) -> io::Result<()> {
    let mut answer = [0];
    match retry_on_intr(|| read(from, &mut answer))? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if answer == [ACK] => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Decodes words and texts; `None` at the end.
pub(crate) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub(crate) const fn new(body_untrusted: &'a [u8]) -> Self {
        Self(body_untrusted)
    }

    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// A word of at most `most`.
    pub(crate) fn up_to(&mut self, most: u64) -> Option<u64> {
        self.word().filter(|word| *word <= most)
    }

    /// A word that fits into 32 bits.
    pub(crate) fn half(&mut self) -> Option<u32> {
        self.up_to(u32::MAX.into()).map(|word| word as u32)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        self.up_to(1).map(|word| word == 1)
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.up_to(self.0.len() as u64)? as usize;
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let bytes = self.bytes()?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// A list: its length, and then elements of at least one word each.
    pub(crate) fn list<T>(
        &mut self,
        mut one: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.up_to(self.0.len() as u64 / 8)?;
        (0..count).map(|_| one(self)).collect()
    }

    /// Whether all bytes are consumed.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Encodes words and texts for [`Decoder`].
#[derive(Default)]
pub(crate) struct Encoder(pub(crate) Vec<u8>);

impl Encoder {
    pub(crate) fn words(&mut self, words: impl IntoIterator<Item = u64>) {
        self.0.extend(words.into_iter().flat_map(u64::to_le_bytes));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.words([bytes.len() as u64]);
        self.0.extend_from_slice(bytes);
    }

    pub(crate) fn list<T>(
        &mut self,
        list: impl ExactSizeIterator<Item = T>,
        mut one: impl FnMut(&mut Self, T),
    ) {
        self.words([list.len() as u64]);
        list.for_each(|item| one(self, item));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::{await_ack, receive_message, send_ack, send_message, GROUP};

    #[test]
    fn message_brings_its_files() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let body = vec![7; 100_000];
        let files = [writer.as_fd()];
        // The body is larger than the socket's buffer: another thread must read meanwhile.
        let (read, passed) = std::thread::scope(|scope| {
            let taking = scope.spawn(|| receive_message(there.as_fd()).unwrap());
            let passed = send_message(here.as_fd(), &body, &files);
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
    fn files_are_sent_in_groups() {
        for count in [0, 1, GROUP, GROUP + 1, 2 * GROUP, 2 * GROUP + 7] {
            let (here, there) = UnixStream::pair().unwrap();
            let (_reader, writer) = std::io::pipe().unwrap();
            let files = vec![writer.as_fd(); count];
            send_message(here.as_fd(), b"body", &files).unwrap();
            // Bytes after the message stay in the socket.
            (&here).write_all(b"next").unwrap();
            let (body, came) = receive_message(there.as_fd()).unwrap();
            assert_eq!((body.as_slice(), came.len()), (&b"body"[..], count));
            let mut next = [0; 4];
            (&there).read_exact(&mut next).unwrap();
            assert_eq!(next, *b"next");
        }
    }

    #[test]
    fn acknowledgement_is_awaited() {
        let (here, there) = UnixStream::pair().unwrap();
        send_ack(there.as_fd()).unwrap();
        await_ack(here.as_fd()).unwrap();
        (&there).write_all(b"?").unwrap();
        let error = await_ack(here.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        drop(there);
        let error = await_ack(here.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn other_bytes_are_refused() {
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(&[1; 64]).unwrap();
        let error = receive_message(there.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let (here, there) = UnixStream::pair().unwrap();
        drop(here);
        let error = receive_message(there.as_fd()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }
}
