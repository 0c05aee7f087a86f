// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`CounterSum`]: counters of a process with its descendants, or of the whole machine.

use crate::counters::{CounterError, CounterEvent, CounterGroup, CounterOptions, CounterTarget};
use crate::{CostClass, DataSource, Quantity, SourceReadError};

/// The sum of the groups of several threads or CPUs.
#[derive(Debug)]
pub(crate) struct CounterSum {
    groups: Vec<CounterGroup>,
    quantities: Vec<Quantity>,
    totals: Vec<u64>,
}

impl CounterSum {
    /// Counters of all threads of a process, and of the threads and processes that these create
    /// from now on. `on_exec` counts from the time at which the process executes its program.
    pub(crate) fn of_process(
        events: &[CounterEvent],
        pid: u32,
        on_exec: bool,
    ) -> Result<Self, CounterError> {
        let options = CounterOptions {
            inherit: true,
            on_exec,
            ..CounterOptions::default()
        };
        let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
        let names = entries.into_iter().flatten().flatten();
        let tids = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut tids: Vec<u32> = tids.collect();
        if tids.is_empty() {
            tids.push(pid);
        }
        let open = |tid| CounterGroup::open(events, CounterTarget::Thread(tid), options);
        let groups = tids.into_iter().map(open).filter(|opened| {
            // A thread that has ended since then has no counters.
            !matches!(opened, Err(CounterError::Gone(_)))
        });
        Self::of(groups.collect::<Result<_, _>>()?, events)
    }

    /// Counters of all CPUs.
    pub(crate) fn of_machine(events: &[CounterEvent]) -> Result<Self, CounterError> {
        let options = CounterOptions::default();
        let cpus = std::fs::read_to_string("/sys/devices/system/cpu/online");
        let cpus = online(cpus.as_deref().unwrap_or("0"));
        let open = |cpu| CounterGroup::open(events, CounterTarget::Cpu(cpu), options);
        Self::of(cpus.map(open).collect::<Result<_, _>>()?, events)
    }

    fn of(groups: Vec<CounterGroup>, events: &[CounterEvent]) -> Result<Self, CounterError> {
        if groups.is_empty() {
            return Err(CounterError::Gone("the process has ended"));
        }
        Ok(Self {
            groups,
            quantities: events
                .iter()
                .map(|event| event.quantity().clone())
                .collect(),
            totals: vec![0; events.len()],
        })
    }

    /// Whether they count in user mode only, because the user may not count in the kernel.
    pub(crate) fn excludes_kernel(&self) -> bool {
        self.groups.iter().any(CounterGroup::excludes_kernel)
    }
}

/// The numbers of a list such as `0-3,5`.
fn online(list: &str) -> impl Iterator<Item = u32> + '_ {
    list.trim().split(',').flat_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first = first.parse().unwrap_or(1);
        first..=last.parse().unwrap_or(0)
    })
}

impl DataSource for CounterSum {
    fn quantities(&self) -> &[Quantity] {
        &self.quantities
    }

    fn cost(&self) -> CostClass {
        match self.groups.len() {
            0 | 1 => CostClass::SystemCall,
            _ => CostClass::File,
        }
    }

    fn read(&mut self, values: &mut [u64]) -> Result<(), SourceReadError> {
        values.fill(0);
        for group in &mut self.groups {
            DataSource::read(group, &mut self.totals)?;
            for (value, total) in values.iter_mut().zip(&self.totals) {
                *value = value.wrapping_add(*total);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::{online, CounterSum};
    use crate::counters::CounterEvent;
    use crate::DataSource;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(online("0-2,5\n").collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert_eq!(online("0").collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn children_are_counted() {
        let events = CounterEvent::parse_list("page-faults,task-clock").unwrap();
        let mut shell = Command::new("sh")
            .args([
                "-c",
                "read go; for i in 1 2 3; do /bin/true; done; read end",
            ])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut counters = CounterSum::of_process(&events, shell.id(), false).unwrap();
        let mut before = [0; 2];
        counters.read(&mut before).unwrap();
        drop(shell.stdin.take());
        shell.wait().unwrap();
        let mut after = [0; 2];
        counters.read(&mut after).unwrap();
        // Each of the programs touches dozens of pages.
        assert!(after[0] >= before[0] + 60, "{before:?} {after:?}");
        assert!(after[1] > before[1], "{before:?} {after:?}");
    }
}
