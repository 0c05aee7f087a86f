// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the elements of one stream mean to the metrics: names of fields become their indices once,
//! when the stream appears.

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{ElementView, Origin, StreamDescriptor, WRITER_TID};

use super::check::whole_number;
use super::metric::Metric;
use super::pattern::{unsigned, BoundPattern};
use super::specification::{Symbol, TaskOf};

/// The lives of threads that a stream tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lives {
    /// None.
    Silent,
    /// Their forks, execs and exits.
    Life,
    /// Their last departures.
    Switch,
}

/// What the elements of a stream mean.
#[derive(Debug)]
pub(super) struct Route {
    /// In the order of the metrics, and within one in that of its symbols.
    pub(super) rules: Vec<Rule>,
    pub(super) lives: Lives,
}

/// When an element of the stream is a certain symbol of a certain metric.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) metric: usize,
    pub(super) symbol: usize,
    pub(super) source: usize,
    pub(super) pattern: BoundPattern,
    key: Option<usize>,
}

/// Where an element says whose it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum TaskSource {
    Nobody,
    Always(u32),
    Field(usize),
}

impl TaskSource {
    /// Where the elements of a stream name the task that is meant.
    pub(super) fn of(
        task: &TaskOf,
        stream: &StreamDescriptor,
        writer: impl FnOnce() -> Self,
    ) -> Self {
        match task {
            TaskOf::Nobody => Self::Nobody,
            TaskOf::Field(word) => {
                let field = stream.schema.index_of(&word.text);
                field.map_or(Self::Nobody, Self::Field)
            }
            TaskOf::Writer => writer(),
        }
    }
}

impl Route {
    /// Finds what the stream means to the metrics. Sentences about those that cannot use it, since
    /// it lacks their fields, go to `complain`.
    pub(super) fn new<'a>(
        stream: &StreamDescriptor,
        metrics: impl Iterator<Item = &'a Metric>,
        complain: &mut dyn FnMut(String),
    ) -> Self {
        let event = stream.event();
        let mut rules = Vec::new();
        for (index, metric) in metrics.enumerate() {
            let Some(source) = metric.source(&event) else {
                continue;
            };
            for (number, symbol) in metric.specification().symbols.iter().enumerate() {
                if symbol.source != event {
                    continue;
                }
                match rule(stream, metric, symbol) {
                    Ok(rule) => rules.push(Rule {
                        metric: index,
                        symbol: number,
                        source,
                        ..rule
                    }),
                    Err(sentence) => complain(format!(
                        "metric {} cannot use {}: {sentence}",
                        metric.name(),
                        stream.label()
                    )),
                }
            }
        }
        let of_kernel = matches!(stream.origin, Origin::Kernel { .. });
        let lives = match stream.sensor.as_str() {
            TASK_LIFE if of_kernel => Lives::Life,
            SCHED_SWITCH if of_kernel => Lives::Switch,
            _ => Lives::Silent,
        };
        Self { rules, lives }
    }
}

fn rule(stream: &StreamDescriptor, metric: &Metric, symbol: &Symbol) -> Result<Rule, String> {
    let schema = &stream.schema;
    let pattern = BoundPattern::new(stream, symbol)?;
    let key = metric.specification().key.as_ref();
    let key = key.filter(|key| key.symbol.text == symbol.name.text);
    if let Some(key) = key {
        whole_number(schema, symbol, &key.field).map_err(|error| error.fault.to_string())?;
    }
    Ok(Rule {
        metric: 0,
        symbol: 0,
        source: 0,
        pattern,
        key: key.and_then(|key| schema.index_of(&key.field.text)),
    })
}

/// Whose the elements of a stream are if they do not say it by a field of their own.
pub(super) fn writer(stream: &StreamDescriptor) -> TaskSource {
    match (stream.schema.index_of(WRITER_TID), &stream.origin) {
        (Some(field), _) => TaskSource::Field(field),
        (None, Origin::Program(task)) => TaskSource::Always(task.pid),
        _ => TaskSource::Nobody,
    }
}

/// The one process whose automaton can be concerned by what is missing in the stream, `None` if
/// there can be others.
pub(super) fn sole_task(stream: &StreamDescriptor) -> Option<u32> {
    match writer(stream) {
        TaskSource::Always(task) => Some(task),
        _ => None,
    }
}

impl Rule {
    /// The key that the element gives, if the symbol gives one.
    pub(super) fn key(&self, element: &ElementView<'_>) -> Option<Option<u64>> {
        self.key.map(|field| unsigned(element, field))
    }
}
