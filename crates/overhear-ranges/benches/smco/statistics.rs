// SPDX-License-Identifier: MIT OR Apache-2.0
//! Means with intervals, and random order.

use std::fmt;

/// A mean with the half width of its interval of 95 %.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mean {
    pub(crate) value: f64,
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
        let value = values.iter().sum::<f64>() / n.max(1.0);
        if values.len() < 2 {
            return Self {
                value,
                half: f64::INFINITY,
            };
        }
        let squares: f64 = values.iter().map(|it| (it - value).powi(2)).sum();
        let student = STUDENT.get(values.len() - 2).copied().unwrap_or(1.96);
        Self {
            value,
            half: student * (squares / (n - 1.0) / n).sqrt(),
        }
    }
}

impl fmt::Display for Mean {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$} ± {:.digits$}", self.value, self.half)
    }
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
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    pub(crate) fn shuffle(&mut self, list: &mut [usize]) {
        for end in (1..list.len()).rev() {
            let other = (self.next() % (end as u64 + 1)) as usize;
            list.swap(end, other);
        }
    }
}
