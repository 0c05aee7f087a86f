// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, by operation. Every message is a sentence for the user.

/// Why kernel sensors could not be started. [`Choice::Auto`](crate::Choice::Auto) and
/// [`Choice::Off`](crate::Choice::Off) fail only with the first.
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
    /// perf was asked for by name.
    #[error(
        "the kernel sensors cannot use perf records, because {why}; choose auto or off instead"
    )]
    Perf {
        /// The phrase after "because".
        why: String,
    },
}

/// Why a process cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// There is no such process, or it ended meanwhile.
    #[error("process {pid} cannot be followed, because it does not exist (any more)")]
    NoSuchProcess {
        /// The process.
        pid: u32,
    },
    /// The kernel does not let us.
    #[error("process {pid} cannot be followed, because the kernel refused: {why}")]
    Refused {
        /// The process.
        pid: u32,
        /// What was refused.
        why: String,
    },
}
