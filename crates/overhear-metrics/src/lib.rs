// SPDX-License-Identifier: MIT OR Apache-2.0
//! The analyses of Overhear: types that implement [`Analysis`](overhear_event::Analysis).
//!
//! Elements and gaps flow in, in the order of their times. Each analysis keeps accounts, and its
//! results are read at the end or while it runs.
//!
//! - [`Scheduling`] follows every tracked thread through its states and keeps an account per
//!   thread: run, runnable, blocked and preempted time, switches, migrations, wake-up latency. An
//!   [`Observer`] gets each interval as it ends; [`Timeline`] is one that keeps them, packed.
//! - [`SensorStatistics`] keeps an account per sensor, of programs and of the kernel: elements,
//!   rate, intervals, values.
//! - [`SampleStatistics`] keeps an account per sampler and thread: of jobs, and of samples at other
//!   points. [`AnomalyDetector`] finds the anomalous ones.
//! - [`Messages`] rejoins messages that sensors have split into several elements.
//! - [`RecentSensors`] follows program sensors in steps: their newest activity, and whether they
//!   keep their declared rates.
//! - [`automaton`] measures what users describe: metrics as automata in a text format, and those of
//!   Linux.
//! - [`verdict`] judges constraints on metrics, fields and events.
//! - [`OverheadMeter`] adds up the monitoring overhead for each observed thread and process.
//! - [`compensation`] moves elements to the times that they would have without the cost of
//!   observing.
//! - [`response`] computes worst-case response times from descriptions of tasks and from
//!   measurements.
//! - [`Histogram`] counts lengths, [`Distribution`] numbers of either sign, including fractions.
//!
//! # Design constraints
//!
//! All of them are pure: time comes with the elements. So they have the same results live and over
//! a recorded trace.
//!
//! ```
//! use overhear_metrics::Histogram;
//!
//! let mut latencies = Histogram::new();
//! for ns in [900, 1_000, 1_100, 50_000] {
//!     latencies.record(ns);
//! }
//! assert_eq!(latencies.count(), 4);
//! assert_eq!(latencies.quantile(0.5), Some(1_000));
//! assert_eq!(latencies.max(), Some(50_000));
//! ```

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

pub mod automaton;
mod buckets;
mod coarse;
pub mod compensation;
mod context;
mod distribution;
mod histogram;
mod messages;
mod overhead;
mod recent;
pub mod response;
mod samples;
mod scheduling;
mod sensors;
mod thread;
mod timeline;
pub mod verdict;

pub use distribution::{Distribution, ValueBucket};
pub use histogram::{Bucket, Histogram};
pub use messages::Messages;
pub use overhead::{
    price_name, AssumedElements, Costs, Estimate, OverheadMeter, ENTRIES, RETURNS, STATIC_PROBES,
};
pub use recent::{RecentSensor, RecentSensors, Step, KEPT_STEPS};
pub use samples::{
    AnomalousJob, AnomalyDetector, AnomalyTask, Derived, Deviation, QuantityStatistics,
    SampleSeries, SampleStatistics, SampledTask, SamplerAccount, FIRST_JUDGED, KEPT_ANOMALIES,
};
pub use scheduling::{Observer, Scheduling};
pub use sensors::{FieldStatistics, SensorAccount, SensorStatistics};
pub use thread::{StateReason, Thread, ThreadIndex, ThreadState};
pub use timeline::{Row, Timeline};
