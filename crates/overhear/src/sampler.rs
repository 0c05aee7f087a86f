// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samplers in programs: counters of the calling thread, at points of the program.

mod core;
mod dynamic;

use overhear_event::{Nanos, Rate, SchemaError};
use overhear_sampling::counters::{CounterError, CounterEvent, MAX_COUNTERS};

use crate::locked::Locked;
use crate::sensor::SensorError;
use core::{Core, Request};

pub use dynamic::{DynamicSampler, SamplerRequest, SamplerThreadError};

/// Why a sampler cannot be registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterSamplerError {
    /// A counter cannot be used.
    #[error(transparent)]
    Counter(#[from] CounterError),
    /// The names of two quantities are equal, or a name is too long.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The stream cannot be made.
    #[error(transparent)]
    Sensor(#[from] SensorError),
}

/// Samples N counters of the thread that registered it.
///
/// An element has the thread, the CPU, the duration, and what was counted since the previous sample
/// of the same kind: [`sample`](Self::sample) divides the thread's time, and
/// [`job_end`](Self::job_end) or [`job`](Self::job) divides it into jobs. The two kinds are
/// independent of each other, so a job's counts are complete even if samples were taken meanwhile.
///
/// A sample allocates nothing and takes no lock. Its counters are read by `rdpmc` without a system
/// call where CPU and kernel permit it ([`uses_rdpmc`](Self::uses_rdpmc)), else by one `read`.
///
/// The settings can be constants, so that a mistake in their number or types is found when the
/// program is compiled:
///
/// ```
/// use overhear::{Nanos, Sampler, SamplerBuilder};
///
/// const DECODER: SamplerBuilder<'static, 2> = Sampler::builder("decoder")
///     .counters(["task-clock", "page-faults"])
///     .every(Nanos::from_ms(1));
///
/// let mut sampler = DECODER.register()?;
/// for frame in 0..3 {
///     let job = sampler.job();
///     # let _ = frame;
///     // decode(frame);
///     drop(job);
/// }
/// assert_eq!(sampler.written(), 3);
/// # Ok::<(), overhear::RegisterSamplerError>(())
/// ```
///
/// A sampler stays in its thread, because counters belong to a thread:
///
/// ```compile_fail,E0277
/// let mut sampler = overhear::Sampler::builder("x").counters(["cycles"]).register().unwrap();
/// std::thread::spawn(move || sampler.sample());
/// ```
#[derive(Debug)]
pub struct Sampler<const N: usize>(Locked<Core<N>>);

impl Sampler<0> {
    /// Settings of a sampler with this id: what it samples.
    #[must_use]
    pub const fn builder(id: &str) -> SamplerBuilder<'_, 0> {
        SamplerBuilder {
            id,
            instance: "",
            counters: [],
            every: Nanos::ZERO,
            rate: None,
            capacity: 0,
            user_only: false,
            skip_missing: false,
        }
    }
}

impl<const N: usize> Sampler<N> {
    /// Takes a sample, unless the last one is younger than the period or the sampler is switched
    /// off. Returns whether a sample was taken.
    #[inline]
    pub fn sample(&mut self) -> bool {
        self.0.sample()
    }

    /// Begins a job, which ends where the value is dropped.
    #[inline]
    pub fn job(&mut self) -> Job<'_, N> {
        self.0.begin_job();
        Job(self)
    }

    /// Ends a job: takes a sample with what was counted since the previous job's end, or since the
    /// registration. Returns whether a sample was taken. Contains [`job_end`](crate::job_end).
    ///
    /// A job that began while the sampler was switched off gets no sample.
    #[inline]
    pub fn job_end(&mut self) -> bool {
        self.0.end_job()
    }

    /// Whether the sampler is switched on. Unlike
    /// [`Sensor::is_enabled`](crate::Sensor::is_enabled) the call counts nothing.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.0.is_enabled()
    }

    /// Whether the counters are read without a system call.
    #[must_use]
    pub fn uses_rdpmc(&self) -> bool {
        self.0.uses_rdpmc()
    }

    /// Whether the counters count in user mode only: it was demanded, or the kernel does not permit
    /// more.
    #[must_use]
    pub fn excludes_kernel(&self) -> bool {
        self.0.excludes_kernel()
    }

    /// Whether the sampler's buffers and its stream's memory are locked, so that a sample causes no
    /// page fault. False if the limit of locked memory (`ulimit -l`) is too low.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.0.is_locked() && self.0.is_stream_locked()
    }

    /// Bytes of the sampler's own memory, besides its stream.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Samples that were published.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.0.written()
    }

    /// Samples that could not be taken, because the kernel had taken the counters away for a group
    /// of a whole CPU.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.0.failed()
    }

    /// The counters that were left out, with the reasons: see [`SamplerBuilder::skip_missing`].
    #[must_use]
    pub fn missing(&self) -> &[CounterError] {
        self.0.missing()
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.stream().is_connected()
    }

    /// Why no monitor can read the samples; `None` if a directory owns the stream.
    #[must_use]
    pub fn not_connected_reason(&self) -> Option<&str> {
        self.0.stream().not_connected_reason()
    }

    /// Registers a sampler that no directory owns again, as
    /// [`Sensor::register_again`](crate::Sensor::register_again). In a forked child it also opens
    /// the counters for the calling thread; without this call, the child's samples have the counts
    /// of its parent.
    ///
    /// # Errors
    /// [`RegisterSamplerError`].
    pub fn register_again(&mut self) -> Result<bool, RegisterSamplerError> {
        self.0.register_again()
    }
}

/// A job that has begun. It ends, and a sample is taken, where the value is dropped.
#[derive(Debug)]
#[must_use = "the job ends where this value is dropped"]
pub struct Job<'a, const N: usize>(&'a mut Sampler<N>);

impl<const N: usize> Job<'_, N> {
    /// Takes a sample within the job; see [`Sampler::sample`].
    #[inline]
    pub fn sample(&mut self) -> bool {
        self.0.sample()
    }
}

impl<const N: usize> Drop for Job<'_, N> {
    #[inline]
    fn drop(&mut self) {
        self.0.job_end();
    }
}

/// See [`Sampler::builder`].
#[derive(Clone, Copy, Debug)]
pub struct SamplerBuilder<'a, const N: usize> {
    id: &'a str,
    instance: &'a str,
    counters: [&'a str; N],
    every: Nanos,
    rate: Option<Rate>,
    capacity: u64,
    user_only: bool,
    skip_missing: bool,
}

impl<'a, const N: usize> SamplerBuilder<'a, N> {
    /// Sets the counters, by the names of perf; `overhear doctor --counters` lists them.
    #[must_use]
    pub const fn counters<const M: usize>(self, counters: [&'a str; M]) -> SamplerBuilder<'a, M> {
        const { assert!(M > 0, "a sampler has at least one counter") };
        const { assert!(M <= MAX_COUNTERS, "a sampler has at most 32 counters") };
        SamplerBuilder {
            id: self.id,
            instance: self.instance,
            counters,
            every: self.every,
            rate: self.rate,
            capacity: self.capacity,
            user_only: self.user_only,
            skip_missing: self.skip_missing,
        }
    }

    /// Sets the period: a call of [`Sampler::sample`] takes a sample only if the last sample is at
    /// least this old. Ends of jobs are always sampled.
    #[must_use]
    pub const fn every(mut self, period: Nanos) -> Self {
        self.every = period;
        self
    }

    /// Which one of several samplers with the same id this is, for example one per thread.
    #[must_use]
    pub const fn instance(mut self, instance: &'a str) -> Self {
        self.instance = instance;
        self
    }

    /// Declares the rate (T, D, tau) of the samples: the directory sizes the stream by it.
    #[must_use]
    pub const fn rate(mut self, rate: Rate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the minimum number of slots.
    #[must_use]
    pub const fn capacity(mut self, samples: u64) -> Self {
        self.capacity = samples;
        self
    }

    /// Counts in user mode only. Otherwise the kernel is excluded only if the user may not count
    /// in it.
    #[must_use]
    pub const fn user_only(mut self) -> Self {
        self.user_only = true;
        self
    }

    /// Leaves out the counters that cannot be used here, instead of failing:
    /// [`Sampler::missing`] returns them with the reasons.
    #[must_use]
    pub const fn skip_missing(mut self) -> Self {
        self.skip_missing = true;
        self
    }

    /// Registers the sampler for the calling thread, opens its counters and locks its memory. Cold:
    /// allocates, calls the kernel, may wait for the directory.
    ///
    /// Without a directory the sampler works all the same, not connected: that is no error.
    ///
    /// # Errors
    /// [`RegisterSamplerError`]: a counter is unknown, not permitted, does not exist here or does
    /// not fit; or there is no memory.
    pub fn register(self) -> Result<Sampler<N>, RegisterSamplerError> {
        const { assert!(N > 0, "name the counters: `.counters([...])`") };
        let names = self.counters.iter();
        let counters: Result<Vec<_>, _> = names.map(|name| CounterEvent::parse(name)).collect();
        Core::open(Request {
            id: self.id.to_owned(),
            instance: self.instance.to_owned(),
            counters: counters?,
            every: self.every,
            rate: self.rate,
            capacity: self.capacity,
            user_only: self.user_only,
            skip_missing: self.skip_missing,
        })
        .and_then(|core| Ok(Sampler(Locked::new(core).map_err(SensorError::from)?)))
    }
}
