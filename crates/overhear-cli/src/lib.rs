// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `overhear`: run a program, listen to it, report what was heard.
//!
//! This crate wires the others together and is the only one with a command line. What flows in
//! is a command; a [`Session`](session::Session) runs it under an embedded directory, with the
//! kernel's sensors following it and a monitor merging everything; what flows out is a
//! [`Report`](report::Report), as text ([`table`]), as JSON, and as a page ([`page`]). A
//! recording yields the same report again ([`offline`]). Before anything runs, [`admit`] says whether
//! a monitor would evaluate every element in time, for streams that are declared or that [`fit`] found
//! in a recording; [`guaranteed`] runs that monitor beside the session.
//!
//! ```no_run
//! use overhear_cli::session::Session;
//! use overhear_cli::width::Width;
//!
//! let outcome = Session::builder(vec!["sleep".into(), "1".into()]).run(&mut [])?;
//! println!("{}", overhear_cli::table::render(&outcome.report, Width::UNLIMITED));
//! # Ok::<(), overhear_cli::exit::Failure>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod admit;
pub mod attach;
pub mod calibrate;
pub mod check;
mod child;
mod columns;
pub mod compensation;
pub mod config;
pub mod display;
pub mod doctor;
mod evaluations;
pub mod exit;
pub mod export;
pub mod findings;
pub mod fit;
pub mod format;
pub mod guaranteed;
pub mod harness;
mod heap;
pub mod identity;
pub mod import;
mod interrupts;
mod intrusion;
pub mod junit;
mod kinds;
mod limits;
pub mod listing;
pub mod measurements;
pub mod metrics;
mod named_sensors;
pub mod offline;
mod other_threads;
pub mod output;
pub mod page;
mod picture;
pub mod place;
mod presence;
mod process_tree;
mod progress;
pub mod reactions;
mod readiness;
pub mod record;
mod recording;
pub mod repair;
pub mod report;
pub mod rta;
mod run_start;
mod scratch;
pub mod session;
mod shared;
pub mod signals;
pub mod table;
#[cfg(test)]
mod testing;
pub mod top;
mod trust;
pub mod unheard;
pub mod updates;
pub mod view;
pub mod width;
