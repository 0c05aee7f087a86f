// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kinds of `[[update]]` that need no plug-in: counted elements or values of a field
//! ([`CountingUpdate`]), and the measurements of a metric.

mod counting;
mod metric;

pub(crate) use counting::numeric_field;
pub use counting::CountingUpdate;
pub(crate) use metric::{metrics_of, MetricUpdate};
