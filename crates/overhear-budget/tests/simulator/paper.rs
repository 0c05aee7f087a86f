// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program under the controllers of the paper, event by event.
//!
//! Each event of a source is a call of a function with one access. The clock is wall time, as the
//! paper's: it also runs while the program sleeps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use overhear_budget::smco::{
    AdHocController, Command, GlobalController, PrimaryController, SecondaryController,
};
use overhear_budget::Overhead;
use overhear_event::{Nanos, Timestamp};

use super::{Piece, Program, Random, Truth};

/// Length of a piece of the truth in ns of CPU time.
const PIECE_NS: f64 = 10e6;

/// A controller as the plant sees it. Times in ns since the start.
trait Plant {
    /// An event of source `i` happens. Returns whether it is monitored.
    fn happens(&mut self, i: usize, now: u64) -> bool;
    /// The event has been processed for `p`.
    fn processed(&mut self, i: usize, now: u64, p: u64);
    /// Time has passed.
    fn passed(&mut self, now: u64);
}

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

struct Global(GlobalController);

impl Plant for Global {
    fn happens(&mut self, _: usize, now: u64) -> bool {
        let command = self.0.function_call(at(now));
        self.0.function_call_end(at(now));
        self.0.access(at(now));
        command == Command::Enable
    }

    fn processed(&mut self, _: usize, now: u64, _: u64) {
        self.0.access_end(at(now));
    }

    fn passed(&mut self, _: u64) {}
}

/// A controller of the local target.
trait Primary {
    fn interval(&self) -> Nanos;
    fn local_target(&self) -> f64;
    fn processed(&mut self, p: Nanos);
    fn adjust(&mut self) -> f64;
}

macro_rules! primary {
    ($controller:ty) => {
        impl Primary for $controller {
            fn interval(&self) -> Nanos {
                <$controller>::interval(self)
            }

            fn local_target(&self) -> f64 {
                <$controller>::local_target(self)
            }

            fn processed(&mut self, p: Nanos) {
                <$controller>::processed(self, p);
            }

            fn adjust(&mut self) -> f64 {
                <$controller>::adjust(self)
            }
        }
    };
}

primary!(PrimaryController);
primary!(AdHocController);

struct Cascade<P> {
    primary: P,
    secondary: Vec<SecondaryController>,
    /// The time at which a source is enabled next: `None` while m_lt permits no event.
    enabled: Vec<Option<u64>>,
    /// Processing time of the last event.
    p: Vec<u64>,
    adjust_at: u64,
}

impl<P: Primary> Cascade<P> {
    fn delay(&mut self, i: usize, now: u64) {
        let delay = self.secondary[i].access_end(Nanos::from_ns(self.p[i]));
        self.enabled[i] = delay.map(|d| now.saturating_add(d.as_ns()));
        if let Some(enabled) = self.enabled[i] {
            self.secondary[i].enable(at(enabled));
        }
    }
}

impl<P: Primary> Plant for Cascade<P> {
    fn happens(&mut self, i: usize, now: u64) -> bool {
        let is_on = self.enabled[i].is_some_and(|from| from <= now);
        if is_on {
            self.secondary[i].access(at(now));
        }
        is_on
    }

    fn processed(&mut self, i: usize, now: u64, p: u64) {
        if self.enabled[i].is_some_and(|from| from <= now) && p > 0 {
            self.primary.processed(Nanos::from_ns(p));
            self.p[i] = p;
            self.delay(i, now);
        }
    }

    fn passed(&mut self, now: u64) {
        while now >= self.adjust_at {
            self.adjust_at += self.primary.interval().as_ns();
            let m_lt = self.primary.adjust();
            for i in 0..self.secondary.len() {
                self.secondary[i].set_local_target(m_lt);
                if self.enabled[i].is_none() {
                    self.delay(i, now);
                }
            }
        }
    }
}

/// Runs a program under the global controller.
pub(crate) fn run_global(target: f64, program: &Program, until: f64, seed: u64) -> Truth {
    let target = Overhead::from_overhead(target).unwrap();
    let mut plant = Global(GlobalController::new(target, at(0)));
    run(&mut plant, program, until, seed)
}

/// Runs a program under the cascade controller with the published parameters.
pub(crate) fn run_cascade(target: f64, program: &Program, until: f64, seed: u64) -> Truth {
    let n = u32::try_from(program.sources).unwrap();
    let target = Overhead::from_overhead(target).unwrap();
    run_with(
        PrimaryController::published(target, n),
        program,
        until,
        seed,
    )
}

/// Runs a program under the cascade with the ad hoc controller of this interval.
pub(crate) fn run_ad_hoc(
    (target, interval): (f64, Nanos),
    program: &Program,
    until: f64,
    seed: u64,
) -> Truth {
    let n = u32::try_from(program.sources).unwrap();
    let target = Overhead::from_overhead(target).unwrap();
    run_with(
        AdHocController::new(target, n, interval),
        program,
        until,
        seed,
    )
}

fn run_with(primary: impl Primary, program: &Program, until: f64, seed: u64) -> Truth {
    let n = program.sources;
    let secondary = SecondaryController::new(primary.local_target(), at(0));
    let mut plant = Cascade {
        adjust_at: primary.interval().as_ns(),
        primary,
        secondary: vec![secondary; n],
        enabled: vec![Some(0); n],
        p: vec![0; n],
    };
    run(&mut plant, program, until, seed)
}

fn run(plant: &mut impl Plant, program: &Program, until: f64, seed: u64) -> Truth {
    let n = program.sources;
    let mut random = Random::new(seed);
    let mut truth = Truth::new(n);
    // Largest rates, in events per ns; an event is dropped by chance where the rate is lower.
    let steps = (until * 10.0) as usize;
    let rate = |t: f64, i: usize| (program.cost)(t, i).max(0.0) / (program.price_ns)(t, i);
    let most: Vec<f64> = (0..n)
        .map(|i| {
            (0..steps)
                .map(|k| rate(k as f64 / 10.0, i))
                .fold(0.0, f64::max)
        })
        .collect();
    let mut next: BinaryHeap<Reverse<(u64, usize)>> = (0..n)
        .filter(|&i| most[i] > 0.0)
        .map(|i| Reverse((random.exponential(1.0 / most[i]) as u64, i)))
        .collect();
    // The program's own time, and the wall time, in ns.
    let (mut plain, mut now) = (0_u64, 0_u64);
    let mut piece = Piece::default();
    while let Some(Reverse((due, i))) = next.pop() {
        let mut rest = due - plain;
        piece.plain += rest as f64;
        plain = due;
        // The program runs for `rest`, and sleeps in between.
        while rest > 0 {
            if (program.cpus)(now as f64 / 1e9) <= 0.0 {
                now += 1_000_000;
                plant.passed(now);
            } else {
                let step = rest.min(1_000_000);
                (now, rest) = (now + step, rest - step);
            }
        }
        plant.passed(now);
        let t = now as f64 / 1e9;
        next.push(Reverse((
            due + random.exponential(1.0 / most[i]) as u64 + 1,
            i,
        )));
        if random.unit() * most[i] < rate(t, i) {
            let p = (program.price_ns)(t, i);
            truth.happened[i] += 1.0;
            piece.full += p;
            let is_monitored = plant.happens(i, now);
            if is_monitored {
                now += p as u64;
                piece.cost += p;
                piece.recorded += 1.0;
                truth.recorded[i] += 1.0;
                truth.cost[i] += p;
            }
            plant.processed(i, now, if is_monitored { p as u64 } else { 0 });
        }
        if piece.plain + piece.cost >= PIECE_NS {
            piece.at = now as f64 / 1e9;
            truth.pieces.push(std::mem::take(&mut piece));
        }
        if t >= until {
            break;
        }
    }
    truth
}
