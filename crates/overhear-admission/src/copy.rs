// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a monitor copies to private memory because the sensor's buffer is too small for the
//! backlog.
//!
//! The latency decides how long elements wait; the directory decided how many the shared buffer
//! holds. Where the first needs more than the second has, the monitor copies elements out of
//! the shared buffer before it evaluates them [GRTMon, section 4.2.1]. Copying costs CPU time in
//! every period, so the plan with the fewest copies is the best.

use crate::{Overflow, SingleSensor};

/// How to keep a shared buffer from overflowing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CopyPlan {
    /// The shared buffer holds the whole backlog: evaluate straight from it.
    Direct,
    /// GRTMon's plan: in each period copy up to `copies` elements, then evaluate private ones
    /// only.
    Rate {
        /// C, the most elements copied per period.
        copies: u128,
        /// Elements that the private memory must hold.
        private: u128,
    },
    /// The read-ahead window: in each period evaluate up to R elements, private ones first and then
    /// straight from the shared buffer; afterwards copy until `window` elements are private.
    ///
    /// With a window of `b_max(R) - B` the shared backlog stays at or below B. The backlog takes
    /// b_max(R) elements of memory altogether, shared and private, and about half the copies of a
    /// fixed rate.
    Window {
        /// P, the elements that are private after each period, and the most copied per period.
        window: u128,
    },
    /// The buffer is smaller than `E(T_M + d)`. It overflows before the monitor can have looked.
    Infeasible,
}

impl CopyPlan {
    /// The most elements that are copied in one period.
    #[must_use]
    pub const fn copies(self) -> u128 {
        match self {
            Self::Rate { copies, .. } => copies,
            Self::Window { window } => window,
            Self::Direct | Self::Infeasible => 0,
        }
    }

    /// The elements that private memory must hold.
    #[must_use]
    pub const fn private(self) -> u128 {
        match self {
            Self::Rate { private, .. } => private,
            Self::Window { window } => window,
            Self::Direct | Self::Infeasible => 0,
        }
    }

    /// GRTMon's plan for a backlog: `b_max(R)` of a single sensor, `E(l)` of one among several.
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn of_rate(sensor: SingleSensor, backlog: u128, buffer: u128) -> Result<Self, Overflow> {
        if backlog <= buffer {
            return Ok(Self::Direct);
        }
        Ok(match sensor.least_copy_rate(buffer)? {
            None => Self::Infeasible,
            Some(copies) => Self::Rate {
                copies,
                private: backlog,
            },
        })
    }

    /// The plan with the fewest copies for a backlog: `b_max(R)` of a single sensor, the exact
    /// backlog of one among several ([`Pool::backlog`](crate::Pool::backlog)).
    ///
    /// # Errors
    /// [`Overflow`] for parameters beyond reason.
    pub fn least(sensor: SingleSensor, backlog: u128, buffer: u128) -> Result<Self, Overflow> {
        let rate = Self::of_rate(sensor, backlog, buffer)?;
        if let Self::Rate { copies, .. } = rate {
            let window = backlog - buffer;
            if window <= copies {
                return Ok(Self::Window { window });
            }
        }
        Ok(rate)
    }
}
