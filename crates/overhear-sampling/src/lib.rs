// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samplers: what is read ([`DataSource`]) and when.
//!
//! ```text
//!   counters of the CPU   accounts of threads   /proc, cgroup, PSI, hwmon ...   your own
//!            \                   |                       |                     /
//!             v                  v                       v                    v
//!   DATA SOURCE   quantities with names, units and costs; one call reads all of them
//!                                |
//!   POLICY        periodic, execution flow, job, hybrid: when a sample is due
//!                                |
//!                                v
//!   SAMPLE        one element of a stream (`overhear_event::SampleSchema`)
//! ```
//!
//! A data source is the *clerk* of [EPOS, section III], and the policies are those of its
//! section III-A to III-C. Sources deliver totals; a sampler forms differences.

#![warn(missing_docs)]

mod account;
pub mod counters;
mod form;
mod locked;
pub mod memory;
pub mod perf_event;
mod periodic_sampler;
pub mod policy;
mod sample_ring;
mod source;
pub mod sources;

pub use account::KernelAccount;
pub use form::{SampleForm, SampleSubject};
pub use periodic_sampler::{
    PeriodicSampler, PeriodicSamplers, PeriodicSource, SampleTarget, SamplerEnd, StartSamplersError,
};
pub use sample_ring::{sample_ring, RingSize, SampleRingError, SampleSource, SampleWriter};
pub use source::{CostClass, DataSource, Quantity, QuantityKind, SourceReadError};
