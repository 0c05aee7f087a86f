// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear response-times`: worst-case response times of periodic tasks, computed from their periods and times
//! and from measured overheads, beside those that were observed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use overhear_event::kernel::events::LOCK;
use overhear_event::{EventName, EventSet, Nanos, StreamDescriptor, Update};
use overhear_metrics::automaton::{
    system_metric, LateGap, Measurement, Metric, Metrics, Sink, Summaries,
};
use overhear_metrics::response::{response_times, utilisation, Overheads, PeriodicTask};
use overhear_metrics::Scheduling;
use overhear_trace::TraceReader;
use serde::Serialize;

use crate::compensation;
use crate::conclusion::Conclusion;
use crate::config::tasks::{self, TaskConfig};
use crate::error::{ErrorKind, SessionError};
use crate::metrics::{self, ElementCost};
use crate::recording::{self, Recording};

/// The metric whose measurements are observed response times.
const OBSERVED: &str = "response_time";
/// The metrics of the overheads.
const OVERHEADS: [&str; 3] = ["job_system_time", "system_blocking", "delay_until_wakeup"];
/// The metric of the critical sections that a task was seen to block others by. It stands in for `blocking` of those
/// above it, and need not be there: a file may leave that out for want of locks.
const LOCKS: &str = "lock_blocking";

/// Computed and observed response times.
#[derive(Clone, Debug, Serialize)]
pub struct RtaReport {
    /// Whether every task meets its deadline in the worst case, and no observed response time exceeds
    /// the computed one.
    pub holds: bool,
    /// Whether the observation misses nothing; true without one.
    pub complete: bool,
    /// The share of a CPU that the tasks need.
    pub utilisation: f64,
    /// In the order of the file.
    pub tasks: Vec<TaskReport>,
    /// What else should be known: overheads that are not known, what was missed.
    pub notes: Vec<String>,
}

/// One task. Lengths are in nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct TaskReport {
    /// Its name.
    pub name: String,
    /// Its priority.
    pub priority: u32,
    /// T.
    pub period_ns: u64,
    /// By when a job must have ended.
    pub deadline_ns: u64,
    /// C (2), system time included.
    pub wcet_ns: u64,
    /// System time of a job.
    pub job_system_time_ns: u64,
    /// How long its system code can block others.
    pub system_blocking_ns: u64,
    /// What waking it up takes.
    pub delay_until_wakeup_ns: u64,
    /// The longest critical section by which it was seen to block others; null without a recording that has its sensor.
    pub lock_blocking_ns: Option<u64>,
    /// The overheads that were measured and not given.
    pub measured: Vec<&'static str>,
    /// B (3): critical sections and activations of lower tasks.
    pub blocking_ns: u64,
    /// What higher tasks take.
    pub interference_ns: u64,
    /// R (1); null if it exceeds the period.
    pub response_ns: Option<u64>,
    /// Whether R meets the deadline.
    pub schedulable: bool,
    /// Jobs that were observed; null without a recording.
    pub jobs: Option<u64>,
    /// The longest observed response time; null without one.
    pub observed_ns: Option<u64>,
    /// Whether it exceeds the computed one.
    pub exceeded: bool,
}

/// What a recording says of the tasks, by the short names of their threads.
#[derive(Debug, Default)]
struct Observation {
    overheads: BTreeMap<(String, &'static str), u64>,
    /// Whether locks were heard.
    hears_locks: bool,
    jobs: BTreeMap<String, (u64, u64)>,
    threads: BTreeMap<String, BTreeSet<u32>>,
    /// Threads of which the longest job may be wrong.
    doubted: BTreeSet<String>,
    /// Whether an overhead that is not given may be longer than what was measured of it. Tasks interfere, so the
    /// computed response times of all may be longer then.
    may_be_longer: bool,
    complete: bool,
    notes: Vec<String>,
}

/// Adds up what is measured completely: what was missed may make a measurement longer than it was, and a
/// response time that never was must not exceed anything.
#[derive(Debug, Default)]
struct Complete {
    summaries: Summaries,
    /// By metric and thread: the longest measurement and its number, those that were missed a part of, and
    /// whether the longest came into doubt.
    threads: BTreeMap<(usize, u32), Known>,
}

#[derive(Debug, Default)]
struct Known {
    longest: Option<(Nanos, u64)>,
    incomplete: u64,
    is_doubted: bool,
}

impl Sink for Complete {
    fn counts_intermediate(&self, metric: &Metric) -> bool {
        self.summaries.counts_intermediate(metric)
    }

    fn element_cost_ns(&self, stream: &StreamDescriptor) -> f64 {
        self.summaries.element_cost_ns(stream)
    }

    fn wants_positions(&self, _: &Metric) -> bool {
        false
    }

    fn measurement(&mut self, measurement: &Measurement<'_>) {
        let place = (measurement.metric_index, measurement.task);
        let known = self.threads.entry(place).or_default();
        if !measurement.is_complete() {
            known.incomplete += 1;
            return;
        }
        if known
            .longest
            .is_none_or(|(longest, _)| measurement.length > longest)
        {
            known.longest = Some((measurement.length, measurement.number));
            known.is_doubted = false;
        }
        self.summaries.measurement(measurement);
    }

    fn late_gap(&mut self, doubt: &LateGap<'_>) {
        if let Some(known) = self.threads.get_mut(&(doubt.metric_index, doubt.task)) {
            known.is_doubted |= known
                .longest
                .is_some_and(|(_, number)| number == doubt.number);
        }
        self.summaries.late_gap(doubt);
    }
}

/// Computes the response times of the tasks in the file `config`; with overheads that were measured in
/// the recording `dir`, and beside the response times that were observed in it. `cost` is what the
/// observation itself took per element of a task, and is subtracted. With `compensate`, what observing has
/// cost is subtracted from all times before, by the calibration of the recording.
///
/// # Errors
/// [`SessionError`] if there is no such file or recording, if the tasks make no sense, or if there is no calibration.
pub fn rta(
    config: &Path,
    dir: Option<&Path>,
    cost: ElementCost,
    compensate: bool,
) -> Result<RtaReport, SessionError> {
    let configs = tasks::read(config)?;
    if compensate && dir.is_none() {
        let sentence = "--compensate moves the times of a recording; name its directory";
        return Err(SessionError::new(ErrorKind::Usage, sentence));
    }
    let observation = dir.map(|dir| observe(dir, &configs, cost, compensate));
    let observation = observation.transpose()?;
    compute(&configs, observation).map_err(|sentence| {
        SessionError::new(
            ErrorKind::Usage,
            format!("{}: {sentence}", config.display()),
        )
    })
}

fn observe(
    dir: &Path,
    configs: &[TaskConfig],
    cost: ElementCost,
    compensate: bool,
) -> Result<Observation, SessionError> {
    let usage =
        |error: overhear_trace::ReadError| SessionError::new(ErrorKind::Usage, error.to_string());
    let reader = TraceReader::open(dir).map_err(usage)?;
    let mut found = Observation {
        complete: true,
        ..Observation::default()
    };
    let mut engine = Metrics::new(Complete {
        summaries: Summaries::default().minus_costs(cost.of(&reader)?),
        ..Complete::default()
    });
    // What every task gives need not be measured.
    let needed = |number: &usize| configs.iter().any(|config| !given(config)[*number]);
    let needed = (0..OVERHEADS.len()).filter(needed);
    let mut needed: Vec<&str> = needed.map(|number| OVERHEADS[number]).collect();
    let heard: EventSet = reader.streams().map(|stream| stream.event()).collect();
    found.hears_locks = heard.contains(&EventName::kernel(LOCK));
    if found.hears_locks && configs.iter().any(|config| config.blocking.is_none()) {
        needed.push(LOCKS);
    }
    for name in needed.iter().copied().chain([OBSERVED]) {
        let metric = system_metric(name)
            .map_err(|error| SessionError::new(ErrorKind::Usage, error.to_string()))?;
        engine.add(metric);
    }
    let mut scheduling = Scheduling::new(());
    let costs = compensate.then(|| compensation::costs_of(&reader));
    let updates: Vec<&mut dyn Update> = vec![&mut engine, &mut scheduling];
    let replayed = compensation::replay(&reader, costs.transpose()?, updates);
    engine.finish();
    let comms = metrics::comms(&reader, &scheduling);
    for (task, comm) in &comms {
        found.threads.entry(comm.clone()).or_default().insert(*task);
    }
    let report = metrics::report_of(&engine, &engine.sink().summaries, &comms, &heard);
    for (index, metric) in report.metrics.iter().enumerate() {
        let known = engine.sink().threads.iter();
        let known = known.filter(|((of, _), _)| *of == index && metric.name == OBSERVED);
        for ((_, task), known) in known {
            let comm = comms.get(task).cloned().unwrap_or_default();
            found.jobs.entry(comm.clone()).or_default().0 += known.incomplete;
            if known.is_doubted {
                found.doubted.insert(comm);
            }
        }
        found.complete &= metric.is_complete();
        if !metric.is_complete() {
            found.may_be_longer |= metric.name != OBSERVED;
            let shortcomings = metrics::shortcomings(metric);
            let name = &metric.name;
            found
                .notes
                .extend(shortcomings.lines().map(|line| format!("{name}: {line}")));
        }
        if metric.name != OBSERVED && !metric.unheard.is_empty() {
            // Without the ends of system calls, for one, all of a job looks like its system time.
            continue;
        }
        for row in &metric.tasks {
            if metric.name == OBSERVED {
                let (jobs, longest) = found.jobs.entry(row.comm.clone()).or_default();
                *jobs += row.count;
                *longest = row.max_ns.max(*longest);
            } else if let Some(&name) = OVERHEADS
                .iter()
                .chain([&LOCKS])
                .find(|name| **name == metric.name)
            {
                let longest = found.overheads.entry((row.comm.clone(), name)).or_default();
                *longest = row.max_ns.max(*longest);
            }
        }
    }
    let run = Recording::read(&reader).map_err(usage)?;
    let mut damage = recording::damage(&reader, run.as_ref(), &replayed);
    damage.extend(engine.complaints().iter().cloned());
    if !damage.is_empty() {
        found.complete = false;
        // Where a stream breaks off, or cannot be used, jobs do not end.
        found.doubted.extend(found.jobs.keys().cloned());
    }
    let refused = engine.sink().summaries.refused();
    if refused > 0 {
        // Jobs that found a row are certain. A measurement of an overhead may have been the longest.
        found.complete = false;
        found.may_be_longer |= !needed.is_empty();
    }
    let others = report.notes.into_iter();
    let others = others.filter(|note| !damage.contains(note));
    found.notes.extend(others);
    found.notes.extend(damage);
    Ok(found)
}

fn compute(configs: &[TaskConfig], observation: Option<Observation>) -> Result<RtaReport, String> {
    let mut measured: Vec<Vec<&'static str>> = Vec::new();
    let locks = |config: &TaskConfig| {
        let known = observation.as_ref().filter(|found| found.hears_locks)?;
        let key = (config.thread().to_owned(), LOCKS);
        Some(known.overheads.get(&key).copied().unwrap_or(0))
    };
    let tasks: Vec<PeriodicTask> = configs
        .iter()
        .map(|config| {
            let mut task = config.task();
            let known = observation.as_ref().map(|found| &found.overheads);
            measured.push(fill(config, &mut task.overheads, known));
            if config.blocking.is_none() && config.is_thread() {
                let lower = configs.iter().filter(|it| it.priority < config.priority);
                let longest = lower.filter_map(locks).max().unwrap_or(0);
                task.user_blocking = Nanos::from_ns(longest);
            }
            task
        })
        .collect();
    let may_be_longer = observation.as_ref().is_some_and(|found| {
        let is_seen = |config: &TaskConfig| found.jobs.contains_key(config.thread());
        let is_known = |config: &TaskConfig| is_seen(config) || !given(config).contains(&false);
        found.may_be_longer || !configs.iter().all(is_known)
    });
    let responses = response_times(&tasks).map_err(|error| error.to_string())?;
    let mut reports: Vec<TaskReport> = Vec::new();
    for (((config, task), response), measured) in
        configs.iter().zip(&tasks).zip(&responses).zip(measured)
    {
        let jobs = observation.as_ref().filter(|_| config.is_thread());
        let jobs = jobs.map(|found| {
            let jobs = found.jobs.get(config.thread());
            jobs.copied().unwrap_or_default()
        });
        let observed = jobs
            .filter(|(_, longest)| *longest > 0)
            .map(|(_, longest)| longest);
        let is_doubted = observation
            .as_ref()
            .is_some_and(|found| found.doubted.contains(config.thread()));
        let computed = response.response.map(Nanos::as_ns);
        reports.push(TaskReport {
            name: task.name.clone(),
            priority: task.priority,
            period_ns: task.period.as_ns(),
            deadline_ns: task.deadline.as_ns(),
            wcet_ns: response.wcet.as_ns(),
            job_system_time_ns: task.overheads.job_system_time.as_ns(),
            system_blocking_ns: task.overheads.system_blocking.as_ns(),
            delay_until_wakeup_ns: task.overheads.delay_until_wakeup.as_ns(),
            lock_blocking_ns: locks(config),
            measured,
            blocking_ns: response.critical.plus(response.activation).as_ns(),
            interference_ns: response.interference.as_ns(),
            response_ns: computed,
            schedulable: computed.is_some_and(|ns| ns <= task.deadline.as_ns()),
            jobs: jobs.map(|(jobs, _)| jobs),
            observed_ns: observed,
            exceeded: !is_doubted
                && !may_be_longer
                && observed
                    .zip(computed)
                    .is_some_and(|(seen, most)| seen > most),
        });
    }
    let (complete, notes) = notes(configs, observation, &reports);
    Ok(RtaReport {
        holds: reports
            .iter()
            .all(|task| task.schedulable && !task.exceeded),
        complete,
        utilisation: utilisation(&tasks),
        tasks: reports,
        notes,
    })
}

/// Whether everything was observed, and what else should be known.
fn notes(
    configs: &[TaskConfig],
    observation: Option<Observation>,
    reports: &[TaskReport],
) -> (bool, Vec<String>) {
    let mut complete = true;
    let mut notes = Vec::new();
    if observation.is_none() {
        let unknown = |number: &usize| configs.iter().any(|config| !given(config)[*number]);
        let unknown = (0..OVERHEADS.len()).filter(unknown);
        let unknown: Vec<_> = unknown.map(|number| OVERHEADS[number]).collect();
        if !unknown.is_empty() {
            notes.push(format!(
                "without a recording, overheads that the file does not give count as nothing: {}",
                unknown.join(", ")
            ));
        }
    }
    if let Some(found) = observation {
        complete = found.complete;
        notes = found.notes;
        for (config, report) in configs.iter().zip(reports) {
            let thread = config.thread();
            let threads = found.threads.get(thread).map_or(0, BTreeSet::len);
            if threads > 1 {
                notes.push(format!(
                    "{}: {threads} threads are called `{thread}`; the longest of all is shown",
                    config.name
                ));
            }
            let seen = report.observed_ns.filter(|_| !report.exceeded);
            if seen
                .zip(report.response_ns)
                .is_some_and(|(seen, most)| seen > most)
            {
                let sentence = match found.doubted.contains(thread) {
                    true => "something was missed of its longest job, which may not have exceeded R",
                    false => "its longest job may not have exceeded R, for overheads are not completely known",
                };
                notes.push(format!("{}: {sentence}", config.name));
            }
            if report.jobs == Some(0) {
                complete = false;
                notes.push(format!(
                    "{}: no job of a thread called `{thread}` was observed",
                    config.name
                ));
            }
        }
    }
    (complete, notes)
}

/// Which of the overheads the file gives.
fn given(config: &TaskConfig) -> [bool; OVERHEADS.len()] {
    [
        config.job_system_time.is_some() || !config.is_thread(),
        config.system_blocking.is_some() || !config.is_thread(),
        config.delay_until_wakeup.is_some() || !config.is_thread(),
    ]
}

/// Takes over what was measured and is not given. Returns what that is.
fn fill(
    config: &TaskConfig,
    overheads: &mut Overheads,
    measured: Option<&BTreeMap<(String, &'static str), u64>>,
) -> Vec<&'static str> {
    let places = [
        &mut overheads.job_system_time,
        &mut overheads.system_blocking,
        &mut overheads.delay_until_wakeup,
    ];
    let mut taken = Vec::new();
    for ((name, given), place) in OVERHEADS.into_iter().zip(given(config)).zip(places) {
        let key = (config.thread().to_owned(), name);
        let longest = measured.and_then(|measured| measured.get(&key));
        if let Some(&ns) = longest.filter(|_| !given) {
            *place = Nanos::from_ns(ns);
            taken.push(name);
        }
    }
    taken
}

impl RtaReport {
    /// Violated if a deadline or a computed response time is exceeded, inconclusive if all hold as far as was
    /// observed.
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
    use super::{compute, Observation};
    use crate::conclusion::Conclusion;
    use crate::config::tasks::parse;

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

    /// By hand: R_control = 2.1 + ceil(R/100) 0.04 = 2.14 ms; R_logging = 20 + 1 + ceil(R/10) 2.1 =
    /// 27.3 with three releases.
    #[test]
    fn measured_overheads_stand_in_for_those_that_are_not_given() {
        let configs = parse(FILE).unwrap();
        let mut found = Observation {
            complete: true,
            ..Observation::default()
        };
        let measured = &mut found.overheads;
        measured.insert(("control".into(), "job_system_time"), 100_000);
        measured.insert(("logger".into(), "delay_until_wakeup"), 90_000);
        found.jobs.insert("control".into(), (500, 2_140_000));
        found.jobs.insert("logger".into(), (50, 27_300_001));
        let report = compute(&configs, Some(found)).unwrap();
        let of = |i: usize| (report.tasks[i].response_ns, report.tasks[i].exceeded);
        assert_eq!(of(0), (Some(2_140_000), false));
        assert_eq!(of(1), (Some(27_300_000), true));
        assert_eq!(report.tasks[0].measured, ["job_system_time"]);
        assert_eq!(report.tasks[1].measured, [] as [&str; 0]);
        assert!(report.tasks.iter().all(|task| task.schedulable));
        assert_eq!(
            (report.holds, report.conclusion()),
            (false, Conclusion::Violated)
        );
    }

    #[test]
    fn deadlines_and_unobserved_tasks_decide_the_conclusion() {
        let configs = parse(FILE).unwrap();
        let report = compute(&configs, None).unwrap();
        assert_eq!(
            (report.holds, report.conclusion()),
            (true, Conclusion::Complete)
        );
        let unheard = compute(&configs, Some(Observation::default())).unwrap();
        assert_eq!(unheard.conclusion(), Conclusion::Inconclusive);
        assert!(unheard.notes[1].contains("no job of a thread called `logger`"));
        let late = parse(&FILE.replace("50 ms", "25 ms")).unwrap();
        let report = compute(&late, None).unwrap();
        assert_eq!(
            (report.tasks[1].schedulable, report.conclusion()),
            (false, Conclusion::Violated)
        );
        let over = parse(&FILE.replace("\"2 ms\"", "\"9 ms\"")).unwrap();
        let report = compute(&over, None).unwrap();
        assert_eq!(report.tasks[1].response_ns, None);
    }

    #[test]
    fn mistakes_name_the_task_or_the_line() {
        let twice = FILE.replace("thread = \"logger\"", "thread = \"control\"");
        assert!(parse(&twice)
            .unwrap_err()
            .starts_with("task `logging` has the name or the thread"));
        let zero = parse(&FILE.replace("10 ms", "0 s")).unwrap();
        assert!(compute(&zero, None)
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
