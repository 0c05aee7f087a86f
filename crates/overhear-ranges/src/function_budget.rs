// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control law: which share of its passes each function may record.
//!
//! Counts and prices go in, shares come out, once per round. What was spent is evaluated anew in
//! each round with the newest prices, over the whole run. Debt is paid in full; unspent budget is
//! carried over for 0.2 s of CPU time only. The budget of a round is shared by water filling: every
//! function gets what it needs, up to a common level. All memory ages in CPU time, so that a
//! program that sleeps forgets nothing.

/// Unspent budget is carried over for this CPU time, and debt is paid back in it.
const HORIZON_NS: f64 = 0.2e9;
/// Demands are averaged over this CPU time.
const DEMAND_NS: f64 = 0.3e9;
/// Debt never takes more than this part of the budget away, so that control does not go blind.
const LEAST_PART: f64 = 0.05;
/// A function may spend twice its level in one round, and has saved at most so much time.
const BURST_NS: f64 = 2e6;
/// Pairs after which a function whose share is above one half explores less.
const EXPLORED_PAIRS: f64 = 1000.0;

/// What is known of a function at the time of a round. Counts are totals of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation {
    /// Updates recorded.
    pub updates: f64,
    /// Monitored passes.
    pub monitored: f64,
    /// All passes.
    pub passes: f64,
    /// Nanoseconds for each update.
    pub price_ns: f64,
    /// Standard error of the price.
    pub price_error_ns: f64,
    /// Pairs behind the price.
    pub pairs: f64,
}

/// What a function may do until the next round.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Share of the passes to monitor.
    pub share: f64,
    /// Updates that may be recorded until the next round.
    pub burst: f64,
    /// Longest monitored stretch between two pairs, in lengths of a stretch of a pair.
    pub monitored_gap: f64,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            share: 0.5,
            burst: 0.0,
            monitored_gap: 1.0,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Source {
    last: Observation,
    // Averages of updates, monitored passes and passes for each round.
    updates: f64,
    monitored: f64,
    passes: f64,
    demand: f64,
    saved: f64,
    allowance: Allowance,
}

/// What the process has used by the time of a round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time of the process, with everything that observes it.
    pub cpu_ns: f64,
    /// CPU time of the control thread.
    pub control_ns: f64,
    /// Time in the slow path.
    pub slow_path_ns: f64,
}

/// The law with its memory.
#[derive(Clone, Debug)]
pub struct Law {
    /// Share of the CPU time that may be overhead: T / (1 + T) for a target T over the plain time.
    share: f64,
    base: f64,
    sources: Vec<Source>,
    last_cpu_ns: f64,
    averaged_cpu_ns: f64,
    updates_ns: f64,
    machinery_ns: f64,
    level: f64,
}

impl Law {
    /// For a target over the program's own time, and a base cost of the plain copies.
    #[must_use]
    pub fn new(target: f64, base: f64) -> Self {
        Self {
            share: target / (1.0 + target),
            base,
            sources: Vec::new(),
            last_cpu_ns: 0.0,
            averaged_cpu_ns: 0.0,
            updates_ns: 0.0,
            machinery_ns: 0.0,
            level: 1.0,
        }
    }

    /// Makes room for this many functions. New ones have nothing spent.
    pub fn grow(&mut self, functions: usize) {
        if functions > self.sources.len() {
            self.sources.resize_with(functions, Source::default);
        }
    }

    /// The estimated cost of all recorded updates.
    #[must_use]
    pub const fn updates_ns(&self) -> f64 {
        self.updates_ns
    }

    /// The estimated cost of the base, the slow path and the control thread.
    #[must_use]
    pub const fn machinery_ns(&self) -> f64 {
        self.machinery_ns
    }

    /// Part of the CPU time that a function would cost if all of it were recorded.
    #[must_use]
    pub fn demand(&self, function: usize) -> f64 {
        self.sources
            .get(function)
            .map_or(0.0, |source| source.demand)
    }

    /// What a function may do.
    #[must_use]
    pub fn allowance(&self, function: usize) -> Allowance {
        self.sources
            .get(function)
            .map_or_else(Allowance::default, |source| source.allowance)
    }

    /// One round: `observations` in the order of the functions.
    pub fn round(&mut self, usage: Usage, observations: &[Observation]) {
        self.grow(observations.len());
        let elapsed = (usage.cpu_ns - self.last_cpu_ns).max(0.0);
        self.last_cpu_ns = usage.cpu_ns;
        let keep = (-elapsed / DEMAND_NS).exp();
        self.averaged_cpu_ns = self.averaged_cpu_ns * keep + elapsed;
        self.updates_ns = observations.iter().map(|o| o.updates * o.price_ns).sum();
        let work = usage.slow_path_ns + usage.control_ns;
        // The base is a part of the plain time, not of the time with everything.
        let plain = (usage.cpu_ns - self.updates_ns - work).max(0.0) / (1.0 + self.base);
        self.machinery_ns = work + self.base * plain;

        let surplus = self.share * usage.cpu_ns - self.updates_ns - self.machinery_ns;
        let capped = surplus.min(HORIZON_NS * self.share);
        let running = self.share - self.machinery_ns / (usage.cpu_ns + 1.0);
        let budget = (running + capped / HORIZON_NS)
            .min(2.0 * self.share)
            .max(LEAST_PART * self.share);

        for (source, now) in self.sources.iter_mut().zip(observations) {
            source.age(now, keep, self.averaged_cpu_ns);
        }
        self.level = self.water_level(budget);
        let is_unspent = self.level >= 1.0 || surplus > 0.5 * HORIZON_NS * self.share;
        for (source, now) in self.sources.iter_mut().zip(observations) {
            source.allow(now, self.level, elapsed, self.share, is_unspent);
        }
    }

    /// The level x at which the sum of min(demand, x) is the budget; 1 if all demands fit.
    fn water_level(&self, budget: f64) -> f64 {
        let sum: f64 = self.sources.iter().map(|source| source.demand).sum();
        if sum <= budget {
            return 1.0;
        }
        let (mut low, mut high) = (0.0, 1.0_f64.max(budget));
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            let filled: f64 = self
                .sources
                .iter()
                .map(|source| source.demand.min(middle))
                .sum();
            if filled > budget {
                high = middle;
            } else {
                low = middle;
            }
        }
        low
    }
}

impl Source {
    fn age(&mut self, now: &Observation, keep: f64, cpu_ns: f64) {
        self.updates = self.updates * keep + (now.updates - self.last.updates).max(0.0);
        self.monitored = self.monitored * keep + (now.monitored - self.last.monitored).max(0.0);
        self.passes = self.passes * keep + (now.passes - self.last.passes).max(0.0);
        let all = if self.monitored > 0.5 {
            (self.updates / self.monitored * self.passes).max(self.updates)
        } else {
            self.updates
        };
        // A millisecond more: right after the start a function is not all of the program.
        self.demand = all * now.price_ns / (cpu_ns + 1e6);
    }

    fn allow(&mut self, now: &Observation, level: f64, elapsed: f64, part: f64, is_unspent: bool) {
        let spent = (now.updates - self.last.updates).max(0.0) * now.price_ns;
        self.last = *now;
        let most = BURST_NS + HORIZON_NS * level;
        self.saved = if level >= 1.0 {
            most
        } else {
            (self.saved + 2.0 * level * elapsed - spent).min(most)
        };
        let share = if self.demand > level {
            level / self.demand
        } else {
            1.0
        };
        // What the error of this price contributes to the error of the whole.
        let doubt = self.demand * now.price_error_ns / now.price_ns.max(1e-9) / part.max(1e-9);
        let monitored_gap = if now.pairs < EXPLORED_PAIRS {
            1.0
        } else if is_unspent || doubt <= 0.004 {
            30.0
        } else if doubt <= 0.01 {
            4.0
        } else {
            0.7
        };
        self.allowance = Allowance {
            share,
            burst: self.saved.max(0.0) / now.price_ns.max(1e-3),
            monitored_gap,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{Law, Observation, Usage};

    /// Runs a program of functions with these demands for 5 s of CPU time; returns the overhead in
    /// the last 4 s over its own time.
    fn overhead(target: f64, demands: &[f64]) -> f64 {
        let mut law = Law::new(target, 0.0);
        let mut seen = vec![
            Observation {
                price_ns: 1.0,
                price_error_ns: 0.01,
                pairs: 5000.0,
                ..Observation::default()
            };
            demands.len()
        ];
        let (mut cpu, mut cost, mut from) = (0.0, 0.0, (0.0, 0.0));
        for round in 0..500 {
            let plain = 10e6;
            let mut spent = 0.0;
            for (index, demand) in demands.iter().enumerate() {
                let share = law.allowance(index).share;
                let updates = (plain * demand * share).min(law.allowance(index).burst.max(1e4));
                seen[index].updates += updates;
                seen[index].monitored += share * 1000.0;
                seen[index].passes += 1000.0;
                spent += updates;
            }
            cpu += plain + spent;
            cost += spent;
            if round == 100 {
                from = (cpu, cost);
            }
            law.round(
                Usage {
                    cpu_ns: cpu,
                    ..Usage::default()
                },
                &seen,
            );
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
    fn cheap_functions_are_observed_fully_beside_an_expensive_one() {
        let mut law = Law::new(0.1, 0.0);
        let mut seen = [Observation {
            price_ns: 1.0,
            pairs: 5000.0,
            ..Observation::default()
        }; 2];
        for round in 1..100 {
            for (observation, part) in seen.iter_mut().zip([0.01, 2.0]) {
                let time = f64::from(round) * 10e6;
                observation.updates = time * part * 0.05;
                observation.monitored = time * 0.05;
                observation.passes = time;
            }
            law.round(
                Usage {
                    cpu_ns: f64::from(round) * 11e6,
                    ..Usage::default()
                },
                &seen,
            );
        }
        assert_eq!(law.allowance(0).share, 1.0);
        assert!(law.allowance(1).share < 0.2);
    }
}
