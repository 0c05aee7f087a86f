// SPDX-License-Identifier: MIT OR Apache-2.0
//! Means with an interval of 95 %.

use serde::{Deserialize, Serialize};

/// Quantiles 0.975 of Student's distribution, by degrees of freedom from 1 on.
const STUDENT: [f64; 12] = [
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18,
];
/// With more degrees of freedom.
const STUDENT_MORE: f64 = 2.18;

/// A mean of independent values, and half the width of its interval of 95 %.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Interval {
    pub(crate) mean: f64,
    pub(crate) half: f64,
}

impl Interval {
    /// Of at least two values.
    pub(crate) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
        let quantile = STUDENT.get(values.len() - 2).copied();
        let error = (squares / (count - 1.0) / count).sqrt();
        Self {
            mean,
            half: quantile.unwrap_or(STUDENT_MORE) * error,
        }
    }

    pub(crate) fn low(self) -> f64 {
        self.mean - self.half
    }

    pub(crate) fn high(self) -> f64 {
        self.mean + self.half
    }
}

/// In per cent.
impl std::fmt::Display for Interval {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2} ± {:.2} %", self.mean * 100.0, self.half * 100.0)
    }
}
