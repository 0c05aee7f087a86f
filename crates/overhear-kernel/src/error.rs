// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors by operation. Every message is a message for the user.

use std::path::PathBuf;

use crate::{ProbeError, SamplerError, Sensor};

/// Why kernel sensors could not be started. [`Backend::Auto`](crate::Backend::Auto) and
/// [`Backend::Off`](crate::Backend::Off) fail only for ring sizes and probes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The size of a ring is not usable.
    #[error(
        "a kernel ring cannot have {given} elements; give a power of two from {least} to {most}"
    )]
    RingSize {
        /// The requested size.
        given: u32,
        /// The smallest size.
        least: u32,
        /// The largest size.
        most: u32,
    },
    /// A ring size was given for a sensor that is not recorded.
    #[error(
        "a ring size was given for {sensor}, which is not among the requested sensors; request it"
    )]
    NoSuchRing {
        /// The sensor.
        sensor: Sensor,
    },
    /// A ring size was given for a probe that is not attached.
    #[error("a ring size was given for {probe}, which is not among the probes; add it as a probe")]
    NoSuchProbeRing {
        /// The probe's sensor.
        probe: String,
    },
    /// BPF was requested, and is not available.
    #[error("the kernel sensors cannot use BPF, because {why}; choose auto or perf instead")]
    Bpf {
        /// The phrase after "because".
        why: String,
    },
    /// A probe is not possible.
    #[error("{0}")]
    Probe(ProbeError),
    /// A sampler is not possible.
    #[error("{0}")]
    Sampler(SamplerError),
    /// perf was requested, and is not available.
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

impl From<SamplerError> for StartError {
    fn from(error: SamplerError) -> Self {
        Self::Sampler(error)
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
    #[error("this monitor does not track thread {tid}")]
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
    /// The backend cannot select this target.
    #[error("{what} cannot be monitored by perf records: {why}")]
    NeedsBpf {
        /// The target.
        what: String,
        /// What is needed for it.
        why: String,
    },
    /// The kernel refused.
    #[error("{what} cannot be followed, because the kernel refused: {why}")]
    Refused {
        /// The target.
        what: String,
        /// The operation that the kernel refused, or its error.
        why: String,
    },
    /// The monitor has been terminated.
    #[error("this kernel monitor has been terminated; create another one")]
    Terminated,
    /// The monitor has been handed over.
    #[error("this kernel monitor has been handed over to another process")]
    HandedOver,
}

/// Reason why a kernel monitor was not handed over. The monitor stays with its owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiveError {
    /// The monitor is not usable any more.
    #[error("{0}")]
    Unavailable(SelectError),
    /// The monitor has finished: there is nothing to continue.
    #[error("a kernel monitor that has finished cannot be handed over; read the remaining elements here")]
    Finished,
    /// The monitor has no sensors.
    #[error("a kernel monitor without sensors cannot be handed over")]
    NoSensors,
    /// Other monitors of this process use the same programs.
    #[error(
        "this kernel monitor shares its BPF programs with {others} of this process; create it \
         with dedicated programs"
    )]
    Shared {
        /// Number of other monitors.
        others: u32,
    },
    /// The probes would end with this process: before Linux 6.6 they are perf events of the process
    /// that attached them.
    #[error(
        "a kernel monitor with probes cannot be handed over before Linux 6.6; let the receiver \
         create it"
    )]
    Probes,
    /// Samplers end with this process.
    #[error("a kernel monitor with samplers cannot be handed over; let the receiver create it")]
    Samplers,
    /// The socket failed.
    #[error("the kernel monitor could not be handed over ({why}); it is still here")]
    Send {
        /// The error of the kernel.
        why: String,
    },
}

/// Reason why no kernel monitor was received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The other side has closed.
    #[error("no kernel monitor was received: the other side has closed the socket")]
    Closed,
    /// The message is not valid.
    #[error(
        "the received message is not a kernel monitor of this version; both programs may be of \
         different versions"
    )]
    InvalidMessage,
    /// The kernel refused.
    #[error("the kernel monitor that was handed over cannot be used ({why})")]
    Refused {
        /// The error of the kernel.
        why: String,
    },
}
