// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear response-times`: worst-case response times of periodic tasks, from the descriptions in
//! a file and the measurements in a recording. The computation is in
//! [`overhear_metrics::response`].

use std::path::Path;

use overhear_event::kernel::events::LOCK;
use overhear_event::{Analysis, EventName, EventSet, Nanos};
use overhear_metrics::automaton::{system_metric, Metrics, Summaries};
use overhear_metrics::response::{
    AnalysedTask, CompleteMeasurements, ResponseAnalysis, ResponseNote, SystemOverhead, TaskModel,
    TaskObservation,
};
use overhear_metrics::Scheduling;
use overhear_trace::TraceReader;
use serde::Serialize;

use crate::compensation;
use crate::conclusion::Conclusion;
use crate::config::tasks::{self, TaskConfig};
use crate::error::{ErrorKind, SessionError, Setting};
use crate::metrics::{self, ElementCost, MetricReport};
use crate::recording::{self, Recording};

/// The metric that measures response times.
const RESPONSE_TIME: &str = "response_time";
/// The metric of the critical sections by which a task blocks others. It stands in for `blocking`
/// of tasks of higher priority.
const LOCK_BLOCKING: &str = "lock_blocking";

/// Computed and observed response times.
#[derive(Clone, Debug, Serialize)]
pub struct ResponseTimesReport {
    /// Whether each task meets its deadline in the worst case, and no observed response time
    /// exceeds the computed one.
    pub holds: bool,
    /// Whether the recording is complete; true without one.
    pub complete: bool,
    /// The share of a CPU that the tasks need.
    pub utilisation: f64,
    /// In the order of the file.
    pub tasks: Vec<TaskResponseReport>,
    /// Messages about unknown overheads and missed elements.
    pub notes: Vec<String>,
}

/// The response times of one task. Lengths are in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct TaskResponseReport {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: u32,
    /// T, the period.
    pub period_ns: u64,
    /// The relative deadline of a job.
    pub deadline_ns: u64,
    /// C of equation (2), system time included.
    pub wcet_ns: u64,
    /// System time of a job.
    pub job_system_time_ns: u64,
    /// The longest time for which its system code can block others.
    pub system_blocking_ns: u64,
    /// The time that its wake-up takes.
    pub delay_until_wakeup_ns: u64,
    /// The longest observed critical section by which it blocked others; null without a recording
    /// of the kernel sensor lock.
    pub lock_blocking_ns: Option<u64>,
    /// The overheads that were measured because the file does not give them.
    pub measured: Vec<&'static str>,
    /// B of equation (3): critical sections and activations of lower tasks.
    pub blocking_ns: u64,
    /// The time that higher tasks take.
    pub interference_ns: u64,
    /// R of equation (1); null if it exceeds the period.
    pub response_ns: Option<u64>,
    /// Whether R meets the deadline.
    pub schedulable: bool,
    /// Number of observed jobs; null without a recording.
    pub jobs: Option<u64>,
    /// The longest observed response time; null without one.
    pub observed_ns: Option<u64>,
    /// Whether the observed time exceeds the computed one.
    pub exceeded: bool,
}

/// Computes the response times of the tasks in the file `config`. With the recording `dir`, the
/// report also has the observed response times, and overheads that the file does not give are
/// measured. `cost` is the monitoring overhead per element of a task, which is subtracted. With
/// `compensate`, the overhead by the recording's calibration is first subtracted from all times.
///
/// # Errors
/// [`SessionError`] if there is no such file or recording, if the tasks are invalid, or if there is
/// no calibration.
pub fn response_times(
    config: &Path,
    dir: Option<&Path>,
    cost: ElementCost,
    compensate: bool,
) -> Result<ResponseTimesReport, SessionError> {
    let configs = tasks::read(config)?;
    if compensate && dir.is_none() {
        let message = "only the times of a recording can be compensated; name its directory";
        return Err(SessionError::new(ErrorKind::Usage, message).about(Setting::Compensate));
    }
    let models: Vec<TaskModel> = configs.iter().map(TaskConfig::model).collect();
    let observed = dir.map(|dir| observe(dir, &models, cost, compensate));
    let observed = observed.transpose()?;
    let observation = observed.as_ref().map(|observed| &observed.observation);
    let analysis = ResponseAnalysis::of(&models, observation).map_err(|error| {
        SessionError::new(ErrorKind::Usage, format!("{}: {error}", config.display()))
    })?;
    let notes = observed.map_or_else(Vec::new, |observed| observed.notes);
    Ok(report_of(&models, &analysis, notes))
}

/// The measurements of a recording.
struct Observed {
    observation: TaskObservation,
    /// Messages about missed elements and damage.
    notes: Vec<String>,
}

impl Observed {
    /// Adds the measurements of one metric.
    fn add(&mut self, metric: &MetricReport) {
        let observation = &mut self.observation;
        if !metric.is_complete() {
            observation.set_incomplete();
            if metric.name != RESPONSE_TIME {
                observation.set_may_be_longer();
            }
            let (name, shortcomings) = (&metric.name, metrics::shortcomings(metric));
            let lines = shortcomings.lines();
            self.notes
                .extend(lines.map(|line| format!("{name}: {line}")));
        }
        if metric.name != RESPONSE_TIME && !metric.absent_events.is_empty() {
            // For example, without the ends of system calls a complete job counts as system time.
            return;
        }
        let mut overheads = SystemOverhead::ALL.into_iter();
        let overhead = overheads.find(|overhead| overhead.metric() == metric.name);
        for row in &metric.tasks {
            let longest = Nanos::from_ns(row.max_ns);
            match overhead {
                Some(overhead) => observation.add_overhead(&row.comm, overhead, longest),
                None if metric.name == LOCK_BLOCKING => {
                    observation.add_lock_blocking(&row.comm, longest)
                }
                None => observation.add_jobs(&row.comm, row.count, longest),
            }
        }
    }
}

/// The metrics of the overheads that some task does not state.
fn needed_overheads(models: &[TaskModel], has_locks: bool) -> Vec<&'static str> {
    let is_needed = |overhead: &SystemOverhead| models.iter().any(|model| !model.states(*overhead));
    let needed = SystemOverhead::ALL.into_iter().filter(is_needed);
    let mut needed: Vec<&str> = needed.map(SystemOverhead::metric).collect();
    if has_locks && models.iter().any(|model| model.user_blocking.is_none()) {
        needed.push(LOCK_BLOCKING);
    }
    needed
}

fn observe(
    dir: &Path,
    models: &[TaskModel],
    cost: ElementCost,
    compensate: bool,
) -> Result<Observed, SessionError> {
    let usage =
        |error: overhear_trace::ReadError| SessionError::new(ErrorKind::Usage, error.to_string());
    let reader = TraceReader::open(dir).map_err(usage)?;
    let summaries = Summaries::default().minus_costs(cost.of(&reader)?);
    let mut engine = Metrics::new(CompleteMeasurements::new(summaries));
    let events: EventSet = reader.streams().map(|stream| stream.event()).collect();
    let has_locks = events.contains(&EventName::kernel(LOCK));
    let needed = needed_overheads(models, has_locks);
    for name in needed.iter().copied().chain([RESPONSE_TIME]) {
        let metric = system_metric(name)
            .map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
        engine.add(metric);
    }
    let mut scheduling = Scheduling::new(());
    let costs = compensate.then(|| compensation::costs_of(&reader));
    let updates: Vec<&mut dyn Analysis> = vec![&mut engine, &mut scheduling];
    let replayed = compensation::replay(&reader, costs.transpose()?, updates);
    engine.finish();
    let mut found = Observed {
        observation: TaskObservation::new(has_locks),
        notes: Vec::new(),
    };
    let comms = metrics::comms(&reader, &scheduling);
    comms
        .values()
        .for_each(|comm| found.observation.add_thread(comm));
    let report = metrics::report_of(&engine, engine.sink().summaries(), &comms, &events);
    for (index, metric) in report.metrics.iter().enumerate() {
        if metric.name == RESPONSE_TIME {
            for (task, measured) in engine.sink().threads_of(index) {
                let comm = comms.get(&task).cloned().unwrap_or_default();
                let incomplete = measured.incomplete;
                found.observation.add_jobs(&comm, incomplete, Nanos::ZERO);
                if measured.is_doubtful {
                    found.observation.doubt(&comm);
                }
            }
        }
        found.add(metric);
    }
    let run = Recording::read(&reader).map_err(usage)?;
    let mut damage = recording::damage(&reader, run.as_ref(), &replayed);
    damage.extend(engine.complaints().iter().cloned());
    if !damage.is_empty() {
        found.observation.set_incomplete();
        found.observation.doubt_all();
    }
    if engine.sink().summaries().refused() > 0 {
        // The counted jobs are certain. A refused measurement of an overhead may be the longest.
        found.observation.set_incomplete();
        if !needed.is_empty() {
            found.observation.set_may_be_longer();
        }
    }
    let others = report.notes.into_iter();
    let others = others.filter(|note| !damage.contains(note));
    found.notes.extend(others);
    found.notes.extend(damage);
    Ok(found)
}

/// The report on an analysis; its notes follow those of the recording.
fn report_of(
    models: &[TaskModel],
    analysis: &ResponseAnalysis,
    mut notes: Vec<String>,
) -> ResponseTimesReport {
    notes.extend(analysis.notes.iter().map(|note| message(note, models)));
    ResponseTimesReport {
        holds: analysis.holds(),
        complete: analysis.is_complete,
        utilisation: analysis.utilisation,
        tasks: analysis.tasks.iter().map(TaskResponseReport::of).collect(),
        notes,
    }
}

fn message(note: &ResponseNote, models: &[TaskModel]) -> String {
    let name = |task: &usize| &models[*task].name;
    let thread = |task: &usize| models[*task].thread.as_deref().unwrap_or_default();
    match note {
        ResponseNote::Unmeasured(overheads) => {
            let names: Vec<_> = overheads.iter().map(|overhead| overhead.metric()).collect();
            format!(
                "without a recording, overheads that the file does not give count as nothing: {}",
                names.join(", ")
            )
        }
        ResponseNote::SameName { task, threads } => format!(
            "{}: {threads} threads are called `{}`; the longest of all is shown",
            name(task),
            thread(task)
        ),
        ResponseNote::DoubtfulJob { task } => format!(
            "{}: something was missed of its longest job, which may not have exceeded R",
            name(task)
        ),
        ResponseNote::DoubtfulOverheads { task } => format!(
            "{}: its longest job may not have exceeded R, for overheads are not completely known",
            name(task)
        ),
        ResponseNote::NoJob { task } => format!(
            "{}: no job of a thread called `{}` was observed",
            name(task),
            thread(task)
        ),
    }
}

impl TaskResponseReport {
    fn of(analysed: &AnalysedTask) -> Self {
        let (task, response) = (&analysed.task, &analysed.response);
        let measured = analysed.measured.iter();
        Self {
            name: task.name.clone(),
            priority: task.priority,
            period_ns: task.period.as_ns(),
            deadline_ns: task.deadline.as_ns(),
            wcet_ns: response.wcet.as_ns(),
            job_system_time_ns: task.overheads.job_system_time.as_ns(),
            system_blocking_ns: task.overheads.system_blocking.as_ns(),
            delay_until_wakeup_ns: task.overheads.delay_until_wakeup.as_ns(),
            lock_blocking_ns: analysed.lock_blocking.map(Nanos::as_ns),
            measured: measured.map(|overhead| overhead.metric()).collect(),
            blocking_ns: response.critical.plus(response.activation).as_ns(),
            interference_ns: response.interference.as_ns(),
            response_ns: response.response.map(Nanos::as_ns),
            schedulable: analysed.is_schedulable,
            jobs: analysed.jobs,
            observed_ns: analysed.observed.map(Nanos::as_ns),
            exceeded: analysed.is_exceeded,
        }
    }
}

impl ResponseTimesReport {
    /// Violated if a deadline or a computed response time is exceeded; else inconclusive if the
    /// recording is incomplete.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        match (self.holds, self.complete) {
            (false, _) => Conclusion::Violated,
            (true, true) => Conclusion::Complete,
            (true, false) => Conclusion::Inconclusive,
        }
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::Nanos;
    use overhear_metrics::response::{ResponseAnalysis, TaskModel, TaskObservation};

    use super::{report_of, ResponseTimesReport};
    use crate::conclusion::Conclusion;
    use crate::config::tasks::{parse, TaskConfig};

    const FILE: &str = r#"
        [[task]]
        name = "control"
        priority = 90
        period = "10 ms"
        wcet = "2 ms"
        [[task]]
        name = "logging"
        thread = "logger"
        priority = 10
        period = "100 ms"
        deadline = "50 ms"
        wcet = "20 ms"
        blocking = "1 ms"
        delay_until_wakeup = "40 us"
    "#;

    fn report(
        text: &str,
        observation: Option<&TaskObservation>,
    ) -> Result<ResponseTimesReport, String> {
        let configs = parse(text)?;
        let models: Vec<TaskModel> = configs.iter().map(TaskConfig::model).collect();
        let analysis = ResponseAnalysis::of(&models, observation).map_err(|it| it.to_string())?;
        Ok(report_of(&models, &analysis, Vec::new()))
    }

    #[test]
    fn deadlines_and_unobserved_tasks_decide_the_conclusion() {
        let computed = report(FILE, None).unwrap();
        assert_eq!(
            (computed.holds, computed.conclusion()),
            (true, Conclusion::Complete)
        );
        let unobserved = report(FILE, Some(&TaskObservation::default())).unwrap();
        assert_eq!(unobserved.conclusion(), Conclusion::Inconclusive);
        assert!(unobserved.notes[1].contains("no job of a thread called `logger`"));
        let late = report(&FILE.replace("50 ms", "25 ms"), None).unwrap();
        assert_eq!(
            (late.tasks[1].schedulable, late.conclusion()),
            (false, Conclusion::Violated)
        );
        let over = report(&FILE.replace("\"2 ms\"", "\"9 ms\""), None).unwrap();
        assert_eq!(over.tasks[1].response_ns, None);
    }

    #[test]
    fn exceeded_response_time_is_a_violation() {
        let mut found = TaskObservation::default();
        found.add_jobs("control", 500, Nanos::from_us(2_040));
        found.add_jobs("logger", 50, Nanos::from_us(27_001));
        let report = report(FILE, Some(&found)).unwrap();
        let exceeded: Vec<_> = report.tasks.iter().map(|task| task.exceeded).collect();
        assert_eq!(exceeded, [false, true]);
        assert_eq!(
            (report.holds, report.conclusion()),
            (false, Conclusion::Violated)
        );
    }

    #[test]
    fn mistakes_name_the_task_or_the_line() {
        let twice = FILE.replace("thread = \"logger\"", "thread = \"control\"");
        assert!(parse(&twice)
            .unwrap_err()
            .starts_with("task `logging` has the name or the thread"));
        assert!(report(&FILE.replace("10 ms", "0 s"), None)
            .unwrap_err()
            .contains("task `control` has a period of 0 ns"));
        assert_eq!(
            parse("[[constraint]]\n").unwrap_err(),
            "there is no [[task]]; describe at least one"
        );
        assert!(parse("[[task]]\nname = \"a\"\n")
            .unwrap_err()
            .starts_with("line 1: missing field"));
        // The kernel keeps 15 bytes of a name, and whole characters are kept here.
        let long = FILE.replace("\"logger\"", "\"a_long_name_of_€\"");
        assert_eq!(parse(&long).unwrap()[1].thread(), "a_long_name_of_");
    }
}
