// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics over a recording: the paper's interface, with the measurements as columns.

use std::path::PathBuf;

use numpy::IntoPyArray;
use overhear_event::{EventSet, Nanos};
use overhear_metrics::automaton::{
    events_required_by, new_user_metric, system_metric, system_metrics, Catalogue, MeasurementGap,
    MetricResult, Metrics, Pattern, Results,
};
use overhear_trace::{recorded_costs, ReadError, TraceReader};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::{pyclass, pyfunction, pymethods, Bound, PyErr, PyRef, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods};

use crate::collect::gap_row;
use crate::error::TraceError;

/// What is measured.
#[pyclass(module = "overhear", frozen)]
pub(crate) struct Metric(overhear_metrics::automaton::Metric);

impl Metric {
    pub(crate) const fn metric(&self) -> &overhear_metrics::automaton::Metric {
        &self.0
    }
}

#[pymethods]
impl Metric {
    /// From a text in the format of docs/metrics.md.
    #[new]
    fn new(text: &str) -> PyResult<Self> {
        text.parse().map(Self).map_err(wrong)
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn description(&self) -> &str {
        self.0.description()
    }

    /// The automaton as a picture, for `dot`.
    fn to_graphviz(&self) -> String {
        self.0.specification().to_graphviz()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<Metric {}>", self.0.name())
    }

    fn _events(&self) -> Vec<String> {
        let events = events_required_by(&self.0);
        events.iter().map(ToString::to_string).collect()
    }
}

fn wrong(error: impl std::error::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// The names of the metrics that are built in.
#[pyfunction(name = "system_metrics")]
pub(crate) fn names() -> Vec<&'static str> {
    system_metrics().collect()
}

/// The built-in metric of this name.
#[pyfunction(name = "system_metric")]
pub(crate) fn of_system(name: &str) -> PyResult<Metric> {
    system_metric(name).map(Metric).map_err(wrong)
}

/// The time that a task takes from one of its events to another.
#[pyfunction]
pub(crate) fn of_user(
    name: &str,
    initial: &str,
    r#final: &str,
    include_system: bool,
) -> PyResult<Metric> {
    let catalogue = Catalogue::linux();
    let (initial, r#final) = (event(initial, &catalogue)?, event(r#final, &catalogue)?);
    new_user_metric(name, &initial, &r#final, include_system, &catalogue)
        .map(Metric)
        .map_err(wrong)
}

fn event(name: &str, catalogue: &Catalogue) -> PyResult<Pattern> {
    match name.split_once(':') {
        Some(("user" | "kernel" | "sampler" | "clerk", _)) => {
            Pattern::parse_user_event(name, catalogue).map_err(wrong)
        }
        _ => Err(PyValueError::new_err(format!(
            "`{name}` names no event; write user:SENSOR, kernel:HOOK or sampler:SENSOR"
        ))),
    }
}

/// One of the values of a measurement.
type Column = fn(&MetricResult) -> u64;

/// Measurements as a dictionary of columns.
pub(crate) fn columns<'py>(
    py: Python<'py>,
    rows: &[MetricResult],
    gaps: &[MeasurementGap],
) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    let column = |of: Column| -> Vec<u64> { rows.iter().map(of).collect() };
    let columns: [(&str, Column); 9] = [
        ("task", |row| row.task.into()),
        ("length_ns", |row| row.length.as_ns()),
        ("begin_ns", |row| row.begin.as_monotonic_ns()),
        ("end_ns", |row| row.end.as_monotonic_ns()),
        ("intermediate_events", |row| row.intermediate_events),
        ("own_events", |row| row.own_events),
        ("key", |row| row.key.unwrap_or(0)),
        ("missed", |row| row.missed),
        ("has_key", |row| row.key.is_some().into()),
    ];
    for (name, of) in columns {
        found.set_item(name, column(of).into_pyarray(py))?;
    }
    // As a gap of a batch, behind the measurement that it fell into.
    let gaps = gaps.iter();
    let gaps =
        gaps.flat_map(|named| [&[named.measurement as u64], &gap_row(&named.gap)[..]].concat());
    found.set_item("gaps", gaps.collect::<Vec<u64>>().into_pyarray(py))?;
    Ok(found)
}

/// Measures the recording in `directory`: for each metric a dictionary of columns and counters.
#[pyfunction]
pub(crate) fn measure<'py>(
    py: Python<'py>,
    directory: PathBuf,
    metrics: Vec<PyRef<'py, Metric>>,
    element_cost_ns: Option<u64>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let metrics: Vec<_> = metrics.iter().map(|metric| metric.0.clone()).collect();
    let (engine, recorded, damage) = py.detach(move || -> PyResult<_> {
        let damaged = |error: ReadError| TraceError::new_err(error.to_string());
        let reader = TraceReader::open(directory).map_err(damaged)?;
        // None stands for the recording's calibration.
        let costs = match element_cost_ns {
            Some(length) => Some(Nanos::from_ns(length).into()),
            None => recorded_costs(&reader).map_err(damaged)?,
        };
        let costs = costs.ok_or_else(|| {
            TraceError::new_err(
                "the recording has no calibration; run `overhear calibrate` before the next one, or give a length",
            )
        })?;
        let mut engine = Metrics::new(Results::default().minus_costs(costs));
        for metric in metrics {
            engine.add(metric);
        }
        let replayed = reader.replay(&mut [&mut engine]);
        engine.finish();
        let recorded: EventSet = reader.streams().map(|stream| stream.event()).collect();
        let torn = reader.torn().iter().map(ToString::to_string);
        let corrupt = reader.corrupt().iter().chain(&replayed.corrupt);
        let damage: Vec<String> = torn.chain(corrupt.map(ToString::to_string)).collect();
        Ok((engine, recorded, damage))
    })?;
    let each = engine.statistics().enumerate();
    let each = each.map(|(index, (metric, statistics))| {
        let rows = engine.sink().of(index);
        let found = columns(py, rows, engine.sink().gaps_of(index))?;
        let absent_events = metric
            .sources()
            .iter()
            .filter(|event| !recorded.contains(*event));
        let absent_events: Vec<String> = absent_events.map(ToString::to_string).collect();
        let kept = rows.len() as u64;
        let refused = statistics.completed.saturating_sub(kept) + statistics.refused;
        found.set_item("total_missed", statistics.missed)?;
        found.set_item("unfinished", statistics.unfinished)?;
        found.set_item("refused", refused)?;
        found.set_item("absent_events", absent_events)?;
        found.set_item(
            "damage",
            [damage.clone(), engine.complaints().to_vec()].concat(),
        )?;
        Ok(found)
    });
    each.collect()
}
