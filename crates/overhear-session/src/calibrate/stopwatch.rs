// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stopwatch that measures while the core is undisturbed.

use overhear_monitor::interference::{
    least_disturbed, median, InterferenceProbe, Measured, OrdinarySpeed,
};

/// Length of the interference probe before and after each measurement.
const PROBE_LENGTH_NS: u64 = 10_000;
/// Number of probes before the first measurement.
const INITIAL_PROBES: usize = 2_000;
/// Number of newest probes that determine the ordinary speed. They are from some ten seconds or
/// more, longer than disturbances last.
const KEPT_PROBES: usize = 100_000;
/// Number of undisturbed measurements after which a value is complete.
const SUFFICIENT_UNDISTURBED: usize = 9;
/// Minimum number of undisturbed measurements of a calm value.
const MIN_UNDISTURBED: usize = 3;
/// How long a stopwatch waits for a calm machine: the maximum number of measurements of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Patience(usize);

impl Patience {
    /// For a calibration, which may take minutes.
    pub(crate) const CALIBRATION: Self = Self(400);
    /// For a measurement at the start of a command, whose user waits: twice the number of
    /// measurements that a calm machine needs.
    pub(crate) const START: Self = Self(2 * SUFFICIENT_UNDISTURBED);
}

/// A median of measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Value {
    pub(super) ns: f64,
    /// Whether the core was undisturbed.
    pub(super) is_calm: bool,
}

/// Measures, and selects the undisturbed measurements by the ordinary speed of the core.
pub(super) struct Stopwatch {
    probe: InterferenceProbe,
    /// Times of the probe, the newest last.
    probes_ns: Vec<u64>,
    /// The ordinary speed in `probes_ns` at the last call of [`Self::update_speed`].
    speed: OrdinarySpeed,
    patience: Patience,
}

impl Stopwatch {
    /// A stopwatch for the CPU on which the calling thread runs.
    pub(super) fn new(patience: Patience) -> Self {
        let probe = InterferenceProbe::with_length(PROBE_LENGTH_NS);
        let probes_ns: Vec<u64> = (0..INITIAL_PROBES).map(|_| probe.time()).collect();
        let speed = OrdinarySpeed::of(&probes_ns).expect("there are trials");
        Self {
            probe,
            probes_ns,
            speed,
            patience,
        }
    }

    /// Determines the ordinary speed again, from the newest probes. Values that are compared with
    /// each other need the same speed, so this is called before each round, not before each value.
    pub(super) fn update_speed(&mut self) {
        let surplus = self.probes_ns.len().saturating_sub(KEPT_PROBES);
        drop(self.probes_ns.drain(..surplus));
        self.speed = OrdinarySpeed::of(&self.probes_ns).expect("there are trials");
    }

    /// Measures between two probes. The measurement should take less than a millisecond.
    pub(super) fn probed(&mut self, measure: impl FnOnce() -> f64) -> Measured {
        let before = self.probe.time();
        let value = measure();
        let after = self.probe.time();
        self.probes_ns.extend([before, after]);
        // A measurement is undisturbed if both probes were, so a disturbed one decides.
        let probe_ns = match [before, after].map(|ns| self.speed.contains(ns)) {
            [true, false] => after,
            [false, true] => before,
            _ => before.max(after),
        };
        Measured { value, probe_ns }
    }

    /// Measures until enough measurements were undisturbed, and returns their median. If the
    /// machine does not become calm, it is the median of the least disturbed ones.
    ///
    /// # Errors
    /// Those of a measurement.
    pub(super) fn value<E>(
        &mut self,
        mut measured: impl FnMut(&mut Self) -> Result<Measured, E>,
    ) -> Result<Value, E> {
        let (mut all, mut calm) = (Vec::new(), 0);
        while all.len() < self.patience.0 && calm < SUFFICIENT_UNDISTURBED {
            let one = measured(self)?;
            calm += usize::from(self.speed.contains(one.probe_ns));
            all.push(one);
        }
        let calm = self.speed.undisturbed(&all);
        let is_calm = calm.len() >= MIN_UNDISTURBED;
        let values = if is_calm { calm } else { least_disturbed(&all) };
        Ok(Value {
            ns: median(&values),
            is_calm,
        })
    }

    /// The same for a measurement that needs no preparation and cannot fail.
    pub(super) fn value_of(&mut self, mut measure: impl FnMut() -> f64) -> Value {
        let value = self
            .value(|stopwatch| Ok::<_, std::convert::Infallible>(stopwatch.probed(&mut measure)));
        match value {
            Ok(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_monitor::interference::{Measured, OrdinarySpeed};

    use super::{Patience, Stopwatch, SUFFICIENT_UNDISTURBED};

    const MOST: usize = Patience::CALIBRATION.0;

    /// The value, whether it is calm, and the number of measurements that it took. `probe_ns` is
    /// the time of the probe next to the nth measurement; 1000 ns is the ordinary speed.
    fn value(probe_ns: impl Fn(u64) -> u64) -> (f64, bool, usize) {
        value_with(Patience::CALIBRATION, probe_ns)
    }

    fn value_with(patience: Patience, probe_ns: impl Fn(u64) -> u64) -> (f64, bool, usize) {
        let mut stopwatch = Stopwatch {
            speed: OrdinarySpeed::of(&[1_000]).unwrap(),
            ..Stopwatch::new(patience)
        };
        let mut count = 0;
        let value = stopwatch.value(|_| {
            count += 1;
            let probe_ns = probe_ns(count);
            Ok::<_, ()>(Measured {
                value: probe_ns as f64 / 10.0,
                probe_ns,
            })
        });
        let value = value.unwrap();
        (value.ns, value.is_calm, count as usize)
    }

    #[test]
    fn stopwatch_waits_for_an_undisturbed_core() {
        assert_eq!(value(|_| 1_000), (100.0, true, SUFFICIENT_UNDISTURBED));
        assert_eq!(
            value(|nth| if nth % 3 == 0 { 1_000 } else { 1_400 }),
            (100.0, true, 3 * SUFFICIENT_UNDISTURBED)
        );
        // After the limit, the value is that of the least disturbed quarter.
        assert_eq!(value(|_| 1_300), (130.0, false, MOST));
        let (seldom, is_calm, count) = value(|nth| 1_200 + nth);
        assert_eq!((is_calm, count), (false, MOST));
        assert!(seldom < 126.0, "{seldom}");
    }

    #[test]
    fn start_of_a_command_does_not_wait_for_a_calm_machine() {
        let start = |probe_ns| value_with(Patience::START, |_| probe_ns);
        assert_eq!(start(1_000), (100.0, true, SUFFICIENT_UNDISTURBED));
        assert_eq!(start(1_300), (130.0, false, 2 * SUFFICIENT_UNDISTURBED));
    }

    #[test]
    fn fast_measurements_do_not_count() {
        assert_eq!(
            value(|nth| if nth % 2 == 0 { 1_000 } else { 840 }),
            (100.0, true, 2 * SUFFICIENT_UNDISTURBED)
        );
    }

    #[test]
    fn speed_follows_the_probes_of_measurements() {
        let mut stopwatch = Stopwatch::new(Patience::CALIBRATION);
        let more = stopwatch.probes_ns.len() + 1;
        stopwatch.probes_ns.extend(vec![1_000_000; more]);
        assert!(!stopwatch.speed.contains(1_000_000));
        stopwatch.update_speed();
        assert!(stopwatch.speed.contains(1_000_000));
    }
}
