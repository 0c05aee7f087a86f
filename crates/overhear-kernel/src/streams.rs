// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hooks, feeds, and the numbers of their streams.

use std::sync::Arc;

use overhear_event::kernel::events;
use overhear_event::kernel::{
    Life, SchedStat, Switch, Wake, SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE,
};
use overhear_event::{Origin, StreamDescriptor, StreamId, TypeSchema};
use overhear_stream::{Geometry, LayoutError};

use crate::fd_transfer::Decoder;
use crate::probe::ResolvedProbe;

/// A place in the kernel that produces elements; it has one stream per CPU. The numbers are those
/// of the ring slots (`enum slot` in `monitors.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hook {
    /// Context switches.
    Switch = 0,
    /// Wake-ups.
    Wake = 1,
    /// Fork, exec, exit, rename; beginning and end of tracking.
    Life = 2,
    /// Page faults.
    Fault = 3,
    /// Requests to block devices.
    Block = 4,
    /// System calls.
    Call = 5,
    /// Futex waits.
    Futex = 6,
    /// Signals.
    Signal = 7,
    /// Hard interrupts.
    Irq = 8,
    /// Soft interrupts.
    Softirq = 9,
    /// Timers.
    Timer = 10,
    /// Migrations.
    Migrate = 11,
    /// Idle states of CPUs.
    Idle = 12,
    /// Frequencies of CPUs.
    Frequency = 13,
    /// Messages through pipes and sockets.
    Ipc = 14,
    /// Switches of threads to themselves.
    Flutter = 15,
    /// The scheduler at work.
    Schedule = 16,
    /// Waits for locks of the kernel, and inherited priorities.
    Lock = 17,
    /// Functions and static probes of programs. This is the first of several slots.
    Probe = 18,
}

impl Hook {
    /// Hooks of scheduling, in the order of their numbers.
    pub(crate) const SCHED: [Self; 3] = [Self::Switch, Self::Wake, Self::Life];

    /// Whether every monitor has this hook.
    pub(crate) const fn is_mandatory(self) -> bool {
        matches!(self, Self::Switch | Self::Life)
    }

    /// Whether its programs keep no state from one event to a later one, so that they can be
    /// detached for a while. An event that began meanwhile is recognised where that matters.
    pub(crate) const fn is_stateless(self) -> bool {
        matches!(
            self,
            Self::Wake | Self::Call | Self::Migrate | Self::Idle | Self::Frequency | Self::Flutter
        )
    }

    /// Optional hooks, in the order of their numbers.
    pub(crate) const OPTIONAL: [Self; 15] = [
        Self::Fault,
        Self::Block,
        Self::Call,
        Self::Futex,
        Self::Signal,
        Self::Irq,
        Self::Softirq,
        Self::Timer,
        Self::Migrate,
        Self::Idle,
        Self::Frequency,
        Self::Ipc,
        Self::Flutter,
        Self::Schedule,
        Self::Lock,
    ];

    /// The sensor's name.
    pub(crate) const fn sensor(self) -> &'static str {
        match self {
            Self::Switch => SCHED_SWITCH,
            Self::Wake => SCHED_WAKE,
            Self::Life => TASK_LIFE,
            Self::Fault => events::PAGE_FAULT,
            Self::Block => events::BLOCK_IO,
            Self::Call => events::SYSCALL,
            Self::Futex => events::FUTEX,
            Self::Signal => events::SIGNAL,
            Self::Irq => events::IRQ,
            Self::Softirq => events::SOFTIRQ,
            Self::Timer => events::TIMER,
            Self::Migrate => events::SCHED_MIGRATE,
            Self::Idle => events::CPU_IDLE,
            Self::Frequency => events::CPU_FREQUENCY,
            Self::Ipc => events::IPC,
            Self::Flutter => events::FLUTTER,
            Self::Schedule => events::SCHEDULE,
            Self::Lock => events::LOCK,
            Self::Probe => "probe",
        }
    }

    pub(crate) fn schema(self) -> TypeSchema {
        match self {
            Self::Switch => Switch::schema(),
            Self::Wake => Wake::schema(),
            Self::Life => Life::schema(),
            Self::Fault => events::page_fault_schema(),
            Self::Block => events::block_io_schema(),
            Self::Call => events::syscall_schema(),
            Self::Futex => events::futex_schema(),
            Self::Signal => events::signal_schema(),
            Self::Irq => events::irq_schema(),
            Self::Softirq => events::softirq_schema(),
            Self::Timer => events::timer_schema(),
            Self::Migrate => events::sched_migrate_schema(),
            Self::Idle => events::cpu_idle_schema(),
            Self::Frequency => events::cpu_frequency_schema(),
            Self::Ipc => events::ipc_schema(),
            Self::Flutter => events::flutter_schema(),
            Self::Schedule => events::schedule_schema(),
            Self::Lock => events::lock_schema(),
            Self::Probe => events::probe_schema(),
        }
    }

    /// The streams of this hook; each ring has `capacity` elements.
    pub(crate) fn feed(self, capacity: u32) -> Feed {
        Feed {
            hook: self,
            slot: self as u32,
            sensor: self.sensor().to_owned(),
            instance: String::new(),
            schema: Arc::new(self.schema()),
            capacity,
        }
    }
}

/// The streams of the `number`th probe of a monitor.
pub(crate) fn probe_feed(resolved: &ResolvedProbe, number: usize, capacity: u32) -> Feed {
    Feed {
        hook: Hook::Probe,
        slot: Hook::Probe as u32 + number as u32,
        sensor: resolved.probe.sensor(),
        instance: resolved.probe.instance(),
        schema: Arc::clone(&resolved.schema),
        capacity,
    }
}

/// A ring takes whole pages of this size, even if the machine's pages are larger.
pub(crate) const PAGE_BYTES: u32 = 4096;

/// Bytes per element in a ring: stamp and payload, rounded up to a power of two.
pub(crate) fn stride_of(schema: &TypeSchema) -> u32 {
    (8 + schema.size()).next_power_of_two()
}

/// The streams of one hook of a monitor: one per CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Feed {
    /// Hook whose programs write the elements.
    pub(crate) hook: Hook,
    /// Ring slot.
    pub(crate) slot: u32,
    /// The sensor's name.
    pub(crate) sensor: String,
    /// Name that distinguishes sensors with the same id.
    pub(crate) instance: String,
    pub(crate) schema: Arc<TypeSchema>,
    /// Elements per ring, a power of two.
    pub(crate) capacity: u32,
}

impl Feed {
    /// Bytes per element in a ring: stamp and payload, rounded up to a power of two.
    pub(crate) fn stride_bytes(&self) -> u32 {
        stride_of(&self.schema)
    }

    /// The layout of a ring.
    pub(crate) fn geometry(&self) -> Result<Geometry, LayoutError> {
        Geometry::with_stride(
            self.schema.size(),
            self.stride_bytes(),
            self.capacity.into(),
        )
    }
}

/// Stream numbers: feed by feed, CPU by CPU, then the sampler.
///
/// They do not depend on the backend, so the caller can assign the following numbers to its own
/// streams before the start, and two runs on one machine have the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbering {
    first: u32,
    cpus: u32,
    feeds: u32,
}

impl Numbering {
    pub(crate) const fn new(first: StreamId, cpus: u32, feeds: u32) -> Self {
        Self {
            first: first.as_raw(),
            cpus,
            feeds,
        }
    }

    /// The arguments of [`Self::new`].
    pub(crate) const fn as_raw(self) -> [u32; 3] {
        [self.first, self.cpus, self.feeds]
    }

    /// Decodes the result of [`Self::as_raw`]; `None` if it is not valid. There are at most
    /// `most_feeds` feeds.
    pub(crate) fn unpack(from_untrusted: &mut Decoder<'_>, most_feeds: u32) -> Option<Self> {
        /// More CPUs than any kernel supports.
        const MAX_CPUS: u64 = 65_536;
        let first = from_untrusted.half()?;
        let cpus = from_untrusted.up_to(MAX_CPUS)? as u32;
        let feeds = from_untrusted.up_to(most_feeds.into())? as u32;
        Some(Self { first, cpus, feeds })
    }

    /// Possible CPUs.
    pub(crate) const fn cpus(self) -> u32 {
        self.cpus
    }

    /// Number of reserved stream numbers.
    pub(crate) const fn used(self) -> u32 {
        self.cpus * self.feeds + 1
    }

    pub(crate) const fn id(self, feed: u32, cpu: u32) -> StreamId {
        self.at(feed * self.cpus + cpu)
    }

    const fn at(self, offset: u32) -> StreamId {
        StreamId::from_raw(self.first.saturating_add(offset))
    }

    /// The stream of schedstat samples.
    pub(crate) const fn sampler(self) -> StreamId {
        self.at(self.used() - 1)
    }

    /// Describes the stream of a feed, the `number`th, on one CPU.
    pub(crate) fn describe(
        self,
        number: u32,
        feed: &Feed,
        cpu: u32,
        capacity: u64,
    ) -> Arc<StreamDescriptor> {
        Arc::new(StreamDescriptor {
            instance: feed.instance.clone(),
            capacity,
            ..StreamDescriptor::new(
                self.id(number, cpu),
                Origin::Kernel { cpu },
                feed.sensor.clone(),
                Arc::clone(&feed.schema),
            )
        })
    }

    /// Describes the stream of schedstat samples.
    pub(crate) fn describe_sampler(self) -> Arc<StreamDescriptor> {
        Arc::new(StreamDescriptor::new(
            self.sampler(),
            Origin::Sampler,
            SCHEDSTAT,
            SchedStat::schema(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::{Hook, Numbering, StreamId};

    #[test]
    fn numbers_are_dense_and_schemas_fit_a_ring() {
        let numbering = Numbering::new(StreamId::from_raw(10), 4, 3);
        let mut ids: Vec<u32> = (0..3)
            .flat_map(|feed| (0..4).map(move |cpu| numbering.id(feed, cpu).as_raw()))
            .collect();
        ids.push(numbering.sampler().as_raw());
        assert_eq!(ids, (10..10 + numbering.used()).collect::<Vec<_>>());
        for (number, hook) in Hook::SCHED.into_iter().chain(Hook::OPTIONAL).enumerate() {
            assert_eq!(hook as usize, number);
            assert!(hook.feed(8).geometry().is_ok(), "{}", hook.sensor());
        }
    }
}
