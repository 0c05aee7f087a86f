// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets of runs: monitoring overhead that stays at a target.
//!
//! ```text
//!  writes and skipped writes of sensors ---+            +--> switches of sensors (directory)
//!                                          v            |
//!  CPU clocks of the processes --> BudgetController: overhear_budget::Budget
//!                                     ^         |
//!  calibration --> first prices --> learning    +--> BudgetOutcome
//! ```
//!
//! The law of control is in `overhear-budget`; here it gets counts and times, and its switches are
//! carried out.

mod controller;
mod cpu_time;
mod learning;
mod prices;
mod report;
mod settings;
mod timer_tick;

pub(crate) use controller::BudgetController;
pub use overhear_budget::Overhead;
pub(crate) use prices::WritePrices;
pub use report::{BudgetOutcome, BudgetPoint, BudgetSensor};
pub use settings::{parse_target, BudgetSettings, SensorRule};
