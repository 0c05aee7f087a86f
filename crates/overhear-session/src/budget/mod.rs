// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets: monitoring overhead that stays at a target.
//!
//! ```text
//!  writes and skipped writes of sensors ---+            +--> switches of sensors (directory)
//!  events of kernel sensors and probes  ---+            |--> switches of BPF programs (kernel)
//!                                          v            |
//!  CPU clocks of the processes --> BudgetController: overhear_budget::Budget
//!                                     ^         |
//!  calibration --> first prices --> learning    +--> BudgetOutcome
//! ```
//!
//! The law of control is in `overhear-budget`; here it gets counts and times, and its switches are
//! carried out.
//!
//! A monitor with a budget of its own attaches with needs that yield to budgets, and waits by
//! the controller between two rounds:
//!
//! ```
//! use std::{cell::RefCell, rc::Rc};
//!
//! use overhear_directory::{Begin, Directory, MonitorConnection, Needs, Query};
//! use overhear_monitor::{Fanout, Runner};
//! use overhear_session::budget::{
//!     parse_target, BudgetController, BudgetSettings, OptionalBudget, WritePrices,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let directory = Directory::builder().start(&folder.path().join("socket"))?;
//! let connection = MonitorConnection::connect(directory.socket())?;
//! let needs = Needs::all().yield_to_budgets();
//! let source = connection.attach_needing(Query::all(), Begin::Now, needs)?;
//! let source = Rc::new(RefCell::new(source));
//! let settings = BudgetSettings::of(parse_target("5%")?);
//! let sensors = Box::new(Rc::clone(&source));
//! let budget = BudgetController::new(settings, WritePrices::new(None)?, sensors)?;
//! let budget = OptionalBudget::new(Some(budget));
//!
//! let runner = Runner::new(Fanout(Vec::new())).source(Box::new(source));
//! let mut rounds = 0;
//! let wait = |pause| budget.wait(pause, std::thread::sleep);
//! let finished = runner.run(wait, |_| {
//!     rounds += 1;
//!     (rounds == 10).then_some(())
//! });
//! let (outcome, notes) = budget.finish(finished.ended);
//! assert_eq!(outcome.expect("there is a budget").target, 0.05);
//! assert!(notes[0].starts_with("the budget has no source that can be switched"));
//! # Ok(())
//! # }
//! ```

mod controller;
mod counts;
mod cpu_time;
mod ended;
mod kernel;
mod learning;
mod mode_times;
mod new_processes;
mod optional;
mod prices;
mod problems;
mod report;
mod sensors;
mod settings;
mod timer_tick;

pub use controller::BudgetController;
pub(crate) use kernel::KernelPrices;
pub use optional::OptionalBudget;
pub use overhear_budget::Overhead;
pub use prices::WritePrices;
pub use report::{BudgetOutcome, BudgetPoint, BudgetSensor};
pub use sensors::BudgetedSensors;
pub(crate) use sensors::{NoPrograms, OwnSensors};
pub use settings::{parse_target, BudgetSettings, SensorRule};
