// SPDX-License-Identifier: MIT OR Apache-2.0
//! Encodes frames.

use std::io;
use std::io::Write;

use overhear_event::{Gap, StreamDescriptor, Timestamp};

use super::content::{
    encode_gap, ChannelHeader, DOCUMENT, END, GAP, HEADER, MAX_NAME_BYTES, PACKET, STREAM,
    WATERMARK,
};
use super::head::{Head, MAX_FRAME_BODY_BYTES, VERSION};
use super::packet::PacketBuilder;
use crate::packet::LATEST;

/// Appends frames to an output. See the module's example. If the output fails, a part of a frame
/// may be in it: an output that can fail should be a buffer that is drained elsewhere.
#[derive(Debug)]
pub struct FrameWriter<W> {
    out: W,
    number: u64,
}

impl<W: Write> FrameWriter<W> {
    /// Begins a channel.
    pub const fn new(out: W) -> Self {
        Self::starting_at(out, 0)
    }

    /// Continues a channel: the next frame has this number.
    pub const fn starting_at(out: W, number: u64) -> Self {
        Self { out, number }
    }

    /// The number of the next frame.
    pub const fn next_number(&self) -> u64 {
        self.number
    }

    /// The output.
    pub const fn get_ref(&self) -> &W {
        &self.out
    }

    /// The output.
    pub const fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// The output.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Begins the channel, or a part of it that can be read alone.
    ///
    /// # Errors
    /// Errors of the output, as of all these functions; `InvalidInput` if the text is empty or has
    /// more than 255 bytes.
    pub fn header(&mut self, header: &ChannelHeader) -> io::Result<()> {
        check_name(&header.content)?;
        self.frame(HEADER, &[&header.encode()])
    }

    /// Writes a document.
    ///
    /// # Errors
    /// `InvalidInput` if the name is empty or has more than 255 bytes, or the document is larger
    /// than [`MAX_FRAME_BODY_BYTES`].
    pub fn document(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        check_name(name)?;
        self.frame(DOCUMENT, &[&[name.len() as u8], name.as_bytes(), bytes])
    }

    /// Announces a stream. It must come before the stream's first packet or gap.
    ///
    /// # Errors
    /// See [`FrameWriter::header`].
    pub fn stream(&mut self, descriptor: &StreamDescriptor) -> io::Result<()> {
        self.frame(STREAM, &[&serde_json::to_vec(descriptor)?])
    }

    /// Writes the records of a packet, and empties it. An empty one is not written.
    ///
    /// # Errors
    /// `InvalidInput` if it is larger than [`MAX_FRAME_BODY_BYTES`].
    pub fn packet(&mut self, packet: &mut PacketBuilder) -> io::Result<()> {
        if !packet.is_empty() {
            self.frame(PACKET, &[&packet.head(), packet.records()])?;
            packet.clear();
        }
        Ok(())
    }

    /// Writes a gap.
    ///
    /// # Errors
    /// See [`FrameWriter::header`].
    pub fn gap(&mut self, gap: &Gap) -> io::Result<()> {
        let to = gap.to.min(LATEST);
        let from = gap.from.min(to);
        self.frame(GAP, &[&encode_gap(&Gap { from, to, ..*gap })])
    }

    /// Promises that no item older than `time` follows.
    ///
    /// # Errors
    /// See [`FrameWriter::header`].
    pub fn watermark(&mut self, time: Timestamp) -> io::Result<()> {
        let time = time.min(LATEST);
        self.frame(WATERMARK, &[&time.as_monotonic_ns().to_le_bytes()])
    }

    /// Ends the channel at `time`.
    ///
    /// # Errors
    /// See [`FrameWriter::header`].
    pub fn end(&mut self, time: Timestamp) -> io::Result<()> {
        let time = time.min(LATEST);
        self.frame(END, &[&time.as_monotonic_ns().to_le_bytes()])
    }

    fn frame(&mut self, kind: u8, parts: &[&[u8]]) -> io::Result<()> {
        let body_bytes: usize = parts.iter().map(|part| part.len()).sum();
        if body_bytes > MAX_FRAME_BODY_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a frame of {body_bytes} bytes is larger than {MAX_FRAME_BODY_BYTES}"),
            ));
        }
        let number = self.number;
        let head = Head {
            version: VERSION,
            kind,
            number,
            body_bytes,
        };
        let head = head.encode();
        let mut sum = crc32c::crc32c(&head);
        self.out.write_all(&head)?;
        for part in parts {
            sum = crc32c::crc32c_append(sum, part);
            self.out.write_all(part)?;
        }
        self.out.write_all(&sum.to_le_bytes())?;
        self.number = number.wrapping_add(1);
        Ok(())
    }
}

fn check_name(name: &str) -> io::Result<()> {
    match name.len() {
        1..=MAX_NAME_BYTES => Ok(()),
        bytes => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a name of {bytes} bytes; it must have 1 to {MAX_NAME_BYTES}"),
        )),
    }
}
