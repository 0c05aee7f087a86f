// SPDX-License-Identifier: MIT OR Apache-2.0
//! The vocabulary of Overhear.
//!
//! A *sensor* produces *elements*. The elements of one writer form a *stream*: they carry ascending
//! time stamps and are numbered by their *sequence*, the position in the stream since its start. A
//! [`Source`] yields the elements of one or more streams. Elements that it had to skip it reports
//! by a [`Gap`]: their number, the times around them, and the cause. The monitor merges all sources
//! into one total order (time, stream, sequence) and passes every [`Item`] to its [`Analysis`]s,
//! the code that evaluates. An item is an element, a gap, or an *advance*, the promise that no item
//! older than a given time follows.
//!
//! Three groups of types describe the items:
//!
//! - [`Timestamp`], [`Nanos`] and [`Ticks`] are the three kinds of time, without implicit
//!   conversions.
//! - [`TypeSchema`] describes a payload: named fields with kinds and units, without padding, so
//!   that generic tools can print, plot and export it.
//! - [`StreamDescriptor`] describes a stream: task, sensor, schema, declared rate.
//!
//! ```
//! use overhear_event::{FieldKind, TypeSchema, Value};
//!
//! let schema = TypeSchema::builder("thread_time")
//!     .field("cpu", FieldKind::U64, "ns")
//!     .field("phase", FieldKind::U64, "")
//!     .build()?;
//! let mut payload = Vec::new();
//! payload.extend_from_slice(&1_500_u64.to_ne_bytes());
//! payload.extend_from_slice(&1_u64.to_ne_bytes());
//! assert_eq!(schema.read(0, &payload), Some(Value::Unsigned(1_500)));
//! # Ok::<(), overhear_event::SchemaError>(())
//! ```
//!
//! # Design constraints
//!
//! No I/O, no clock, no thread and no `unsafe`: everything above this crate can be tested with
//! literals. `no_std` with `alloc`, because sensors of small programs link it too.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod event;
mod flow;
mod in_place;
pub mod kernel;
mod loser_tree;
pub mod parts;
mod printable;
mod run;
mod sample;
mod schema;
mod shared;
mod similar;
mod stream;
mod stream_id;
mod time;
mod writer;

pub use event::{EventName, EventSet};
pub use flow::{Analysis, ElementView, Gap, GapCause, Inbox, Item, Source, SourceError};
pub use in_place::{ElementInPlace, ElementKey, InPlaceMemory, IN_PLACE_BYTES};
pub use loser_tree::{CompactKey, KeyOrigin, LoserTree, MergeKey};
pub use printable::{csv_cell, csv_line, printable, printable_json, printable_lines};
pub use run::Run;
pub use sample::{
    SampleHeader, SampleLayout, SamplePoint, SampleSchema, SampledQuantity, SAMPLE_TYPE,
};
pub use schema::{
    Field, FieldKind, SchemaError, ShownValue, TypeSchema, TypeSchemaBuilder, Value, HEXADECIMAL,
    MAX_PAYLOAD_BYTES, WRITER_FLAGS, WRITER_TID,
};
pub use similar::is_similar_name;
pub use stream::{Origin, Rate, RateError, StreamDescriptor, Task};
pub use stream_id::{StreamId, StreamIdRange};
pub use time::{ClockId, Nanos, RelativeTime, Ticks, Timestamp};
pub use writer::WriterKind;
