// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sinks that keep measurements one by one ([`Results`]) or add them up ([`Summaries`]), and the
//! results as programs in C get them ([`MeasurementList`]).

mod layout;
mod list;
mod shared;
mod summary;

pub use layout::{CMeasurement, CMeasurementGap, MeasurementList};
pub use list::{MeasurementGap, MetricResult, Results};
pub use shared::{SharedMetrics, TakenResults};
pub use summary::{Summaries, Summary};
