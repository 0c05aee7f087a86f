// SPDX-License-Identifier: MIT OR Apache-2.0
//! Evaluations that everybody needs, as [`Update`](overhear_event::Update)s.
//!
//! - [`Scheduling`] follows every monitored thread through its states and keeps an account per
//!   thread: run, runnable, blocked and preempted time, switches, migrations, wake-up latency.
//!   An [`Observer`] sees each interval as it ends; [`Timeline`] is one that keeps them, packed.
//! - [`SensorStatistics`] keeps an account per sensor, of programs and of the kernel: elements, rate, intervals, values.
//! - [`Messages`] rejoins what sensors have split over several elements.
//! - [`RecentSensors`] follows program sensors in steps: what they do now, and whether they keep
//!   their declared rates.
//! - [`automaton`] measures what users describe: metrics as automata in a text format, and those of
//!   Linux.
//! - [`verdict`] judges: whether what must hold of metrics, fields and events does hold.
//! - [`Intrusion`] adds up what the observation cost whom it observed.
//! - [`compensation`] moves elements to when they would have come, had observing cost nothing.
//! - [`response`] computes worst-case response times from what was measured.
//! - [`Histogram`] counts lengths, [`Distribution`] numbers of either sign, fractions among them.
//!
//! All of them are pure: time comes in with the elements. So they compute the same live and over
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

#![forbid(unsafe_code)]

pub mod automaton;
mod buckets;
mod coarse;
pub mod compensation;
mod context;
mod cost;
mod distribution;
mod histogram;
mod messages;
mod recent;
pub mod response;
mod scheduling;
mod sensors;
mod thread;
mod timeline;
pub mod verdict;

pub use cost::{price_name, Costs, Estimate, Intrusion, ENTRIES, RETURNS, STATIC_PROBES};
pub use distribution::{Distribution, ValueBucket};
pub use histogram::{Bucket, Histogram};
pub use messages::Messages;
pub use recent::{RecentSensor, RecentSensors, Step, KEPT_STEPS};
pub use scheduling::{Observer, Scheduling};
pub use sensors::{FieldStatistics, SensorAccount, SensorStatistics};
pub use thread::{Reason, Thread, ThreadIndex, ThreadState};
pub use timeline::{Row, Timeline};
