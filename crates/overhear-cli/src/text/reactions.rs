// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of reactions.

use std::fmt::Write;

use overhear_session::format::printable;
use overhear_session::reactions::ReactionsReport;

use super::columns::Table;
use super::width::Width;

/// The reactions as text, for lines of this width.
pub(crate) fn render(report: &ReactionsReport, width: Width) -> String {
    let mut table = Table::new(&[
        ("reaction", false),
        ("on", false),
        ("carried out", true),
        ("failed", true),
    ]);
    for reaction in &report.reactions {
        table.row(vec![
            printable(&reaction.name),
            reaction.on.join(", "),
            reaction.carried_out.to_string(),
            reaction.failed.to_string(),
        ]);
    }
    let mut text = table.render(width);
    for reaction in &report.reactions {
        if let Some(first) = &reaction.first {
            let _ = writeln!(text, "  {}: first {first}", reaction.name);
        }
        if let Some(failure) = &reaction.failure {
            let _ = writeln!(text, "  {}: FAILED: {failure}", reaction.name);
        }
    }
    if report.lost > 0 {
        let _ = writeln!(
            text,
            "  {} reactions were LOST: they were decided faster than they could be carried out",
            report.lost
        );
    }
    text
}
