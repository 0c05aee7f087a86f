// SPDX-License-Identifier: MIT OR Apache-2.0
//! The head of a frame.

use crate::checksum::checksum;

/// Begins every frame. Its first byte is in no UTF-8 text.
pub(super) const MAGIC: [u8; 4] = [0xF5, b'O', b'H', b'F'];
/// The version of the heads and bodies in this module.
pub(super) const VERSION: u8 = 1;
/// Bytes of the head.
pub const FRAME_HEAD_BYTES: usize = 24;
/// Bytes of the checksum after the body.
pub(super) const CHECKSUM_BYTES: usize = 4;
/// Bytes of a frame without its body.
pub const FRAME_OVERHEAD_BYTES: usize = FRAME_HEAD_BYTES + CHECKSUM_BYTES;
/// Maximum bytes of a body: the limit of a packet of a recording.
pub const MAX_FRAME_BODY_BYTES: usize = crate::packet::MAX_PACKET_BYTES;

/// The properties of a frame, except its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: u8,
    pub(super) kind: u8,
    /// Position of the frame in its channel, from 0.
    pub(super) number: u64,
    /// At most [`MAX_FRAME_BODY_BYTES`].
    pub(super) body_bytes: usize,
}

impl Head {
    pub(super) fn encode(&self) -> [u8; FRAME_HEAD_BYTES] {
        let mut bytes = [0; FRAME_HEAD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.version;
        bytes[5] = self.kind;
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.body_bytes as u32).to_le_bytes());
        let sum = checksum(&bytes[..20]);
        bytes[20..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The head at the start of these bytes; `None` if none begins here.
    pub(super) fn parse(bytes_untrusted: &[u8]) -> Option<Self> {
        let bytes: &[u8; FRAME_HEAD_BYTES] = bytes_untrusted.first_chunk()?;
        let stored = u32::from_le_bytes(*bytes.last_chunk()?);
        if bytes[..4] != MAGIC || checksum(&bytes[..20]) != stored {
            return None;
        }
        let number = u64::from_le_bytes(*bytes[8..].first_chunk()?);
        let body_bytes = u32::from_le_bytes(*bytes[16..].first_chunk()?) as usize;
        (body_bytes <= MAX_FRAME_BODY_BYTES).then_some(Self {
            version: bytes[4],
            kind: bytes[5],
            number,
            body_bytes,
        })
    }

    /// Bytes of the frame.
    pub(super) const fn frame_bytes(&self) -> usize {
        FRAME_OVERHEAD_BYTES + self.body_bytes
    }
}
