// SPDX-License-Identifier: MIT OR Apache-2.0
//! Worst-case response times of periodic tasks under fixed priorities, with the overheads of the
//! system [POSIX-metrics, section 4, equations 1 to 5].
//!
//! - `C_i = C_i^user + JST_i` (2): a job costs its own code and the system's code on its behalf.
//! - `B_i = B_i^activation + B_i^critical` (3): what tasks of lower priority take from it.
//! - `B_i^critical = max({SB_k : k in lp(i)} with B_i^user)` (4): one critical section, the
//!   longest.
//! - `B_i^activation = sum over k in lp(i) of ceil(R_i / T_k) DUW_k` (5): their timers expire all
//!   the same.
//! - `R_i = C_i + B_i + sum over j in hp(i) of ceil(R_i / T_j) C_j` (1): the least solution, by
//!   iteration from below.
//!
//! The equations hold as long as a job ends before the next one of its task is released: an `R_i`
//! beyond the period is no solution, and is not returned as one. Tasks of equal priority may delay
//! each other in any order, so each counts among the higher ones of the other (Linux runs them
//! first in, first out; that is never worse). The paper leaves that case open.
//!
//! [`response_times`] solves the equations for [`PeriodicTask`]s, whose times are all known.
//! [`ResponseAnalysis`] starts from [`TaskModel`]s, which may state only a part of the overheads,
//! and a [`TaskObservation`], which has measurements: it completes the tasks, solves the equations,
//! and compares the results with observed response times. [`CompleteMeasurements`] is the sink that
//! collects the measurements.
//!
//! ```
//! use overhear_event::Nanos;
//! use overhear_metrics::response::{response_times, PeriodicTask};
//!
//! let ms = Nanos::from_ms;
//! // Audsley, Burns et al. in the form that textbooks print: C = 3, 3, 5 and T = 7, 12, 20.
//! let tasks = [("a", 3, 7, 3), ("b", 2, 12, 3), ("c", 1, 20, 5)]
//!     .map(|(name, priority, t, c)| PeriodicTask::new(name, priority, ms(t), ms(c)));
//! let responses = response_times(&tasks)?;
//! let found: Vec<_> = responses.iter().map(|task| task.response).collect();
//! assert_eq!(found, [Some(ms(3)), Some(ms(6)), Some(ms(20))]);
//! # Ok::<(), overhear_metrics::response::ResponseError>(())
//! ```

use overhear_event::Nanos;

mod analysis;
mod complete_measurements;
mod observation;

pub use analysis::{AnalysedTask, ResponseAnalysis, ResponseNote, TaskModel};
pub use complete_measurements::{CompleteMeasurements, ThreadMeasurements};
pub use observation::{ObservedJobs, SystemOverhead, TaskObservation};

/// A task that is released once per period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodicTask {
    /// Name for users.
    pub name: String,
    /// A larger number is more urgent, as under `SCHED_FIFO`.
    pub priority: u32,
    /// `T_i`.
    pub period: Nanos,
    /// Time after its release at which a job must have ended; at most the period.
    pub deadline: Nanos,
    /// `C_i^user`.
    pub user_wcet: Nanos,
    /// `B_i^user`: the longest critical section of a task of lower priority that it can wait for.
    pub user_blocking: Nanos,
    /// Time that the system takes.
    pub overheads: Overheads,
    /// Whether it is an interrupt: nothing of lower priority delays it.
    pub is_interrupt: bool,
}

/// Time that the system takes for a task, in the worst case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overheads {
    /// `JST_i`: system time of a job, its activation included.
    pub job_system_time: Nanos,
    /// `SB_i`: longest time for which the system's code on behalf of this task blocks tasks of
    /// higher priority.
    pub system_blocking: Nanos,
    /// `DUW_i`: time to wake it up from its delay.
    pub delay_until_wakeup: Nanos,
}

impl PeriodicTask {
    /// A task whose deadline is its period, without blocking, in a system without overheads.
    #[must_use]
    pub fn new(name: &str, priority: u32, period: Nanos, user_wcet: Nanos) -> Self {
        Self {
            name: name.to_owned(),
            priority,
            period,
            deadline: period,
            user_wcet,
            user_blocking: Nanos::ZERO,
            overheads: Overheads::default(),
            is_interrupt: false,
        }
    }
}

/// The results for one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// `C_i` (2).
    pub wcet: Nanos,
    /// `B_i^critical` (4).
    pub critical: Nanos,
    /// `B_i^activation` (5), at the response time, or where the iteration ended.
    pub activation: Nanos,
    /// Time that tasks of higher or equal priority take until then.
    pub interference: Nanos,
    /// `R_i`; `None` if the equation has no solution within the period.
    pub response: Option<Nanos>,
    /// Number of steps of the iteration.
    pub steps: u32,
}

/// An invalid task.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    /// Its period is zero.
    #[error("task `{0}` has a period of 0 ns; give the distance of its releases")]
    NoPeriod(String),
    /// Its deadline exceeds its period, for which the equations do not hold.
    #[error("task `{task}` has a deadline of {deadline}, beyond its period of {period}; the equations hold up to the period")]
    LateDeadline {
        /// The task.
        task: String,
        /// Its deadline.
        deadline: Nanos,
        /// Its period.
        period: Nanos,
    },
    /// Its execution time is zero.
    #[error("task `{0}` takes no time; give its worst-case execution time")]
    NoTime(String),
}

/// The worst-case response times, in the order of the tasks.
///
/// # Errors
/// [`ResponseError`] names the invalid task.
pub fn response_times(tasks: &[PeriodicTask]) -> Result<Vec<Response>, ResponseError> {
    for task in tasks {
        if task.period == Nanos::ZERO {
            return Err(ResponseError::NoPeriod(task.name.clone()));
        }
        if task.deadline > task.period {
            return Err(ResponseError::LateDeadline {
                task: task.name.clone(),
                deadline: task.deadline,
                period: task.period,
            });
        }
        if wcet(task) == Nanos::ZERO {
            return Err(ResponseError::NoTime(task.name.clone()));
        }
    }
    Ok((0..tasks.len()).map(|i| response_time(tasks, i)).collect())
}

/// The share of a CPU that the tasks need. The system time of a job contains its activation.
#[must_use]
pub fn utilisation(tasks: &[PeriodicTask]) -> f64 {
    let share = |task: &PeriodicTask| wcet(task).as_ns() as f64 / task.period.as_ns() as f64;
    tasks.iter().map(share).sum()
}

fn wcet(task: &PeriodicTask) -> Nanos {
    task.user_wcet.plus(task.overheads.job_system_time)
}

fn response_time(tasks: &[PeriodicTask], i: usize) -> Response {
    let own = &tasks[i];
    let others = || {
        tasks
            .iter()
            .enumerate()
            .filter(move |(j, _)| *j != i)
            .map(|(_, task)| task)
    };
    let lower = || {
        let lower = others().filter(|task| task.priority < own.priority);
        lower.filter(|_| !own.is_interrupt)
    };
    let higher = || others().filter(|task| task.priority >= own.priority);
    let system = lower().map(|task| task.overheads.system_blocking);
    let critical = system.max().unwrap_or_default().max(own.user_blocking);
    let mut found = Response {
        wcet: wcet(own),
        critical,
        activation: Nanos::ZERO,
        interference: Nanos::ZERO,
        response: None,
        steps: 0,
    };
    // The right side grows with R, so the iteration from below ends at the least solution, or
    // exceeds the period: each step but the last adds at least one release of another task.
    let mut response = found.wcet.plus(critical);
    while response <= own.period {
        found.steps += 1;
        let releases = |of: &PeriodicTask| response.as_ns().div_ceil(of.period.as_ns());
        let times = |count: u64, cost: Nanos| Nanos::from_ns(cost.as_ns().saturating_mul(count));
        found.activation = lower().fold(Nanos::ZERO, |sum, task| {
            sum.plus(times(releases(task), task.overheads.delay_until_wakeup))
        });
        found.interference = higher().fold(Nanos::ZERO, |sum, task| {
            sum.plus(times(releases(task), wcet(task)))
        });
        let next = found
            .wcet
            .plus(critical)
            .plus(found.activation)
            .plus(found.interference);
        if next == response {
            found.response = Some(response);
            break;
        }
        response = next;
    }
    found
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;
    use proptest::prelude::{prop_assert_eq, proptest, Just, Strategy};

    use super::{response_times, utilisation, Overheads, PeriodicTask, ResponseError};

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    fn tasks(rows: &[(u32, u64, u64)]) -> Vec<PeriodicTask> {
        let each = rows.iter().map(|&(priority, period, wcet)| {
            PeriodicTask::new(&format!("p{priority}"), priority, us(period), us(wcet))
        });
        each.collect()
    }

    fn responses(tasks: &[PeriodicTask]) -> Vec<Option<u64>> {
        let found = response_times(tasks).unwrap();
        found
            .iter()
            .map(|task| task.response.map(|response| response.as_ns() / 1_000))
            .collect()
    }

    /// Burns and Wellings, Real-Time Systems: three tasks at a utilisation of 0.824, and the one
    /// whose third task just misses the utilisation bound but is schedulable at exactly 80.
    #[test]
    fn textbook_examples() {
        assert_eq!(
            responses(&tasks(&[(3, 7, 3), (2, 12, 3), (1, 20, 5)])),
            [Some(3), Some(6), Some(20)]
        );
        assert_eq!(
            responses(&tasks(&[(1, 80, 40), (2, 40, 10), (3, 20, 5)])),
            [Some(80), Some(15), Some(5)]
        );
        // Without a solution within the period: 12 + 10 * ceil(50/30) + 10 * ceil(50/40) = 52.
        assert_eq!(
            responses(&tasks(&[(1, 50, 12), (2, 40, 10), (3, 30, 10)])),
            [None, Some(20), Some(10)]
        );
    }

    /// By hand. Task 1 (T 100), 2 (T 200), 3 (T 400), priorities falling; JST 1, SB 2, 3, 4, DUW 1.
    ///
    /// - C = 21, 31, 41.
    /// - B_critical: 1: max(SB_2, SB_3) = 4; 2: max(SB_3, user 9) = 9; 3: none below, user 0.
    /// - R_1 = 21 + 4 + ceil(27/200) 1 + ceil(27/400) 1 = 27.
    /// - R_2 = 31 + 9 + ceil(R/400) 1 + ceil(R/100) 21 = 62.
    /// - R_3 = 41 + ceil(R/100) 21 + ceil(R/200) 31: 93 -> 93 (ceil 1 and 1).
    #[test]
    fn overheads_enter_by_the_equations() {
        let mut tasks = tasks(&[(3, 100, 20), (2, 200, 30), (1, 400, 40)]);
        for (task, blocking) in tasks.iter_mut().zip([2, 3, 4]) {
            task.overheads = Overheads {
                job_system_time: us(1),
                system_blocking: us(blocking),
                delay_until_wakeup: us(1),
            };
        }
        tasks[1].user_blocking = us(9);
        let found = response_times(&tasks).unwrap();
        let of = |i: usize| {
            let response = found[i];
            [
                response.wcet,
                response.critical,
                response.activation,
                response.interference,
                response.response.unwrap(),
            ]
        };
        assert_eq!(of(0), [21, 4, 2, 0, 27].map(us));
        assert_eq!(of(1), [31, 9, 1, 21, 62].map(us));
        assert_eq!(of(2), [41, 0, 0, 52, 93].map(us));
        let expected = 21.0 / 100.0 + 31.0 / 200.0 + 41.0 / 400.0;
        assert!((utilisation(&tasks) - expected).abs() < 1e-12);
    }

    /// An interrupt that takes 5 every 50 and is above all: task 1 of the test before takes 27 and
    /// one interrupt, and the interrupt does not wait.
    #[test]
    fn interrupts_delay_and_are_not_delayed() {
        let mut tasks = tasks(&[(3, 100, 20), (2, 200, 30), (9, 50, 5)]);
        for task in &mut tasks[..2] {
            task.overheads = Overheads {
                job_system_time: us(1),
                system_blocking: us(4),
                delay_until_wakeup: us(1),
            };
        }
        tasks[2].is_interrupt = true;
        let found = response_times(&tasks).unwrap();
        assert_eq!(found[0].response, Some(us(21 + 4 + 1 + 5)));
        assert_eq!((found[2].response, found[2].critical), (Some(us(5)), us(0)));
    }

    /// A sum of the paper: if tasks 2 to 15 are activated while task 1 is running, it is delayed by
    /// the sum of their Delay Until Wakeup (figure 4: 544.862 us as printed).
    #[test]
    fn delay_by_activations_is_the_sum_of_figure_4() {
        let wakeups = [
            44_235, 43_680, 36_207, 35_291, 43_380, 37_602, 43_726, 42_435, 37_392, 42_241, 37_617,
            36_762, 35_936, 36_041, 36_552,
        ];
        let each = (0..15).map(|index: u32| {
            let mut task = PeriodicTask::new("t", 15 - index, Nanos::from_ms(200), us(2_000));
            task.overheads.delay_until_wakeup = Nanos::from_ns(wakeups[index as usize]);
            task
        });
        let tasks: Vec<PeriodicTask> = each.collect();
        let first = response_times(&tasks).unwrap()[0];
        assert_eq!(first.activation, Nanos::from_ns(544_862));
        assert_eq!(first.response, Some(Nanos::from_ns(2_544_862)));
    }

    #[test]
    fn equal_priorities_delay_each_other() {
        assert_eq!(
            responses(&tasks(&[(1, 100, 10), (1, 100, 20)])),
            [Some(30), Some(30)]
        );
    }

    #[test]
    fn invalid_task_is_named() {
        let refused = |task: PeriodicTask| response_times(&[task]).unwrap_err();
        let good = PeriodicTask::new("t", 1, us(10), us(1));
        let period = Nanos::ZERO;
        assert_eq!(
            refused(PeriodicTask {
                period,
                deadline: period,
                ..good.clone()
            }),
            ResponseError::NoPeriod("t".into())
        );
        let user_wcet = Nanos::ZERO;
        assert_eq!(
            refused(PeriodicTask {
                user_wcet,
                ..good.clone()
            }),
            ResponseError::NoTime("t".into())
        );
        let late = refused(PeriodicTask {
            deadline: us(11),
            ..good
        });
        assert!(late.to_string().contains("beyond its period of 10.0 us"));
    }

    /// All tasks released at once and run by priority, microsecond by microsecond: the first job of
    /// each task ends when the equation says, because without blocking that is the worst case.
    fn simulate(tasks: &[PeriodicTask], limit: u64) -> Vec<Option<u64>> {
        let in_us = |length: Nanos| length.as_ns() / 1_000;
        let mut left: Vec<u64> = vec![0; tasks.len()];
        let mut ended = vec![None; tasks.len()];
        for now in 0..limit {
            for (left, task) in left.iter_mut().zip(tasks) {
                if now % in_us(task.period) == 0 {
                    *left += in_us(task.user_wcet);
                }
            }
            let ready = (0..tasks.len()).filter(|&i| left[i] > 0);
            if let Some(i) = ready.max_by_key(|&i| tasks[i].priority) {
                left[i] -= 1;
                if left[i] == 0 && ended[i].is_none() {
                    ended[i] = Some(now + 1);
                }
            }
        }
        for (end, task) in ended.iter_mut().zip(tasks) {
            *end = end.filter(|&end| end <= in_us(task.period));
        }
        ended
    }

    fn sets() -> impl Strategy<Value = Vec<PeriodicTask>> {
        let task = (1_u64..40).prop_flat_map(|period| (Just(period), 1..=period.div_ceil(3)));
        proptest::collection::vec(task, 1..6).prop_map(|rows| {
            let rows = (1_u32..).zip(rows);
            let rows: Vec<(u32, u64, u64)> = rows
                .map(|(priority, (period, wcet))| (priority, period, wcet))
                .collect();
            tasks(&rows)
        })
    }

    proptest! {
        #[test]
        fn least_solution_equals_the_simulation(tasks in sets()) {
            let found = responses(&tasks);
            prop_assert_eq!(&found, &simulate(&tasks, 50));
        }
    }
}
