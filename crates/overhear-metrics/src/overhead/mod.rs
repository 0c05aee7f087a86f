// SPDX-License-Identifier: MIT OR Apache-2.0
//! Monitoring overhead: the cost of an observation for the observed program.
//!
//! A calibration measures the cost of one element of a sensor [MKM, section 5.5]. An [`Estimate`]
//! is the mean of such measurements, [`Costs`] keeps the means as prices, and [`OverheadMeter`]
//! adds the prices up as elements come: per thread for kernel elements that were written in the
//! context of a thread, per process for sensors of programs, and in one sum for elements that were
//! written in interrupts.

mod costs;
mod estimate;
mod meter;

pub use costs::{price_name, Costs, ENTRIES, RETURNS, STATIC_PROBES};
pub use estimate::Estimate;
pub use meter::{AssumedElements, OverheadMeter};
