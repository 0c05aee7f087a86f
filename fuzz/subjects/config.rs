// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary text as `overhear.toml`: it is read, or refused with one sentence in one line.

use std::path::Path;

use overhear_session::config::{constraints, selection::ExecutorKind, tasks, Config};

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let refused = |sentence: String| {
        assert!(!sentence.is_empty());
        assert_eq!(sentence.lines().count(), 1, "{sentence:?}");
    };
    match Config::parse(&text) {
        Ok(config) => {
            for runner in ExecutorKind::ALL {
                let _ = config.selection(runner);
            }
        }
        Err(sentence) => refused(sentence),
    }
    if let Err(sentence) = constraints::parse(&text, Path::new("/nonexistent")) {
        refused(sentence);
    }
    if let Err(sentence) = tasks::parse(&text) {
        refused(sentence);
    }
}
