// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all samplers of programs do: read the counters, form differences, write a sample.
//!
//! Everything is prepared when the sampler is registered: the group of counters is open and counts,
//! the buffers have their final size and lie in locked pages. A sample is one code path: it reads
//! the clock and the counters, subtracts, fills the element and publishes it.

use overhear_directory::client::SensorRequest;
use overhear_directory::monotonic_now;
use overhear_event::{Nanos, Rate, SamplePoint, SampleSchema, TypeSchema, WriterKind};
use overhear_sampling::counters::{CounterError, CounterEvent, CounterOptions, ThreadCounters};
use overhear_stream::{SharedWords, SimpleWriter, Switch, SwitchState};

use super::RegisterSamplerError;
use crate::fork;
use crate::sensor::{is_on, stamp, OpenStream, SensorError};

/// Words of an element before its counts: thread, process, point and CPU in two, and the duration.
const HEADER_WORDS: usize = 3;

/// What a program asks for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) instance: String,
    pub(crate) counters: Vec<CounterEvent>,
    pub(crate) every: Nanos,
    pub(crate) rate: Option<Rate>,
    pub(crate) capacity: u64,
    pub(crate) user_only: bool,
    pub(crate) skip_missing: bool,
}

/// Totals at a moment.
#[derive(Clone, Copy, Debug)]
struct Baseline<const N: usize> {
    time_ns: u64,
    totals: [u64; N],
}

/// What is known of the present job's begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobBegin {
    /// The counts.
    Known,
    /// Nothing: the sampler was switched off.
    Off,
    /// Nothing: the kernel had taken the counters away.
    Lost,
    /// Nothing, because of a budget: the job's sample counts as one that the budget kept from being
    /// taken.
    Budget,
}

/// A sampler with up to N counters, for the thread that opened it.
#[derive(Debug)]
pub(crate) struct Core<const N: usize> {
    // Declared before the stream whose memory it points into, so dropped before it.
    writer: SimpleWriter<SharedWords>,
    every_ns: u64,
    // Time of the last sample of any kind.
    last_ns: u64,
    tid: u32,
    pid: u32,
    // Number of counters, at most N.
    count: usize,
    failed: u64,
    // None if there are no counters: all were left out, or sensors are compiled away.
    counters: Option<ThreadCounters>,
    sampled: Baseline<N>,
    job: Baseline<N>,
    job_begin: JobBegin,
    // Scratch memory of a sample, here so that it is locked.
    totals: [u64; N],
    stream: OpenStream,
    // Where the limit of locked memory does not allow it, pages of the stream are not locked.
    is_stream_locked: bool,
    request: Request,
    missing: Vec<CounterError>,
}

impl<const N: usize> Core<N> {
    /// Opens the counters for the calling thread, then the stream.
    pub(crate) fn open(mut request: Request) -> Result<Self, RegisterSamplerError> {
        let (counters, missing) = open_counters(&mut request)?;
        let schema = schema_of(&request.counters)?;
        let stream = OpenStream::open(SensorRequest {
            sensor: request.id.clone(),
            instance: request.instance.clone(),
            schema,
            rate: request.rate,
            capacity: request.capacity,
            kind: WriterKind::Simple,
            lanes: 0,
        })?;
        // SAFETY: the mapping is owned by `stream`, a field of the same value that is dropped after
        // the writer.
        let words = unsafe { stream.mapping.words() };
        let writer = SimpleWriter::new(words, stream.ring()?).map_err(SensorError::from)?;
        let start = Baseline {
            time_ns: 0,
            totals: [0; N],
        };
        let mut core = Self {
            writer,
            every_ns: request.every.as_ns(),
            last_ns: 0,
            tid: 0,
            pid: 0,
            count: request.counters.len(),
            failed: 0,
            counters,
            sampled: start,
            job: start,
            job_begin: JobBegin::Known,
            totals: [0; N],
            is_stream_locked: stream.mapping.lock().is_ok(),
            stream,
            request,
            missing,
        };
        core.begin();
        Ok(core)
    }

    /// Takes the identity of the calling thread, and sets all baselines to this moment.
    fn begin(&mut self) {
        self.tid = crate::thread::identify().tid;
        self.pid = std::process::id();
        let now_ns = monotonic_now().as_monotonic_ns();
        let mut start = self.sampled;
        start.time_ns = now_ns;
        // A group that was opened a moment ago counts. If not, the first sample fails.
        let _ = read(&mut self.counters, &mut start.totals[..self.count]);
        self.sampled = start;
        self.job = start;
        self.job_begin = JobBegin::Known;
        // The first sample is due at once.
        self.last_ns = now_ns.wrapping_sub(self.every_ns);
    }

    /// Whether the sampler is switched on.
    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        !cfg!(feature = "disable") && self.stream.switch.state() == SwitchState::On
    }

    /// Whether it is switched off, and not for a budget, so that nothing needs to be counted.
    #[inline(always)]
    fn is_off(&self) -> bool {
        cfg!(feature = "disable") || self.stream.switch.state() == SwitchState::Off
    }

    /// Takes a sample of the thread, unless the last one is younger than the period.
    #[inline(always)]
    pub(crate) fn sample(&mut self) -> bool {
        !self.is_off() && self.sample_at(monotonic_now().as_monotonic_ns())
    }

    /// [`Self::sample`] at this time. A due sample that a budget keeps from being taken is counted.
    #[inline(always)]
    pub(crate) fn sample_at(&mut self, now_ns: u64) -> bool {
        if now_ns.wrapping_sub(self.last_ns) < self.every_ns {
            return false;
        }
        self.last_ns = now_ns;
        is_on(self.stream.switch, || self.writer.skip())
            && self.take(SamplePoint::Program, Some(now_ns))
    }

    /// Begins a job: what was counted before does not belong to it.
    #[inline(always)]
    pub(crate) fn begin_job(&mut self) {
        if cfg!(feature = "disable") {
            return;
        }
        match is_on(self.stream.switch, || {}) {
            true => self.set_job(),
            false => self.miss_job(),
        }
    }

    fn set_job(&mut self) {
        self.job_begin = match read(&mut self.counters, &mut self.job.totals[..self.count]) {
            true => JobBegin::Known,
            false => JobBegin::Lost,
        };
        self.job.time_ns = monotonic_now().as_monotonic_ns();
    }

    fn miss_job(&mut self) {
        self.job_begin = match self.stream.switch.state() {
            SwitchState::Counted => JobBegin::Budget,
            _ => JobBegin::Off,
        };
    }

    /// Takes a sample of the job that ends here; the next one begins.
    ///
    /// A job that began while the sampler was switched off gets no sample, because the counts at
    /// its begin are not known.
    #[inline(always)]
    pub(crate) fn end_job(&mut self) -> bool {
        let taken = self.end_job_here();
        crate::job_end();
        taken
    }

    #[inline(always)]
    fn end_job_here(&mut self) -> bool {
        if cfg!(feature = "disable") {
            return false;
        }
        if !is_on(self.stream.switch, || self.writer.skip()) {
            self.miss_job();
            return false;
        }
        match self.job_begin {
            JobBegin::Known => return self.take(SamplePoint::JobEnd, None),
            JobBegin::Off => {}
            JobBegin::Budget => self.writer.skip(),
            JobBegin::Lost => self.failed += 1,
        }
        self.set_job();
        false
    }

    /// Reads, subtracts, publishes. False if the kernel has taken the counters away.
    ///
    /// Without a time, the clock is read after the counters: the way back from the kernel is as
    /// long at a job's begin as at its end, but not the way there, where the job has used the
    /// caches.
    #[inline(never)]
    fn take(&mut self, point: SamplePoint, now_ns: Option<u64>) -> bool {
        let count = self.count;
        let totals = &mut self.totals[..count];
        if !read(&mut self.counters, totals) {
            self.failed += 1;
            return false;
        }
        let now_ns = now_ns.unwrap_or_else(|| monotonic_now().as_monotonic_ns());
        let before = match point {
            SamplePoint::JobEnd => &mut self.job,
            _ => &mut self.sampled,
        };
        let mut payload = Payload::<N>::new(self.tid, self.pid, point);
        payload.duration_ns = now_ns.wrapping_sub(before.time_ns);
        let differences = totals.iter().zip(&before.totals);
        for (count, (total, before)) in payload.counts.iter_mut().zip(differences) {
            *count = total.wrapping_sub(*before);
        }
        before.time_ns = now_ns;
        before.totals[..count].copy_from_slice(totals);
        self.last_ns = now_ns;
        let clock = self.stream.clock;
        // The size is that of the schema, which has `count` counts.
        self.writer.write(payload.bytes(count), || stamp(clock));
        true
    }

    /// Samples that could not be taken, because the kernel had taken the counters away.
    pub(crate) const fn failed(&self) -> u64 {
        self.failed
    }

    /// Samples that were published.
    pub(crate) const fn written(&self) -> u64 {
        self.writer.count()
    }

    /// Whether the memory of the stream is locked.
    pub(crate) const fn is_stream_locked(&self) -> bool {
        self.is_stream_locked
    }

    /// Whether another process opened the counters: this one is its forked child.
    pub(crate) fn is_copy(&self) -> bool {
        self.pid != std::process::id()
    }

    /// Where the directory switches the sampler, the period, and the time of the last sample: what
    /// the inline functions of C use.
    pub(crate) const fn condition(&self) -> (Switch, u64, u64) {
        (self.stream.switch, self.every_ns, self.last_ns)
    }

    pub(crate) fn missing(&self) -> &[CounterError] {
        &self.missing
    }

    pub(crate) const fn stream(&self) -> &OpenStream {
        &self.stream
    }

    pub(crate) fn uses_rdpmc(&self) -> bool {
        self.counters
            .as_ref()
            .is_some_and(ThreadCounters::uses_rdpmc)
    }

    pub(crate) fn excludes_kernel(&self) -> bool {
        self.request.user_only
    }

    /// Registers again what no directory owns, and opens the counters again in another process.
    pub(crate) fn register_again(&mut self) -> Result<bool, RegisterSamplerError> {
        if self.is_copy() {
            // The descriptors of the parent count the parent.
            self.counters = None;
            let mut request = self.request.clone();
            // The schema stays, so the list must.
            request.skip_missing = false;
            self.counters = open_counters(&mut request)?.0;
            self.begin();
        }
        if let Some(stream) = self.stream.again() {
            // SAFETY: the mapping is owned by `stream`, which is stored in the same value below.
            let words = unsafe { stream.mapping.words() };
            self.writer = SimpleWriter::new(words, stream.ring()?).map_err(SensorError::from)?;
            self.is_stream_locked = stream.mapping.lock().is_ok();
            // The old memory is unmapped here, after the old writer.
            self.stream = stream;
        }
        Ok(self.stream.is_connected())
    }
}

/// Opens the request's counters for the calling thread. With `skip_missing`, those that cannot be
/// opened are taken out of the request and returned with their reasons.
fn open_counters(
    request: &mut Request,
) -> Result<(Option<ThreadCounters>, Vec<CounterError>), RegisterSamplerError> {
    let mut missing = Vec::new();
    if cfg!(feature = "disable") {
        return Ok((None, missing));
    }
    let options = CounterOptions {
        user_only: request.user_only,
        ..CounterOptions::default()
    };
    while !request.counters.is_empty() {
        let error = match ThreadCounters::open(&request.counters, options) {
            Ok(counters) => {
                fork::protect_counters(counters.pages());
                request.user_only = counters.excludes_kernel();
                return Ok((Some(counters), missing));
            }
            Err(error) if error.is_usage() || !request.skip_missing => return Err(error.into()),
            Err(error) => error,
        };
        let before = request.counters.len();
        match error.name() {
            Some(name) => request.counters.retain(|event| event.name() != name),
            None => request.counters.truncate(error.fit().unwrap_or(0)),
        }
        if request.counters.len() == before {
            return Err(error.into());
        }
        missing.push(error);
    }
    Ok((None, missing))
}

fn schema_of(events: &[CounterEvent]) -> Result<TypeSchema, RegisterSamplerError> {
    let schema = events.iter().fold(SampleSchema::new(), |schema, event| {
        event.quantity().append_to(schema)
    });
    Ok(schema.build()?)
}

/// Reads all totals; false if the kernel has taken the counters away.
#[inline(always)]
fn read(counters: &mut Option<ThreadCounters>, totals: &mut [u64]) -> bool {
    match counters {
        Some(counters) => counters.read(totals).is_ok(),
        None => true,
    }
}

/// An element: the layout of `SampleSchema`.
#[repr(C)]
struct Payload<const N: usize> {
    tid: u32,
    pid: u32,
    point: u32,
    cpu: u32,
    duration_ns: u64,
    counts: [u64; N],
}

impl<const N: usize> Payload<N> {
    #[inline(always)]
    fn new(tid: u32, pid: u32, point: SamplePoint) -> Self {
        // SAFETY: the call has no preconditions; the C library reads it from memory of the thread
        // or in the vDSO.
        let cpu = unsafe { libc::sched_getcpu() };
        Self {
            tid,
            pid,
            point: point.as_raw(),
            cpu: u32::try_from(cpu).unwrap_or(0),
            duration_ns: 0,
            counts: [0; N],
        }
    }

    /// The bytes of an element with the first `count` counts.
    #[inline(always)]
    fn bytes(&self, count: usize) -> &[u8] {
        const { assert!(size_of::<Self>() == 8 * (HEADER_WORDS + N), "no padding") };
        let bytes = 8 * (HEADER_WORDS + count.min(N));
        // SAFETY: within the value, which has no padding (see the assertion), so that all of its
        // bytes are initialised.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), bytes) }
    }
}
