// SPDX-License-Identifier: MIT OR Apache-2.0
//! Counters as one pinned group.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{read, retry_on_intr, Errno};

use super::error::CountersLost;
use super::{CounterError, CounterEvent, MAX_COUNTERS};
use crate::perf_event::{
    open_event, set_enabled, EventAttributes, FLAG_DISABLED, FLAG_ENABLE_ON_EXEC, FLAG_EXCLUDE_HV,
    FLAG_EXCLUDE_KERNEL, FLAG_INHERIT, FLAG_PINNED, PERF_FORMAT_GROUP,
};
use crate::{CostClass, DataSource, Quantity, SourceReadError};

/// The thread or CPU whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterTarget {
    /// The thread that opens the group, on all CPUs.
    CallingThread,
    /// A thread, on all CPUs.
    Thread(u32),
    /// All threads on one CPU.
    Cpu(u32),
}

impl CounterTarget {
    /// The arguments `pid` and `cpu` of perf_event_open.
    fn arguments(self) -> (libc::pid_t, Option<u32>) {
        match self {
            Self::CallingThread => (0, None),
            Self::Thread(tid) => (libc::pid_t::try_from(tid).unwrap_or(-2), None),
            Self::Cpu(cpu) => (-1, Some(cpu)),
        }
    }
}

/// Settings of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterOptions {
    /// Count in user mode only. Without it, the kernel is excluded if the user may not count in
    /// it: see [`CounterGroup::excludes_kernel`].
    pub user_only: bool,
    /// Count the threads that the thread creates, too.
    pub inherit: bool,
    /// Begin when the thread executes another program.
    pub on_exec: bool,
}

/// Counters that count at the same time, all the time.
///
/// Holding a value proves that all events were opened and that the group had its counters then.
/// The kernel may take them away later, for a group that is pinned to a whole CPU: then
/// [`CounterGroup::read`] fails.
#[derive(Debug)]
pub struct CounterGroup {
    // The first is the leader.
    events: Vec<OwnedFd>,
    quantities: Vec<Quantity>,
    excludes_kernel: bool,
    // Number of events, then their values.
    buffer: [u8; 8 * (1 + MAX_COUNTERS)],
}

impl CounterGroup {
    /// Opens these events as one pinned group and starts it.
    ///
    /// # Errors
    /// [`CounterError`]; where the counters do not suffice, it has the number that fits.
    pub fn open(
        events: &[CounterEvent],
        target: CounterTarget,
        options: CounterOptions,
    ) -> Result<Self, CounterError> {
        if events.is_empty() || events.len() > MAX_COUNTERS {
            return Err(CounterError::Number(events.len()));
        }
        for (index, event) in events.iter().enumerate() {
            let name = &event.quantity().name;
            if events[..index].iter().any(|it| &it.quantity().name == name) {
                return Err(CounterError::Twice(event.name().to_owned()));
            }
        }
        let refused = match Self::open_in_mode(events, target, options) {
            Err(CounterError::NotPermitted { reason, .. }) if !options.user_only => {
                let user_only = CounterOptions {
                    user_only: true,
                    ..options
                };
                match events.iter().find(|event| !event.counts_in_user_mode()) {
                    // The others may be permitted without it.
                    Some(event) => Err(CounterError::NotPermitted {
                        name: event.name().to_owned(),
                        reason,
                    }),
                    None => Self::open_in_mode(events, target, user_only),
                }
            }
            result => result,
        };
        let Err(CounterError::Taken { asked, .. }) = refused else {
            return refused;
        };
        // The first part that others leave room for; the group has been closed by now.
        let room = |fit: &usize| Self::open_in_mode(&events[..*fit], target, options).is_ok();
        let fit = (1..asked).rev().find(room).unwrap_or(0);
        Err(CounterError::Taken { fit, asked })
    }

    fn open_in_mode(
        events: &[CounterEvent],
        target: CounterTarget,
        options: CounterOptions,
    ) -> Result<Self, CounterError> {
        let (pid, cpu) = target.arguments();
        let mut opened: Vec<OwnedFd> = Vec::with_capacity(events.len());
        for event in events {
            let leader = opened.first().map(AsFd::as_fd);
            let mut attributes = event.attributes();
            attributes.read_format = PERF_FORMAT_GROUP;
            if leader.is_none() {
                attributes.flags |= FLAG_DISABLED | FLAG_PINNED;
            }
            for (flag, is_set) in [
                (FLAG_ENABLE_ON_EXEC, options.on_exec && leader.is_none()),
                (FLAG_INHERIT, options.inherit),
                (FLAG_EXCLUDE_KERNEL | FLAG_EXCLUDE_HV, options.user_only),
            ] {
                attributes.flags |= if is_set { flag } else { 0 };
            }
            let descriptor = open_event(&attributes, pid, cpu, leader).map_err(|errno| {
                // Alone it opens: so the CPU has no place for it beside the others.
                let alone = || open_event(&alone(attributes), pid, cpu, None).is_ok();
                match errno {
                    Errno::INVAL | Errno::NOSPC if leader.is_some() && alone() => {
                        CounterError::TooMany {
                            name: event.name().to_owned(),
                            fit: opened.len(),
                            asked: events.len(),
                        }
                    }
                    Errno::NODEV if cpu.is_some() => CounterError::Gone("the CPU is offline"),
                    _ => CounterError::of_open(event.name(), errno),
                }
            })?;
            opened.push(descriptor);
        }
        let mut group = Self {
            events: opened,
            quantities: events.iter().map(|it| it.quantity().clone()).collect(),
            excludes_kernel: options.user_only,
            buffer: [0; 8 * (1 + MAX_COUNTERS)],
        };
        if !options.on_exec {
            group.set_enabled(true);
        }
        // The kernel puts a pinned group that finds no room into an error state: no data is read.
        let mut totals = [0; MAX_COUNTERS];
        match group.read(&mut totals[..events.len()]) {
            Ok(()) => Ok(group),
            Err(CountersLost) => Err(CounterError::Taken {
                fit: 0,
                asked: events.len(),
            }),
        }
    }

    /// Number of counters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// False: a group has at least one counter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether counters count in user mode only: it was demanded, or the user may not count in the
    /// kernel.
    #[must_use]
    pub const fn excludes_kernel(&self) -> bool {
        self.excludes_kernel
    }

    /// The events, in the order of the list; the first is the leader. BPF programs read them
    /// through a map of these descriptors.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.events.iter().map(AsFd::as_fd)
    }

    /// Starts or stops all counters at once. Opening has started them.
    pub fn set_enabled(&self, enabled: bool) {
        if let Some(leader) = self.events.first() {
            set_enabled(leader.as_fd(), enabled);
        }
    }

    /// Reads the totals since the group was started, by one system call.
    ///
    /// # Errors
    /// [`CountersLost`].
    ///
    /// # Panics
    /// If `totals` has another length than the group.
    pub fn read(&mut self, totals: &mut [u64]) -> Result<(), CountersLost> {
        assert_eq!(totals.len(), self.events.len(), "one word for each counter");
        let bytes = 8 * (1 + totals.len());
        let [leader, ..] = self.events.as_slice() else {
            return Err(CountersLost);
        };
        let buffer = &mut self.buffer[..bytes];
        // The kernel does not sleep for signals here, and reads all or nothing.
        match retry_on_intr(|| read(leader, &mut *buffer)) {
            Ok(size) if size == bytes => {}
            _ => return Err(CountersLost),
        }
        for (total, word) in totals.iter_mut().zip(buffer[8..].chunks_exact(8)) {
            *total = word.try_into().map(u64::from_ne_bytes).unwrap_or_default();
        }
        Ok(())
    }
}

/// The attributes of an event that is in no group.
const fn alone(attributes: EventAttributes) -> EventAttributes {
    EventAttributes {
        flags: attributes.flags | FLAG_DISABLED | FLAG_PINNED,
        ..attributes
    }
}

impl DataSource for CounterGroup {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn cost(&self) -> CostClass {
        CostClass::SystemCall
    }

    fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError> {
        Self::read(self, values).map_err(|lost| SourceReadError {
            source_name: "the group of counters".to_owned(),
            reason: lost.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{CounterGroup, CounterOptions, CounterTarget};
    use crate::counters::{CounterError, CounterEvent, MAX_COUNTERS};
    use crate::DataSource;

    fn open(list: &str) -> Result<CounterGroup, CounterError> {
        let events = CounterEvent::parse_list(list)?;
        let target = CounterTarget::CallingThread;
        CounterGroup::open(&events, target, CounterOptions::default())
    }

    #[test]
    fn lists_are_checked() {
        assert_eq!(open("").unwrap_err(), CounterError::Number(0));
        assert_eq!(
            open("faults,page-faults").unwrap_err(),
            CounterError::Twice("page-faults".to_owned())
        );
        let many: Vec<String> = (0..=MAX_COUNTERS)
            .map(|code| format!("r{code:x}"))
            .collect();
        let error = open(&many.join(",")).unwrap_err();
        assert_eq!(error, CounterError::Number(MAX_COUNTERS + 1));
        assert!(error.is_usage());
    }

    #[test]
    fn software_events_count_from_the_start() {
        let mut group = open("cpu-clock,task-clock,minor-faults").unwrap();
        assert_eq!(group.len(), 3);
        assert_eq!(DataSource::quantities(&group)[2].name, "minor_faults");
        let mut before = [0; 3];
        group.read(&mut before).unwrap();
        let mut pages = vec![0_u8; 64 << 12];
        for page in pages.chunks_mut(1 << 12) {
            page[0] = 1;
        }
        std::hint::black_box(&pages);
        let mut after = [0; 3];
        group.read(&mut after).unwrap();
        assert!(
            after[0] > before[0] && after[1] > before[1],
            "{before:?} {after:?}"
        );
        // Pages larger than 4 KiB make fewer faults.
        assert!(after[2] > before[2], "{before:?} {after:?}");
        group.set_enabled(false);
        group.read(&mut before).unwrap();
        group.read(&mut after).unwrap();
        assert_eq!(before, after, "a stopped group does not count");
    }

    #[test]
    fn thread_that_is_gone_is_named() {
        let tid = std::thread::spawn(|| rustix::thread::gettid().as_raw_nonzero().get())
            .join()
            .unwrap();
        let events = CounterEvent::parse_list("task-clock").unwrap();
        let target = CounterTarget::Thread(tid as u32);
        let error = CounterGroup::open(&events, target, CounterOptions::default()).unwrap_err();
        assert!(matches!(error, CounterError::Gone(_)), "{error}");
    }

    #[test]
    fn threads_are_inherited() {
        let events = CounterEvent::parse_list("task-clock").unwrap();
        let count = |inherit| {
            let options = CounterOptions {
                inherit,
                ..CounterOptions::default()
            };
            let target = CounterTarget::CallingThread;
            let mut group = CounterGroup::open(&events, target, options).unwrap();
            let busy = std::thread::spawn(|| {
                let start = std::time::Instant::now();
                let mut spins = 0_u64;
                while start.elapsed().as_millis() < 30 {
                    spins = std::hint::black_box(spins + 1);
                }
                let time = rustix::time::ClockId::ThreadCPUTime;
                rustix::time::clock_gettime(time).tv_nsec as u64
            });
            let cpu_time = busy.join().unwrap();
            let mut total = [0];
            group.read(&mut total).unwrap();
            (total[0], cpu_time)
        };
        let (total, cpu_time) = count(true);
        assert!(total >= cpu_time, "{total} {cpu_time}");
        let (total, cpu_time) = count(false);
        assert!(total < cpu_time, "{total} {cpu_time}");
    }

    #[test]
    fn hardware_events_count_or_are_explained() {
        match open("instructions,cycles") {
            Ok(mut group) => {
                let mut totals = [0; 2];
                group.read(&mut totals).unwrap();
                assert!(totals[0] > 0);
                // No CPU has a counter for each of so many.
                let many: Vec<String> = (0..30).map(|umask| format!("r{umask:02x}c0")).collect();
                let error = open(&many.join(",")).unwrap_err();
                let fit = match error {
                    CounterError::TooMany { fit, asked: 30, .. } => fit,
                    CounterError::Taken { fit, asked: 30 } => fit,
                    other => panic!("{other}"),
                };
                assert!((1..30).contains(&fit), "{fit}");
                open(&many[..fit].join(",")).expect("the number that fits, fits");
            }
            Err(error @ CounterError::Unsupported { .. }) => {
                assert!(!error.is_usage());
                assert!(error.to_string().contains("`instructions`"), "{error}");
                println!("skipped: this machine has no hardware counters");
            }
            Err(CounterError::NotPermitted { reason, .. }) => {
                println!("skipped: {reason}");
            }
            Err(other) => panic!("{other}"),
        }
    }
}
