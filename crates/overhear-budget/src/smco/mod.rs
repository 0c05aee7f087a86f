// SPDX-License-Identifier: MIT OR Apache-2.0
//! The controllers of the paper, as published [SMCO, sections 2.3 and 4.5.3], with its symbols.
//!
//! They exist for comparison. They read a clock at every event, keep every surplus and every debt
//! for ever, and the primary controller has a gain that fits one number of sources: see each type.
//! [`crate::Budget`] is the law for use.
//!
//! The automata of figures 5, 7 and 9 are pictures; the transitions here are those that the text of
//! sections 2.3.1 and 2.3.2 describes. Where the text permits two readings, the type names the one
//! that was taken.

mod ad_hoc;
mod global;
mod primary;
mod secondary;

pub use ad_hoc::AdHocController;
pub use global::{Command, GlobalController};
pub use primary::PrimaryController;
pub use secondary::SecondaryController;
