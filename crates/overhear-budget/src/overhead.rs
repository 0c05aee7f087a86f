// SPDX-License-Identifier: MIT OR Apache-2.0
//! Overhead as a number: the target that a user allows, the floor of a source.

use std::fmt;

/// An overhead o [SMCO, section 2]: the time that observing takes, divided by the time that the
/// program takes without it.
///
/// Control laws use the *monitoring percentage* m = o / (1 + o), the share of all time that
/// observing takes. Holding one proves that the overhead is finite and not negative.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Overhead(f64);

/// The reason why a number is no overhead.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum OverheadError {
    /// Overhead below zero.
    #[error("an overhead of {percent} % is not possible; give 0 % or more")]
    Negative {
        /// The overhead as given, in per cent.
        percent: f64,
    },
    /// NaN or infinite.
    #[error("the overhead is not a finite number; give a value in per cent, for example 5 %")]
    NotFinite,
}

impl Overhead {
    /// The overhead of `percent` per cent of the program's own time.
    ///
    /// # Errors
    /// [`OverheadError`] if the number is negative or not finite.
    pub fn from_percent(percent: f64) -> Result<Self, OverheadError> {
        Self::from_overhead(percent / 100.0)
    }

    /// The overhead o as a fraction: 0.05 for 5 %.
    ///
    /// # Errors
    /// [`OverheadError`] if the number is negative or not finite.
    pub fn from_overhead(overhead: f64) -> Result<Self, OverheadError> {
        if !overhead.is_finite() {
            Err(OverheadError::NotFinite)
        } else if overhead < 0.0 {
            Err(OverheadError::Negative {
                percent: overhead * 100.0,
            })
        } else {
            Ok(Self(overhead))
        }
    }

    /// o, a fraction of the program's own time.
    #[must_use]
    pub const fn overhead(self) -> f64 {
        self.0
    }

    /// m = o / (1 + o), a share of all time, at least 0 and below 1.
    #[must_use]
    pub fn monitoring_share(self) -> f64 {
        self.0 / (1.0 + self.0)
    }
}

impl fmt::Display for Overhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Overhead, OverheadError};

    #[test]
    fn overhead_becomes_monitoring_percentage() {
        let overhead = Overhead::from_percent(25.0).unwrap();
        assert_eq!(overhead.monitoring_share(), 0.2);
        assert_eq!(overhead.to_string(), "25 %");
    }

    #[test]
    fn negative_and_endless_overheads_are_errors_with_a_message() {
        let negative = Overhead::from_percent(-1.0).unwrap_err();
        assert_eq!(
            negative.to_string(),
            "an overhead of -1 % is not possible; give 0 % or more"
        );
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Overhead::from_overhead(bad), Err(OverheadError::NotFinite));
        }
    }
}
