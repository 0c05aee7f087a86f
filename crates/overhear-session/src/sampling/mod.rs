// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samplers of a session: what is sampled ([`SamplingRequest::sample`]) and when
//! ([`SamplingPolicy`]).
//!
//! ```
//! use overhear_session::sampling::{SamplingPolicy, SamplingRequest};
//! use overhear_event::Nanos;
//!
//! let sampler = SamplingRequest::parse(&["cpu-time", "page-faults"], Some("1ms"), None, None)?;
//! assert_eq!(sampler.policy, SamplingPolicy::Periodic { period: Nanos::from_ms(1) });
//! # Ok::<(), overhear_session::sampling::SamplingRequestError>(())
//! ```

mod admission;
mod kernel;
mod listing;
mod newest;
mod request;
mod start;

pub(crate) use admission::admit;
pub use admission::SamplerAdmission;
pub use kernel::kernel_samplers;
pub use listing::{DataSourceListing, ListedDataSource};
pub(crate) use newest::NewestElements;
pub use request::{
    JobEndRule, SamplingPoint, SamplingPolicy, SamplingRequest, SamplingRequestError,
};
pub(crate) use start::{Samplers, Subjects};
