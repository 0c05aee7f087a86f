// SPDX-License-Identifier: MIT OR Apache-2.0
//! A recorded trace, batch by batch.

use std::path::PathBuf;
use std::sync::Arc;

use overhear_event::StreamDescriptor;
use overhear_trace::{Replay as TraceReplay, TraceReader};
use pyo3::prelude::{pyclass, pymethods, Bound, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods};
use self_cell::self_cell;

use crate::collect::Collector;
use crate::error::TraceError;
use crate::schema::descriptor;

self_cell!(
    /// A replay together with the reader whose maps it reads.
    struct OwnedReplay {
        owner: TraceReader,
        #[covariant]
        dependent: TraceReplay,
    }
);

/// Replays a trace into batches.
#[pyclass(module = "overhear._core")]
pub(crate) struct Replay {
    replay: OwnedReplay,
    collector: Collector,
    has_ended: bool,
}

#[pymethods]
impl Replay {
    /// Opens the trace in `directory`.
    #[new]
    fn new(py: Python<'_>, directory: PathBuf) -> PyResult<Self> {
        let reader = py
            .detach(|| TraceReader::open(directory))
            .map_err(|error| TraceError::new_err(error.to_string()))?;
        let mut collector = Collector::default();
        for stream in reader.streams() {
            collector.open(stream);
        }
        Ok(Self {
            replay: OwnedReplay::new(reader, TraceReader::begin_replay),
            collector,
            has_ended: false,
        })
    }

    /// What is known before the first batch.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let reader = self.replay.borrow_owner();
        let facts = PyDict::new(py);
        facts.set_item("elements", reader.events())?;
        facts.set_item("missed", reader.discarded())?;
        let identity = reader.identity();
        let rows = |stream: &Arc<StreamDescriptor>| reader.count(stream.id).map_or(0, |c| c.0);
        facts.set_item("rows", reader.streams().map(rows).collect::<Vec<u64>>())?;
        facts.set_item("hostname", &identity.hostname)?;
        facts.set_item("realtime_offset_ns", identity.realtime_offset.as_ns())?;
        let times = reader.times();
        let times = times.map(|(first, last)| (first.as_monotonic_ns(), last.as_monotonic_ns()));
        facts.set_item("times_ns", times)?;
        facts.set_item("is_whole", reader.summary().is_some())?;
        Ok(facts)
    }

    /// The streams of the trace, once.
    fn take_opened<'py>(&mut self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let opened = self.collector.take_opened();
        opened.iter().map(|stream| descriptor(py, stream)).collect()
    }

    /// Messages about what of the trace cannot be read, as far as it is known by now.
    fn damage(&self) -> Vec<String> {
        let reader = self.replay.borrow_owner();
        let torn = reader.torn().iter().map(ToString::to_string);
        let corrupt = reader.corrupt().iter().map(ToString::to_string);
        let replay = self.replay.borrow_dependent();
        let found = replay.summary().corrupt.iter().map(ToString::to_string);
        torn.chain(corrupt).chain(found).collect()
    }

    /// The next batch: `limit` elements, fewer at the end, `None` behind it.
    fn step<'py>(&mut self, py: Python<'py>, limit: u64) -> PyResult<Option<Bound<'py, PyDict>>> {
        if self.has_ended {
            return Ok(None);
        }
        let Self {
            replay, collector, ..
        } = self;
        let more = py
            .detach(|| replay.with_dependent_mut(|_, replay| replay.step(limit, &mut [collector])));
        self.has_ended = !more;
        self.collector.take().into_python(py).map(Some)
    }
}
