// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams in shared memory: one byte layout for programs, the kernel and samplers.
//!
//! A *writer* fills the next slot of a ring, stamps it and publishes it by storing the element
//! counter. Any number of *readers* have read-only maps of the same memory. They copy elements, and
//! prove afterwards, by reading the counter again, that the copy is whole. Neither side waits for
//! the other. A reader that is too slow misses elements, and counts them exactly.
//!
//! - [`Geometry`] is the layout of a ring, [`Shape`] that of a whole sensor: simple, laned or
//!   concurrent. Both come from the directory, never from the memory.
//! - [`SimpleWriter`] is the writer's right: wait-free, no allocation, no system call.
//!   [`QueueWriter`] is that of any number of threads at once: lock-free, one total order.
//! - [`EventRing`] takes events of different types from threads, signal handlers and processes;
//!   [`RingConsumer`] and [`RingObserver`] read them.
//! - [`LaneClaims`] gives each thread of a laned sensor a [`Lane`] of its own, lock-free.
//! - [`Reader`] yields validated copies and the exact number of missed elements. [`RingInPlace`]
//!   reads large elements in place, and checks afterwards whether they were whole.
//! - [`Segment`] and [`ClockFit`] turn stamps into time; [`ClockMap`] applies them.
//!
//! The normative description, for all kinds of writers and in terms of bytes, is
//! `docs/abi/stream-layout.md`; `include/overhear/abi.h` mirrors it in C.
//!
//! ```
//! use overhear_stream::{Geometry, Header, OwnedWords, Reader, SimpleWriter, WriterKind};
//! use overhear_event::{ClockId, Ticks};
//!
//! let geometry = Geometry::new(8, 16)?; // payloads of 8 bytes, 16 slots
//! let memory = OwnedWords::zeroed(geometry.words());
//! Header::new(&geometry, WriterKind::Simple, ClockId::Monotonic, 1).store(&memory);
//!
//! let mut writer = SimpleWriter::new(memory.share(), geometry)?;
//! writer.write(&7_u64.to_ne_bytes(), || Ticks::from_raw(1_000));
//!
//! let mut reader = Reader::from_start(memory.share(), geometry)?;
//! let mut seen = Vec::new();
//! let report = reader.poll(usize::MAX, |element| {
//!     seen.push((element.sequence, element.stamp.as_raw(), element.payload.to_vec()));
//! })?;
//! assert_eq!(seen, [(0, 1_000, 7_u64.to_ne_bytes().to_vec())]);
//! assert_eq!(report.missed, 0);
//! # Ok::<(), overhear_stream::LayoutError>(())
//! ```
//!
//! # Design constraints
//!
//! The reader does not trust the memory: the writer's process can change it to anything at any
//! moment. Positions and sizes that index memory come from [`Geometry`] alone. Stamps and payloads
//! are copied as atomic words before they are used. A counter that runs backwards is an error, not
//! undefined behaviour. The writer need not trust the reader: it never reads memory that another
//! process can write.
//!
//! The price of the single counter is one slot: the writer may be filling the slot at the counter
//! at any time, so `capacity - 1` elements are readable.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(not(loom), no_std)]
#![allow(clippy::disallowed_types, reason = "this crate is where atomics live")]

extern crate alloc;

mod clock;
mod control;
mod event_ring;
mod in_place;
mod lanes;
mod layout;
mod queue;
mod reader;
mod run;
mod shape;
mod skips;
pub mod sync;
mod tally;
#[cfg(not(loom))]
mod thread;
mod ticks;
mod words;
mod writer;

pub use clock::{ClockFit, ClockMap, ClockPair, Segment, CLOCK_PAGE_CAPACITY};
#[cfg(not(loom))]
pub use control::Switch;
pub use control::{ControlLayout, ControlLine, SwitchState, CONTROL_LINE_BYTES, CONTROL_MAGIC};
pub use event_ring::{EventRecord, EventRing, RingError, RingFull, RingGeometry, WhenFull};
pub use event_ring::{LossCause, Next, RingConsumer, RingObserver};
pub use event_ring::{MAX_EVENT_DATA, MAX_RING_CAPACITY};
pub use in_place::RingInPlace;
pub use lanes::{Abandoned, Claimant, Frame, Lane, LaneClaims, Nested};
pub use layout::{Geometry, Header, HeaderUntrusted, LayoutError};
pub use layout::{COUNTER_OFFSET, HEADER_SIZE, MAGIC, MAX_CAPACITY, VERSION};
pub use overhear_event::WriterKind;
pub use queue::{QueueFull, QueueWriter, Taken, ELEMENT_VOID};
pub use reader::{Copied, PollReport, ReadItem, ReadRun, Reader};
pub use run::CopiedRun;
pub use shape::{LanePool, QueueGeometry, Shape, StreamGeometry, MAX_LANES, MAX_QUEUE};
pub use skips::Skips;
pub use tally::{lane_owner, Tally};
#[cfg(not(loom))]
pub use thread::{Remembered, SensorKey, ThreadSlot};
pub use ticks::{hardware_clock, read_hardware_ticks, read_hardware_ticks_ordered};
pub use words::{KeptWords, OwnedWords, SharedWords, Words};
pub use writer::SimpleWriter;

#[cfg(all(test, loom, not(shuttle)))]
mod loom_tests;
