// SPDX-License-Identifier: MIT OR Apache-2.0
//! Means of measured costs, with their confidence intervals.

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Number of measurements.
    pub samples: u64,
    /// Mean of the measurements, in nanoseconds.
    pub mean_ns: f64,
    /// Standard deviation of the measurements, in nanoseconds.
    pub deviation_ns: f64,
    /// Half of the 99 % confidence interval around `mean_ns`, in nanoseconds, for independent
    /// measurements with a normal distribution (Student's distribution).
    pub within_ns: f64,
}

impl Estimate {
    /// From measurements in nanoseconds; `None` for fewer than two, whose spread is not known.
    ///
    /// ```
    /// use overhear_metrics::Estimate;
    ///
    /// let estimate = Estimate::of(&[10.0, 12.0, 11.0, 13.0, 9.0]).unwrap();
    /// assert_eq!(estimate.mean_ns, 11.0);
    /// assert!((estimate.within_ns - 4.604 * (2.5_f64 / 5.0).sqrt()).abs() < 0.05);
    /// ```
    #[must_use]
    pub fn of(measurements: &[f64]) -> Option<Self> {
        let count = measurements.len();
        if count < 2 {
            return None;
        }
        let mean = measurements.iter().sum::<f64>() / count as f64;
        let squares: f64 = measurements.iter().map(|one| (one - mean).powi(2)).sum();
        let deviation = (squares / (count - 1) as f64).sqrt();
        Some(Self {
            samples: count as u64,
            mean_ns: mean,
            deviation_ns: deviation,
            within_ns: student_995(count - 1) * deviation / (count as f64).sqrt(),
        })
    }

    /// Whether the confidence interval contains zero.
    #[must_use]
    pub fn may_be_zero(&self) -> bool {
        self.mean_ns.abs() <= self.within_ns
    }
}

/// The 0.995 quantile of Student's t, to 0.01 from six degrees of freedom on (Abramowitz and
/// Stegun, 26.7.5); exact below.
fn student_995(degrees: usize) -> f64 {
    const FEW: [f64; 5] = [63.657, 9.925, 5.841, 4.604, 4.032];
    /// The 0.995 quantile of the normal distribution.
    const Z: f64 = 2.575_829_3;
    if let Some(exact) = FEW.get(degrees.wrapping_sub(1)) {
        return *exact;
    }
    let n = degrees as f64;
    let (z3, z5, z7, z9) = (Z.powi(3), Z.powi(5), Z.powi(7), Z.powi(9));
    Z + (z3 + Z) / (4.0 * n)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * n * n)
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * n.powi(3))
        + (79.0 * z9 + 776.0 * z7 + 1482.0 * z5 - 1920.0 * z3 - 945.0 * Z) / (92_160.0 * n.powi(4))
}

#[cfg(test)]
mod tests {
    use super::{student_995, Estimate};

    #[test]
    fn students_distribution_matches_the_tables() {
        for (degrees, value) in [
            (1, 63.657),
            (2, 9.925),
            (4, 4.604),
            (5, 4.032),
            (7, 3.499),
            (10, 3.169),
            (20, 2.845),
            (40, 2.704),
            (1_000, 2.581),
        ] {
            let near = (student_995(degrees) - value).abs();
            assert!(
                near < 0.02,
                "{degrees}: {} instead of {value}",
                student_995(degrees)
            );
        }
    }

    #[test]
    fn single_measurement_has_no_estimate() {
        assert_eq!(Estimate::of(&[]), None);
        assert_eq!(Estimate::of(&[1.0]), None);
        let zero = Estimate::of(&[-1.0, 1.0, -1.0, 1.0, 0.5]).unwrap();
        assert!(zero.may_be_zero());
        let some = Estimate::of(&[10.0, 10.1, 9.9, 10.0]).unwrap();
        assert!(!some.may_be_zero());
    }
}
