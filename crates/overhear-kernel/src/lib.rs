// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel sensors: what the scheduler does with a program, without a sensor in the program.
//!
//! Into this crate flow context switches, wake-ups, and the beginnings and ends of threads, as
//! the kernel sees them. Out of it flow ordinary streams, three hooks with one stream per CPU,
//! whose elements are described in [`overhear_event::kernel`]. Six nouns handle them:
//!
//! - [`Kernel`] is the sensor at work and a [`Source`](overhear_event::Source). It follows
//!   processes: their threads, and all threads and processes these create.
//! - [`KernelMonitor`] is the same as an object with the life that seed 003 gives it: created
//!   suspended, resumed, read, terminated, and tracking the threads it is told to.
//! - [`Sensor`] is what can be heard: scheduling, all of it or as much as is wanted, page faults, system calls, ....
//! - [`Probe`] is a function or static probe of programs that becomes a kernel sensor.
//! - [`Choice`] is what the user asked for: BPF programs, perf records, or the best there is.
//! - [`Status`] is what the user got, with one sentence that says why.
//!
//! ```
//! use overhear_event::Source;
//! use overhear_kernel::{Count, Kernel};
//!
//! let mut kernel = Kernel::builder().build()?;
//! println!("{}", kernel.status().sentence);
//! kernel.follow(std::process::id())?;
//! std::thread::sleep(std::time::Duration::from_millis(1));
//! kernel.finish();
//! let mut counts = Count::default();
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
//! | wake-ups | begin and end | none; a clerk samples runnable time from `/proc/PID/task/TID/schedstat` |
//! | exit code | yes | no |
//! | CPU time up to the exit | yes, but 0 for a short life whose arrival was not seen | no |
//! | a thread's last departure | yes | no: the kernel drops its events before |
//! | thread ids | of the initial PID namespace | of the monitor's PID namespace |
//! | lost elements | exact, per hook; not entered programs: an upper bound, told at the end | exact as a sum, reported in the stream of switches |
//!
//! A wake-up's `target_cpu` is where the thread ran last when the wake-up begins, and where it
//! will run when it ends. `PREEMPTED` and `prev_state` of a switch hold for every leaving thread,
//! `VOLUNTARY` only for tracked ones: others' counts are not watched. When a thread that is not
//! the leader executes a program, it takes over the leader's id; the EXEC element has the new
//! one, and with BPF the old one as `parent_tid`, which ends there without an EXIT. Worker threads that io_uring creates inside the kernel are not followed.
//!
//! Be prepared for a thread that leaves a CPU on which its arrival was not seen: in some virtual
//! machines no tracepoint fires (neither for BPF nor for ftrace) when certain threads of the
//! guest's own agent leave a CPU. With BPF the departure says when the thread arrived (`prev_run_ns`). Monitors find what is
//! lost beyond that, and count it with the cause `inconsistent`.
//!
//! # Design constraints
//!
//! Reading takes no system call and never waits for a writer: the rings of BPF programs are
//! mapped read-only and frozen, so that nobody else can write them, and overwritten elements are
//! counted. A poll delivers what was committed before it began and no more, so a busy machine
//! cannot hold the monitor in it. Nothing here panics on what the kernel says or refuses.
//!
//! The decision with a price is one ring per monitor, hook and CPU in memory of fixed size: 4.25 MiB per
//! possible CPU by default, taken when a monitor is created. It buys rings that programs
//! never contend for and a writer that is a handful of stores; a switch of an untracked thread
//! costs one look-up in its task storage.

mod bpf;
mod capi;
mod error;
mod kernel;
mod machine;
mod mapping;
mod monitor;
mod order;
mod passing;
mod perf;
mod probe;
mod resumptions;
mod runs;
mod schedstat;
mod sensor;
mod streams;

pub use error::{GiveError, ReceiveError, SelectError, StartError};
pub use kernel::{Active, Choice, Kernel, KernelBuilder, Status};
pub use machine::{in_initial_pid_namespace, possible_cpus};
pub use monitor::{Count, KernelMonitor};
pub use probe::{Probe, ProbeError};
pub use runs::{RunClock, RunClockError, Runs};
pub use sensor::{ring_bytes, Sensor, UnknownSensor};
