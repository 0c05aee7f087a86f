// SPDX-License-Identifier: MIT OR Apache-2.0
//! The application: a program is run, recordings are evaluated, plans are admitted. Results are
//! JSON documents, those of the command line, and Python makes its objects from them: a new member
//! needs no code here.
//!
//! A run goes on in a thread of its own, which Python's signal handlers do not interrupt. The
//! calling thread waits for it and lets Python handle signals. What a handler raises, such as
//! KeyboardInterrupt, becomes a request to end; it is raised when the run has ended and the
//! recording is finished.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::time::Duration;

use overhear_event::{printable, Nanos};
use overhear_page::recorded::write_page;
use overhear_session::budget::Overhead;
use overhear_session::config::Execution;
use overhear_session::disk_limits::{parse_rate, parse_size, DiskLimits};
use overhear_session::error::{ErrorKind, SessionError as RunError};
use overhear_session::interrupts::{reaches_programs, Request, RequestQueue};
use overhear_session::metrics::ElementCost;
use overhear_session::notices::Notices;
use overhear_session::run_request::RunRequest;
use overhear_session::sampling::SamplingRequest;
use overhear_session::session::{KernelBackend, NamedSensors, Probe, Until};
use overhear_session::updates::{UpdateSpecification, Updates};
use overhear_session::{admit, calibrate, check, fit, junit, metrics, replay};
use pyo3::exceptions::{PyKeyboardInterrupt, PyValueError};
use pyo3::prelude::{pyfunction, FromPyObject, PyAnyMethods, PyErr, PyResult, Python};
use rustix::process::Signal;
use serde::Serialize;

use crate::error::SessionError;

/// How often a waiting call lets Python handle signals.
const SIGNAL_CHECK: Duration = Duration::from_millis(50);

/// The keyword arguments of `overhear.run`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RunOptions {
    out: Option<PathBuf>,
    page: bool,
    kernel: String,
    kernel_sensors: Vec<String>,
    probes: Vec<String>,
    usdt: Vec<String>,
    tracepoints: Vec<String>,
    kprobes: Vec<String>,
    kretprobes: Vec<String>,
    socket: Option<PathBuf>,
    check: Option<PathBuf>,
    junit: Option<PathBuf>,
    config: Option<PathBuf>,
    measure_wcet: bool,
    execute: bool,
    metrics: Vec<String>,
    updates: Vec<String>,
    disable_unused: bool,
    calibration: Option<PathBuf>,
    compensate: bool,
    budget: Option<f64>,
    disk_budget: Option<String>,
    max_size: Option<String>,
    until: String,
    sample: Vec<String>,
    every: Option<String>,
    per: Option<String>,
    min_interval: Option<String>,
}

/// A word of an argument, read by `read`.
fn word<T, E: ToString>(word: &str, read: impl Fn(&str) -> Result<T, E>) -> PyResult<T> {
    read(word).map_err(|error| PyValueError::new_err(error.to_string()))
}

fn words<T, E: ToString>(all: &[String], read: impl Fn(&str) -> Result<T, E>) -> PyResult<Vec<T>> {
    all.iter().map(|it| word(it, &read)).collect()
}

fn target(percent: f64) -> PyResult<Overhead> {
    let target = Overhead::from_percent(percent);
    target.map_err(|error| PyValueError::new_err(error.to_string()))
}

fn kernel_backend(name: &str) -> Result<KernelBackend, String> {
    match name {
        "auto" => Ok(KernelBackend::Auto),
        "bpf" => Ok(KernelBackend::Bpf),
        "perf" => Ok(KernelBackend::Perf),
        "off" => Ok(KernelBackend::Off),
        _ => Err(format!(
            "kernel is \"auto\", \"bpf\", \"perf\" or \"off\", not \"{name}\""
        )),
    }
}

fn until(name: &str) -> Result<Until, String> {
    match name {
        "ended" => Ok(Until::Ended),
        "all-ended" => Ok(Until::AllEnded),
        _ => Err(format!(
            "until is \"ended\" or \"all-ended\", not \"{name}\""
        )),
    }
}

const fn execution(execute: bool) -> Execution {
    match execute {
        true => Execution::Allowed,
        false => Execution::Disabled,
    }
}

fn specifications(updates: &[String]) -> Vec<UpdateSpecification> {
    let updates = updates.iter();
    updates.map(|it| UpdateSpecification::parse(it)).collect()
}

impl RunOptions {
    fn limits(&self) -> PyResult<DiskLimits> {
        let rate = self.disk_budget.as_deref().map(|it| word(it, parse_rate));
        let size = self.max_size.as_deref().map(|it| word(it, parse_size));
        Ok(DiskLimits {
            rate: rate.transpose()?,
            max_bytes: size.transpose()?,
        })
    }

    fn samplers(&self) -> PyResult<Vec<SamplingRequest>> {
        let request = SamplingRequest::of_options(
            &self.sample,
            self.every.as_deref(),
            self.per.as_deref(),
            self.min_interval.as_deref(),
        );
        let request = request.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(request.into_iter().collect())
    }

    fn request(&self, command: Vec<OsString>) -> PyResult<RunRequest> {
        let named = words(&self.kernel_sensors, NamedSensors::from_str)?;
        let probes = [
            words(&self.probes, Probe::function)?,
            words(&self.usdt, Probe::usdt)?,
            words(&self.tracepoints, Probe::tracepoint)?,
            words(&self.kprobes, Probe::kernel_function)?,
            words(&self.kretprobes, Probe::kernel_return)?,
        ];
        Ok(RunRequest {
            command,
            out: self.out.clone(),
            kernel: word(&self.kernel, kernel_backend)?,
            kernel_sensors: NamedSensors::joined(&named),
            probes: probes.concat(),
            socket: self.socket.clone(),
            check: self.check.clone(),
            config: self.config.clone(),
            measure_wcet: self.measure_wcet,
            execution: execution(self.execute),
            metrics: self.metrics.clone(),
            updates: specifications(&self.updates),
            disable_unused: self.disable_unused,
            calibration: self.calibration.clone(),
            compensate: self.compensate,
            budget: self.budget.map(target).transpose()?,
            limits: self.limits()?,
            until: word(&self.until, until)?,
            samplers: self.samplers()?,
        })
    }
}

/// The exception for an error of the application.
fn raised(py: Python<'_>, error: RunError) -> PyErr {
    let kind = error.kind.name();
    let error = SessionError::new_err(error.message);
    match error.value(py).setattr("kind", kind) {
        Ok(()) => error,
        Err(other) => other,
    }
}

fn json(document: &impl Serialize) -> Result<String, RunError> {
    serde_json::to_string(document).map_err(|error| {
        RunError::new(
            ErrorKind::Unavailable,
            format!("cannot write the result as JSON: {error}"),
        )
    })
}

/// Lets other threads of Python run while a result is computed.
fn computed<T: Serialize>(
    py: Python<'_>,
    compute: impl FnOnce() -> Result<T, RunError> + Send,
) -> PyResult<String> {
    let result = py.detach(|| compute().and_then(|document| json(&document)));
    result.map_err(|error| raised(py, error))
}

/// What came of a run: the report as JSON, and warnings.
type Ran = (String, Vec<String>);

/// Runs a program to its end.
#[pyfunction]
pub(crate) fn run(py: Python<'_>, command: Vec<OsString>, options: RunOptions) -> PyResult<Ran> {
    let request = options.request(command)?;
    let (page, junit) = (options.page, options.junit);
    let requests = RequestQueue::default();
    let queue = requests.clone();
    let (sender, mut receiver) = channel();
    let thread = std::thread::Builder::new().name("oh-session".to_owned());
    let thread = thread.spawn(move || {
        // The receiver is there until the result came.
        let _ = sender.send(run_session(request, queue, page, junit.as_deref()));
    })?;
    let mut interrupt: Option<PyErr> = None;
    let result = loop {
        let received;
        (received, receiver) = py.detach(move || (receiver.recv_timeout(SIGNAL_CHECK), receiver));
        match received {
            Ok(result) => break Some(result),
            Err(RecvTimeoutError::Disconnected) => break None,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(error) = py.check_signals() {
            requests.push(request_of(py, &error));
            interrupt.get_or_insert(error);
        }
    };
    if let Err(panic) = py.detach(|| thread.join()) {
        std::panic::resume_unwind(panic);
    }
    match (interrupt, result) {
        (Some(error), _) => Err(error),
        (None, Some(result)) => result.map_err(|error| raised(py, error)),
        (None, None) => unreachable!("a session that has not panicked has sent its result"),
    }
}

/// The request to end that an exception of a signal handler stands for.
fn request_of(py: Python<'_>, error: &PyErr) -> Request {
    match error.is_instance_of::<PyKeyboardInterrupt>(py) {
        true => Request {
            signal: Signal::INT,
            reached_program: reaches_programs(),
        },
        false => Request {
            signal: Signal::TERM,
            reached_program: false,
        },
    }
}

fn run_session(
    request: RunRequest,
    requests: RequestQueue,
    page: bool,
    junit: Option<&Path>,
) -> Result<Ran, RunError> {
    let mut warnings = Vec::new();
    let run = request.resolve(|warning| warnings.push(warning.to_owned()))?;
    if junit.is_some() && !run.has_constraints {
        let message = "junit needs verdicts; name constraints by check or config";
        return Err(RunError::new(ErrorKind::Usage, message));
    }
    let session = run.session.requests(Some(requests));
    let mut outcome = session.notices(Notices::new(print_notice)).run(&mut [])?;
    let json = json(&outcome.report)?;
    if let (Some(file), Some(check)) = (junit, &outcome.report.check) {
        let written = junit::write(check, &outcome.report.command.join(" "), file);
        warnings.extend(written.err().map(|error| error.message));
    }
    if page {
        match write_page(&mut outcome) {
            Ok(written) => warnings.extend(written.into_iter().flat_map(|page| page.left_out)),
            Err(error) => warnings.push(error.message),
        }
    }
    Ok((json, warnings))
}

/// Prints a message of a running session.
fn print_notice(message: &str) {
    let line = format!("overhear: {}\n", printable(message));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The report of a recording.
#[pyfunction]
pub(crate) fn report(
    py: Python<'_>,
    directory: PathBuf,
    updates: Vec<String>,
    calibration: Option<PathBuf>,
    compensate: bool,
) -> PyResult<String> {
    computed(py, || {
        let calibration = calibration.map(|file| calibrate::load_calibration(Some(&file)));
        let options = replay::ReplayOptions {
            updates: Updates::load(&specifications(&updates))?,
            calibration: calibration.transpose()?.flatten(),
            compensate,
        };
        replay::read_report_with(&directory, options)
    })
}

/// The verdicts on a recording.
#[pyfunction(name = "check")]
pub(crate) fn check_recording(
    py: Python<'_>,
    directory: PathBuf,
    config: PathBuf,
    junit: Option<PathBuf>,
) -> PyResult<String> {
    computed(py, || {
        let report = check::check(&directory, &config)?;
        if let Some(file) = &junit {
            junit::write(&report, &directory.display().to_string(), file)?;
        }
        Ok(report)
    })
}

/// The metrics of a recording. Without `element_cost_ns` its calibration has the costs.
#[pyfunction(name = "metrics")]
pub(crate) fn metrics_of(
    py: Python<'_>,
    directory: PathBuf,
    names: Vec<String>,
    config: Option<PathBuf>,
    element_cost_ns: Option<u64>,
    compensate: bool,
    measurements: bool,
) -> PyResult<String> {
    computed(py, || {
        let selected = metrics::selected(&names, config.as_deref())?;
        let cost = element_cost_ns.map_or(ElementCost::Calibrated, |length| {
            ElementCost::Length(Nanos::from_ns(length))
        });
        metrics::metrics(&directory, selected, cost, compensate, measurements)
    })
}

/// The admission of a plan.
#[pyfunction(name = "admit")]
pub(crate) fn admit_plan(py: Python<'_>, config: PathBuf, execute: bool) -> PyResult<String> {
    computed(py, || admit::admit(&config, execution(execute)))
}

/// The streams that cover a recorded sensor.
#[pyfunction(name = "fit_rate")]
pub(crate) fn fit_sensor(
    py: Python<'_>,
    directory: PathBuf,
    sensor: &str,
    period_ns: Option<u64>,
) -> PyResult<String> {
    let period = period_ns.map(Nanos::from_ns);
    computed(py, || fit::fit(&directory, sensor, period))
}
