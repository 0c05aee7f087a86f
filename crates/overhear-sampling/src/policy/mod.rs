// SPDX-License-Identifier: MIT OR Apache-2.0
//! Policies: when a sample is due [EPOS, section III]. Pure: times are arguments.

mod hybrid;
mod periodic;

pub use hybrid::{Hybrid, HybridMode, RateRule, RateRuleError};
pub use periodic::{Expiry, PeriodCounter, PeriodError, Timer, MIN_TICK};
