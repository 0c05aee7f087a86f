// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of the automata, as specifications that can be run, and against a slow interpreter.

mod arbitrary;
mod page;
mod reference;
mod scene;
mod scheduling;
mod specs;
mod together;
