// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`PeriodicSamplers`]: the thread that takes the samples of all periodic samplers.
//!
//! ```text
//! prepare: sources opened, rings allocated and locked, thread waits
//!    |
//! release --> tick --> for each sampler that is due: read, form, write --> sleep until the next
//!    |                                                                     tick
//! stop -----> the rest since the last sample, and the number of missed periods
//! ```
//!
//! The thread sleeps until absolute times, so that it does not drift. It has the lowest real-time
//! priority if the user may give it one.

use std::num::NonZeroU64;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Duration;

use overhear_event::{Inbox, Nanos, SamplePoint, Source, SourceError, Timestamp};
use rustix::thread::{clock_nanosleep_absolute, sched_getcpu, set_current_timer_slack};
use rustix::time::{clock_gettime, ClockId, Timespec};

use crate::policy::{PeriodCounter, PeriodError, Timer};
use crate::sources::Reading;
use crate::{SampleForm, SampleSource, SampleSubject, SampleWriter, SourceReadError};

/// The longest sleep: a stop is noticed after it.
const LONGEST_SLEEP: Nanos = Nanos::from_ms(20);

/// What a sampler reads for one process, or for the machine.
#[derive(Debug)]
pub struct SampleTarget {
    /// The sources of its quantities.
    pub reading: Reading,
    /// The form of its samples, which has the quantities of `reading`.
    pub form: SampleForm,
    /// The process that it samples.
    pub subject: SampleSubject,
}

/// One periodic sampler: what it reads, and where its samples go.
#[derive(Debug)]
pub struct PeriodicSampler {
    /// The period.
    pub period: Nanos,
    /// What it reads: one sample each in a period. All have the same quantities.
    pub targets: Vec<SampleTarget>,
    /// Where its samples go.
    pub writer: SampleWriter,
}

/// The result of a sampler.
#[derive(Debug, Default)]
pub struct SamplerEnd {
    /// Samples that were not taken after the last one.
    pub missed: u64,
    /// The first error of a source.
    pub error: Option<SourceReadError>,
}

/// Why samplers could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartSamplersError {
    /// Their periods do not fit together.
    #[error(transparent)]
    Period(#[from] PeriodError),
    /// There is no thread.
    #[error("cannot start the thread of the samplers: {0}")]
    Thread(std::io::Error),
}

/// The thread of all periodic samplers of a session.
#[derive(Debug)]
pub struct PeriodicSamplers {
    // Sends a release, which is answered when it was done; dropping it ends the thread.
    control: Sender<Sender<()>>,
    thread: JoinHandle<Vec<SamplerEnd>>,
}

impl PeriodicSamplers {
    /// Starts the thread, which waits for [`Self::release`].
    ///
    /// # Errors
    /// [`StartSamplersError`] if the periods are dissonant, or there is no thread.
    pub fn prepare(samplers: Vec<PeriodicSampler>) -> Result<Self, StartSamplersError> {
        let periods: Vec<Nanos> = samplers.iter().map(|sampler| sampler.period).collect();
        Timer::of(&periods)?;
        let (control, commands) = channel();
        let thread = std::thread::Builder::new()
            .name("oh-sampler".to_owned())
            .spawn(move || run(samplers, &commands))
            .map_err(StartSamplersError::Thread)?;
        Ok(Self { control, thread })
    }

    /// Reads the totals from which the first samples count, and begins the first period of all
    /// samplers. Returns when that is done, so that nothing after it is missed.
    pub fn release(&self) {
        let (reply, done) = channel();
        // A thread that has failed is reported by `stop`.
        let _ = self.control.send(reply);
        let _ = done.recv();
    }

    /// Takes the last samples, and ends. The results are in the order of the samplers.
    #[must_use]
    pub fn stop(self) -> Vec<SamplerEnd> {
        drop(self.control);
        self.thread.join().unwrap_or_default()
    }
}

/// `CLOCK_MONOTONIC`.
pub(crate) fn now() -> Timestamp {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = now.tv_sec.cast_unsigned() * 1_000_000_000;
    Timestamp::from_monotonic_ns(seconds + now.tv_nsec.cast_unsigned())
}

fn sleep_until(time: Timestamp) {
    let ns = time.as_monotonic_ns();
    let until = Timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    };
    // A signal ends the sleep early, and the next round sleeps again.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &until);
}

/// A sampler while it runs.
struct Running {
    period: Nanos,
    periods: PeriodCounter,
    targets: Vec<Target>,
    writer: SampleWriter,
    error: Option<SourceReadError>,
}

/// A target while it is sampled.
struct Target {
    target: SampleTarget,
    values: Vec<u64>,
    // Whether the sampled process has ended.
    is_over: bool,
}

fn run(samplers: Vec<PeriodicSampler>, commands: &Receiver<Sender<()>>) -> Vec<SamplerEnd> {
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    crate::locked::run_first();
    let reply = loop {
        match commands.recv_timeout(Duration::from_secs(3600)) {
            Ok(reply) => break reply,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Vec::new(),
        }
    };
    let mut running: Vec<Running> = samplers.into_iter().map(Running::begin).collect();
    let start = now();
    for sampler in &mut running {
        sampler.periods = PeriodCounter::new(start, sampler.period);
    }
    // The owner may have stopped waiting.
    let _ = reply.send(());
    while !matches!(commands.try_recv(), Err(TryRecvError::Disconnected)) {
        let live = running.iter().filter(|sampler| sampler.live() > 0);
        let due = live.map(|sampler| sampler.periods.due()).min();
        let latest = now().plus(LONGEST_SLEEP);
        sleep_until(due.unwrap_or(latest).min(latest));
        for sampler in &mut running {
            sampler.tick();
        }
    }
    running.into_iter().map(Running::end).collect()
}

impl Running {
    fn begin(sampler: PeriodicSampler) -> Self {
        let PeriodicSampler {
            period,
            targets,
            writer,
        } = sampler;
        let mut running = Self {
            period,
            periods: PeriodCounter::new(now(), period),
            targets: targets.into_iter().map(Target::new).collect(),
            writer,
            error: None,
        };
        for target in &mut running.targets {
            match target.read() {
                Ok(()) => target.target.form.begin(&target.values, now()),
                Err(error) => running.error = error.or(running.error.take()),
            }
        }
        running
    }

    /// Number of targets that have not ended.
    fn live(&self) -> usize {
        self.targets.iter().filter(|target| !target.is_over).count()
    }

    fn tick(&mut self) {
        let live = self.live() as u64;
        if live == 0 {
            return;
        }
        if let Some(expiry) = self.periods.expire(now()) {
            self.writer.miss(expiry.missed.saturating_mul(live));
            self.take();
        }
    }

    fn take(&mut self) {
        let cpu = u32::try_from(sched_getcpu()).unwrap_or(0);
        for target in self.targets.iter_mut().filter(|target| !target.is_over) {
            match target.read() {
                Ok(()) => {
                    let (point, at) = (SamplePoint::Period, now());
                    let SampleTarget { form, subject, .. } = &mut target.target;
                    let sample = form.sample(*subject, (point, cpu), &target.values, at);
                    self.writer.write(sample, at);
                }
                // The process has ended since the last sample.
                Err(None) => {}
                Err(error) => {
                    self.writer.miss(1);
                    self.error = self.error.take().or(error);
                }
            }
        }
    }

    /// The samples of the rest, so that the sum of all samples is the total.
    fn end(mut self) -> SamplerEnd {
        let live = self.live() as u64;
        if let Some(expiry) = self.periods.expire(now()) {
            self.writer.miss(expiry.missed.saturating_mul(live));
        }
        self.take();
        SamplerEnd {
            missed: self.writer.missed(),
            error: self.error,
        }
    }
}

impl Target {
    fn new(target: SampleTarget) -> Self {
        Self {
            values: vec![0; target.form.quantities()],
            target,
            is_over: false,
        }
    }

    /// Reads the values; the error is `None` if the process has ended.
    fn read(&mut self) -> Result<(), Option<SourceReadError>> {
        self.target.reading.read(&mut self.values).map_err(|error| {
            self.is_over = self.target.reading.has_ended();
            (!self.is_over).then_some(error)
        })
    }
}

/// The streams of periodic samplers, with the thread that fills them.
#[derive(Debug)]
pub struct PeriodicSource {
    sources: Vec<SampleSource>,
    samplers: Option<PeriodicSamplers>,
    ends: Vec<SamplerEnd>,
}

impl PeriodicSource {
    /// The streams of `sources`, in the order of the samplers.
    #[must_use]
    pub const fn new(sources: Vec<SampleSource>, samplers: PeriodicSamplers) -> Self {
        Self {
            sources,
            samplers: Some(samplers),
            ends: Vec::new(),
        }
    }

    /// Begins the first period; see [`PeriodicSamplers::release`].
    pub fn release(&self) {
        if let Some(samplers) = &self.samplers {
            samplers.release();
        }
    }
}

impl Source for PeriodicSource {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        for source in &mut self.sources {
            source.poll(inbox)?;
        }
        for (source, end) in self.sources.iter_mut().zip(&mut self.ends) {
            source.end(std::mem::take(&mut end.missed), inbox);
            if let Some(error) = end.error.take() {
                inbox.complain(SourceError(error.to_string()));
            }
        }
        Ok(())
    }

    fn end(&mut self) {
        if let Some(samplers) = self.samplers.take() {
            self.ends = samplers.stop();
        }
    }
}
