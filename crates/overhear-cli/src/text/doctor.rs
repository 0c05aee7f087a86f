// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of the findings about a machine and a user.

use super::width::Width;
use crate::doctor::Finding;

/// The findings as text, for lines of this width.
#[must_use]
pub(crate) fn render(findings: &[Finding], width: Width) -> String {
    let mut text = String::new();
    for finding in findings {
        let mark = if finding.ok { "ok     " } else { "missing" };
        let message = format!("{mark}  {:<9} {}", finding.name, finding.message);
        text.push_str(&width.wrap_line(&message, MESSAGE_AT));
        text.push('\n');
        if !finding.advice.is_empty() {
            let advice = format!("{:MESSAGE_AT$} -> {}", "", finding.advice);
            text.push_str(&width.wrap_line(&advice, MESSAGE_AT + 4));
            text.push('\n');
        }
    }
    text
}

/// Column in which messages begin, after the mark and the name.
const MESSAGE_AT: usize = 19;
