// SPDX-License-Identifier: MIT OR Apache-2.0
//! Accounts of sensors that have ended, in bounded memory.

use super::report::BudgetSensor;

/// Sensors that have ended and have an account of their own.
const MAX_ENDED: usize = 512;

/// What ended sensors wrote and cost. The dearest have an account of their own, the others one
/// together.
#[derive(Debug, Default)]
pub(super) struct EndedSensors {
    own: Vec<BudgetSensor>,
    /// Number of sensors in `others`.
    joined: u64,
    others: Option<BudgetSensor>,
}

impl EndedSensors {
    pub(super) fn add(&mut self, sensor: BudgetSensor) {
        self.own.push(sensor);
        // Sorting half of them at a time costs each sensor little.
        if self.own.len() >= 2 * MAX_ENDED {
            let dearest =
                |one: &BudgetSensor, other: &BudgetSensor| other.cost_ns.total_cmp(&one.cost_ns);
            self.own.sort_by(dearest);
            let cheapest = self.own.split_off(MAX_ENDED);
            cheapest.into_iter().for_each(|sensor| self.join(sensor));
        }
    }

    fn join(&mut self, sensor: BudgetSensor) {
        self.joined += 1;
        let Some(all) = &mut self.others else {
            self.others = Some(sensor);
            return;
        };
        all.written = all.written.saturating_add(sensor.written);
        all.skipped = all
            .skipped
            .zip(sensor.skipped)
            .map(|(one, other)| one.saturating_add(other));
        all.cost_ns += sensor.cost_ns;
        all.cost_error_ns = all.cost_error_ns.hypot(sensor.cost_error_ns);
    }

    /// The accounts.
    pub(super) fn accounts(&self) -> Vec<BudgetSensor> {
        let mut all = self.own.clone();
        if let Some(others) = &self.others {
            let each = |sum_ns: f64| sum_ns / (others.written.max(1) as f64);
            let writes = others.skipped.map(|it| it.saturating_add(others.written));
            let writes = writes.filter(|all| *all > 0);
            let name = match self.joined {
                1 => others.name.clone(),
                more => format!("{more} sensors that have ended"),
            };
            all.push(BudgetSensor {
                name,
                share_on: writes.map(|all| others.written as f64 / all as f64),
                price_ns: each(others.cost_ns),
                price_error_ns: each(others.cost_error_ns),
                ..others.clone()
            });
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::{EndedSensors, MAX_ENDED};
    use crate::budget::BudgetSensor;

    #[test]
    fn sums_stay_exact_in_bounded_memory() {
        let mut ended = EndedSensors::default();
        let number = 10_000_u64;
        for index in 0..number {
            ended.add(BudgetSensor {
                name: format!("program({index})/brief"),
                written: 100,
                skipped: Some(300),
                share_on: Some(0.25),
                cost_ns: if index == 77 { 5_000.0 } else { 1_000.0 },
                cost_error_ns: 10.0,
                price_ns: 10.0,
                price_error_ns: 0.1,
            });
        }
        let accounts = ended.accounts();
        assert!(accounts.len() <= 2 * MAX_ENDED);
        let written: u64 = accounts.iter().map(|it| it.written).sum();
        let skipped: u64 = accounts.iter().map(|it| it.skipped.unwrap()).sum();
        let cost_ns: f64 = accounts.iter().map(|it| it.cost_ns).sum();
        assert_eq!((written, skipped), (100 * number, 300 * number));
        assert_eq!(cost_ns, 1_000.0 * number as f64 + 4_000.0);
        // The dearest keeps its account.
        assert!(accounts.iter().any(|it| it.name == "program(77)/brief"));
        let others = accounts.last().unwrap();
        let joined = number - (accounts.len() as u64 - 1);
        assert_eq!(others.name, format!("{joined} sensors that have ended"));
        assert_eq!(others.share_on, Some(0.25));
        assert_eq!(others.price_ns, 10.0);
    }
}
