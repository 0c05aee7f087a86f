// SPDX-License-Identifier: MIT OR Apache-2.0
//! An interference probe: work of constant length on an undisturbed core. It distinguishes
//! disturbed measurements from others without using their values.
//!
//! If two CPUs share a core, work on one slows the other down; on a virtual machine the neighbour
//! may be invisible. Disturbances come and go within milliseconds. Some cores also run at a faster
//! clock for a moment. So measurements are made short, the probe is timed next to each, and a
//! measurement is valid if the probe ran at the ordinary speed of the core. The measured values do
//! not select the measurements, as a low quantile would, so states of different variance can be
//! compared.

use std::hint::black_box;
use std::time::Instant;

/// Ratio of the longest to the shortest time of the probe at one speed of the core. It is above the
/// grain of clocks, and far below the slow-down of a shared core, about a third.
const SPREAD: f64 = 1.03;

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

/// The range of the probe's time at the ordinary speed of the core. A measurement is undisturbed if
/// the probe next to it took a time in this range. Measurements are comparable if one range selects
/// them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrdinarySpeed {
    shortest_ns: u64,
    longest_ns: u64,
}

impl OrdinarySpeed {
    /// The range of relative width 3 % that contains most of these times of the probe; of several
    /// such ranges the fastest. `None` if there is no time.
    ///
    /// This is the mode, and not a range at the shortest time: a core that runs at a faster clock
    /// once in a thousand times would make all other measurements disturbed.
    #[must_use]
    pub fn of(probes_ns: &[u64]) -> Option<Self> {
        let mut sorted = probes_ns.to_vec();
        sorted.sort_unstable();
        let mut densest = None;
        let (mut end, mut most) = (0, 0);
        for (begin, &shortest_ns) in sorted.iter().enumerate() {
            let longest_ns = (shortest_ns as f64 * SPREAD) as u64;
            while sorted.get(end).is_some_and(|ns| *ns <= longest_ns) {
                end += 1;
            }
            if end - begin > most {
                most = end - begin;
                densest = Some(Self {
                    shortest_ns,
                    longest_ns,
                });
            }
        }
        densest
    }

    /// Whether a measurement was undisturbed, if the probe next to it took `probe_ns`.
    ///
    /// ```
    /// use overhear_monitor::interference::OrdinarySpeed;
    ///
    /// let speed = OrdinarySpeed::of(&[860, 1_000, 1_010, 1_020, 1_400]).unwrap();
    /// assert!(speed.contains(1_005));
    /// assert!(!speed.contains(860) && !speed.contains(1_400));
    /// ```
    #[must_use]
    pub const fn contains(&self, probe_ns: u64) -> bool {
        self.shortest_ns <= probe_ns && probe_ns <= self.longest_ns
    }

    /// The values of the undisturbed measurements.
    #[must_use]
    pub fn undisturbed(&self, all: &[Measured]) -> Vec<f64> {
        let undisturbed = all.iter().filter(|one| self.contains(one.probe_ns));
        undisturbed.map(|one| one.value).collect()
    }
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
    use super::{least_disturbed, InterferenceProbe, Measured, OrdinarySpeed};

    /// The number of times in the range of the ordinary speed, and its shortest time.
    fn ordinary(probes_ns: &[u64]) -> (usize, u64) {
        let speed = OrdinarySpeed::of(probes_ns).unwrap();
        let inside = probes_ns.iter().filter(|ns| speed.contains(**ns));
        (inside.count(), speed.shortest_ns)
    }

    #[test]
    fn measured_values_do_not_select_measurements() {
        // The dear ones are undisturbed here.
        let all: Vec<Measured> = (0..40)
            .map(|number| Measured {
                value: if number % 4 == 0 { 9.0 } else { 1.0 },
                probe_ns: if number % 4 == 0 {
                    1_000
                } else {
                    1_300 + 50 * number
                },
            })
            .collect();
        let probes_ns: Vec<u64> = all.iter().map(|one| one.probe_ns).collect();
        let speed = OrdinarySpeed::of(&probes_ns).unwrap();
        assert_eq!(speed.undisturbed(&all), [9.0; 10]);
        assert_eq!(least_disturbed(&all), [9.0; 10]);
    }

    #[test]
    fn fast_outlier_does_not_move_the_ordinary_speed() {
        let mut probes_ns: Vec<u64> = (0..1_000).map(|number| 1_000 + number % 20).collect();
        assert_eq!(ordinary(&probes_ns), (1_000, 1_000));
        probes_ns.push(840);
        assert_eq!(ordinary(&probes_ns), (1_000, 1_000));
    }

    #[test]
    fn more_frequent_one_of_two_speeds_is_ordinary() {
        let at = |count: u64, from_ns: u64| (0..count).map(move |number| from_ns + number % 10);
        let mostly_slow: Vec<u64> = at(40, 1_000).chain(at(60, 1_300)).collect();
        assert_eq!(ordinary(&mostly_slow), (60, 1_300));
        let mostly_fast: Vec<u64> = at(60, 1_000).chain(at(40, 1_300)).collect();
        assert_eq!(ordinary(&mostly_fast), (60, 1_000));
        // The faster one if both are as frequent, in any order of the times.
        let both: Vec<u64> = at(50, 1_300).chain(at(50, 1_000)).collect();
        assert_eq!(ordinary(&both), (50, 1_000));
    }

    #[test]
    fn no_range_contains_many_times_of_a_disturbed_core() {
        let probes_ns: Vec<u64> = (0..1_000).map(|number| 1_000 + 5 * number).collect();
        let (inside, _) = ordinary(&probes_ns);
        assert!(inside < 40, "{inside}");
        assert_eq!(OrdinarySpeed::of(&[]), None);
    }

    #[test]
    fn probe_has_steps_and_takes_time() {
        assert!(InterferenceProbe::with_length(10_000).steps() > 1);
        assert!(InterferenceProbe::new(100_000).time() > 0);
    }
}
