// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel sensors: context switches, wake-ups and other kernel events of a program that has no
//! sensor of its own.
//!
//! Input: kernel events, such as context switches, wake-ups, and begin and end of threads. Output:
//! ordinary streams, one per hook and CPU; [`overhear_event::kernel`] describes their elements.
//! Seven nouns:
//!
//! - [`Kernel`] is a [`Source`](overhear_event::Source) of kernel events. It follows processes: all
//!   their threads, and all threads and processes that these create.
//! - [`KernelMonitor`] has the life cycle of [MKM, section 4]: it is created suspended, resumed,
//!   read, terminated. It tracks selected threads.
//! - [`Sensor`] is a kind of kernel event: scheduling, page faults, system calls, ....
//! - [`Probe`] is a function or static probe of programs that becomes a kernel sensor.
//! - [`KernelSampler`] takes samples of threads: differences of their accounts and counters.
//! - [`Backend`] is the requested source of events: BPF programs, perf records, or the best one
//!   that is permitted.
//! - [`Status`] is the backend that was selected, with one message that gives the reason.
//!
//! ```
//! use overhear_event::Source;
//! use overhear_kernel::{CountingInbox, Kernel};
//!
//! let mut kernel = Kernel::builder().build()?;
//! println!("{}", kernel.status().message);
//! kernel.follow(std::process::id())?;
//! std::thread::sleep(std::time::Duration::from_millis(1));
//! kernel.finish();
//! let mut counts = CountingInbox::default();
//! kernel.poll(&mut counts)?;
//! println!("{} elements, {} missed", counts.elements, counts.missed);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The two sensors
//!
//! | | BPF | perf |
//! |---|---|---|
//! | needs | CAP_BPF and CAP_PERFMON, a kernel with BTF (6.1 or newer) | `kernel.perf_event_paranoid` up to 2, own processes |
//! | a switch is | one element with both threads | a departure and an arrival |
//! | voluntary or not | as the kernel counts it, always | a sleep that a pending signal prevented counts as preemption |
//! | wake-ups | begin and end | none; a sampler samples runnable time from `/proc/PID/task/TID/schedstat` |
//! | exit code | yes | no |
//! | CPU time up to the exit | yes, but 0 for a short life whose arrival was not seen | no |
//! | a thread's last departure | yes | no: the kernel drops its events before |
//! | thread ids | of the initial PID namespace | of the monitor's PID namespace |
//! | lost elements | exact, per hook; recursion misses: an upper bound, reported at the end | exact as a sum, reported in the stream of switches |
//!
//! At the begin of a wake-up, `target_cpu` is the CPU on which the thread ran last; at its end, the
//! CPU on which it will run. `PREEMPTED` and `prev_state` of a switch are valid for every leaving
//! thread, `VOLUNTARY` only for tracked threads. When a thread other than the leader executes a
//! program, it gets the leader's id. The EXEC element has the new id, and with BPF the old one as
//! `parent_tid`; the old id ends there without an EXIT. Worker threads that io_uring creates inside
//! the kernel are not followed.
//!
//! In some virtual machines no tracepoint fires (neither for BPF nor for ftrace) when certain
//! threads of the guest agent leave a CPU. So a thread can leave a CPU without a recorded arrival.
//! With BPF the departure then gives the time of the arrival (`prev_run_ns`). Monitors detect
//! further losses and count them with the cause `inconsistent`.
//!
//! # Design constraints
//!
//! Reading makes no system call and never waits for a writer. The rings of BPF programs are mapped
//! read-only and frozen, so that no other process can write them; overwritten elements are counted.
//! A poll delivers only the elements that were committed before it began, so a busy machine cannot
//! keep the monitor in it. No result of a system call makes this crate panic.
//!
//! The key decision: each monitor has one ring of fixed size per hook and CPU. The price is memory:
//! 4.25 MiB per possible CPU by default, allocated when the monitor is created. In return, programs
//! never contend for a ring and a write is a few stores. A switch of an untracked thread costs one
//! look-up in its task storage.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]

mod bpf;
mod capi;
mod error;
mod fd_transfer;
mod kernel;
mod machine;
mod mapping;
mod monitor;
mod monotonic;
mod perf;
mod probe;
mod prog_stats;
mod resumptions;
mod sampler;
mod samples;
mod sensor;
mod streams;

pub use error::{GiveError, ReceiveError, SelectError, StartError};
pub use kernel::{
    ActiveBackend, Backend, BudgetState, Kernel, KernelBuilder, KernelWrites, Status,
};
pub use machine::{in_initial_pid_namespace, possible_cpus};
pub use monitor::{CountingInbox, KernelMonitor};
pub use probe::{Probe, ProbeError};
pub use prog_stats::{ProgStats, ProgStatsError, ProgStatsGuard};
pub use samples::{FlowPoint, JobEndPoint, KernelSampler, SamplerError};
pub use sensor::{ring_bytes, Sensor, UnknownSensor};
