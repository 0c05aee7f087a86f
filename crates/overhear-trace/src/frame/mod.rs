// SPDX-License-Identifier: MIT OR Apache-2.0
//! Frames: elements in one byte channel, a pipe, a socket or a single file.
//!
//! A recording is a folder. Where there is only one byte channel, its content travels as *frames*:
//! a [`FrameWriter`] appends them to any [`Write`](std::io::Write), and a [`FrameDecoder`] gets
//! bytes in pieces of any size and yields [`ChannelFrame`]s. Neither reads a clock, opens a file or
//! waits.
//!
//! ```text
//!          0       4         5      6          8         16      20       24        24+n
//!          +-------+---------+------+----------+---------+-------+--------+---------+----------+
//!  frame   | magic | version | kind | reserved | number  | n     | CRC of | body    | CRC of   |
//!          | F5OHF | u8, 1   | u8   | u16, 0   | u64     | u32   | 0..20  | n bytes | 0..24+n  |
//!          +-------+---------+------+----------+---------+-------+--------+---------+----------+
//!
//!  channel  header | stream 1 | document | packet | packet | gap | packet | watermark | ... | end
//! ```
//!
//! The numbers of heads and bodies are little-endian; records are in the byte order of their
//! writer, which the header states, so that writing one is a copy. `docs/frames.md` has the bodies.
//!
//! | kind | body |
//! |---|---|
//! | 1 header | byte order, offset of the wall clock, and kind of content: begins a channel |
//! | 2 document | a name and bytes |
//! | 3 stream | a [`StreamDescriptor`], the JSON of the catalogue of recordings |
//! | 4 packet | consecutive elements of a stream, in the record form of recordings |
//! | 5 gap | missed elements of a stream |
//! | 6 watermark | a time: no older item follows |
//! | 7 end | the last frame of a complete channel |
//!
//! ```
//! use overhear_event::{FieldKind, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema};
//! use overhear_trace::{
//!     ChannelHeader, Decoded, FrameContent, FrameDecoder, FrameWriter, PacketBuilder,
//! };
//!
//! let schema = TypeSchema::builder("level").field("volts", FieldKind::F64, "V").build()?;
//! let stream = StreamDescriptor::new(StreamId::from_raw(1), Origin::Sampler, "battery", schema);
//! let header = ChannelHeader { content: "levels".to_owned(), realtime_offset_ns: 0 };
//!
//! let mut writer = FrameWriter::new(Vec::new());
//! writer.header(&header)?;
//! writer.stream(&stream)?;
//! let mut packet = PacketBuilder::fixed(&stream);
//! packet.push(0, Timestamp::from_monotonic_ns(10), &12.5_f64.to_ne_bytes());
//! writer.packet(&mut packet)?;
//! writer.end(Timestamp::from_monotonic_ns(20))?;
//! let mut bytes = writer.into_inner();
//! bytes.truncate(bytes.len() - 1);
//!
//! let mut decoder = FrameDecoder::default();
//! decoder.push(&bytes);
//! decoder.finish();
//! let mut volts = Vec::new();
//! while let Some(decoded) = decoder.next() {
//!     if let Decoded::Frame(frame) = decoded {
//!         if let FrameContent::Packet(packet) = frame.content {
//!             volts.extend(packet.records().map(|record| record.payload.to_vec()));
//!         }
//!     }
//! }
//! assert_eq!(volts, [12.5_f64.to_ne_bytes().to_vec()]);
//! // The end was cut by one byte.
//! assert!(decoder.cut_bytes() > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Design constraints
//!
//! - The bytes are untrusted: nothing panics, and no more memory is taken than the largest frame
//!   needs, whatever a length states.
//! - A channel that ends anywhere is read up to its last whole frame.
//! - Damage costs the frames that it is in. The head has a checksum of its own, so its length can
//!   be trusted before the body has come, and the search for the next frame compares few places.
//! - Frames are numbered: a reader counts those that are missing, and in a file whose parts are
//!   overwritten in turn it recognises remains of older parts.
//! - Kinds and versions of the future are skipped, and counted.
//!
//! The key decision is to have no state between frames but the numbers and the descriptors of
//! streams: a part of a channel can be read alone if those are repeated in it. The price is 68
//! bytes for each packet.
//!
//! [`StreamDescriptor`]: overhear_event::StreamDescriptor

mod content;
mod decoder;
mod head;
mod packet;
mod writer;

pub use content::{ChannelHeader, FrameContent};
pub use decoder::{ChannelFrame, Decoded, FrameCounts, FrameDamage, FrameDecoder};
pub use head::{FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES, MAX_FRAME_BODY_BYTES};
pub use packet::{
    FrameRecord, PacketBuilder, PacketFrame, RecordForm, Records, PACKET_HEAD_BYTES,
    SIZED_RECORD_BYTES,
};
pub use writer::FrameWriter;

/// Whether a file that begins with these bytes is a channel of frames.
#[must_use]
pub fn begins_with_frame(bytes: &[u8]) -> bool {
    bytes.starts_with(&head::MAGIC)
}
