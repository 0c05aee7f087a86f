// SPDX-License-Identifier: MIT OR Apache-2.0
//! From the model to Linux' `SCHED_DEADLINE`, and back.
//!
//! The kernel gives a thread `runtime` in every `period`, and within `deadline` after it woke. The
//! thread sleeps on absolute times, k times the period. What the model calls d is longer than the
//! kernel's deadline: the timer wakes the thread late, the kernel enforces with the grain of its
//! tick, and a monitor that holds elements back looks at the past. All of it adds up to d:
//!
//! ```text
//! d_eff = deadline + J + tardiness + hold-back + 1 ns
//! ```
//!
//! The nanosecond is there because the kernel counts finishing *at* the deadline as in time, and
//! the model does not. A d_eff above T_M is sound.

use overhear_event::Nanos;

use crate::exact::{add, compare_sum, mul, Ratio};
use crate::{Overflow, PeriodicTask, ReservationPlan, Span, TaskError};

/// The three numbers that `sched_setattr` takes for `SCHED_DEADLINE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeadlineReservation {
    /// CPU time per period.
    pub runtime: Nanos,
    /// The length after waking within which the kernel gives the runtime.
    pub deadline: Nanos,
    /// T_M.
    pub period: Nanos,
}

/// By how much reality is later than the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lateness {
    /// J, the largest lateness of a wake-up by the timer.
    pub wake_up: Nanos,
    /// How long after the deadline the kernel may still let the thread run: the grain of the tick,
    /// sections that cannot be preempted, global scheduling on several CPUs.
    pub tardiness: Nanos,
    /// How old an element must be before it is evaluated, because a writer may be preempted for so
    /// long between stamp and publication. An element counts as late only beyond that.
    pub hold_back: Nanos,
}

impl Lateness {
    /// `d_eff - deadline`: J + tardiness + hold-back + 1 ns.
    ///
    /// # Errors
    /// [`Overflow`] if the sum does not fit 64 bits.
    pub fn total(self) -> Result<Nanos, Overflow> {
        Nanos::try_from(self.sum())
    }

    fn sum(self) -> Span {
        let parts = [self.wake_up, self.tardiness, self.hold_back];
        // Four lengths of 64 bits cannot leave 128.
        Span::of(
            parts
                .iter()
                .map(|part| i128::from(part.as_ns()))
                .sum::<i128>()
                + 1,
        )
    }
}

/// How far a guarantee reaches. The kernel's own admission bounds only the sum of the bandwidths
/// and guarantees nothing on several CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Level {
    /// A CPU of its own (a partition of one CPU), scheduled by earliest deadline first there: all
    /// deadlines hold where the sum of `runtime / deadline` is at most 1.
    #[default]
    Exclusive,
    /// All CPUs together with whoever else has reservations: all deadlines hold where the sum of
    /// `runtime / deadline` is at most `m - (m - 1) * max(runtime / deadline)` on m CPUs (Goossens,
    /// Funk and Baruah, "Priority-driven scheduling of periodic task systems on multiprocessors",
    /// theorem 5, with densities). It must be tested again after each new reservation.
    Shared,
}

/// How a job of the thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum JobEnd {
    /// It sleeps until the next multiple of the period.
    Sleep,
    /// It calls `sched_yield`, and the kernel wakes it when the period is over.
    Yield,
}

/// What the kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KernelLimits {
    /// The least runtime; about a microsecond.
    pub least_runtime: Nanos,
    /// `sched_deadline_period_min_us`.
    pub least_period: Nanos,
    /// `sched_deadline_period_max_us`.
    pub largest_period: Nanos,
    /// `sched_rt_runtime_us / sched_rt_period_us`: the share of each CPU that may be reserved.
    pub bandwidth: Ratio,
    /// CPUs of the root domain.
    pub cpus: u32,
}

impl KernelLimits {
    /// The limits of a kernel as it comes: 1,024 ns, 100 us to 4.19 s, 95 %.
    #[must_use]
    pub fn usual(cpus: u32) -> Self {
        Self {
            least_runtime: Nanos::from_ns(1_024),
            least_period: Nanos::from_us(100),
            largest_period: Nanos::from_us(1 << 22),
            bandwidth: Ratio::new(19, 20).unwrap_or(Ratio::whole(0)),
            cpus,
        }
    }
}

/// Why a reservation cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeadlineError {
    /// Nothing of d is left to the kernel, or less than the runtime.
    #[error(
        "of the deadline d = {deadline}, lateness takes {lateness}; the rest is less than the \
         runtime {runtime}; allow a longer latency, or lower the lateness of the machine"
    )]
    DeadlineTooShort {
        /// The effective deadline.
        deadline: Nanos,
        /// What wake-ups, tardiness and hold-back take of it.
        lateness: Span,
        /// The runtime that must fit into the rest.
        runtime: Span,
    },
    /// The kernel wants runtime <= deadline <= period.
    #[error(
        "the kernel wants runtime <= deadline <= period, but they are {runtime}, {deadline} and \
         {period}; choose a longer deadline and period"
    )]
    Order {
        /// CPU time per period.
        runtime: Nanos,
        /// The relative deadline.
        deadline: Nanos,
        /// The period.
        period: Nanos,
    },
    /// The runtime is below the kernel's least.
    #[error("the kernel reserves no less than {least} per period, but the runtime is {runtime}; reserve that much")]
    RuntimeTooShort {
        /// The requested value.
        runtime: Nanos,
        /// The kernel's least.
        least: Nanos,
    },
    /// The period is outside the kernel's bounds.
    #[error("the kernel takes periods from {least} to {largest}, but the period is {period}; choose one of these")]
    Period {
        /// The requested value.
        period: Nanos,
        /// The kernel's least.
        least: Nanos,
        /// The kernel's largest.
        largest: Nanos,
    },
    /// All reservations together exceed what the kernel gives away (`EBUSY`).
    #[error(
        "all reservations together exceed {bandwidth} of {cpus} CPUs, the most that the kernel \
         gives away; end another deadline thread, or allow a longer latency"
    )]
    Bandwidth {
        /// The share of each CPU.
        bandwidth: Ratio,
        /// How many CPUs.
        cpus: u32,
    },
    /// Deadlines shorter than periods do not fit on one CPU, although the kernel takes them.
    #[error(
        "the kernel would accept these reservations, but on one CPU it cannot keep their \
         deadlines: the sum of runtime / deadline exceeds 1; choose longer deadlines"
    )]
    Density,
    /// Global scheduling on several CPUs cannot promise all deadlines.
    #[error(
        "on {cpus} CPUs that others use, too, the deadlines of these reservations cannot be promised: \
         the sum of runtime / deadline exceeds what the test of Goossens, Funk and Baruah allows; ask \
         for an exclusive CPU, or allow a longer latency"
    )]
    Global {
        /// How many CPUs.
        cpus: u32,
    },
    /// The numbers are no periodic task.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The parameters leave 128-bit integers.
    #[error(transparent)]
    Overflow(#[from] Overflow),
}

impl DeadlineReservation {
    /// The reservation for a monitor with the runtime Q and the task (T_M, d_eff).
    ///
    /// The kernel's deadline is what lateness leaves of d_eff, at most T_M. Where it is shorter
    /// than the period and jobs end by sleeping, a runtime that is used up exactly may cost the
    /// next job its budget: the kernel then replenishes later than the thread wakes. One nanosecond
    /// that is never used up prevents it, and is added. With deadline = period, or with
    /// `sched_yield`, nothing of the sort happens.
    ///
    /// # Errors
    /// [`DeadlineError::DeadlineTooShort`] if the runtime does not fit.
    pub fn new(
        task: PeriodicTask,
        runtime: Span,
        lateness: Lateness,
        end: JobEnd,
    ) -> Result<Self, DeadlineError> {
        let too_short = DeadlineError::DeadlineTooShort {
            deadline: task.deadline(),
            lateness: lateness.sum(),
            runtime,
        };
        let left = task.d() - lateness.sum().as_ns();
        let deadline = match u64::try_from(left) {
            Ok(left) if left > 0 => left.min(task.period().as_ns()),
            _ => return Err(too_short),
        };
        let exhaustible = deadline < task.period().as_ns() && end == JobEnd::Sleep;
        let needed = add(runtime.as_ns(), i128::from(exhaustible))?;
        match u64::try_from(needed) {
            Ok(runtime) if runtime <= deadline => Ok(Self {
                runtime: Nanos::from_ns(runtime),
                deadline: Nanos::from_ns(deadline),
                period: task.period(),
            }),
            _ => Err(too_short),
        }
    }

    /// The reservation for a plan of [`choose`](crate::choose), with the `lateness` of its request.
    ///
    /// # Errors
    /// [`DeadlineError::DeadlineTooShort`] if the runtime does not fit.
    pub fn of_plan(
        plan: &ReservationPlan,
        lateness: Lateness,
        end: JobEnd,
    ) -> Result<Self, DeadlineError> {
        Self::new(plan.task, plan.runtime, lateness, end)
    }

    /// The monitor that this reservation amounts to: (T_M, d_eff).
    ///
    /// # Errors
    /// [`TaskError`] if the period is zero or d_eff does not fit 64 bits.
    pub fn effective_task(self, lateness: Lateness) -> Result<PeriodicTask, TaskError> {
        effective(self.period, self.deadline, lateness)
    }

    /// The monitor that it amounts to where the thread sleeps for lengths instead of until times,
    /// so that every period may slip by J.
    ///
    /// # Errors
    /// [`TaskError`] if the period is zero or a length does not fit 64 bits.
    pub fn effective_drifting_task(self, lateness: Lateness) -> Result<PeriodicTask, TaskError> {
        let slipped = self.period.as_ns().checked_add(lateness.wake_up.as_ns());
        let period = slipped.ok_or(TaskError::TooLong { parameter: "T_M" })?;
        effective(Nanos::from_ns(period), self.deadline, lateness)
    }

    /// `runtime / period`, what the kernel's admission counts.
    #[must_use]
    pub fn bandwidth(self) -> Option<Ratio> {
        Ratio::new(
            i128::from(self.runtime.as_ns()),
            i128::from(self.period.as_ns()),
        )
    }
}

/// (T_M, deadline + lateness), where a sum beyond 64 bits is refused, not cut off.
fn effective(
    period: Nanos,
    deadline: Nanos,
    lateness: Lateness,
) -> Result<PeriodicTask, TaskError> {
    let d = i128::from(deadline.as_ns()) + lateness.sum().as_ns();
    let d = u64::try_from(d).map_err(|_| TaskError::TooLong { parameter: "d" })?;
    PeriodicTask::late(period, Nanos::from_ns(d))
}

impl KernelLimits {
    /// Whether the kernel admits `reservations`, all that exist in the root domain, and can keep
    /// what it admits. This is the model's answer; the kernel's own is `sched_setattr`.
    ///
    /// The kernel adds up `runtime / period` only. With deadlines shorter than periods that is not
    /// enough on one CPU, so `runtime / deadline` is added up as well there.
    ///
    /// # Errors
    /// [`DeadlineError`] that names the limit.
    pub fn admit(&self, reservations: &[DeadlineReservation]) -> Result<(), DeadlineError> {
        let (mut bandwidth, mut density) = (alloc::vec::Vec::new(), alloc::vec::Vec::new());
        for &r in reservations {
            self.admit_alone(r)?;
            let runtime = i128::from(r.runtime.as_ns());
            let scaled = mul(runtime, self.bandwidth.denominator())?;
            bandwidth.push((scaled, i128::from(r.period.as_ns())));
            density.push((runtime, i128::from(r.deadline.as_ns())));
        }
        let limit = mul(self.bandwidth.numerator(), i128::from(self.cpus))?;
        if compare_sum(&bandwidth, limit)?.is_gt() {
            return Err(DeadlineError::Bandwidth {
                bandwidth: self.bandwidth,
                cpus: self.cpus,
            });
        }
        if self.cpus == 1 && compare_sum(&density, 1)?.is_gt() {
            return Err(DeadlineError::Density);
        }
        Ok(())
    }

    /// Whether the scheduler keeps the deadlines of all `reservations`, at this level of guarantee.
    /// For [`Level::Exclusive`] they are those of the partition, for [`Level::Shared`] all that
    /// exist. Finishing up to the kernel's grain late is tardiness, which [`Lateness`] accounts
    /// for.
    ///
    /// # Errors
    /// [`DeadlineError::Density`], [`DeadlineError::Global`], or what is wrong with one alone.
    pub fn keeps(
        &self,
        level: Level,
        reservations: &[DeadlineReservation],
    ) -> Result<(), DeadlineError> {
        let mut densities = alloc::vec::Vec::with_capacity(reservations.len() + 1);
        for &r in reservations {
            self.admit_alone(r)?;
            let density = (
                i128::from(r.runtime.as_ns()),
                i128::from(r.deadline.as_ns()),
            );
            densities.push(density);
        }
        match level {
            Level::Exclusive => match compare_sum(&densities, 1)?.is_gt() {
                true => Err(DeadlineError::Density),
                false => Ok(()),
            },
            Level::Shared => {
                let cpus = i128::from(self.cpus);
                // Two densities compare by cross products; a length has 64 bits.
                let largest = densities
                    .iter()
                    .copied()
                    .max_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)));
                if let Some((runtime, deadline)) = largest {
                    densities.push((mul(cpus - 1, runtime)?, deadline));
                }
                match compare_sum(&densities, cpus)?.is_gt() {
                    true => Err(DeadlineError::Global { cpus: self.cpus }),
                    false => Ok(()),
                }
            }
        }
    }

    fn admit_alone(&self, r: DeadlineReservation) -> Result<(), DeadlineError> {
        if r.period < self.least_period || r.period > self.largest_period {
            return Err(DeadlineError::Period {
                period: r.period,
                least: self.least_period,
                largest: self.largest_period,
            });
        }
        if r.runtime < self.least_runtime {
            return Err(DeadlineError::RuntimeTooShort {
                runtime: r.runtime,
                least: self.least_runtime,
            });
        }
        // A deadline of zero would be a division by zero, even where runtimes of zero are allowed.
        if r.deadline == Nanos::ZERO || r.runtime > r.deadline || r.deadline > r.period {
            return Err(DeadlineError::Order {
                runtime: r.runtime,
                deadline: r.deadline,
                period: r.period,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::{DeadlineError, DeadlineReservation, JobEnd, KernelLimits, Lateness, Level};
    use crate::{PeriodicTask, Span};

    const LATENESS: Lateness = Lateness {
        wake_up: Nanos::from_us(50),
        tardiness: Nanos::from_us(10),
        hold_back: Nanos::from_us(2_000),
    };

    fn reservation(runtime: u64, deadline: u64, period: u64) -> DeadlineReservation {
        let [runtime, deadline, period] = [runtime, deadline, period].map(Nanos::from_us);
        DeadlineReservation {
            runtime,
            deadline,
            period,
        }
    }

    #[test]
    fn guarantee_asks_for_more_than_the_kernel() {
        // The kernel takes these three on two CPUs, and the third misses half its deadlines.
        let r = |runtime: u64, period: u64| {
            reservation(runtime * 1_000, period * 1_000, period * 1_000)
        };
        let three = [r(6, 19), r(6, 19), r(17, 20)];
        let limits = KernelLimits::usual(2);
        assert_eq!(limits.admit(&three), Ok(()));
        let refused = Err(DeadlineError::Global { cpus: 2 });
        assert_eq!(limits.keeps(Level::Shared, &three), refused);
        // 17/20 + 17/20 + 6/20 is 2, the rest of the bound is used up exactly.
        assert_eq!(limits.keeps(Level::Shared, &[r(17, 20), r(6, 20)]), Ok(()));
        assert_eq!(limits.keeps(Level::Shared, &[r(17, 20), r(7, 20)]), refused);
        // Alone on a CPU all of it can be used.
        assert_eq!(
            limits.keeps(Level::Exclusive, &[r(17, 20), r(3, 20)]),
            Ok(())
        );
        let dense = limits.keeps(Level::Exclusive, &[r(17, 20), r(4, 20)]);
        assert_eq!(dense, Err(DeadlineError::Density));
        assert_eq!(limits.keeps(Level::Shared, &[]), Ok(()));
    }

    #[test]
    fn conversion_there_and_back_keeps_the_task() {
        let task = PeriodicTask::late(Nanos::from_ms(10), Nanos::from_ns(12_060_001)).unwrap();
        let runtime = Span::from_ns(3_000_000);
        let r = DeadlineReservation::new(task, runtime, LATENESS, JobEnd::Sleep).unwrap();
        assert_eq!(r, reservation(3_000, 10_000, 10_000));
        assert_eq!(r.effective_task(LATENESS), Ok(task));
        let drifting = r.effective_drifting_task(LATENESS).unwrap();
        assert_eq!(drifting.period(), Nanos::from_us(10_050));
        assert_eq!(drifting.deadline(), task.deadline());
    }

    #[test]
    fn runtime_that_could_be_used_up_gets_a_nanosecond_more() {
        let task = PeriodicTask::late(Nanos::from_ms(10), Nanos::from_ms(8)).unwrap();
        let runtime = Span::from_ns(1_000_000);
        let of = |end| DeadlineReservation::new(task, runtime, LATENESS, end).unwrap();
        assert_eq!(of(JobEnd::Sleep).runtime, Nanos::from_ns(1_000_001));
        assert_eq!(of(JobEnd::Yield).runtime, Nanos::from_ns(1_000_000));
        assert_eq!(of(JobEnd::Yield).deadline, Nanos::from_ns(5_939_999));
    }

    #[test]
    fn lateness_that_leaves_too_little_is_refused() {
        let task = PeriodicTask::new(Nanos::from_ms(10), Nanos::from_ms(2)).unwrap();
        let refused =
            DeadlineReservation::new(task, Span::from_ns(1), LATENESS, JobEnd::Sleep).unwrap_err();
        assert!(matches!(refused, DeadlineError::DeadlineTooShort { .. }));
    }

    #[test]
    fn kernel_adds_bandwidth_exactly() {
        let two = KernelLimits::usual(2);
        let third = reservation(1_000, 3_000, 3_000);
        assert_eq!(two.admit(&[third; 5]), Ok(()));
        assert!(matches!(
            two.admit(&[third; 6]),
            Err(DeadlineError::Bandwidth { .. })
        ));
        // 19/20 of one CPU is exactly what it gives away.
        let one = KernelLimits::usual(1);
        let full = reservation(950, 1_000, 1_000);
        assert_eq!(one.admit(&[full]), Ok(()));
        assert_eq!(
            one.admit(&[reservation(500, 900, 2_000), reservation(500, 900, 2_000)]),
            Err(DeadlineError::Density)
        );
    }

    #[test]
    fn each_limit_has_its_message() {
        let one = KernelLimits::usual(1);
        let runtime = one.admit(&[reservation(1, 500, 1_000)]);
        assert!(matches!(
            runtime,
            Err(DeadlineError::RuntimeTooShort { .. })
        ));
        let period = one.admit(&[reservation(50, 90, 90)]);
        assert!(matches!(period, Err(DeadlineError::Period { .. })));
        let order = one.admit(&[reservation(500, 400, 1_000)]);
        assert!(matches!(order, Err(DeadlineError::Order { .. })));
    }
}
