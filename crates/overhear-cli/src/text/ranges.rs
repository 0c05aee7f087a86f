// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of ranges of integer variables.

use std::fmt::Write;
use std::path::Path;

use overhear_session::format::{number, printable};
use overhear_session::ranges::{Flag, Integer, RangesDifference, RangesReport, VariableReport};

use super::columns::Table;
use super::width::Width;

/// Functions that are shown with their cost.
const FUNCTIONS_SHOWN: usize = 10;

/// The report as text, for lines of this width.
#[must_use]
pub(crate) fn render(report: &RangesReport, all: bool, width: Width) -> String {
    let mut table = Table::new(&[
        ("variable", false),
        ("function", false),
        ("declared", false),
        ("type", false),
        ("minimum", true),
        ("maximum", true),
        ("updates", true),
        ("in all", true),
        ("monitored", true),
        ("", false),
    ])
    .keys(2);
    let is_unused = |v: &&VariableReport| v.flags.contains(&Flag::NeverUpdated);
    for variable in report.variables.iter().filter(|v| all || !is_unused(v)) {
        table.row(row(variable));
    }
    let mut text = String::new();
    if !table.is_empty() {
        let _ = writeln!(text, "{}", table.render(width));
    }
    let unused = report.variables.iter().filter(is_unused).count();
    let _ = write!(text, "variables: {}", report.variables.len());
    if unused > 0 {
        let hint = if all { "" } else { " (shown by --all)" };
        let _ = write!(text, ", of which never updated: {unused}{hint}");
    }
    let _ = writeln!(text, "; processes: {}", report.processes);
    if let Some(target) = report.target {
        let _ = write!(text, "overhead: target {}%", number(target * 100.0));
        if let Some(estimate) = report.estimated_overhead {
            let _ = write!(text, ", estimated {:.1}%", estimate * 100.0);
        }
        let _ = writeln!(text);
        let _ = write!(text, "{}", functions(report, width));
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {}", printable(note));
    }
    text
}

/// The functions on which the budget was spent.
fn functions(report: &RangesReport, width: Width) -> String {
    let mut table = Table::new(&[
        ("function", false),
        ("updates", true),
        ("monitored", true),
        ("ns per update", true),
        ("+-", true),
    ]);
    for function in report.functions.iter().take(FUNCTIONS_SHOWN) {
        let nanos = |ns: Option<f64>| ns.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.3}"));
        table.row(vec![
            printable(&function.name),
            function.updates_seen.to_string(),
            percent(function.share),
            nanos(function.price_ns),
            nanos(function.price_error_ns),
        ]);
    }
    if table.is_empty() {
        String::new()
    } else {
        format!("\n{}", table.render(width))
    }
}

fn row(variable: &VariableReport) -> Vec<String> {
    let value = |value: Option<Integer>| value.map_or_else(|| "-".to_owned(), |v| v.0.to_string());
    let half = (variable.updates_high - variable.updates_low) / 2.0;
    let in_all = if half < 0.5 {
        count(variable.updates_estimated)
    } else {
        format!("{} +- {}", count(variable.updates_estimated), count(half))
    };
    let flags: Vec<_> = variable.flags.iter().map(|flag| flag.text()).collect();
    vec![
        printable(&variable.name),
        variable
            .function
            .as_deref()
            .map_or_else(|| "-".to_owned(), printable),
        declared(&variable.file, variable.line),
        printable(&variable.type_name),
        value(variable.minimum),
        value(variable.maximum),
        variable.updates_seen.to_string(),
        in_all,
        variable.share.map_or_else(|| "-".to_owned(), percent),
        flags.join(", "),
    ]
}

/// File name and line: the path is in the JSON report.
fn declared(file: &str, line: u32) -> String {
    let name = Path::new(file)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned());
    format!("{}:{line}", printable(&name.unwrap_or_default()))
}

fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.0005 {
        return "< 0.1%".to_owned();
    }
    format!("{:.1}%", share * 100.0)
}

fn count(value: f64) -> String {
    if value < 1e7 {
        format!("{value:.0}")
    } else {
        format!("{value:.2e}")
    }
}

/// The differences between two runs as text.
#[must_use]
pub(crate) fn render_difference(difference: &RangesDifference, width: Width) -> String {
    let mut table = Table::new(&[
        ("variable", false),
        ("function", false),
        ("declared", false),
        ("first", false),
        ("second", false),
        ("", false),
    ])
    .keys(2);
    let range = |range: Option<(Integer, Integer)>| {
        range.map_or_else(
            || "-".to_owned(),
            |(low, high)| format!("{} .. {}", low.0, high.0),
        )
    };
    for variable in &difference.variables {
        table.row(vec![
            printable(&variable.name),
            variable
                .function
                .as_deref()
                .map_or_else(|| "-".to_owned(), printable),
            declared(&variable.file, variable.line),
            range(variable.first),
            range(variable.second),
            variable.change.text().to_owned(),
        ]);
    }
    let mut text = String::new();
    if !table.is_empty() {
        let _ = writeln!(text, "{}", table.render(width));
    }
    let _ = writeln!(
        text,
        "variables with different ranges: {}; with equal ones: {}",
        difference.variables.len(),
        difference.equal
    );
    for note in &difference.notes {
        let _ = writeln!(text, "note: {}", printable(note));
    }
    text
}
