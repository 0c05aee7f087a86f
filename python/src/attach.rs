// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of a running directory, batch by batch.
//!
//! A thread of its own runs the monitor, so that rings are read while Python computes. It hands
//! over one batch at a time:
//!
//! 1. At the end of a round the thread puts what it has collected into the empty place, and wakes
//!    whoever waits for it. While the place is taken, it goes on collecting.
//! 2. Once it holds [`BACKLOG`] elements it stops reading until the place is empty. From then on
//!    the rings hold what is written, and what they cannot hold is missed and counted: memory stays
//!    bounded whatever Python does. A budget is kept and reported meanwhile.
//! 3. Python takes the batch, waiting without the interpreter's lock.
//! 4. After [`Attachment::close`] the thread runs a last round, leaves what it has, and ends.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use overhear_directory::{
    client, AttachError as Refusal, AttachedSource, Begin, MonitorConnection, Needs, Query,
    SensorRecord,
};
use overhear_event::{Analysis, ElementView, Gap, StreamDescriptor, Timestamp};
use overhear_monitor::Runner;
use overhear_session::budget::{
    BudgetController, BudgetOutcome, BudgetSettings, OptionalBudget, Overhead, WritePrices,
};
use overhear_session::calibrate;
use overhear_session::error::SessionError;
use overhear_session::posix;
use pyo3::prelude::{pyclass, pyfunction, pymethods, Bound, PyErr, PyResult, Python};
use pyo3::types::{PyDict, PyDictMethods};

use crate::collect::{Collected, Collector};
use crate::error::AttachError;
use crate::schema::descriptor;

/// Elements that wait for Python, besides the batch that is ready: some seconds of a busy program.
const BACKLOG: usize = 1 << 20;
/// How long a wait lasts before Python may look for signals.
const LOOK_UP: Duration = Duration::from_millis(100);
/// How long the monitor waits for Python between two decisions of its budget.
const DECISIONS: Duration = Duration::from_millis(10);

/// What both sides see.
#[derive(Debug, Default)]
struct State {
    ready: Option<Collected>,
    // Left by the last round, behind `ready`.
    last: Option<Collected>,
    complaints: Vec<String>,
    elements: u64,
    missed: u64,
    // Whether the thread holds a backlog, and waits until `ready` has been taken.
    has_backlog: bool,
    // Everything before it is in batches that were handed over.
    advanced_to: Option<Timestamp>,
    wants_end: bool,
    has_ended: bool,
    // The budget as JSON, when it was requested last, and at the end.
    budget: Option<String>,
    wants_budget: bool,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, time);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Collects, and hands over at the end of each round, which is when time advances.
struct HandOver {
    shared: Arc<Shared>,
    collector: Collector,
    elements: u64,
    missed: u64,
}

impl Analysis for HandOver {
    fn element(&mut self, element: &ElementView<'_>) {
        self.collector.element(element);
        self.elements += 1;
    }

    fn gap(&mut self, stream: &StreamDescriptor, gap: &Gap) {
        self.collector.gap(stream, gap);
        self.missed = self.missed.saturating_add(gap.missed);
    }

    fn advance(&mut self, now: Timestamp) {
        self.collector.advance(now);
        let mut state = self.shared.lock();
        // Together with the batch: whoever has taken it finds its elements counted.
        (state.elements, state.missed) = (self.elements, self.missed);
        if state.ready.is_none() {
            if self.collector.has_something() {
                state.ready = Some(self.collector.take());
                self.shared.changed.notify_all();
            }
            state.advanced_to = Some(now);
        }
        state.has_backlog = self.collector.elements() >= BACKLOG;
    }
}

/// Reads sensors of a running directory.
#[pyclass(module = "overhear._core", frozen)]
pub(crate) struct Attachment {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) fn refused(error: &Refusal) -> PyErr {
    AttachError::new_err(error.to_string())
}

/// The socket given, or where the directory of this environment listens.
/// The named socket, or the one of this environment.
fn directory(socket: Option<PathBuf>) -> PyResult<PathBuf> {
    socket.or_else(client::socket_path).ok_or_else(|| {
        AttachError::new_err(
            "no directory listens: OVERHEAR_DIRECTORY is not set, or empty, and none of the usual \
             sockets exists; start overheard, or give the socket",
        )
    })
}

pub(crate) fn connect(socket: Option<PathBuf>) -> PyResult<MonitorConnection> {
    let socket = directory(socket)?;
    MonitorConnection::connect(&socket).map_err(|error| refused(&error))
}

pub(crate) fn query(names: &str) -> PyResult<Query> {
    Query::parse(names).map_err(|error| AttachError::new_err(error.to_string()))
}

/// The directory's records of the matching sensors: one dictionary each.
#[pyfunction]
pub(crate) fn sensors<'py>(
    py: Python<'py>,
    names: &str,
    socket: Option<PathBuf>,
) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let query = query(names)?;
    let records = py.detach(|| {
        connect(socket)?
            .list(&query)
            .map_err(|error| refused(&error))
    })?;
    let plain = |record: &SensorRecord| {
        let plain = PyDict::new(py);
        plain.set_item("stream", descriptor(py, &record.descriptor)?)?;
        plain.set_item("lanes", record.lanes)?;
        plain.set_item("uid", record.uid)?;
        plain.set_item("state", record.state.name())?;
        plain.set_item("is_enabled", record.enabled)?;
        plain.set_item("bytes", record.bytes)?;
        plain.set_item("written", record.published)?;
        plain.set_item("lost_nested", record.lost_nested)?;
        plain.set_item("lost_full", record.lost_full)?;
        plain.set_item("monitors", record.monitors)?;
        Ok(plain)
    };
    records.iter().map(plain).collect()
}

/// Switches the matching sensors on or off; returns the number of changed ones.
#[pyfunction]
pub(crate) fn set_enabled(
    py: Python<'_>,
    names: &str,
    enabled: bool,
    socket: Option<PathBuf>,
) -> PyResult<u32> {
    let query = query(names)?;
    py.detach(|| {
        let mut connection = connect(socket)?;
        let changed = connection.set_enabled(&query, enabled);
        changed.map_err(|error| refused(&error))
    })
}

#[pymethods]
impl Attachment {
    /// Attaches to the sensors that match, from their oldest elements on or from now on.
    #[new]
    fn new(
        py: Python<'_>,
        names: &str,
        socket: Option<PathBuf>,
        from_buffer: bool,
        budget: Option<f64>,
    ) -> PyResult<Self> {
        let query = query(names)?;
        let budget = budget.map(Overhead::from_percent).transpose();
        let budget = budget.map_err(|error| AttachError::new_err(error.to_string()))?;
        let begin = if from_buffer {
            Begin::Buffer
        } else {
            Begin::Now
        };
        let (source, budget) = py.detach(|| {
            let budget = budget.map(settings).transpose();
            let budget = budget.map_err(|error| AttachError::new_err(error.to_string()))?;
            let needs = match &budget {
                Some(_) => Needs::all().yield_to_budgets(),
                None => Needs::all(),
            };
            let socket = directory(socket)?;
            let connection = connect(Some(socket.clone()))?;
            let source = connection.attach_needing(query.clone(), begin, needs);
            let source = source.map_err(|error| refused(&error))?;
            let traces = Traces {
                socket,
                query,
                begin,
            };
            Ok::<_, PyErr>(((source, traces), budget))
        })?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("overhear-attach".to_owned());
        let thread = thread.spawn(move || run(source, budget, &theirs))?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// The next batch. Waits for it, for ever or for so many seconds; then it is empty but for the
    /// advance. `None` behind the last one, after `close`.
    fn read<'py>(
        &self,
        py: Python<'py>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let timeout = timeout_s
            .map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX));
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let taken = py.detach(|| {
                let mut state = self.shared.lock();
                if state.ready.is_none() && !state.has_ended {
                    let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
                    state = self
                        .shared
                        .wait(state, left.unwrap_or(LOOK_UP).min(LOOK_UP));
                }
                let taken = state.ready.take().or_else(|| state.last.take());
                self.shared.changed.notify_all();
                match taken {
                    Some(collected) => Some(Some(collected)),
                    None if state.has_ended => Some(None),
                    None if deadline.is_some_and(|end| end <= Instant::now()) => {
                        Some(Some(Collected::advance(state.advanced_to)))
                    }
                    None => None,
                }
            });
            match taken {
                Some(collected) => return collected.map(|c| c.into_python(py)).transpose(),
                None => py.check_signals()?,
            }
        }
    }

    /// Ends the monitor; what it still has can be read.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.end());
    }

    /// Elements handed over or ready, and elements missed.
    fn counts(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.elements, state.missed)
    }

    /// The budget now as JSON, or that of the end; `None` without one.
    fn budget(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| {
            let mut state = self.shared.lock();
            state.wants_budget = true;
            while state.wants_budget && !state.has_ended {
                state = self.shared.wait(state, LOOK_UP);
            }
            state.budget.clone()
        })
    }

    /// Messages about what broke or is damaged, since the last call.
    fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().complaints)
    }
}

impl Attachment {
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

impl Drop for Attachment {
    fn drop(&mut self) {
        self.end();
    }
}

/// A budget of this target, and the prices of writes on this machine.
fn settings(target: Overhead) -> Result<(BudgetSettings, WritePrices), SessionError> {
    let prices = WritePrices::new(calibrate::load_calibration(None)?.as_ref())?;
    Ok((BudgetSettings::of(target), prices))
}

/// The trace streams that match, besides sensors. The thread of the monitor attaches to them.
struct Traces {
    socket: PathBuf,
    query: Query,
    begin: Begin,
}

fn run(
    (source, traces): (AttachedSource, Traces),
    budget: Option<(BudgetSettings, WritePrices)>,
    shared: &Arc<Shared>,
) {
    let source = Rc::new(RefCell::new(source));
    let complain = |problem: String| shared.lock().complaints.push(problem);
    let budget = budget.map(|(settings, prices)| {
        BudgetController::new(settings, prices, Box::new(Rc::clone(&source)))
    });
    let budget = budget.and_then(|budget| match budget {
        Ok(budget) => Some(budget),
        Err(error) => {
            complain(error.to_string());
            None
        }
    });
    let update = HandOver {
        shared: Arc::clone(shared),
        collector: Collector::default(),
        elements: 0,
        missed: 0,
    };
    let budget = OptionalBudget::new(budget);
    let sleep = |pause| {
        let state = shared.lock();
        if !state.wants_end {
            drop(shared.wait(state, pause));
        }
    };
    let wait = |pause| budget.wait(pause, sleep);
    let mut runner = Runner::new(update).source(Box::new(source));
    match posix::source(&traces.socket, &traces.query, traces.begin) {
        Ok(traces) => runner = runner.source(Box::new(traces)),
        Err(error) => complain(error.to_string()),
    }
    let runner = runner.complaints(|complaint| shared.lock().complaints.push(complaint.0));
    let finished = runner.run(wait, |_| loop {
        let mut state = shared.lock();
        if std::mem::take(&mut state.wants_budget) {
            state.budget = budget.outcome().map(|it| as_json(&it));
            shared.changed.notify_all();
        }
        if state.wants_end {
            return Some(());
        }
        if state.ready.is_none() || !state.has_backlog {
            return None;
        }
        drop(state);
        budget.wait(DECISIONS, sleep);
    });
    let mut collector = finished.update.collector;
    let (outcome, problems) = budget.finish(finished.ended);
    problems.into_iter().for_each(complain);
    if let Some(outcome) = outcome {
        shared.lock().budget = Some(as_json(&outcome));
    }
    let mut state = shared.lock();
    state.last = collector.has_something().then(|| collector.take());
    state.has_ended = true;
    drop(state);
    shared.changed.notify_all();
}

fn as_json(outcome: &BudgetOutcome) -> String {
    serde_json::to_string(outcome).unwrap_or_default()
}
