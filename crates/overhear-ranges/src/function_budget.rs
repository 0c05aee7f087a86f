// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget of a process: which share of its passes each function may record.
//!
//! Counts and prices go in, allowances come out, once per round. The law is that of
//! [`overhear_budget::Budget`]: each function that has run is a source, and its units are passes.

use overhear_budget::{
    exploration, Budget, BudgetCosts, BudgetError, EventPrice, Overhead, ShareLimit, SourceCount,
    SourceId, SourceSetting, SourceSpec, ThreadKey, TickInput, UnitCount,
};
use overhear_event::{Nanos, Timestamp};

/// A price that moves by less than this part of itself is not refined.
const PRICE_STEP: f64 = 1e-3;

/// Contribution of a price's error to the error of the whole, relative to the target, below which
/// the price is not refined: pairs would cost more than the function itself.
const KNOWN_ENOUGH: f64 = 0.005;
/// Longest monitored stretch between two pairs of such a function, in lengths of a stretch.
const UNEXPLORED_GAP: f64 = 300.0;

/// What is known of a function at the time of a round. Counts are totals of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation {
    /// Updates recorded.
    pub updates: u64,
    /// Monitored passes.
    pub monitored: u64,
    /// All passes.
    pub passes: u64,
    /// Whether a stretch stopped recording at its burst cap since the last round.
    pub is_capped: bool,
    /// Pairs of stretches behind the price.
    pub pairs: f64,
}

/// What a function may do until the next round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Allowance {
    /// Share of the passes to monitor.
    pub share: f64,
    /// Updates that all threads together may record until the next round.
    pub burst: u64,
    /// Longest monitored stretch between two pairs, in lengths of a stretch of a pair.
    pub monitored_gap: f64,
}

/// What the process has used by the time of a round. All are totals.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Time of the round, by the monotonic clock.
    pub now_ns: u64,
    /// CPU time of the process, with everything that observes it.
    pub cpu_ns: u64,
    /// CPU time of the control thread, of the slow path and of the checks of passes.
    pub own_ns: u64,
}

/// A function: a source of the budget from its first pass on.
#[derive(Clone, Copy, Debug, Default)]
struct Function {
    source: Option<SourceId>,
    price: Option<EventPrice>,
    seen: Observation,
    allowance: Option<Allowance>,
}

/// A budget whose sources are functions.
#[derive(Clone, Debug)]
pub struct FunctionBudget {
    budget: Budget,
    target: Overhead,
    functions: Vec<Function>,
    counts: Vec<SourceCount>,
    usage: Usage,
}

impl FunctionBudget {
    /// For a target over the program's own time, and the base overhead of the plain copies.
    ///
    /// # Errors
    /// [`BudgetError`].
    pub fn new(target: Overhead, base: Overhead) -> Result<Self, BudgetError> {
        let mut budget = Budget::new(target, Budget::DEFAULT_WINDOW)?;
        budget.set_base(base);
        Ok(Self {
            budget,
            target,
            functions: Vec::new(),
            counts: Vec::new(),
            usage: Usage::default(),
        })
    }

    /// The costs of the whole run.
    #[must_use]
    pub fn costs(&self) -> BudgetCosts {
        self.budget.costs()
    }

    /// Part of the CPU time that a function would cost if all of it were recorded.
    #[must_use]
    pub fn demand(&self, function: usize) -> f64 {
        let source = self.functions.get(function).and_then(|it| it.source);
        source
            .and_then(|source| self.budget.demand(source))
            .unwrap_or(0.0)
    }

    /// What a function may do; `None` until it has run.
    #[must_use]
    pub fn allowance(&self, function: usize) -> Option<Allowance> {
        self.functions.get(function)?.allowance
    }

    /// Sets the price of a function's update: the newest measurement re-evaluates the past.
    pub fn set_price(&mut self, function: usize, price: EventPrice) {
        self.grow(function + 1);
        let Some(entry) = self.functions.get_mut(function) else {
            return;
        };
        let is_near = entry.price.is_some_and(|known| {
            let step = PRICE_STEP * known.as_ns();
            (known.as_ns() - price.as_ns()).abs() <= step
                && (known.error_ns() - price.error_ns()).abs() <= step
        });
        if is_near {
            return;
        }
        entry.price = Some(price);
        if let Some(source) = entry.source {
            self.budget.refine_price(source, price);
        }
    }

    fn grow(&mut self, functions: usize) {
        if functions > self.functions.len() {
            self.functions.resize_with(functions, Function::default);
        }
    }

    /// One round: `observations` in the order of the functions. Functions without a price, and
    /// those that have not run, are no sources yet.
    pub fn round(&mut self, usage: Usage, observations: &[Observation]) {
        self.grow(observations.len());
        self.usage = Usage {
            now_ns: usage.now_ns.max(self.usage.now_ns),
            cpu_ns: usage.cpu_ns.max(self.usage.cpu_ns),
            own_ns: usage.own_ns.max(self.usage.own_ns),
        };
        self.counts.clear();
        for (entry, now) in self.functions.iter_mut().zip(observations) {
            if now.passes == 0 && now.updates == 0 {
                continue;
            }
            let Some(price) = entry.price else { continue };
            if entry.source.is_none() {
                entry.source = self
                    .budget
                    .add(SourceSpec::new("", price).saves_for_phases())
                    .ok();
            }
            let Some(source) = entry.source else { continue };
            // Words of running threads are read one after the other: a total can seem to fall.
            let passes = now.passes.max(entry.seen.passes);
            entry.seen = Observation {
                updates: now.updates.max(entry.seen.updates),
                monitored: now.monitored.max(entry.seen.monitored).min(passes),
                passes,
                ..*now
            };
            self.counts.push(SourceCount {
                source,
                thread: ThreadKey::PROCESS,
                events: entry.seen.updates,
                units: Some(UnitCount {
                    on: entry.seen.monitored,
                    all: entry.seen.passes,
                }),
                is_capped: now.is_capped,
            });
        }
        let outcome = self.budget.tick(&TickInput {
            now: Timestamp::from_monotonic_ns(self.usage.now_ns),
            cpu: Nanos::from_ns(self.usage.cpu_ns),
            own_cpu: Nanos::from_ns(self.usage.own_ns),
            counts: &self.counts,
        });
        // Totals do not fall, so there is always an outcome; without one, allowances stay.
        let Ok(outcome) = outcome else { return };
        let settings = outcome.settings.to_vec();
        self.allow(&settings);
    }

    fn allow(&mut self, settings: &[SourceSetting]) {
        let all_on = settings.iter().all(|it| it.limit == ShareLimit::None);
        // Half of the surplus that can be saved.
        let window_ns = Budget::DEFAULT_WINDOW.as_ns() as f64;
        let is_saved =
            -self.budget.costs().debt_ns > self.target.monitoring_share() * window_ns / 8.0;
        for entry in &mut self.functions {
            let (Some(source), Some(price)) = (entry.source, entry.price) else {
                continue;
            };
            // Sources are never removed: their indices are places in the settings.
            let Some(setting) = settings.get(source.index()) else {
                continue;
            };
            // Contribution of the error of this price to the error of the whole.
            let cost = self.budget.demand(source).unwrap_or(0.0) * setting.share;
            let doubt = cost * price.error_ns()
                / price.as_ns().max(1e-9)
                / self.target.monitoring_share().max(1e-9);
            entry.allowance = Some(Allowance {
                share: setting.share,
                burst: setting.burst_cap.unwrap_or(u64::MAX / 4),
                monitored_gap: if doubt < KNOWN_ENOUGH {
                    UNEXPLORED_GAP
                } else {
                    exploration(entry.seen.pairs as u64, doubt, all_on || is_saved)
                },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FunctionBudget, Observation, Usage};
    use overhear_budget::{EventPrice, Overhead};

    fn budget(target: f64, functions: usize) -> FunctionBudget {
        let target = Overhead::from_overhead(target).unwrap();
        let none = Overhead::from_overhead(0.0).unwrap();
        let mut budget = FunctionBudget::new(target, none).unwrap();
        for function in 0..functions {
            budget.set_price(function, EventPrice::from_ns(1.0, 0.01).unwrap());
        }
        budget
    }

    /// Runs a program of functions with these demands for 5 s of CPU time; returns the overhead in
    /// the last 4 s over its own time.
    fn overhead(target: f64, demands: &[f64]) -> f64 {
        let mut budget = budget(target, demands.len());
        let mut seen = vec![
            Observation {
                pairs: 5000.0,
                ..Observation::default()
            };
            demands.len()
        ];
        let (mut cpu, mut cost, mut from) = (0.0, 0.0, (0.0, 0.0));
        for round in 0..500_u64 {
            let plain = 10e6;
            let mut spent = 0.0;
            for (index, demand) in demands.iter().enumerate() {
                let allowance = budget.allowance(index);
                let share = allowance.map_or(0.5, |it| it.share);
                let most = allowance.map_or(1e4, |it| it.burst as f64);
                let updates = (plain * demand * share).min(most).floor();
                seen[index].updates += updates as u64;
                seen[index].monitored += (share * 1000.0) as u64;
                seen[index].passes += 1000;
                spent += updates;
            }
            cpu += plain + spent;
            cost += spent;
            if round == 100 {
                from = (cpu, cost);
            }
            let usage = Usage {
                now_ns: round * 10_000_000,
                cpu_ns: cpu as u64,
                own_ns: 0,
            };
            budget.round(usage, &seen);
        }
        let cost = cost - from.1;
        cost / (cpu - from.0 - cost)
    }

    #[test]
    fn overhead_meets_target_with_five_sixty_and_four_hundred_functions() {
        for functions in [5, 60, 400] {
            for target in [0.02, 0.1, 0.5] {
                let demands = vec![3.0 / f64::from(functions); functions as usize];
                let seen = overhead(target, &demands);
                assert!(
                    (seen - target).abs() < 0.01,
                    "{functions}, {target}: {seen}"
                );
            }
        }
    }

    #[test]
    fn everything_is_observed_if_it_costs_less_than_the_target() {
        let seen = overhead(0.5, &[0.1, 0.2]);
        assert!((seen - 0.3).abs() < 0.01, "{seen}");
    }

    #[test]
    fn counts_that_seem_to_fall_do_not_stop_control() {
        let mut budget = budget(0.1, 1);
        let mut usage = Usage {
            now_ns: 10_000_000,
            cpu_ns: 10_000_000,
            own_ns: 1000,
        };
        let mut seen = Observation {
            updates: 5_000_000,
            monitored: 500,
            passes: 1000,
            ..Observation::default()
        };
        budget.round(usage, &[seen]);
        let before = budget.allowance(0).unwrap();
        usage.own_ns = 900;
        seen.monitored = 499;
        seen.passes = 998;
        for round in 1..200 {
            usage.now_ns += 10_000_000;
            usage.cpu_ns += 10_000_000;
            seen.passes += if round > 1 { 1000 } else { 0 };
            budget.round(usage, &[seen]);
        }
        // Nothing was recorded in the meantime, so the debt is paid.
        assert!(before.share < 0.1, "{before:?}");
        assert!(budget.allowance(0).unwrap().share > before.share);
    }

    #[test]
    fn function_is_a_source_from_its_first_pass_on() {
        let mut budget = budget(0.1, 2);
        let ran = Observation {
            updates: 10,
            monitored: 10,
            passes: 10,
            ..Observation::default()
        };
        let usage = Usage {
            now_ns: 1,
            cpu_ns: 1_000_000,
            own_ns: 0,
        };
        budget.round(usage, &[ran, Observation::default()]);
        assert!(budget.allowance(0).is_some());
        assert_eq!(budget.allowance(1), None);
    }
}
