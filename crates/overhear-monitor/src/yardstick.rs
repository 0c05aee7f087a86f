// SPDX-License-Identifier: MIT OR Apache-2.0
//! A piece of work that takes as long each time, unless the core is disturbed: measurements beside it are
//! then told apart without a look at what they have measured.
//!
//! Where two CPUs share a core, whatever runs on the other one slows this one down, and on a virtual machine
//! that can be a neighbour of whom nothing else is known. It comes and goes within milliseconds. So
//! measurements are made short, the yardstick is laid beside each, and those count beside which it was as short
//! as it ever was. What is measured does not decide what counts, as it would with a low quantile; so
//! it can be compared between states that do not vary alike.

use std::hint::black_box;
use std::time::Instant;

/// By how much more than the shortest the yardstick may have taken beside an undisturbed measurement. It is above the
/// grain of clocks, and far below what a shared core takes: about a third.
const NEAR: f64 = 1.02;

/// A piece of work of a certain length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yardstick {
    steps: u64,
}

impl Yardstick {
    /// Of so many steps.
    #[must_use]
    pub const fn new(steps: u64) -> Self {
        Self { steps }
    }

    /// Of about this length on this machine, in nanoseconds.
    #[must_use]
    pub fn of_about(length_ns: u64) -> Self {
        const MANY: u64 = 20_000;
        let shortest = (0..20).map(|_| Self::new(MANY).lay()).min().unwrap_or(1);
        Self::new((MANY * length_ns / shortest.max(1)).max(1))
    }

    /// How many steps it has.
    #[must_use]
    pub const fn steps(self) -> u64 {
        self.steps
    }

    /// Does the work: chains of additions and shifts in registers, so many and so different from each other that
    /// they take all that a core can do at once. One chain would wait for itself, and hardly notice a
    /// neighbour.
    pub fn work(self) {
        let [mut a, mut b, mut c, mut d, mut e, mut f] = black_box([1_u64, 2, 3, 4, 5, 6]);
        for step in 0..self.steps {
            a = a.wrapping_add(step);
            b ^= a;
            c = c.wrapping_add(b);
            d ^= step;
            e = e.wrapping_add(d);
            f ^= e;
            a = a << 1 | 1;
            c = c.wrapping_mul(3);
            e = e.wrapping_mul(5);
        }
        black_box([a, b, c, d, e, f]);
    }

    /// Does the work, and returns how long it took, in nanoseconds.
    #[must_use]
    pub fn lay(self) -> u64 {
        let begun = Instant::now();
        self.work();
        begun.elapsed().as_nanos() as u64
    }
}

/// Something that was measured, and how long the yardstick took beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// What was measured.
    pub value: f64,
    /// How long the yardstick took beside it, in nanoseconds.
    pub beside_ns: u64,
}

/// Whether a measurement beside which the yardstick took so long was undisturbed, where it has taken
/// `shortest_ns` at least.
#[must_use]
pub fn is_undisturbed(beside_ns: u64, shortest_ns: u64) -> bool {
    beside_ns as f64 <= shortest_ns as f64 * NEAR
}

/// What was measured undisturbed.
///
/// ```
/// use overhear_monitor::yardstick::{undisturbed, Measured};
///
/// let measured = |value, beside_ns| Measured { value, beside_ns };
/// let all = [measured(5.0, 1_000), measured(7.0, 1_400), measured(5.1, 1_010)];
/// assert_eq!(undisturbed(&all, 1_000), [5.0, 5.1]);
/// ```
#[must_use]
pub fn undisturbed(all: &[Measured], shortest_ns: u64) -> Vec<f64> {
    let calm = all
        .iter()
        .filter(|one| is_undisturbed(one.beside_ns, shortest_ns));
    calm.map(|one| one.value).collect()
}

/// What the quarter of the measurements is beside which the yardstick was shortest: for who must say something on a
/// machine that is always disturbed.
#[must_use]
pub fn least_disturbed(all: &[Measured]) -> Vec<f64> {
    let mut sorted = all.to_vec();
    sorted.sort_by_key(|one| one.beside_ns);
    sorted.truncate(all.len().div_ceil(4));
    sorted.iter().map(|one| one.value).collect()
}

/// The middle one; not a number if there is none.
///
/// ```
/// use overhear_monitor::yardstick::median;
///
/// assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
/// assert!(median(&[]).is_nan());
/// ```
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::{least_disturbed, undisturbed, Measured, Yardstick};

    #[test]
    fn what_is_measured_does_not_decide() {
        // The dear ones are undisturbed here.
        let all: Vec<Measured> = (0..40)
            .map(|number| Measured {
                value: if number % 4 == 0 { 9.0 } else { 1.0 },
                beside_ns: if number % 4 == 0 { 1_000 } else { 1_300 },
            })
            .collect();
        assert_eq!(undisturbed(&all, 1_000), [9.0; 10]);
        assert_eq!(least_disturbed(&all), [9.0; 10]);
        assert_eq!(undisturbed(&all, 900), [0.0; 0]);
    }

    #[test]
    fn a_yardstick_has_steps_and_takes_time() {
        assert!(Yardstick::of_about(10_000).steps() > 1);
        assert!(Yardstick::new(100_000).lay() > 0);
    }
}
