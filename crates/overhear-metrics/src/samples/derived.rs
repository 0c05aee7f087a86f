// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ratios of counts: instructions per cycle, misses per thousand instructions, shares of time.

use overhear_event::SampledQuantity;

/// The ratios that the quantities of a sampler permit.
#[derive(Clone, Debug, Default)]
pub struct Derived {
    cycles: Option<usize>,
    instructions: Option<usize>,
    /// Quantities that count misses.
    misses: Vec<usize>,
    /// Counts of nanoseconds.
    times: Vec<usize>,
}

impl Derived {
    /// The ratios of these quantities.
    #[must_use]
    pub fn of(quantities: &[SampledQuantity]) -> Self {
        let named = |name: &str| {
            let mut all = quantities.iter();
            all.position(|quantity| quantity.is_count() && quantity.name == name)
        };
        let counts = |condition: &dyn Fn(&SampledQuantity) -> bool| {
            let all = quantities.iter().enumerate();
            let found = all.filter(|(_, quantity)| quantity.is_count() && condition(quantity));
            found.map(|(index, _)| index).collect()
        };
        Self {
            cycles: named("cycles"),
            instructions: named("instructions"),
            misses: counts(&|quantity| quantity.name.split('_').any(|word| word == "misses")),
            times: counts(&|quantity| quantity.unit == "ns"),
        }
    }

    /// Instructions per cycle; `counts` returns the count of a quantity, if there is one.
    #[must_use]
    pub fn ipc(&self, counts: impl Fn(usize) -> Option<f64>) -> Option<f64> {
        ratio(counts(self.instructions?)?, counts(self.cycles?)?)
    }

    /// Misses per thousand instructions, for a quantity that counts misses.
    #[must_use]
    pub fn per_thousand_instructions(
        &self,
        quantity: usize,
        counts: impl Fn(usize) -> Option<f64>,
    ) -> Option<f64> {
        let thousands = counts(self.instructions?)? / 1_000.0;
        let misses = counts(quantity).filter(|_| self.misses.contains(&quantity))?;
        ratio(misses, thousands)
    }

    /// The share of the duration, for a count of nanoseconds. It may exceed 1, for a process with
    /// several threads.
    #[must_use]
    pub fn share(
        &self,
        quantity: usize,
        duration_ns: u64,
        counts: impl Fn(usize) -> Option<f64>,
    ) -> Option<f64> {
        let time = counts(quantity).filter(|_| self.times.contains(&quantity))?;
        ratio(time, duration_ns as f64)
    }

    /// The quantities that count misses, if instructions are counted, too.
    pub(super) fn judged_misses(&self) -> &[usize] {
        match self.instructions {
            Some(_) => &self.misses,
            None => &[],
        }
    }

    /// Whether instructions and cycles are counted.
    pub(super) const fn has_ipc(&self) -> bool {
        self.cycles.is_some() && self.instructions.is_some()
    }
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}
