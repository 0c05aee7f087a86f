// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of verdicts.

use std::fmt::Write;

use overhear_session::check::CheckReport;
use overhear_session::format::printable;

use super::columns::Table;
use super::width::Width;

/// The verdicts as text, for lines of this width.
#[must_use]
pub(crate) fn render(report: &CheckReport, width: Width) -> String {
    let mut table = Table::new(&[
        ("constraint", false),
        ("verdict", false),
        ("judged", true),
        ("offences", true),
    ]);
    for verdict in &report.constraints {
        table.row(vec![
            printable(&verdict.name),
            verdict.verdict.clone(),
            verdict.judged.to_string(),
            verdict.offences.to_string(),
        ]);
    }
    let mut text = table.render(width);
    for verdict in &report.constraints {
        let name = printable(&verdict.name);
        if let Some(first) = &verdict.first {
            let _ = writeln!(text, "{name}: {}", printable(&first.message));
        }
        if !verdict.reasons.is_empty() {
            let reasons = printable(&verdict.reasons.join(", "));
            let word = match verdict.verdict.as_str() {
                "violated" => "and besides",
                other => other,
            };
            let _ = writeln!(text, "{name}: {word}: {reasons}");
        }
    }
    text
}
