// SPDX-License-Identifier: MIT OR Apache-2.0
//! From slopes to prices: shrinkage to what is known already.

use crate::{EventPrice, PriceSlope};

/// Turns slopes into prices: a function without enough pairs has the price of the others.
///
/// Prices of one event differ between functions and between builds (by a factor of 5 each in bzip2
/// 1.0.8, compiled by clang 19 with -O2), so neither a fixed price nor a slope of few pairs will
/// do. Every price is shrunk to a prior: the price book of earlier runs, or the pooled slope of all
/// functions, which itself starts from a calibrated p0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PricePool {
    p0: f64,
    pooled: f64,
}

impl PricePool {
    /// Standard error of the pooled price as prior of a function, relative to the price.
    const POOL_SPREAD: f64 = 0.5;
    /// Standard error of a price book as prior, relative to the price. Earlier runs were on a
    /// machine of another speed.
    const BOOK_SPREAD: f64 = 0.1;
    /// A price below this multiple of p0 is an error of measurement. There is no largest price:
    /// events that miss caches cost many times p0.
    const LEAST: f64 = 0.1;

    /// A pool that starts from p0, the calibrated price of an event.
    #[must_use]
    pub fn new(p0: EventPrice) -> Self {
        let p0 = p0.as_ns();
        Self { p0, pooled: p0 }
    }

    /// Computes the pooled price from the slopes of all functions. Each counts with its own error
    /// and the spread between functions, p0 as one function.
    pub fn pool(&mut self, slopes: impl IntoIterator<Item = PriceSlope>) {
        if self.p0 <= 0.0 {
            return;
        }
        let spread = Self::POOL_SPREAD * self.p0;
        let mut weight = self.p0.powi(-2);
        let mut sum = weight * self.p0;
        for slope in slopes {
            let own = 1.0 / (slope.error_ns * slope.error_ns + spread * spread);
            weight += own;
            sum += own * slope.ns;
        }
        self.pooled = (sum / weight).max(Self::LEAST * self.p0);
    }

    /// The price of a function with this slope, if it has one, and this price from a book, if it
    /// is known: the mean of slope and prior, weighted by inverse variance.
    #[must_use]
    pub fn price(&self, slope: Option<PriceSlope>, book: Option<EventPrice>) -> EventPrice {
        let (q0, s0) = match book {
            Some(known) => {
                let q0 = known.as_ns();
                (q0, known.error_ns().max(Self::BOOK_SPREAD * q0))
            }
            None => (self.pooled, Self::POOL_SPREAD * self.pooled),
        };
        let prior = EventPrice::clamped(q0, s0);
        let price = slope.map_or(prior, |slope| slope.shrunk_to(prior));
        EventPrice::clamped(price.as_ns().max(Self::LEAST * self.p0), price.error_ns())
    }
}
