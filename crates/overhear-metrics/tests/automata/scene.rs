// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scenes: a trace as lines of text, fed to the engine, and the results as lines of text.

use std::collections::BTreeMap;

use overhear_event::{
    Analysis, ElementView, EventName, FieldKind, Gap, GapCause, Item, Origin, StreamDescriptor,
    StreamId, Task, Timestamp, TypeSchema,
};
use overhear_metrics::automaton::{
    Catalogue, Constant, LateGap, Measurement, Metric, MetricStatistics, Metrics, Relation, Sink,
    Specification, Symbol, TaskOf,
};

use crate::reference::{Input, Step};

/// One line of a trace.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) time: u64,
    pub(crate) gap: bool,
    pub(crate) event: String,
    pub(crate) fields: BTreeMap<String, String>,
}

impl Line {
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let line = line.split('#').next()?.trim();
        let mut words = line.split_whitespace();
        let time = words.next()?.parse().expect("a line begins with its time");
        let mut event = words.next().expect("an event");
        let gap = event == "gap";
        if gap {
            event = words.next().expect("the event of the gap");
        }
        let fields = words.map(|word| {
            let (name, value) = word.split_once('=').expect("field=value");
            (name.to_owned(), value.to_owned())
        });
        Some(Self {
            time,
            gap,
            event: event.to_owned(),
            fields: fields.collect(),
        })
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.fields
            .get(field)
            .map(|value| value.parse().expect("a number"))
    }

    /// The value of a field in the payload.
    fn value(&self, field: &str) -> u64 {
        let named = if field == "writer_tid" { "task" } else { field };
        let absent = if field == "prev_run_ns" {
            u64::from(u32::MAX)
        } else {
            0
        };
        self.number(named).unwrap_or(absent)
    }
}

/// The catalogue of scenes: that of Linux, and all other events that the metric names, with a task
/// and a value.
pub(crate) fn catalogue(specification: Option<&Specification>) -> Catalogue {
    let mut catalogue = Catalogue::linux();
    for symbol in specification
        .iter()
        .flat_map(|specification| &specification.symbols)
    {
        if !catalogue.permits(&symbol.source) {
            catalogue = catalogue.with(symbol.source.clone(), synthetic());
        }
    }
    catalogue
}

fn synthetic() -> TypeSchema {
    let schema = TypeSchema::builder("synthetic")
        .field("task", FieldKind::U32, "")
        .field("value", FieldKind::U32, "");
    schema.build().unwrap()
}

fn of_probe() -> TypeSchema {
    let schema = TypeSchema::builder("probe")
        .field("tid", FieldKind::U32, "")
        .field("value", FieldKind::U32, "");
    schema.build().unwrap()
}

fn stream(id: u32, line: &Line, catalogue: &Catalogue) -> StreamDescriptor {
    let (kind, sensor) = line
        .event
        .split_once(':')
        .expect("kernel:HOOK or user:SENSOR");
    let value = TypeSchema::builder("user")
        .field("value", FieldKind::U32, "")
        .build()
        .unwrap();
    let pid = line.number("pid").map_or(1, |pid| pid as u32);
    let (origin, schema) = match kind {
        "kernel" => {
            let event = EventName::kernel(sensor);
            let written = || match event.is_of_probe() {
                true => of_probe(),
                false => synthetic(),
            };
            let schema = catalogue.schema(&event).cloned().unwrap_or_else(written);
            (Origin::Kernel { cpu: 0 }, schema)
        }
        _ => {
            let start = Timestamp::ZERO;
            let comm = String::from("scene");
            let schema = if line.fields.contains_key("pid") {
                value
            } else {
                value.with_writer().unwrap()
            };
            (Origin::Program(Task { pid, start, comm }), schema)
        }
    };
    StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
}

fn payload(schema: &TypeSchema, line: &Line) -> Vec<u8> {
    let mut bytes = Vec::new();
    for field in schema.fields() {
        match field.kind {
            FieldKind::Text(size) => {
                let text = line.fields.get(&field.name).cloned().unwrap_or_default();
                let mut text = text.into_bytes();
                text.resize(usize::from(size), 0);
                bytes.extend(text);
            }
            kind => {
                let value = line.value(&field.name).to_ne_bytes();
                let size = kind.size() as usize;
                if cfg!(target_endian = "little") {
                    bytes.extend(&value[..size]);
                } else {
                    bytes.extend(&value[8 - size..]);
                }
            }
        }
    }
    bytes
}

/// A measurement in a line of the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) task: u32,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) length: u64,
    pub(crate) events: u64,
    pub(crate) own: u64,
    pub(crate) key: Option<u64>,
    pub(crate) missed: u64,
    pub(crate) doubts: u64,
}

impl Row {
    pub(crate) fn words(&self) -> Vec<String> {
        let numbers = [
            self.task.into(),
            self.begin,
            self.end,
            self.length,
            self.events,
            self.own,
        ];
        let mut words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        words.extend(self.key.map(|key| format!("key={key}")));
        words.extend((self.missed > 0).then(|| format!("missed={}", self.missed)));
        words.extend((self.doubts > 0).then(|| format!("doubts={}", self.doubts)));
        words
    }
}

#[derive(Debug, Default)]
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Sink for Rows {
    fn measurement(&mut self, measurement: &Measurement<'_>) {
        assert_eq!(measurement.number, self.0.len() as u64);
        let ns = Timestamp::as_monotonic_ns;
        self.0.push(Row {
            task: measurement.task,
            begin: ns(measurement.begin),
            end: ns(measurement.end),
            length: measurement.length.as_ns(),
            events: measurement.intermediate.unwrap().all,
            own: measurement.intermediate.unwrap().own,
            key: measurement.key,
            missed: measurement.missed.elements,
            doubts: 0,
        });
    }

    fn late_gap(&mut self, doubt: &LateGap<'_>) {
        self.0[usize::try_from(doubt.number).unwrap()].doubts += 1;
    }
}

/// Passes every element of the lines to `take`. The lines contain no gaps, and events of Linux
/// only.
pub(crate) fn each_element(lines: &[Line], mut take: impl FnMut(&ElementView<'_>)) {
    each(lines, &Catalogue::linux(), |_, line, item| match item {
        Item::Element(element) => take(&element),
        _ => panic!("{line:?} is no element"),
    });
}

/// Makes an item of every line.
pub(crate) fn each(
    lines: &[Line],
    catalogue: &Catalogue,
    mut take: impl FnMut(&StreamDescriptor, &Line, Item<'_>),
) {
    let mut streams: Vec<((String, Option<u64>), StreamDescriptor)> = Vec::new();
    for (sequence, line) in (0..).zip(lines) {
        let name = (line.event.clone(), line.number("pid"));
        if !streams.iter().any(|(known, _)| *known == name) {
            let id = u32::try_from(streams.len()).unwrap();
            streams.push((name.clone(), stream(id, line, catalogue)));
        }
        let (_, stream) = streams.iter().find(|(known, _)| *known == name).unwrap();
        let time = Timestamp::from_monotonic_ns(line.time);
        if line.gap {
            let from = line.number("from").expect("from=TIME");
            let gap = Gap {
                stream: stream.id,
                first: sequence,
                missed: line.number("missed").expect("missed=NUMBER"),
                from: Timestamp::from_monotonic_ns(from),
                to: time,
                cause: GapCause::Overwritten,
            };
            take(stream, line, Item::Gap(stream, gap));
        } else {
            let element = ElementView {
                stream,
                sequence,
                time,
                payload: &payload(&stream.schema, line),
            };
            take(stream, line, Item::Element(element));
        }
    }
}

/// The results of a scene.
pub(crate) struct Played {
    pub(crate) rows: Vec<Row>,
    pub(crate) statistics: MetricStatistics,
}

/// Feeds the lines to the metric.
pub(crate) fn play(metric: &Metric, lines: &[Line], limit: Option<usize>) -> Played {
    let catalogue = catalogue(Some(metric.specification()));
    let mut metrics = Metrics::new(Rows::default());
    if let Some(limit) = limit {
        metrics = metrics.with_instances(limit);
    }
    metrics.add(metric.clone());
    each(lines, &catalogue, |stream, line, item| match item {
        Item::Gap(_, gap) => metrics.gap(stream, &gap),
        Item::Element(element) => metrics.element(&element),
        Item::InPlace(element) => element.evaluate(&mut metrics),
        Item::Advance(_) => panic!("{line:?} is no advance"),
    });
    assert_eq!(metrics.complaints(), &[] as &[String]);
    metrics.finish();
    let statistics = metrics.statistics().next().unwrap().1;
    let rows = metrics.into_sink().0;
    assert_eq!(statistics.completed, rows.len() as u64);
    Played { rows, statistics }
}

/// The lines as steps of the reference interpreter, and all tasks that occur; `None` if a line has
/// no such step: ends of tasks, gaps of one task alone.
pub(crate) fn steps(
    specification: &Specification,
    lines: &[Line],
) -> Option<(Vec<Step>, Vec<u32>)> {
    let (mut steps, mut tasks) = (Vec::new(), Vec::new());
    for (element, line) in (1..).zip(lines) {
        let ends = line.event == "kernel:task_life" || line.value("prev_state") & 0xb0 != 0;
        if ends || (line.gap && line.fields.contains_key("pid")) {
            return None;
        }
        let mut symbols = specification.symbols.iter();
        if line.gap {
            if symbols.any(|symbol| symbol.source.as_str() == line.event) {
                steps.push(Step::Gap {
                    missed: line.number("missed")?,
                    until: line.time,
                });
            }
            continue;
        }
        // By the field with the task and the field with the backdating.
        let mut events: Vec<(&TaskOf, Option<&str>, Input)> = Vec::new();
        for symbol in symbols.filter(|symbol| is_symbol(line, symbol)) {
            let ago = symbol.ago.as_ref().map(|field| field.text.as_str());
            let known = events.iter_mut().find(|(of, when, _)| {
                let nobody = **of == TaskOf::NoTask || symbol.task == TaskOf::NoTask;
                *when == ago && (nobody || **of == symbol.task)
            });
            let name = (symbol.name.text.clone(), symbol.task != TaskOf::NoTask);
            let task = task_of(line, &symbol.task);
            tasks.extend(task);
            match known {
                Some((of, _, input)) => {
                    input.symbols.push(name);
                    if **of == TaskOf::NoTask {
                        (*of, input.task) = (&symbol.task, task);
                    }
                }
                None => {
                    let input = Input {
                        time: line.time - ago.map_or(0, |field| line.value(field)),
                        element,
                        symbols: vec![name],
                        task,
                        owners: Vec::new(),
                    };
                    events.push((&symbol.task, ago, input));
                }
            }
        }
        if events.is_empty() {
            steps.push(Step::Input(Input {
                time: line.time,
                element,
                symbols: Vec::new(),
                task: None,
                owners: context(line).into_iter().collect(),
            }));
        }
        let owners = events.iter().filter_map(|(_, _, input)| input.task);
        let owners: Vec<u32> = owners.chain(context(line)).collect();
        steps.extend(events.into_iter().map(|(_, _, mut input)| {
            input.owners.clone_from(&owners);
            Step::Input(input)
        }));
    }
    tasks.sort_unstable();
    tasks.dedup();
    Some((steps, tasks))
}

fn is_symbol(line: &Line, symbol: &Symbol) -> bool {
    let holds = symbol.conditions.iter().all(|condition| {
        let Constant::Number(constant) = condition.constant else {
            panic!("scenes compare numbers");
        };
        let value = line.value(&condition.field.text);
        match condition.relation {
            Relation::Equal => value == constant,
            Relation::Unequal => value != constant,
            Relation::Has => value & constant == constant,
            Relation::Lacks => value & constant == 0,
        }
    });
    symbol.source.as_str() == line.event && holds
}

fn task_of(line: &Line, task: &TaskOf) -> Option<u32> {
    let task = match task {
        TaskOf::NoTask => None,
        TaskOf::Field(field) => Some(line.value(&field.text)),
        TaskOf::Writer if line.event.starts_with("kernel:") => line.number("tid"),
        TaskOf::Writer => line.number("task").or_else(|| line.number("pid")),
    };
    thread(task?)
}

fn thread(number: u64) -> Option<u32> {
    let thread = number as u32;
    (thread != 0 && thread != u32::MAX).then_some(thread)
}

/// The context in which an element is written.
fn context(line: &Line) -> Option<u32> {
    let (kind, value) = (line.value("kind"), |field| line.value(field));
    thread(match line.event.as_str() {
        "kernel:sched_switch" if value("flags") & 2 != 0 => value("prev_tid"),
        "kernel:sched_switch" => value("next_tid"),
        "kernel:sched_wake" => value("waker_tid"),
        "kernel:timer" if kind >= 5 => 0,
        "kernel:lock" if kind >= 3 => 0,
        "kernel:block_io" if kind >= 2 => 0,
        event if event.starts_with("user:") => {
            line.number("task").or_else(|| line.number("pid"))?
        }
        _ => value("tid"),
    })
}
