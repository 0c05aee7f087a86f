// SPDX-License-Identifier: MIT OR Apache-2.0
//! Measures while the core is undisturbed.

use overhear_monitor::interference::{
    is_undisturbed, least_disturbed, median, undisturbed, InterferenceProbe, Measured,
};

/// How long the yardstick is, in nanoseconds. It stands on both sides of each measurement.
const LENGTH_NS: u64 = 10_000;
/// How often it is laid to find out how short it can be.
const TRIALS: usize = 2_000;
/// So many undisturbed measurements are enough for a value.
const ENOUGH: usize = 9;
/// So many make a value if it takes too long to find enough.
const FEW: usize = 3;
/// Longer than this a value is not sought.
const MOST: usize = 400;

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Value {
    pub(super) ns: f64,
    /// Whether the core was undisturbed.
    pub(super) is_calm: bool,
}

/// Knows how long the yardstick takes on an undisturbed core.
pub(super) struct Stopwatch {
    yardstick: InterferenceProbe,
    shortest_ns: u64,
}

impl Stopwatch {
    /// For the CPU on which the calling thread runs.
    pub(super) fn new() -> Self {
        let yardstick = InterferenceProbe::with_length(LENGTH_NS);
        let trials = (0..TRIALS).map(|_| yardstick.time());
        Self {
            yardstick,
            shortest_ns: trials.min().unwrap_or(u64::MAX),
        }
    }

    /// Something that is measured between two yardsticks. It should take less than a millisecond.
    pub(super) fn beside(&mut self, measure: impl FnOnce() -> f64) -> Measured {
        let before = self.yardstick.time();
        let value = measure();
        let after = self.yardstick.time();
        self.shortest_ns = self.shortest_ns.min(before).min(after);
        Measured {
            value,
            probe_ns: before.max(after),
        }
    }

    /// Measures until it was undisturbed often enough, and returns the median of what was measured
    /// then; of what was least disturbed if the machine does not keep still.
    ///
    /// # Errors
    /// Those of a measurement.
    pub(super) fn value<E>(
        &mut self,
        mut measured: impl FnMut(&mut Self) -> Result<Measured, E>,
    ) -> Result<Value, E> {
        let (mut all, mut calm) = (Vec::new(), 0);
        while all.len() < MOST && calm < ENOUGH {
            let one = measured(self)?;
            calm += usize::from(is_undisturbed(one.probe_ns, self.shortest_ns));
            all.push(one);
        }
        let calm = undisturbed(&all, self.shortest_ns);
        let is_calm = calm.len() >= FEW;
        let values = if is_calm { calm } else { least_disturbed(&all) };
        Ok(Value {
            ns: median(&values),
            is_calm,
        })
    }

    /// The same of something that takes no preparation and cannot fail.
    pub(super) fn value_of(&mut self, mut measure: impl FnMut() -> f64) -> Value {
        let value = self
            .value(|stopwatch| Ok::<_, std::convert::Infallible>(stopwatch.beside(&mut measure)));
        match value {
            Ok(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_monitor::interference::Measured;

    use super::{Stopwatch, ENOUGH, MOST};

    /// The value, and how many measurements it took, where the yardstick takes so long beside the
    /// nth.
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
        assert_eq!(value(|_| 1_000), (100.0, true, ENOUGH));
        assert_eq!(
            value(|nth| if nth % 3 == 0 { 1_000 } else { 1_400 }),
            (100.0, true, 3 * ENOUGH)
        );
        // Not for ever: then the best quarter has to do.
        assert_eq!(value(|_| 1_300), (130.0, false, MOST));
        let (seldom, is_calm, count) = value(|nth| 1_200 + nth);
        assert_eq!((is_calm, count), (false, MOST));
        assert!(seldom < 126.0, "{seldom}");
    }
}
