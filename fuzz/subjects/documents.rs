// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of which one document is arbitrary: the report is made or refused with a message,
//! without a panic, and its text acts on no terminal.

use overhear_session::replay;

use crate::recording::Recording;

/// The documents that are replaced; the first byte of the input chooses one.
pub(crate) const DOCUMENTS: [&str; 8] = [
    "run",
    "clock",
    "check",
    "metrics",
    "updates",
    "reactions",
    "guarantee",
    "calibration",
];

/// Runs one input over this recording.
pub(crate) fn run(recording: &Recording, input: &[u8]) {
    let Some((choice, bytes)) = input.split_first() else {
        return;
    };
    let name = DOCUMENTS[usize::from(*choice) % DOCUMENTS.len()];
    let dir = recording.dir();
    for other in DOCUMENTS {
        let _ = std::fs::remove_file(dir.join(format!("trace/overhear/{other}.json")));
    }
    recording.with(&format!("overhear/{name}.json"), bytes);
    match replay::read_report(&dir) {
        Ok(report) => {
            let text = overhear_cli::report_text(&report, None);
            assert!(!text.contains('\u{1b}'), "{text:?}");
            assert!(serde_json::to_string(&report).is_ok());
        }
        Err(failure) => assert!(!failure.message.is_empty()),
    }
}
