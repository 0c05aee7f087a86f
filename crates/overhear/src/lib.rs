// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sensors for programs.
//!
//! A [`Sensor`] belongs to one thread at a time and writes *elements* of one type. Writing costs
//! about as much as reading the CPU's counter: no lock, no allocation, no system call, and it
//! cannot fail. A program runs the same with and without a monitor: if no directory is found, the
//! elements go into private memory.
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
//! A [`LanedSensor`] and a [`ConcurrentSensor`] may be written by many threads at once: the first
//! gives each thread a ring of its own, the second keeps one total order. A [`MessageSensor`]
//! writes messages of any size.
//!
//! Run the program with `overhear run -- PROGRAM` to see the elements.
//!
//! # Threads
//!
//! A [`Sensor`] belongs to one thread at a time. A [`LanedSensor`] is shared by many: each writes a
//! lane of its own, which costs about the same. Such a write can be refused; it returns the reason:
//! [`Refused`]. Real-time threads call [`LanedSensor::prepare_thread`] before their loop.
//!
//! # The switch
//!
//! The directory can switch a sensor off while the program runs. Then a write costs a load and a
//! branch, and publishes nothing; with [`Sensor::is_enabled`] a program skips observations that are
//! expensive to make.
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
//! # Samplers
//!
//! A [`Sampler`] is a sensor whose elements are *samples*: what the CPU and the kernel have counted
//! for the thread since the previous sample, or in a job.
//!
//! # Sensors that are not connected
//!
//! A sensor is *not connected* if no directory owns its stream, so that no monitor can read it.
//!
//! - [`Sensor::not_connected_reason`] returns the reason.
//! - With `OVERHEAR_NOT_CONNECTED=stderr` in its environment a program prints the reason of its
//!   first sensor that is not connected.
//! - `overhear list --not-connected` lists the sensors that a directory had to refuse.
//!
//! If the directory has no memory for a sensor at present, the sensor waits, switched off. It is
//! switched on when there is memory, without a call of the program.
//!
//! # Forks
//!
//! A child made by `fork` never writes into its parent's streams: a handler of `pthread_atfork`
//! replaces them by private memory before the child goes on. The child's copies of its parent's
//! sensors stay usable but not connected. [`Sensor::register_again`] registers a copy in a stream
//! of the child's own, under its own process id. Nothing is registered without this call: most
//! children call exec at once, and such a child should cost nothing.
//!
//! A child made by the raw `clone` system call, or by glibc's `_Fork`, bypasses the handler: its
//! writes would mix with its parent's. It must call [`Sensor::register_again`] before it writes.
//! Copies of a concurrent sensor refuse writes until then, because the private memory holds no free
//! element. `vfork` and `posix_spawn` are harmless, because their child only execs.
//!
//! # Waiting for a monitor
//!
//! Sensors never wait for monitors. A program that needs the verdict on an element before it goes
//! on uses a [`Waiter`]. It waits for a monitor of this process or another that has an
//! [`Announcement`] among its updates.
//!
//! # Without sensors
//!
//! With the feature `disable`, writes leave no code, and registration contacts no directory: what
//! `OVERHEAR_DISABLE` is in C. [`Sensor::not_connected_reason`] then returns this as the reason.
//!
//! # The C library
//!
//! This crate is also built as `liboverhear`, with the functions that `include/overhear/sensor.h`
//! declares and does not inline; writing is inline in that header. Programs in C and C++ with
//! monitors of their own link `liboverhear_monitor` instead, which the crate `overhear-monitor-c`
//! builds and which contains `liboverhear`.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod announce;
mod capi;
mod concurrent;
mod cpu_time;
mod dynamic;
mod dynamic_shared;
mod element;
mod fork;
mod job_end;
mod laned;
mod locked;
mod message;
mod not_connected;
mod pace;
mod sampler;
mod sensor;
mod thread;

pub use announce::{Announcement, NotEvaluated, Waiter, WaiterError};
pub use concurrent::{ConcurrentSensor, ConcurrentSensorBuilder, ConcurrentWrite};
pub use cpu_time::thread_cpu_time;
pub use dynamic::{DynamicSensor, PayloadSizeError};
pub use dynamic_shared::{DynamicSharedError, DynamicSharedSensor};
pub use element::{derive_support, Element, ElementField};
pub use job_end::job_end;
pub use laned::{LanedSensor, LanedSensorBuilder, LanedWrite, Refused};
pub use message::{MessageSensor, MessageSensorBuilder, MessageSensorError};
pub use overhear_derive::Element;
pub use overhear_directory::client::SensorRequest;
pub use overhear_event::parts::MessageTooLong;
pub use overhear_event::{
    FieldKind, Nanos, Rate, RateError, SchemaError, TypeSchema, WriterKind, MAX_PAYLOAD_BYTES,
};
pub use overhear_sampling::counters::CounterError;
pub use pace::{PaceError, PACE_MARGIN};
pub use sampler::{
    DynamicSampler, Job, RegisterSamplerError, Sampler, SamplerBuilder, SamplerRequest,
    SamplerThreadError,
};
pub use sensor::{Sensor, SensorBuilder, SensorError};
pub use thread::prepare_thread;
pub use zerocopy;
