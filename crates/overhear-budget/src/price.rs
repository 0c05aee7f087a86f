// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prices: what one recorded event costs the observed program.

/// The cost of one event in nanoseconds of CPU time, with its standard error.
///
/// Holding one proves that both numbers are finite and not negative. It does not prove that the
/// price is right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventPrice {
    ns: f64,
    /// Standard error in ns. Zero is the error of a price that is known exactly.
    error_ns: f64,
}

/// The reason why two numbers are no price.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PriceError {
    /// The price is negative or not finite.
    #[error("the price of an event is {ns} ns; give a finite number of 0 ns or more")]
    Price {
        /// The price as given, in ns.
        ns: f64,
    },
    /// The standard error is negative or not finite.
    #[error(
        "the standard error of a price is {error_ns} ns; give a finite number of 0 ns or more"
    )]
    StandardError {
        /// The standard error as given, in ns.
        error_ns: f64,
    },
}

impl EventPrice {
    /// A price in nanoseconds of CPU time per event, and its standard error in nanoseconds.
    ///
    /// # Errors
    /// [`PriceError`] if one of them is negative or not finite.
    pub fn from_ns(ns: f64, error_ns: f64) -> Result<Self, PriceError> {
        let is_valid = |x: f64| x.is_finite() && x >= 0.0;
        if !is_valid(ns) {
            Err(PriceError::Price { ns })
        } else if !is_valid(error_ns) {
            Err(PriceError::StandardError { error_ns })
        } else {
            Ok(Self { ns, error_ns })
        }
    }

    /// A price from sums and quotients of valid prices: overflow becomes the largest number.
    pub(crate) fn clamped(ns: f64, error_ns: f64) -> Self {
        let clamp = |x: f64| if x >= 0.0 { x.min(f64::MAX) } else { 0.0 };
        Self {
            ns: clamp(ns),
            error_ns: clamp(error_ns),
        }
    }

    /// The price in nanoseconds of CPU time per event.
    #[must_use]
    pub const fn as_ns(self) -> f64 {
        self.ns
    }

    /// The standard error of the price in nanoseconds.
    #[must_use]
    pub const fn error_ns(self) -> f64 {
        self.error_ns
    }

    /// Both measurements of one price as one: the mean weighted by inverse variance. A price that
    /// is known exactly outweighs every other one; of two exact prices the newer one stays.
    #[must_use]
    pub fn merged_with(self, newer: Self) -> Self {
        if newer.error_ns == 0.0 {
            return newer;
        }
        if self.error_ns == 0.0 {
            return self;
        }
        // Weights relative to the smaller error: at most 1, so that no square overflows.
        let least = self.error_ns.min(newer.error_ns);
        let weight = |it: Self| (least / it.error_ns) * (least / it.error_ns);
        let (a, b) = (weight(self), weight(newer));
        Self::clamped(
            (a * self.ns + b * newer.ns) / (a + b),
            least / (a + b).sqrt(),
        )
    }

    /// Whether two measurements of one price differ by more than `sigmas` of their joint standard
    /// error.
    #[must_use]
    pub fn differs_from(self, other: Self, sigmas: f64) -> bool {
        (self.ns - other.ns).abs() > sigmas * self.error_ns.hypot(other.error_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::{EventPrice, PriceError};

    fn price(ns: f64, error_ns: f64) -> EventPrice {
        EventPrice::from_ns(ns, error_ns).unwrap()
    }

    #[test]
    fn merged_price_is_weighted_by_inverse_variance() {
        // Weights 1/1 and 1/4: (10 + 20/4) / (5/4) = 12, error sqrt(4/5).
        let merged = price(10.0, 1.0).merged_with(price(20.0, 2.0));
        assert!((merged.as_ns() - 12.0).abs() < 1e-12);
        assert!((merged.error_ns() - 0.8_f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn exact_price_outweighs_measured_one() {
        assert_eq!(
            price(10.0, 0.0).merged_with(price(20.0, 2.0)),
            price(10.0, 0.0)
        );
        assert_eq!(
            price(10.0, 1.0).merged_with(price(20.0, 0.0)),
            price(20.0, 0.0)
        );
    }

    #[test]
    fn bad_numbers_are_errors_with_a_message() {
        let message = PriceError::Price { ns: -1.0 }.to_string();
        assert_eq!(
            EventPrice::from_ns(-1.0, 0.0).unwrap_err().to_string(),
            message
        );
        assert!(message.starts_with("the price of an event is -1 ns"));
        assert!(EventPrice::from_ns(1.0, f64::NAN).is_err());
        assert!(EventPrice::from_ns(f64::INFINITY, 0.0).is_err());
    }
}
