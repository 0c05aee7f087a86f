// SPDX-License-Identifier: MIT OR Apache-2.0
//! One tick: counts and times go in, a setting of each source comes out.

use overhear_event::{Nanos, Timestamp};

use crate::{SourceId, ThreadKey};

/// Units of a source, as far as its actuator counts them: passes of a function, allocations.
/// Totals of one thread since the thread began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitCount {
    /// Units in which the source was on. At most `all`.
    pub on: u64,
    /// All units.
    pub all: u64,
}

/// What one thread recorded for one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceCount {
    /// The source.
    pub source: SourceId,
    /// The thread; [`ThreadKey::PROCESS`] if threads are not distinguished.
    pub thread: ThreadKey,
    /// Events recorded since the thread began: a total, not a difference.
    pub events: u64,
    /// Units, if the actuator counts them. Without them the unit is CPU time, and the source is
    /// taken to have been on as [`SourceSetting::is_on`] demanded.
    pub units: Option<UnitCount>,
    /// Whether recording stopped at [`SourceSetting::burst_cap`] since the last tick.
    pub is_capped: bool,
}

/// The state of the observed program at one time. All numbers are totals.
#[derive(Clone, Copy, Debug)]
pub struct TickInput<'a> {
    /// Time of the tick.
    pub now: Timestamp,
    /// CPU time of all threads of the program since the budget began, with the cost of observing.
    pub cpu: Nanos,
    /// The part of `cpu` that control itself took: slow paths in the program, switching, the
    /// thread of the budget. A caller outside the program that charges its own time to the target
    /// adds it to both.
    pub own_cpu: Nanos,
    /// New totals. A source or thread without news may be absent.
    pub counts: &'a [SourceCount],
}

/// Why a source is on for less than all of its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareLimit {
    /// It is on for all of them.
    None,
    /// Its part of the budget.
    Budget,
    /// A source that it requires is on for less, or was removed.
    Requirement,
}

/// What is to be done with one source until the next tick.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SourceSetting {
    /// The source.
    pub source: SourceId,
    /// Fraction of units in which the source is to be on, from 0 to 1.
    pub share: f64,
    /// Whether the source is on until the next tick. Over many ticks it is on for `share` of the
    /// CPU time.
    pub is_on: bool,
    /// Events that the source may record in all threads together until the next tick, for
    /// actuators that can stop at a count. `None` is no cap.
    pub burst_cap: Option<u64>,
    /// The reason for `share`.
    pub limit: ShareLimit,
}

/// Overhead that no switch can avoid. It is reported where it exceeds the target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnavoidableOverhead {
    /// Overhead of sources that are always on.
    pub always_on: f64,
    /// Overhead of the instrumentation when everything is off.
    pub base: f64,
    /// Overhead of control itself.
    pub own: f64,
}

impl UnavoidableOverhead {
    /// The sum, a fraction of the program's own time.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.always_on + self.base + self.own
    }
}

/// The result of a tick.
#[derive(Clone, Copy, Debug)]
pub struct TickOutcome<'a> {
    /// A setting of every source, in the order of their indices.
    pub settings: &'a [SourceSetting],
    /// Present if what cannot be switched off exceeds the target, in recent CPU time. Sources with
    /// a switch are on only for their floors and a small part for exploration then.
    pub unavoidable: Option<UnavoidableOverhead>,
    /// CPU time of the program after which the next tick is due. Short at the start, then a
    /// hundredth of the window.
    pub next_tick: Nanos,
}

/// The reason why a tick was not carried out. The budget is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TickError {
    /// A count names a source that is not in the budget.
    #[error("a count names source {source_id}, which is not in the budget; add it, or drop the counts of removed sources")]
    UnknownSource {
        /// The handle.
        source_id: SourceId,
    },
    /// A time is before that of the last tick.
    #[error(
        "{clock} of a tick is {by_ns} ns before that of the last tick; give totals that never fall"
    )]
    TimeWentBack {
        /// Which time: `the time`, `the CPU time` or `the CPU time of control`.
        clock: &'static str,
        /// How far it is back, in ns.
        by_ns: u64,
    },
    /// A total of events or units is below that of the last tick.
    #[error("a total of source {source_id} in thread {thread} fell; give totals, and end a thread whose key is used again")]
    CountWentBack {
        /// The source.
        source_id: SourceId,
        /// The key of the thread.
        thread: u64,
    },
    /// More units on than units.
    #[error("source {source_id} reports more units on than units in all; give both as totals")]
    MoreUnitsOnThanAll {
        /// The source.
        source_id: SourceId,
    },
}
