// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary text as `overhear.toml`: it is read, or refused with one message in one line.

use std::path::Path;

use overhear_session::config::{constraints, selection::ExecutorKind, tasks, Config};

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let refused = |message: String| {
        assert!(!message.is_empty());
        assert_eq!(message.lines().count(), 1, "{message:?}");
    };
    match Config::parse(&text) {
        Ok(config) => {
            for runner in ExecutorKind::ALL {
                let _ = config.selection(runner);
            }
        }
        Err(message) => refused(message),
    }
    if let Err(message) = constraints::parse(&text, Path::new("/nonexistent")) {
        refused(message);
    }
    if let Err(message) = tasks::parse(&text) {
        refused(message);
    }
}
