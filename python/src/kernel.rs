// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kernel monitors: what the kernel does with chosen threads, read batch by batch.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Inbox, SourceError, StreamDescriptor, StreamId, Timestamp,
};
use overhear_kernel as kernel;
use overhear_kernel::{ActiveBackend, Backend, SelectError};
use pyo3::prelude::{pyclass, pyfunction, pymethods, Bound, PyErr, PyResult, Python};
use pyo3::types::PyDict;

use crate::collect::Collector;
use crate::error::KernelError;

/// What a monitor delivers becomes rows of the collector's blocks.
#[derive(Debug, Default)]
struct Rows {
    collector: Collector,
    streams: BTreeMap<StreamId, (Arc<StreamDescriptor>, Timestamp)>,
    complaints: Vec<String>,
}

impl Inbox for Rows {
    fn open(&mut self, descriptor: Arc<StreamDescriptor>) {
        self.collector.open(&descriptor);
        self.streams
            .insert(descriptor.id, (descriptor, Timestamp::ZERO));
    }

    fn element(&mut self, id: StreamId, sequence: u64, time: Timestamp, payload: &[u8]) {
        let Some((stream, last)) = self.streams.get_mut(&id) else {
            return;
        };
        *last = time;
        self.collector.element(&ElementView {
            stream,
            sequence,
            time,
            payload,
        });
    }

    fn gap(&mut self, id: StreamId, first: u64, missed: u64, cause: GapCause) {
        let Some((stream, last)) = self.streams.get(&id) else {
            return;
        };
        let gap = Gap {
            stream: id,
            first,
            missed,
            from: *last,
            // The element after it may not exist yet.
            to: *last,
            cause,
        };
        self.collector.gap(stream, &gap);
    }

    fn close(&mut self, _: StreamId) {}

    fn complain(&mut self, error: SourceError) {
        self.complaints.push(error.0);
    }
}

struct State {
    monitor: kernel::KernelMonitor,
    rows: Rows,
}

/// A kernel monitor; see `overhear.KernelMonitor`.
#[pyclass(module = "overhear._core", frozen)]
pub(crate) struct KernelMonitor {
    state: Mutex<State>,
}

fn failed(error: impl std::fmt::Display) -> PyErr {
    KernelError::new_err(error.to_string())
}

/// The names of the kernel sensors, with a phrase about each.
#[pyfunction]
pub(crate) fn kernel_sensors() -> Vec<(&'static str, &'static str)> {
    let sensors = kernel::Sensor::all();
    sensors
        .map(|sensor| (sensor.name(), sensor.description()))
        .collect()
}

/// The descriptor of a socket of Python's.
fn borrow<'a>(socket: i32) -> PyResult<BorrowedFd<'a>> {
    if socket < 0 {
        return Err(failed("the socket is closed"));
    }
    // SAFETY: not negative; `_kernel.py` gives the number of a socket object that is open, and that
    // it keeps until the call returns.
    Ok(unsafe { BorrowedFd::borrow_raw(socket) })
}

impl KernelMonitor {
    fn of(monitor: kernel::KernelMonitor) -> Self {
        Self {
            state: Mutex::new(State {
                monitor,
                rows: Rows::default(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside leaves the monitor as it was before or after the call.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls with the interpreter free: another thread may have the monitor meanwhile.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl Send + FnOnce(&mut kernel::KernelMonitor) -> Result<T, SelectError>,
    ) -> PyResult<T> {
        py.detach(|| call(&mut self.lock().monitor)).map_err(failed)
    }
}

#[pymethods]
impl KernelMonitor {
    #[new]
    fn new(
        py: Python<'_>,
        buffer_bytes: Option<u64>,
        sensors: Vec<String>,
        backend: &str,
        dedicated_programs: bool,
    ) -> PyResult<Self> {
        let backend_choice = match backend {
            "any" => Backend::Auto,
            "bpf" => Backend::Bpf,
            "perf" => Backend::Perf,
            _ => {
                let message = format!("the backend is any, bpf or perf, not {backend:?}");
                return Err(failed(message));
            }
        };
        let sensors: Result<Vec<kernel::Sensor>, _> =
            sensors.iter().map(|name| name.parse()).collect();
        let mut builder = kernel::KernelMonitor::builder()
            .backend(backend_choice)
            .sensors(sensors.map_err(failed)?);
        if let Some(bytes) = buffer_bytes {
            builder = builder.buffer_bytes(bytes);
        }
        if dedicated_programs {
            builder = builder.dedicated_programs();
        }
        let monitor = py.detach(|| builder.create()).map_err(failed)?;
        let status = monitor.status().map_err(failed)?;
        if status.active == ActiveBackend::None {
            return Err(failed(&status.message));
        }
        Ok(Self::of(monitor))
    }

    /// Waits for one that is handed over to the other end of a socket.
    #[staticmethod]
    fn receive(py: Python<'_>, socket: i32) -> PyResult<Self> {
        let socket = borrow(socket)?;
        let received = py.detach(|| kernel::KernelMonitor::receive(socket));
        received.map(Self::of).map_err(failed)
    }

    /// Hands it over to whoever receives from the other end of a socket.
    fn give(&self, py: Python<'_>, socket: i32) -> PyResult<()> {
        let socket = borrow(socket)?;
        py.detach(|| self.lock().monitor.give(socket))
            .map_err(failed)
    }

    /// The backend of the kernel monitor, and the message about it.
    fn status(&self) -> PyResult<(&'static str, String)> {
        let state = self.lock();
        let status = state.monitor.status().map_err(failed)?;
        let backend = match status.active {
            ActiveBackend::Bpf => "bpf",
            ActiveBackend::Perf => "perf",
            ActiveBackend::None => "none",
        };
        Ok((backend, status.message.clone()))
    }

    fn granted_bytes(&self) -> PyResult<u64> {
        self.lock().monitor.granted_bytes().map_err(failed)
    }

    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, kernel::KernelMonitor::resume)
    }

    fn suspend(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, kernel::KernelMonitor::suspend)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, kernel::KernelMonitor::finish)
    }

    fn terminate(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, kernel::KernelMonitor::terminate)
    }

    fn thread_monitor(&self, py: Python<'_>, thread: u32, unique_id: u32) -> PyResult<()> {
        self.call(py, |monitor| monitor.thread_monitor(thread, unique_id))
    }

    fn thread_unmonitor(&self, py: Python<'_>, thread: u32) -> PyResult<()> {
        self.call(py, |monitor| monitor.thread_unmonitor(thread))
    }

    fn process_monitor(&self, py: Python<'_>, process: u32) -> PyResult<()> {
        self.call(py, |monitor| monitor.process_monitor(process))
    }

    fn cgroup_monitor(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.call(py, |monitor| monitor.cgroup_monitor(&path))
    }

    fn all_monitor(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, kernel::KernelMonitor::all_monitor)
    }

    /// What was recorded since the last call, as `Collected` gives it.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let read = || {
            let mut state = self.lock();
            let State { monitor, rows } = &mut *state;
            monitor.read(rows)?;
            Ok(rows.collector.take())
        };
        let collected = py
            .detach(read)
            .map_err(|error: SelectError| failed(error))?;
        collected.into_python(py)
    }

    /// Messages about what is damaged, since the last call.
    fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().rows.complaints)
    }
}
