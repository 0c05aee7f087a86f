// SPDX-License-Identifier: MIT OR Apache-2.0
//! The accounts at one moment, and their text, JSON and CSV for `--once`.

use std::collections::BTreeMap;

use overhear_event::{Nanos, Value};
use overhear_metrics::{RecentSensor, RecentSensors};
use serde::Serialize;

use crate::format::{csv_text, json_text, Format};
use crate::text::columns::Table;
use crate::text::width::Width;
use overhear_session::budget::BudgetOutcome;
use overhear_session::display::{self, TextDisplay};
use overhear_session::format::{number, printable, rate};
use overhear_session::identity::Identity;
use overhear_session::listing::State;
use overhear_session::quantities::{HistogramReport, Quantiles};
use overhear_session::samples::SamplerReport;

/// The document of `overhear top --once --format json`.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Snapshot {
    /// Version of the program that made it.
    pub(crate) overhear_version: String,
    /// Socket of the directory; empty without one.
    pub(crate) socket: String,
    /// The newest time that was evaluated, on `CLOCK_MONOTONIC`.
    pub(crate) time_ns: u64,
    /// Length of the window of rates and intervals.
    pub(crate) window_ns: u64,
    /// Elements evaluated since the observation began.
    pub(crate) elements: u64,
    /// Elements missed since then.
    pub(crate) missed: u64,
    /// Whether there was no gap, and no complaint about a possible one.
    pub(crate) complete: bool,
    /// The sensors, in the order of registration.
    pub(crate) sensors: Vec<SensorRow>,
    /// The processes that own them.
    pub(crate) tasks: Vec<TaskRow>,
    /// The threads of the process that is followed; empty without one.
    pub(crate) threads: Vec<ThreadRow>,
    /// Active kernel sensors, and the reason why there are no more; empty if none was requested.
    pub(crate) kernel: String,
    /// Complaints of the observation and of updates.
    pub(crate) notes: Vec<String>,
    /// Distributions of the updates of `--config` since the observation began.
    pub(crate) histograms: Vec<HistogramReport>,
    /// The budget; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) budget: Option<BudgetOutcome>,
    /// The samplers since the observation began; absent without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) samplers: Vec<SamplerReport>,
}

impl Snapshot {
    /// Number of lines of the tables of samplers, on an unlimited width.
    pub(crate) fn sample_lines(&self) -> usize {
        let text = crate::text::samples::render(&self.samplers, Width::UNLIMITED);
        text.lines().count()
    }
}

/// One sensor.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SensorRow {
    /// Its process, name and type.
    #[serde(flatten)]
    pub(crate) identity: Identity,
    /// Whether it is on.
    pub(crate) state: State,
    /// Elements evaluated since the observation began.
    pub(crate) elements: u64,
    /// Elements missed since then.
    pub(crate) missed: u64,
    /// Gaps since then.
    pub(crate) gaps: u64,
    /// Elements per second in the window, missed ones included; null before the first step ends.
    pub(crate) rate_hz: Option<f64>,
    /// Elements that came earlier than declared; null without a declared rate.
    pub(crate) too_early: Option<u64>,
    /// Distances of neighbours in the window.
    pub(crate) interval_ns: Option<Quantiles>,
    /// The values of the newest element.
    pub(crate) values: Vec<FieldRow>,
    /// Elements per second in each step, oldest first; `None` for a step that was observed in part.
    #[serde(skip)]
    pub(crate) course: Vec<Option<f64>>,
}

/// A field's newest value.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FieldRow {
    /// Name.
    pub(crate) name: String,
    /// Unit.
    pub(crate) unit: String,
    /// Value; null before the first element.
    pub(crate) value: serde_json::Value,
    /// Its values at the ends of the steps, oldest first.
    #[serde(skip)]
    pub(crate) course: Vec<Option<f64>>,
}

/// One process with sensors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TaskRow {
    /// `comm(pid)`.
    pub(crate) task: String,
    /// The process.
    pub(crate) pid: u32,
    /// Its sensors.
    pub(crate) sensors: u64,
    /// Elements per second of all of them.
    pub(crate) rate_hz: f64,
    /// Elements evaluated.
    pub(crate) elements: u64,
    /// Elements missed.
    pub(crate) missed: u64,
}

/// One thread, over the last interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ThreadRow {
    /// Process.
    pub(crate) pid: u32,
    /// Thread.
    pub(crate) tid: u32,
    /// Its newest name.
    pub(crate) comm: String,
    /// Share of the time on a CPU, 0 to 1.
    pub(crate) run: f64,
    /// Share of the time waiting for a CPU; null without wake-ups.
    pub(crate) runnable: Option<f64>,
    /// Voluntary context switches per second.
    pub(crate) voluntary_hz: f64,
    /// Involuntary context switches per second.
    pub(crate) involuntary_hz: f64,
    /// Migrations since it was followed.
    pub(crate) migrations: u64,
    /// Wake-up latency since it was followed; null without wake-ups.
    pub(crate) wakeup_latency_ns: Option<Quantiles>,
}

/// The row of a sensor.
#[must_use]
pub(crate) fn sensor_row(recent: &RecentSensors, sensor: &RecentSensor, state: State) -> SensorRow {
    let identity = Identity::of(&sensor.stream);
    let per_second = 1e9 / recent.step().as_ns() as f64;
    let values = identity
        .fields
        .iter()
        .enumerate()
        .map(|(index, field)| FieldRow {
            name: field.name.clone(),
            unit: field.unit.clone(),
            value: sensor
                .value(index)
                .map_or(serde_json::Value::Null, |value| json(value, &field.kind)),
            course: sensor
                .steps()
                .map(|step| step.values.get(index).copied().flatten())
                .collect(),
        })
        .collect();
    SensorRow {
        identity,
        state,
        elements: sensor.elements,
        missed: sensor.missed,
        gaps: sensor.gaps,
        rate_hz: recent.rate_hz(sensor),
        too_early: sensor.too_early(),
        interval_ns: Quantiles::of(&sensor.intervals()),
        values,
        course: sensor
            .steps()
            .map(|step| {
                let elements = step.elements.saturating_add(step.missed);
                step.whole.then_some(elements as f64 * per_second)
            })
            .collect(),
    }
}

/// A value as JSON. A narrow float has its own digits, not those of the wide one.
fn json(value: Value<'_>, kind: &str) -> serde_json::Value {
    match (kind, value) {
        ("f32", Value::Float(value)) => serde_json::to_value(value as f32),
        (_, value) => serde_json::to_value(value),
    }
    .unwrap_or_default()
}

/// The processes of these sensors, in the order in which they came.
#[must_use]
pub(crate) fn tasks(sensors: &[SensorRow]) -> Vec<TaskRow> {
    let mut indices: BTreeMap<&str, usize> = BTreeMap::new();
    let mut tasks: Vec<TaskRow> = Vec::new();
    for sensor in sensors {
        let identity = &sensor.identity;
        let index = *indices.entry(&identity.task).or_insert_with(|| {
            tasks.push(TaskRow {
                task: identity.task.clone(),
                pid: identity.pid,
                sensors: 0,
                rate_hz: 0.0,
                elements: 0,
                missed: 0,
            });
            tasks.len() - 1
        });
        let task = &mut tasks[index];
        task.sensors += 1;
        task.rate_hz += sensor.rate_hz.unwrap_or_default();
        task.elements += sensor.elements;
        task.missed = task.missed.saturating_add(sensor.missed);
    }
    tasks
}

impl SensorRow {
    /// The actual rate as a share of the declared one, in per cent.
    #[must_use]
    pub(crate) fn share_of_declared(&self) -> Option<f64> {
        let declared = self.identity.declared?;
        Some(self.rate_hz? * declared.period_ns as f64 / 1e7)
    }

    /// The newest values on one line: `depth 3  wait 12 ns`.
    #[must_use]
    pub(crate) fn values_text(&self) -> String {
        let fields: Vec<String> = self
            .values
            .iter()
            .filter(|field| !field.value.is_null() && field.name != overhear_event::WRITER_FLAGS)
            .map(FieldRow::text)
            .collect();
        printable(&fields.join("  "))
    }
}

impl FieldRow {
    fn text(&self) -> String {
        let value = match &self.value {
            serde_json::Value::String(text) => text.clone(),
            serde_json::Value::Number(n) if n.is_f64() => number(n.as_f64().unwrap_or_default()),
            value => value.to_string(),
        };
        let space = if self.unit.is_empty() { "" } else { " " };
        format!("{} {value}{space}{}", self.name, self.unit)
    }
}

/// Renders the snapshot for `--once`, as text for lines of this width.
#[must_use]
pub(crate) fn render(snapshot: &Snapshot, format: Format, width: Width) -> String {
    match format {
        Format::Json => json_text(snapshot),
        Format::Csv => csv(snapshot),
        Format::Text => text(snapshot, width),
    }
}

pub(crate) fn maybe<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_string(), text)
}

pub(crate) fn time(ns: u64) -> String {
    Nanos::from_ns(ns).to_string()
}

fn text(snapshot: &Snapshot, width: Width) -> String {
    let mut table = Table::new(&[
        ("sensor", false),
        ("task", false),
        ("rate", true),
        ("declared", true),
        ("of decl", true),
        ("elements", true),
        ("missed", true),
        ("early", true),
        ("interval p50", true),
        ("p99", true),
        ("state", false),
        ("values", false),
    ])
    .keys(2);
    for sensor in &snapshot.sensors {
        let declared = sensor.identity.declared;
        table.row(vec![
            printable(&sensor.identity.name()),
            printable(&sensor.identity.task),
            maybe(sensor.rate_hz, rate),
            maybe(declared, |d| rate(1e9 / d.period_ns.max(1) as f64)),
            maybe(sensor.share_of_declared(), |share| format!("{share:.0} %")),
            sensor.elements.to_string(),
            sensor.missed.to_string(),
            maybe(sensor.too_early, |early| early.to_string()),
            maybe(sensor.interval_ns, |q| time(q.median)),
            maybe(sensor.interval_ns, |q| time(q.p99)),
            sensor.state.name().to_string(),
            sensor.values_text(),
        ]);
    }
    let mut text = String::new();
    if !table.is_empty() {
        text = table.render(width);
    }
    let mut table = Table::new(&[
        ("thread", false),
        ("pid", true),
        ("tid", true),
        ("run", true),
        ("runnable", true),
        ("vol/s", true),
        ("invol/s", true),
        ("migr", true),
        ("wake-up p50", true),
        ("p99", true),
        ("max", true),
    ])
    .keys(3);
    for thread in &snapshot.threads {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let latency = thread.wakeup_latency_ns;
        table.row(vec![
            printable(&thread.comm),
            thread.pid.to_string(),
            thread.tid.to_string(),
            percent(thread.run),
            maybe(thread.runnable, percent),
            number(thread.voluntary_hz),
            number(thread.involuntary_hz),
            thread.migrations.to_string(),
            maybe(latency, |q| time(q.median)),
            maybe(latency, |q| time(q.p99)),
            maybe(latency, |q| time(q.max)),
        ]);
    }
    if !table.is_empty() {
        text.push('\n');
        text.push_str(&table.render(width));
    }
    if !snapshot.histograms.is_empty() {
        let mut display = TextDisplay::new(width.limit().unwrap_or(80).min(80));
        display::show(&snapshot.histograms, &mut display);
        text.push('\n');
        text.push_str(&display.into_text());
    }
    if let Some(budget) = &snapshot.budget {
        text.push('\n');
        text.push_str(&crate::text::budget::render(budget, width));
    }
    if !snapshot.samplers.is_empty() {
        text.push('\n');
        text.push_str(&crate::text::samples::render(&snapshot.samplers, width));
    }
    text
}

/// The columns of a sensor in CSV.
pub(crate) const CSV_COLUMNS: [&str; 15] = [
    "task",
    "pid",
    "id",
    "instance",
    "type",
    "state",
    "rate_hz",
    "declared_hz",
    "elements",
    "missed",
    "too_early",
    "interval_p50_ns",
    "interval_p99_ns",
    "interval_max_ns",
    "values",
];

fn csv(snapshot: &Snapshot) -> String {
    let rows = snapshot.sensors.iter().map(|sensor| {
        let identity = &sensor.identity;
        let blank = |value: Option<String>| value.unwrap_or_default();
        let quantile =
            |pick: fn(Quantiles) -> u64| blank(sensor.interval_ns.map(|q| pick(q).to_string()));
        let declared = identity
            .declared
            .map(|declared| 1e9 / declared.period_ns.max(1) as f64);
        [
            identity.task.clone(),
            identity.pid.to_string(),
            identity.id.clone(),
            identity.instance.clone(),
            identity.type_id.clone(),
            sensor.state.name().to_string(),
            blank(sensor.rate_hz.map(|hz| hz.to_string())),
            blank(declared.map(|hz| hz.to_string())),
            sensor.elements.to_string(),
            sensor.missed.to_string(),
            blank(sensor.too_early.map(|early| early.to_string())),
            quantile(|q| q.median),
            quantile(|q| q.p99),
            quantile(|q| q.max),
            sensor.values_text(),
        ]
    });
    csv_text(&CSV_COLUMNS, rows)
}
