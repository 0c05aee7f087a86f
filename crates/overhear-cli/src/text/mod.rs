// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results as text for people: one file for each kind of result, on the same [tables](columns).

pub(crate) mod admission;
pub(crate) mod budget;
pub(crate) mod calibration;
pub(crate) mod columns;
pub(crate) mod compensation;
pub(crate) mod data_sources;
pub(crate) mod doctor;
pub(crate) mod fit;
pub(crate) mod guarantee;
pub(crate) mod listing;
pub(crate) mod metrics;
pub(crate) mod naps;
pub(crate) mod not_connected;
pub(crate) mod overhead;
pub(crate) mod posix;
pub(crate) mod ranges;
pub(crate) mod reactions;
pub(crate) mod report;
pub(crate) mod response_times;
pub(crate) mod samples;
pub(crate) mod verdicts;
pub(crate) mod width;
