// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why counters cannot be used.

use rustix::io::Errno;

use super::MAX_COUNTERS;
use crate::perf_event::perf_event_paranoid;

/// Why a group of counters cannot be opened. Each message is a sentence for the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CounterError {
    /// No counter has this name.
    #[error("there is no counter `{name}`; {}", similar_names(similar))]
    Unknown {
        /// The name.
        name: String,
        /// Names like it.
        similar: Vec<String>,
    },
    /// The name is not formed correctly.
    #[error("the counter `{name}` is invalid: {reason}")]
    Syntax {
        /// The name.
        name: String,
        /// The mistake.
        reason: String,
    },
    /// An event stands in the list twice.
    #[error("the counter `{0}` is in the list twice; remove one")]
    Twice(String),
    /// The list has too many entries, or none.
    #[error("{0} counters were named; a sampler has 1 to {MAX_COUNTERS}")]
    Number(usize),
    /// The machine does not have this counter.
    #[error("the counter `{name}` does not exist here: {reason}")]
    Unsupported {
        /// The name.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The user may not open it.
    #[error("the counter `{name}` is not permitted: {reason}")]
    NotPermitted {
        /// The name.
        name: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// The CPU has too few counters for the group.
    #[error(
        "{asked} counters were named and {fit} fit at once: this CPU has no counter left for \
         `{name}`. Remove some{}",
        watchdog()
    )]
    TooMany {
        /// The first event that does not fit.
        name: String,
        /// The number of events before it.
        fit: usize,
        /// The number of events in the list.
        asked: usize,
    },
    /// The counters exist, but others use them.
    #[error(
        "the CPU's counters are in use, by `perf stat` for example: {fit} of the {asked} counters \
         that were named fit at present. End the other program, or remove some{}",
        watchdog()
    )]
    Taken {
        /// The number of events, from the first one, for which there are counters at present.
        fit: usize,
        /// The number of events in the list.
        asked: usize,
    },
    /// The thread or the CPU is not there.
    #[error("counters cannot be opened: {0}")]
    Gone(&'static str),
    /// The kernel refuses for another reason.
    #[error("opening the counter `{name}` failed: {reason}")]
    Failed {
        /// The name.
        name: String,
        /// The kernel's reason.
        reason: String,
    },
}

impl CounterError {
    /// Whether the list of names is wrong. Otherwise the machine lacks something.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::Unknown { .. } | Self::Syntax { .. } | Self::Twice(_) | Self::Number(_)
        )
    }

    /// The counter that must be removed from the list; `None` if it is not a single one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Unknown { name, .. }
            | Self::Syntax { name, .. }
            | Self::Twice(name)
            | Self::Unsupported { name, .. }
            | Self::NotPermitted { name, .. }
            | Self::TooMany { name, .. }
            | Self::Failed { name, .. } => Some(name),
            Self::Number(_) | Self::Taken { .. } | Self::Gone(_) => None,
        }
    }

    /// Why the counter cannot be used, without its name.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Syntax { reason, .. }
            | Self::Unsupported { reason, .. }
            | Self::NotPermitted { reason, .. }
            | Self::Failed { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }

    /// The number of counters of the list that fit; `None` if this is not the reason.
    #[must_use]
    pub const fn fit(&self) -> Option<usize> {
        match self {
            Self::TooMany { fit, .. } | Self::Taken { fit, .. } => Some(*fit),
            _ => None,
        }
    }

    /// The error for the first event of a group, which is alone in it.
    pub(super) fn of_open(name: &str, errno: Errno) -> Self {
        let name = name.to_owned();
        let unsupported = |reason: &str| Self::Unsupported {
            name: name.clone(),
            reason: reason.to_owned(),
        };
        match errno {
            Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV | Errno::NXIO if has_no_pmu() => {
                unsupported("this machine has no hardware counters, as many virtual machines")
            }
            Errno::NOENT | Errno::OPNOTSUPP | Errno::NODEV | Errno::NXIO | Errno::INVAL => {
                unsupported("the CPU or its driver does not count it in this mode")
            }
            Errno::ACCESS | Errno::PERM => Self::NotPermitted {
                name,
                reason: not_permitted(),
            },
            Errno::SRCH => Self::Gone("the thread has ended"),
            Errno::NOSYS => unsupported("this kernel has no perf events"),
            Errno::BUSY => Self::Taken { fit: 0, asked: 1 },
            Errno::MFILE | Errno::NFILE => Self::Failed {
                name,
                reason: "the limit of open files is reached; raise `ulimit -n`".to_owned(),
            },
            other => Self::Failed {
                name,
                reason: std::io::Error::from(other).to_string(),
            },
        }
    }
}

/// Whether the kernel found no counters of the CPU: their driver registers a device for sysfs.
fn has_no_pmu() -> bool {
    // "cpu" on most; "cpu_core" and "cpu_atom"; "armv8_pmuv3" and the like.
    let devices = std::fs::read_dir(super::pmu::DEVICES);
    !devices.into_iter().flatten().any(|entry| {
        let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
        let name = name.to_string_lossy();
        name.starts_with("cpu") || name.starts_with("armv")
    })
}

fn not_permitted() -> String {
    match perf_event_paranoid() {
        Some(level) if level >= 3 => format!(
            "kernel.perf_event_paranoid is {level}, which forbids ordinary users to count, on many \
             kernels even their own programs in user mode; set it to 2 or less, or give the program \
             CAP_PERFMON"
        ),
        Some(level) if level >= 0 => format!(
            "kernel.perf_event_paranoid is {level}, which forbids ordinary users to count for a \
             whole CPU{}; set it to {}, or give the program CAP_PERFMON",
            if level == 2 {
                ", in the kernel or for other users' programs"
            } else {
                " or for other users' programs"
            },
            if level == 2 { "1 or -1" } else { "-1" }
        ),
        _ => "the program belongs to another user, or a seccomp filter or a security module \
              forbids it"
            .to_owned(),
    }
}

fn similar_names(similar: &[String]) -> String {
    match similar {
        [] => "`overhear doctor --counters` lists them".to_owned(),
        names => format!("similar names: {}", names.join(", ")),
    }
}

/// The kernel's watchdog for hard lockups occupies a counter of x86 CPUs.
fn watchdog() -> &'static str {
    match std::fs::read_to_string("/proc/sys/kernel/nmi_watchdog") {
        Ok(text) if text.trim() == "1" => {
            ", or set kernel.nmi_watchdog to 0, which frees one counter"
        }
        _ => "",
    }
}

/// The group counts no more: the kernel could not place all of its events on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel has taken the counters away, for another user that may demand them; end it, or name fewer counters")]
pub struct CountersLost;
