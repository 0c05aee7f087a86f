// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary text as a `.metric` file: it is refused with a message, or it is printed so that it
//! reads the same.

use overhear_metrics::automaton::{Metric, Specification};

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match text.parse::<Specification>() {
        Ok(specification) => {
            let printed = specification.to_string();
            let again: Specification = printed.parse().expect("what is printed can be read");
            assert_eq!(again.to_string(), printed);
            assert!(!specification.to_graphviz().is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Err(error) = text.parse::<Metric>() {
        assert!(!error.to_string().is_empty());
    }
}
