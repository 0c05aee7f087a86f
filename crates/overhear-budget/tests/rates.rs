// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget of a rate on simulated streams: its bound, its use, and what small streams lose.
//!
//! The bytes are those that the simulator counted, not the budget's own.
#![allow(missing_docs)]

mod simulator;

use overhear_budget::{ByteRate, RateBudget};
use overhear_event::{Nanos, Timestamp};
use proptest::prelude::{any, prop_assert, proptest, ProptestConfig};
use simulator::{demands, Random};

const WINDOW: Nanos = Nanos::from_ms(1_000);
const RATE: f64 = 1e6;
/// Time between offers in seconds.
const STEP: f64 = 0.002;

/// Streams that offer packets, and what a budget let them write.
struct Simulation {
    budget: RateBudget,
    sources: Vec<overhear_budget::RateSource>,
    /// Bytes that a stream has not offered yet: a packet is offered when it is whole.
    pending: Vec<f64>,
    packet: u64,
    /// By step: bytes written.
    written: Vec<f64>,
    /// By stream.
    kept: Vec<f64>,
    skipped: Vec<f64>,
}

impl Simulation {
    fn new(streams: usize, packet: u64) -> Self {
        let rate = ByteRate::per_second(RATE).unwrap();
        let mut budget = RateBudget::new(rate, WINDOW).unwrap();
        Self {
            sources: (0..streams).map(|_| budget.add()).collect(),
            budget,
            pending: vec![0.0; streams],
            packet,
            written: Vec::new(),
            kept: vec![0.0; streams],
            skipped: vec![0.0; streams],
        }
    }

    /// Runs for this time. `offer` is the rate of a stream in bytes per second.
    fn run(&mut self, seconds: f64, mut offer: impl FnMut(f64, usize) -> f64) {
        for _ in 0..(seconds / STEP) as usize {
            let at = self.written.len() as f64 * STEP;
            let now = Timestamp::from_monotonic_ns((at * 1e9) as u64);
            let mut sum = 0.0;
            for index in 0..self.sources.len() {
                self.pending[index] += offer(at, index) * STEP;
                while self.pending[index] >= self.packet as f64 {
                    let bytes = self.packet as f64;
                    self.pending[index] -= bytes;
                    if self.budget.admit(self.sources[index], now, self.packet) {
                        self.kept[index] += bytes;
                        sum += bytes;
                    } else {
                        self.skipped[index] += bytes;
                    }
                }
            }
            self.written.push(sum);
        }
    }

    /// The bytes in the worst window.
    fn worst_window(&self) -> f64 {
        let steps = (1.0 / STEP) as usize;
        let windows = self.written.windows(steps);
        windows.map(|it| it.iter().sum()).fold(0.0, f64::max)
    }

    fn forget(&mut self) {
        self.kept.fill(0.0);
        self.skipped.fill(0.0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Streams that burst, rest, and are far above the rate together.
    #[test]
    fn no_window_has_more_than_its_bytes(
        seed in any::<u64>(), streams in 1_usize..60, packet in 1_000_u64..40_000, total in 0.2..20.0,
    ) {
        let mut random = Random::new(seed);
        let rates = demands(streams, total * RATE, seed);
        let phases: Vec<Vec<f64>> = (0..16)
            .map(|_| (0..streams).map(|_| {
                let burst = if random.unit() < 0.1 { 10.0 } else { 1.0 };
                if random.unit() < 0.3 { 0.0 } else { burst }
            }).collect())
            .collect();
        let mut simulation = Simulation::new(streams, packet);
        simulation.run(8.0, |at, index| rates[index] * phases[(at * 2.0) as usize][index]);
        let worst = simulation.worst_window();
        prop_assert!(worst <= RATE, "{worst}");
    }

    /// What is permitted is used, and what is offered below the rate is written.
    #[test]
    fn rate_is_used(
        seed in any::<u64>(), streams in 1_usize..60, packet in 1_000_u64..20_000, total in 1.5..20.0,
    ) {
        let rates = demands(streams, total * RATE, seed);
        let mut simulation = Simulation::new(streams, packet);
        simulation.run(20.0, |_, index| rates[index]);
        let written: f64 = simulation.written[5_000..].iter().sum();
        prop_assert!(written > 0.9 * RATE * 10.0, "{written}");

        let mut simulation = Simulation::new(streams, packet.min(5_000));
        simulation.run(5.0, |_, index| rates[index] / total * 0.8);
        let skipped: f64 = simulation.skipped.iter().sum();
        prop_assert!(skipped == 0.0, "{skipped}");
    }

    /// Large streams share equally, and small ones lose nothing, also in bursts of the large ones.
    #[test]
    fn small_streams_lose_nothing(
        seed in any::<u64>(), small in 1_usize..20, large in 1_usize..20, packet in 1_000_u64..3_000,
    ) {
        // An equal part for each would be RATE / (small + large); small ones stay below half of it.
        let mut random = Random::new(seed);
        let part = RATE / (small + large) as f64;
        let rates: Vec<f64> = (0..small).map(|_| 0.5 * part * random.unit()).collect();
        let burst: Vec<f64> = (0..64).map(|_| random.unit() * 10.0).collect();
        let offer = |at: f64, index: usize| match rates.get(index) {
            Some(rate) => *rate,
            None => 0.5 * RATE * (1.0 + burst[(at * 4.0) as usize % 64]),
        };
        let mut simulation = Simulation::new(small + large, packet);
        simulation.run(3.0, offer);
        simulation.forget();
        simulation.run(10.0, offer);
        for index in 0..small {
            prop_assert!(simulation.skipped[index] == 0.0, "{:?}", simulation.skipped);
        }
        let shares = &simulation.kept[small..];
        let mean = shares.iter().sum::<f64>() / large as f64;
        for share in shares {
            prop_assert!((share / mean - 1.0).abs() < 0.1, "{shares:?}");
        }
    }
}

#[test]
fn charges_are_paid_back() {
    let mut simulation = Simulation::new(2, 1_000);
    simulation.run(2.0, |_, _| 5.0 * RATE);
    let now = Timestamp::from_monotonic_ns(2_000_000_000);
    // The bytes of five windows are written in any case.
    simulation.budget.charge(now, (5.0 * RATE) as u64);
    let before = simulation.written.len();
    simulation.run(4.0, |_, _| 5.0 * RATE);
    let after: f64 = simulation.written[before..].iter().sum();
    assert!(after < 0.05 * RATE, "{after}");
    simulation.run(3.0, |_, _| 5.0 * RATE);
    let all: f64 = simulation.written.iter().sum();
    // The rate in nine windows, without those that were paid back.
    let expected = (9.0 * 15.0 / 16.0 - 5.0) * RATE;
    assert!((all / expected - 1.0).abs() < 0.15, "{all}");
}
