// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`KernelSampler`]: samples of threads that BPF programs take.
//!
//! A sampler is described here and resolved before anything is loaded: names of quantities to
//! accounts and counters, functions and variables to places ([`ResolvedSampler`]).
//! `bpf/samples.bpf.c` takes the samples.

mod job_end;
mod quantity;

use std::sync::Arc;

use overhear_event::{Nanos, SampleSchema, TypeSchema};
use overhear_sampling::counters::{CounterError, CounterEvent};

use crate::probe::ResolvedProbe;
use crate::{Probe, ProbeError};

pub use job_end::JobEndPoint;
pub(crate) use job_end::{JobEndSet, ResolvedJobEnds};
pub(crate) use quantity::{ThreadQuantity, MAX_COUNTERS, MAX_QUANTITIES};

/// Elements of each ring unless [`KernelSampler::elements`] was called.
const DEFAULT_ELEMENTS: u32 = 8_192;

/// A point of the execution flow of a thread at which samples are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlowPoint {
    /// The thread leaves the CPU.
    Switch,
    /// The thread is woken.
    WakeUp,
    /// A system call begins.
    SystemCallEntry,
    /// A system call ends.
    SystemCallExit,
    /// A function of a program begins or returns.
    Function(Probe),
}

/// A sampler in the kernel: what it samples of each followed thread, and when.
///
/// Counts are differences to the previous sample of the same thread. Each thread has a last sample
/// at its end, so the sum of a count over all samples of a thread is its total.
///
/// ```
/// use overhear_event::{Nanos, SampleLayout};
/// use overhear_kernel::{FlowPoint, JobEndPoint, KernelSampler};
///
/// let sampler = KernelSampler::new("jobs")
///     .quantities(["cpu-time", "wait-time", "page-faults"])
///     .job_end(JobEndPoint::Sleep);
/// let schema = sampler.schema()?;
/// assert_eq!(SampleLayout::of(&schema).expect("a sample").quantities().len(), 3);
///
/// let at_switches = KernelSampler::new("switches")
///     .quantities(["cpu-time"])
///     .at(FlowPoint::Switch)
///     .least_distance(Nanos::from_us(100));
/// assert!(at_switches.quantities(["lunch"]).schema().is_err());
/// # Ok::<(), overhear_kernel::SamplerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSampler {
    name: String,
    quantities: Vec<String>,
    points: Vec<FlowPoint>,
    job_ends: Vec<JobEndPoint>,
    least_distance: Nanos,
    period: Option<Nanos>,
    elements: u32,
}

impl KernelSampler {
    /// A sampler with this name of its streams. It takes a sample at the end of each thread.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            quantities: Vec::new(),
            points: Vec::new(),
            job_ends: Vec::new(),
            least_distance: Nanos::ZERO,
            period: None,
            elements: DEFAULT_ELEMENTS,
        }
    }

    /// Adds quantities, by the names that a user writes.
    #[must_use]
    pub fn quantities(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.quantities.extend(names.into_iter().map(Into::into));
        self
    }

    /// Takes samples at a point of the execution flow as well.
    #[must_use]
    pub fn at(mut self, point: FlowPoint) -> Self {
        self.points.push(point);
        self
    }

    /// At a point, takes a sample only if the last one of the thread at a point is older.
    #[must_use]
    pub fn least_distance(mut self, distance: Nanos) -> Self {
        self.least_distance = distance;
        self
    }

    /// Takes samples of running threads once in a period as well, except after a sample at a point
    /// within the period.
    #[must_use]
    pub fn timer(mut self, period: Nanos) -> Self {
        self.period = Some(period);
        self
    }

    /// Takes a sample where a job of a thread ends.
    #[must_use]
    pub fn job_end(mut self, end: JobEndPoint) -> Self {
        self.job_ends.push(end);
        self
    }

    /// Elements of each ring, one ring per CPU: a power of two from 8 to 65,536. 8192 by default.
    #[must_use]
    pub fn elements(mut self, elements: u32) -> Self {
        self.elements = elements;
        self
    }

    pub(crate) const fn ring_elements(&self) -> u32 {
        self.elements
    }

    /// The name of its streams.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The schema of its samples.
    ///
    /// # Errors
    /// [`SamplerError`] if a quantity is not known.
    pub fn schema(&self) -> Result<TypeSchema, SamplerError> {
        self.schema_of(&self.known_quantities()?)
    }

    fn known_quantities(&self) -> Result<Vec<ThreadQuantity>, SamplerError> {
        if self.quantities.is_empty() || self.quantities.len() > MAX_QUANTITIES {
            return Err(SamplerError::Number {
                given: self.quantities.len(),
            });
        }
        ThreadQuantity::parse_all(&self.quantities)
    }

    fn schema_of(&self, quantities: &[ThreadQuantity]) -> Result<TypeSchema, SamplerError> {
        let schema = quantities.iter().fold(SampleSchema::new(), |schema, it| {
            it.quantity().append_to(schema)
        });
        schema.build().map_err(|error| SamplerError::Schema {
            name: self.name.clone(),
            why: error.to_string(),
        })
    }

    /// Finds everything that the names mean.
    pub(crate) fn resolve(&self) -> Result<ResolvedSampler, SamplerError> {
        let quantities = self.known_quantities()?;
        let schema = Arc::new(self.schema_of(&quantities)?);
        let probe = |probe: &Probe| match probe.is_function() {
            true => probe.resolve().map_err(SamplerError::Probe),
            false => Err(SamplerError::NoFunction {
                probe: probe.sensor(),
            }),
        };
        let functions = self.points.iter().filter_map(|point| match point {
            FlowPoint::Function(function) => Some(probe(function)),
            _ => None,
        });
        let functions = functions.collect::<Result<_, _>>()?;
        let job_ends = JobEndSet::resolve(&self.job_ends, probe)?;
        Ok(ResolvedSampler {
            name: self.name.clone(),
            quantities,
            schema,
            at_switches: self.points.contains(&FlowPoint::Switch),
            at_wake_ups: self.points.contains(&FlowPoint::WakeUp),
            at_entries: self.points.contains(&FlowPoint::SystemCallEntry),
            at_exits: self.points.contains(&FlowPoint::SystemCallExit),
            functions,
            job_ends,
            least_distance: self.least_distance,
            period: self.period,
            elements: self.elements,
        })
    }
}

/// A sampler whose names have a meaning. It does not prove that the kernel permits it.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedSampler {
    pub(crate) name: String,
    pub(crate) quantities: Vec<ThreadQuantity>,
    pub(crate) schema: Arc<TypeSchema>,
    pub(crate) at_switches: bool,
    pub(crate) at_wake_ups: bool,
    pub(crate) at_entries: bool,
    pub(crate) at_exits: bool,
    pub(crate) functions: Vec<ResolvedProbe>,
    pub(crate) job_ends: ResolvedJobEnds,
    pub(crate) least_distance: Nanos,
    pub(crate) period: Option<Nanos>,
    pub(crate) elements: u32,
}

impl ResolvedSampler {
    /// Whether there are samples at the ends of jobs, and at other points.
    pub(crate) fn has_two_series(&self) -> bool {
        let has_jobs = !self.job_ends.kinds.is_empty() || !self.job_ends.functions.is_empty();
        let others = [
            self.at_switches,
            self.at_wake_ups,
            self.at_entries,
            self.at_exits,
            self.period.is_some(),
            !self.functions.is_empty(),
        ];
        has_jobs && others.contains(&true)
    }

    /// Whether threads are sampled while they run, and their CPU time is needed then.
    pub(crate) fn samples_within_slices(&self) -> bool {
        let points = [
            self.at_wake_ups,
            self.at_entries,
            self.at_exits,
            self.period.is_some(),
        ];
        let functions = self.functions.iter().chain(&self.job_ends.functions);
        let is_within =
            points.contains(&true) || functions.count() > 0 || !self.job_ends.kinds.is_empty();
        is_within && self.quantities.iter().any(ThreadQuantity::is_cpu_time)
    }

    /// The events of the CPUs, in the order of their numbers.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &CounterEvent> {
        self.quantities.iter().filter_map(ThreadQuantity::counter)
    }
}

/// Why a sampler in the kernel is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// No such quantity.
    #[error("threads have no quantity `{name}`; {advice}")]
    Quantity {
        /// The name as given.
        name: String,
        /// What there is instead.
        advice: String,
    },
    /// Too many quantities, or none.
    #[error("{given} quantities are to be sampled; a sampler has 1 to {MAX_QUANTITIES}")]
    Number {
        /// The number.
        given: usize,
    },
    /// Too many counters.
    #[error(
        "{given} counters are to be sampled; a sampler in the kernel has at most {MAX_COUNTERS}"
    )]
    TooManyCounters {
        /// The number.
        given: usize,
    },
    /// A counter cannot be used.
    #[error("{0}")]
    Counter(CounterError),
    /// The kernel does not keep an account.
    #[error("`{name}` cannot be sampled, because this kernel is built without {option}")]
    NoAccount {
        /// The quantity.
        name: String,
        /// The option of the kernel.
        option: &'static str,
    },
    /// The fields do not make a schema.
    #[error("the sampler {name} is not possible: {why}")]
    Schema {
        /// The sampler.
        name: String,
        /// The reason.
        why: String,
    },
    /// A function is not there.
    #[error("{0}")]
    Probe(ProbeError),
    /// A probe is not at a function of a program.
    #[error("{probe} is no function of a program; name one as FILE:SYMBOL")]
    NoFunction {
        /// The probe's sensor.
        probe: String,
    },
    /// The end of jobs cannot be found.
    #[error("the end of jobs at {what} cannot be found, because {why}")]
    JobEnd {
        /// The rule, as a user writes it.
        what: String,
        /// The phrase after "because".
        why: String,
    },
    /// Two rules need the same place.
    #[error("a sampler has one futex, one descriptor and one file at which jobs end; leave one of the two rules out")]
    TwoEnds,
    /// The timer is too fast.
    #[error("the sampler {name} is to take {asked} samples per second, and the kernel permits {most}; choose a longer period{advice}")]
    TooFast {
        /// The sampler.
        name: String,
        /// Samples per second.
        asked: u64,
        /// Samples per second at most.
        most: u64,
        /// How to raise the maximum, if that is possible.
        advice: &'static str,
    },
    /// There is no BPF.
    #[error("samples at points of threads need BPF: {why}; sample in periods instead")]
    NeedsBpf {
        /// The reason.
        why: String,
    },
    /// The kernel refused.
    #[error("the sampler {name} could not be started, because {why}")]
    Refused {
        /// The sampler.
        name: String,
        /// The phrase after "because".
        why: String,
    },
}

impl SamplerError {
    /// Whether the sampler is described wrongly. Otherwise the machine or a permission lacks
    /// something.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        match self {
            Self::Quantity { .. }
            | Self::Number { .. }
            | Self::TooManyCounters { .. }
            | Self::Schema { .. }
            | Self::NoFunction { .. }
            | Self::JobEnd { .. }
            | Self::TwoEnds => true,
            Self::Counter(error) => error.is_usage(),
            Self::Probe(error) => !matches!(
                error,
                ProbeError::Refused { .. }
                    | ProbeError::NeedsBpf { .. }
                    | ProbeError::NotTraceable { .. }
            ),
            Self::TooFast { .. }
            | Self::NoAccount { .. }
            | Self::NeedsBpf { .. }
            | Self::Refused { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{FlowPoint, JobEndPoint, KernelSampler, SamplerError};
    use crate::Probe;

    #[test]
    fn unknown_names_are_sentences() {
        let of = |names: &[&str]| KernelSampler::new("s").quantities(names.iter().copied());
        let error = of(&["cpu-tim"]).schema().unwrap_err().to_string();
        assert!(
            error.contains("`cpu-tim`") && error.contains("cpu-time"),
            "{error}"
        );
        let none = of(&[]).schema();
        assert_eq!(none, Err(SamplerError::Number { given: 0 }));
        let twice = of(&["cpu-time", "cpu-time"]).schema().unwrap_err();
        assert!(matches!(twice, SamplerError::Schema { .. }), "{twice}");
    }

    #[test]
    fn only_functions_of_programs_are_points() {
        let tracepoint = Probe::tracepoint("sched_switch").unwrap();
        let sampler = KernelSampler::new("s").quantities(["cpu-time"]);
        let at = sampler.clone().at(FlowPoint::Function(tracepoint.clone()));
        let wrong = at.resolve().unwrap_err().to_string();
        assert!(wrong.contains("is no function of a program"), "{wrong}");
        let wrong = sampler.job_end(JobEndPoint::Function(tracepoint));
        assert!(wrong.resolve().is_err());
    }
}
