// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recorded traces.
//!
//! Items (elements, gaps, advances) flow into a [`TraceWriter`], which is an analysis itself, and
//! become a directory in the Common Trace Format 1.8. From it a [`TraceReader`] replays the same
//! items in the same order to any other analysis; babeltrace2, Trace Compass and KernelShark read
//! it without conversion. After a crash, [`repair()`] cuts half-written parts. [`PerfettoExport`]
//! and [`CsvExport`] are analyses, too: fed by a replay, they write files for other tools.
//! [`ForeignTrace`] reads traces of other tracers by libbabeltrace2, and [`import_trace`] makes a
//! recording of such a trace.
//!
//! ```
//! use overhear_event::{
//!     ElementView, FieldKind, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId,
//!     Timestamp, TypeSchema, Analysis,
//! };
//! use overhear_trace::{TraceIdentity, TraceReader, TraceWriter};
//!
//! let schema = TypeSchema::builder("level").field("volts", FieldKind::F64, "V").build()?;
//! let stream = StreamDescriptor::new(StreamId::from_raw(1), Origin::Sampler, "battery", schema);
//! let at = |ms| Timestamp::ZERO.plus(Nanos::from_ms(ms));
//! let dir = tempfile::tempdir()?;
//!
//! let mut writer = TraceWriter::create(dir.path(), TraceIdentity::default())?;
//! for (sequence, time) in [(0, at(10)), (3, at(40))] {
//!     if sequence == 3 {
//!         let (from, to) = (at(10), at(40));
//!         let (first, missed, cause) = (1, 2, GapCause::Overwritten);
//!         writer.gap(&stream, &Gap { stream: stream.id, first, missed, from, to, cause })?;
//!     }
//!     let payload = 12.5_f64.to_ne_bytes();
//!     writer.element(&ElementView { stream: &stream, sequence, time, payload: &payload })?;
//! }
//! writer.finish()?;
//!
//! #[derive(Default)]
//! struct Lowest(Option<f64>, u64);
//! impl Analysis for Lowest {
//!     fn element(&mut self, element: &ElementView<'_>) {
//!         let volts = element.field("volts").and_then(|value| value.as_f64());
//!         self.0 = self.0.into_iter().chain(volts).reduce(f64::min);
//!     }
//!     fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
//!         self.1 += gap.missed;
//!     }
//!     fn advance(&mut self, _: Timestamp) {}
//! }
//! let mut lowest = Lowest::default();
//! let replayed = TraceReader::open(dir.path())?.replay(&mut [&mut lowest]);
//! assert_eq!((replayed.events, replayed.discarded), (2, 2));
//! assert_eq!((lowest.0, lowest.1), (Some(12.5), 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On disk
//!
//! ```text
//! DIR/trace/metadata               TSDL: what CTF readers need
//! DIR/trace/stream-ID              packets of one stream
//! DIR/trace/stream-ID.N            its packets in part N of a recording with a maximum size
//! DIR/trace/stream-ID.repeated-N   elements of removed parts that are repeated before part N
//! DIR/trace/overhear/streams.json  descriptors with units and rates: what we need beyond that
//! DIR/trace/overhear/ends.json     written by `finish`: where each stream ends
//! DIR/trace/overhear/summary.json  written by `finish`: counts, and when the observation ended
//! DIR/trace/overhear/NAME.json     documents that the caller attached
//! DIR/trace/overhear/disk.json     the limits of a recording, and what its size has removed
//! DIR/trace/overhear/repairs.json  written by [`repair()`]: torn tails that were cut
//! DIR/trace/overhear/lock          locked while a recorder is at work
//! ```
//!
//! A stream's file is a sequence of packets.
//!
//! - The first packet is empty.
//! - Each further empty packet is a gap. It lasts from the last element before the gap to the first
//!   one after it, and increases the counter of discarded events by the number of missed elements:
//!   CTF readers report it in place.
//! - All others have records, `{u64 time, payload}`, with consecutive sequences. A full one has
//!   some bytes of padding, and ends where the size of the file is a multiple of the maximum size
//!   of a packet: then the system keeps it in memory, maps and unmaps it in few pieces, which saves
//!   a replay a twentieth of its time.
//!
//! # Limits
//!
//! [`TraceWriter::with_limits`] keeps a recording within [`DiskLimits`]. Such a recording has
//! format 5; without limits the format is 4, and older versions read it.
//!
//! - *A rate*: whole packets are left out, of the streams with the most data. The next packet of
//!   the stream is a gap of the cause `disk`. It is written with the next records, and about once
//!   per second; so many elements a killed recorder does not count.
//! - *A size*: the recording is a ring of parts. Each part has one file per stream, so all streams
//!   begin a new file at the same time, and the oldest part is removed as a whole. `disk.json` has
//!   the account of the removed packets, from which a reader makes gaps of the cause `disk`. Begins
//!   and names of threads that still live are repeated, because later packets have only their
//!   numbers.
//!
//! # Design constraints
//!
//! - A killed recorder leaves a readable trace: everything that a packet needs is on disk before
//!   it, packets are written whole, and files are replaced by renaming.
//! - Reading changes nothing: half-written parts of a killed recorder are left out, and only
//!   [`repair()`] cuts them. Every file is opened by a [`Folder`], which follows no links and opens
//!   regular files only; metadata and catalogue have at most 64 MiB, documents 48 MiB.
//! - A file is untrusted until it is checked, and a check allocates no memory whose size comes from
//!   the file. Each packet has a checksum, and no time may be outside the recording. Damage costs
//!   the packets that contain it: the reader continues at the next whole packet, and a replay
//!   delivers the missing elements as a gap with the cause `corrupt`, if their number is known.
//! - Opening a trace reads the heads of all packets and verifies the small ones. A replay verifies
//!   each packet once, when it reaches it, which costs 2 to 5 ns per record of 32 bytes.
//! - No clock is read: time comes in through the arguments, the wall clock's offset through
//!   [`TraceIdentity`].
//!
//! The key decision is to keep payloads exactly as they are in memory. Writing is a copy and
//! reading is a view of the mapped file; the price is that a trace can be replayed only on machines
//! of the same byte order (CTF readers accept both).

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::too_many_lines))]
#![deny(unsafe_code)]

mod catalogue;
mod checksum;
mod costs;
mod disk;
mod ends;
mod error;
mod export;
mod folder;
mod foreign;
mod format;
mod frame;
mod import;
mod limits;
mod lives;
mod map;
mod metadata;
mod names;
mod packet;
mod paths;
mod reader;
mod repair;
mod repairs;
mod replay;
mod ring;
mod scan;
mod stream_state;
mod summary;
mod thinning;
mod tree;
mod writer;

pub use catalogue::TraceIdentity;
pub use checksum::sealed_document;
pub use costs::recorded_costs;
pub use error::{ReadError, RepairError, WriteError};
pub use export::{CsvExport, ExportError, Exported, PerfettoExport};
pub use folder::{Folder, FolderError, Replacement};
pub use foreign::{
    send_foreign_trace, ForeignError, ForeignEvent, ForeignFields, ForeignLoss, ForeignMessage,
    ForeignReader, ForeignTrace, ForeignValue, IsolatedTrace,
};
pub use frame::{
    begins_with_frame, ChannelFrame, ChannelHeader, Decoded, FrameContent, FrameCounts,
    FrameDamage, FrameDecoder, FrameRecord, FrameWriter, PacketBuilder, PacketFrame, RecordForm,
    Records, FRAME_HEAD_BYTES, FRAME_OVERHEAD_BYTES, MAX_FRAME_BODY_BYTES, PACKET_HEAD_BYTES,
    SIZED_RECORD_BYTES,
};
pub use import::{import_trace, ImportDamage, ImportError, Imported};
pub use limits::DiskLimits;
pub use names::name_of_number;
pub use paths::is_being_written;
pub use reader::{CorruptStream, TraceReader};
pub use repair::{repair, RepairReport};
pub use repairs::TornTail;
pub use replay::{Replay, ReplaySummary};
pub use summary::TraceSummary;
pub use writer::TraceWriter;
