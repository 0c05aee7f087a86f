// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measurements on an undisturbed core, which an interference probe detects.

use overhear_monitor::interference::{
    is_undisturbed, least_disturbed, median, undisturbed, InterferenceProbe, Measured,
};

/// Length of the interference probe, in nanoseconds. It runs before and after each measurement.
const PROBE_LENGTH_NS: u64 = 10_000;
/// Number of probes from which the shortest time is taken.
const INITIAL_PROBES: usize = 2_000;
/// Number of undisturbed measurements that are enough for a value.
const SUFFICIENT_UNDISTURBED: usize = 9;
/// Number of undisturbed measurements that a value needs at least.
const MIN_UNDISTURBED: usize = 3;
/// Limit of the measurements for a value.
const MAX_MEASUREMENTS: usize = 400;

/// The value of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Value {
    pub(super) ns: f64,
    /// Whether the core was undisturbed.
    pub(super) is_calm: bool,
}

/// Measures next to an interference probe.
pub(super) struct Stopwatch {
    probe: InterferenceProbe,
    /// Time of the probe on an undisturbed core.
    shortest_ns: u64,
}

impl Stopwatch {
    /// For the CPU on which the calling thread runs.
    pub(super) fn new() -> Self {
        let probe = InterferenceProbe::with_length(PROBE_LENGTH_NS);
        let trials = (0..INITIAL_PROBES).map(|_| probe.time());
        Self {
            probe,
            shortest_ns: trials.min().unwrap_or(u64::MAX),
        }
    }

    /// Measures between two probes. The measurement should take less than a millisecond.
    pub(super) fn probed(&mut self, measure: impl FnOnce() -> f64) -> Measured {
        let before = self.probe.time();
        let value = measure();
        let after = self.probe.time();
        self.shortest_ns = self.shortest_ns.min(before).min(after);
        Measured {
            value,
            probe_ns: before.max(after),
        }
    }

    /// Measures until enough measurements were undisturbed, and returns their median; if there are
    /// too few, the median of the least disturbed ones.
    ///
    /// # Errors
    /// Those of a measurement.
    pub(super) fn value<E>(
        &mut self,
        mut measured: impl FnMut(&mut Self) -> Result<Measured, E>,
    ) -> Result<Value, E> {
        let (mut all, mut calm) = (Vec::new(), 0);
        while all.len() < MAX_MEASUREMENTS && calm < SUFFICIENT_UNDISTURBED {
            let one = measured(self)?;
            calm += usize::from(is_undisturbed(one.probe_ns, self.shortest_ns));
            all.push(one);
        }
        let calm = undisturbed(&all, self.shortest_ns);
        let is_calm = calm.len() >= MIN_UNDISTURBED;
        let values = if is_calm { calm } else { least_disturbed(&all) };
        Ok(Value {
            ns: median(&values),
            is_calm,
        })
    }

    /// As [`Stopwatch::value`], for a measurement without preparation that cannot fail.
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
    use overhear_monitor::interference::Measured;

    use super::{Stopwatch, MAX_MEASUREMENTS, SUFFICIENT_UNDISTURBED};

    /// The value, whether it is calm, and the number of measurements, if the probe of the nth
    /// measurement takes `probe_ns(n)`.
    fn value(probe_ns: impl Fn(u64) -> u64) -> (f64, bool, usize) {
        let mut stopwatch = Stopwatch {
            shortest_ns: 1_000,
            ..Stopwatch::new()
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
        assert_eq!(value(|_| 1_300), (130.0, false, MAX_MEASUREMENTS));
        let (seldom, is_calm, count) = value(|nth| 1_200 + nth);
        assert_eq!((is_calm, count), (false, MAX_MEASUREMENTS));
        assert!(seldom < 126.0, "{seldom}");
    }
}
