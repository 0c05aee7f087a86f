// SPDX-License-Identifier: MIT OR Apache-2.0
//! Displays of distributions: as text, in `overhear top`, on the page, or by code of the caller
//! (docs/displays.md).
//!
//! ```
//! use overhear_session::display::{show, Display, TextDisplay};
//! use overhear_session::quantities::HistogramReport;
//! use overhear_metrics::Histogram;
//!
//! /// A display of the numbers of values.
//! struct Totals(Vec<String>);
//!
//! impl Display for Totals {
//!     fn histogram(&mut self, histogram: &HistogramReport) {
//!         let count: u64 = histogram.buckets.iter().map(|bucket| bucket.count).sum();
//!         self.0.push(format!("{}: {count}", histogram.title));
//!     }
//! }
//!
//! let mut values = Histogram::new();
//! (0..10).for_each(|value| values.record(value));
//! let histograms = [HistogramReport::new("depth", "requests", &values)];
//! let (mut totals, mut text) = (Totals(Vec::new()), TextDisplay::new(60));
//! show(&histograms, &mut totals);
//! show(&histograms, &mut text);
//! assert_eq!(totals.0, ["depth: 10"]);
//! assert!(text.into_text().starts_with("depth [requests]\n"));
//! ```

use std::fmt::Write as _;

use crate::format::{number, printable};
use crate::quantities::{BucketReport, HistogramReport};

/// A display of distributions.
pub trait Display {
    /// Shows one distribution.
    fn histogram(&mut self, histogram: &HistogramReport);
}

/// Shows all of these in their order.
pub fn show(histograms: &[HistogramReport], display: &mut dyn Display) {
    for histogram in histograms {
        display.histogram(histogram);
    }
}

/// Limit of the bars of one distribution.
const MAX_BARS: usize = 16;
/// Largest length of a bar, in characters.
const MAX_BAR_WIDTH: usize = 40;

/// Bars of text, one line for each bucket.
#[derive(Clone, Debug)]
pub struct TextDisplay {
    width: usize,
    text: String,
}

impl TextDisplay {
    /// A display with lines of at most `width` characters, unless the numbers leave too little
    /// space for bars.
    #[must_use]
    pub const fn new(width: usize) -> Self {
        Self {
            width,
            text: String::new(),
        }
    }

    /// The text of all distributions that were shown.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

impl Display for TextDisplay {
    fn histogram(&mut self, histogram: &HistogramReport) {
        let buckets = joined(&histogram.buckets);
        let unit = match histogram.unit.as_str() {
            "" => String::new(),
            unit => format!(" [{unit}]"),
        };
        let title = printable(&format!("{}{unit}", histogram.title));
        let _ = writeln!(self.text, "{title}");
        let labels: Vec<String> = buckets.iter().map(label).collect();
        let counts: Vec<String> = buckets.iter().map(|it| it.count.to_string()).collect();
        let widest = |all: &[String]| all.iter().map(|it| it.chars().count()).max().unwrap_or(0);
        let (labels_width, counts_width) = (widest(&labels), widest(&counts));
        let room = self.width.saturating_sub(labels_width + counts_width + 6);
        let room = room.clamp(8, MAX_BAR_WIDTH);
        let most = buckets.iter().map(|bucket| bucket.count).max().unwrap_or(0);
        for ((bucket, label), count) in buckets.iter().zip(labels).zip(counts) {
            // A bucket that is not empty has a bar.
            let share = u128::from(bucket.count) * room as u128;
            let length = share.div_ceil(u128::from(most.max(1))) as usize;
            let bar = "#".repeat(length);
            let _ = writeln!(
                self.text,
                "  {label:>labels_width$} | {bar:<room$} {count:>counts_width$}"
            );
        }
        if buckets.is_empty() {
            self.text.push_str("  no values\n");
        }
    }
}

fn label(bucket: &BucketReport) -> String {
    let (low, high) = (number(bucket.low), number(bucket.high));
    if bucket.low == bucket.high {
        low
    } else {
        format!("{low}..{high}")
    }
}

/// The buckets without empty ones at the ends. Neighbours are joined if there are too many.
fn joined(buckets: &[BucketReport]) -> Vec<BucketReport> {
    let is_used = |bucket: &BucketReport| bucket.count > 0;
    let Some(first) = buckets.iter().position(is_used) else {
        return Vec::new();
    };
    let last = buckets.iter().rposition(is_used).unwrap_or(first);
    let used = &buckets[first..=last];
    used.chunks(used.len().div_ceil(MAX_BARS))
        .map(|part| BucketReport {
            low: part[0].low,
            high: part[part.len() - 1].high,
            count: part.iter().map(|bucket| bucket.count).sum(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use overhear_metrics::Distribution;

    use super::{show, TextDisplay};
    use crate::quantities::{BucketReport, HistogramReport};

    fn text(buckets: &[(u32, u32, u64)]) -> String {
        let buckets = buckets.iter();
        let histogram = HistogramReport {
            title: "depth\u{1b}".to_string(),
            unit: "requests".to_string(),
            buckets: buckets
                .map(|&(low, high, count)| BucketReport {
                    low: low.into(),
                    high: high.into(),
                    count,
                })
                .collect(),
            fractions: false,
        };
        let mut display = TextDisplay::new(40);
        show(&[histogram], &mut display);
        display.into_text()
    }

    #[test]
    fn bars_are_proportional_and_not_empty() {
        let line = |label: &str, bar: usize, count: &str| {
            format!("  {label:>5} | {:<26} {count:>3}\n", "#".repeat(bar))
        };
        let expected = [
            "depth\\x1b [requests]\n".to_string(),
            line("1", 1, "1"),
            line("2..3", 0, "0"),
            line("4..10", 26, "400"),
        ];
        let drawn = text(&[(0, 0, 0), (1, 1, 1), (2, 3, 0), (4, 10, 400), (11, 20, 0)]);
        assert_eq!(drawn, expected.concat());
        assert!(
            drawn.lines().all(|line| line.chars().count() <= 40),
            "{drawn}"
        );
        assert!(text(&[(0, 5, 0)]).ends_with("no values\n"));
    }

    #[test]
    fn many_buckets_are_joined_without_loss() {
        let many: Vec<_> = (0..100).map(|low| (low, low, 1)).collect();
        let drawn = text(&many);
        let counts = drawn.lines().skip(1);
        let counts = counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap());
        let counts: Vec<u64> = counts.collect();
        assert!(counts.len() <= 16, "{drawn}");
        assert_eq!(counts.iter().sum::<u64>(), 100);
    }

    #[test]
    fn negative_fractions_have_bars_between_their_limits() {
        let mut volts = Distribution::new();
        for value in [-2.5, -1.75, -1.75, -1.5] {
            volts.record(value);
        }
        let mut display = TextDisplay::new(60);
        show(
            &[HistogramReport::of_values("it", "V", &volts)],
            &mut display,
        );
        let text = display.into_text();
        let bars = text.lines().skip(1).map(|line| {
            let (label, rest) = line.split_once('|').unwrap();
            (label.trim(), rest.rsplit(' ').next().unwrap())
        });
        let bars: Vec<(&str, &str)> = bars.filter(|(_, count)| *count != "0").collect();
        assert_eq!(
            bars,
            [
                ("-2.500..-2.240", "1"),
                ("-1.800..-1.600", "2"),
                ("-1.600..-1.400", "1")
            ]
        );
    }
}
