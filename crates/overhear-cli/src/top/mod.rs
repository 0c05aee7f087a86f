// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear top`: what sensors and threads do now.
//!
//! A [`Snapshot`] is what is known at one moment; it is also what `--once` prints. The [`Model`]
//! holds the newest one and what the user chose; keys change it and are answered by a
//! [`Request`]. [`draw`] shows a model. None of them reads a clock, a terminal or a directory.

mod bars;
mod command;
mod keyboard;
mod model;
mod snapshot;
#[cfg(test)]
mod tests;
mod threads;
mod updates;
mod view;

pub(crate) use command::{once, watch, TopOptions};
pub(crate) use model::{Model, Page, Request};
#[cfg(test)]
pub(crate) use snapshot::CSV_COLUMNS;
pub(crate) use snapshot::{render, sensor_row, tasks, Snapshot};
pub(crate) use threads::ThreadRates;
pub(crate) use view::draw;
