// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integers that are exact or refused: the arithmetic under every formula of this crate.
//!
//! The formulas subtract, so they are computed in signed numbers of 128 bits. Two lengths of 64
//! bits multiply without overflow; three do not, so every operation is checked.

use core::cmp::Ordering;
use core::fmt;

/// A formula left the range of 128-bit integers, so there is no exact answer.
///
/// It cannot happen while every parameter of a stream and of a monitor stays below 2^62 ns (146
/// years) and numbers of elements stay below 2^62.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the parameters are so large that the result exceeds 128-bit integers; give times below 146 \
     years and fewer elements"
)]
pub struct Overflow;

pub(crate) fn add(a: i128, b: i128) -> Result<i128, Overflow> {
    a.checked_add(b).ok_or(Overflow)
}

pub(crate) fn sub(a: i128, b: i128) -> Result<i128, Overflow> {
    a.checked_sub(b).ok_or(Overflow)
}

pub(crate) fn mul(a: i128, b: i128) -> Result<i128, Overflow> {
    a.checked_mul(b).ok_or(Overflow)
}

/// The quotient rounded down. `b` is positive, so nothing can overflow.
pub(crate) fn floor_div(a: i128, b: i128) -> i128 {
    debug_assert!(b > 0, "divisors are periods or counts, more than zero");
    a.div_euclid(b)
}

/// The quotient rounded up. `b` is positive, so nothing can overflow.
pub(crate) fn ceil_div(a: i128, b: i128) -> i128 {
    let floor = floor_div(a, b);
    // The floor of a division with a rest is at most i128::MAX / 2 or the divisor is 1 and there
    // is no rest, so adding one is safe.
    floor + i128::from(a.rem_euclid(b) != 0)
}

/// A number of elements that came from outside, as a signed number.
pub(crate) fn signed(count: u128) -> Result<i128, Overflow> {
    i128::try_from(count).map_err(|_| Overflow)
}

/// A result that the formulas keep at zero or above, as a number of elements.
pub(crate) fn count(value: i128) -> u128 {
    debug_assert!(value >= 0, "numbers of elements are never negative");
    u128::try_from(value).unwrap_or(0)
}

/// A fraction of two integers in lowest terms; the denominator is positive.
///
/// Periods that follow from a trace are not whole nanoseconds: `(G(m) + tau) / m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ratio {
    numerator: i128,
    denominator: i128,
}

impl Ratio {
    /// The fraction in lowest terms, `None` if `denominator` is not positive.
    #[must_use]
    pub fn new(numerator: i128, denominator: i128) -> Option<Self> {
        if denominator <= 0 {
            return None;
        }
        let divisor = i128::try_from(gcd(numerator.unsigned_abs(), denominator.unsigned_abs()))
            .unwrap_or(1)
            .max(1);
        Some(Self {
            numerator: numerator / divisor,
            denominator: denominator / divisor,
        })
    }

    /// A whole number.
    #[must_use]
    pub const fn whole(value: i128) -> Self {
        Self {
            numerator: value,
            denominator: 1,
        }
    }

    /// The number above the line.
    #[must_use]
    pub const fn numerator(self) -> i128 {
        self.numerator
    }

    /// The number below the line, more than zero.
    #[must_use]
    pub const fn denominator(self) -> i128 {
        self.denominator
    }

    /// The largest whole number that is not larger.
    #[must_use]
    pub fn floor(self) -> i128 {
        floor_div(self.numerator, self.denominator)
    }

    /// The smallest whole number that is not smaller.
    #[must_use]
    pub fn ceil(self) -> i128 {
        ceil_div(self.numerator, self.denominator)
    }
}

impl PartialOrd for Ratio {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ratio {
    /// Exact for all values: the integer parts first, then the fractions turned upside down, as in
    /// the continued fractions of both. No product is formed, so nothing can overflow.
    fn cmp(&self, other: &Self) -> Ordering {
        let (mut a, mut b) = (*self, *other);
        let mut turned = false;
        loop {
            let order = a.floor().cmp(&b.floor());
            let rest_a = a.numerator.rem_euclid(a.denominator);
            let rest_b = b.numerator.rem_euclid(b.denominator);
            let order = order.then(match (rest_a, rest_b) {
                (0, 0) => Ordering::Equal,
                (0, _) => Ordering::Less,
                (_, 0) => Ordering::Greater,
                _ if order == Ordering::Equal => {
                    // x < y exactly if 1/x > 1/y; the denominators shrink each time.
                    a = Self {
                        numerator: a.denominator,
                        denominator: rest_a,
                    };
                    b = Self {
                        numerator: b.denominator,
                        denominator: rest_b,
                    };
                    turned = !turned;
                    continue;
                }
                _ => order,
            });
            return if turned { order.reverse() } else { order };
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denominator == 1 {
            write!(f, "{}", self.numerator)
        } else {
            write!(f, "{}/{}", self.numerator, self.denominator)
        }
    }
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The least common multiple, `None` above 128 bits.
pub(crate) fn lcm(a: i128, b: i128) -> Option<i128> {
    let divisor = i128::try_from(gcd(a.unsigned_abs(), b.unsigned_abs())).ok()?;
    (a / divisor.max(1)).checked_mul(b)
}

/// The sum of `numerator / denominator` over `terms`, compared with `whole`, exactly.
///
/// A common denominator of many periods does not fit 128 bits. Instead the fractional parts are
/// expanded in base 2^32, all at once: after K digits the difference, scaled by 2^(32 K), is a
/// small integer plus less than one per term. A difference that is not zero is at least one part
/// in the product of all denominators (at most 2^64 each), so it shows within 2 n + 2 digits; what
/// has not shown by then is equality.
///
/// Denominators are in 1..=2^64 and numerators are at least zero.
pub(crate) fn compare_sum(terms: &[(i128, i128)], whole: i128) -> Result<Ordering, Overflow> {
    const DIGIT: i128 = 1 << 32;
    let mut rests: alloc::vec::Vec<(i128, i128)> = alloc::vec::Vec::with_capacity(terms.len());
    let mut left = whole;
    for &(numerator, denominator) in terms {
        left = sub(left, floor_div(numerator, denominator))?;
        rests.push((numerator.rem_euclid(denominator), denominator));
    }
    let terms = signed(rests.len() as u128)?;
    for _ in 0..=2 * rests.len() + 2 {
        // Here: sum of rests in [0, terms) against `left`.
        if rests.iter().all(|&(rest, _)| rest == 0) {
            return Ok(0.cmp(&left));
        }
        if left <= 0 {
            return Ok(Ordering::Greater);
        }
        if left >= terms {
            return Ok(Ordering::Less);
        }
        left = mul(left, DIGIT)?;
        for (rest, denominator) in &mut rests {
            let scaled = mul(*rest, DIGIT)?;
            left = sub(left, floor_div(scaled, *denominator))?;
            *rest = scaled.rem_euclid(*denominator);
        }
    }
    Ok(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use core::cmp::Ordering;

    use super::{ceil_div, compare_sum, floor_div, lcm, Ratio};

    #[test]
    fn divisions_round_towards_their_name() {
        for (a, b, floor, ceil) in [(7, 2, 3, 4), (-7, 2, -4, -3), (6, 2, 3, 3), (0, 5, 0, 0)] {
            assert_eq!((floor_div(a, b), ceil_div(a, b)), (floor, ceil));
        }
        assert_eq!(ceil_div(i128::MAX, 1), i128::MAX);
        assert_eq!(ceil_div(i128::MIN, 2), i128::MIN / 2);
    }

    #[test]
    fn ratios_compare_without_products() {
        let ratio = |a, b| Ratio::new(a, b).unwrap();
        assert!(ratio(1, 3) < ratio(1, 2));
        assert!(ratio(-1, 2) < ratio(-1, 3));
        assert!(ratio(2, 1) < ratio(5, 2));
        assert!(ratio(i128::MAX - 1, i128::MAX) < ratio(1, 1));
        assert!(ratio(i128::MAX - 2, i128::MAX - 1) < ratio(i128::MAX - 1, i128::MAX));
        assert_eq!(ratio(4, 6), ratio(2, 3));
        for a in -6..6 {
            for b in 1..6 {
                for c in -6..6 {
                    for d in 1..6 {
                        assert_eq!(ratio(a, b).cmp(&ratio(c, d)), (a * d).cmp(&(c * b)));
                    }
                }
            }
        }
    }

    #[test]
    fn sums_of_fractions_compare_exactly() {
        let huge = i128::from(u64::MAX);
        assert_eq!(compare_sum(&[(1, 3), (2, 3)], 1), Ok(Ordering::Equal));
        assert_eq!(compare_sum(&[(1, 3), (2, 3)], 2), Ok(Ordering::Less));
        assert_eq!(compare_sum(&[], 0), Ok(Ordering::Equal));
        // Two fractions whose sum misses a whole number by one part in 2^127 or so.
        let almost = [(1, huge), (huge - 3, huge - 2)];
        assert_eq!(compare_sum(&almost, 1), Ok(Ordering::Less));
        let above = [(1, huge - 2), (huge - 1, huge)];
        assert_eq!(compare_sum(&above, 1), Ok(Ordering::Greater));
        assert_eq!(
            compare_sum(&[(7, 6), (5, 6), (0, 9), (3, 1)], 5),
            Ok(Ordering::Equal)
        );
    }

    #[test]
    fn common_multiples_are_least_or_refused() {
        assert_eq!(lcm(4, 6), Some(12));
        assert_eq!(lcm(i128::MAX, i128::MAX - 1), None);
    }
}
