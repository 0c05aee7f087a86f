// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sampler whose counters are known at run time only: for bindings to other languages.

use std::num::NonZeroU64;

use overhear_event::{Nanos, Rate};
use overhear_sampling::counters::{CounterError, CounterEvent, MAX_COUNTERS};
use overhear_stream::Switch;

use super::core::{Core, Request};
use super::RegisterSamplerError;
use crate::locked::Locked;

/// Settings of a [`DynamicSampler`]; see [`SamplerBuilder`](crate::SamplerBuilder).
#[derive(Clone, Debug, Default)]
pub struct SamplerRequest {
    /// What is sampled.
    pub sampler: String,
    /// Which one of several samplers with the same id this is.
    pub instance: String,
    /// Names of counters.
    pub counters: Vec<String>,
    /// The least time between a sample and the next call of `sample` that takes one.
    pub every: Nanos,
    /// The declared rate.
    pub rate: Option<Rate>,
    /// The minimum number of slots; 0: the directory decides.
    pub capacity: u64,
    /// Count in user mode only.
    pub user_only: bool,
    /// Leave out counters that cannot be used here.
    pub skip_missing: bool,
}

/// A call came from another thread than the one that registered the sampler. No sample was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sampler belongs to another thread; register one in each thread")]
pub struct SamplerThreadError;

/// A [`Sampler`](crate::Sampler) for bindings: the number of its counters is a value, and each call
/// checks the calling thread.
#[derive(Debug)]
pub struct DynamicSampler {
    core: Locked<Core<MAX_COUNTERS>>,
    // The thread that the counters count; no other thread ever has this number.
    owner: NonZeroU64,
}

// SAFETY: the only part that is bound to a thread are its counters. They are read by `sample`,
// `begin_job` and `end_job`, which refuse other threads. Dropping them closes descriptors and
// unmaps pages of the process.
unsafe impl Send for DynamicSampler {}

impl DynamicSampler {
    /// Registers the sampler for the calling thread. Cold, like
    /// [`SamplerBuilder::register`](crate::SamplerBuilder::register).
    ///
    /// # Errors
    /// [`RegisterSamplerError`].
    pub fn register(request: SamplerRequest) -> Result<Self, RegisterSamplerError> {
        let names = request.counters.iter();
        let events: Result<Vec<_>, _> = names.map(|name| CounterEvent::parse(name)).collect();
        let core = Core::open(Request {
            id: request.sampler,
            instance: request.instance,
            counters: checked(events?)?,
            every: request.every,
            rate: request.rate,
            capacity: request.capacity,
            user_only: request.user_only,
            skip_missing: request.skip_missing,
        })?;
        Ok(Self {
            core: Locked::new(core).map_err(crate::SensorError::from)?,
            owner: crate::thread::identify().number,
        })
    }

    #[inline(always)]
    fn check(&self) -> Result<(), SamplerThreadError> {
        match crate::thread::identify().number == self.owner {
            true => Ok(()),
            false => Err(SamplerThreadError),
        }
    }

    /// See [`Sampler::sample`](crate::Sampler::sample).
    ///
    /// # Errors
    /// [`SamplerThreadError`].
    #[inline]
    pub fn sample(&mut self) -> Result<bool, SamplerThreadError> {
        self.check()?;
        Ok(self.core.sample())
    }

    /// Begins a job: what was counted before does not belong to it.
    ///
    /// # Errors
    /// [`SamplerThreadError`].
    #[inline]
    pub fn begin_job(&mut self) -> Result<(), SamplerThreadError> {
        self.check()?;
        self.core.begin_job();
        Ok(())
    }

    /// See [`Sampler::job_end`](crate::Sampler::job_end).
    ///
    /// # Errors
    /// [`SamplerThreadError`].
    #[inline]
    pub fn end_job(&mut self) -> Result<bool, SamplerThreadError> {
        self.check()?;
        Ok(self.core.end_job())
    }

    /// See [`Sampler::register_again`](crate::Sampler::register_again). In a forked child the
    /// sampler belongs to the calling thread afterwards.
    ///
    /// # Errors
    /// [`RegisterSamplerError`].
    pub fn register_again(&mut self) -> Result<bool, RegisterSamplerError> {
        let is_copy = self.core.is_copy();
        let is_connected = self.core.register_again()?;
        if is_copy {
            self.owner = crate::thread::identify().number;
        }
        Ok(is_connected)
    }

    /// Samples that were published.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.core.written()
    }

    /// See [`Sampler::failed`](crate::Sampler::failed).
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.core.failed()
    }

    /// See [`Sampler::missing`](crate::Sampler::missing).
    #[must_use]
    pub fn missing(&self) -> &[CounterError] {
        self.core.missing()
    }

    /// See [`Sampler::uses_rdpmc`](crate::Sampler::uses_rdpmc).
    #[must_use]
    pub fn uses_rdpmc(&self) -> bool {
        self.core.uses_rdpmc()
    }

    /// Whether the sampler is switched on.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.core.is_enabled()
    }

    /// Whether a directory owns the stream, so that monitors can read it.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.core.stream().is_connected()
    }

    /// Why no monitor can read the samples; `None` if a directory owns the stream.
    #[must_use]
    pub fn not_connected_reason(&self) -> Option<&str> {
        self.core.stream().not_connected_reason()
    }

    /// [`Self::sample`] at this time, of a sampler that is not switched off.
    #[inline]
    pub(crate) fn sample_at(&mut self, now_ns: u64) -> Result<bool, SamplerThreadError> {
        self.check()?;
        Ok(self.core.sample_at(now_ns))
    }

    /// See [`Core::condition`].
    pub(crate) fn condition(&self) -> (Switch, u64, u64) {
        self.core.condition()
    }
}

/// A list that a group can have.
fn checked(events: Vec<CounterEvent>) -> Result<Vec<CounterEvent>, RegisterSamplerError> {
    match events.len() {
        1..=MAX_COUNTERS => Ok(events),
        number => Err(CounterError::Number(number).into()),
    }
}
