// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any number of constraints in one pass over the elements.

use std::collections::HashMap;

use overhear_event::kernel::{Life, TASK_LIFE};
use overhear_event::{
    Analysis, ElementView, EventSet, Gap, Nanos, Origin, SampleLayout, StreamDescriptor, StreamId,
    Timestamp,
};

use super::constraint::{Constraint, ConstraintError, Demand, Each, Values};
use super::groups::Hit;
use super::measurement_queue::{MeasurementQueue, QueuedResult};
use super::tally::Excuse;
use super::trial::{sensor_group, MetricLosses, Trial};
use super::values::Valued;
use super::verdict::{Names, OffenceView, Outcome, Verdict};
use crate::automaton::{process, BoundPattern, Metrics, Position};

/// Steps of the clock's error that are kept.
const STEPS: usize = 65_536;

/// Gets each decision as soon as it is made: the place for reactions.
pub trait Judge {
    /// A case offends. `offences` is the number of the constraint's offences that stand, this
    /// one included.
    fn offence(&mut self, offence: &OffenceView<'_>, offences: u64) {
        let _ = (offence, offences);
    }

    /// A gap became known that excuses all offences of the constraint: it is not violated any more.
    fn retracted(&mut self, constraint: &Constraint) {
        let _ = constraint;
    }

    /// From `at` on the constraint cannot be *held* any more, and is not violated: elements of it
    /// were missed, or it is uncertain. Called once per constraint.
    fn inconclusive(&mut self, constraint: &Constraint, at: Timestamp) {
        let _ = (constraint, at);
    }
}

/// No judge: verdicts are read at the end.
impl Judge for () {}

/// Judges constraints: an [`Analysis`] that reports to a [`Judge`].
#[derive(Debug)]
pub struct Verdicts<J> {
    trials: Vec<Trial>,
    // Indices of the trials that wait for an event or a time.
    timed: Vec<usize>,
    // Indexed by metric: the trials that judge it.
    judging: Vec<Vec<usize>>,
    metrics: Metrics<MeasurementQueue>,
    routes: HashMap<StreamId, Route>,
    names: Names,
    errors: Vec<(Timestamp, Nanos)>,
    observation: Vec<String>,
    judge: J,
}

/// What the elements of a stream mean to the trials.
#[derive(Debug, Default)]
struct Route {
    rules: Vec<Rule>,
    // Whether it has the begins and ends of threads.
    lives: bool,
    // Whether its time stamps come from the counter of the CPU.
    counted: bool,
    group: u64,
    process: Option<u32>,
}

#[derive(Debug)]
struct Rule {
    trial: usize,
    role: usize,
    pattern: BoundPattern,
    value: Option<usize>,
    // Factor to nanoseconds if bounds are lengths.
    scale: f64,
    each: BoundEach,
    // Whether the process had the judged name when it registered the sensor.
    of_process: bool,
    // The layout of samples, if anomalies are judged.
    samples: Option<SampleLayout>,
}

#[derive(Clone, Copy, Debug)]
enum BoundEach {
    All,
    Sensor,
    Task,
    Field(usize),
}

impl<J: Judge> Verdicts<J> {
    /// No constraint.
    #[must_use]
    pub fn new(judge: J) -> Self {
        Self {
            trials: Vec::new(),
            timed: Vec::new(),
            judging: Vec::new(),
            metrics: Metrics::new(MeasurementQueue::default()),
            routes: HashMap::new(),
            names: Names::default(),
            errors: Vec::new(),
            observation: Vec::new(),
            judge,
        }
    }

    /// Adds a constraint. It is judged from the next element on.
    ///
    /// # Errors
    /// [`ConstraintError`] if another constraint has its name, or another metric has the name of
    /// its metric.
    pub fn add(&mut self, constraint: Constraint) -> Result<(), ConstraintError> {
        let name = constraint.name();
        if self
            .trials
            .iter()
            .any(|trial| trial.constraint().name() == name)
        {
            return Err(ConstraintError::TwoConstraints(name.to_owned()));
        }
        let number = self.trials.len();
        if let Some(metric) = constraint.demand().metric() {
            let known = self.metrics.sink().index(metric);
            let same = self.metrics.statistics().any(|(known, _)| known == metric);
            let index = match known {
                Some(index) if same => index,
                Some(_) => return Err(ConstraintError::TwoMetrics(metric.name().to_owned())),
                None => {
                    let name = metric.name().to_owned();
                    self.metrics.sink_mut().metrics.push(name);
                    self.metrics.add(metric.clone());
                    self.judging.push(Vec::new());
                    self.judging.len() - 1
                }
            };
            self.judging[index].push(number);
        }
        let trial = Trial::new(constraint);
        if trial.is_timed() {
            self.timed.push(number);
        }
        self.trials.push(trial);
        self.routes.clear();
        Ok(())
    }

    /// Whether there is no constraint.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trials.is_empty()
    }

    /// Sets the origin of the times in messages about offences; without it, they count from the
    /// zero of `CLOCK_MONOTONIC`.
    pub fn count_from(&mut self, start: Timestamp) {
        self.names.start = start;
    }

    /// Sets the largest error of time stamps of the counter against the kernel's clock, from this
    /// time on. Steps come in the order of time; without any, time stamps are taken as exact.
    pub fn clock_error(&mut self, from: Timestamp, error: Nanos) {
        if self.errors.last().is_some_and(|(_, last)| *last == error) {
            return;
        }
        if self.errors.len() < STEPS {
            self.errors.push((from, error));
        } else if let Some((_, last)) = self.errors.last_mut() {
            *last = error.max(*last);
        }
    }

    /// Makes every constraint that holds so far inconclusive, because the observation as a whole is
    /// not complete.
    pub fn distrust(&mut self, message: String) {
        self.observation.push(message);
    }

    /// This stream is unreadable after `at`, because the recording is damaged there. Later elements
    /// may have been those that were due; their number is unknown.
    pub fn cut(&mut self, stream: &StreamDescriptor, at: Timestamp) {
        self.open(stream);
        for trial in &mut self.trials {
            if trial.cut(stream, at) {
                self.judge.retracted(trial.constraint());
            }
        }
    }

    /// Ends the observation: what had to happen before `end` and did not is an offence.
    pub fn finish(&mut self, end: Timestamp) {
        self.pass(end.plus(Nanos::from_ns(1)));
        let missed = self.missed_by_metrics();
        for (number, trial) in self.trials.iter_mut().enumerate() {
            let missed = missed.get(&number).map_or(0, |losses| losses.missed);
            trial.finish(missed);
        }
        self.report_changes(end);
        // Events without a stream, and constraints without a case, are known only now.
        let outcomes: Vec<Outcome> = self.verdicts().map(|verdict| verdict.outcome).collect();
        for (trial, outcome) in self.trials.iter_mut().zip(outcomes) {
            if outcome == Outcome::Inconclusive {
                trial.lack();
            }
        }
        self.report_inconclusive(end);
    }

    /// Complaints about streams that have the name of a required event but lack a field.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let of_trials = self.trials.iter().flat_map(|trial| {
            let name = trial.constraint().name();
            let messages = trial.unfit().iter();
            messages.map(move |message| format!("constraint {name} cannot use {message}"))
        });
        let of_metrics = self.metrics.complaints().iter().cloned();
        of_trials.chain(of_metrics).collect()
    }

    /// The verdict of each constraint, in the order in which they were added.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict<'_>> {
        let of_metrics = self.missed_by_metrics();
        self.trials.iter().enumerate().map(move |(number, trial)| {
            let losses = of_metrics.get(&number).copied().unwrap_or_default();
            trial.verdict(&self.names, losses, &self.observation)
        })
    }

    /// The judge.
    #[must_use]
    pub const fn judge(&self) -> &J {
        &self.judge
    }

    /// Per trial of a metric: the elements that were missed and those that found no room.
    fn missed_by_metrics(&self) -> HashMap<usize, MetricLosses> {
        let statistics = self.metrics.statistics().zip(&self.judging);
        let of_trials = statistics.flat_map(|((_, statistics), trials)| {
            trials.iter().map(move |&trial| {
                let is_sampled = self.trials[trial].constraint().is_sampled();
                let (sampled_out, left_out) = match is_sampled {
                    true => (statistics.unobserved, 0),
                    false => (0, statistics.unobserved),
                };
                let losses = MetricLosses {
                    missed: statistics.missed - sampled_out,
                    left_out,
                    sampled_out,
                    refused: statistics.refused,
                };
                (trial, losses)
            })
        });
        of_trials.collect()
    }

    fn error_at(&self, time: Timestamp) -> Nanos {
        let behind = self.errors.partition_point(|(from, _)| *from <= time);
        // Before the first step, its error is the best estimate.
        let step = self.errors.get(behind.saturating_sub(1));
        step.map_or(Nanos::ZERO, |(_, error)| *error)
    }

    /// Decides what was due before `now`.
    fn pass(&mut self, now: Timestamp) {
        self.expire(now);
        self.report_changes(now);
    }

    fn expire(&mut self, now: Timestamp) {
        for &trial in &self.timed {
            self.trials[trial].expire(now);
        }
    }

    /// Judges the measurements of the automata.
    fn take_measurements(&mut self) {
        if self.metrics.sink().results.is_empty() {
            return;
        }
        let results = std::mem::take(&mut self.metrics.sink_mut().results);
        for result in &results {
            match result {
                QueuedResult::Measured(measured) => {
                    for &trial in &self.judging[measured.metric] {
                        self.trials[trial].measured(measured, &self.names);
                    }
                }
                QueuedResult::LateGap {
                    metric,
                    number,
                    gap,
                } => {
                    for &trial in &self.judging[*metric] {
                        if self.trials[trial].retract(*number, gap) {
                            self.judge.retracted(self.trials[trial].constraint());
                        }
                    }
                }
            }
        }
        // Keeps the memory of the list.
        let mut results = results;
        results.clear();
        self.metrics.sink_mut().results = results;
    }

    /// Reports constraints that have become inconclusive to the judge.
    fn report_inconclusive(&mut self, at: Timestamp) {
        for trial in &mut self.trials {
            if trial.turns_inconclusive() {
                self.judge.inconclusive(trial.constraint(), at);
            }
        }
    }

    /// Reports new offences, and constraints that have become inconclusive, to the judge.
    fn report_changes(&mut self, at: Timestamp) {
        for trial in &mut self.trials {
            if trial.turns_inconclusive() {
                self.judge.inconclusive(trial.constraint(), at);
            }
            if !trial.has_fresh() {
                continue;
            }
            let fresh = trial.take_fresh();
            let behind = trial.offences().saturating_sub(fresh.len() as u64);
            for (number, offence) in (1..).zip(&fresh) {
                let view = trial.view(offence, &self.names);
                self.judge.offence(&view, behind + number);
            }
        }
    }
}

/// Finds what a stream means to the trials, once.
fn route<'a>(
    routes: &'a mut HashMap<StreamId, Route>,
    trials: &mut [Trial],
    names: &mut Names,
    stream: &StreamDescriptor,
) -> &'a Route {
    routes.entry(stream.id).or_insert_with(|| {
        names.streams.insert(stream.id, stream.label());
        if let Some((pid, name)) = process(stream) {
            names.suggest(stream.id, pid, name);
            for trial in trials.iter_mut() {
                trial.meet(pid, name);
            }
        }
        let mut rules = Vec::new();
        for (number, trial) in trials.iter_mut().enumerate() {
            match rules_of(number, trial.constraint(), stream) {
                Ok((own, unit)) => {
                    trial.note_stream(stream.event(), unit.as_deref());
                    rules.extend(own);
                }
                Err(message) => {
                    let message = format!("{}: {message}", stream.schema_label());
                    trial.complain(stream.event(), message);
                }
            }
        }
        let of_kernel = matches!(stream.origin, Origin::Kernel { .. });
        Route {
            rules,
            lives: of_kernel && stream.sensor == TASK_LIFE,
            counted: matches!(stream.origin, Origin::Program(_)),
            group: match stream.origin {
                Origin::Program(_) => sensor_group(stream),
                _ => 0,
            },
            process: process(stream).map(|(pid, _)| pid),
        }
    })
}

/// The rules of a trial for a stream, and the unit of the field that it judges.
fn rules_of(
    trial: usize,
    constraint: &Constraint,
    stream: &StreamDescriptor,
) -> Result<(Vec<Rule>, Option<String>), String> {
    let field = match constraint.demand().values() {
        Some(Values::Field { field, .. }) => Some(field.as_str()),
        _ => None,
    };
    let as_time = matches!(
        constraint.demand().values(),
        Some(Values::Field { as_time: true, .. })
    );
    let key = match constraint.grouping() {
        Each::Field(field) => Some(field.as_str()),
        _ => None,
    };
    let schema = &stream.schema;
    let (mut rules, mut unit, mut scale) = (Vec::new(), None, 1.0);
    for (role, pattern) in constraint.demand().patterns().into_iter().enumerate() {
        let Some(pattern) = pattern.bind(stream, field, key)? else {
            continue;
        };
        let each = match constraint.grouping() {
            Each::All => BoundEach::All,
            Each::Sensor => BoundEach::Sensor,
            Each::Task => BoundEach::Task,
            Each::Field(field) => match schema.index_of(field) {
                Some(index) => BoundEach::Field(index),
                None => BoundEach::All,
            },
        };
        let samples = match constraint.demand() {
            Demand::Anomalies { .. } => {
                let layout = SampleLayout::of(schema);
                Some(layout.ok_or_else(|| "its elements are not samples".to_owned())?)
            }
            _ => None,
        };
        let value = field.and_then(|field| schema.index_of(field));
        unit = value.map(|index| schema.fields()[index].unit.clone());
        if let (true, Some(of), Some(field)) = (as_time, &mut unit, field) {
            scale = nanoseconds_of(of).ok_or_else(|| {
                format!(
                    "field `{field}` is in `{of}`, which is no unit of time; give the bound as a number"
                )
            })?;
            "ns".clone_into(of);
        }
        rules.push(Rule {
            trial,
            role,
            pattern,
            value,
            scale,
            each,
            of_process: constraint
                .task_filter()
                .zip(process(stream))
                .is_some_and(|(filter, (pid, name))| filter.takes(Some(pid), Some(name))),
            samples,
        });
    }
    // An element that is both an answer and a request first answers the earlier requests.
    if matches!(constraint.demand(), Demand::Deadline { .. }) {
        rules.reverse();
    }
    Ok((rules, unit))
}

/// The thread that was sampled, or the process.
fn sampled_task(layout: &SampleLayout, element: &ElementView<'_>) -> Option<u32> {
    let header = layout.header(&element.stream.schema, element.payload)?;
    Some(header.tid)
        .filter(|tid| *tid != 0)
        .or(Some(header.pid))
}

/// Nanoseconds per unit of time.
fn nanoseconds_of(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    })
}

impl<J: Judge> Analysis for Verdicts<J> {
    fn requires(&self) -> EventSet {
        let each = self
            .trials
            .iter()
            .map(|trial| trial.constraint().requires());
        each.flatten().collect()
    }

    fn open(&mut self, stream: &StreamDescriptor) {
        self.metrics.open(stream);
        route(&mut self.routes, &mut self.trials, &mut self.names, stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.expire(element.time);
        self.metrics.element(element);
        let error = self.error_at(element.time);
        let route = route(
            &mut self.routes,
            &mut self.trials,
            &mut self.names,
            element.stream,
        );
        let life = match route.lives {
            true => Life::parse(element.payload),
            false => None,
        };
        if let Some(life) = life.filter(|life| !life.comm().is_empty()) {
            self.names.name(life.tid, life.comm());
            for trial in &mut self.trials {
                trial.meet(life.tid, life.comm());
            }
        }
        for rule in &route.rules {
            if !rule.pattern.matches(element) {
                continue;
            }
            let trial = &mut self.trials[rule.trial];
            let task = match &rule.samples {
                Some(layout) => sampled_task(layout, element),
                None => rule.pattern.task(element),
            };
            let judged = rule.of_process
                || trial.takes(task, element.stream.id, &self.names)
                || (task != route.process
                    && trial.takes(route.process, element.stream.id, &self.names));
            if !judged {
                continue;
            }
            let schema = &element.stream.schema;
            let (group, owner) = match rule.each {
                BoundEach::All => (0, None),
                BoundEach::Sensor => (route.group, route.process),
                BoundEach::Task => (task.map_or(u64::MAX, u64::from), task),
                BoundEach::Field(field) => {
                    let value = schema.read(field, element.payload);
                    let key = value.and_then(|value| value.as_u64());
                    (key.unwrap_or(u64::MAX), None)
                }
            };
            let own = match trial.constraint().clock_error() {
                Some(error) => Nanos::from_ns(error.as_ns() / 2),
                None if route.counted => error,
                None => Nanos::ZERO,
            };
            let other = trial.constraint().clock_error().map_or(error, |_| own);
            let hit = Hit {
                time: element
                    .time
                    .minus(Nanos::from_ns(rule.pattern.backdate_ns(element))),
                error: own,
                margin: own.plus(other),
                position: Position::of(element),
                task: task.or(route.process),
                group,
                owner,
            };
            if rule.samples.is_some() {
                trial.sample(route.group, element, &hit);
                continue;
            }
            match rule.value {
                None => trial.event(rule.role, &hit),
                Some(field) => {
                    let value = schema.read(field, element.payload);
                    let value = value.and_then(|value| value.as_f64());
                    trial.value(&Valued {
                        value: value.map_or(f64::NAN, |value| value * rule.scale),
                        begin: hit,
                        end: hit,
                        excuse: Excuse::None,
                    });
                }
            }
        }
        self.take_measurements();
        if let Some(life) = life.filter(|life| life.kind == Life::EXIT) {
            self.names.end(life.tid);
            for trial in &mut self.trials {
                trial.end(life.tid);
            }
        }
        self.report_changes(element.time);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        if gap.missed == 0 {
            return;
        }
        self.open(stream);
        self.metrics.gap(stream, gap);
        for trial in &mut self.trials {
            if trial.gap(stream, gap) {
                self.judge.retracted(trial.constraint());
            }
        }
        self.take_measurements();
        for (trial, losses) in self.missed_by_metrics() {
            if losses.missed > 0 || losses.refused > 0 {
                self.trials[trial].lack();
            }
        }
        self.report_inconclusive(gap.to);
    }

    fn advance(&mut self, now: Timestamp) {
        // After the last advance of a monitor no element follows, but the observation may be
        // longer. The caller of `finish` passes its end.
        if now < Timestamp::MAX {
            self.pass(now);
        }
    }
}
