// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rate of a recording: which packets are not written, and when their gaps are.

use overhear_budget::{ByteRate, RateBudget, RateSource};
use overhear_event::{Nanos, Timestamp};

use crate::packet::MAX_PACKET_BYTES;

/// The window of the rate, in trace time.
const WINDOW: Nanos = Nanos::from_ms(1_000);
/// Number of packets in a window, so that one is a small part of it.
const PACKETS_PER_WINDOW: f64 = 64.0;
/// A gap is written with the packet after it, and at least after this time: a killed recorder
/// leaves the elements uncounted that it left out since then.
const GAP_PENDING: Nanos = Nanos::from_ms(1_000);
/// Gaps may take this part of the rate, where there are too many streams for [`GAP_PENDING`].
const GAPS_SHARE: f64 = 0.25;
/// Least maximum size of packets.
const LEAST_PACKET_BYTES: usize = 4 << 10;

/// Decides which packets are written, so that the bytes per second stay at a rate.
#[derive(Debug)]
pub(crate) struct Thinning {
    rate: ByteRate,
    budget: RateBudget,
    /// By index of the stream.
    sources: Vec<RateSource>,
    /// Time of the next pass over all streams, which writes their gaps.
    next_pass: Timestamp,
}

impl Thinning {
    pub(crate) fn new(rate: ByteRate) -> Self {
        Self {
            rate,
            budget: RateBudget::new(rate, WINDOW).expect("the window is long enough"),
            sources: Vec::new(),
            next_pass: Timestamp::ZERO,
        }
    }

    /// Maximum size of packets.
    pub(crate) fn packet_bytes(&self) -> usize {
        let bytes = (self.rate.bytes_in(WINDOW) / PACKETS_PER_WINDOW) as usize;
        bytes.clamp(LEAST_PACKET_BYTES, MAX_PACKET_BYTES)
    }

    /// Whether a packet of a stream is written, with the empty packets before it.
    pub(crate) fn admit(&mut self, stream: usize, now: Timestamp, bytes: u64) -> bool {
        while self.sources.len() <= stream {
            self.sources.push(self.budget.add());
        }
        self.budget.admit(self.sources[stream], now, bytes)
    }

    /// Whether a packet that is written in any case would stay within the rate now.
    pub(crate) fn permits(&mut self, now: Timestamp, bytes: u64) -> bool {
        self.budget.permits(now, bytes)
    }

    /// Keeps bytes free for packets that wait until the rate permits them.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        self.budget.reserve(bytes);
    }

    /// Charges a packet that is written in any case.
    pub(crate) fn charge(&mut self, now: Timestamp, bytes: u64) {
        self.budget.charge(now, bytes);
    }

    /// Whether gaps are written now.
    pub(crate) fn admit_gaps(&mut self, now: Timestamp, bytes: u64) -> bool {
        self.budget.charge_within(now, bytes)
    }

    pub(crate) fn is_pass_due(&self, now: Timestamp) -> bool {
        now >= self.next_pass
    }

    /// Ends a pass that wrote this number of bytes.
    pub(crate) fn end_pass(&mut self, now: Timestamp, bytes: u64) {
        let pause = bytes as f64 / (GAPS_SHARE * self.rate.as_bytes_per_second());
        let pause = Nanos::from_ns((pause * 1e9) as u64);
        self.next_pass = now.plus(pause.max(GAP_PENDING));
    }
}
