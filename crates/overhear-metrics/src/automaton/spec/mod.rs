// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text format of metrics: from text to a checked
//! [`Specification`](specification::Specification).

pub(crate) mod catalogue;
pub(crate) mod check;
pub(crate) mod fault;
pub(crate) mod parse;
mod print;
pub(crate) mod specification;
