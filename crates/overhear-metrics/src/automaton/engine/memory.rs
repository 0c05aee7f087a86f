// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is taken before the first element.

/// Reserves `more` elements and touches their pages, so that no page fault happens later.
pub(super) fn reserve_and_touch<T: Clone + Default>(list: &mut Vec<T>, more: usize) {
    let length = list.len();
    list.resize(length + more, T::default());
    list.truncate(length);
}
