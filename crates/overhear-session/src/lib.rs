// SPDX-License-Identifier: MIT OR Apache-2.0
//! The application without a terminal: runs and observes programs, records, replays, judges,
//! measures and admits.
//!
//! ```text
//! overhear.toml --config--> plan
//!                             |
//! program --session-----------+--> Outcome { report, recording }     (run)
//! processes --record----------+--> Outcome { report, recording }     (record)
//! recording --replay--------------> Report                           (report)
//!           --check / metrics / response_times / fit / export        (analyses of a recording)
//! plan ------ admit --------------> AdmissionReport                  (before the start)
//! ```
//!
//! The input is a typed request; the output is plain data that serialises to JSON. The crate
//! renders no text and no page, and has no exit statuses, options or terminal:
//!
//! - An error has a [kind](error::ErrorKind), and names the [setting](error::Setting) that it is
//!   about.
//! - A result has a [conclusion](conclusion::Conclusion).
//! - Messages of a running session go to [`notices`].
//!
//! The command line, Python and tests stand on this crate.
//!
//! ```no_run
//! use overhear_session::session::Session;
//!
//! let outcome = Session::builder(vec!["sleep".into(), "1".into()]).run(&mut [])?;
//! println!("{} threads, complete: {}", outcome.report.threads.len(), outcome.report.complete);
//! # Ok::<(), overhear_session::error::SessionError>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::too_many_lines))]

mod admission;
pub mod admit;
pub mod budget;
pub mod builtin_updates;
pub mod calibrate;
pub mod check;
mod child;
pub mod compensation;
pub mod conclusion;
pub mod config;
pub mod configured_monitor;
pub mod connect;
pub mod disk_limits;
pub mod display;
pub mod documents;
pub mod error;
pub mod export;
pub mod findings;
pub mod fit;
pub mod format;
pub mod harness;
pub mod identity;
pub mod interrupts;
pub mod junit;
mod labels;
pub mod limits;
pub mod listing;
pub mod measurements;
pub mod metrics;
pub mod named_sensors;
pub mod naps;
pub mod not_connected;
pub mod notices;
mod other_threads;
pub mod output;
pub mod overhead;
pub mod posix;
mod process_tree;
pub mod processes;
pub mod progress;
pub mod quantities;
pub mod ranges;
pub mod reactions;
pub mod record;
pub mod recording;
pub mod repair;
pub mod replay;
pub mod report;
mod requested_analyses;
pub mod response_times;
pub mod run_request;
mod run_start;
pub mod samples;
pub mod sampling;
mod scratch;
pub mod session;
pub mod signals;
pub mod trace_log;
mod trust;
pub mod updates;
