// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sensors of a budget: where their counts come from, and where their switches go.

use std::cell::RefCell;
use std::rc::Rc;

use overhear_directory::{AttachedSource, BudgetSwitch, ProgramSource, SensorWrites};
use overhear_event::StreamId;

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

/// The sensors of a directory in this process.
#[derive(Debug)]
pub(crate) struct OwnSensors {
    pub(crate) programs: Rc<RefCell<ProgramSource>>,
    pub(crate) switch: BudgetSwitch,
}

impl BudgetedSensors for OwnSensors {
    fn writes(&mut self) -> Vec<SensorWrites> {
        self.programs.borrow_mut().writes()
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
