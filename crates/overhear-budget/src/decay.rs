// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exponential decay.
//!
//! The function of the C library is not used: its last bits depend on library and processor, and
//! two budgets with the same arguments decide the same everywhere. A preload library that contains
//! a budget does not load `libm` into its program either.

use std::f64::consts::LN_2;

/// Terms of the series: the first one left out is below 2^-53 of the sum for arguments up to ln 2.
const TERMS: u32 = 18;

/// e^-x for x of at least 0; 1 for others. The relative error is at most 1e-13: that of x / ln 2
/// grows with x.
pub(crate) fn decay(x: f64) -> f64 {
    // Beyond, the result is below the least positive number; this also holds for infinity.
    const MOST: f64 = 745.0;
    if x >= MOST {
        return 0.0;
    }
    let x = x.max(0.0);
    // e^-x = 2^-n e^-r with r from 0 to ln 2.
    // The conversion rounds down. `floor` may be a call of the C library.
    let halvings = (x / LN_2) as u32;
    let r = x - f64::from(halvings) * LN_2;
    let series = (1..=TERMS)
        .rev()
        .fold(1.0, |sum, term| 1.0 - r / f64::from(term) * sum);
    let halves = |count: u32| f64::from_bits(u64::from(1023 - count) << 52);
    // In two steps, because 2^-n may be below the least normal number.
    series * halves(halvings / 2) * halves(halvings - halvings / 2)
}

#[cfg(test)]
mod tests {
    use super::decay;

    #[test]
    fn decay_equals_the_function_of_the_library() {
        for step in 0..200_000 {
            let x = f64::from(step) * 0.00373;
            let expected = (-x).exp();
            let error = (decay(x) - expected).abs();
            assert!(error <= 1e-13 * expected + f64::MIN_POSITIVE, "{x} {error}");
        }
    }

    #[test]
    fn decay_has_its_limits() {
        assert_eq!(decay(0.0), 1.0);
        assert_eq!(decay(-1.0), 1.0);
        assert_eq!(decay(f64::INFINITY), 0.0);
        assert!(decay(f64::NAN) <= 1.0);
    }
}
