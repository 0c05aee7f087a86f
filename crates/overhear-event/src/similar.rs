// SPDX-License-Identifier: MIT OR Apache-2.0
//! Similar names, for messages about unknown ones.

use alloc::vec::Vec;

/// Whether one name is a part of the other, or they differ in at most two characters.
///
/// ```
/// assert!(overhear_event::is_similar_name("instruction", "instructions"));
/// assert!(overhear_event::is_similar_name("cycels", "cycles"));
/// assert!(!overhear_event::is_similar_name("cycles", "branches"));
/// ```
#[must_use]
pub fn is_similar_name(one: &str, other: &str) -> bool {
    if one.contains(other) || other.contains(one) {
        return true;
    }
    // The distance of Levenshtein, row by row.
    let mut row: Vec<usize> = (0..=other.chars().count()).collect();
    for (index, a) in one.chars().enumerate() {
        let mut diagonal = core::mem::replace(&mut row[0], index + 1);
        for (location, b) in other.chars().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[location + 1];
            row[location + 1] = changed.min(diagonal + 1).min(row[location] + 1);
        }
    }
    row.last().is_some_and(|distance| *distance <= 2)
}

#[cfg(test)]
mod tests {
    use super::is_similar_name;

    #[test]
    fn names_are_similar_by_parts_and_by_typing() {
        assert!(is_similar_name("sched_process_fork", "process_fork"));
        assert!(is_similar_name("sched_switch", "shced_switch"));
        assert!(!is_similar_name("sched_switch", "sys_enter"));
    }
}
