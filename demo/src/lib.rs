// SPDX-License-Identifier: MIT OR Apache-2.0
//! The example of [GRTMon, section 5.1], rebuilt for Linux: where does the CPU time of a call go?
//!
//! A client calls a function in a server by sending it a text. Three sensors in the two programs
//! and the kernel's context switches flow into one analysis, [`Spans`], which follows each call
//! along its path and sorts its CPU time into four time spans ([`Span`]). Out of it come four
//! histograms; [`chart`] draws them for a terminal.
//!
//! The client and the server are C programs ([`programs`]). They are independent of the analysis,
//! and the analysis has no clock, no file and no process: it is tested with scripted elements,
//! and would compute the same over a recorded trace.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

pub mod chart;
pub mod programs;
mod running;
mod spans;

pub use spans::{Reason, Span, Spans};
