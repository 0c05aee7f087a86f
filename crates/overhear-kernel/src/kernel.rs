// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Kernel`]: whichever kernel sensor this machine and this user permit.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use overhear_event::{Inbox, Source, SourceError, StreamId};

use crate::bpf::{self, BpfSource, Settings};
use crate::machine;
use crate::passing::{self, Unpacker};
use crate::perf::{self, PerfSource};
use crate::probe::{ResolvedProbe, MOST_PROBES};
use crate::streams::{feed_of_probe, Feed, Hook, Numbering};
use crate::{
    GiveError, KernelMonitor, Probe, ProbeError, ReceiveError, Runs, SelectError, Sensor,
    StartError,
};

/// Which kernel sensor to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// BPF, else perf, else none; never an error.
    #[default]
    Auto,
    /// BPF or an error.
    Bpf,
    /// perf records or an error.
    Perf,
    /// None.
    Off,
}

/// Which kernel sensor is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Active {
    /// BPF programs: switches, wake-ups, lives of threads.
    Bpf,
    /// perf records: switches, lives of threads, and schedstat samples.
    Perf,
    /// Nothing comes from the kernel.
    None,
}

/// What the user gets from the kernel, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Which sensor is at work.
    pub active: Active,
    /// The same for people: one sentence without its full stop.
    pub sentence: String,
    /// What is heard, without probes, in the order of the streams.
    pub heard: Vec<Sensor>,
}

/// Settings of the kernel sensors, checked by [`KernelBuilder::build`].
#[derive(Clone, Debug)]
pub struct KernelBuilder {
    choice: Choice,
    elements: u32,
    life_elements: u32,
    first_stream: StreamId,
    buffer_bytes: Option<u64>,
    rings: Vec<(Sensor, u32)>,
    probe_rings: Vec<(Probe, u32)>,
    sensors: Vec<Sensor>,
    probes: Vec<Probe>,
    perf_pages: u32,
    mask_interrupts: bool,
    apart: bool,
}

/// The sizes of a BPF ring, in elements. The largest keeps a ring of switches well below the 4 MiB
/// that older kernels permit for one value of a map.
const RING_ELEMENTS: std::ops::RangeInclusive<u32> = 8..=65_536;

impl KernelBuilder {
    /// Which sensor; [`Choice::Auto`] by default.
    #[must_use]
    pub fn choice(mut self, choice: Choice) -> Self {
        self.choice = choice;
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

    /// Which sensors, each once; by default scheduling alone. Without a sensor of scheduling among them
    /// ([`Sensor::scheduling`]) all of scheduling is heard, too; with one, no others of it than are named and
    /// those that are always heard: `sched_switch` alone leaves wake-ups out, and their hooks are not attached
    /// then unless another monitor of this process has them. What the kernel or the way of hearing it lacks is
    /// left out, and [`Status`] says so.
    #[must_use]
    pub fn sensors(mut self, sensors: impl IntoIterator<Item = Sensor>) -> Self {
        let all: BTreeSet<Sensor> = sensors.into_iter().collect();
        self.sensors = all.into_iter().collect();
        self
    }

    /// Functions and static probes of programs that become sensors, at most 16. They take BPF, and
    /// one that is not possible is an error.
    #[must_use]
    pub fn probes(mut self, probes: impl IntoIterator<Item = Probe>) -> Self {
        self.probes = probes.into_iter().collect();
        self
    }

    /// About how many bytes all BPF rings may take together, instead of sizes for each. They are
    /// divided among the CPUs and hooks, and rounded down to powers of two, but a ring has at least
    /// 8 elements. What was granted is known afterwards ([`KernelMonitor::granted_bytes`]).
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: u64) -> Self {
        self.buffer_bytes = Some(bytes);
        self
    }

    /// Elements per CPU in the BPF rings of one of the sensors, whatever the other settings say: a power of two
    /// from 8 to 65,536. A sensor that is bounded as a whole needs in each of its rings the
    /// room for all of it, because nothing says how its elements spread over the CPUs.
    /// What was granted is known afterwards ([`KernelMonitor::ring_elements`]).
    #[must_use]
    pub fn ring(mut self, sensor: Sensor, elements: u32) -> Self {
        self.rings.push((sensor, elements));
        self
    }

    /// As [`Self::ring`], of one of the probes.
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

    /// The most pages a perf ring may have; 128 by default. Less is taken where less is allowed.
    #[must_use]
    pub fn perf_pages(mut self, pages: u32) -> Self {
        self.perf_pages = pages;
        self
    }

    /// With BPF programs of its own, so that the monitor can be handed over ([`KernelMonitor::give`])
    /// whatever other monitors this process has. Each switch of any thread then pays for one look-up
    /// more.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// For tests of the busy word: do as if the kernel could not mask interrupts.
    #[doc(hidden)]
    #[must_use]
    pub fn without_interrupt_masking(mut self) -> Self {
        self.mask_interrupts = false;
        self
    }

    /// Starts what was chosen. Nothing is followed yet.
    ///
    /// # Errors
    /// [`StartError`] if a ring size is not usable, or if the sensor that was asked for by name
    /// is not available.
    pub fn build(self) -> Result<Kernel, StartError> {
        let mut kernel = self.start()?;
        kernel.set_active(true);
        Ok(kernel)
    }

    /// Creates a kernel monitor: suspended, and tracking nobody.
    ///
    /// # Errors
    /// As for [`Self::build`].
    pub fn create(self) -> Result<KernelMonitor, StartError> {
        Ok(KernelMonitor::new(self.start()?))
    }

    /// What of scheduling is not wanted.
    fn left_out(&self) -> Vec<Hook> {
        if !self.sensors.iter().any(|sensor| sensor.is_scheduling()) {
            return Vec::new();
        }
        let named = |hook: &Hook| self.sensors.iter().any(|sensor| sensor.hook() == *hook);
        let mut all = Hook::SCHED.to_vec();
        all.retain(|hook| !hook.is_always_heard() && !named(hook));
        all
    }

    /// What is heard, by the sizes that were asked for. Streams are numbered by their places, so what is left
    /// out has one, too.
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
            let place = probes.iter().position(|own| own.probe == *probe);
            let slot = place.map(|place| Hook::Probe as u32 + place as u32);
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
        // Rings of one size take as many bytes as one of switches, whatever is in them.
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
        // Twice the bytes of a ring of switches, because arguments take twice the room.
        let of_probe = |(number, probe): (usize, &ResolvedProbe)| {
            let capacity = (u64::from(self.elements) * 64) >> probe.slot_shift();
            let capacity = (capacity as u32).clamp(*RING_ELEMENTS.start(), self.elements);
            feed_of_probe(probe, number, capacity)
        };
        feeds.extend(probes.iter().enumerate().map(of_probe));
        let Some(bytes) = self.buffer_bytes else {
            return feeds;
        };
        // Lives are rare: they get a part of what each other hook gets.
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
            // The largest power of two that is not above.
            feed.capacity = 1 << (63 - elements.leading_zeros());
        }
        feeds
    }

    fn start(self) -> Result<Kernel, StartError> {
        let of_probes = self.probe_rings.iter().map(|(_, elements)| *elements);
        let own = self.rings.iter().map(|(_, elements)| *elements);
        let own = own.chain(of_probes);
        for given in [self.elements, self.life_elements].into_iter().chain(own) {
            if !given.is_power_of_two() || !RING_ELEMENTS.contains(&given) {
                return Err(StartError::RingSize {
                    given,
                    least: *RING_ELEMENTS.start(),
                    most: *RING_ELEMENTS.end(),
                });
            }
        }
        if self.probes.len() > MOST_PROBES {
            let given = self.probes.len();
            return Err(ProbeError::TooMany { given }.into());
        }
        let probes = self.probes.iter().map(Probe::resolve);
        let probes: Vec<ResolvedProbe> = probes.collect::<Result<_, _>>()?;
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
            apart: self.apart,
        };
        let bpf = || BpfSource::start(&settings);
        let more = self.sensors.iter().filter(|sensor| !sensor.is_scheduling());
        let names: Vec<&str> = more.map(|sensor| sensor.name()).collect();
        let perf = || PerfSource::start(numbering, self.perf_pages as usize);
        let (mut engine, mut sentence) = match self.choice {
            Choice::Off => (Engine::None, "kernel sensors: off, as asked for".to_owned()),
            Choice::Bpf => {
                let source = bpf().map_err(|why| StartError::Bpf { why })?;
                with_bpf(source, &names, &settings.left_out)
            }
            Choice::Perf => {
                let source = perf().map_err(|why| StartError::Perf { why })?;
                with_perf(source, "as asked for", &names)
            }
            Choice::Auto => match bpf() {
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
                    sentence.push_str("; ");
                    sentence.push_str(&note);
                }
            }
            Engine::Perf(_) | Engine::None if self.probes.is_empty() => {}
            Engine::Perf(_) | Engine::None => {
                return Err(ProbeError::NeedsBpf { why: sentence }.into());
            }
        }
        Ok(Kernel {
            status: engine.status(sentence),
            engine,
            numbering,
        })
    }
}

fn with_bpf(source: BpfSource, more: &[&str], left_out: &[Hook]) -> (Engine, String) {
    let wakeups = if source.hears(Hook::Wake.sensor()) {
        ", wake-ups,"
    } else {
        ""
    };
    let mut sentence = format!(
        "kernel sensors: BPF programs see context switches{wakeups} and threads begin and end"
    );
    let heard: Vec<&str> = more
        .iter()
        .copied()
        .filter(|name| source.hears(name))
        .collect();
    if !heard.is_empty() {
        sentence.push_str(&format!("; besides {}", heard.join(", ")));
    }
    let mut note = |text: &str| {
        sentence.push_str("; ");
        sentence.push_str(text);
    };
    if left_out.contains(&Hook::Wake) {
        note(
            "without wake-ups, as asked for, so the time that threads wait for a CPU is not known",
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
    (Engine::Bpf(Box::new(source)), sentence)
}

fn with_perf(source: PerfSource, why: &str, more: &[&str]) -> (Engine, String) {
    let mut sentence = format!(
        "kernel sensors: perf context-switch records, {why}; there are no wake-ups, runnable \
         time comes from schedstat"
    );
    if !more.is_empty() {
        sentence.push_str(&format!("; {} need BPF and are not heard", more.join(", ")));
    }
    (Engine::Perf(Box::new(source)), sentence)
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
    const fn active(&self) -> Active {
        match self {
            Self::Bpf(_) => Active::Bpf,
            Self::Perf(_) => Active::Perf,
            Self::None => Active::None,
        }
    }

    fn status(&self, sentence: String) -> Status {
        let hears = |sensor: &Sensor| match self {
            Self::Bpf(source) => source.hears(sensor.name()),
            // There are switches and lives, whatever was asked for.
            Self::Perf(_) => sensor.hook().is_always_heard(),
            Self::None => false,
        };
        Status {
            active: self.active(),
            sentence,
            heard: Sensor::all().filter(hears).collect(),
        }
    }
}

/// The kernel sensors at work: a [`Source`] of the streams of all CPUs.
///
/// Holding one does not prove that there is anything to hear: [`Kernel::status`] says what.
pub struct Kernel {
    engine: Engine,
    status: Status,
    numbering: Numbering,
}

impl Kernel {
    /// Default settings.
    #[must_use]
    pub const fn builder() -> KernelBuilder {
        KernelBuilder {
            choice: Choice::Auto,
            elements: 65_536,
            life_elements: 4_096,
            buffer_bytes: None,
            rings: Vec::new(),
            probe_rings: Vec::new(),
            sensors: Vec::new(),
            probes: Vec::new(),
            first_stream: StreamId::from_raw(0),
            perf_pages: 128,
            mask_interrupts: true,
            apart: false,
        }
    }

    /// Which kernel sensor is active, and why.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// How many stream numbers from the first one on are reserved. It depends only on the number
    /// of possible CPUs, not on the sensor.
    #[must_use]
    pub fn stream_ids_used(&self) -> u32 {
        self.numbering.used()
    }

    /// How many elements the kernel has committed to a stream up to now; `None` for streams that
    /// are not BPF rings. What was delivered and what was missed as overwritten add up to it.
    #[must_use]
    pub fn committed(&self, id: StreamId) -> Option<u64> {
        match &self.engine {
            Engine::Bpf(source) => source.committed(id),
            Engine::Perf(_) | Engine::None => None,
        }
    }

    /// How often and how long the BPF programs of a sensor have run, for whichever threads and monitors of this
    /// process, while there was a [`RunClock`](crate::RunClock); `None` if no programs are at work for it here.
    #[must_use]
    pub fn runs(&self, sensor: &str) -> Option<Runs> {
        match &self.engine {
            Engine::Bpf(source) => source.runs(sensor),
            Engine::Perf(_) | Engine::None => None,
        }
    }

    /// Tracks this process, all of its present threads, and all that they will create.
    ///
    /// Nothing of a process is missed if it is followed while stopped, before it executes the
    /// program. A process that runs can be followed as well, from now on; the first departure of
    /// a thread that is running at that moment may be taken for voluntary when it is not, or
    /// the other way round. A process that is already followed, also as a child of another, need
    /// not be followed again. Without an active sensor this does nothing.
    ///
    /// # Errors
    /// [`SelectError`] if there is no such process or the kernel refuses. Some of its threads
    /// may then be tracked already.
    pub fn follow(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.follow(pid),
            Engine::Perf(source) => source.follow(pid),
            Engine::None => Ok(()),
        }
    }

    /// As [`Self::follow`], of a child that is held between its fork and its execve: of what it does until then,
    /// as a copy of this process, nothing but scheduling is recorded. The first system call is its execve.
    ///
    /// # Errors
    /// As for [`Self::follow`].
    pub fn follow_held(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.follow_held(pid),
            // Its records are of scheduling alone.
            Engine::Perf(source) => source.follow(pid),
            Engine::None => Ok(()),
        }
    }

    /// Resumes or suspends what is at work.
    pub(crate) fn set_active(&mut self, active: bool) {
        match &mut self.engine {
            Engine::Bpf(source) => source.set_active(active),
            Engine::Perf(source) => source.set_active(active),
            Engine::None => {}
        }
    }

    /// Hands over what is at work.
    pub(crate) fn give(&mut self, to: BorrowedFd<'_>) -> Result<(), GiveError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.give(to, &self.status.sentence),
            Engine::Perf(source) => source.give(to, &self.status.sentence),
            Engine::None => Err(GiveError::Nothing),
        }
    }

    /// Takes what another process hands over.
    pub(crate) fn receive(from: BorrowedFd<'_>) -> Result<Self, ReceiveError> {
        let (body, files) = passing::take(from).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ReceiveError::Closed,
            io::ErrorKind::InvalidData => ReceiveError::Misunderstood,
            _ => ReceiveError::Refused {
                why: machine::error_text(error),
            },
        })?;
        let mut body = Unpacker::new(&body);
        let (engine, numbering, sentence) = match body.word() {
            Some(bpf::KIND) => {
                let (source, numbering, sentence) = BpfSource::receive(body, files)?;
                (Engine::Bpf(Box::new(source)), numbering, sentence)
            }
            Some(perf::KIND) => {
                let (source, numbering, sentence) = PerfSource::receive(from, body, files)?;
                (Engine::Perf(Box::new(source)), numbering, sentence)
            }
            _ => return Err(ReceiveError::Misunderstood),
        };
        Ok(Self {
            status: engine.status(sentence),
            engine,
            numbering,
        })
    }

    /// Bytes of all rings.
    pub(crate) fn granted_bytes(&self) -> u64 {
        match &self.engine {
            Engine::Bpf(source) => source.granted_bytes(),
            Engine::Perf(source) => source.granted_bytes(),
            Engine::None => 0,
        }
    }

    /// Elements of each ring of a sensor.
    pub(crate) fn ring_elements(&self, sensor: Sensor) -> Option<u64> {
        match &self.engine {
            Engine::Bpf(source) => source.ring_elements(sensor),
            Engine::Perf(_) | Engine::None => None,
        }
    }

    /// Elements of each ring of a probe.
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
        }
    }

    pub(crate) fn unmonitor_thread(&mut self, tid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.unmonitor_thread(tid),
            Engine::Perf(source) => source.unmonitor_thread(tid),
            Engine::None => Ok(()),
        }
    }

    pub(crate) fn monitor_process(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.monitor_process(pid),
            Engine::Perf(source) => source.monitor_process(pid),
            Engine::None => Ok(()),
        }
    }

    pub(crate) fn monitor_held_process(&mut self, pid: u32) -> Result<(), SelectError> {
        match &mut self.engine {
            Engine::Bpf(source) => source.monitor_held_process(pid),
            Engine::Perf(source) => source.monitor_process(pid),
            Engine::None => Ok(()),
        }
    }

    pub(crate) fn monitor_cgroup(&mut self, path: &Path) -> Result<(), SelectError> {
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
        }
    }

    /// Takes the last samples and detaches from the kernel. One more [`Source::poll`] delivers
    /// what is left and closes the streams.
    ///
    /// Call it while the followed main process has ended but nobody has waited for it yet: then
    /// its last schedstat values can still be read.
    pub fn finish(&mut self) {
        match &mut self.engine {
            Engine::Bpf(source) => source.finish(),
            Engine::Perf(source) => source.finish(),
            Engine::None => {}
        }
    }
}

impl Source for Kernel {
    fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        match &mut self.engine {
            Engine::Bpf(source) => return source.poll(inbox),
            Engine::Perf(source) => source.poll(inbox),
            Engine::None => {}
        }
        Ok(())
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
    use super::{Choice, Kernel};

    #[test]
    fn a_monitor_may_run_on_any_thread() {
        fn may_move<T: Send>(_: &T) {}
        may_move(&Kernel::builder().choice(Choice::Off).build().unwrap());
    }
}
