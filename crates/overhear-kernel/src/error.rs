// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can go wrong, by operation. Every message is a sentence for the user.

use std::path::PathBuf;

use crate::{ProbeError, Sensor};

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
    /// A size was given for a sensor that is not heard.
    #[error(
        "a size was given for the rings of {sensor}, which is not among the sensors that are asked for; ask for it"
    )]
    NoSuchRing {
        /// The sensor.
        sensor: Sensor,
    },
    /// A size was given for a probe that is not attached.
    #[error("a size was given for the rings of {probe}, which is none of the probes; name it as a probe")]
    NoSuchProbeRing {
        /// The probe's sensor.
        probe: String,
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
    /// The monitor has been handed over.
    #[error("this kernel monitor has been handed over: it is another process' now")]
    Given,
}

/// Why a kernel monitor was not handed over; it is where it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GiveError {
    /// There is none any more.
    #[error("{0}")]
    Gone(SelectError),
    /// It has finished: there is nothing to go on with.
    #[error("a kernel monitor that has finished cannot be handed over; read what is left here")]
    Finished,
    /// It hears nothing.
    #[error("a kernel monitor that hears nothing cannot be handed over")]
    Nothing,
    /// Others of this process use the same programs, and would be reached with it.
    #[error(
        "this kernel monitor shares its BPF programs with {others} of this process; create it \
         apart, with programs of its own"
    )]
    Shared {
        /// How many others.
        others: u32,
    },
    /// Its probes would end with this process: before Linux 6.6 they are perf events of who attached them.
    #[error(
        "a kernel monitor with probes cannot be handed over before Linux 6.6; let the receiver \
         create it"
    )]
    Probes,
    /// The socket does not take it.
    #[error("the kernel monitor could not be handed over ({why}); it is still here")]
    Send {
        /// What the kernel said.
        why: String,
    },
}

/// Why no kernel monitor was received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// The other side has closed.
    #[error("no kernel monitor was handed over: the other side has closed the socket")]
    Closed,
    /// Something else came.
    #[error(
        "what was handed over is no kernel monitor that this program understands; both programs \
         may be of different versions"
    )]
    Misunderstood,
    /// The kernel said no.
    #[error("the kernel monitor that was handed over cannot be used ({why})")]
    Refused {
        /// What the kernel said.
        why: String,
    },
}
