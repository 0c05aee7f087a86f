// SPDX-License-Identifier: MIT OR Apache-2.0
//! The price of an update, from pairs of stretches.
//!
//! A pair is a plain and a monitored stretch of the same function with the same number of passes,
//! in random order. The difference of their times is the cost of the difference of their updates,
//! plus what other functions did in the meantime, plus noise. The price is the slope of a
//! regression through the origin of time on updates. The passes of the hottest other functions are
//! covariates: monitoring does not change their number, so they may explain time.

/// Functions whose passes are covariates.
pub const COVARIATES: usize = 8;
const COLUMNS: usize = COVARIATES + 1;
/// Pairs after which older ones lose weight.
const REMEMBERED_PAIRS: f64 = 8192.0;
/// Below this effective number of pairs there is no estimate.
const LEAST_EFFECTIVE_PAIRS: f64 = 8.0;
/// Effective pairs at which the standard error is doubled in variance: with few and unequal pairs,
/// the errors of least squares are far too small.
const LEVERAGE_PAIRS: f64 = 400.0;
/// Pairs for each column before covariates are used.
const PAIRS_PER_COLUMN: f64 = 6.0;

/// Moments of the pairs of one function: times in ticks, columns `[updates, passes ...]`.
#[derive(Clone, Copy, Debug)]
pub struct Pairs {
    pairs: f64,
    updates_4: f64,
    time_2: f64,
    time: [f64; COLUMNS],
    products: [[f64; COLUMNS]; COLUMNS],
}

/// A price with its standard error, in the unit of the pairs' times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Time for each update.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

impl Default for Pairs {
    fn default() -> Self {
        Self::new()
    }
}

impl Pairs {
    /// No pairs.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            pairs: 0.0,
            updates_4: 0.0,
            time_2: 0.0,
            time: [0.0; COLUMNS],
            products: [[0.0; COLUMNS]; COLUMNS],
        }
    }

    /// The number of pairs, with the weights that older ones still have.
    #[must_use]
    pub const fn count(&self) -> f64 {
        self.pairs
    }

    /// Adds the differences, monitored minus plain, of one pair.
    pub fn add(&mut self, time: f64, updates: f64, passes: &[f64]) {
        if self.pairs > REMEMBERED_PAIRS {
            self.halve();
        }
        let mut columns = [0.0; COLUMNS];
        columns[0] = updates;
        for (column, passes) in columns[1..].iter_mut().zip(passes) {
            *column = *passes;
        }
        self.pairs += 1.0;
        self.updates_4 += updates.powi(4);
        self.time_2 += time * time;
        for (row, left) in columns.iter().enumerate() {
            self.time[row] += time * left;
            for (column, right) in columns.iter().enumerate().take(row + 1) {
                self.products[row][column] += left * right;
            }
        }
    }

    fn halve(&mut self) {
        self.pairs *= 0.5;
        // The effective number of pairs is a square over a fourth moment: both halve with it.
        self.updates_4 *= 0.5;
        self.time_2 *= 0.5;
        for row in 0..COLUMNS {
            self.time[row] *= 0.5;
            for product in &mut self.products[row] {
                *product *= 0.5;
            }
        }
    }

    /// Adds all pairs of others.
    pub fn merge(&mut self, other: &Self) {
        self.pairs += other.pairs;
        self.updates_4 += other.updates_4;
        self.time_2 += other.time_2;
        for row in 0..COLUMNS {
            self.time[row] += other.time[row];
            for column in 0..=row {
                self.products[row][column] += other.products[row][column];
            }
        }
    }

    /// Adds the pairs of others without their covariates, which are those of other functions.
    pub fn merge_without_covariates(&mut self, other: &Self) {
        let mut other = *other;
        other.forget_covariates();
        self.merge(&other);
    }

    /// Forgets the covariates: other functions take their columns.
    pub fn forget_covariates(&mut self) {
        for row in 1..COLUMNS {
            self.time[row] = 0.0;
            self.products[row] = [0.0; COLUMNS];
        }
    }

    /// The price, if the pairs say anything about it.
    #[must_use]
    pub fn price(&self, covariates: usize) -> Option<Price> {
        let updates_2 = self.products[0][0];
        if self.pairs < LEAST_EFFECTIVE_PAIRS || updates_2 <= 0.0 {
            return None;
        }
        let effective = updates_2 * updates_2 / (self.updates_4 + 1.0);
        if effective < LEAST_EFFECTIVE_PAIRS {
            return None;
        }
        let mut columns = 1 + covariates.min(COVARIATES);
        if self.pairs < PAIRS_PER_COLUMN * columns as f64 {
            columns = 1;
        }
        let (value, variance, residual) = self.solve(columns)?;
        let freedom = (self.pairs - columns as f64).max(2.0);
        let error = (residual.max(0.0) / freedom * variance).sqrt();
        let error = error * (1.0 + LEVERAGE_PAIRS / effective).sqrt();
        (value.is_finite() && error.is_finite() && error > 0.0).then_some(Price { value, error })
    }

    /// Solves the normal equations in columns of norm 1. Returns the slope of updates, its variance
    /// without the noise, and the sum of squared residuals.
    fn solve(&self, columns: usize) -> Option<(f64, f64, f64)> {
        let mut scale = [0.0; COLUMNS];
        for (index, scale) in scale.iter_mut().enumerate().take(columns) {
            let square = self.products[index][index];
            *scale = if square > 0.0 {
                square.sqrt().recip()
            } else {
                0.0
            };
        }
        // Columns: the matrix, the right side, and the first unit vector.
        let mut rows = [[0.0; COLUMNS + 2]; COLUMNS];
        for row in 0..columns {
            for column in 0..=row {
                let product = self.products[row][column] * scale[row] * scale[column];
                rows[row][column] = product;
                rows[column][row] = product;
            }
            // A little ridge on the covariates: they may be almost collinear.
            rows[row][row] += if row == 0 {
                1e-9
            } else {
                1e-4 + 2.0 / self.pairs
            };
            if scale[row] == 0.0 {
                rows[row][row] = 1.0;
            }
            rows[row][columns] = self.time[row] * scale[row];
        }
        rows[0][columns + 1] = 1.0;
        for pivot in 0..columns {
            let factor = rows[pivot][pivot];
            if factor.abs() < 1e-12 {
                return None;
            }
            for cell in &mut rows[pivot][pivot..columns + 2] {
                *cell /= factor;
            }
            let source = rows[pivot];
            for (row, cells) in rows.iter_mut().enumerate().take(columns) {
                let factor = cells[pivot];
                if row == pivot || factor == 0.0 {
                    continue;
                }
                for (cell, value) in cells[pivot..columns + 2].iter_mut().zip(&source[pivot..]) {
                    *cell -= factor * value;
                }
            }
        }
        let mut residual = self.time_2;
        for row in 0..columns {
            residual -= rows[row][columns] * self.time[row] * scale[row];
        }
        let square = scale[0] * scale[0];
        Some((
            rows[0][columns] * scale[0],
            rows[0][columns + 1] * square,
            residual,
        ))
    }
}

/// What is expected of a price before there are pairs.
#[derive(Clone, Copy, Debug)]
pub struct Prior {
    /// The expected price.
    pub value: f64,
    /// Its standard deviation.
    pub spread: f64,
}

impl Prior {
    /// The mean of an estimate and this expectation, each weighted by its certainty.
    #[must_use]
    pub fn combine(self, estimate: Option<Price>) -> Price {
        let own = (self.spread * self.spread).recip();
        let Some(estimate) = estimate else {
            return Price {
                value: self.value,
                error: self.spread,
            };
        };
        let its = (estimate.error * estimate.error).recip();
        Price {
            value: (self.value * own + estimate.value * its) / (own + its),
            error: (own + its).recip().sqrt(),
        }
    }
}

/// The mean price of functions, with the calibrated price as one observation among them. Each
/// function's price is taken to scatter around the mean by half of the calibrated price.
#[must_use]
pub fn pooled(calibrated: f64, estimates: impl Iterator<Item = Price>) -> f64 {
    let spread_2 = 0.25 * calibrated * calibrated;
    let mut weight = (calibrated * calibrated).recip();
    let mut sum = calibrated * weight;
    for estimate in estimates {
        let own = (estimate.error * estimate.error + spread_2).recip();
        weight += own;
        sum += own * estimate.value;
    }
    (sum / weight).max(0.1 * calibrated)
}

#[cfg(test)]
mod tests {
    use super::{Pairs, Price, Prior};

    /// A generator of pseudo-random numbers in 0..1.
    fn uniform(state: &mut u64) -> f64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as f64 / (1_u64 << 53) as f64
    }

    #[test]
    fn price_is_the_slope_although_other_functions_take_time() {
        let (mut state, mut pairs) = (7, Pairs::new());
        for _ in 0..4000 {
            let updates = 50.0 + 100.0 * uniform(&mut state);
            let others = 40.0 * (uniform(&mut state) - 0.5);
            let noise = 30.0 * (uniform(&mut state) - 0.5);
            pairs.add(0.3 * updates + 5.0 * others + noise, updates, &[others]);
        }
        let price = pairs.price(1).unwrap();
        assert!((price.value - 0.3).abs() < 0.01, "{price:?}");
        assert!((price.value - 0.3).abs() < 4.0 * price.error, "{price:?}");
    }

    #[test]
    fn one_large_pair_is_no_estimate() {
        let mut pairs = Pairs::new();
        for _ in 0..100 {
            pairs.add(1.0, 1.0, &[]);
        }
        pairs.add(1e6, 1e5, &[]);
        assert_eq!(pairs.price(0), None);
    }

    #[test]
    fn merged_pairs_give_the_price_of_all() {
        let (mut state, mut all) = (3, Pairs::new());
        let mut halves = [Pairs::new(), Pairs::new()];
        for index in 0..200 {
            let updates = 10.0 + 10.0 * uniform(&mut state);
            let time = updates * 0.5 + uniform(&mut state);
            all.add(time, updates, &[]);
            halves[index % 2].add(time, updates, &[]);
        }
        let [mut first, second] = halves;
        first.merge(&second);
        let (one, other) = (all.price(0).unwrap(), first.price(0).unwrap());
        assert!((one.value - other.value).abs() < 1e-9 && (one.error - other.error).abs() < 1e-9);
    }

    #[test]
    fn certain_estimate_outweighs_prior() {
        let prior = Prior {
            value: 1.0,
            spread: 0.5,
        };
        let price = prior.combine(Some(Price {
            value: 0.2,
            error: 0.005,
        }));
        assert!((price.value - 0.2).abs() < 0.001 && price.error < 0.005);
        assert_eq!(prior.combine(None).value, 1.0);
    }
}
