// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of the last window.

/// Number of parts of a window.
const PARTS: usize = 100;

/// An upper bound of the sum over the last window. It is exact but for a hundredth of the window,
/// whose bytes count longer.
#[derive(Clone, Debug)]
pub(crate) struct SlidingSum {
    part_ns: u64,
    /// One more than a window has, because the window begins within a part.
    parts: [f64; PARTS + 1],
    /// Number of the latest part since time 0.
    latest: u64,
}

impl SlidingSum {
    /// A window of this length.
    pub(crate) fn new(window_ns: u64) -> Self {
        Self {
            // Rounded up: the parts cover at least the window.
            part_ns: window_ns.div_ceil(PARTS as u64).max(1),
            parts: [0.0; PARTS + 1],
            latest: 0,
        }
    }

    /// The sum over the window that ends now. Times never go back.
    pub(crate) fn advance(&mut self, now_ns: u64) -> f64 {
        let part = now_ns / self.part_ns;
        let passed = part.saturating_sub(self.latest).min(PARTS as u64 + 1);
        for number in 1..=passed {
            self.parts[Self::index(part - passed + number)] = 0.0;
        }
        self.latest = self.latest.max(part);
        self.parts.iter().sum()
    }

    /// Adds to the time of the last advance.
    pub(crate) fn add(&mut self, bytes: f64) {
        self.parts[Self::index(self.latest)] += bytes;
    }

    const fn index(part: u64) -> usize {
        (part % (PARTS as u64 + 1)) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::SlidingSum;

    #[test]
    fn sum_covers_each_window_and_little_more() {
        let mut sum = SlidingSum::new(1_000);
        let mut written: Vec<(u64, f64)> = Vec::new();
        let mut now = 7_000_000;
        for step in 0..20_000_u64 {
            now += step * step % 37 + if step % 1_999 == 0 { 5_000 } else { 0 };
            let found = sum.advance(now);
            let within = |ns: u64| -> f64 {
                let later = written.iter().rev().take_while(|(at, _)| at + ns > now);
                later.map(|(_, bytes)| bytes).sum()
            };
            assert!(found >= within(1_000), "{found} at {now}");
            assert!(found <= within(1_011), "{found} at {now}");
            sum.add(1.0 + (step % 7) as f64);
            written.push((now, 1.0 + (step % 7) as f64));
        }
    }
}
