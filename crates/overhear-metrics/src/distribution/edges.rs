// SPDX-License-Identifier: MIT OR Apache-2.0
//! Limits between the buckets that users see.

/// The preferred numbers of one decade, times 100 (ISO 3, series R20).
const R20: [u32; 20] = [
    100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800,
    900,
];

/// `number` hundredths of a power of ten: the nearest double, so that it prints short.
fn hundredths(number: u32, decade: i32) -> f64 {
    let number = f64::from(number);
    match decade - 2 {
        power @ ..0 => number / 10_f64.powi(-power),
        power => number * 10_f64.powi(power),
    }
}

/// The decade of a number above zero.
fn decade(value: f64) -> i32 {
    let decade = value.log10().floor() as i32;
    // The logarithm is rounded, and may be one too large.
    let is_below = hundredths(100, decade) > value;
    decade - i32::from(is_below)
}

/// Ascending limits, from zero on, for values from `low` to `high`; `least` is the least value
/// above zero.
pub(super) fn logarithmic(low: f64, high: f64, least: f64, is_whole: bool) -> Vec<f64> {
    if high == 0.0 {
        return vec![0.0, 1.0];
    }
    // With zeros, all values up to a millionth of the greatest one share a bucket.
    let least = if low > 0.0 {
        low
    } else {
        least.max(high * 1e-6)
    };
    let (first, last) = (decade(least), decade(high));
    let step = match last - first {
        0..=2 => 1,
        3..=4 => 2,
        5..=20 => 4,
        _ => 20,
    };
    let numbers = (first..=last.saturating_add(1)).flat_map(|decade| {
        let numbers = R20.iter().step_by(step);
        numbers.map(move |number| hundredths(*number, decade))
    });
    let numbers = numbers.map(|number| if is_whole { number.floor() } else { number });
    let mut edges: Vec<f64> = Vec::new();
    for number in std::iter::once(0.0).chain(numbers) {
        if edges.last().is_none_or(|last| *last < number) && number.is_finite() {
            edges.push(number);
        }
    }
    edges
}

/// Largest number of buckets of equal width.
const MAX_EQUAL_BUCKETS: f64 = 40.0;

/// Limits at equal distances for values from `low` to `high`: 1, 2 or 5 times a power of ten.
pub(super) fn linear(low: f64, high: f64, is_whole: bool) -> Vec<f64> {
    let width = high / MAX_EQUAL_BUCKETS - low / MAX_EQUAL_BUCKETS;
    let decade = decade(width);
    let widths = [100, 200, 500, 1000].map(|number| hundredths(number, decade));
    let wide = widths.into_iter().find(|wide| *wide >= width);
    let mut width = wide.unwrap_or(width);
    if is_whole {
        width = width.max(1.0);
    }
    let first = (low / width).floor() as i64;
    let last = (high / width).floor() as i64 + 1;
    // Each limit by one multiplication or division, so that it is the nearest double.
    let edge = |number: i64| match width < 1.0 {
        true => number as f64 / (1.0 / width).round(),
        false => number as f64 * width,
    };
    (first..=last).map(edge).collect()
}

/// The limits from the last one that is up to `low`, to the first one that is not up to `high`.
pub(super) fn cut(
    edges: Vec<f64>,
    low: f64,
    high: f64,
    is_up_to: impl Fn(f64, f64) -> bool,
) -> Vec<f64> {
    let first = edges.partition_point(|edge| is_up_to(*edge, low));
    let end = edges.partition_point(|edge| is_up_to(*edge, high));
    let edges = edges.into_iter().take(end + 1);
    let mut cut: Vec<f64> = edges.skip(first.saturating_sub(1)).collect();
    // There is no preferred number above the greatest doubles.
    if cut.last().is_none_or(|last| *last < high) || cut.len() < 2 {
        cut.push(high);
    }
    cut
}
