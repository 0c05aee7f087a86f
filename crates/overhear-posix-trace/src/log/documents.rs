// SPDX-License-Identifier: MIT OR Apache-2.0
//! The documents of a log, and the schema of its stream.

use overhear_event::{
    FieldKind, Origin, SchemaError, StreamDescriptor, StreamId, TypeSchema, HEXADECIMAL,
    MAX_PAYLOAD_BYTES,
};
use serde::{Deserialize, Serialize};

use super::{FinalStatus, LogHeader};
use crate::{
    Attributes, EventId, Inheritance, LogFullPolicy, StreamFullPolicy, TraceEvent, Truncation,
    EVENT_NAME_MAX,
};

/// Name of the document with the attributes.
pub(super) const LOG: &str = "posix-trace";
/// Name of the document with the status.
pub(super) const STATUS: &str = "status";
/// Name of the documents with names of event types.
pub(super) const EVENT_TYPE: &str = "event-type";
/// Name of the document that marks that all events before it were cleared.
pub(super) const CLEAR: &str = "clear";

/// Bytes of the document `status`, filled with spaces, so that it can be overwritten in place.
const STATUS_BYTES: usize = 256;
/// The only stream of a log.
pub(super) const STREAM: StreamId = StreamId::from_raw(1);
/// Bytes of the payload before the data.
pub(super) const EVENT_HEAD_BYTES: usize = 32;
/// Flag: the data was cut when the event was recorded.
const TRUNCATED: u16 = 1;

/// The positions of the segments of a LOOP log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Segments {
    /// Bytes from the log's begin to segment 0.
    pub(super) first_at: u64,
    /// Bytes from the begin of a segment to that of the next one.
    pub(super) bytes: u64,
    /// The segment that begins with this document; null in the root.
    pub(super) this: Option<u64>,
}

/// The document `posix-trace`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LogDocument {
    version: u32,
    name: Vec<u8>,
    creation_ns: u64,
    clock_resolution_ns: u64,
    max_data_size: u64,
    stream_size: u64,
    stream_full: Option<StreamFull>,
    inherited: bool,
    log_size: u64,
    log_full: LogFull,
    pid: u32,
    comm: String,
    realtime_offset_ns: i64,
    /// The process that writes the log.
    pub(super) writer: u32,
    pub(super) segments: Option<Segments>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StreamFull {
    Loop,
    UntilFull,
    Flush,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LogFull {
    Loop,
    UntilFull,
    Append,
}

impl LogDocument {
    pub(super) fn new(header: &LogHeader, segments: Option<Segments>) -> Self {
        let attributes = &header.attributes;
        Self {
            version: 1,
            name: attributes.name.clone(),
            creation_ns: attributes.creation_ns,
            clock_resolution_ns: header.clock_resolution_ns,
            max_data_size: attributes.max_data_size as u64,
            stream_size: attributes.stream_size as u64,
            stream_full: attributes.stream_full.map(|policy| match policy {
                StreamFullPolicy::Loop => StreamFull::Loop,
                StreamFullPolicy::UntilFull => StreamFull::UntilFull,
                StreamFullPolicy::Flush => StreamFull::Flush,
            }),
            inherited: attributes.inheritance == Inheritance::Inherited,
            log_size: attributes.log_size as u64,
            log_full: match attributes.log_full {
                LogFullPolicy::Loop => LogFull::Loop,
                LogFullPolicy::UntilFull => LogFull::UntilFull,
                LogFullPolicy::Append => LogFull::Append,
            },
            pid: header.pid,
            comm: header.comm.clone(),
            realtime_offset_ns: header.realtime_offset_ns,
            writer: std::process::id(),
            segments,
        }
    }

    pub(super) fn header(&self) -> LogHeader {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        LogHeader {
            attributes: Attributes {
                name: self.name.clone(),
                creation_ns: self.creation_ns,
                clock_resolution_ns: self.clock_resolution_ns,
                max_data_size: size(self.max_data_size),
                stream_size: size(self.stream_size),
                stream_full: self.stream_full.map(|policy| match policy {
                    StreamFull::Loop => StreamFullPolicy::Loop,
                    StreamFull::UntilFull => StreamFullPolicy::UntilFull,
                    StreamFull::Flush => StreamFullPolicy::Flush,
                }),
                inheritance: match self.inherited {
                    true => Inheritance::Inherited,
                    false => Inheritance::CloseForChild,
                },
                log_size: size(self.log_size),
                log_full: match self.log_full {
                    LogFull::Loop => LogFullPolicy::Loop,
                    LogFull::UntilFull => LogFullPolicy::UntilFull,
                    LogFull::Append => LogFullPolicy::Append,
                },
            },
            pid: self.pid,
            comm: self.comm.clone(),
            realtime_offset_ns: self.realtime_offset_ns,
            clock_resolution_ns: self.clock_resolution_ns,
        }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        // All keys are texts and all values plain, so JSON can express it.
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn parse(json_untrusted: &[u8]) -> Option<Self> {
        serde_json::from_slice(json_untrusted).ok()
    }
}

/// The document `status`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct StatusDocument {
    /// The log was completed.
    pub(super) complete: bool,
    running: bool,
    full: bool,
    overrun: bool,
    flush_error: i32,
    log_full: bool,
    log_overrun: bool,
    /// Events that a full log refused.
    pub(super) refused: u64,
    /// Sequence after the last event; 0 as long as the log is not complete.
    pub(super) end_sequence: u64,
}

impl StatusDocument {
    pub(super) fn new(
        status: &FinalStatus,
        complete: bool,
        refused: u64,
        end_sequence: u64,
    ) -> Self {
        Self {
            complete,
            running: status.running,
            full: status.full,
            overrun: status.overrun,
            flush_error: status.flush_error,
            log_full: status.log_full,
            log_overrun: status.log_overrun,
            refused,
            end_sequence,
        }
    }

    pub(super) fn status(&self) -> FinalStatus {
        FinalStatus {
            running: self.running,
            full: self.full,
            overrun: self.overrun,
            flush_error: self.flush_error,
            log_full: self.log_full,
            log_overrun: self.log_overrun,
        }
    }

    pub(super) fn to_json(self) -> Vec<u8> {
        let mut json = serde_json::to_vec(&self).unwrap_or_default();
        json.resize(STATUS_BYTES.max(json.len()), b' ');
        json
    }

    pub(super) fn parse(json_untrusted: &[u8]) -> Option<Self> {
        serde_json::from_slice(json_untrusted).ok()
    }
}

/// The document `event-type`: the number in 4 bytes, little-endian, then the name.
pub(super) fn event_type(event: EventId, name: &[u8]) -> Vec<u8> {
    let mut bytes = event.as_raw().to_le_bytes().to_vec();
    bytes.extend(name);
    bytes
}

pub(super) fn parse_event_type(bytes_untrusted: &[u8]) -> Option<(EventId, &[u8])> {
    let (number, name) = bytes_untrusted.split_first_chunk()?;
    let event = EventId::from_raw(u32::from_le_bytes(*number))?;
    (name.len() <= EVENT_NAME_MAX).then_some((event, name))
}

/// The stream of a log. The records have the data of the events, so they can be shorter or longer
/// than the schema requires.
pub(super) fn descriptor(header: &LogHeader) -> Result<StreamDescriptor, SchemaError> {
    let most = MAX_PAYLOAD_BYTES as usize - EVENT_HEAD_BYTES;
    let data = header.attributes.max_data_size.clamp(8, most);
    let schema = TypeSchema::builder("posix_trace_event")
        .field("event", FieldKind::U16, "")
        .field("flags", FieldKind::U16, "")
        .field("pid", FieldKind::U32, "")
        .field("tid", FieldKind::U32, "")
        .field("data_len", FieldKind::U32, "B")
        .field("thread", FieldKind::U64, HEXADECIMAL)
        .field("address", FieldKind::U64, HEXADECIMAL)
        .field("data", FieldKind::Text(data as u16), "")
        .build()?;
    let origin = Origin::program(header.pid, header.comm.clone());
    Ok(StreamDescriptor::new(STREAM, origin, "posix_trace", schema))
}

/// The payload of an event before its data.
#[inline]
pub(super) fn event_head(event: &TraceEvent<'_>) -> [u8; EVENT_HEAD_BYTES] {
    let flags = match event.truncation {
        Truncation::None => 0,
        Truncation::Record | Truncation::Read => TRUNCATED,
    };
    let mut head = [0; EVENT_HEAD_BYTES];
    head[..2].copy_from_slice(&(event.event.as_raw() as u16).to_ne_bytes());
    head[2..4].copy_from_slice(&flags.to_ne_bytes());
    head[4..8].copy_from_slice(&event.pid.to_ne_bytes());
    head[8..12].copy_from_slice(&event.tid.to_ne_bytes());
    head[12..16].copy_from_slice(&(event.data.len() as u32).to_ne_bytes());
    head[16..24].copy_from_slice(&event.thread.to_ne_bytes());
    head[24..].copy_from_slice(&event.address.to_ne_bytes());
    head
}

/// The event of a payload; `None` if it is damaged.
#[inline]
pub(super) fn parse_event(
    time: overhear_event::Timestamp,
    payload_untrusted: &[u8],
) -> Option<TraceEvent<'_>> {
    let (head, data) = payload_untrusted.split_first_chunk::<EVENT_HEAD_BYTES>()?;
    let u16_at = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
    let u32_at = |at: usize| u32::from_ne_bytes(*head[at..].first_chunk().unwrap_or(&[0; 4]));
    let u64_at = |at: usize| u64::from_ne_bytes(*head[at..].first_chunk().unwrap_or(&[0; 8]));
    Some(TraceEvent {
        time,
        event: EventId::from_raw(u32::from(u16_at(0)))?,
        pid: u32_at(4),
        tid: u32_at(8),
        thread: u64_at(16),
        address: u64_at(24),
        truncation: match u16_at(2) & TRUNCATED {
            0 => Truncation::None,
            _ => Truncation::Record,
        },
        data: data.get(..u32_at(12) as usize)?,
    })
}
