// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the elements of one stream mean to the metrics: names of fields become their indices once,
//! when the stream appears.

use overhear_event::kernel::{SCHED_SWITCH, TASK_LIFE};
use overhear_event::{ElementView, Nanos, Origin, StreamDescriptor, WRITER_TID};

use super::check::whole_number;
use super::metric::Metric;
use super::pattern::BoundPattern;
use super::reading::{Number, Test};
use super::specification::{Symbol, TaskOf};

/// As many conditions as there may be for a table of all their combinations.
const FEW_TESTS: usize = 8;

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
///
/// The metrics ask for much the same: a condition that several symbols have is looked at once per
/// element, a task that several name is read once.
#[derive(Debug)]
pub(super) struct Route {
    /// In the order of the metrics, and within one in that of its symbols.
    rules: Vec<Rule>,
    pub(super) lives: Lives,
    /// Distinct conditions, as many as a word has bits.
    tests: Vec<Test>,
    /// Distinct places where tasks are named.
    tasks: Vec<TaskSource>,
    /// By the conditions that hold, the rules that match, where there are few conditions.
    chosen: Vec<Box<[usize]>>,
    /// All rules, where there are many.
    every: Box<[usize]>,
}

/// When an element of the stream is a certain symbol of a certain metric.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) metric: usize,
    pub(super) symbol: usize,
    pub(super) source: usize,
    /// Which of the route's tasks is the symbol's.
    pub(super) task: usize,
    /// The conditions of the route that must hold.
    needs: u64,
    /// Conditions for which the word had no bit.
    further: Vec<Test>,
    ago: Option<Number>,
    key: Option<Number>,
}

/// Where an element says whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TaskSource {
    Nobody,
    Always(u32),
    Field(Number),
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
                let field = Number::of(&stream.schema, &word.text);
                field.map_or(Self::Nobody, Self::Field)
            }
            TaskOf::Writer => writer(),
        }
    }

    /// The task that the element names.
    #[inline]
    pub(super) fn named_by(self, element: &ElementView<'_>) -> Option<u32> {
        let task = match self {
            Self::Nobody => None,
            Self::Always(task) => Some(task),
            Self::Field(field) => u32::try_from(field.bits(element.payload)?).ok(),
        };
        task.filter(|&task| task != 0 && task != u32::MAX)
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
        let mut route = Self {
            rules: Vec::new(),
            lives: lives(stream),
            tests: Vec::new(),
            tasks: Vec::new(),
            chosen: Vec::new(),
            every: Box::default(),
        };
        for (index, metric) in metrics.enumerate() {
            let Some(source) = metric.source(&event) else {
                continue;
            };
            for (number, symbol) in metric.specification().symbols.iter().enumerate() {
                if symbol.source != event {
                    continue;
                }
                match key_and_pattern(stream, metric, symbol) {
                    Ok((key, pattern)) => route.add([index, number, source], key, pattern),
                    Err(sentence) => complain(format!(
                        "metric {} cannot use {}: {sentence}",
                        metric.name(),
                        stream.label()
                    )),
                }
            }
        }
        route.choose();
        route
    }

    /// Finds the rules for each combination of conditions.
    fn choose(&mut self) {
        let rules = &self.rules;
        let that_match = |held: u64| {
            let matching =
                (0..rules.len()).filter(|&rule| rules[rule].needs & held == rules[rule].needs);
            matching.collect()
        };
        if self.tests.len() <= FEW_TESTS {
            self.chosen = (0..1 << self.tests.len()).map(that_match).collect();
        }
        self.every = (0..self.rules.len()).collect();
    }

    fn add(
        &mut self,
        [metric, symbol, source]: [usize; 3],
        key: Option<Number>,
        pattern: BoundPattern,
    ) {
        let (mut needs, mut further) = (0, Vec::new());
        for test in pattern.tests {
            let place = place_of(&mut self.tests, &test);
            if place < u64::BITS as usize {
                needs |= 1 << place;
            } else {
                self.tests.truncate(place);
                further.push(test);
            }
        }
        self.rules.push(Rule {
            metric,
            symbol,
            source,
            task: place_of(&mut self.tasks, &pattern.task),
            needs,
            further,
            ago: pattern.ago,
            key,
        });
    }

    /// Whether no metric wants to know of the elements.
    pub(super) fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.lives == Lives::Silent
    }

    /// The rules that may match where these conditions hold; [`Rule::matches`] says whether they do.
    #[inline]
    pub(super) fn rules(&self, held: u64) -> impl Iterator<Item = &Rule> {
        let chosen = usize::try_from(held)
            .ok()
            .and_then(|held| self.chosen.get(held));
        let places = chosen.unwrap_or(&self.every).iter();
        places.map(|&place| &self.rules[place])
    }

    /// Looks at all conditions, a bit each.
    #[inline]
    pub(super) fn held(&self, element: &ElementView<'_>) -> u64 {
        let mut held = 0;
        for (place, test) in self.tests.iter().enumerate() {
            held |= u64::from(test.holds(element)) << place;
        }
        held
    }

    /// Reads the tasks that the element names, in the order to which [`Rule::task`] refers.
    #[inline]
    pub(super) fn name_tasks(&self, element: &ElementView<'_>, tasks: &mut Vec<Option<u32>>) {
        tasks.clear();
        tasks.extend(self.tasks.iter().map(|source| source.named_by(element)));
    }
}

/// The place of this one, at the end if it is new.
fn place_of<T: Clone + PartialEq>(all: &mut Vec<T>, one: &T) -> usize {
    all.iter()
        .position(|known| known == one)
        .unwrap_or_else(|| {
            all.push(one.clone());
            all.len() - 1
        })
}

fn lives(stream: &StreamDescriptor) -> Lives {
    let of_kernel = matches!(stream.origin, Origin::Kernel { .. });
    match stream.sensor.as_str() {
        TASK_LIFE if of_kernel => Lives::Life,
        SCHED_SWITCH if of_kernel => Lives::Switch,
        _ => Lives::Silent,
    }
}

fn key_and_pattern(
    stream: &StreamDescriptor,
    metric: &Metric,
    symbol: &Symbol,
) -> Result<(Option<Number>, BoundPattern), String> {
    let schema = &stream.schema;
    let pattern = BoundPattern::new(stream, symbol)?;
    let key = metric.specification().key.as_ref();
    let key = key.filter(|key| key.symbol.text == symbol.name.text);
    if let Some(key) = key {
        whole_number(schema, symbol, &key.field).map_err(|error| error.fault.to_string())?;
    }
    let key = key.and_then(|key| Number::of(schema, &key.field.text));
    Ok((key, pattern))
}

/// Whose the elements of a stream are if they do not say it by a field of their own.
pub(super) fn writer(stream: &StreamDescriptor) -> TaskSource {
    match (Number::of(&stream.schema, WRITER_TID), &stream.origin) {
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
    /// Whether the element is the symbol: `held` says which conditions of the route hold.
    #[inline]
    pub(super) fn matches(&self, held: u64, element: &ElementView<'_>) -> bool {
        held & self.needs == self.needs && self.further.iter().all(|test| test.holds(element))
    }

    /// How long before the element the event was.
    #[inline]
    pub(super) fn ago(&self, element: &ElementView<'_>) -> Nanos {
        let ago = self.ago.and_then(|field| field.bits(element.payload));
        Nanos::from_ns(ago.unwrap_or(0))
    }

    /// The key that the element gives, if the symbol gives one.
    #[inline]
    pub(super) fn key(&self, element: &ElementView<'_>) -> Option<Option<u64>> {
        self.key.map(|field| field.bits(element.payload))
    }
}
