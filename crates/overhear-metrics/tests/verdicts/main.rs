// SPDX-License-Identifier: MIT OR Apache-2.0
//! Verdicts over traces that were computed by hand: every kind of constraint held, violated,
//! excused by missed elements before and after the decision, and within the clock error.

mod anomalies;
mod scene;
mod sequences;
mod times;
mod values;
