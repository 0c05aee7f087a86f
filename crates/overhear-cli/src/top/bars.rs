// SPDX-License-Identifier: MIT OR Apache-2.0
//! A course of values in one line of text.

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The newest `width` values as bars, right-aligned. A value of `None` is a blank.
///
/// The lowest bar is the least value, the highest bar the greatest, so that small changes of large
/// values are visible. Equal values are bars of middle height.
pub(crate) fn bars(values: &[Option<f64>], width: usize) -> String {
    let newest = newest(values, width);
    let finite = || newest.iter().flatten().copied().filter(|v| v.is_finite());
    let least = finite().fold(f64::INFINITY, f64::min);
    let greatest = finite().fold(f64::NEG_INFINITY, f64::max);
    bars_between(newest, width, least, greatest)
}

/// The newest `width` values as bars. The lowest bar is `least` or less, the highest bar `greatest`
/// or more.
pub(crate) fn bars_between(
    values: &[Option<f64>],
    width: usize,
    least: f64,
    greatest: f64,
) -> String {
    let newest = newest(values, width);
    let bar = |value: f64| {
        let share = (value - least) / (greatest - least);
        let level = if share.is_finite() {
            (share * 7.0).round()
        } else {
            3.0
        };
        LEVELS[(level as usize).min(7)]
    };
    let blanks = std::iter::repeat_n(' ', width - newest.len());
    let drawn = newest
        .iter()
        .map(|value| value.filter(|v| v.is_finite()).map_or(' ', bar));
    blanks.chain(drawn).collect()
}

fn newest(values: &[Option<f64>], width: usize) -> &[Option<f64>] {
    &values[values.len().saturating_sub(width)..]
}

#[cfg(test)]
mod tests {
    use super::{bars, bars_between};

    #[test]
    fn bars_span_the_range_and_leave_unknown_values_blank() {
        let values = [0.0, 1.0, 3.5, 7.0].map(Some);
        assert_eq!(bars(&values, 4), "▁▂▅█");
        assert_eq!(bars(&values, 2), "▁█");
        assert_eq!(bars(&values, 6), "  ▁▂▅█");
        assert_eq!(bars(&[Some(5.0), None, Some(5.0)], 3), "▄ ▄");
        assert_eq!(bars(&[Some(f64::NAN), Some(-1.0), Some(1e300)], 3), " ▁█");
        assert_eq!(bars(&[], 3), "   ");
        let values = [-1.0, 0.0, 1.0, 2.0, 9.0].map(Some);
        assert_eq!(bars_between(&values, 6, 0.0, 2.0), " ▁▁▅██");
    }
}
