// SPDX-License-Identifier: MIT OR Apache-2.0
//! An interference probe: work of constant length on an undisturbed core. It tells disturbed
//! measurements from others without using their values.
//!
//! If two CPUs share a core, work on one slows the other down; on a virtual machine the neighbour
//! may be invisible. Disturbances come and go within milliseconds. So measurements are made short,
//! the probe is timed next to each, and a measurement is valid if the probe was as short as it ever
//! was. The measured values do not select the measurements, as a low quantile would, so states of
//! different variance can be compared.

use std::hint::black_box;
use std::time::Instant;

/// Ratio to the shortest time of the probe up to which a measurement is undisturbed. It is above
/// the grain of clocks, and far below the slow-down of a shared core, about a third.
const NEAR: f64 = 1.02;

/// Work of a certain length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterferenceProbe {
    steps: u64,
}

impl InterferenceProbe {
    /// A probe of this number of steps.
    #[must_use]
    pub const fn new(steps: u64) -> Self {
        Self { steps }
    }

    /// A probe of about this length on this machine, in nanoseconds.
    #[must_use]
    pub fn with_length(length_ns: u64) -> Self {
        const MANY: u64 = 20_000;
        let shortest = (0..20).map(|_| Self::new(MANY).time()).min().unwrap_or(1);
        Self::new((MANY * length_ns / shortest.max(1)).max(1))
    }

    /// Its number of steps.
    #[must_use]
    pub const fn steps(self) -> u64 {
        self.steps
    }

    /// Does the work: chains of additions and shifts in registers, enough different ones to use all
    /// units of a core. A single chain would wait for its own results, and hardly be slowed by a
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

    /// Does the work, and returns its duration in nanoseconds.
    #[must_use]
    pub fn time(self) -> u64 {
        let begun = Instant::now();
        self.work();
        begun.elapsed().as_nanos() as u64
    }
}

/// A measurement, and the time of the probe next to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The measured value.
    pub value: f64,
    /// Time of the probe next to it, in nanoseconds.
    pub probe_ns: u64,
}

/// Whether a measurement was undisturbed, if the probe next to it took `probe_ns` and the shortest
/// time of the probe is `shortest_ns`.
#[must_use]
pub fn is_undisturbed(probe_ns: u64, shortest_ns: u64) -> bool {
    probe_ns as f64 <= shortest_ns as f64 * NEAR
}

/// The values of the undisturbed measurements.
///
/// ```
/// use overhear_monitor::interference::{undisturbed, Measured};
///
/// let measured = |value, probe_ns| Measured { value, probe_ns };
/// let all = [measured(5.0, 1_000), measured(7.0, 1_400), measured(5.1, 1_010)];
/// assert_eq!(undisturbed(&all, 1_000), [5.0, 5.1]);
/// ```
#[must_use]
pub fn undisturbed(all: &[Measured], shortest_ns: u64) -> Vec<f64> {
    let calm = all
        .iter()
        .filter(|one| is_undisturbed(one.probe_ns, shortest_ns));
    calm.map(|one| one.value).collect()
}

/// The values of the quarter of measurements with the shortest probes, for machines that are always
/// disturbed.
#[must_use]
pub fn least_disturbed(all: &[Measured]) -> Vec<f64> {
    let mut sorted = all.to_vec();
    sorted.sort_by_key(|one| one.probe_ns);
    sorted.truncate(all.len().div_ceil(4));
    sorted.iter().map(|one| one.value).collect()
}

/// The middle one; not a number if there is none.
///
/// ```
/// use overhear_monitor::interference::median;
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
    use super::{least_disturbed, undisturbed, InterferenceProbe, Measured};

    #[test]
    fn measured_values_do_not_select_measurements() {
        // The dear ones are undisturbed here.
        let all: Vec<Measured> = (0..40)
            .map(|number| Measured {
                value: if number % 4 == 0 { 9.0 } else { 1.0 },
                probe_ns: if number % 4 == 0 { 1_000 } else { 1_300 },
            })
            .collect();
        assert_eq!(undisturbed(&all, 1_000), [9.0; 10]);
        assert_eq!(least_disturbed(&all), [9.0; 10]);
        assert_eq!(undisturbed(&all, 900), [0.0; 0]);
    }

    #[test]
    fn probe_has_steps_and_takes_time() {
        assert!(InterferenceProbe::with_length(10_000).steps() > 1);
        assert!(InterferenceProbe::new(100_000).time() > 0);
    }
}
