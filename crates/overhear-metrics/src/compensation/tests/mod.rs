// SPDX-License-Identifier: MIT OR Apache-2.0
mod rules;
mod simulated;
mod simulator;
