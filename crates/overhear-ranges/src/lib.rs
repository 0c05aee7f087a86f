// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integer range analysis: which values the integer variables of a program take.
//!
//! ```text
//! source --overhear-clang--> program with two copies of each function
//!                              |  credit used up            ^ shares
//!                              v                            |
//!                            runtime: stretches, accounts, pairs --> prices --> budget
//!                              |
//!                              v  mapped file for each process
//!                            results --> variables with range, updates, share of passes
//! ```
//!
//! The pass (`native/ranges/pass`) duplicates functions: the plain copy counts its passes only, the
//! monitored copy records the range of each variable it writes. The `runtime` chooses the copy, so
//! that the cost stays at the target. [`FunctionBudget`](function_budget::FunctionBudget) decides
//! without I/O: counts and times are arguments; law and prices are those of `overhear-budget`.
//! [`results`] reads the files of processes, and trusts none of them. The program `overhear-clang`
//! is clang with the pass and the runtime.
//!
//! ```
//! use overhear_budget::{EventPrice, Overhead};
//! use overhear_ranges::function_budget::{FunctionBudget, Observation, Usage};
//!
//! let (target, base) = (Overhead::from_percent(10.0)?, Overhead::from_percent(0.0)?);
//! let mut budget = FunctionBudget::new(target, base)?;
//! budget.set_price(0, EventPrice::from_ns(1.0, 0.01)?);
//! // A function that would cost as much as the program itself if all of it were recorded.
//! let seen = Observation { updates: 1_000_000, monitored: 1_000, passes: 10_000, pairs: 2e3,
//!     is_capped: false };
//! budget.round(Usage { now_ns: 10_000_000, cpu_ns: 10_000_000, own_ns: 0 }, &[seen]);
//! assert!(budget.allowance(0).unwrap().share < 0.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod control;
pub mod estimate;
pub mod function_budget;
pub mod layout;
mod memory;
pub mod results;
mod runtime;
pub mod wrapper;
