// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of the automata: as runnable specifications, and compared with a slow interpreter.

mod arbitrary;
mod page;
mod reference;
mod scene;
mod scheduling;
mod specs;
mod together;
