// SPDX-License-Identifier: MIT OR Apache-2.0
//! A histogram as text, for a terminal of 80 columns.

use std::fmt::Write as _;

use overhear_metrics::Histogram;

/// Columns of the longest bar. With the range in front and the count behind it makes 80.
const BAR_COLUMNS: u64 = 48;
/// Rows of equal width that the bulk of the values is spread over, about.
const ROWS: u64 = 8;

/// Nanoseconds in a unit that suits them, with three significant digits.
#[must_use]
pub fn duration(ns: u64) -> String {
    overhear_event::Nanos::from_ns(ns).to_string()
}

/// Draws the histogram: one row per range of equal width from the first to the 95th percentile,
/// one more for what lies below or above. Values are nanoseconds.
///
/// The upper end has a long tail on any machine; up to its end the rows would be so wide that all
/// the rest would be one bar.
#[must_use]
pub fn chart(histogram: &Histogram) -> String {
    let (Some(low), Some(high)) = (histogram.quantile(0.01), histogram.quantile(0.95)) else {
        return String::new();
    };
    let step = round_up((high - low) / ROWS + 1);
    let first = low / step * step;
    let last = high / step * step + step;
    let mut rows = Vec::new();
    let below = count_below(histogram, first);
    if below > 0 {
        rows.push((None, Some(first), below));
    }
    let mut counted = below;
    for from in (first..last).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        let until = count_below(histogram, from + step);
        rows.push((Some(from), Some(from + step), until - counted));
        counted = until;
    }
    if counted < histogram.count() {
        rows.push((Some(last), None, histogram.count() - counted));
    }

    let unit = Unit::of(last, step);
    let most = rows.iter().map(|row| row.2).max().unwrap_or(0);
    let width = unit.format(last).len();
    let mut text = String::new();
    for (from, to, count) in rows {
        let range = match (from, to) {
            (None, Some(to)) => format!("below {}", unit.format(to)),
            (Some(from), None) => format!("from {}", unit.format(from)),
            (from, to) => {
                let (from, to) = (from.unwrap_or(0), to.unwrap_or(0));
                format!("{} - {:>width$}", unit.number(from), unit.format(to))
            }
        };
        let _ = writeln!(text, "  {range:>18} |{}", with_count(count, most));
    }
    text
}

/// A bar in eighths of a column, and the count right behind it.
fn with_count(count: u64, most: u64) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    // A value that occurs at all is seen.
    let eighths = (count * BAR_COLUMNS * 8 / most.max(1)).max(u64::from(count > 0));
    let mut bar = "█".repeat(usize::try_from(eighths / 8).unwrap_or(0));
    bar.push_str(PARTS[usize::try_from(eighths % 8).unwrap_or(0)]);
    if count > 0 {
        bar.push(' ');
        bar.push_str(&count.to_string());
    }
    bar
}

/// How many of the values are below this one, to the histogram's three digits.
fn count_below(histogram: &Histogram, value: u64) -> u64 {
    let total = histogram.count();
    // The k-th smallest value is the quantile of any fraction in ((k - 1) / n, k / n]; the middle
    // of it is safe from rounding.
    let smallest = |k: u64| histogram.quantile((k as f64 - 0.5) / total as f64);
    let (mut low, mut high) = (0, total);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if smallest(middle) < Some(value) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// The next number of the series 1, 2, 5, 10, 20, ...
fn round_up(value: u64) -> u64 {
    let mut decade = 1_u64;
    loop {
        for factor in [1, 2, 5] {
            let candidate = decade.saturating_mul(factor);
            if candidate >= value {
                return candidate;
            }
        }
        decade = decade.saturating_mul(10);
    }
}

/// One unit for all rows of a chart, with the decimals that its step needs.
#[derive(Clone, Copy, Debug)]
struct Unit {
    name: &'static str,
    size: u64,
    decimals: usize,
}

impl Unit {
    fn of(largest: u64, step: u64) -> Self {
        let (name, size) = match largest {
            0..2_000 => ("ns", 1),
            2_000..2_000_000 => ("us", 1_000),
            _ => ("ms", 1_000_000),
        };
        let mut decimals = 0;
        let mut part = size;
        while part > 1 && !step.is_multiple_of(part) {
            part /= 10;
            decimals += 1;
        }
        Self {
            name,
            size,
            decimals,
        }
    }

    fn number(self, ns: u64) -> String {
        format!("{:.*}", self.decimals, ns as f64 / self.size as f64)
    }

    fn format(self, ns: u64) -> String {
        format!("{} {}", self.number(ns), self.name)
    }
}

#[cfg(test)]
mod tests {
    use overhear_metrics::Histogram;

    use super::{chart, count_below, round_up};

    #[test]
    fn counts_below_agree_with_counting() {
        let mut histogram = Histogram::new();
        let values: Vec<u64> = (0..777).map(|n| n * n % 1_000).collect();
        values.iter().for_each(|&value| histogram.record(value));
        for limit in [0, 1, 2, 99, 500, 999, 1_000, 5_000] {
            let counted = values.iter().filter(|&&value| value < limit).count() as u64;
            assert_eq!(count_below(&histogram, limit), counted, "below {limit}");
        }
    }

    #[test]
    fn chart_counts_every_value_and_fits_80_columns() {
        let mut histogram = Histogram::new();
        assert_eq!(chart(&histogram), "");
        for n in 0..1_000_u64 {
            histogram.record(6_000 + n * 3 + n % 7 * 100);
        }
        histogram.record(900_000);
        histogram.record(17);
        let text = chart(&histogram);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let counts = text.lines().filter_map(|line| line.rsplit(' ').next());
        let sum: u64 = counts.filter_map(|count| count.parse::<u64>().ok()).sum();
        assert_eq!(sum, 1_002, "{text}");
        assert!(
            text.lines().next().unwrap().contains("below 6.0 us"),
            "{text}"
        );
        assert!(text.lines().last().unwrap().contains("from"), "{text}");
    }

    #[test]
    fn one_value_is_one_row() {
        let mut histogram = Histogram::new();
        histogram.record(300);
        assert_eq!(chart(&histogram).lines().count(), 1);
        assert_eq!([1, 3, 7, 10, 11].map(round_up), [1, 5, 10, 10, 20]);
    }
}
