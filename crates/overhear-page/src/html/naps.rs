// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of `overhear naps`: one file with the report of unused memory, or with the estimate of
//! the whole machine. Its input is the document that `--json` prints.

use std::io::{self, Write};

use serde::Serialize;

use super::{fill, json_block, nonce, text, title, STYLE};

const TEMPLATE: &str = include_str!("naps.html");

/// The parts of the script, in the order in which they need each other.
const SCRIPTS: &[&str] = &[
    include_str!("format.js"),
    include_str!("data.js"),
    include_str!("summary.js"),
    include_str!("tables.js"),
    include_str!("naps.js"),
];

/// Writes the page of a report. As on the page of a run, nothing in the report can become markup or
/// script.
///
/// # Errors
/// The errors of `out`.
pub fn write(out: &mut dyn Write, report: &impl Serialize, program: &str) -> io::Result<()> {
    let report = |out: &mut dyn Write| json_block(out, report);
    let script = format!("(() => {{\n'use strict';\n{}\n}})();", SCRIPTS.join("\n"));
    let nonce = nonce(&[&report], &script)?;
    let title = title(program);
    let (nonce, title, script) = (text(&nonce), text(&title), text(&script));
    fill(
        out,
        TEMPLATE,
        &[
            ("NONCE", &nonce),
            ("TITLE", &title),
            ("STYLE", &text(STYLE)),
            ("REPORT", &report),
            ("SCRIPT", &script),
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::write;
    use serde_json::json;

    #[test]
    fn report_stays_data() {
        let evil = "</script><script>alert(1)</script>{{SCRIPT}}<!--";
        let mut page = Vec::new();
        write(&mut page, &json!({"command": [evil]}), evil).unwrap();
        let page = String::from_utf8(page).unwrap();
        assert_eq!(page.matches("<script").count(), 2);
        assert_eq!(page.matches("</script>").count(), 2);
    }
}
