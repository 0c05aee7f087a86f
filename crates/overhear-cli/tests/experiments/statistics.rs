// SPDX-License-Identifier: MIT OR Apache-2.0
//! Means with intervals of 95 %, standard deviations, and random order.

use std::fmt;

/// A mean with the half width of its interval of 95 % by Student's distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mean {
    pub(crate) value: f64,
    /// Infinite for a single value.
    pub(crate) half: f64,
}

/// Student's t for 95 %, two-sided, by degrees of freedom from 1 on.
const STUDENT: [f64; 20] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
];

impl FromIterator<f64> for Mean {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len() as f64;
        let value = values.iter().sum::<f64>() / n;
        if values.len() < 2 {
            return Self {
                value,
                half: f64::INFINITY,
            };
        }
        let student = STUDENT.get(values.len() - 2).copied().unwrap_or(1.96);
        Self {
            value,
            half: student * deviation(&values) / n.sqrt(),
        }
    }
}

impl Mean {
    /// Whether the interval excludes zero.
    pub(crate) fn is_resolved(&self) -> bool {
        self.value.abs() > self.half
    }
}

impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        let sign = if f.sign_plus() && self.value >= 0.0 {
            "+"
        } else {
            ""
        };
        write!(f, "{sign}{:.digits$} ± {:.digits$}", self.value, self.half)
    }
}

/// The standard deviation of a sample; 0 for fewer than two values.
pub(crate) fn deviation(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|it| (it - mean).powi(2)).sum();
    (squares / (n - 1.0)).sqrt()
}

/// Random numbers for the order of runs.
pub(crate) struct Random(u64);

impl Random {
    /// Another order in each experiment.
    pub(crate) fn new() -> Self {
        let time = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |it| it.as_nanos() as u64);
        Self(time | 1)
    }

    fn next(&mut self) -> u64 {
        // Marsaglia's xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            let other = (self.next() % (end as u64 + 1)) as usize;
            list.swap(end, other);
        }
    }
}

#[test]
fn intervals_are_those_of_student() {
    let mean: Mean = [1.0, 2.0, 3.0].into_iter().collect();
    assert!((mean.value - 2.0).abs() < 1e-12);
    assert!((mean.half - 4.303 / 3.0_f64.sqrt()).abs() < 1e-12);
    assert!(!mean.is_resolved());
    let constant: Mean = [5.0, 5.0].into_iter().collect();
    assert!(constant.is_resolved());
    let single: Mean = [5.0].into_iter().collect();
    assert!(!single.is_resolved());
    assert_eq!(format!("{mean:+.1}"), "+2.0 ± 2.5");
}
