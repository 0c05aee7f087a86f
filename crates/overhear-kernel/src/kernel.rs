// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Kernel`]: kernel events from the best backend that this machine and user permit.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use overhear_event::{Inbox, Source, SourceError, StreamDescriptor, StreamId};

use crate::bpf::{self, BpfSource, SampleSource, Settings};
use crate::fd_transfer::{self, Decoder};
use crate::machine;
use crate::perf::{self, PerfSource};
use crate::probe::{ResolvedProbe, MAX_PROBES};
use crate::samples::ResolvedSampler;
use crate::streams::{probe_feed, Feed, Hook, Numbering};
use crate::{
    GiveError, KernelMonitor, KernelSampler, Probe, ProbeError, ProgStats, ReceiveError,
    SamplerError, SelectError, Sensor, StartError,
};

/// Requested source of kernel events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// BPF if permitted, else perf, else none; never an error.
    #[default]
    Auto,
    /// BPF, or an error.
    Bpf,
    /// perf records, or an error.
    Perf,
    /// No kernel events.
    Off,
}

/// Selected source of kernel events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActiveBackend {
    /// BPF programs: switches, wake-ups, lives of threads.
    Bpf,
    /// perf records: switches, lives of threads, and schedstat samples.
    Perf,
    /// No kernel events.
    None,
}

/// Selected backend, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The active backend.
    pub active: ActiveBackend,
    /// The same as one message for the user, without its full stop.
    pub message: String,
    /// Recorded sensors, without probes, in the order of their streams.
    pub sensors: Vec<Sensor>,
}

/// Totals of a kernel sensor or a probe in one monitor.
#[derive(Clone, Debug)]
pub struct KernelWrites {
    /// Its stream of the first CPU.
    pub descriptor: Arc<StreamDescriptor>,
    /// Written elements of all CPUs.
    pub written: u64,
    /// Events that were counted instead, in the state [`BudgetState::Counted`], or while the kernel
    /// detached the programs.
    pub skipped: u64,
    /// Whether it has the state [`BudgetState::Detached`]; otherwise that is the same as counted.
    pub is_detachable: bool,
    /// False from the moment in which its programs are detached until they are attached again,
    /// which is later than the orders.
    pub is_attached: bool,
}

/// A state of a kernel sensor in a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetState {
    /// Each event becomes an element.
    On,
    /// Events are counted. That costs less than an element, but not nothing.
    Counted,
    /// The BPF programs are detached: an event costs nothing, and nobody counts it. The gap counts
    /// as one element. It takes the kernel some 10 ms to detach programs or to attach them.
    Detached,
}

/// Settings of the kernel sensors, checked by [`KernelBuilder::build`].
#[derive(Clone, Debug)]
pub struct KernelBuilder {
    backend: Backend,
    elements: u32,
    life_elements: u32,
    first_stream: StreamId,
    buffer_bytes: Option<u64>,
    rings: Vec<(Sensor, u32)>,
    probe_rings: Vec<(Probe, u32)>,
    sensors: Vec<Sensor>,
    probes: Vec<Probe>,
    samplers: Vec<KernelSampler>,
    perf_pages: u32,
    mask_interrupts: bool,
    dedicated_programs: bool,
}

/// The sizes of a BPF ring, in elements. The largest keeps a ring of switches well below the 4 MiB
/// that older kernels permit for one value of a map.
const RING_ELEMENTS: std::ops::RangeInclusive<u32> = 8..=65_536;

impl KernelBuilder {
    /// Requested backend; [`Backend::Auto`] by default.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Elements per CPU in each of the BPF rings of switches and wake-ups: a power of two from 8
    /// to 65,536, the default, which takes 2 MiB.
    #[must_use]
    pub fn elements(mut self, elements: u32) -> Self {
        self.elements = elements;
        self
    }

    /// Elements per CPU in the BPF ring of lives; 4096 by default, which takes 256 KiB.
    #[must_use]
    pub fn life_elements(mut self, elements: u32) -> Self {
        self.life_elements = elements;
        self
    }

    /// Sensors to record; scheduling by default. If the list has no sensor of scheduling
    /// ([`Sensor::scheduling`]), all of scheduling is recorded as well. If it has one, only the
    /// listed ones are, and the mandatory ones: `sched_switch` alone disables wake-ups. Their
    /// programs are then attached only if another monitor of this process needs them. Sensors that
    /// the kernel or the backend lacks are left out, and [`Status`] names them.
    #[must_use]
    pub fn sensors(mut self, sensors: impl IntoIterator<Item = Sensor>) -> Self {
        let all: BTreeSet<Sensor> = sensors.into_iter().collect();
        self.sensors = all.into_iter().collect();
        self
    }

    /// Probes, at most 16. They need BPF; a probe that cannot be attached is an error.
    #[must_use]
    pub fn probes(mut self, probes: impl IntoIterator<Item = Probe>) -> Self {
        self.probes = probes.into_iter().collect();
        self
    }

    /// Samplers of the followed threads. They need BPF; a sampler that is not possible is an error.
    #[must_use]
    pub fn samplers(mut self, samplers: impl IntoIterator<Item = KernelSampler>) -> Self {
        self.samplers = samplers.into_iter().collect();
        self
    }

    /// Approximate size of all BPF rings together, instead of a size for each ring. The bytes are
    /// divided among CPUs and hooks and rounded down to powers of two, but a ring has at least 8
    /// elements. [`KernelMonitor::granted_bytes`] returns the granted size.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: u64) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Elements per CPU in the BPF rings of one sensor; overrides the other settings. A power of
    /// two from 8 to 65,536. If a bound holds for the sensor as a whole, each of its rings needs
    /// room for all elements, because their distribution over the CPUs is unknown.
    /// [`KernelMonitor::ring_elements`] returns the granted size.
    #[must_use]
    pub fn ring(mut self, sensor: Sensor, elements: u32) -> Self {
        self.rings.push((sensor, elements));
        self
    }

    /// As [`Self::ring`], for a probe.
    #[must_use]
    pub fn probe_ring(mut self, probe: &Probe, elements: u32) -> Self {
        self.probe_rings.push((probe.clone(), elements));
        self
    }

    /// The number of the first stream; 0 by default.
    #[must_use]
    pub fn first_stream(mut self, id: StreamId) -> Self {
        self.first_stream = id;
        self
    }

    /// Maximum number of pages of a perf ring; 128 by default. The ring is smaller if the limits of
    /// locked memory demand it.
    #[must_use]
    pub fn perf_pages(mut self, pages: u32) -> Self {
        self.perf_pages = pages;
        self
    }

    /// Loads separate BPF programs for this monitor, so that it can be handed over
    /// ([`KernelMonitor::give`]) while this process has other monitors. Each switch of any thread
    /// then costs one more look-up.
    #[must_use]
    pub fn dedicated_programs(mut self) -> Self {
        self.dedicated_programs = true;
        self
    }

    /// For tests of the busy word: behaves as if the kernel could not mask interrupts.
    #[doc(hidden)]
    #[must_use]
    pub fn without_interrupt_masking(mut self) -> Self {
        self.mask_interrupts = false;
        self
    }

    /// Starts the selected backend. No thread is tracked yet.
    ///
    /// # Errors
    /// [`StartError`] if a ring size is invalid, or if the requested backend is not available.
    pub fn build(self) -> Result<Kernel, StartError> {
        let mut kernel = self.start()?;
        kernel.set_active(true);
        Ok(kernel)
    }

    /// Creates a kernel monitor. It is suspended and tracks no thread.
    ///
    /// # Errors
    /// As for [`Self::build`].
    pub fn create(self) -> Result<KernelMonitor, StartError> {
        Ok(KernelMonitor::new(self.start()?))
    }

    /// Hooks of scheduling that are disabled.
    fn left_out(&self) -> Vec<Hook> {
        if !self.sensors.iter().any(|sensor| sensor.is_scheduling()) {
            return Vec::new();
        }
        let named = |hook: &Hook| self.sensors.iter().any(|sensor| sensor.hook() == *hook);
        let mut all = Hook::SCHED.to_vec();
        all.retain(|hook| !hook.is_mandatory() && !named(hook));
        all
    }

    /// Feeds with the requested sizes. A disabled hook has a feed, too, because stream numbers
    /// derive from the position in this list.
    fn feeds(
        &self,
        cpus: u32,
        left_out: &[Hook],
        probes: &[ResolvedProbe],
    ) -> Result<Vec<Feed>, StartError> {
        let mut feeds = self.feeds_by_kind(cpus, left_out, probes);
        for (sensor, elements) in &self.rings {
            let own = |feed: &&mut Feed| feed.hook == sensor.hook();
            let feed = feeds.iter_mut().find(own);
            let feed = feed.filter(|feed| !left_out.contains(&feed.hook));
            let feed = feed.ok_or(StartError::NoSuchRing { sensor: *sensor })?;
            feed.capacity = *elements;
        }
        for (probe, elements) in &self.probe_rings {
            let index = probes.iter().position(|own| own.probe == *probe);
            let slot = index.map(|index| Hook::Probe as u32 + index as u32);
            let feed = feeds.iter_mut().find(|feed| Some(feed.slot) == slot);
            let feed = feed.ok_or_else(|| StartError::NoSuchProbeRing {
                probe: probe.sensor(),
            })?;
            feed.capacity = *elements;
        }
        Ok(feeds)
    }

    fn feeds_by_kind(&self, cpus: u32, left_out: &[Hook], probes: &[ResolvedProbe]) -> Vec<Feed> {
        let mut feeds = vec![
            Hook::Switch.feed(self.elements),
            Hook::Wake.feed(self.elements),
            Hook::Life.feed(self.life_elements),
        ];
        // All rings have the same number of bytes as a ring of switches.
        let of_more = |sensor: &Sensor| {
            let feed = sensor.hook().feed(self.elements);
            let capacity = u64::from(self.elements) * 32 / u64::from(feed.stride_bytes());
            Feed {
                capacity: (capacity as u32).clamp(*RING_ELEMENTS.start(), *RING_ELEMENTS.end()),
                ..feed
            }
        };
        let more = self.sensors.iter().filter(|sensor| !sensor.is_scheduling());
        feeds.extend(more.map(of_more));
        // A probe gets twice the bytes of a ring of switches, because arguments take twice the
        // room.
        let of_probe = |(number, probe): (usize, &ResolvedProbe)| {
            let capacity = (u64::from(self.elements) * 64) >> probe.slot_shift();
            let capacity = (capacity as u32).clamp(*RING_ELEMENTS.start(), self.elements);
            probe_feed(probe, number, capacity)
        };
        feeds.extend(probes.iter().enumerate().map(of_probe));
        let Some(bytes) = self.buffer_bytes else {
            return feeds;
        };
        // Life events are rare: their rings get an eighth of the share of other hooks.
        let weight = |feed: &Feed| match feed.hook {
            hook if left_out.contains(&hook) => 0,
            Hook::Life => 1,
            _ => 8,
        };
        let weights: u64 = feeds.iter().map(weight).sum();
        let per_cpu = bytes / u64::from(cpus);
        for feed in &mut feeds {
            let share = per_cpu * weight(feed) / weights / u64::from(feed.stride_bytes());
            let least = u64::from(*RING_ELEMENTS.start());
            let most = u64::from(*RING_ELEMENTS.end());
            let elements = share.clamp(least, most);
            // The largest power of two that is not above the number.
            feed.capacity = 1 << (63 - elements.leading_zeros());
        }
        feeds
    }

    fn start(self) -> Result<Kernel, StartError> {
        let of_probes = self.probe_rings.iter().map(|(_, elements)| *elements);
        let own = self.rings.iter().map(|(_, elements)| *elements);
        let of_samplers = self.samplers.iter().map(KernelSampler::ring_elements);
        let own = own.chain(of_probes).chain(of_samplers);
        for given in [self.elements, self.life_elements].into_iter().chain(own) {
            if !given.is_power_of_two() || !RING_ELEMENTS.contains(&given) {
                return Err(StartError::RingSize {
                    given,
                    least: *RING_ELEMENTS.start(),
                    most: *RING_ELEMENTS.end(),
                });
            }
        }
        if self.probes.len() > MAX_PROBES {
            let given = self.probes.len();
            return Err(ProbeError::TooMany { given }.into());
        }
        let probes = self.probes.iter().map(Probe::resolve);
        let probes: Vec<ResolvedProbe> = probes.collect::<Result<_, _>>()?;
        let samplers = self.samplers.iter().map(KernelSampler::resolve);
        let samplers = samplers.collect::<Result<Vec<_>, _>>()?;
        let cpus = machine::possible_cpus();
        let left_out = self.left_out();
        let mut feeds = self.feeds(cpus, &left_out, &probes)?;
        let numbering = Numbering::new(self.first_stream, cpus, feeds.len() as u32);
        let feeds_of_probes = feeds.split_off(feeds.len() - self.probes.len());
        let first_probe = feeds.len() as u32;
        let settings = Settings {
            numbering,
            feeds,
            left_out,
            mask_interrupts: self.mask_interrupts,
            dedicated_programs: self.dedicated_programs,
        };
        let bpf = || BpfSource::start(&settings);
        let more = self.sensors.iter().filter(|sensor| !sensor.is_scheduling());
        let names: Vec<&str> = more.map(|sensor| sensor.name()).collect();
        let perf = || PerfSource::start(numbering, self.perf_pages as usize);
        let (mut engine, mut message) = match self.backend {
            Backend::Off => (Engine::None, "kernel sensors: off, as requested".to_owned()),
            Backend::Bpf => {
                let source = bpf().map_err(|why| StartError::Bpf { why })?;
                with_bpf(source, &names, &settings.left_out)
            }
            Backend::Perf => {
                let source = perf().map_err(|why| StartError::Perf { why })?;
                with_perf(source, "as requested", &names)
            }
            Backend::Auto => match bpf() {
                Ok(source) => with_bpf(source, &names, &settings.left_out),
                Err(no_bpf) => match perf() {
                    Ok(source) => with_perf(source, &format!("because {no_bpf}"), &names),
                    Err(no_perf) => (
                        Engine::None,
                        format!("kernel sensors: none, because {no_bpf}, and {no_perf}"),
                    ),
                },
            },
        };
        match &mut engine {
            Engine::Bpf(source) => {
                source.probe(&probes, &feeds_of_probes, first_probe, numbering)?;
                for note in probes.iter().filter_map(ResolvedProbe::note) {
                    message.push_str("; ");
                    message.push_str(&note);
                }
            }
            Engine::Perf(_) | Engine::None if self.probes.is_empty() => {}
            Engine::Perf(_) | Engine::None => {
                return Err(ProbeError::NeedsBpf { why: message }.into());
            }
        }
        let samplers = match engine {
            Engine::Bpf(_) => self.start_samplers(&samplers, numbering)?,
            Engine::Perf(_) | Engine::None if samplers.is_empty() => Vec::new(),
            Engine::Perf(_) | Engine::None => {
                return Err(SamplerError::NeedsBpf { why: message }.into());
            }
        };
        Ok(Kernel {
            status: engine.status(message),
            engine,
            numbering,
            samplers,
        })
    }

    /// Loads the programs of the samplers. Their streams follow those of the sensors.
    fn start_samplers(
        &self,
        samplers: &[ResolvedSampler],
        numbering: Numbering,
    ) -> Result<Vec<SampleSource>, SamplerError> {
        let mut next = self.first_stream.as_raw() + numbering.used();
        let mut started = Vec::new();
        for sampler in samplers {
            let first = StreamId::from_raw(next);
            let source = SampleSource::start(sampler, first, self.mask_interrupts)?;
            next += source.stream_ids_used();
            started.push(source);
        }
        Ok(started)
    }
}

fn with_bpf(source: BpfSource, more: &[&str], left_out: &[Hook]) -> (Engine, String) {
    let wakeups = if source.has_sensor(Hook::Wake.sensor()) {
        ", wake-ups,"
    } else {
        ""
    };
    let mut message = format!(
        "kernel sensors: BPF programs see context switches{wakeups} and threads begin and end"
    );
    let recorded: Vec<&str> = more
        .iter()
        .copied()
        .filter(|name| source.has_sensor(name))
        .collect();
    if !recorded.is_empty() {
        message.push_str(&format!("; besides {}", recorded.join(", ")));
    }
    let mut note = |text: &str| {
        message.push_str("; ");
        message.push_str(text);
    };
    if left_out.contains(&Hook::Wake) {
        note(
            "without wake-ups, as requested, so the time that threads wait for a CPU is not known",
        );
    }
    for text in source.notes() {
        note(text);
    }
    if !machine::in_initial_pid_namespace() {
        note(
            "thread ids are those of the initial PID namespace, not of the one this process \
             runs in",
        );
    }
    (Engine::Bpf(Box::new(source)), message)
}

fn with_perf(source: PerfSource, why: &str, more: &[&str]) -> (Engine, String) {
    let mut message = format!(
        "kernel sensors: perf context-switch records, {why}; there are no wake-ups, runnable \
         time comes from schedstat"
    );
    if !more.is_empty() {
        message.push_str(&format!(
            "; {} need BPF and are not recorded",
            more.join(", ")
        ));
    }
    (Engine::Perf(Box::new(source)), message)
}

const NEEDS_BPF: &str =
    "that takes BPF programs, and so CAP_BPF and CAP_PERFMON; name processes or \
                         threads of your own instead";

enum Engine {
    Bpf(Box<BpfSource>),
    Perf(Box<PerfSource>),
    None,
}

impl Engine {
    const fn active(&self) -> ActiveBackend {
        match self {
            Self::Bpf(_) => ActiveBackend::Bpf,
            Self::Perf(_) => ActiveBackend::Perf,
            Self::None => ActiveBackend::None,
        }
    }

    fn status(&self, message: String) -> Status {
        let is_recorded = |sensor: &Sensor| match self {
            Self::Bpf(source) => source.has_sensor(sensor.name()),
            // perf always records switches and life events, independent of the request.
            Self::Perf(_) => sensor.hook().is_mandatory(),
            Self::None => false,
        };
        Status {
            active: self.active(),
            message,
            sensors: Sensor::all().filter(is_recorded).collect(),
        }
    }
}

/// Active kernel sensors: a [`Source`] of the streams of all CPUs.
///
/// A value does not prove that there are kernel events: see [`Kernel::status`].
pub struct Kernel {
    engine: Engine,
    status: Status,
    numbering: Numbering,
    samplers: Vec<SampleSource>,
}

impl Kernel {
    /// Default settings.
    #[must_use]
    pub const fn builder() -> KernelBuilder {
        KernelBuilder {
            backend: Backend::Auto,
            elements: 65_536,
            life_elements: 4_096,
            buffer_bytes: None,
            rings: Vec::new(),
            probe_rings: Vec::new(),
            sensors: Vec::new(),
            probes: Vec::new(),
            samplers: Vec::new(),
            first_stream: StreamId::from_raw(0),
            perf_pages: 128,
            mask_interrupts: true,
            dedicated_programs: false,
        }
    }

    /// Selected backend, and the reason for it.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Number of reserved stream numbers, starting with the first one. It depends only on the
    /// number of possible CPUs, not on the backend.
    #[must_use]
    pub fn stream_ids_used(&self) -> u32 {
        let samplers = self.samplers.iter().map(SampleSource::stream_ids_used);
        self.numbering.used() + samplers.sum::<u32>()
    }

    /// Number of elements that the kernel has committed to a stream; `None` for streams that are
    /// not BPF rings. It is the sum of delivered and overwritten elements.
    #[must_use]
    pub fn committed(&self, id: StreamId) -> Option<u64> {
        let sample = self.samplers.iter().find_map(|it| it.committed(id));
        sample.or_else(|| match &self.engine {
            Engine::Bpf(source) => source.committed(id),
            Engine::Perf(_) | Engine::None => None,
        })
    }

    /// Run count and run time of the BPF programs of a sensor, for all threads and monitors of this
    /// process, while a [`ProgStatsGuard`](crate::ProgStatsGuard) existed; `None` if no program is
    /// loaded for it.
    #[must_use]
    pub fn prog_stats(&self, sensor: &str) -> Option<ProgStats> {
        match &self.engine {
            Engine::Bpf(source) => source.prog_stats(sensor),
            Engine::Perf(_) | Engine::None => None,
        }
    }

    /// Tracks all present threads of this process, and all threads and processes that they create.
    ///
    /// Nothing is missed if the process is followed while it is stopped, before it executes the
    /// program. A running process can be followed as well; then the first departure of a running
    /// thread may be reported as voluntary when it is not, or vice versa. A process that is
    /// followed already, also as a child of another one, need not be followed again. Without a
    /// backend this does nothing.
    ///
    /// # Errors
    /// [`SelectError`] if there is no such process or the kernel refuses. Some of its threads
    /// may then be tracked already.
    pub fn follow(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.follow(pid),
            Engine::Perf(source) => source.follow(pid),
            Engine::None => Ok(()),
        }?;
        self.each_sampler(|sampler| sampler.follow(pid, false))
    }

    /// As [`Self::follow`], for a child that is held between its fork and its execve. Until the
    /// execve it is a copy of this process, and only scheduling is recorded. The first recorded
    /// system call is its execve.
    ///
    /// # Errors
    /// As for [`Self::follow`].
    pub fn follow_held(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.follow_held(pid),
            // perf records contain scheduling only.
            Engine::Perf(source) => source.follow(pid),
            Engine::None => Ok(()),
        }?;
        self.each_sampler(|sampler| sampler.follow(pid, true))
    }

    fn each_sampler(
        &mut self,
        call: impl FnMut(&mut SampleSource) -> Result<(), SelectError>,
    ) -> Result<(), SelectError> {
        self.samplers.iter_mut().try_for_each(call)
    }

    /// Resumes or suspends the active backend.
    pub(crate) fn set_active(&mut self, active: bool) {
        match &mut self.engine {
            Engine::Bpf(source) => source.set_active(active),
            Engine::Perf(source) => source.set_active(active),
            Engine::None => {}
        }
        for sampler in &mut self.samplers {
            sampler.set_active(active);
        }
    }

    /// Hands the active backend over.
    pub(crate) fn give(&mut self, to: BorrowedFd<'_>) -> Result<(), GiveError> {
        if !self.samplers.is_empty() {
            return Err(GiveError::Samplers);
        }
        match &mut self.engine {
            Engine::Bpf(source) => source.give(to, &self.status.message),
            Engine::Perf(source) => source.give(to, &self.status.message),
            Engine::None => Err(GiveError::NoSensors),
        }
    }

    /// Receives a backend that another process hands over.
    pub(crate) fn receive(from: BorrowedFd<'_>) -> Result<Self, ReceiveError> {
        let (body, files) =
            fd_transfer::receive_message(from).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ReceiveError::Closed,
                io::ErrorKind::InvalidData => ReceiveError::InvalidMessage,
                _ => ReceiveError::Refused {
                    why: machine::error_text(error),
                },
            })?;
        let mut body = Decoder::new(&body);
        let (engine, numbering, message) = match body.word() {
            Some(bpf::KIND) => {
                let (source, numbering, message) = BpfSource::receive(body, files)?;
                (Engine::Bpf(Box::new(source)), numbering, message)
            }
            Some(perf::KIND) => {
                let (source, numbering, message) = PerfSource::receive(from, body, files)?;
                (Engine::Perf(Box::new(source)), numbering, message)
            }
            _ => return Err(ReceiveError::InvalidMessage),
        };
        Ok(Self {
            status: engine.status(message),
            engine,
            numbering,
            samplers: Vec::new(),
        })
    }

    /// Size of all rings in bytes.
    pub(crate) fn granted_bytes(&self) -> u64 {
        let samplers = self.samplers.iter().map(SampleSource::granted_bytes);
        let samplers: u64 = samplers.sum();
        samplers
            + match &self.engine {
                Engine::Bpf(source) => source.granted_bytes(),
                Engine::Perf(source) => source.granted_bytes(),
                Engine::None => 0,
            }
    }

    /// Number of elements in each ring of a sensor.
    pub(crate) fn ring_elements(&self, sensor: Sensor) -> Option<u64> {
        match &self.engine {
            Engine::Bpf(source) => source.ring_elements(sensor),
            Engine::Perf(_) | Engine::None => None,
        }
    }

    /// Number of elements in each ring of a probe.
    pub(crate) fn probe_ring_elements(&self, probe: &Probe) -> Option<u64> {
        match &self.engine {
            Engine::Bpf(source) => source.probe_ring_elements(probe),
            Engine::Perf(_) | Engine::None => None,
        }
    }

    pub(crate) fn monitor_thread(&mut self, tid: u32, unique_id: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.monitor_thread(tid, unique_id),
            Engine::Perf(source) => source.monitor_thread(tid, unique_id),
            Engine::None => Ok(()),
        }?;
        self.each_sampler(|sampler| sampler.follow_thread(tid))
    }

    pub(crate) fn unmonitor_thread(&mut self, tid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.unmonitor_thread(tid),
            Engine::Perf(source) => source.unmonitor_thread(tid),
            Engine::None => Ok(()),
        }?;
        self.each_sampler(|sampler| sampler.leave_thread(tid))
    }

    pub(crate) fn monitor_process(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.monitor_process(pid),
            Engine::Perf(source) => source.monitor_process(pid),
            Engine::None => Ok(()),
        }?;
        self.each_sampler(|sampler| sampler.follow(pid, false))
    }

    pub(crate) fn monitor_held_process(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.monitor_held_process(pid),
            Engine::Perf(source) => source.monitor_process(pid),
            Engine::None => Ok(()),
        }?;
        self.each_sampler(|sampler| sampler.follow(pid, true))
    }

    pub(crate) fn monitor_cgroup(&mut self, path: &Path) -> Result<(), SelectError> {
        if !self.samplers.is_empty() {
            return Err(SelectError::NoCgroup {
                path: path.to_path_buf(),
                why: "samplers follow processes and threads only".to_owned(),
            });
        }
        match &mut self.engine {
            Engine::Bpf(source) => source.monitor_cgroup(path),
            Engine::Perf(_) => Err(SelectError::NeedsBpf {
                what: format!("the cgroup {}", path.display()),
                why: NEEDS_BPF.to_owned(),
            }),
            Engine::None => Ok(()),
        }
    }

    pub(crate) fn monitor_all(&mut self) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.monitor_all(),
            Engine::Perf(_) => Err(SelectError::NeedsBpf {
                what: "the whole machine".to_owned(),
                why: NEEDS_BPF.to_owned(),
            }),
            Engine::None => Ok(()),
        }?;
        self.each_sampler(SampleSource::follow_everything)
    }

    /// Totals of each sensor and probe that a budget can switch. Empty if the backend cannot
    /// switch: events of perf that are off would not follow new threads.
    #[must_use]
    pub fn writes(&self) -> Vec<KernelWrites> {
        let mut writes = match &self.engine {
            Engine::Bpf(source) => source.writes(),
            Engine::Perf(_) | Engine::None => Vec::new(),
        };
        writes.extend(self.samplers.iter().filter_map(SampleSource::writes));
        writes
    }

    /// Switches a sensor or probe to keep a budget. `stream` is that of its
    /// [`KernelWrites::descriptor`]. Its streams have gaps of the cause `budget` where events were
    /// skipped. Begins and ends of threads are recorded in any case. Call it only if it changes
    /// something.
    ///
    /// # Errors
    /// A message: the sensor is off, but cannot be detached.
    pub fn switch_for_budget(&mut self, stream: StreamId, to: BudgetState) -> Result<(), String> {
        if self.samplers.iter_mut().any(|it| it.switch(stream, to)) {
            return Ok(());
        }
        match &mut self.engine {
            Engine::Bpf(source) => source.switch(stream, to),
            Engine::Perf(_) | Engine::None => Ok(()),
        }
    }

    /// Takes the last samples and detaches from the kernel. One more [`Source::poll`] delivers the
    /// remaining elements and closes the streams.
    ///
    /// Call it after the followed main process has ended and before it is waited for: then its last
    /// schedstat values are readable.
    pub fn finish(&mut self) {
        match &mut self.engine {
            Engine::Bpf(source) => source.finish(),
            Engine::Perf(source) => source.finish(),
            Engine::None => {}
        }
        self.samplers.iter_mut().for_each(SampleSource::finish);
    }
}

impl Source for Kernel {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        let mut result = match &mut self.engine {
            Engine::Bpf(source) => source.poll(inbox),
            Engine::Perf(source) => {
                source.poll(inbox);
                Ok(())
            }
            Engine::None => Ok(()),
        };
        for sampler in &mut self.samplers {
            result = result.and(sampler.poll(inbox));
        }
        result
    }
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernel")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Backend, Kernel};

    #[test]
    fn monitor_is_send() {
        fn may_move<T: Send>(_: &T) {}
        may_move(&Kernel::builder().backend(Backend::Off).build().unwrap());
    }
}
