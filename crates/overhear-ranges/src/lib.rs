// SPDX-License-Identifier: MIT OR Apache-2.0
//! Integer range analysis: which values the integer variables of a program take.
//!
//! ```text
//! source --overhear-clang--> program with two copies of each function
//!                              |  credit used up            ^ shares
//!                              v                            |
//!                            runtime: stretches, accounts, pairs --> prices --> law
//!                              |
//!                              v  mapped file for each process
//!                            results --> variables with range, updates, share of passes
//! ```
//!
//! The pass (`native/ranges/pass`) duplicates functions: the plain copy counts its passes only, the
//! monitored copy records the range of each variable it writes. The `runtime` chooses the copy, so
//! that the cost stays at the target. [`law`] decides without I/O: counts and times are arguments;
//! prices come from the estimator of `overhear-budget`. [`results`] reads what processes leave, and
//! trusts none of it. The program `overhear-clang` is clang with the pass and the runtime.
//!
//! ```
//! use overhear_ranges::law::{Law, Observation, Usage};
//!
//! let mut law = Law::new(0.1, 0.0);
//! // A function that would cost as much as the program itself if all of it were recorded.
//! let seen = Observation { updates: 1e6, monitored: 1e3, passes: 1e4, price_ns: 1.0,
//!     price_error_ns: 0.01, pairs: 2e3 };
//! law.round(Usage { cpu_ns: 10e6, ..Usage::default() }, &[seen]);
//! assert!(law.allowance(0).share < 0.5);
//! ```

mod control;
pub mod law;
pub mod layout;
mod memory;
pub mod results;
mod runtime;
pub mod wrapper;
