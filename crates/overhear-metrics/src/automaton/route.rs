// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the elements of one stream mean to the metrics: names of fields become their indices once,
//! when the stream appears.

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{ElementView, Origin, StreamDescriptor, Value, WRITER_TID};

use super::check::{check_fields, whole_number};
use super::metric::Metric;
use super::specification::{Constant, Relation, Symbol, TaskOf, Word};

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
    tests: Vec<Test>,
    task: TaskSource,
    ago: Option<usize>,
    key: Option<usize>,
}

#[derive(Debug)]
struct Test {
    field: usize,
    relation: Relation,
    constant: Constant,
}

#[derive(Clone, Copy, Debug)]
enum TaskSource {
    Nobody,
    Always(u32),
    Field(usize),
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
    check_fields(symbol, schema).map_err(|error| error.fault.to_string())?;
    let index = |word: &Word| schema.index_of(&word.text);
    let key = metric.specification().key.as_ref();
    let key = key.filter(|key| key.symbol.text == symbol.name.text);
    if let Some(key) = key {
        whole_number(schema, symbol, &key.field).map_err(|error| error.fault.to_string())?;
    }
    let tests = symbol.conditions.iter().filter_map(|condition| {
        Some(Test {
            field: index(&condition.field)?,
            relation: condition.relation,
            constant: condition.constant.clone(),
        })
    });
    let task = match &symbol.task {
        TaskOf::Nobody => TaskSource::Nobody,
        TaskOf::Field(word) => index(word).map_or(TaskSource::Nobody, TaskSource::Field),
        TaskOf::Writer => writer(stream),
    };
    Ok(Rule {
        metric: 0,
        symbol: 0,
        source: 0,
        tests: tests.collect(),
        task,
        ago: symbol.ago.as_ref().and_then(index),
        key: key.and_then(|key| index(&key.field)),
    })
}

/// Whose the elements of a stream are if they do not say it by a field of their own.
fn writer(stream: &StreamDescriptor) -> TaskSource {
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
    /// Whether the element is this symbol.
    pub(super) fn matches(&self, element: &ElementView<'_>) -> bool {
        self.tests.iter().all(|test| test.holds(element))
    }

    /// The task that the element names.
    pub(super) fn task(&self, element: &ElementView<'_>) -> Option<u32> {
        let task = match self.task {
            TaskSource::Nobody => None,
            TaskSource::Always(task) => Some(task),
            TaskSource::Field(field) => u32::try_from(unsigned(element, field)?).ok(),
        };
        task.filter(|&task| task != 0 && task != u32::MAX)
    }

    /// How long before the element the event was, in nanoseconds.
    pub(super) fn ago_ns(&self, element: &ElementView<'_>) -> u64 {
        self.ago
            .and_then(|field| unsigned(element, field))
            .unwrap_or(0)
    }

    /// The key that the element gives, if the symbol gives one.
    pub(super) fn key(&self, element: &ElementView<'_>) -> Option<Option<u64>> {
        self.key.map(|field| unsigned(element, field))
    }
}

fn unsigned(element: &ElementView<'_>, field: usize) -> Option<u64> {
    element.stream.schema.read(field, element.payload)?.as_u64()
}

impl Test {
    fn holds(&self, element: &ElementView<'_>) -> bool {
        let Some(value) = element.stream.schema.read(self.field, element.payload) else {
            return false;
        };
        let number = match (&value, &self.constant) {
            (Value::Text(value), Constant::Text(constant)) => {
                return (value == constant) == (self.relation == Relation::Equal)
            }
            // A negative number has the bits of its two's complement, but is equal to no constant.
            (Value::Unsigned(value), _) => *value,
            (Value::Signed(value), _) => match (u64::try_from(*value), self.relation) {
                (Ok(value), _) => value,
                (Err(_), Relation::Equal) => return false,
                (Err(_), Relation::Unequal) => return true,
                (Err(_), _) => value_bits(*value),
            },
            _ => return false,
        };
        let Constant::Number(constant) = self.constant else {
            return false;
        };
        match self.relation {
            Relation::Equal => number == constant,
            Relation::Unequal => number != constant,
            Relation::Has => number & constant == constant,
            Relation::Lacks => number & constant == 0,
        }
    }
}

const fn value_bits(value: i64) -> u64 {
    u64::from_ne_bytes(value.to_ne_bytes())
}
