// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear top`: live tables of sensors and threads.
//!
//! ```text
//! sensors, threads --> Observation --snapshot--> Model --> draw --> terminal
//!                          ^                       ^ |
//!                          |                  keys | | Request
//!                          +-- switch a sensor ----+-+
//! ```
//!
//! - [`observation`]: a runner with the accounts of sensors, threads and updates. It alone reads
//!   sources, the directory and `/proc`.
//! - [`snapshot`]: the accounts at one moment, as plain data; `--once` prints one.
//! - [`model`]: the newest snapshot, and the choices of the user. A key changes it, and may return
//!   a [`Request`]. It reads no clock, no terminal and no directory.
//! - [`view`]: draws a model, with [`bars`] as courses.
//! - [`command`]: the loop over rounds, snapshots, keys and frames.

mod bars;
mod command;
mod keyboard;
mod model;
mod observation;
mod snapshot;
#[cfg(test)]
mod tests;
mod threads;
mod updates;
mod view;

pub(crate) use command::{once, watch, TopOptions};
use model::{Model, Page, Request};
#[cfg(test)]
pub(crate) use snapshot::CSV_COLUMNS;
pub(crate) use snapshot::{render, sensor_row, tasks, Snapshot};
use threads::ThreadRates;
use view::draw;
