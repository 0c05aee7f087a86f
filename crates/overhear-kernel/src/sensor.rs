// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Sensor`]: a kernel sensor, by name.

use std::fmt;
use std::str::FromStr;

use overhear_event::{EventName, EventSet, TypeSchema};
use overhear_stream::Geometry;

use crate::streams::{stride_of, Hook, PAGE_BYTES};

/// A kernel sensor. All sensors of scheduling are on, unless the request names only some of them;
/// all other sensors are off by default and need BPF. See
/// [`KernelBuilder::sensors`](crate::KernelBuilder::sensors).
///
/// ```
/// use overhear_kernel::Sensor;
///
/// let sensor: Sensor = "page_fault".parse()?;
/// assert_eq!(
///     sensor.description(),
///     "page faults, with address and code, and when they were served"
/// );
/// assert!("page_fualt".parse::<Sensor>().is_err());
/// assert!(Sensor::all().any(|known| known == sensor));
/// # Ok::<(), overhear_kernel::UnknownSensor>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sensor(Hook);

/// No kernel sensor has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kernel sensor {name:?}; there are {}", names())]
pub struct UnknownSensor {
    /// The name as given.
    pub name: String,
}

fn names() -> String {
    let names: Vec<&str> = Sensor::all().map(Sensor::name).collect();
    names.join(", ")
}

impl Sensor {
    /// All sensors, in the order of their streams: those of scheduling first.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::scheduling().chain(Hook::OPTIONAL.into_iter().map(Self))
    }

    /// The sensors of scheduling: context switches, wake-ups, and the lives of threads.
    /// `sched_switch` and `task_life` are mandatory.
    pub fn scheduling() -> impl Iterator<Item = Self> {
        Hook::SCHED.into_iter().map(Self)
    }

    /// Whether it is one of [`Self::scheduling`].
    #[must_use]
    pub fn is_scheduling(self) -> bool {
        Hook::SCHED.contains(&self.0)
    }

    /// Sensors that these events need, in the order of their streams, and the mandatory ones: the
    /// minimum for a monitor of these events.
    ///
    /// ```
    /// use overhear_event::{EventName, EventSet};
    /// use overhear_kernel::Sensor;
    ///
    /// let kernel = ["syscall", "sched_switch"].map(EventName::kernel);
    /// let events: EventSet = kernel.into_iter().chain([EventName::user("queue")]).collect();
    /// let needed: Vec<&str> = Sensor::required_by(&events).map(Sensor::name).collect();
    /// assert_eq!(needed, ["sched_switch", "task_life", "syscall"]);
    /// ```
    pub fn required_by(events: &EventSet) -> impl Iterator<Item = Self> + '_ {
        Self::all().filter(|sensor| {
            sensor.0.is_mandatory() || events.contains(&EventName::kernel(sensor.name()))
        })
    }

    /// The name of its streams; its events are `kernel:NAME`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.sensor()
    }

    /// Description of its events, as a phrase.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self.0 {
            Hook::Switch => "context switches; always on",
            Hook::Wake => {
                "wake-ups, begin and end; on unless only other scheduling sensors are named"
            }
            Hook::Life => "threads begin, end, are renamed, are tracked; always on",
            Hook::Fault => "page faults, with address and code, and when they were served",
            Hook::Block => "block I/O from issue to completion, with latency",
            Hook::Call => "system calls, entry and exit with number, first argument and result",
            Hook::Futex => "futex waits, with address and the time waited",
            Hook::Signal => "signals, generated and delivered",
            Hook::Irq => "hard interrupts, begin and end, of devices and between CPUs",
            Hook::Softirq => "soft interrupts, raised, begin and end",
            Hook::Timer => "timers that expire, with their delay",
            Hook::Migrate => "migrations to another CPU, and who caused them",
            Hook::Idle => "idle states of CPUs",
            Hook::Frequency => "frequencies of CPUs",
            Hook::Schedule => "the scheduler at work, entry and exit",
            Hook::Lock => "waits for the kernel's locks, with holder, and inherited priorities",
            Hook::Probe => "functions and static probes of programs",
            Hook::Flutter => "switches of threads to themselves",
            Hook::Ipc => "bytes sent and received through pipes and sockets",
        }
    }

    /// Schema of its elements.
    #[must_use]
    pub fn schema(self) -> TypeSchema {
        self.0.schema()
    }

    pub(crate) const fn hook(self) -> Hook {
        self.0
    }
}

/// Size of one CPU's ring in memory, in bytes: whole pages, with its header. `None` if there can be
/// no such ring.
#[must_use]
pub fn ring_bytes(schema: &TypeSchema, elements: u64) -> Option<u64> {
    let stride = stride_of(schema);
    let geometry = Geometry::with_stride(schema.size(), stride, elements).ok()?;
    Some((geometry.bytes() as u64).next_multiple_of(PAGE_BYTES.into()))
}

impl fmt::Display for Sensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Sensor {
    type Err = UnknownSensor;

    fn from_str(name: &str) -> Result<Self, UnknownSensor> {
        let found = Self::all().find(|sensor| sensor.name() == name);
        found.ok_or_else(|| UnknownSensor {
            name: name.to_owned(),
        })
    }
}
