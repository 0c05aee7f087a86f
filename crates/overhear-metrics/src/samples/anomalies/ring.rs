// SPDX-License-Identifier: MIT OR Apache-2.0
//! The last values of a sequence.

/// Keeps the last values, up to a limit.
#[derive(Clone, Debug)]
pub(super) struct Ring {
    values: Vec<f64>,
    limit: usize,
    next: usize,
}

impl Ring {
    pub(super) const fn new(limit: usize) -> Self {
        Self {
            values: Vec::new(),
            limit,
            next: 0,
        }
    }

    pub(super) fn push(&mut self, value: f64) {
        match self.values.get_mut(self.next) {
            Some(oldest) => *oldest = value,
            None => self.values.push(value),
        }
        self.next = (self.next + 1) % self.limit;
    }

    pub(super) const fn len(&self) -> usize {
        self.values.len()
    }

    /// Number of values that are at least this one.
    pub(super) fn at_least(&self, value: f64) -> usize {
        let all = self.values.iter();
        all.filter(|known| **known >= value).count()
    }

    /// Median, and median distance from it; `None` without values.
    pub(super) fn median_and_mad(&self, scratch: &mut Vec<f64>) -> Option<(f64, f64)> {
        scratch.clear();
        scratch.extend_from_slice(&self.values);
        let median = median(scratch)?;
        for value in &mut *scratch {
            *value = (*value - median).abs();
        }
        Some((median, self::median(scratch)?))
    }
}

/// The lower median; reorders the values.
fn median(values: &mut [f64]) -> Option<f64> {
    let middle = values.len().checked_sub(1)? / 2;
    let (_, median, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Ring;

    proptest! {
        #[test]
        fn ring_has_the_last_values(
            values in proptest::collection::vec(-1e6_f64..1e6, 1..60),
            limit in 1_usize..20,
            bound in -1e6_f64..1e6,
        ) {
            let mut ring = Ring::new(limit);
            for &value in &values {
                ring.push(value);
            }
            let mut last: Vec<f64> = values.iter().rev().take(limit).copied().collect();
            prop_assert_eq!(ring.len(), last.len());
            let reached = last.iter().filter(|value| **value >= bound).count();
            prop_assert_eq!(ring.at_least(bound), reached);
            let slow = |values: &mut Vec<f64>| {
                values.sort_by(f64::total_cmp);
                values[(values.len() - 1) / 2]
            };
            let median = slow(&mut last);
            let mut distances: Vec<f64> = last.iter().map(|it| (it - median).abs()).collect();
            let expected = Some((median, slow(&mut distances)));
            prop_assert_eq!(ring.median_and_mad(&mut Vec::new()), expected);
        }
    }
}
