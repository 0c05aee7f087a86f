// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a specification to tables.
//!
//! - Once per metric: states and labels become a [`Metric`](metric::Metric), and a metric becomes a
//!   [`Program`](program::Program), the table of its steps.
//! - Once per stream: the symbols of all metrics become the [`Rule`](rule::Rule)s of a
//!   [`Route`](route::Route), where names of fields are offsets in the payload. The rules of plain
//!   metrics are grouped to [`parts`](part).

pub(crate) mod decoded;
pub(crate) mod fields;
pub(crate) mod metric;
pub(crate) mod part;
pub(crate) mod pattern;
pub(crate) mod program;
pub(crate) mod route;
pub(crate) mod rule;
pub(crate) mod task_source;
