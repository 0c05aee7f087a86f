// SPDX-License-Identifier: MIT OR Apache-2.0
//! Flags of a step loop: each enables work of a step in addition to the transition.
//! The [step loop](super::fast_path) is compiled once per combination.

/// Measurements have a key that is remembered per task: not only [the final event](KEYED_BY_END)
/// gives it.
pub(super) const KEYED: usize = 1;
/// Measurements are [intervals](crate::automaton::compile::program::Program::is_interval).
pub(super) const INTERVAL: usize = 1 << 1;
/// The sink wants positions.
pub(super) const POSITIONS: usize = 1 << 2;
/// Some inputs of the batch are no symbols of the metric.
pub(super) const FILTERED: usize = 1 << 3;
/// Some inputs are earlier than their elements.
pub(super) const BACKDATED: usize = 1 << 4;
/// The event that ends a measurement always gives its key.
pub(super) const KEYED_BY_END: usize = 1 << 5;
/// An input or a step of the metric may be
/// [more than one step](crate::automaton::compile::program::Effects::SPILLED).
pub(super) const SPILLED: usize = 1 << 6;

/// Combinations of flags.
pub(super) const COMBINATIONS: usize = 1 << 7;

/// The combination whose loop stands for this one: of loops that do the same only one is compiled.
pub(super) const fn canonical(flags: usize) -> usize {
    let keyed = if flags & KEYED_BY_END != 0 { KEYED } else { 0 };
    // Metrics that are no intervals may have spilled steps, and backdated inputs are rare.
    let spilled = match flags & (INTERVAL | BACKDATED) {
        INTERVAL => 0,
        _ => SPILLED,
    };
    flags & !keyed | spilled
}
