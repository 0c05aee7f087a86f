// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors for programs.
//!
//! A [`Sensor`] belongs to one thread at a time and writes *elements* of one type. Writing costs
//! about as much as reading the CPU's counter: no lock, no allocation, no system call, and it
//! cannot fail. Whether somebody listens makes no difference to the program: where no directory
//! is found the elements go into private memory.
//!
//! ```
//! use overhear::{Element, Sensor};
//!
//! #[derive(Element)]
//! #[repr(C)]
//! struct Depth {
//!     #[field(unit = "requests")]
//!     waiting: u64,
//! }
//!
//! let mut sensor = Sensor::<Depth>::builder("queue").register()?;
//! sensor.write(&Depth { waiting: 3 });
//! # Ok::<(), overhear::SensorError>(())
//! ```
//!
//! A [`LanedSensor`] and a [`ConcurrentSensor`] may be written by many threads at once: the first gives
//! each thread a ring of its own, the second keeps one total order. [`MessageSensor`] writes what has no
//! fixed size.
//!
//! Run the program with `overhear run -- PROGRAM` to see the elements.
//!
//! # Threads
//!
//! A [`Sensor`] belongs to one thread at a time. A [`LanedSensor`] is shared by many: each writes a lane
//! of its own, which costs about the same. A write can be refused there, and the sensor says why:
//! [`Refused`]. Real-time threads call [`LanedSensor::prepare_thread`] before their loop.
//!
//! # The switch
//!
//! The directory can switch a sensor off while the program runs. Then a write costs a load and a branch,
//! and publishes nothing; [`Sensor::is_enabled`] lets a program skip what is dear to observe.
//!
//! # Which sensor
//!
//! - [`Sensor`]: one thread at a time, or one sensor per thread. The cheapest.
//! - [`LanedSensor`]: many threads, each in a lane of its own.
//! - [`ConcurrentSensor`]: many threads in one order and little memory.
//! - [`MessageSensor`]: messages of any length, in parts.
//! - [`DynamicSensor`]: elements whose type is known at run time only.
//!
//! A producer that may wait keeps to a rate that it has declared with [`Sensor::pace`]; then a
//! monitor that has reserved time for this rate misses nothing.
//!
//! # Unheard sensors
//!
//! A sensor that nobody hears says why: [`Sensor::unheard_because`]. With `OVERHEAR_UNHEARD=stderr` in its
//! environment a program prints that of the first such sensor, and `overhear list --unheard` lists those that a
//! directory could not take. One for which a directory has no memory now waits for it, switched off,
//! and is heard from the moment on when there is some: the program does nothing for it.
//!
//! # Forks
//!
//! A child made by `fork` never writes into its parent's streams: a handler of `pthread_atfork`
//! replaces them by private memory before the child goes on. The child's copies of its parent's
//! sensors stay usable but unheard. One call makes a copy heard, in a stream of the child's own,
//! under its own process id: [`Sensor::register_again`]. Nothing is registered before that call:
//! most children exec at once, and a child that does not ask should cost nothing.
//!
//! A child made by the raw `clone` system call, or by glibc's `_Fork`, bypasses the handler: its writes
//! would mix with its parent's. It must call [`Sensor::register_again`] before it writes. Copies of a concurrent
//! sensor refuse writes until then, because the private memory holds no free element. `vfork` and
//! `posix_spawn` are harmless, because their child only execs.
//!
//! # Waiting for a monitor
//!
//! Nobody waits for monitors unless it wants to: a program that needs the verdict on an element before it
//! goes on has a [`Waiter`] for a monitor that has an [`Announcement`], in whatever process.
//!
//! # Without sensors
//!
//! With the feature `disable`, writes leave no code, and registration asks no directory: what
//! `OVERHEAR_DISABLE` is in C. The program says so if it asks why it is not heard.
//!
//! # The C library
//!
//! This crate is also built as `liboverhear` with the cold functions that
//! `include/overhear/sensor.h` declares; writing is inline in that header.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod announce;
mod application;
mod capi;
mod concurrent;
mod costs;
mod cpu_time;
mod dynamic;
mod dynamic_shared;
mod element;
mod fork;
mod laned;
mod message;
mod pace;
mod sensor;
mod thread;
mod unheard;

pub use announce::{Announcement, NotEvaluated, Waiter, WaiterError};
pub use concurrent::{ConcurrentSensor, ConcurrentSensorBuilder, ConcurrentWrite};
pub use costs::recorded_costs;
pub use cpu_time::thread_cpu_time;
pub use dynamic::{DynamicSensor, PayloadSizeError};
pub use dynamic_shared::{DynamicSharedError, DynamicSharedSensor};
pub use element::{derive_support, Element, ElementField};
pub use laned::{LanedSensor, LanedSensorBuilder, LanedWrite, Refused};
pub use message::{MessageSensor, MessageSensorBuilder, MessageSensorError};
pub use overhear_derive::Element;
pub use overhear_directory::client::SensorRequest;
pub use overhear_event::parts::MessageTooLong;
pub use overhear_event::{
    FieldKind, Nanos, Rate, RateError, SchemaError, TypeSchema, WriterKind, MAX_PAYLOAD_BYTES,
};
pub use pace::{PaceError, PACE_MARGIN};
pub use sensor::{Sensor, SensorBuilder, SensorError};
pub use thread::prepare_thread;
pub use zerocopy;
