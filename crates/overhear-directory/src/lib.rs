// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who exists: the sensor directory.
//!
//! A program that wants to be heard *registers* its sensors here ([`client`]); the directory
//! allocates their streams as sealed memory files, hands them over, and tells monitors. Sensors
//! and monitors know the directory, never each other (seed 000, section 3.4).
//!
//! - [`Directory`] is the service, embedded in a process: `overhear run` starts one for the
//!   program that it runs. It also keeps the clock page.
//! - [`ProgramSource`] reads every sensor of a directory in the same process.
//! - [`MonitorConnection`] is a monitor's side in another process: it lists sensors, switches them,
//!   and attaches to those that a [`Query`] names, which gives an [`AttachedSource`].
//! - [`client::register`] is the program's side; `liboverhear` and the crate `overhear` call it.
//!
//! The program `overheard` (`daemon`) is a directory for a user or a machine: it has rules and quotas,
//! and what it owns outlives its restart (`docs/directory.md`).
//!
//! # Hand-over of a stream (`DESIGN` decision 5)
//!
//! 1. The program connects, sends `register`; the kernel vouches for its process and user.
//! 2. The directory checks, allocates the memory file, writes the header, sends `granted` with the
//!    file. With it comes the task's control page, by which sensors are switched and lanes given
//!    back.
//! 3. The program maps the first writable and the second read-only, closes the files and sends
//!    `mapped`.
//! 4. The directory seals the file: from here nobody can map or write it, not even root, nor
//!    change its size. It opens the stream for monitors and sends `sealed`.
//! 5. The program closes the connection. No file descriptor stays in it: programs that close all
//!    descriptors, as daemons do, keep their sensors. That a process has ended the directory
//!    learns from a pidfd.
//!
//! A program that finds no directory writes into private memory and runs on unchanged.

#![cfg_attr(
    not(feature = "daemon"),
    allow(dead_code, reason = "what only a service does is written for it")
)]

mod audience;
pub mod client;
mod clock;
mod connection;
mod control;
#[cfg(feature = "daemon")]
pub mod daemon;
mod description;
mod fair_queue;
mod file_watch;
mod glob;
mod journal;
mod kept;
mod lane_upkeep;
mod limits;
mod memory;
mod monitor;
mod needs;
mod opening;
mod packet;
mod peer;
mod poller;
mod protocol;
mod query;
mod quota;
mod record;
mod registration;
mod registry;
mod rules;
mod service;
mod sizing;
mod source;
mod streams;
mod task;
mod worker;

pub use clock::{best_pair, monotonic_now, sensor_clock, ClockKeeper};
pub use control::{Control, MappedLine};
pub use memory::{MapError, Mapping};
pub use monitor::{AttachError, AttachedSource, Begin, MonitorConnection};
pub use needs::Needs;
pub use packet::LinkError;
pub use query::{Matcher, Query, QueryError};
pub use record::{DirectoryStatus, SensorRecord, SensorState, UnheardRecord};
pub use registry::Unheard;
pub use service::{Directory, DirectoryBuilder, DirectoryError};
pub use sizing::{elements_within, suggested_capacity};
pub use source::ProgramSource;

/// The environment variable that names the directory's socket.
pub const SOCKET_VARIABLE: &str = "OVERHEAR_DIRECTORY";
