// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics in a monitor that runs: of a directory's sensors, and of the kernel with chosen
//! processes.

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overhear_directory::{monotonic_now, Begin, Needs};
use overhear_event::{
    Analysis, ElementView, EventSet, Gap, Nanos, Source, StreamDescriptor, StreamIdRange, Timestamp,
};
use overhear_kernel::{ActiveBackend, Backend, Kernel, Sensor};
use overhear_metrics::automaton::{Results, SharedMetrics, TakenResults};
use overhear_monitor::Runner;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::{pyclass, pymethods, Bound, PyRef, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods};

use crate::attach::{connect, query, refused};
use crate::error::KernelError;
use crate::metrics::{columns, Metric};

/// How long to wait before looking whether Python was interrupted.
const LOOK_UP: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    wants_end: bool,
    has_ended: bool,
    evaluated_to: Timestamp,
    complaints: Vec<String>,
}

/// What Python and the monitor's thread share besides the metrics.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Evaluates, and announces its progress.
struct Evaluating {
    metrics: SharedMetrics,
    shared: Arc<Shared>,
}

impl Analysis for Evaluating {
    fn open(&mut self, stream: &StreamDescriptor) {
        self.metrics.open(stream);
    }

    fn element(&mut self, element: &ElementView<'_>) {
        self.metrics.element(element);
    }

    fn elements(&mut self, elements: &[ElementView<'_>]) {
        self.metrics.elements(elements);
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.metrics.gap(stream, gap);
    }

    fn advance(&mut self, now: Timestamp) {
        self.metrics.advance(now);
        self.shared.lock().evaluated_to = now;
        self.shared.changed.notify_all();
    }
}

/// Metrics that are being measured; see `overhear.Measuring`.
#[pyclass(module = "overhear._core", frozen)]
pub(crate) struct Measuring {
    metrics: SharedMetrics,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The kernel's source, if requested.
fn kernel(events: &EventSet, processes: &[u32]) -> PyResult<Kernel> {
    if processes.is_empty() {
        return Err(PyValueError::new_err(
            "these metrics require events of the kernel; give `processes`",
        ));
    }
    let failed = |error: String| KernelError::new_err(error);
    let kernel = Kernel::builder()
        .backend(Backend::Auto)
        .sensors(Sensor::required_by(events))
        .first_stream(StreamIdRange::LOCAL.first())
        .build();
    let mut kernel = kernel.map_err(|error| failed(error.to_string()))?;
    if kernel.status().active == ActiveBackend::None {
        return Err(failed(kernel.status().message.clone()));
    }
    for process in processes {
        kernel
            .follow(*process)
            .map_err(|error| failed(error.to_string()))?;
    }
    Ok(kernel)
}

#[pymethods]
impl Measuring {
    /// Begins: returns when everything that is written from now on is measured.
    #[new]
    fn new(
        py: Python<'_>,
        metrics: Vec<PyRef<'_, Metric>>,
        names: &str,
        socket: Option<PathBuf>,
        processes: Vec<u32>,
        disable_unused: bool,
        element_cost_ns: u64,
    ) -> PyResult<Self> {
        let results = Results::default().minus_costs(Nanos::from_ns(element_cost_ns));
        let metrics = SharedMetrics::new(metrics.iter().map(|it| it.metric().clone()), results);
        let required = metrics.requires();
        let of_kernel = |event: &str| event.starts_with("kernel:");
        let mut sources: Vec<Box<dyn Source + Send>> = Vec::new();
        if required.iter().any(|event| !of_kernel(event.as_str())) {
            let query = query(names)?;
            let needs = Needs::events(required.clone());
            let needs = match disable_unused {
                true => needs.disable_unused(),
                false => needs,
            };
            let mut source = py.detach(|| {
                let attached = connect(socket)?.attach_needing(query, Begin::Now, needs);
                attached.map_err(|error| refused(&error))
            })?;
            source.forget_clock_segments();
            sources.push(Box::new(source));
        }
        if required.iter().any(|event| of_kernel(event.as_str())) {
            sources.push(Box::new(py.detach(|| kernel(&required, &processes))?));
        }
        let shared = Arc::new(Shared::default());
        let evaluating = Evaluating {
            metrics: metrics.clone(),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name("overhear-metric".to_owned());
        let thread = thread.spawn(move || run(sources, evaluating))?;
        Ok(Self {
            metrics,
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// What was completed since the last call: for each metric a dictionary of columns and
    /// counters. Waits until everything that was written before the call is evaluated; `None` if
    /// that takes longer.
    fn read<'py>(
        &self,
        py: Python<'py>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<Vec<Bound<'py, PyDict>>>> {
        let until = monotonic_now();
        let timeout = timeout_s
            .map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let is_evaluated = py.detach(|| {
                let state = self.shared.lock();
                if state.evaluated_to >= until || state.has_ended {
                    return true;
                }
                let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
                let state = self
                    .shared
                    .wait(state, left.unwrap_or(LOOK_UP).min(LOOK_UP));
                state.evaluated_to >= until || state.has_ended
            });
            if is_evaluated {
                break;
            }
            if deadline.is_some_and(|end| end <= Instant::now()) {
                return Ok(None);
            }
            py.check_signals()?;
        }
        let complaints = [
            self.shared.lock().complaints.clone(),
            self.metrics.complaints(),
        ]
        .concat();
        let taken = self.metrics.take();
        let all = taken.iter().map(|taken| found(py, taken, &complaints));
        all.collect::<PyResult<Vec<_>>>().map(Some)
    }

    /// Ends the monitor; what it has measured can still be read.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }
}

fn found<'py>(
    py: Python<'py>,
    taken: &TakenResults,
    complaints: &[String],
) -> PyResult<Bound<'py, PyDict>> {
    let found = columns(py, &taken.results, &taken.gaps)?;
    let absent_events: Vec<String> = taken
        .absent_events
        .iter()
        .map(ToString::to_string)
        .collect();
    found.set_item("total_missed", taken.missed)?;
    found.set_item("unfinished", taken.unfinished)?;
    found.set_item("refused", taken.refused)?;
    found.set_item("absent_events", absent_events)?;
    found.set_item("damage", complaints)?;
    Ok(found)
}

impl Measuring {
    fn end(&self) {
        self.shared.lock().wants_end = true;
        self.shared.changed.notify_all();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            // A panic of the monitor has been printed; there is nothing more to read then.
            let _ = thread.join();
            self.shared.lock().has_ended = true;
        }
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        self.end();
    }
}

fn run(sources: Vec<Box<dyn Source + Send>>, evaluating: Evaluating) {
    let shared = Arc::clone(&evaluating.shared);
    let mut runner =
        Runner::new(evaluating).complaints(|complaint| shared.lock().complaints.push(complaint.0));
    for source in sources {
        runner.monitor.add_source(source);
    }
    let wait = |pause| {
        let state = shared.lock();
        if !state.wants_end {
            // Only the end wakes it: a call that waits for results waits for a round.
            drop(shared.wait(state, pause));
        }
    };
    runner.run(wait, |_| shared.lock().wants_end.then_some(()));
    shared.lock().has_ended = true;
    shared.changed.notify_all();
}
