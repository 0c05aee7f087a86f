// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget of a rate: which packets of which streams a recorder writes, so that the bytes per
//! second stay at their target.

use std::fmt;

use overhear_event::{Nanos, Timestamp};

use crate::balance::Balance;
use crate::sliding_sum::SlidingSum;
use crate::water_level::{level, Basin};

/// Number of times per window that demands are computed and the rate is divided.
const TICKS_PER_WINDOW: u64 = 100;
/// Part of the rate that the balance permits. The rest is for what varies within a window.
const STEADY: f64 = 15.0 / 16.0;
/// Part of a window's bytes that streams above the level may write. The rest is for small ones.
const OF_LARGE: f64 = 31.0 / 32.0;

/// A rate in bytes per second. Holding one proves that it is finite and above 0.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct ByteRate(f64);

/// The reason why a number is no rate.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ByteRateError {
    /// Zero or less, or not finite.
    #[error("a rate of {0} B/s permits no data; give a rate above 0, for example 10MB/s")]
    NotPositive(f64),
}

impl ByteRate {
    /// This number of bytes per second.
    ///
    /// # Errors
    /// [`ByteRateError`] if it is not above 0, or not finite.
    pub fn per_second(bytes: f64) -> Result<Self, ByteRateError> {
        if bytes.is_finite() && bytes > 0.0 {
            Ok(Self(bytes))
        } else {
            Err(ByteRateError::NotPositive(bytes))
        }
    }

    /// Bytes per second.
    #[must_use]
    pub const fn as_bytes_per_second(self) -> f64 {
        self.0
    }

    /// Bytes in this time.
    #[must_use]
    pub fn bytes_in(self, time: Nanos) -> f64 {
        self.0 * time.as_ns() as f64 / 1e9
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B/s", self.0)
    }
}

/// A stream in a [`RateBudget`], by the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RateSource(u32);

#[derive(Clone, Copy, Debug, Default)]
struct Offer {
    /// Bytes that were offered since the last tick.
    fresh: f64,
    /// Aged sum of the offered bytes.
    offered: f64,
    /// Bytes that a stream above the level may write; negative after a packet above the allowance.
    allowance: f64,
    /// Whether the stream offers more than the level.
    is_above: bool,
}

/// Keeps the bytes that are written per second at a rate R, over windows of the length W.
///
/// The law is that of [`Budget`](crate::Budget), for time and bytes instead of CPU time and costs:
///
/// - *Bound*: in any time W at most R W bytes are written. A packet above it is not written.
/// - *Balance*: e = r t - written - expired, with r = 15 R / 16. A debt is kept in full, and a
///   surplus above r W / 4 expires.
/// - *Demand* of a stream: the bytes per time that it offers, aged with the constant W. Within the
///   first W / 4 it is what a quarter of a window would have.
/// - *Wanted* is r + (e - r W / 16) / (W / 4), at least 0, without the bytes that are written in
///   any case. It keeps the balance at r W / 16, which is lent at the start.
/// - *Level* x by water filling: a stream that offers at most x is written in full, all others
///   write x each.
///
/// A packet is written or not, as a whole. One of a stream above the level needs a positive
/// balance, and a positive allowance: the bytes that x gave to its stream. Of the bound it leaves
/// R W / 32 to others. Any other packet is written unless the debt exceeds r W / 4 and the largest
/// packet so far, so a small stream loses nothing because large ones had a burst.
///
/// Bytes that are written in any case ([`RateBudget::charge`]) may exceed the bound, and are paid
/// back.
///
/// ```
/// use overhear_budget::{ByteRate, RateBudget};
/// use overhear_event::{Nanos, Timestamp};
///
/// // 1 MB/s for a stream with 10 MB/s and one with 10 kB/s.
/// let mut budget = RateBudget::new(ByteRate::per_second(1e6)?, Nanos::from_ms(1_000))?;
/// let (large, small) = (budget.add(), budget.add());
/// let mut written = [0; 2];
/// for ms in 0..10_000 {
///     let now = Timestamp::ZERO.plus(Nanos::from_ms(ms));
///     written[0] += u64::from(budget.admit(large, now, 10_000)) * 10_000;
///     written[1] += u64::from(budget.admit(small, now, 10)) * 10;
/// }
/// assert_eq!(written[1], 100_000);
/// assert!((9.0e6..9.9e6).contains(&(written[0] as f64)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RateBudget {
    /// r in bytes per ns.
    rate: f64,
    /// R W in bytes.
    most: f64,
    /// The bytes of the last window.
    recent: SlidingSum,
    window_ns: f64,
    tick_ns: u64,
    balance: Balance,
    begin: Option<Timestamp>,
    now: Timestamp,
    last_tick: Timestamp,
    /// Aged time in ns that the sums hold.
    time: f64,
    offers: Vec<Offer>,
    /// Bytes of the bound that are kept free.
    reserved: f64,
    /// Bytes that are written in any case: since the last tick, and the aged sum.
    charged_fresh: f64,
    charged: f64,
    written: f64,
    largest: f64,
    /// x in bytes per ns.
    level: f64,
    basins: Vec<Basin>,
    levels: Vec<(f64, f64)>,
}

impl RateBudget {
    /// A budget of this rate.
    ///
    /// # Errors
    /// [`BudgetError::WindowTooShort`](crate::BudgetError::WindowTooShort) below 1 ms.
    pub fn new(rate: ByteRate, window: Nanos) -> Result<Self, crate::BudgetError> {
        crate::budget::check_window(window)?;
        let most = rate.bytes_in(window);
        let rate = STEADY * rate.0 / 1e9;
        let window_ns = window.as_ns() as f64;
        Ok(Self {
            rate,
            most,
            recent: SlidingSum::new(window.as_ns()),
            window_ns,
            tick_ns: window.as_ns() / TICKS_PER_WINDOW,
            balance: Balance::of_rate(rate, window_ns),
            begin: None,
            now: Timestamp::ZERO,
            last_tick: Timestamp::ZERO,
            time: 0.0,
            offers: Vec::new(),
            reserved: 0.0,
            charged_fresh: 0.0,
            charged: 0.0,
            written: 0.0,
            largest: 0.0,
            level: f64::INFINITY,
            basins: Vec::new(),
            levels: Vec::new(),
        })
    }

    /// Adds a stream.
    ///
    /// # Panics
    /// With more than 2^32 streams.
    pub fn add(&mut self) -> RateSource {
        let index = u32::try_from(self.offers.len()).expect("streams are counted in 32 bits");
        self.offers.push(Offer::default());
        RateSource(index)
    }

    /// Decides whether a packet of this size is written, and charges it if it is. Times that go
    /// back count as the latest one.
    ///
    /// # Panics
    /// If the source is of another budget.
    pub fn admit(&mut self, source: RateSource, now: Timestamp, bytes: u64) -> bool {
        self.advance(now);
        let bytes = bytes as f64;
        self.largest = self.largest.max(bytes);
        let balance = self.settle();
        let reserve = Balance::HORIZON * self.rate * self.window_ns + self.largest;
        let recent = self.recent.advance(self.now.as_monotonic_ns()) + bytes + self.reserved;
        let offer = &mut self.offers[source.0 as usize];
        offer.fresh += bytes;
        let is_admitted = match offer.is_above {
            true => balance > 0.0 && offer.allowance > 0.0 && recent <= OF_LARGE * self.most,
            false => balance > -reserve && recent <= self.most,
        };
        if is_admitted {
            self.written += bytes;
            self.recent.add(bytes);
            offer.allowance -= if offer.is_above { bytes } else { 0.0 };
        }
        is_admitted
    }

    /// Whether the bound of the window permits these bytes now, whatever streams demand.
    pub fn permits(&mut self, now: Timestamp, bytes: u64) -> bool {
        self.advance(now);
        let recent = self.recent.advance(self.now.as_monotonic_ns());
        recent + bytes as f64 <= self.most
    }

    /// Keeps these bytes of the bound free, until another number is set: for a packet that waits
    /// until it is permitted, and that is charged then.
    pub fn reserve(&mut self, bytes: u64) {
        self.reserved = bytes as f64;
    }

    /// Charges bytes that are no stream's own, if the bound permits them; returns whether it does.
    pub fn charge_within(&mut self, now: Timestamp, bytes: u64) -> bool {
        let is_within = self.permits(now, bytes.saturating_add(self.reserved as u64));
        if is_within {
            self.charge(now, bytes);
        }
        is_within
    }

    /// Charges bytes that are written in any case.
    pub fn charge(&mut self, now: Timestamp, bytes: u64) {
        self.advance(now);
        self.recent.advance(self.now.as_monotonic_ns());
        self.recent.add(bytes as f64);
        self.written += bytes as f64;
        self.charged_fresh += bytes as f64;
    }

    fn settle(&mut self) -> f64 {
        let since = self.begin.map_or(0, |begin| self.now.since(begin).as_ns());
        self.balance.settle(since as f64, self.written, 0.0)
    }

    fn advance(&mut self, now: Timestamp) {
        if self.begin.is_none() {
            self.begin = Some(now);
            (self.now, self.last_tick) = (now, now);
        }
        self.now = self.now.max(now);
        let elapsed = self.now.since(self.last_tick).as_ns();
        if elapsed >= self.tick_ns {
            self.last_tick = self.now;
            self.tick(elapsed as f64);
        }
    }

    fn tick(&mut self, elapsed: f64) {
        let balance = self.settle();
        let decay = (-elapsed / self.window_ns).exp();
        self.time = self.time * decay + elapsed;
        self.charged = self.charged * decay + self.charged_fresh;
        self.charged_fresh = 0.0;
        let horizon = Balance::HORIZON * self.window_ns;
        let time = self.time.max(horizon);
        self.basins.clear();
        for offer in &mut self.offers {
            offer.offered = offer.offered * decay + offer.fresh;
            offer.fresh = 0.0;
            let demand = offer.offered / time;
            self.basins.push(Basin {
                demand,
                floor: 0.0,
                slope: 1.0 / demand,
            });
        }
        // The last level was in force until now.
        let before = self.level;
        // While the balance is above 0, allowances decide, and not the order of packets within a
        // tick.
        let correction = (balance - Balance::LOAN * self.rate * self.window_ns) / horizon;
        let wanted = (self.rate + correction - self.charged / time).max(0.0);
        self.level = level(&self.basins, wanted, &mut self.levels);
        let most = self.rate * horizon;
        for (offer, basin) in self.offers.iter_mut().zip(&self.basins) {
            let was_above = std::mem::replace(&mut offer.is_above, basin.demand > self.level);
            if !offer.is_above {
                continue;
            }
            let given = match was_above && before.is_finite() {
                true => before * elapsed,
                // It begins with the next packet that its part permits.
                false => f64::MIN_POSITIVE,
            };
            offer.allowance = (offer.allowance + given).min(most);
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::{ByteRate, ByteRateError, RateBudget};

    #[test]
    fn rates_that_permit_nothing_are_refused_with_a_message() {
        assert_eq!(
            ByteRate::per_second(0.0).unwrap_err().to_string(),
            "a rate of 0 B/s permits no data; give a rate above 0, for example 10MB/s"
        );
        for bad in [-1.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(
                ByteRate::per_second(bad),
                Err(ByteRateError::NotPositive(bad))
            );
        }
        let rate = ByteRate::per_second(1.0).unwrap();
        let short = RateBudget::new(rate, Nanos::from_us(999)).unwrap_err();
        assert!(short.to_string().contains("at least 1 ms"), "{short}");
    }
}
