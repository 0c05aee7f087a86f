// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensor directory: registers sensors, owns their memory, and connects monitors to them.
//!
//! A program *registers* its sensors here ([`client`]). The directory allocates their streams as
//! sealed memory files, gives them to the program, and passes them on to monitors. Sensors and
//! monitors connect to the directory, never to each other [GRTMon, section 3.4].
//!
//! - [`Directory`] is the service, embedded in a process: `overhear run` starts one for the
//!   program that it runs. It also keeps the clock page.
//! - [`ProgramSource`] reads every sensor of a directory in the same process.
//! - [`MonitorConnection`] is a monitor's side in another process: it lists sensors, switches them,
//!   and attaches to those that a [`Query`] names, which gives an [`AttachedSource`].
//! - [`client::register`] is the program's side; `liboverhear` and the crate `overhear` call it.
//! - [`areas`] has trace areas, in which processes record events of POSIX trace streams: the side
//!   of the traced process, of a controller and of a monitor.
//!
//! The program `overheard` (`daemon`) is a directory for a user or a machine: it has rules and
//! quotas, and its sensors outlive its restart (`docs/directory.md`).
//!
//! # Registration of a sensor
//!
//! 1. The program connects and sends `register`. The kernel supplies the ids of its process and
//!    user.
//! 2. The directory checks the request, allocates the memory file, writes the header, and sends
//!    `granted` with the file and with the task's control page, which switches sensors and reclaims
//!    lanes.
//! 3. The program maps the first writable and the second read-only, closes the files and sends
//!    `mapped`.
//! 4. The directory seals the file: from here no process, not even of root, can make a writable map
//!    of it, write it by a system call or change its size. It opens the stream for monitors and
//!    sends
//!    `sealed`.
//! 5. The program closes the connection and keeps no file descriptor: programs that close all
//!    descriptors, as daemons do, keep their sensors. A pidfd reports the end of the process to the
//!    directory.
//!
//! A program that finds no directory writes into private memory; nothing else changes for it.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![cfg_attr(
    not(feature = "daemon"),
    allow(dead_code, reason = "some code is used by the service alone")
)]

mod area_requests;
pub mod areas;
pub mod client;
mod clock;
mod connection;
mod control;
#[cfg(feature = "daemon")]
pub mod daemon;
mod description;
mod fair_queue;
mod file_closer;
mod file_watch;
mod glob;
mod journal;
mod lane_upkeep;
mod limits;
mod memory;
mod monitor;
mod monitor_requests;
mod needs;
mod opening;
mod packet;
mod peer;
mod poller;
mod program_requests;
mod protocol;
mod query;
mod quota;
mod recovery;
mod registry;
mod rules;
mod sensor_record;
mod service;
mod sizing;
mod source;
mod streams;
mod task;
mod trace_area;
mod worker;

pub use clock::{best_pair, monotonic_now, sensor_clock, ClockKeeper};
pub use control::{Control, MappedLine};
pub use memory::{MapError, Mapping};
pub use monitor::{AttachError, AttachedSource, Begin, MonitorConnection};
pub use needs::Needs;
pub use packet::LinkError;
pub use query::{Matcher, Query, QueryError};
pub use registry::NotConnected;
pub use sensor_record::{DirectoryStatus, NotConnectedRecord, SensorRecord, SensorState};
pub use service::{Directory, DirectoryBuilder, DirectoryError};
pub use sizing::{elements_within, suggested_capacity};
pub use source::{BudgetSwitch, ProgramSource};
pub use streams::SensorWrites;
pub use trace_area::{AreaAccess, AreaRecord};

/// The environment variable that names the directory's socket.
pub const SOCKET_VARIABLE: &str = "OVERHEAR_DIRECTORY";
