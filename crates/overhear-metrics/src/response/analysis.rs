// SPDX-License-Identifier: MIT OR Apache-2.0
//! Response times of tasks whose overheads are partly stated and partly measured, compared with
//! observed response times.

use overhear_event::Nanos;

use super::{
    response_times, utilisation, Overheads, PeriodicTask, Response, ResponseError, SystemOverhead,
    TaskObservation,
};

/// A task as it is described: what is not stated is measured, where an observation exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskModel {
    /// Name for users.
    pub name: String,
    /// Short name of its thread; `None` for an interrupt, which has no thread and is not observed.
    pub thread: Option<String>,
    /// A larger number is more urgent.
    pub priority: u32,
    /// `T_i`.
    pub period: Nanos,
    /// Time after its release at which a job must have ended; at most the period.
    pub deadline: Nanos,
    /// `C_i^user`.
    pub user_wcet: Nanos,
    /// `B_i^user`.
    pub user_blocking: Option<Nanos>,
    /// `JST_i`.
    pub job_system_time: Option<Nanos>,
    /// `SB_i`.
    pub system_blocking: Option<Nanos>,
    /// `DUW_i`.
    pub delay_until_wakeup: Option<Nanos>,
}

impl TaskModel {
    /// Whether this overhead need not be measured: it is stated, or the task has no thread.
    #[must_use]
    pub const fn states(&self, overhead: SystemOverhead) -> bool {
        self.stated(overhead).is_some() || self.thread.is_none()
    }

    const fn stated(&self, overhead: SystemOverhead) -> Option<Nanos> {
        match overhead {
            SystemOverhead::JobSystemTime => self.job_system_time,
            SystemOverhead::SystemBlocking => self.system_blocking,
            SystemOverhead::DelayUntilWakeup => self.delay_until_wakeup,
        }
    }

    fn states_all(&self) -> bool {
        SystemOverhead::ALL.into_iter().all(|it| self.states(it))
    }

    fn lock_blocking(&self, observation: &TaskObservation) -> Option<Nanos> {
        observation.lock_blocking(self.thread.as_deref().unwrap_or_default())
    }
}

/// A task with its computed and observed response times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnalysedTask {
    /// The task with the overheads that were used.
    pub task: PeriodicTask,
    /// The computed response time.
    pub response: Response,
    /// The overheads that were measured and not stated.
    pub measured: Vec<SystemOverhead>,
    /// Longest critical section by which the task blocked others; `None` unless locks were
    /// recorded.
    pub lock_blocking: Option<Nanos>,
    /// Number of observed jobs; `None` without an observation, and for interrupts.
    pub jobs: Option<u64>,
    /// Longest observed response time.
    pub observed: Option<Nanos>,
    /// Whether the computed response time meets the deadline.
    pub is_schedulable: bool,
    /// Whether the longest observed response time exceeds the computed one for certain.
    pub is_exceeded: bool,
}

/// A limit of the analysis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseNote {
    /// There is no observation, and these overheads are not stated by all tasks: they count as
    /// zero.
    Unmeasured(Vec<SystemOverhead>),
    /// Several threads have the name of a task's thread; the longest measurement of all is used.
    SameName {
        /// Index of the task.
        task: usize,
        /// Number of threads.
        threads: u64,
    },
    /// The longest job of a task took longer than computed, but elements of it were missed.
    DoubtfulJob {
        /// Index of the task.
        task: usize,
    },
    /// The longest job of a task took longer than computed, but the overheads are not completely
    /// known.
    DoubtfulOverheads {
        /// Index of the task.
        task: usize,
    },
    /// No job of a task's thread was observed.
    NoJob {
        /// Index of the task.
        task: usize,
    },
}

/// Computed and observed response times of a set of tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponseAnalysis {
    /// The tasks, in the order of the models.
    pub tasks: Vec<AnalysedTask>,
    /// Share of a CPU that the tasks need.
    pub utilisation: f64,
    /// Whether the observation misses nothing; true without one.
    pub is_complete: bool,
    /// Limits of the analysis, in the order of the tasks.
    pub notes: Vec<ResponseNote>,
}

impl ResponseAnalysis {
    /// Computes the response times of these tasks, and compares them with an observation.
    ///
    /// # Errors
    /// [`ResponseError`] names the invalid task.
    pub fn of(
        models: &[TaskModel],
        observation: Option<&TaskObservation>,
    ) -> Result<Self, ResponseError> {
        let (tasks, measured): (Vec<_>, Vec<_>) = models
            .iter()
            .map(|model| task_of(model, models, observation))
            .unzip();
        let responses = response_times(&tasks)?;
        let may_be_longer = observation.is_some_and(|found| may_be_longer(models, found));
        let utilisation = utilisation(&tasks);
        let each = models.iter().zip(tasks).zip(responses).zip(measured);
        let tasks = each
            .map(|(((model, task), response), measured)| {
                let analysed = AnalysedTask {
                    is_schedulable: response.response.is_some_and(|it| it <= task.deadline),
                    task,
                    response,
                    measured,
                    lock_blocking: observation.and_then(|found| model.lock_blocking(found)),
                    jobs: None,
                    observed: None,
                    is_exceeded: false,
                };
                match (observation, &model.thread) {
                    (Some(found), Some(thread)) => analysed.compared(found, thread, may_be_longer),
                    _ => analysed,
                }
            })
            .collect();
        let mut analysis = Self {
            tasks,
            utilisation,
            is_complete: true,
            notes: Vec::new(),
        };
        match observation {
            None => analysis.note_unmeasured(models),
            Some(found) => analysis.note_observed(models, found),
        }
        Ok(analysis)
    }

    /// Whether every task meets its deadline in the worst case, and no observed response time
    /// exceeds the computed one.
    #[must_use]
    pub fn holds(&self) -> bool {
        let mut tasks = self.tasks.iter();
        tasks.all(|task| task.is_schedulable && !task.is_exceeded)
    }

    fn note_unmeasured(&mut self, models: &[TaskModel]) {
        let mut unmeasured = SystemOverhead::ALL.to_vec();
        unmeasured.retain(|&overhead| models.iter().any(|model| !model.states(overhead)));
        if !unmeasured.is_empty() {
            self.notes.push(ResponseNote::Unmeasured(unmeasured));
        }
    }

    fn note_observed(&mut self, models: &[TaskModel], observation: &TaskObservation) {
        self.is_complete = observation.is_complete();
        for (task, (model, analysed)) in models.iter().zip(&self.tasks).enumerate() {
            let Some(thread) = &model.thread else {
                continue;
            };
            let threads = observation.threads(thread);
            if threads > 1 {
                self.notes.push(ResponseNote::SameName { task, threads });
            }
            if analysed.is_longer() && !analysed.is_exceeded {
                self.notes.push(match observation.is_doubtful(thread) {
                    true => ResponseNote::DoubtfulJob { task },
                    false => ResponseNote::DoubtfulOverheads { task },
                });
            }
            if analysed.jobs == Some(0) {
                self.is_complete = false;
                self.notes.push(ResponseNote::NoJob { task });
            }
        }
    }
}

impl AnalysedTask {
    /// Whether the longest observed response time is above the computed one.
    fn is_longer(&self) -> bool {
        let both = self.observed.zip(self.response.response);
        both.is_some_and(|(observed, computed)| observed > computed)
    }

    /// Compared with the jobs of its thread.
    fn compared(
        mut self,
        observation: &TaskObservation,
        thread: &str,
        may_be_longer: bool,
    ) -> Self {
        let jobs = observation.jobs(thread).unwrap_or_default();
        self.jobs = Some(jobs.count);
        self.observed = Some(jobs.longest).filter(|longest| *longest > Nanos::ZERO);
        self.is_exceeded = self.is_longer() && !may_be_longer && !observation.is_doubtful(thread);
        self
    }
}

/// The task of a model with stated and measured overheads, and those that were measured.
fn task_of(
    model: &TaskModel,
    models: &[TaskModel],
    observation: Option<&TaskObservation>,
) -> (PeriodicTask, Vec<SystemOverhead>) {
    let mut measured = Vec::new();
    let mut overhead = |overhead: SystemOverhead| {
        let longest = observation.zip(model.thread.as_deref());
        let longest = longest.and_then(|(found, thread)| found.overhead(thread, overhead));
        let longest = longest.filter(|_| !model.states(overhead));
        if longest.is_some() {
            measured.push(overhead);
        }
        longest.or(model.stated(overhead)).unwrap_or_default()
    };
    let overheads = Overheads {
        job_system_time: overhead(SystemOverhead::JobSystemTime),
        system_blocking: overhead(SystemOverhead::SystemBlocking),
        delay_until_wakeup: overhead(SystemOverhead::DelayUntilWakeup),
    };
    let blocking = || {
        let found = observation.filter(|_| model.thread.is_some())?;
        let lower = models.iter().filter(|it| it.priority < model.priority);
        lower.filter_map(|it| it.lock_blocking(found)).max()
    };
    let task = PeriodicTask {
        name: model.name.clone(),
        priority: model.priority,
        period: model.period,
        deadline: model.deadline,
        user_wcet: model.user_wcet,
        user_blocking: model.user_blocking.or_else(blocking).unwrap_or_default(),
        overheads,
        is_interrupt: model.thread.is_none(),
    };
    (task, measured)
}

/// Whether an overhead that is not stated may be longer than its longest measurement, or was not
/// measured because its task had no job.
fn may_be_longer(models: &[TaskModel], observation: &TaskObservation) -> bool {
    let is_known = |model: &TaskModel| {
        let thread = model.thread.as_deref().unwrap_or_default();
        observation.jobs(thread).is_some() || model.states_all()
    };
    observation.may_be_longer() || !models.iter().all(is_known)
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;

    use super::{ResponseAnalysis, ResponseNote, TaskModel};
    use crate::response::{ResponseError, SystemOverhead, TaskObservation};

    fn us(us: u64) -> Nanos {
        Nanos::from_us(us)
    }

    /// `control` above `logger`; of the overheads only one is stated.
    fn models() -> [TaskModel; 2] {
        let task = |name: &str, priority, period, wcet| TaskModel {
            name: name.to_owned(),
            thread: Some(name.to_owned()),
            priority,
            period: us(period),
            deadline: us(period),
            user_wcet: us(wcet),
            user_blocking: None,
            job_system_time: None,
            system_blocking: None,
            delay_until_wakeup: None,
        };
        let mut logger = task("logger", 10, 100_000, 20_000);
        logger.user_blocking = Some(us(1_000));
        logger.delay_until_wakeup = Some(us(40));
        [task("control", 90, 10_000, 2_000), logger]
    }

    /// Both have jobs of these lengths, and `control` a job system time of 100 us.
    fn observed(control: u64, logger: u64) -> TaskObservation {
        let mut found = TaskObservation::new(false);
        found.add_overhead("control", SystemOverhead::JobSystemTime, us(100));
        found.add_overhead("logger", SystemOverhead::DelayUntilWakeup, us(90));
        for (thread, longest) in [("control", control), ("logger", logger)] {
            found.add_thread(thread);
            found.add_jobs(thread, 5, us(longest));
        }
        found
    }

    /// By hand: R_control = 2.1 + ceil(R/100) 0.04 = 2.14 ms; R_logger = 20 + 1 + ceil(R/10) 2.1 =
    /// 27.3 with three releases.
    #[test]
    fn measured_overheads_replace_those_that_are_not_stated() {
        let found = ResponseAnalysis::of(&models(), Some(&observed(2_140, 27_301))).unwrap();
        let [control, logger] = found.tasks.as_slice() else {
            panic!("{found:?}");
        };
        assert_eq!(control.response.response, Some(us(2_140)));
        assert_eq!(control.measured, [SystemOverhead::JobSystemTime]);
        assert_eq!(control.task.overheads.job_system_time, us(100));
        assert!(!control.is_exceeded);
        assert_eq!(logger.response.response, Some(us(27_300)));
        assert_eq!(logger.measured, []);
        assert_eq!(logger.task.overheads.delay_until_wakeup, us(40));
        assert!(logger.is_exceeded && logger.is_schedulable);
        assert!(!found.holds() && found.is_complete);
        assert_eq!(found.notes, []);
    }

    #[test]
    fn locks_of_lower_tasks_replace_blocking_that_is_not_stated() {
        let mut found = TaskObservation::new(true);
        for (thread, longest) in [("control", 300), ("logger", 500), ("logger", 200)] {
            found.add_lock_blocking(thread, us(longest));
        }
        let analysis = ResponseAnalysis::of(&models(), Some(&found)).unwrap();
        let tasks = analysis.tasks.iter();
        let blocking: Vec<_> = tasks
            .map(|it| (it.task.user_blocking, it.lock_blocking))
            .collect();
        assert_eq!(
            blocking,
            [(us(500), Some(us(300))), (us(1_000), Some(us(500)))]
        );
        let mut without = TaskObservation::new(false);
        without.add_lock_blocking("logger", us(500));
        let analysis = ResponseAnalysis::of(&models(), Some(&without)).unwrap();
        assert_eq!(analysis.tasks[0].task.user_blocking, Nanos::ZERO);
        assert_eq!(analysis.tasks[0].lock_blocking, None);
    }

    #[test]
    fn doubtful_jobs_exceed_nothing() {
        let mut found = observed(2_140, 27_301);
        found.doubt("logger");
        let analysis = ResponseAnalysis::of(&models(), Some(&found)).unwrap();
        assert!(analysis.holds());
        assert_eq!(analysis.notes, [ResponseNote::DoubtfulJob { task: 1 }]);
        let mut found = observed(2_140, 27_301);
        found.set_may_be_longer();
        let analysis = ResponseAnalysis::of(&models(), Some(&found)).unwrap();
        assert_eq!(
            analysis.notes,
            [ResponseNote::DoubtfulOverheads { task: 1 }]
        );
        let mut found = observed(2_141, 27_301);
        found.doubt_all();
        found.set_incomplete();
        let analysis = ResponseAnalysis::of(&models(), Some(&found)).unwrap();
        assert!(analysis.holds() && !analysis.is_complete);
        assert_eq!(analysis.notes.len(), 2);
    }

    #[test]
    fn unobserved_task_makes_the_analysis_incomplete() {
        let mut found = TaskObservation::new(false);
        for _ in 0..2 {
            found.add_thread("control");
        }
        found.add_jobs("control", 3, us(9_000));
        let analysis = ResponseAnalysis::of(&models(), Some(&found)).unwrap();
        // The overheads of `logger` are unknown, so `control` may take longer than computed.
        assert!(analysis.holds() && !analysis.is_complete);
        assert_eq!(
            analysis.notes,
            [
                ResponseNote::SameName {
                    task: 0,
                    threads: 2
                },
                ResponseNote::DoubtfulOverheads { task: 0 },
                ResponseNote::NoJob { task: 1 },
            ]
        );
    }

    #[test]
    fn interrupt_is_not_compared_with_threads_without_a_name() {
        let mut models = models();
        models[0].thread = None;
        let mut found = observed(2_140, 20_000);
        for _ in 0..2 {
            found.add_thread("");
        }
        found.add_jobs("", 7, us(9_000));
        let analysis = ResponseAnalysis::of(&models, Some(&found)).unwrap();
        let interrupt = &analysis.tasks[0];
        assert_eq!((interrupt.jobs, interrupt.observed), (None, None));
        assert_eq!(analysis.notes, []);
    }

    #[test]
    fn overheads_count_as_zero_without_an_observation() {
        let analysis = ResponseAnalysis::of(&models(), None).unwrap();
        assert!(analysis.holds() && analysis.is_complete);
        let all = SystemOverhead::ALL.to_vec();
        assert_eq!(analysis.notes, [ResponseNote::Unmeasured(all)]);
        let mut stated = models();
        for model in &mut stated {
            model.job_system_time = Some(us(1));
            model.delay_until_wakeup = Some(us(1));
        }
        // An interrupt has no overheads of its own.
        stated[0].thread = None;
        let analysis = ResponseAnalysis::of(&stated, None).unwrap();
        let unmeasured = vec![SystemOverhead::SystemBlocking];
        assert_eq!(analysis.notes, [ResponseNote::Unmeasured(unmeasured)]);
        assert!(analysis.tasks[0].task.is_interrupt);
    }

    #[test]
    fn missed_deadline_does_not_hold() {
        let mut late = models();
        late[1].deadline = us(25_000);
        let analysis = ResponseAnalysis::of(&late, None).unwrap();
        assert!(!analysis.tasks[1].is_schedulable && !analysis.holds());
        late[1].period = Nanos::ZERO;
        assert_eq!(
            ResponseAnalysis::of(&late, None).unwrap_err(),
            ResponseError::NoPeriod("logger".into())
        );
    }
}
