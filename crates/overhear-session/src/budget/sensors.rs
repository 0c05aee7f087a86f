// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensors of a budget: where their counts come from, and where their switches go.

use std::cell::RefCell;
use std::rc::Rc;

use overhear_directory::{AttachedSource, BudgetSwitch, ProgramSource, SensorWrites};
use overhear_event::{Origin, StreamId};
use overhear_kernel::{ActiveBackend, BudgetState, Kernel, KernelMonitor, KernelWrites};

/// Sensors of programs that a budget counts and switches.
pub trait BudgetedSensors {
    /// The writes of all sensors now, and those of sensors that have ended since the last call.
    /// From the first call on, none that ends is forgotten.
    fn writes(&mut self) -> Vec<SensorWrites>;

    /// Switches sensors off and on, by the numbers of their streams. Returns the number of sensors
    /// that are to be off and stay on, because another monitor needs all of their elements.
    ///
    /// # Errors
    /// A message.
    fn switch(&mut self, off: &[StreamId], on: &[StreamId]) -> Result<u32, String>;
}

/// The sensors of programs with a directory in this process. Those of this process itself, which
/// have the results of reactions, are not observed: the program does not spend their cost.
#[derive(Debug)]
pub(crate) struct OwnSensors {
    pub(crate) programs: Rc<RefCell<ProgramSource>>,
    pub(crate) switch: BudgetSwitch,
}

impl BudgetedSensors for OwnSensors {
    fn writes(&mut self) -> Vec<SensorWrites> {
        let own = std::process::id();
        let mut writes = self.programs.borrow_mut().writes();
        let is_own = |origin: &Origin| matches!(origin, Origin::Program(task) if task.pid == own);
        writes.retain(|sensor| !is_own(&sensor.descriptor.origin));
        writes
    }

    fn switch(&mut self, off: &[StreamId], on: &[StreamId]) -> Result<u32, String> {
        self.switch.switch(off, on)
    }
}

/// The sensors of a directory in another process, whose refusals are complaints of the source.
impl BudgetedSensors for Rc<RefCell<AttachedSource>> {
    fn writes(&mut self) -> Vec<SensorWrites> {
        self.borrow_mut().writes()
    }

    fn switch(&mut self, off: &[StreamId], on: &[StreamId]) -> Result<u32, String> {
        let mut source = self.borrow_mut();
        source.switch_for_budget(off, on);
        Ok(source.kept_on())
    }
}

/// Kernel sensors and probes that a budget counts and switches.
pub(crate) trait BudgetedKernel {
    /// Whether the events come from perf records, which cannot be switched.
    fn is_of_perf(&self) -> bool;

    /// The totals of each sensor and probe that can be switched.
    fn writes(&self) -> Vec<KernelWrites>;

    /// Switches one of them.
    ///
    /// # Errors
    /// A message.
    fn switch_for_budget(&mut self, stream: StreamId, to: BudgetState) -> Result<(), String>;
}

impl BudgetedKernel for Kernel {
    fn is_of_perf(&self) -> bool {
        self.status().active == ActiveBackend::Perf
    }

    fn writes(&self) -> Vec<KernelWrites> {
        Self::writes(self)
    }

    fn switch_for_budget(&mut self, stream: StreamId, to: BudgetState) -> Result<(), String> {
        Self::switch_for_budget(self, stream, to)
    }
}

/// A terminated monitor has no sensors.
impl BudgetedKernel for KernelMonitor {
    fn is_of_perf(&self) -> bool {
        self.status()
            .is_ok_and(|status| status.active == ActiveBackend::Perf)
    }

    fn writes(&self) -> Vec<KernelWrites> {
        Self::writes(self).unwrap_or_default()
    }

    fn switch_for_budget(&mut self, stream: StreamId, to: BudgetState) -> Result<(), String> {
        Self::switch_for_budget(self, stream, to).unwrap_or(Ok(()))
    }
}

/// No sensors of programs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoPrograms;

impl BudgetedSensors for NoPrograms {
    fn writes(&mut self) -> Vec<SensorWrites> {
        Vec::new()
    }

    fn switch(&mut self, _: &[StreamId], _: &[StreamId]) -> Result<u32, String> {
        Ok(0)
    }
}
