// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sinks that keep measurements one by one ([`Results`]) or add them up ([`Summaries`]).

mod list;
mod shared;
mod summary;

pub use list::{MeasurementGap, MetricResult, Results};
pub use shared::{SharedMetrics, TakenResults};
pub use summary::{Summaries, Summary};
