// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of one tick of a budget, at 5, 60 and 400 sources.
//!
//! `cargo bench -p overhear-budget --bench tick_cost -- [TICKS [ROUNDS]]`
//!
//! The demands require new shares in every tick: all sources together would cost several times the
//! target. The median of the rounds is printed, and its share of a CPU at 100 ticks per second.
#![allow(missing_docs)]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use overhear_budget::{
    Budget, EventPrice, Overhead, SourceCount, SourceSpec, ThreadKey, TickInput,
};
use overhear_event::{Nanos, Timestamp};

fn main() -> Result<(), Box<dyn Error>> {
    // Cargo passes `--bench`.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let number = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |it| it.parse());
    let (ticks, rounds) = (number(0, 10_000)?, number(1, 11)?);
    for n in [5, 60, 400] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(round(n, ticks)?);
        }
        times.sort_by(f64::total_cmp);
        let ns = times[times.len() / 2];
        println!(
            "{n} sources: {:.2} us per tick, {:.4} % of a CPU at 100 ticks per second",
            ns / 1e3,
            ns * 100.0 / 1e9 * 100.0
        );
    }
    Ok(())
}

/// Mean time of a tick in ns.
fn round(n: u64, ticks: u64) -> Result<f64, Box<dyn Error>> {
    let mut budget = Budget::new(Overhead::from_percent(5.0)?, Nanos::from_ms(1_000))?;
    let mut counts = Vec::new();
    for i in 0..n {
        let price = EventPrice::from_ns(50.0 + i as f64, 5.0)?;
        counts.push(SourceCount {
            source: budget.add(SourceSpec::new(&format!("s{i}"), price))?,
            thread: ThreadKey::PROCESS,
            events: 0,
            units: None,
            is_capped: false,
        });
    }
    let mut is_on = vec![false; counts.len()];
    let begun = Instant::now();
    for tick in 0..ticks {
        for (i, count) in counts.iter_mut().enumerate() {
            // Rates differ by a factor of 100; together they cost a third of the CPU time.
            let rate = 1 + (i * 37) % 100;
            count.events += if is_on[i] { rate as u64 * 600 / n } else { 0 };
        }
        let outcome = budget.tick(&TickInput {
            now: Timestamp::from_monotonic_ns(tick * 10_000_000),
            cpu: Nanos::from_ms(tick * 10),
            own_cpu: Nanos::from_us(tick * 10),
            counts: &counts,
        })?;
        for (it, setting) in is_on.iter_mut().zip(black_box(outcome.settings)) {
            *it = setting.is_on;
        }
    }
    Ok(begun.elapsed().as_nanos() as f64 / ticks as f64)
}
