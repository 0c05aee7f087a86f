// SPDX-License-Identifier: MIT OR Apache-2.0
//! The budget of an observation that may have none.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use overhear_event::Timestamp;

use super::controller::BudgetController;
use super::new_processes::NewProcesses;
use super::report::BudgetOutcome;

/// The controller of a budget, if there is one. The rounds of a monitor and the waits between them
/// share it.
pub struct OptionalBudget(RefCell<Option<BudgetController>>);

impl OptionalBudget {
    /// With this controller, if any.
    #[must_use]
    pub const fn new(controller: Option<BudgetController>) -> Self {
        Self(RefCell::new(controller))
    }

    /// Waits between two rounds: see [`BudgetController::wait`].
    pub fn wait(&self, pause: Duration, wait: impl FnOnce(Duration)) {
        match &mut *self.0.borrow_mut() {
            Some(budget) => budget.wait(pause, wait),
            None => wait(pause),
        }
    }

    /// The analysis that finds the processes that the observed ones create.
    pub(crate) fn new_processes(&self) -> Option<Rc<RefCell<NewProcesses>>> {
        let budget = self.0.borrow();
        budget.as_ref().map(BudgetController::new_processes)
    }

    /// Takes the last totals of the kernel sensors, which are about to end.
    pub(crate) fn end_kernel(&self, now: Timestamp) {
        if let Some(budget) = &mut *self.0.borrow_mut() {
            budget.end_kernel(now);
        }
    }

    /// The state of the budget now.
    #[must_use]
    pub fn outcome(&self) -> Option<BudgetOutcome> {
        self.0.borrow().as_ref().map(BudgetController::outcome)
    }

    /// Switches everything on again. Returns the report, and messages about what went wrong.
    #[must_use]
    pub fn finish(self, now: Timestamp) -> (Option<BudgetOutcome>, Vec<String>) {
        match self.0.into_inner() {
            Some(budget) => {
                let (outcome, problems) = budget.finish(now);
                (Some(outcome), problems)
            }
            None => (None, Vec::new()),
        }
    }
}
