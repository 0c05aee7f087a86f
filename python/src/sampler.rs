// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samplers of Python programs.
//!
//! A sampler counts the thread that made it. The mutex is for the interpreter, as in `sensor.rs`;
//! calls from other threads are refused by the sampler itself.

use std::sync::{Mutex, MutexGuard, PoisonError};

use overhear::{DynamicSampler, Nanos, Rate, SamplerRequest};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::{pyclass, pymethods, PyErr, PyResult, Python};

use crate::error::SensorError;
use crate::sensor::{are_disabled, DISABLED};

/// The sampler, unless the environment disables it.
enum State {
    Disabled,
    Open(Box<DynamicSampler>),
}

/// Samples the counters of the thread that made it.
#[pyclass(module = "overhear._core", subclass, frozen)]
pub(crate) struct Sampler {
    id: String,
    // None once it is unregistered.
    state: Mutex<Option<State>>,
}

impl Sampler {
    fn lock(&self) -> MutexGuard<'_, Option<State>> {
        // A panic while it was held is a bug, but the sampler's state changes in a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cold]
    fn error(&self, reason: &dyn std::fmt::Display) -> PyErr {
        SensorError::new_err(format!("sampler `{}`: {reason}", self.id))
    }

    /// Runs a call of the sampler; `disabled` is the result while samplers are disabled.
    fn call<T, E: std::fmt::Display>(
        &self,
        disabled: T,
        call: impl FnOnce(&mut DynamicSampler) -> Result<T, E>,
    ) -> PyResult<T> {
        match self.lock().as_mut() {
            None => Err(self.error(&"it was unregistered; make a new one")),
            Some(State::Disabled) => Ok(disabled),
            Some(State::Open(sampler)) => call(sampler).map_err(|error| self.error(&error)),
        }
    }

    /// A property of the sampler; `otherwise` if there is none.
    fn get<T>(&self, otherwise: T, get: impl FnOnce(&DynamicSampler) -> T) -> T {
        match self.lock().as_ref() {
            Some(State::Open(sampler)) => get(sampler),
            _ => otherwise,
        }
    }
}

#[pymethods]
impl Sampler {
    /// The Python class `overhear.Sampler` checks and completes the arguments.
    #[new]
    #[pyo3(signature = (id, counters, instance, every_ns, rate, capacity, user_only, skip_missing))]
    #[expect(clippy::too_many_arguments, reason = "called by one line of Python")]
    fn new(
        id: String,
        counters: Vec<String>,
        instance: String,
        every_ns: u64,
        rate: Option<(u64, u64, u64)>,
        capacity: u64,
        user_only: bool,
        skip_missing: bool,
    ) -> PyResult<Self> {
        let rate = rate.map(|(period, distance, jitter)| {
            let [period, distance, jitter] = [period, distance, jitter].map(Nanos::from_ns);
            Rate::new(period, distance, jitter)
        });
        let rate = rate
            .transpose()
            .map_err(|error| PyValueError::new_err(format!("sampler `{id}`: {error}")))?;
        let state = match are_disabled() {
            true => State::Disabled,
            // In this thread, which is the one that is counted.
            false => {
                let sampler = DynamicSampler::register(SamplerRequest {
                    sampler: id.clone(),
                    instance,
                    counters,
                    every: Nanos::from_ns(every_ns),
                    rate,
                    capacity,
                    user_only,
                    skip_missing,
                });
                let sampler = sampler
                    .map_err(|error| SensorError::new_err(format!("sampler `{id}`: {error}")))?;
                State::Open(Box::new(sampler))
            }
        };
        Ok(Self {
            id,
            state: Mutex::new(Some(state)),
        })
    }

    /// sample()
    ///
    /// Takes a sample, unless the last one is younger than the period or the sampler is switched
    /// off. Returns whether a sample was taken.
    ///
    /// Raises SensorError in another thread than the one that made the sampler, and after
    /// unregister().
    fn sample(&self) -> PyResult<bool> {
        self.call(false, DynamicSampler::sample)
    }

    /// begin_job()
    ///
    /// Begins a job: what was counted before does not belong to it. See `job`.
    fn begin_job(&self) -> PyResult<()> {
        self.call((), DynamicSampler::begin_job)
    }

    /// end_job()
    ///
    /// Ends a job: takes a sample with what was counted since the job's begin, or since the end of
    /// the previous job. Returns whether a sample was taken.
    fn end_job(&self) -> PyResult<bool> {
        self.call(false, DynamicSampler::end_job)
    }

    /// register_again()
    ///
    /// Registers the sampler again if it is not connected, and returns whether it is connected now.
    /// In a forked child it also opens the counters for the calling thread.
    fn register_again(&self) -> PyResult<bool> {
        self.call(false, DynamicSampler::register_again)
    }

    /// unregister()
    ///
    /// Takes the sampler out of the directory and closes its counters. May be called again.
    fn unregister(&self, py: Python<'_>) {
        let state = self.lock().take();
        py.detach(|| drop(state));
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[getter]
    fn is_connected(&self) -> bool {
        self.get(false, DynamicSampler::is_connected)
    }

    /// Whether the sampler is switched on.
    #[getter]
    fn is_enabled(&self) -> bool {
        self.get(false, DynamicSampler::is_enabled)
    }

    /// Whether the counters are read without a system call.
    #[getter]
    fn uses_rdpmc(&self) -> bool {
        self.get(false, DynamicSampler::uses_rdpmc)
    }

    /// How many samples were taken.
    #[getter]
    fn written(&self) -> u64 {
        self.get(0, DynamicSampler::written)
    }

    /// How many samples could not be taken, because the kernel had taken the counters away.
    #[getter]
    fn failed(&self) -> u64 {
        self.get(0, DynamicSampler::failed)
    }

    /// Why counters were left out, one sentence for each.
    #[getter]
    fn missing(&self) -> Vec<String> {
        self.get(Vec::new(), |sampler| {
            let reasons = sampler.missing().iter().map(ToString::to_string);
            reasons.collect()
        })
    }

    /// Why the sampler is not connected, as a message; None if it is.
    #[getter]
    fn not_connected_reason(&self) -> Option<String> {
        match self.lock().as_ref() {
            None => Some(format!("sampler `{}` was unregistered", self.id)),
            Some(State::Disabled) => Some(DISABLED.to_owned()),
            Some(State::Open(sampler)) => sampler.not_connected_reason().map(str::to_owned),
        }
    }
}

/// Marks the end of a job of the calling thread: see `overhear.job_end`.
#[pyo3::pyfunction]
pub(crate) fn job_end() {
    overhear::job_end();
}
