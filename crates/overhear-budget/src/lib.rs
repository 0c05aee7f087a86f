// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets: what observing costs, and which sources are on so that the cost stays at its target.
//!
//! ```text
//!  counts, times                                                 settings
//!  ------------->  ACCOUNTS   count x price = spent                  ^
//!                     |                                              |
//!  prices             v                                              |
//!  ------------->  BALANCE    m C - spent - own - base - expired     |
//!     ^               |       debt in full, surplus capped           |
//!     |               v                                              |
//!  PAIRS of        WATER LEVEL   demands, weights, floors --> share  |
//!  stretches, or      |                                              |
//!  calibration        +--> DUTY CYCLE --> on or off until next tick -+
//! ```
//!
//! A user sets a target [`Overhead`]: observing may take 5 % of the program's own time. A
//! [`Budget`] has a [`SourceSpec`] of everything that can be switched: sensors, kernel sensors,
//! probes, functions, allocations. About a hundred times per second it gets a [`TickInput`]: the
//! program's CPU time, and how many events each source recorded. It returns a [`SourceSetting`] of
//! each source: the share of units in which it is to be on, whether it is on until the next tick,
//! and how many events it may record until then. [`Budget::report`] is the whole run as plain data.
//!
//! ```
//! use overhear_budget::{
//!     Budget, EventPrice, Overhead, SourceCount, SourceSpec, ThreadKey, TickInput,
//! };
//! use overhear_event::{Nanos, Timestamp};
//!
//! // 10 %, evened out over 1 s of CPU time. An event of the first source costs 100 ns, one of the
//! // second 2 us.
//! let mut budget = Budget::new(Overhead::from_percent(10.0)?, Budget::DEFAULT_WINDOW)?;
//! let frequent = budget.add(SourceSpec::new("queue", EventPrice::from_ns(100.0, 5.0)?))?;
//! let rare = budget.add(SourceSpec::new("config", EventPrice::from_ns(2_000.0, 100.0)?))?;
//! budget.check_switchable()?;
//!
//! // A program whose first source has 5 events per microsecond of its own time: 50 % if all were
//! // recorded. The second one has 10 per second.
//! let (mut cpu, mut plain, mut events, mut is_on) = (0.0_f64, 0.0, [0_u64; 2], [false; 2]);
//! for tick in 0..2_000_u64 {
//!     let outcome = budget.tick(&TickInput {
//!         now: Timestamp::from_monotonic_ns(tick * 10_000_000),
//!         cpu: Nanos::from_ns(cpu as u64),
//!         own_cpu: Nanos::ZERO,
//!         counts: &[(frequent, events[0]), (rare, events[1])].map(|(source, events)| SourceCount {
//!             source,
//!             thread: ThreadKey::PROCESS,
//!             events,
//!             units: None,
//!             is_capped: false,
//!         }),
//!     })?;
//!     for setting in outcome.settings {
//!         is_on[setting.source.index()] = setting.is_on;
//!     }
//!     // 10 ms of the program.
//!     plain += 10e6;
//!     cpu += 10e6;
//!     if is_on[0] {
//!         events[0] += 50_000;
//!         cpu += 50_000.0 * 100.0;
//!     }
//!     if is_on[1] && tick % 10 == 0 {
//!         events[1] += 1;
//!         cpu += 2_000.0;
//!     }
//! }
//! let overhead = (cpu - plain) / plain;
//! assert!((overhead - 0.1).abs() < 0.01);
//! let report = budget.report();
//! assert!((report.observed - overhead).abs() < 0.001);
//! // The frequent one is on in one of 5 ticks; with its cost these are 15 ms, the others 10 ms:
//! // 3 of 11 parts of the CPU time. The rare one costs less than its part, so it is always on.
//! assert!((report.sources[0].share_on.unwrap() - 3.0 / 11.0).abs() < 0.02);
//! assert!(report.sources[1].share_on.unwrap() > 0.99);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The default law
//!
//! C is the CPU time of the program, m = o / (1 + o) the target as a share of it
//! [SMCO, section 2], W the window in CPU time.
//!
//! - *Spent* is the sum of count x price over all sources. Counts are kept, not money: a better
//!   measurement of a price ([`Budget::refine_price`]) re-evaluates the past, a price that changed
//!   ([`Budget::change_price`]) does not. The cost of control itself is charged, too, and a base
//!   overhead b0 to the plain time: b0 (C - spent - own) / (1 + b0).
//! - *Balance*: e = m C - spent - own - base - expired. A debt is kept in full. A surplus above
//!   a quarter of a window's budget expires, so what an idle program did not use is no licence for
//!   its next burst. At the start 1/16 of a window's budget is lent; the loan fades with C / W.
//! - *Wanted* is m - own - base - always on + min(e / H, m), as a share of CPU time, and at least
//!   m / 20, so that demands stay known. The horizon H is W / 4.
//!   If the sources that were on cost more than their demands predicted, those that were off are
//!   likely to do so, too: what is wanted is divided by that factor.
//! - *Demand* of a source: events per unit while it was on, x units, x price, per CPU time. It ages
//!   with the constant W / 4 in CPU time: a program that sleeps changes nothing. A tick with
//!   four times the predicted events is a burst, which replaces the mean.
//! - *Shares* by water filling: every source gets what it demands, or the same cost per weight as
//!   all others that want more, or its floor. The level is exact, in O(n log n). A source is never
//!   on for more than a source that it requires.
//! - *Burst caps*: a source whose actuator can stop at a count may record twice its plan and a part
//!   of the surplus until the next tick, or the part of the budget that it saved: a program works
//!   in phases shorter than H, and the mean of a source is far below its demand in its own phase.
//!   A source that is switched from tick to tick is bounded by
//!   the tick, so ticks are due in CPU time ([`TickOutcome::next_tick`]).
//!
//! There is no gain to choose, and no limit of stability in the number of sources. The price: the
//! law believes its prices. A price that is wrong by a tenth makes the overhead wrong by a tenth.
//!
//! # Rates
//!
//! A [`RateBudget`] keeps the bytes that a recorder writes at a [`ByteRate`], by the same balance
//! and the same water filling. Its C is time instead of CPU time, and a source is a stream: what
//! it demands is known exactly, because bytes that are not written are offered, too. So it decides
//! at once for each packet, and needs no prices and no duty cycle. A sum over the last window is a
//! strict upper bound.
//!
//! # Prices
//!
//! A price is given by calibration, or measured while the program runs. To measure it, the
//! execution of a function is cut into stretches of K passes, in pairs of random order, one plain
//! and one monitored ([`StretchPlanner`]). The slope of time difference on event difference is the
//! price ([`PairSums`]); a change is noticed ([`PairEstimator`]), few pairs are shrunk to what is
//! known ([`PricePool`]), and runs are merged by inverse variance ([`PriceBook`]).
//!
//! # The paper's controllers
//!
//! [`smco`] has the global, the secondary and the primary controller as published [SMCO, figures 5,
//! 7 and 9]. They are for comparison: `tests/paper.rs` shows what they keep and where they fail.
//!
//! # Design constraints
//!
//! No clock, no thread, no file and no `unsafe`: every decision is a function of counts and times
//! that are arguments, and two budgets with the same arguments decide the same. Random numbers of
//! the duty cycle come from a generator with a fixed seed; those of stretches are arguments.
//! Memory grows with sources and live threads, not with time. Money is a 64-bit float: at a run of
//! ten days, 1e15 ns, its resolution is below 1 ns.

#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![forbid(unsafe_code)]

mod account;
mod balance;
mod budget;
mod decay;
mod demand;
mod duty_cycle;
mod overhead;
mod pair_estimator;
mod pair_sums;
mod price;
mod price_book;
mod price_pool;
mod rate;
mod report;
mod series;
mod sliding_sum;
pub mod smco;
mod source;
mod stretch;
mod tick;
mod water_level;

pub use account::ThreadKey;
pub use budget::{Budget, BudgetError};
pub use overhead::{Overhead, OverheadError};
pub use pair_estimator::{PairEstimator, PriceRegime};
pub use pair_sums::{PairSums, PriceSlope, StretchPair, MAX_COVARIATES};
pub use price::{EventPrice, PriceError};
pub use price_book::PriceBook;
pub use price_pool::PricePool;
pub use rate::{ByteRate, ByteRateError, RateBudget, RateSource};
pub use report::{BudgetCosts, BudgetReport, BudgetSource, ThreadCost};
pub use series::OverheadPoint;
pub use source::{Actuator, AddSourceError, SourceId, SourceSpec};
pub use stretch::{exploration, Arm, Stretch, StretchEnd, StretchPlanner};
pub use tick::{
    ShareLimit, SourceCount, SourceSetting, TickError, TickInput, TickOutcome, UnavoidableOverhead,
    UnitCount,
};
