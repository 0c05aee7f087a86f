// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page: a report and a time-line as one HTML file, on disk or served while a run goes on.
//!
//! ```text
//! Report (overhear-session) ----------------------+
//!                                                 v
//! elements --> picture (bounded columns) --> html: template + style + script + two JSON documents
//!                                                 |
//!                        recorded: report.html    serve: loopback address, piece by piece
//! ```
//!
//! The page needs no server and no network. [`recorded`] makes it of a recording. [`serve`] shows
//! it in a browser while a run goes on.
//!
//! ```
//! let report = serde_json::json!({ "command": ["true"], "duration_ns": 1_000_000 });
//! let html = overhear_page::render(&report, &serde_json::Value::Null);
//! assert!(html.starts_with("<!doctype html>"));
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::too_many_lines))]

mod heap;
pub mod html;
pub mod naps;
mod picture;
pub mod recorded;
pub mod serve;

pub use html::{render, render_comparison, render_live, Run};
pub use picture::TimeRange;
