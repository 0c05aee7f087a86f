// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command `overhear` compared with independent counts: the kernel's own, getrusage, the
//! threads' CPU clocks, `perf sched record` and `timehist`, `strace -T`, babeltrace2.
//!
//! No test limits a time. A test that cannot run on this machine prints "skipped: REASON".

mod evaluated;
mod experiment;
mod first_call;
mod harness;
mod metrics;
mod needed;
mod ordinary_user;
mod parked;
mod perf_sched;
mod perf_timehist;
mod posix_experiment;
mod probes;
mod recorded;
mod run_time;
mod samples;
mod sensing;
mod strace;
mod stripped;
mod unmodified;
mod waiting;
#[path = "../../../overhear-monitor/tests/support/witness.rs"]
mod witness;
