// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear` from the user's view: exit statuses, messages, signals, terminals, full disks,
//! damaged recordings, and killed recorders.

mod calibrate;
mod check;
mod compensated;
mod hangups;
mod hostile_imports;
mod imports;
mod kernel_imports;
mod kills;
mod limits;
mod lttng;
mod metrics;
mod naps;
mod offline;
mod on_terminal;
mod other_threads;
#[path = "../../../overhear-trace/tests/support/packets.rs"]
mod packets;
mod pages;
mod ranges;
mod record;
mod recordings;
mod response_times;
mod sampling;
mod signals;
#[path = "../../../overhear-trace/tests/support/small_disk.rs"]
mod small_disk;
mod statuses;
mod support;
mod terminal;
mod trace_logs;
mod untrusted;
mod view;
#[path = "../../../overhear-monitor/tests/support/witness.rs"]
mod witness;
