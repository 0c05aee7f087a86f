// SPDX-License-Identifier: MIT OR Apache-2.0
//! Arbitrary lists of counters: each name is refused with a message, or is a counter whose quantity
//! can be a field.

use overhear_sampling::counters::{split_list, CounterEvent};

/// Runs one input: a list of names.
pub(crate) fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for name in split_list(&text) {
        match CounterEvent::parse(name) {
            Ok(event) => {
                assert_eq!(event.name(), name);
                let field = &event.quantity().name;
                let is_word = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                assert!(!field.is_empty() && field.chars().all(is_word), "{name}");
                assert!(
                    !field.starts_with(|first: char| first.is_ascii_digit()),
                    "{name}"
                );
                assert_eq!(CounterEvent::parse(name), Ok(event));
            }
            Err(error) => {
                assert!(error.is_usage(), "{error}");
                assert!(error.to_string().contains(name), "{error}");
            }
        }
    }
}
