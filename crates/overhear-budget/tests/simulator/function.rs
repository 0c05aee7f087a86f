// SPDX-License-Identifier: MIT OR Apache-2.0
//! An instrumented function, stretch by stretch.

use overhear_budget::{Arm, StretchEnd};

use super::Random;

/// A function: each pass takes about 100 ns and has about 20 events if it is monitored. Sometimes
/// it calls another function, which takes 2 us.
pub(crate) struct Function {
    random: Random,
    pub(crate) price_ns: f64,
    /// The machine's speed as a function of the stretches so far.
    speed: fn(u64) -> f64,
    stretches: u64,
}

impl Function {
    pub(crate) fn new(price_ns: f64, speed: fn(u64) -> f64, seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            price_ns,
            speed,
            stretches: 0,
        }
    }

    pub(crate) fn run(&mut self, arm: Arm, passes: u64) -> StretchEnd {
        let passes = passes as f64;
        let calls = self.random.unit() * 0.02 * passes;
        let calls = self.random.count(calls) as f64;
        let plain = passes * 100.0 * (1.0 + 0.02 * self.random.normal()) + calls * 2_000.0;
        let events = match arm {
            Arm::Plain => 0.0,
            Arm::Monitored => self.random.count(20.0 * passes) as f64,
        };
        let slowness = 1.0 / (self.speed)(self.stretches);
        self.stretches += 1;
        let mut end = StretchEnd {
            time_ns: (plain + events * self.price_ns) * slowness,
            events,
            ..StretchEnd::default()
        };
        end.passes[0] = calls;
        end
    }
}
