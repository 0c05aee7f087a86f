// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of response times.

use std::fmt::Write;

use overhear_event::Nanos;
use overhear_session::format::printable;
use overhear_session::response_times::ResponseTimesReport;

use super::columns::Table;
use super::width::Width;

/// The overheads of the system for each task; `None` if none is known.
fn overheads(report: &ResponseTimesReport) -> Option<Table> {
    let mut table = Table::new(&[
        ("task", false),
        ("job system time", true),
        ("system blocking", true),
        ("delay until wakeup", true),
        ("locks", true),
        ("measured", false),
    ]);
    let mut is_known = false;
    for task in &report.tasks {
        let lengths = [
            task.job_system_time_ns,
            task.system_blocking_ns,
            task.delay_until_wakeup_ns,
        ];
        is_known |= lengths.iter().any(|&ns| ns > 0);
        let mut row = vec![printable(&task.name)];
        row.extend(lengths.map(|ns| Nanos::from_ns(ns).to_string()));
        let locks = task
            .lock_blocking_ns
            .map(|ns| Nanos::from_ns(ns).to_string());
        row.push(locks.unwrap_or_else(|| "-".to_owned()));
        row.push(task.measured.join(", "));
        table.row(row);
    }
    is_known.then_some(table)
}

/// The report as text, for lines of this width.
#[must_use]
pub(crate) fn render(report: &ResponseTimesReport, width: Width) -> String {
    let length = |ns: u64| Nanos::from_ns(ns).to_string();
    let maybe = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), length);
    let mut table = Table::new(&[
        ("task", false),
        ("prio", true),
        ("T", true),
        ("C", true),
        ("B", true),
        ("higher", true),
        ("R", true),
        ("deadline", true),
        ("", false),
        ("jobs", true),
        ("observed", true),
        ("", false),
    ]);
    for task in &report.tasks {
        let computed = match task.response_ns {
            Some(ns) => length(ns),
            None => "> T".to_owned(),
        };
        table.row(vec![
            printable(&task.name),
            task.priority.to_string(),
            length(task.period_ns),
            length(task.wcet_ns),
            length(task.blocking_ns),
            length(task.interference_ns),
            computed,
            length(task.deadline_ns),
            ["MISSED", "met"][usize::from(task.schedulable)].to_owned(),
            task.jobs
                .map_or_else(|| "-".to_owned(), |jobs| jobs.to_string()),
            maybe(task.observed_ns),
            ["", "MORE THAN R"][usize::from(task.exceeded)].to_owned(),
        ]);
    }
    let mut text = table.render(width);
    if let Some(table) = overheads(report) {
        let _ = write!(text, "\n{}\n", table.render(width));
    }
    let _ = writeln!(text, "utilisation {:.3}", report.utilisation);
    for note in &report.notes {
        let _ = writeln!(text, "note: {}", printable(note));
    }
    text
}
