// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel sensors against the kernel's own account of real programs.
//!
//! The programs under observation are this test binary itself, executed again with a role
//! (`roles`). A test prints "skipped: REASON" if the machine or the user does not permit it.

mod bpf;
mod budget;
mod continuity;
mod fallback;
mod hand_over;
mod harness;
mod monitors;
mod owners;
mod perf;
mod points;
mod probes;
mod prog_stats;
mod roles;
mod sample_policies;
mod samples;
mod sensors;
