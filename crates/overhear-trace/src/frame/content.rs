// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bodies of frames.

use std::sync::Arc;

use overhear_event::{Gap, StreamDescriptor, StreamId, Timestamp};

use super::packet::PacketFrame;
use crate::packet::{cause_from_raw, cause_to_raw, LATEST};

pub(super) const HEADER: u8 = 1;
pub(super) const DOCUMENT: u8 = 2;
pub(super) const STREAM: u8 = 3;
pub(super) const PACKET: u8 = 4;
pub(super) const GAP: u8 = 5;
pub(super) const WATERMARK: u8 = 6;
pub(super) const END: u8 = 7;

/// The byte order of records: this number as their writer has it in memory.
const ORDER: u32 = 0x0102_0304;
/// Bytes of a header before the text.
const HEADER_BYTES: usize = 16;
/// Maximum bytes of the text of a header, and of the name of a document.
pub(super) const MAX_NAME_BYTES: usize = 255;
/// Maximum bytes of a descriptor in JSON.
const MAX_DESCRIPTOR_BYTES: usize = 1 << 20;

/// The first frame of a channel, and of each part that can be read alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelHeader {
    /// The kind of content of the channel, such as `posix trace log`; 1 to 255 bytes.
    pub content: String,
    /// `CLOCK_REALTIME` minus `CLOCK_MONOTONIC` in nanoseconds; readers compute the wall time with
    /// it.
    pub realtime_offset_ns: i64,
}

/// The content of a frame.
#[derive(Clone, Debug, PartialEq)]
pub enum FrameContent<'a> {
    /// Begins a channel.
    Header(ChannelHeader),
    /// A named text or other bytes.
    Document {
        /// The name, not empty.
        name: &'a str,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Announces a stream.
    Stream(Arc<StreamDescriptor>),
    /// Elements of a stream.
    Packet(PacketFrame<'a>),
    /// Missed elements of a stream.
    Gap(Gap),
    /// No item older than this time follows.
    Watermark(Timestamp),
    /// Nothing follows. No item of the channel is later than this time.
    End(Timestamp),
    /// A kind or a version that this reader does not support.
    Unknown {
        /// The number of the kind.
        kind: u8,
    },
}

impl ChannelHeader {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = ORDER.to_ne_bytes().to_vec();
        body.extend([0; 4]);
        body.extend(self.realtime_offset_ns.to_le_bytes());
        body.extend(self.content.as_bytes());
        body
    }

    fn parse(body_untrusted: &[u8]) -> Result<Self, &'static str> {
        let parts = body_untrusted.split_at_checked(HEADER_BYTES);
        let (head, content) = parts.ok_or("the header is too short")?;
        if !head.starts_with(&ORDER.to_ne_bytes()) {
            return Err("its records are in another byte order");
        }
        let content = name_of(content)?;
        let offset = head[8..].first_chunk().unwrap_or(&[0; 8]);
        Ok(Self {
            content: content.to_owned(),
            realtime_offset_ns: i64::from_le_bytes(*offset),
        })
    }
}

fn name_of(bytes_untrusted: &[u8]) -> Result<&str, &'static str> {
    let name = std::str::from_utf8(bytes_untrusted).map_err(|_| "a name is not UTF-8")?;
    match name.len() {
        1..=MAX_NAME_BYTES => Ok(name),
        _ => Err("a name is empty or too long"),
    }
}

pub(super) fn encode_gap(gap: &Gap) -> [u8; 40] {
    let mut body = [0; 40];
    body[..4].copy_from_slice(&gap.stream.as_raw().to_le_bytes());
    body[4..8].copy_from_slice(&cause_to_raw(gap.cause).to_le_bytes());
    body[8..16].copy_from_slice(&gap.first.to_le_bytes());
    body[16..24].copy_from_slice(&gap.missed.to_le_bytes());
    body[24..32].copy_from_slice(&gap.from.as_monotonic_ns().to_le_bytes());
    body[32..].copy_from_slice(&gap.to.as_monotonic_ns().to_le_bytes());
    body
}

fn parse_gap(body_untrusted: &[u8]) -> Result<Gap, &'static str> {
    let body: &[u8; 40] = body_untrusted
        .try_into()
        .map_err(|_| "a gap has the wrong size")?;
    let u32_at = |at: usize| u32::from_le_bytes(*body[at..].first_chunk().unwrap_or(&[0; 4]));
    let u64_at = |at: usize| u64::from_le_bytes(*body[at..].first_chunk().unwrap_or(&[0; 8]));
    let gap = Gap {
        stream: StreamId::from_raw(u32_at(0)),
        cause: cause_from_raw(u32_at(4)).ok_or("a gap has an unknown cause")?,
        first: u64_at(8),
        missed: u64_at(16),
        from: Timestamp::from_monotonic_ns(u64_at(24)),
        to: Timestamp::from_monotonic_ns(u64_at(32)),
    };
    match gap.from <= gap.to && gap.to <= LATEST && gap.first.checked_add(gap.missed).is_some() {
        true => Ok(gap),
        false => Err("a gap has times or sequences out of range"),
    }
}

fn parse_time(body_untrusted: &[u8]) -> Result<Timestamp, &'static str> {
    let body = body_untrusted
        .try_into()
        .map_err(|_| "a time has the wrong size")?;
    match Timestamp::from_monotonic_ns(u64::from_le_bytes(body)) {
        time if time <= LATEST => Ok(time),
        _ => Err("a time is out of range"),
    }
}

fn parse_document(body_untrusted: &[u8]) -> Result<FrameContent<'_>, &'static str> {
    let (&length, rest) = body_untrusted.split_first().ok_or("a document is empty")?;
    let parts = rest.split_at_checked(usize::from(length));
    let (name, bytes) = parts.ok_or("a document is shorter than its name")?;
    let name = name_of(name)?;
    Ok(FrameContent::Document { name, bytes })
}

fn parse_stream(body_untrusted: &[u8]) -> Result<FrameContent<'static>, &'static str> {
    if body_untrusted.len() > MAX_DESCRIPTOR_BYTES {
        return Err("a descriptor is too long");
    }
    let descriptor = serde_json::from_slice(body_untrusted);
    descriptor
        .map(FrameContent::Stream)
        .map_err(|_| "a descriptor cannot be read")
}

impl<'a> FrameContent<'a> {
    /// The content of a frame of this version's kinds.
    pub(super) fn parse(kind: u8, body_untrusted: &'a [u8]) -> Result<Self, &'static str> {
        match kind {
            HEADER => ChannelHeader::parse(body_untrusted).map(Self::Header),
            DOCUMENT => parse_document(body_untrusted),
            STREAM => parse_stream(body_untrusted),
            PACKET => PacketFrame::parse(body_untrusted).map(Self::Packet),
            GAP => parse_gap(body_untrusted).map(Self::Gap),
            WATERMARK => parse_time(body_untrusted).map(Self::Watermark),
            END => parse_time(body_untrusted).map(Self::End),
            kind => Ok(Self::Unknown { kind }),
        }
    }
}
