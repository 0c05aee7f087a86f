// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of fitted streams.

use std::fmt::Write;

use overhear_event::Nanos;
use overhear_session::fit::{FitReport, FrontPoint};
use overhear_session::metrics::of_budget;

use super::columns::Table;
use super::width::Width;

/// At most [`POINTS`] points of the front, with the slowest stream among them.
fn rows(front: &[FrontPoint]) -> impl Iterator<Item = &FrontPoint> {
    let step = front.len().div_ceil(MOST_ROWS).max(1);
    let first = front.len().saturating_sub(1) % step;
    front.iter().skip(first).step_by(step)
}

/// The fit as text, for lines of this width.
#[must_use]
pub(crate) fn render(fit: &FitReport, width: Width) -> String {
    let time = |ns: u64| Nanos::from_ns(ns).to_string();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} elements, one every {} in the mean, never closer than {}",
        fit.sensor,
        fit.elements,
        time(fit.mean_gap_ns),
        time(fit.least_gap_ns)
    );
    if fit.missed > 0 {
        let _ = writeln!(
            text,
            "INCOMPLETE: {} elements were missed{}: the sensor may be faster than this",
            fit.missed,
            of_budget(fit.unobserved)
        );
    }
    text.push_str("\nIn overhear.toml:\n");
    for (key, ns, symbol) in [
        ("period", fit.period_ns, "T"),
        ("distance", fit.distance_ns, "D"),
        ("jitter", fit.jitter_ns, "tau"),
    ] {
        let line = format!("{key} = \"{ns} ns\"");
        let _ = writeln!(text, "  {line:<32}# {symbol}");
    }
    text.push('\n');
    let mut table = Table::new(&[
        ("period T", true),
        ("least jitter tau", true),
        ("rate", true),
    ]);
    for point in rows(&fit.front) {
        table.row(vec![
            time(point.period_ns),
            time(point.jitter_ns),
            overhear_session::format::rate(1e9 / point.period_ns as f64),
        ]);
    }
    text.push_str("What covers the recording as well, rate against jitter:\n");
    text.push_str(&table.render(width));
    let left_out = fit.front.len() - rows(&fit.front).count();
    if left_out > 0 {
        let _ = writeln!(text, "({left_out} more points: --json has the whole front)");
    }
    text
}

/// Maximum number of points of the front in the text.
const MOST_ROWS: usize = 12;
