// SPDX-License-Identifier: MIT OR Apache-2.0
//! The order of a foreign trace's context switches: which switches are provably missing, and
//! whether the clocks of its CPUs agree.

use std::collections::HashMap;

use overhear_event::kernel::{Life, Switch, SCHED_SWITCH, TASK_LIFE};
use overhear_event::{Origin, StreamDescriptor};
use overhear_monitor::{Continuity, CpuIndex, Scope};

/// Follows the switches of all CPUs.
#[derive(Debug)]
pub(super) struct SwitchOrder {
    continuity: Continuity,
    cpus: HashMap<u32, CpuIndex>,
    /// The numbers of the CPUs, by index.
    numbers: Vec<u32>,
}

impl SwitchOrder {
    /// For the first pass: conclusions are drawn from each CPU alone.
    pub(super) fn survey() -> Self {
        Self::of(Continuity::new(Scope::Machine).unordered())
    }

    /// For the second pass. `survey` has seen all switches of the first one.
    pub(super) fn after(survey: &Self) -> Self {
        match survey.continuity.is_disordered() {
            true => Self::survey(),
            false => Self::of(Continuity::new(Scope::Machine)),
        }
    }

    fn of(continuity: Continuity) -> Self {
        Self {
            continuity,
            cpus: HashMap::new(),
            numbers: Vec::new(),
        }
    }

    /// Processes the next element of a stream. Returns the numbers of the CPUs of which a switch is
    /// missing.
    pub(super) fn push(&mut self, stream: &StreamDescriptor, payload: &[u8]) -> Vec<u32> {
        let Origin::Kernel { cpu } = stream.origin else {
            return Vec::new();
        };
        match stream.sensor.as_str() {
            SCHED_SWITCH => {
                let Some(switch) = Switch::parse(payload) else {
                    return Vec::new();
                };
                let index = self.index_of(cpu);
                let holes = self.continuity.switch(index, &switch);
                holes.iter().map(|hole| self.numbers[hole.get()]).collect()
            }
            TASK_LIFE => {
                if let Some(life) = Life::parse(payload) {
                    self.continuity.life(&life);
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    /// Processes the next switch of a CPU in the first pass, where the processes of threads need
    /// not be known.
    pub(super) fn push_switch(&mut self, cpu: u32, switch: &Switch) {
        let index = self.index_of(cpu);
        self.continuity.switch(index, switch);
    }

    fn index_of(&mut self, cpu: u32) -> CpuIndex {
        *self.cpus.entry(cpu).or_insert_with(|| {
            self.numbers.push(cpu);
            self.continuity.add_cpu()
        })
    }

    /// The tracer has discarded events: no conclusion is drawn across them.
    pub(super) fn forget(&mut self) {
        self.continuity.forget();
    }

    /// CPUs of which a switch is missing before the end of the trace.
    pub(super) fn unfinished(&self) -> Vec<u32> {
        let cpus = self.continuity.unfinished();
        cpus.map(|cpu| self.numbers[cpu.get()]).collect()
    }
}
