// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated programs whose true costs are known, driven by a budget or by the paper's controllers.
//!
//! Nothing here uses the estimates of the laws under test: the overhead of a run is the cost that
//! the simulator charged.

#![allow(dead_code)] // Each test program uses its own part.

pub(crate) mod function;
pub(crate) mod law;
pub(crate) mod paper;

/// xorshift64* [Marsaglia-2003].
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        for _ in 0..8 {
            random.word();
        }
        random
    }

    pub(crate) fn word(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// From [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// About normal: the sum of twelve uniform numbers.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    /// A whole number with the mean and about the variance of a Poisson distribution.
    pub(crate) fn count(&mut self, mean: f64) -> u64 {
        let noisy = if mean > 30.0 {
            mean + self.normal() * mean.sqrt()
        } else {
            mean
        };
        (noisy.max(0.0) + self.unit()) as u64
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }
}

/// A function of the time since the start in seconds and of the index of a source.
pub(crate) type Course = Box<dyn Fn(f64, usize) -> f64>;

/// A program: its behaviour at each time without observation.
pub(crate) struct Program {
    pub(crate) sources: usize,
    /// CPUs in use; 0 is sleep.
    pub(crate) cpus: Box<dyn Fn(f64) -> f64>,
    /// Cost of observing all events of a source, per time of the program without observation.
    /// Negative: the source does not exist at that time.
    pub(crate) cost: Course,
    /// True price of an event in ns.
    pub(crate) price_ns: Course,
    /// True base overhead.
    pub(crate) base: f64,
}

/// Demands of very different sizes whose sum is `total`.
pub(crate) fn demands(n: usize, total: f64, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    let mut all: Vec<f64> = (0..n).map(|_| 10_f64.powf(4.0 * random.unit())).collect();
    let sum: f64 = all.iter().sum();
    all.iter_mut().for_each(|it| *it *= total / sum);
    all
}

/// Prices from 0.1 to 1 us.
pub(crate) fn prices(n: usize, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed ^ 0xABCD);
    (0..n).map(|_| 100.0 * 10_f64.powf(random.unit())).collect()
}

/// Always the same load.
pub(crate) fn steady(n: usize, total: f64, seed: u64) -> Program {
    let (demands, prices) = (demands(n, total, seed), prices(n, seed));
    Program {
        sources: n,
        cpus: Box::new(|_| 1.0),
        cost: Box::new(move |_, i| demands[i]),
        price_ns: Box::new(move |_, i| prices[i]),
        base: 0.0,
    }
}

/// Events and costs of one piece of a run. Times in ns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece {
    /// Wall time since the start in seconds, at the end.
    pub(crate) at: f64,
    pub(crate) plain: f64,
    /// True cost of observing, with the base.
    pub(crate) cost: f64,
    /// Cost of observing everything.
    pub(crate) full: f64,
    /// Events recorded.
    pub(crate) recorded: f64,
}

/// The truth about a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Truth {
    pub(crate) pieces: Vec<Piece>,
    /// Events that happened and that were recorded, by source.
    pub(crate) happened: Vec<f64>,
    pub(crate) recorded: Vec<f64>,
    pub(crate) cost: Vec<f64>,
}

impl Truth {
    pub(crate) fn new(sources: usize) -> Self {
        Self {
            pieces: Vec::new(),
            happened: vec![0.0; sources],
            recorded: vec![0.0; sources],
            cost: vec![0.0; sources],
        }
    }

    /// Overhead between two times.
    pub(crate) fn overhead_between(&self, from: f64, to: f64) -> f64 {
        let inside = self.pieces.iter().filter(|it| it.at > from && it.at <= to);
        let (cost, plain) = inside.fold((0.0, 0.0), |(c, p), it| (c + it.cost, p + it.plain));
        cost / plain
    }

    pub(crate) fn overhead(&self) -> f64 {
        self.overhead_between(0.0, f64::INFINITY)
    }

    /// Largest overhead of any sliding window of this CPU time in seconds.
    pub(crate) fn worst_window(&self, window: f64) -> f64 {
        self.windows(window).fold(0.0, f64::max)
    }

    /// Overheads of all sliding windows.
    fn windows(&self, window: f64) -> impl Iterator<Item = f64> + '_ {
        let (mut first, mut cost, mut plain) = (0, 0.0, 0.0);
        self.pieces.iter().filter_map(move |it| {
            cost += it.cost;
            plain += it.plain;
            let mut is_full = false;
            loop {
                let oldest = &self.pieces[first];
                let rest = cost + plain - oldest.cost - oldest.plain;
                if rest < window * 1e9 {
                    break;
                }
                is_full = true;
                cost -= oldest.cost;
                plain -= oldest.plain;
                first += 1;
            }
            (is_full || first > 0).then(|| cost / plain)
        })
    }

    /// Root mean square of the relative error of windows in the second half of the run.
    pub(crate) fn ripple(&self, window: f64, target: f64) -> f64 {
        let all: Vec<f64> = self.windows(window).collect();
        let half = &all[all.len() / 2..];
        let sum: f64 = half.iter().map(|it| (it / target - 1.0).powi(2)).sum();
        (sum / half.len() as f64).sqrt()
    }

    /// Events recorded between two times.
    pub(crate) fn recorded_between(&self, from: f64, to: f64) -> f64 {
        let inside = self.pieces.iter().filter(|it| it.at > from && it.at <= to);
        inside.map(|it| it.recorded).sum()
    }
}
