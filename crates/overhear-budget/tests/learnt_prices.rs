// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything together: four functions with unknown prices, a budget, and prices that are learnt
//! from stretches while the program runs.
#![allow(missing_docs)]

mod simulator;

use overhear_budget::{
    exploration, Arm, Budget, EventPrice, Overhead, PairEstimator, PricePool, PriceRegime,
    SourceCount, SourceId, SourceSpec, StretchEnd, StretchPlanner, ThreadKey, TickInput, UnitCount,
};
use overhear_event::{Nanos, Timestamp};
use simulator::function::Function;
use simulator::Random;

/// A function with the state that a runtime keeps of it.
struct Instrumented {
    source: SourceId,
    function: Function,
    planner: StretchPlanner,
    estimator: PairEstimator,
    end: StretchEnd,
    share: f64,
    exploration: f64,
    events: u64,
    units: UnitCount,
    is_changed: bool,
}

struct Run {
    budget: Budget,
    pool: PricePool,
    functions: Vec<Instrumented>,
    random: Random,
    target: f64,
    cpu_ns: f64,
    /// The true costs.
    cost_ns: f64,
}

impl Run {
    /// Prices differ by a factor of 10, and the calibrated one is almost twice their mean.
    /// Everything on costs about 57 %.
    fn new(target: f64) -> Self {
        let p0 = EventPrice::from_ns(6.0, 0.0).unwrap();
        let overhead = Overhead::from_overhead(target).unwrap();
        let mut budget = Budget::new(overhead, Nanos::from_ms(1_000)).unwrap();
        let functions = [0.8, 2.0, 3.0, 8.0]
            .into_iter()
            .zip(1..)
            .map(|(price, seed)| Instrumented {
                source: budget
                    .add(SourceSpec::new(&format!("f{seed}"), p0))
                    .unwrap(),
                function: Function::new(price, |_| 1.0, seed),
                planner: StretchPlanner::default(),
                estimator: PairEstimator::default(),
                end: StretchEnd::default(),
                share: 1.0,
                exploration: 1.0,
                events: 0,
                units: UnitCount::default(),
                is_changed: false,
            })
            .collect();
        Self {
            budget,
            pool: PricePool::new(p0),
            functions,
            random: Random::new(9),
            target,
            cpu_ns: 0.0,
            cost_ns: 0.0,
        }
    }

    /// Runs for this CPU time in seconds, and returns the true overhead of it.
    fn run(&mut self, seconds: f64) -> f64 {
        let (cpu, cost) = (self.cpu_ns, self.cost_ns);
        while self.cpu_ns < cpu + seconds * 1e9 {
            self.tick();
            let until = self.cpu_ns + 10e6;
            while self.cpu_ns < until {
                for at in 0..self.functions.len() {
                    self.stretch(at);
                }
            }
        }
        let cost = self.cost_ns - cost;
        cost / (self.cpu_ns - cpu - cost)
    }

    fn stretch(&mut self, at: usize) {
        let it = &mut self.functions[at];
        let word = self.random.word();
        let (stretch, pair) = it.planner.next(&it.end, it.share, it.exploration, word);
        if let Some(pair) = pair {
            it.is_changed |= it.estimator.push(&pair) == PriceRegime::Changed;
        }
        it.end = it.function.run(stretch.arm, stretch.passes);
        it.units.all += stretch.passes;
        it.units.on += match stretch.arm {
            Arm::Monitored => stretch.passes,
            Arm::Plain => 0,
        };
        it.events += it.end.events as u64;
        self.cpu_ns += it.end.time_ns;
        self.cost_ns += it.end.events * it.function.price_ns;
    }

    fn tick(&mut self) {
        let slope = |it: &Instrumented| it.estimator.sums().slope();
        self.pool.pool(self.functions.iter().filter_map(slope));
        for it in &mut self.functions {
            let price = self.pool.price(it.estimator.sums().slope(), None);
            if std::mem::take(&mut it.is_changed) {
                self.budget.change_price(it.source, price);
            } else {
                self.budget.refine_price(it.source, price);
            }
        }
        let counts: Vec<SourceCount> = self
            .functions
            .iter()
            .map(|it| SourceCount {
                source: it.source,
                thread: ThreadKey::PROCESS,
                events: it.events,
                units: Some(it.units),
                is_capped: false,
            })
            .collect();
        let input = TickInput {
            now: Timestamp::from_monotonic_ns(self.cpu_ns as u64),
            cpu: Nanos::from_ns(self.cpu_ns as u64),
            own_cpu: Nanos::ZERO,
            counts: &counts,
        };
        let outcome = self.budget.tick(&input).unwrap();
        for (it, setting) in self.functions.iter_mut().zip(outcome.settings) {
            it.share = setting.share;
        }
        let report = self.budget.report();
        for (it, source) in self.functions.iter_mut().zip(&report.sources) {
            let error = source.price.error_ns() / source.price.as_ns();
            let uncertainty = source.demand.unwrap_or(0.0) * error / self.target;
            it.exploration = exploration(it.planner.pairs(), uncertainty, report.debt_ns < 0.0);
        }
    }
}

#[test]
fn target_is_met_with_prices_that_are_learnt() {
    for target in [0.05, 0.1, 0.2] {
        let mut run = Run::new(target);
        let seen = run.run(10.0);
        assert!((seen - target).abs() < 0.01, "{seen} at {target}");
        for (source, it) in run.budget.report().sources.iter().zip(&run.functions) {
            let (learnt, price) = (source.price.as_ns(), it.function.price_ns);
            assert!(
                (learnt - price).abs() < 0.02 + 0.1 * price,
                "{learnt} {price}"
            );
        }
    }
}

/// All prices triple, as on a machine whose memory becomes slow. The pairs show it, and the past is
/// not charged again.
#[test]
fn prices_that_triple_are_learnt_again() {
    let target = 0.1;
    let mut run = Run::new(target);
    let before = run.run(5.0);
    for it in &mut run.functions {
        it.function.price_ns *= 3.0;
    }
    run.run(2.0);
    let after = run.run(8.0);
    for seen in [before, after] {
        assert!((seen - target).abs() < 0.015, "{before} {after}");
    }
}
