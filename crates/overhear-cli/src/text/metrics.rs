// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of metrics and of measurements one by one.

use std::io::{self, Write};

use overhear_event::kernel::events::UNKNOWN;
use overhear_event::{Nanos, Timestamp};
use overhear_session::format::printable;
use overhear_session::measurements::{MeasurementReport, Measurements};
use overhear_session::metrics::TaskReport;
use overhear_session::metrics::{shortcomings, MetricReport, MetricsReport};
use overhear_session::quantities::quantile_message;

use super::columns::{Layout, Table};
use super::width::Width;

/// The report as tables, for lines of this width.
#[must_use]
pub(crate) fn render(report: &MetricsReport, width: Width) -> String {
    let mut text = Vec::new();
    write(report, width, &mut text).expect("it is written to memory");
    String::from_utf8(text).unwrap_or_default()
}

/// Writes the report as tables, for lines of this width.
///
/// # Errors
/// Those of `out`.
pub(crate) fn write(
    report: &MetricsReport,
    width: Width,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    for metric in &report.metrics {
        let head = format!("{}: {}\n", metric.name, printable(&metric.description));
        out.write_all(width.wrap(&head).as_bytes())?;
        match &metric.measurements {
            Some(measurements) => self::measurements(measurements, report.start, width, out)?,
            None => out.write_all(width.wrap(&sums(metric, width)).as_bytes())?,
        }
        let text = shortcomings(metric) + "\n";
        out.write_all(width.wrap(&text).as_bytes())?;
    }
    let inexact = quantile_message("tasks", report.quantile_error);
    for note in report.notes.iter().chain(&inexact) {
        let note = printable(note) + "\n";
        out.write_all(width.wrap(&note).as_bytes())?;
    }
    Ok(())
}

/// The measurements of a metric by task and kind, as a table.
fn sums(metric: &MetricReport, width: Width) -> String {
    let named = metric.tasks.iter().any(|row| row.key_name.is_some());
    let heads = [
        ("task", true),
        ("name", false),
        ("by", !named),
        ("count", true),
        ("sum", true),
        ("median", true),
        ("p99", true),
        ("max", true),
        ("incomplete", true),
    ];
    let mut table = Table::new(&heads);
    let length = |ns| Nanos::from_ns(ns).to_string();
    // Kinds are ordered by their longest measurement, not by their number.
    let mut rows: Vec<&TaskReport> = metric.tasks.iter().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
    for row in rows {
        table.row(vec![
            row.task.to_string(),
            printable(&row.comm),
            kind(row.key, row.key_name.as_deref()),
            row.count.to_string(),
            length(row.total_ns),
            length(row.median_ns),
            length(row.p99_ns),
            length(row.max_ns),
            row.incomplete.to_string(),
        ]);
    }
    if table.is_empty() {
        "no measurement\n".to_string()
    } else {
        table.render(width)
    }
}

/// Writes the measurements of a metric as a table with times counted from `start`, for lines of
/// this width.
pub(crate) fn measurements(
    measurements: &Measurements,
    start: Timestamp,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<()> {
    let heads = [
        ("task", true),
        ("name", false),
        ("by", false),
        ("length", true),
        ("begin", true),
        ("end", true),
        ("events", true),
        ("own", true),
        ("missed", true),
    ];
    let mut named = false;
    let mut layout = Layout::new(&heads).keys(2);
    let mut is_empty = true;
    measurements.try_for_each(|one| {
        is_empty = false;
        // Kinds without names are numbers.
        named |= one.key_name.is_some();
        layout.measure(&cells(one, start));
        io::Result::Ok(())
    })?;
    if is_empty {
        return out.write_all(b"no measurement\n");
    }
    let mut is_first = true;
    for part in layout.align(2, !named).parts(width) {
        if !std::mem::take(&mut is_first) {
            out.write_all(b"\n")?;
        }
        out.write_all(part.head().as_bytes())?;
        measurements.try_for_each(|one| out.write_all(part.row(&cells(one, start)).as_bytes()))?;
    }
    Ok(())
}

fn cells(one: &MeasurementReport, start: Timestamp) -> Vec<String> {
    let at = |ns| {
        let time = Timestamp::from_monotonic_ns(ns);
        time.relative_to(start).to_string()
    };
    vec![
        one.task.to_string(),
        printable(&one.comm),
        kind(one.key, one.key_name.as_deref()),
        Nanos::from_ns(one.length_ns).to_string(),
        at(one.begin_ns),
        at(one.end_ns),
        one.intermediate_events.to_string(),
        one.own_events.to_string(),
        one.missed.to_string(),
    ]
}

/// The cell with the kind of measurements.
pub(crate) fn kind(key: Option<u64>, name: Option<&str>) -> String {
    match (key, name) {
        (None, _) => "-".to_owned(),
        (_, Some(name)) => printable(name),
        // The value by which kernel sensors mark an unknown number.
        (Some(key), None) if key == u64::from(UNKNOWN) => "unknown".to_owned(),
        (Some(key), None) => key.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Timestamp;

    use super::{render, MetricReport, MetricsReport, TaskReport};
    use crate::text::width::Width;

    #[test]
    fn rows_are_in_the_order_of_their_sums() {
        let row = |key, name: &str, total_ns| TaskReport {
            task: 7,
            comm: "server".to_owned(),
            key: Some(key),
            key_name: Some(name.to_owned()),
            count: 1,
            incomplete: 0,
            total_ns,
            min_ns: total_ns,
            median_ns: total_ns,
            p99_ns: total_ns,
            max_ns: total_ns,
        };
        let metric = MetricReport {
            name: "system_call".to_owned(),
            description: "calls".to_owned(),
            absent_events: Vec::new(),
            completed: 3,
            incomplete: 0,
            unfinished: 0,
            missed: 0,
            unobserved: 0,
            refused: 0,
            tasks: vec![
                row(0, "read", 20),
                row(1, "write", 5),
                row(202, "futex", 9_000),
            ],
            measurements: None,
        };
        let report = MetricsReport {
            metrics: vec![metric],
            notes: Vec::new(),
            start: Timestamp::ZERO,
            quantile_error: 0.0,
        };
        let text = render(&report, Width::UNLIMITED);
        let positions = ["futex", "read", "write"].map(|name| text.find(name).unwrap());
        assert!(positions.is_sorted(), "{text}");
    }
}
