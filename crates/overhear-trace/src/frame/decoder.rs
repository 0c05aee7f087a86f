// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decodes frames.

use std::io;
use std::io::Read;

use super::content::FrameContent;
use super::head::{Head, CHECKSUM_BYTES, FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES, MAGIC, VERSION};
use super::MAX_FRAME_BODY_BYTES;
use crate::checksum::checksum;

/// Maximum bytes of one read.
const READ_BYTES: usize = 256 << 10;
/// Maximum bytes in memory: the largest frame, and the bytes that were read with its end.
const MAX_BUFFER_BYTES: usize = FRAME_OVERHEAD_BYTES + MAX_FRAME_BODY_BYTES + READ_BYTES;
/// Maximum bytes of failed checksums beyond the length of the channel. After that the lengths of
/// damaged frames are trusted: otherwise nested heads would cost a time that grows with the square
/// of their number.
const MAX_MISMATCHED_BYTES: u64 = 64 << 20;

/// A whole frame with correct checksums.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelFrame<'a> {
    /// Position in the channel, counted in frames, as its writer numbered it.
    pub number: u64,
    /// Position of its first byte among those that the decoder got.
    pub offset: u64,
    /// The content.
    pub content: FrameContent<'a>,
}

/// Bytes that are no frames, or frames that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameDamage {
    /// Position of the first byte.
    pub offset: u64,
    /// Bytes that are left out; 0 where only frames are missing.
    pub bytes: u64,
    /// Number of frames that are missing before the next one. `None` after the last frame and after
    /// a begin, where it cannot be determined.
    pub frames: Option<u64>,
    /// Description of the damage.
    pub reason: &'static str,
}

/// The next part of a channel.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded<'a> {
    /// A frame.
    Frame(ChannelFrame<'a>),
    /// A part that is left out.
    Damaged(FrameDamage),
}

/// Counts of a decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// Frames that were read, with unknown ones.
    pub read: u64,
    /// Frames of kinds or versions that this decoder does not support.
    pub unknown: u64,
    /// Damaged places.
    pub damaged: u64,
    /// Frames that are missing by their numbers.
    pub missing: u64,
    /// Bytes of no whole frame, without the cut one at the end.
    pub skipped_bytes: u64,
}

/// The bytes before the next frame.
#[derive(Clone, Copy, Debug)]
struct Skipped {
    offset: u64,
    bytes: u64,
    reason: &'static str,
}

enum Step {
    /// The frame at the start of the buffer.
    Frame(Head),
    Damaged(FrameDamage),
    /// More bytes are needed, or the end was reached.
    Wait,
}

/// Takes the bytes of a channel in pieces of any size, and yields its frames. It needs no more
/// memory than the largest frame and a piece, whatever the bytes are.
#[derive(Debug, Default)]
pub struct FrameDecoder {
    /// The bytes from `start` to `end` have not been decoded.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Position of `start` in the channel.
    offset: u64,
    /// Bytes of the frame that was returned last; they are dropped before the next step.
    returned_bytes: usize,
    /// Number of the next frame, after the first one.
    expected: Option<u64>,
    skipped: Option<Skipped>,
    finished: bool,
    /// Bytes of failed checksums.
    mismatched_bytes: u64,
    counts: FrameCounts,
}

impl FrameDecoder {
    /// A decoder of bytes that begin at this position of a file.
    #[must_use]
    pub fn starting_at(offset: u64) -> Self {
        Self {
            offset,
            ..Self::default()
        }
    }

    /// Begins again at another position, with the memory and the counts of this decoder. Numbers of
    /// frames are not compared across the jump.
    pub fn restart_at(&mut self, offset: u64) {
        (self.start, self.end, self.offset) = (0, 0, offset);
        (self.returned_bytes, self.expected) = (0, None);
        (self.skipped, self.finished) = (None, false);
    }

    /// Takes bytes; returns their number. It is less than all if the memory's limit is reached:
    /// then frames must be taken out first.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let room = self.room(bytes.len());
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        self.end += count;
        count
    }

    /// Takes up to 256 KiB from an input by one call of `read`; returns their number. 0 is the end
    /// of the input.
    ///
    /// # Errors
    /// Those of the input.
    pub fn read_from(&mut self, input: &mut impl Read) -> io::Result<usize> {
        let count = input.read(self.room(READ_BYTES))?;
        self.end += count;
        Ok(count)
    }

    /// Announces that no more bytes come.
    pub fn finish(&mut self) {
        self.finished = true;
    }

    /// Whether [`FrameDecoder::finish`] was called.
    #[must_use]
    pub const fn is_finished(&self) -> bool {
        self.finished
    }

    /// Position of the first byte that is not decoded yet.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset + self.returned_bytes as u64
    }

    /// Bytes of an incomplete frame after the last whole one.
    #[must_use]
    pub const fn cut_bytes(&self) -> usize {
        self.end - self.start - self.returned_bytes
    }

    /// The counts so far.
    #[must_use]
    pub const fn counts(&self) -> FrameCounts {
        self.counts
    }

    /// Free memory for at least one and at most `wanted` bytes, except if the limit is reached.
    fn room(&mut self, wanted: usize) -> &mut [u8] {
        self.drop_returned();
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let needed = (self.end + wanted).min(MAX_BUFFER_BYTES);
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        &mut self.buffer[self.end..needed]
    }

    fn drop_returned(&mut self) {
        let bytes = std::mem::take(&mut self.returned_bytes);
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// The next frame or damage; `None` if more bytes are needed, and at the end.
    #[allow(
        clippy::should_implement_trait,
        reason = "the frame borrows the decoder"
    )]
    pub fn next(&mut self) -> Option<Decoded<'_>> {
        self.drop_returned();
        let head = match self.step() {
            Step::Wait => return None,
            Step::Damaged(damage) => return Some(Decoded::Damaged(damage)),
            Step::Frame(head) => head,
        };
        self.returned_bytes = head.frame_bytes();
        self.expected = Some(head.number.wrapping_add(1));
        let (number, offset) = (head.number, self.offset);
        let body = self.start + FRAME_HEAD_BYTES;
        let body_untrusted = &self.buffer[body..body + head.body_bytes];
        let content = match head.version {
            VERSION => FrameContent::parse(head.kind, body_untrusted),
            _ => Ok(FrameContent::Unknown { kind: head.kind }),
        };
        Some(match content {
            Ok(content) => {
                self.counts.read += 1;
                self.counts.unknown += u64::from(matches!(content, FrameContent::Unknown { .. }));
                Decoded::Frame(ChannelFrame {
                    number,
                    offset,
                    content,
                })
            }
            Err(reason) => {
                let bytes = head.frame_bytes() as u64;
                self.counts.damaged += 1;
                self.counts.missing = self.counts.missing.saturating_add(1);
                self.counts.skipped_bytes += bytes;
                Decoded::Damaged(FrameDamage {
                    offset,
                    bytes,
                    frames: Some(1),
                    reason,
                })
            }
        })
    }

    fn step(&mut self) -> Step {
        loop {
            let rest_untrusted = &self.buffer[self.start..self.end];
            let begin_bytes = rest_untrusted.len().min(MAGIC.len());
            if !MAGIC.starts_with(&rest_untrusted[..begin_bytes]) {
                let bytes = 1 + bytes_to_magic(&rest_untrusted[1..]);
                self.skip(bytes, "no frame begins here");
                continue;
            }
            if rest_untrusted.len() < FRAME_HEAD_BYTES {
                // After bytes of no frame, a part of the magic is no begin of one.
                if self.finished && self.skipped.is_some() && begin_bytes < MAGIC.len() {
                    self.skip(begin_bytes, "no frame begins here");
                }
                return match self.finished {
                    true => self.take_skipped(None).map_or(Step::Wait, Step::Damaged),
                    false => Step::Wait,
                };
            }
            let Some(head) = Head::parse(rest_untrusted) else {
                let bytes = bytes_to_magic(&rest_untrusted[1..]) + 1;
                self.skip(bytes, "no frame begins here");
                continue;
            };
            let frame_bytes = head.frame_bytes();
            let Some(frame_untrusted) = rest_untrusted.get(..frame_bytes) else {
                return match self.finished {
                    true => self.take_skipped(None).map_or(Step::Wait, Step::Damaged),
                    false => Step::Wait,
                };
            };
            let (covered, stored) = frame_untrusted.split_at(frame_bytes - CHECKSUM_BYTES);
            if checksum(covered).to_le_bytes() == *stored {
                return match self.take_skipped(Some(head.number)) {
                    Some(damage) => Step::Damaged(damage),
                    None => Step::Frame(head),
                };
            }
            // If the next frame follows, the length is right, and a frame that an element's data
            // imitates is not mistaken for one of the channel.
            let after_untrusted = &rest_untrusted[frame_bytes..];
            if after_untrusted.len() < FRAME_HEAD_BYTES && !self.finished {
                return Step::Wait;
            }
            self.mismatched_bytes += frame_bytes as u64;
            let is_whole = after_untrusted.is_empty()
                || Head::parse(after_untrusted)
                    .is_some_and(|next| next.number == head.number.wrapping_add(1))
                || self.mismatched_bytes > self.offset.saturating_add(MAX_MISMATCHED_BYTES);
            let bytes = match is_whole {
                true => frame_bytes,
                false => 1 + bytes_to_magic(&rest_untrusted[1..]),
            };
            self.skip(bytes, "the checksum of a frame is wrong");
        }
    }

    /// Leaves out bytes at the start.
    fn skip(&mut self, bytes: usize, reason: &'static str) {
        let offset = self.offset;
        let skipped = self.skipped.get_or_insert(Skipped {
            offset,
            bytes: 0,
            reason,
        });
        skipped.bytes += bytes as u64;
        self.start += bytes;
        self.offset += bytes as u64;
        self.counts.skipped_bytes += bytes as u64;
    }

    /// The damage before the frame with this number, or before the end.
    fn take_skipped(&mut self, number: Option<u64>) -> Option<FrameDamage> {
        let frames = match (number, self.expected) {
            // A lower number begins a new channel.
            (Some(number), Some(expected)) => Some(number.saturating_sub(expected)),
            _ => None,
        };
        if number.is_some() {
            self.expected = number;
        }
        let offset = self.offset;
        let skipped = match self.skipped.take() {
            Some(skipped) => skipped,
            None if frames.is_some_and(|frames| frames > 0) => Skipped {
                offset,
                bytes: 0,
                reason: "frames are missing",
            },
            None => return None,
        };
        self.counts.damaged += 1;
        self.counts.missing = self.counts.missing.saturating_add(frames.unwrap_or(0));
        Some(FrameDamage {
            offset: skipped.offset,
            bytes: skipped.bytes,
            frames,
            reason: skipped.reason,
        })
    }
}

/// Bytes before the first magic, or a part of it at the end.
fn bytes_to_magic(bytes_untrusted: &[u8]) -> usize {
    if let Some(at) = memchr::memmem::find(bytes_untrusted, &MAGIC) {
        return at;
    }
    let length = bytes_untrusted.len();
    let from = length.saturating_sub(MAGIC.len() - 1);
    let mut parts = from..length;
    parts
        .find(|&at| MAGIC.starts_with(&bytes_untrusted[at..]))
        .unwrap_or(length)
}
