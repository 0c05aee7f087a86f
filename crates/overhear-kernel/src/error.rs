// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, by operation. Every message is a sentence for the user.

use std::path::PathBuf;

use crate::ProbeError;

/// Why kernel sensors could not be started. [`Choice::Auto`](crate::Choice::Auto) and
/// [`Choice::Off`](crate::Choice::Off) fail only for ring sizes and probes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The size of a ring is not usable.
    #[error(
        "a kernel ring cannot have {given} elements; give a power of two from {least} to {most}"
    )]
    RingSize {
        /// As given.
        given: u32,
        /// The smallest size.
        least: u32,
        /// The largest size.
        most: u32,
    },
    /// BPF was asked for by name.
    #[error("the kernel sensors cannot use BPF, because {why}; choose auto or perf instead")]
    Bpf {
        /// The phrase after "because".
        why: String,
    },
    /// A probe is not possible.
    #[error("{0}")]
    Probe(ProbeError),
    /// perf was asked for by name.
    #[error(
        "the kernel sensors cannot use perf records, because {why}; choose auto or off instead"
    )]
    Perf {
        /// The phrase after "because".
        why: String,
    },
}

impl From<ProbeError> for StartError {
    fn from(error: ProbeError) -> Self {
        Self::Probe(error)
    }
}

/// Why something cannot be monitored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// There is no such process, or it ended meanwhile.
    #[error("process {pid} cannot be followed, because it does not exist (any more)")]
    NoSuchProcess {
        /// The process.
        pid: u32,
    },
    /// There is no such thread, or it ended meanwhile.
    #[error("thread {tid} cannot be monitored, because it does not exist (any more)")]
    NoSuchThread {
        /// The thread.
        tid: u32,
    },
    /// The thread is not monitored by this monitor.
    #[error("thread {tid} is not monitored here, so there is nothing to take back")]
    NotMonitored {
        /// The thread.
        tid: u32,
    },
    /// The path does not name a cgroup.
    #[error("{} cannot be monitored as a cgroup, because {why}", path.display())]
    NoCgroup {
        /// The path.
        path: PathBuf,
        /// The phrase after "because".
        why: String,
    },
    /// The sensor at work cannot select this.
    #[error("{what} cannot be monitored by perf records: {why}")]
    NeedsBpf {
        /// What was to be selected.
        what: String,
        /// What is needed for it.
        why: String,
    },
    /// The kernel does not let us.
    #[error("{what} cannot be followed, because the kernel refused: {why}")]
    Refused {
        /// What was to be selected.
        what: String,
        /// What was refused.
        why: String,
    },
    /// The monitor has been terminated.
    #[error("this kernel monitor has been terminated; create another one")]
    Terminated,
}
