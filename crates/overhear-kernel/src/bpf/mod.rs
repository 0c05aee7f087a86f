// SPDX-License-Identifier: MIT OR Apache-2.0
//! The BPF backend: programs on tracepoints write rings, this module reads them.
//!
//! `sched.bpf.c` begins with the protocol. This side selects the first tracked threads, reads the
//! rings without system calls, and turns the counters of the headers into gaps.
//!
//! One loss is counted neither by a ring nor by a program, because the program does not run: the
//! kernel does not enter a program on a CPU that runs it already. It is rare, because switches and
//! wake-ups of other threads run with interrupts off; it takes an interrupt with a wake-up while a
//! thread wakes itself. The kernel counts these recursion misses per program, without CPU, time, or
//! thread. They are read once, at the end, and reported as one gap of cause `Kernel` in the stream
//! of the hook's first CPU: an upper bound for the whole hook.

mod hand_over;
mod layout;
mod load;
mod map;
mod placed_probe;
mod program_set;
mod programs;
mod rings;
mod sample_layout;
mod sample_programs;
mod sample_source;
mod select;
mod shared;
mod stream;
mod switcher;
mod types;

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use overhear_event::{GapCause, Inbox, SourceError, StreamId};
use overhear_stream::Reader;

use hand_over::{pack, unpack};
use program_set::{MonitorSlot, Selected, TrackOptions};
use rings::Rings;
use select::Target;
use shared::Operation;
use stream::KernelStream;
use types::{FeedState, HandoverMessage, RecursionMisses};

pub(crate) use sample_source::SampleSource;

use crate::fd_transfer::{self, Decoder, Encoder};
use crate::machine;
use crate::probe::ResolvedProbe;
use crate::sampler::now_ns;
use crate::streams::{Feed, Hook, Numbering};
use crate::{
    BudgetState, GiveError, KernelWrites, Probe, ProbeError, ProgStats, ReceiveError, SelectError,
    Sensor,
};

/// First word of a message about a monitor of BPF programs.
pub(crate) const KIND: u64 = 1;
/// Maximum number of passes of `follow` over the threads of a process. A process can create threads
/// faster than they can be visited.
const FOLLOW_PASSES: u32 = 100;
/// Maximum time that `finish` waits for ended threads to leave their CPUs, in steps.
const LAST_DEPARTURE_STEPS: u32 = 200;
const LAST_DEPARTURE_STEP: Duration = Duration::from_micros(500);
/// File system type that `statfs` returns in the unified hierarchy.
const CGROUP2: u64 = 0x6367_7270;

/// Settings of a monitor.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) numbering: Numbering,
    pub(crate) feeds: Vec<Feed>,
    /// Hooks of feeds that are not wanted: they have stream numbers, but no rings.
    pub(crate) left_out: Vec<Hook>,
    /// Mask interrupts if the kernel can; otherwise the busy word is used.
    pub(crate) mask_interrupts: bool,
    /// Load a program set for this monitor alone.
    pub(crate) dedicated_programs: bool,
}

/// The state of the source towards its inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Open,
    Closed,
}

/// A monitor: its slot in the program set, and its rings.
pub(crate) struct BpfSource {
    streams: Vec<KernelStream>,
    phase: Phase,
    /// Whether it was suspended after it had recorded, or could have recorded.
    is_paused: bool,
    notes: Vec<String>,
    granted_bytes: u64,
    /// Recursion misses of each hook that are not yet reported.
    recursion_misses: RecursionMisses,
    /// Number of cgroup moves that were taken into account; `None` if no cgroup was selected.
    moves_seen: Option<u64>,
    /// `None` when the monitor has ended.
    slot: Option<MonitorSlot>,
    /// The maps of the rings, with the number of the feed and the feed; the streams share each
    /// mapping.
    rings: Vec<(Rings, u32, Feed)>,
    numbering: Numbering,
}

impl BpfSource {
    /// Creates a monitor, suspended; the phrase in the error follows "because".
    pub(crate) fn start(settings: &Settings) -> Result<Self, String> {
        let numbering = settings.numbering;
        let wanted = |hook: &Hook| !settings.left_out.contains(hook);
        let wakeups = wanted(&Hook::Wake);
        let mut slot = MonitorSlot::acquire(
            settings.mask_interrupts,
            settings.dedicated_programs,
            wakeups,
        )?;
        let (mut streams, mut all_rings) = (Vec::new(), Vec::new());
        let mut notes: Vec<String> = slot.notes().into_iter().map(str::to_owned).collect();
        let mut granted_bytes = 0;
        for (number, feed) in settings.feeds.iter().enumerate() {
            let number = number as u32;
            if !wanted(&feed.hook) {
                continue;
            }
            if !feed.hook.is_mandatory() {
                match slot.acquire_hook(feed.hook) {
                    Ok(missing) => notes.extend(missing.into_iter().map(str::to_owned)),
                    // A sensor that the kernel lacks is left out; the numbers of its streams stay
                    // free.
                    Err(why) => {
                        notes.push(format!("there is no sensor {}, because {why}", feed.sensor));
                        continue;
                    }
                }
            }
            let (rings, more) = rings_of(&slot, number, feed, numbering)?;
            streams.extend(more);
            granted_bytes += rings.element_bytes();
            all_rings.push((rings, number, feed.clone()));
        }
        Ok(Self {
            streams,
            phase: Phase::New,
            is_paused: false,
            notes,
            granted_bytes,
            recursion_misses: RecursionMisses::new(),
            moves_seen: None,
            slot: Some(slot),
            rings: all_rings,
            numbering,
        })
    }

    /// Attaches probes, whose feeds are numbered from `number` on.
    pub(crate) fn probe(
        &mut self,
        probes: &[ResolvedProbe],
        feeds: &[Feed],
        number: u32,
        numbering: Numbering,
    ) -> Result<(), ProbeError> {
        let Some(slot) = &mut self.slot else {
            return Ok(());
        };
        for (offset, (probe, feed)) in probes.iter().zip(feeds).enumerate() {
            let rings = rings_of(slot, number + offset as u32, feed, numbering);
            let (rings, streams) = rings.map_err(|why| ProbeError::NeedsBpf { why })?;
            slot.probe(probe, feed.slot)?;
            self.streams.extend(streams);
            self.granted_bytes += rings.element_bytes();
            self.rings
                .push((rings, number + offset as u32, feed.clone()));
        }
        Ok(())
    }

    /// Hands the monitor over; on failure it stays. See `hand_over.rs`.
    pub(crate) fn give(&mut self, to: BorrowedFd<'_>, message: &str) -> Result<(), GiveError> {
        let slot = self.slot.as_ref().ok_or(GiveError::Finished)?;
        if slot.has_bound_probes() {
            return Err(GiveError::Probes);
        }
        slot.close_to_others()
            .map_err(|others| GiveError::Shared { others })?;
        let mut streams = self.streams.iter();
        let cpus = self.numbering.cpus() as usize;
        let feeds = self.rings.iter().map(|(_, number, feed)| FeedState {
            number: *number,
            feed: feed.clone(),
            progress: streams
                .by_ref()
                .take(cpus)
                .map(KernelStream::progress)
                .collect(),
        });
        let feeds = feeds.collect();
        let buffers = self.rings.iter().map(|(it, ..)| it.map.as_fd()).collect();
        let sent = slot.with_files(buffers, |files, writers, points| {
            let handover = HandoverMessage {
                numbering: self.numbering,
                number: slot.number,
                moves_seen: self.moves_seen,
                feeds,
                links: files.links.len(),
                writers,
                points,
                baseline: slot.baseline().clone(),
                message: message.to_owned(),
            };
            let mut body = Encoder::default();
            body.words([KIND]);
            pack(&handover, &mut body);
            fd_transfer::send_message(to, &body.0, &files.in_order())
        });
        if let Err(error) = sent {
            slot.reopen();
            let why = machine::error_text(error);
            return Err(GiveError::Send { why });
        }
        if let Some(slot) = self.slot.take() {
            slot.disown();
        }
        Ok(())
    }

    /// Receives a monitor that another process hands over, and the message of its status.
    pub(crate) fn receive(
        body_untrusted: Decoder<'_>,
        files_untrusted: Vec<OwnedFd>,
    ) -> Result<(Self, Numbering, String), ReceiveError> {
        let (handover, mut files) =
            unpack(body_untrusted, files_untrusted).ok_or(ReceiveError::InvalidMessage)?;
        let numbering = handover.numbering;
        let (mut streams, mut all_rings, mut granted_bytes) = (Vec::new(), Vec::new(), 0);
        for (feeds, map) in handover.feeds.iter().zip(files.buffers.drain(..)) {
            let feed = &feeds.feed;
            let rings = Rings::received(map, feed, numbering);
            let rings = rings.ok_or(ReceiveError::InvalidMessage)?;
            let geometry = rings.geometry();
            for (cpu, progress) in (0..numbering.cpus()).zip(&feeds.progress) {
                let reader = Reader::from_position(rings.of_cpu(cpu), geometry, progress.position);
                let reader = reader.map_err(|_| ReceiveError::InvalidMessage)?;
                let descriptor = numbering.describe(feeds.number, feed, cpu, geometry.capacity());
                let stream = KernelStream::new(descriptor, feed, reader);
                streams.push(stream.resumed(progress));
            }
            granted_bytes += rings.element_bytes();
            all_rings.push((rings, feeds.number, feed.clone()));
        }
        let slot =
            MonitorSlot::received(&handover, files).map_err(|error| ReceiveError::Refused {
                why: machine::error_text(error),
            })?;
        let source = Self {
            streams,
            phase: Phase::New,
            // The giver may have suspended it.
            is_paused: true,
            notes: Vec::new(),
            granted_bytes,
            recursion_misses: RecursionMisses::new(),
            moves_seen: handover.moves_seen,
            slot: Some(slot),
            rings: all_rings,
            numbering,
        };
        Ok((source, numbering, handover.message))
    }

    /// Sensors and events that this kernel lacks, as phrases.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether there are streams of this sensor.
    pub(crate) fn has_sensor(&self, sensor: &str) -> bool {
        let mut streams = self.streams.iter();
        streams.any(|stream| stream.descriptor.sensor == sensor)
    }

    /// Number of elements in each ring of a sensor.
    pub(crate) fn ring_elements(&self, sensor: Sensor) -> Option<u64> {
        let mut streams = self.streams.iter();
        let stream = streams.find(|stream| stream.hook == sensor.hook())?;
        Some(stream.descriptor.capacity)
    }

    /// Number of elements in each ring of a probe.
    pub(crate) fn probe_ring_elements(&self, probe: &Probe) -> Option<u64> {
        let (sensor, instance) = (probe.sensor(), probe.instance());
        let mut streams = self.streams.iter();
        let stream = streams.find(|stream| {
            stream.descriptor.sensor == sensor && stream.descriptor.instance == instance
        })?;
        Some(stream.descriptor.capacity)
    }

    /// Size of all rings in bytes.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.granted_bytes
    }

    /// Number of elements that the programs have committed to a stream.
    pub(crate) fn committed(&self, id: StreamId) -> Option<u64> {
        let stream = self.streams.iter().find(|s| s.descriptor.id == id)?;
        Some(stream.reader.published())
    }

    /// Run count and run time of the programs of a sensor; `None` if it is not recorded.
    pub(crate) fn prog_stats(&self, sensor: &str) -> Option<ProgStats> {
        let mut rings = self.rings.iter().map(|(.., feed)| feed.hook);
        let hook = rings.find(|hook| *hook != Hook::Probe && hook.sensor() == sensor)?;
        Some(self.slot.as_ref()?.prog_stats(hook))
    }

    /// Resumes or suspends the monitor.
    pub(crate) fn set_active(&mut self, active: bool) {
        if active && self.is_paused {
            let now_ns = now_ns();
            let switches = self.streams.iter_mut().filter(|it| it.hook == Hook::Switch);
            switches.for_each(|stream| stream.resumptions.add(now_ns, now_ns));
        }
        self.is_paused = !active;
        if let Some(slot) = &self.slot {
            slot.set_active(active);
        }
    }

    /// Totals of each sensor but that of the lives of threads, which no budget switches.
    pub(crate) fn writes(&self) -> Vec<KernelWrites> {
        let cpus = self.numbering.cpus().max(1) as usize;
        let monitor = self.slot.as_ref();
        let of_sensor = |streams: &[KernelStream]| {
            let first = streams.first().filter(|it| it.hook != Hook::Life)?;
            let (slot, hook) = (first.slot, first.hook);
            let sum = |each: fn(&KernelStream) -> u64| streams.iter().map(each).sum();
            Some(KernelWrites {
                descriptor: Arc::clone(&first.descriptor),
                written: sum(|stream| stream.reader.published()),
                skipped: sum(KernelStream::skipped),
                is_detachable: monitor.is_some_and(|it| it.is_detachable(slot, hook)),
                is_attached: monitor.is_some_and(|it| it.is_attached(slot)),
            })
        };
        self.streams.chunks(cpus).filter_map(of_sensor).collect()
    }

    /// Switches a sensor for a budget. `id` is that of its first stream.
    pub(crate) fn switch(&mut self, id: StreamId, to: BudgetState) -> Result<(), String> {
        let mut rings = self.rings.iter();
        let feed = rings.find(|(_, number, _)| self.numbering.id(*number, 0) == id);
        match feed.map(|(.., feed)| (feed.hook, feed.slot)) {
            Some((hook, slot)) if hook != Hook::Life => self.switch_slot(slot, hook, to),
            _ => Ok(()),
        }
    }

    fn switch_slot(&mut self, ring_slot: u32, hook: Hook, to: BudgetState) -> Result<(), String> {
        let Some(slot) = &mut self.slot else {
            return Ok(());
        };
        let now_ns = now_ns();
        let to = match to {
            BudgetState::Detached if !slot.is_detachable(ring_slot, hook) => BudgetState::Counted,
            to => to,
        };
        let result = match to {
            BudgetState::On => {
                slot.set_off(ring_slot, false);
                Ok(())
            }
            BudgetState::Counted => {
                slot.set_off(ring_slot, true);
                Ok(())
            }
            BudgetState::Detached => slot.detach(ring_slot, hook),
        };
        for stream in self.streams.iter_mut().filter(|it| it.slot == ring_slot) {
            match to {
                BudgetState::Detached => stream.detached.push_back(now_ns),
                BudgetState::On if hook == Hook::Switch => stream.resumptions.add(now_ns, now_ns),
                _ => {}
            }
        }
        result.map_err(|error| {
            let why = machine::error_text(error);
            format!("there is no thread that detaches programs for the budget ({why})")
        })
    }

    /// Tracks all threads of a process and all that they create, without TRACKED elements.
    pub(crate) fn follow(&mut self, pid: u32) -> Result<(), SelectError> {
        self.track_process(pid, None, false)
    }

    /// As [`Self::follow`], for a process that is held before its execve.
    pub(crate) fn follow_held(&mut self, pid: u32) -> Result<(), SelectError> {
        self.track_process(pid, None, true)
    }

    /// Tracks all threads of a process and all that they create, with TRACKED elements.
    pub(crate) fn monitor_process(&mut self, pid: u32) -> Result<(), SelectError> {
        self.track_process(pid, Some(0), false)
    }

    /// As [`Self::monitor_process`], for a process that is held before its execve.
    pub(crate) fn monitor_held_process(&mut self, pid: u32) -> Result<(), SelectError> {
        self.track_process(pid, Some(0), true)
    }

    fn track_process(
        &mut self,
        pid: u32,
        announce: Option<u32>,
        held: bool,
    ) -> Result<(), SelectError> {
        let options = TrackOptions {
            inherit: true,
            announce,
            held,
        };
        let seen = self.track_all(Target::Process(pid), options, Operation::Track)?;
        if seen == 0 {
            return Err(SelectError::NoSuchProcess { pid });
        }
        Ok(())
    }

    /// Runs the selection until it changes nothing: if an untracked thread creates a thread, that
    /// one may escape a pass. Returns the number of threads that the last pass visited.
    fn track_all(
        &mut self,
        target: Target,
        options: TrackOptions,
        operation: Operation,
    ) -> Result<u64, SelectError> {
        let mut last = None;
        for _ in 0..FOLLOW_PASSES {
            let selected = self.run(operation, target, options)?;
            last = Some(selected);
            if selected.changed == 0 && selected.failed == 0 {
                break;
            }
        }
        match last {
            Some(Selected { failed: 1.., .. }) => Err(SelectError::Refused {
                what: name(target),
                why: "it has no memory for the marks of all threads".to_owned(),
            }),
            Some(selected) => Ok(selected.seen),
            None => Ok(0),
        }
    }

    /// Tracks one thread, but not what it creates.
    ///
    /// The kernel looks the id up once and holds the thread meanwhile. If the start time of the
    /// thread is the same before and afterwards, the id belonged to the same thread all the time.
    pub(crate) fn monitor_thread(&mut self, tid: u32, unique_id: u32) -> Result<(), SelectError> {
        let gone = || SelectError::NoSuchThread { tid };
        let before = machine::thread_start(tid).ok_or_else(gone)?;
        let options = TrackOptions {
            announce: Some(unique_id),
            ..TrackOptions::default()
        };
        let selected = self.run(Operation::Track, Target::Thread(tid), options)?;
        if selected.failed > 0 {
            return Err(SelectError::Refused {
                what: name(Target::Thread(tid)),
                why: "it has no memory for the thread's mark".to_owned(),
            });
        }
        match machine::thread_start(tid) {
            _ if selected.seen == 0 => Err(gone()),
            Some(after) if after != before => {
                let _ = self.run(
                    Operation::Untrack,
                    Target::Thread(tid),
                    TrackOptions::default(),
                );
                Err(gone())
            }
            // The thread has ended since, but it was the right one.
            _ => Ok(()),
        }
    }

    /// Stops tracking a thread.
    pub(crate) fn unmonitor_thread(&mut self, tid: u32) -> Result<(), SelectError> {
        let target = Target::Thread(tid);
        let selected = self.run(Operation::Untrack, target, TrackOptions::default())?;
        match selected {
            Selected { seen: 0, .. } => Err(SelectError::NoSuchThread { tid }),
            Selected { changed: 0, .. } => Err(SelectError::NotMonitored { tid }),
            _ => Ok(()),
        }
    }

    /// Tracks all threads in a cgroup and below it, as long as they are there.
    pub(crate) fn monitor_cgroup(&mut self, path: &Path) -> Result<(), SelectError> {
        let refuse = |why: String| SelectError::NoCgroup {
            path: path.to_path_buf(),
            why,
        };
        let status = rustix::fs::statfs(path).map_err(|e| refuse(machine::error_text(e)))?;
        if status.f_type as u64 != CGROUP2 {
            let why = "it is not in the unified cgroup hierarchy (cgroup2)";
            return Err(refuse(why.to_owned()));
        }
        // The id of the cgroup is the number of the inode.
        let metadata = fs::metadata(path).map_err(|e| refuse(machine::error_text(e)))?;
        if !metadata.is_dir() {
            return Err(refuse(
                "it is a file in a cgroup; name its folder".to_owned(),
            ));
        }
        let Some(slot) = &self.slot else {
            return Ok(());
        };
        slot.add_cgroup(metadata.ino())
            .map_err(|_| refuse("the maximum number of cgroups is monitored already".to_owned()))?;
        self.moves_seen = Some(slot.cgroup_moves());
        self.regroup()
    }

    /// Tracks the threads that are in the monitor's cgroups, and stops tracking those that have
    /// left them.
    fn regroup(&mut self) -> Result<(), SelectError> {
        let options = TrackOptions {
            announce: Some(0),
            ..TrackOptions::default()
        };
        self.track_all(Target::All, options, Operation::Regroup)?;
        Ok(())
    }

    /// Tracks all threads, and what they create, and records idle CPUs.
    pub(crate) fn monitor_all(&mut self) -> Result<(), SelectError> {
        if let Some(slot) = &self.slot {
            slot.set_everything(true);
        }
        let options = TrackOptions {
            inherit: true,
            announce: Some(0),
            held: false,
        };
        self.track_all(Target::All, options, Operation::Track)?;
        Ok(())
    }

    fn run(
        &self,
        operation: Operation,
        target: Target,
        options: TrackOptions,
    ) -> Result<Selected, SelectError> {
        let nothing = Selected {
            seen: 0,
            changed: 0,
            failed: 0,
        };
        let Some(slot) = &self.slot else {
            return Ok(nothing);
        };
        let selected = slot.select(operation, target, options);
        selected.map_err(|error| SelectError::Refused {
            what: name(target),
            why: match error.raw_os_error() {
                Some(libc::EINVAL) => "visiting selected tasks needs Linux 6.1 or newer".to_owned(),
                _ => machine::error_text(error),
            },
        })
    }

    pub(crate) fn poll(&mut self, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        if self.phase == Phase::Closed {
            return Ok(());
        }
        if self.phase == Phase::New {
            for stream in &self.streams {
                inbox.open(Arc::clone(&stream.descriptor));
            }
            self.phase = Phase::Open;
        }
        if let (Some(seen), Some(slot)) = (self.moves_seen, &self.slot) {
            // A poll makes a system call only if a process has moved.
            let moves = slot.cgroup_moves();
            if moves != seen {
                self.moves_seen = Some(moves);
                if let Err(error) = self.regroup() {
                    inbox.complain(SourceError(error.to_string()));
                }
            }
        }
        let problems = self.slot.as_ref().map(MonitorSlot::take_problems);
        for problem in problems.into_iter().flatten() {
            inbox.complain(SourceError(problem));
        }
        // All limits are read before the first element is delivered: elements that are committed
        // while this call runs are delivered by the next one.
        for stream in &mut self.streams {
            stream.limit = stream.reader.published();
        }
        let mut complaint = None;
        let mut is_all = true;
        for stream in &mut self.streams {
            match stream.poll(stream.limit, inbox) {
                Ok(read) => is_all &= read,
                Err(error) => {
                    complaint.get_or_insert(error);
                }
            }
        }
        if self.slot.is_none() && is_all {
            self.report_not_entered(inbox);
            for stream in self.streams.iter().filter(|stream| !stream.damaged) {
                inbox.close(stream.descriptor.id);
            }
            self.phase = Phase::Closed;
        }
        complaint.map_or(Ok(()), Err)
    }

    fn report_not_entered(&mut self, inbox: &mut dyn Inbox) {
        for (&ring_slot, &count) in &self.recursion_misses {
            let first = self
                .streams
                .iter_mut()
                .find(|stream| stream.slot == ring_slot);
            if let Some(stream) = first {
                stream.refuse(count, GapCause::Kernel, inbox);
            }
        }
    }

    /// Waits until threads that have announced their exit have left their CPUs, then ends.
    ///
    /// A process can be waited for a little before its last departure, and that departure has to be
    /// recorded, too. The wait is bounded, because a machine can be arbitrarily busy.
    pub(crate) fn finish(&mut self) {
        let Some(mut slot) = self.slot.take() else {
            return;
        };
        for _ in 0..LAST_DEPARTURE_STEPS {
            if self.ended(Hook::Switch) >= self.ended(Hook::Life) {
                break;
            }
            thread::sleep(LAST_DEPARTURE_STEP);
        }
        self.recursion_misses = slot.release();
    }

    fn ended(&self, hook: Hook) -> u64 {
        self.streams
            .iter()
            .filter(|stream| stream.hook == hook)
            .map(|stream| stream.header_word(layout::ENDED_OFFSET))
            .sum()
    }
}

/// Creates the rings of a feed and its streams, and makes the programs write into them.
fn rings_of(
    slot: &MonitorSlot,
    number: u32,
    feed: &Feed,
    numbering: Numbering,
) -> Result<(Rings, Vec<KernelStream>), String> {
    let rings = Rings::create(number, feed, numbering)
        .and_then(|rings| slot.set_rings(feed.slot, &rings).map(|()| rings))
        .map_err(|error| {
            let why = machine::error_text(error);
            format!("the rings of {} could not be made ({why})", feed.sensor)
        })?;
    let geometry = rings.geometry();
    let stream = |cpu| {
        let reader = Reader::from_start(rings.of_cpu(cpu), geometry);
        let reader = reader.map_err(|error| error.to_string())?;
        let descriptor = numbering.describe(number, feed, cpu, geometry.capacity());
        Ok(KernelStream::new(descriptor, feed, reader))
    };
    let streams: Result<Vec<_>, String> = (0..numbering.cpus()).map(stream).collect();
    Ok((rings, streams?))
}

/// The name of a target, for error messages.
fn name(target: Target) -> String {
    match target {
        Target::Thread(tid) => format!("thread {tid}"),
        Target::Process(pid) => format!("process {pid}"),
        Target::All => "the threads of this machine".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::StreamId;

    use super::stream::tests::{Delivered, Log};
    use super::{BpfSource, GapCause, Hook, Settings};
    use crate::streams::Numbering;

    #[test]
    fn recursion_misses_are_a_gap_at_the_end() {
        let settings = Settings {
            numbering: Numbering::new(StreamId::from_raw(0), 2, 3),
            feeds: Hook::SCHED.map(|hook| hook.feed(8)).to_vec(),
            left_out: Vec::new(),
            mask_interrupts: true,
            dedicated_programs: false,
        };
        let mut source = match BpfSource::start(&settings) {
            Ok(source) => source,
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        };
        let mut log = Log::default();
        source.poll(&mut log).unwrap();
        source.finish();
        source.recursion_misses = [(Hook::Wake as u32, 3)].into();
        source.poll(&mut log).unwrap();
        source.poll(&mut log).unwrap();
        let mut expected = vec![Delivered::Gap(0, 3, GapCause::Kernel)];
        expected.resize_with(1 + 6, || Delivered::Closed);
        assert_eq!(log.0, expected);
    }
}
