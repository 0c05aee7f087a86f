// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor as the mathematics sees it: a periodic task (T_M, d).

use core::fmt;

use overhear_event::Nanos;

use crate::Span;

/// A monitor, modelled as a periodic task [GRTMon, section 4.2].
///
/// Period k begins at `k*T_M`. Not earlier than that the monitor looks for elements: it sees those
/// that came strictly before, maybe more. It evaluates up to R of them in order and has finished
/// strictly before `k*T_M + d`. Where finishing *at* the deadline is allowed, d is one nanosecond
/// more. Holding one proves that both are positive; a d above T_M comes from
/// [`PeriodicTask::late`] only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeriodicTask {
    t_m: u64,
    d: u64,
}

/// Why two numbers are not a periodic task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskError {
    /// T_M must be more than zero.
    #[error("the monitor's period T_M is {period_ns} ns; give at least 1 ns")]
    PeriodNotPositive {
        /// T_M as given.
        period_ns: i128,
    },
    /// d must be more than zero.
    #[error("the monitor's relative deadline d is {deadline_ns} ns; give at least 1 ns")]
    DeadlineNotPositive {
        /// d as given.
        deadline_ns: i128,
    },
    /// d must not exceed T_M.
    #[error(
        "the monitor's relative deadline d = {deadline_ns} ns exceeds its period T_M = {period_ns} \
         ns; give d <= T_M"
    )]
    DeadlineAbovePeriod {
        /// d as given.
        deadline_ns: i128,
        /// T_M as given.
        period_ns: i128,
    },
    /// A parameter does not fit 64 bits.
    #[error("the monitor's {parameter} exceeds 2^64 - 1 ns (584 years); give a shorter time")]
    TooLong {
        /// Which one: `T_M` or `d`.
        parameter: &'static str,
    },
}

impl PeriodicTask {
    /// The task with period T_M and relative deadline d.
    ///
    /// # Errors
    /// [`TaskError`] unless `0 < d <= T_M`.
    pub fn new(period: Nanos, deadline: Nanos) -> Result<Self, TaskError> {
        Self::from_signed_ns(i128::from(period.as_ns()), i128::from(deadline.as_ns()))
    }

    /// The configured task, in nanoseconds that may be negative.
    ///
    /// # Errors
    /// [`TaskError`] unless `0 < d <= T_M`.
    pub fn from_signed_ns(period_ns: i128, deadline_ns: i128) -> Result<Self, TaskError> {
        if period_ns <= 0 {
            return Err(TaskError::PeriodNotPositive { period_ns });
        }
        if deadline_ns <= 0 {
            return Err(TaskError::DeadlineNotPositive { deadline_ns });
        }
        if deadline_ns > period_ns {
            return Err(TaskError::DeadlineAbovePeriod {
                deadline_ns,
                period_ns,
            });
        }
        // The deadline fits if the period does.
        match (u64::try_from(period_ns), u64::try_from(deadline_ns)) {
            (Ok(t_m), Ok(d)) => Ok(Self { t_m, d }),
            _ => Err(TaskError::TooLong { parameter: "T_M" }),
        }
    }

    /// A task whose *effective* deadline may lie behind the next period's begin: it wakes late, or
    /// holds elements back.
    ///
    /// None of the results needs `d <= T_M`. A late period must only not overtake the next one,
    /// which one thread cannot do.
    ///
    /// # Errors
    /// [`TaskError`] unless both are more than zero.
    pub fn late(period: Nanos, effective_deadline: Nanos) -> Result<Self, TaskError> {
        let (t_m, d) = (period.as_ns(), effective_deadline.as_ns());
        if t_m == 0 {
            return Err(TaskError::PeriodNotPositive { period_ns: 0 });
        }
        if d == 0 {
            return Err(TaskError::DeadlineNotPositive { deadline_ns: 0 });
        }
        Ok(Self { t_m, d })
    }

    /// T_M, more than zero.
    #[must_use]
    pub const fn period(self) -> Nanos {
        Nanos::from_ns(self.t_m)
    }

    /// d, more than zero.
    #[must_use]
    pub const fn deadline(self) -> Nanos {
        Nanos::from_ns(self.d)
    }

    /// `l_min = T_M + d`, the least latency that the task can guarantee (equation 1).
    #[must_use]
    pub fn l_min(self) -> Span {
        Span::of(self.t_m() + self.d())
    }

    pub(crate) fn t_m(self) -> i128 {
        i128::from(self.t_m)
    }

    pub(crate) fn d(self) -> i128 {
        i128::from(self.d)
    }
}

impl fmt::Display for PeriodicTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T_M = {}, d = {}", self.period(), self.deadline())
    }
}
