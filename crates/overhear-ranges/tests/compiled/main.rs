// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that the wrapper compiles: they behave as without the pass, and their ranges are right.

mod oracle;
mod pass;
mod programs;
mod tools;
