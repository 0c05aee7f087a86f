// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ring of one CPU, and the meaning of its records.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use overhear_event::kernel::{Life, Switch};
use overhear_event::{GapCause, Inbox, SourceError, StreamDescriptor};
use overhear_stream::sync::Ordering;
use overhear_stream::Words;
use rustix::io::Errno;
use rustix::param::page_size;

use super::record::{self, Record, RecordKind, ThreadIds};
use super::sys;
use crate::mapping::{Access, MappedWords, Mapping};
use crate::monotonic::MonotonicClamp;
use crate::resumptions::Resumptions;
use crate::sampler::Sampler;
use crate::streams::{Hook, Numbering};

/// Offsets of the head, which the kernel moves, and the tail, which we move, in words.
const HEAD: usize = 1024 / 8;
const TAIL: usize = 1032 / 8;
/// Size of a switch record, from which the capacity of the ring is computed.
const SWITCH_RECORD_BYTES: u64 = 32;
/// Possible sizes of a ring in pages, tried from the largest on. An ordinary user may lock 516 KiB
/// per CPU; the first size takes that, with its header.
const RING_PAGES: [usize; 5] = [128, 64, 32, 16, 8];

/// One output stream: perf has no positions, so sequences are counted here.
pub(super) struct OutputStream {
    descriptor: Arc<StreamDescriptor>,
    clamp: MonotonicClamp,
    next: u64,
    /// Used by streams of switches only.
    pub(super) resumptions: Resumptions,
}

impl OutputStream {
    /// Continues with the element of this sequence, after the time of the last one.
    fn resumed(descriptor: Arc<StreamDescriptor>, [next, last_ns]: [u64; 2]) -> Self {
        Self {
            descriptor,
            clamp: MonotonicClamp::after(last_ns),
            next,
            resumptions: Resumptions::default(),
        }
    }

    /// The sequence of the next element, and the time of the last one.
    pub(super) fn progress(&self) -> [u64; 2] {
        [self.next, self.clamp.last_ns()]
    }

    fn element(&mut self, time_ns: u64, payload: &[u8], inbox: &mut dyn Inbox) {
        match self.clamp.clamp(time_ns) {
            Some(time) => {
                let payload = self.resumptions.mark(time_ns, payload);
                inbox.element(self.descriptor.id, self.next, time, &payload);
                self.next += 1;
            }
            None => self.gap(1, GapCause::Corrupt, inbox),
        }
    }

    fn gap(&mut self, missed: u64, cause: GapCause, inbox: &mut dyn Inbox) {
        if missed > 0 {
            inbox.gap(self.descriptor.id, self.next, missed, cause);
            self.next += missed;
        }
    }
}

/// The ring of one CPU and everything that writes to it.
pub(super) struct CpuRing {
    pub(super) cpu: u32,
    memory: MappedWords,
    pub(super) data_bytes: usize,
    pub(super) switches: OutputStream,
    pub(super) lives: OutputStream,
    /// Copied but not yet delivered: newer than the poll that found them.
    pub(super) pending: Vec<Record>,
    /// Lost records reported so far.
    pub(super) lost_seen: u64,
    /// Events of followed threads, with the thread they were opened on; closed when this value is
    /// dropped.
    pub(super) events: Vec<(u32, OwnedFd)>,
    /// Number of records that were lost by events which are closed already.
    pub(super) lost_by_closed: u64,
    /// Owns the ring, so it is closed last.
    pub(super) anchor: OwnedFd,
}

/// Names of threads, which records of fork and exit do not carry.
#[derive(Default)]
pub(super) struct Names(pub(super) HashMap<u32, [u8; 16]>);

impl Names {
    fn of(&self, tid: u32) -> [u8; 16] {
        self.0.get(&tid).copied().unwrap_or_default()
    }
}

/// State that depends on the records of all CPUs.
pub(super) struct ThreadStates {
    pub(super) names: Names,
    pub(super) sampler: Sampler,
    /// Threads that have executed a program of which nothing was mapped yet.
    pub(super) executing: BTreeSet<u32>,
}

impl ThreadStates {
    /// Whether a thread is tracked individually. The threads that it creates are not tracked, but
    /// the kernel still writes records about them.
    fn tracks_alone(&self, thread: ThreadIds) -> bool {
        self.sampler.follows_thread(thread.tid)
    }
}

/// Read state of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RingProgress {
    /// [`OutputStream::progress`] of switches and of lives.
    pub(super) outputs: [[u64; 2]; 2],
    pub(super) lost_seen: u64,
    pub(super) lost_by_closed: u64,
}

impl CpuRing {
    /// Maps the ring of this anchor: the largest permitted size, with at most `max_pages` pages.
    pub(super) fn create(
        anchor: OwnedFd,
        cpu: u32,
        numbering: Numbering,
        max_pages: usize,
    ) -> io::Result<Self> {
        let (memory, data_bytes) = map_largest(anchor.as_fd(), max_pages)?;
        let nothing = RingProgress::default();
        Ok(Self::new(
            anchor, memory, data_bytes, cpu, numbering, nothing,
        ))
    }

    /// Maps the ring of an anchor that another process has already mapped with this size.
    pub(super) fn received(
        anchor: OwnedFd,
        data_bytes: usize,
        cpu: u32,
        numbering: Numbering,
        progress: RingProgress,
    ) -> io::Result<Self> {
        let memory = map_ring(anchor.as_fd(), data_bytes)?;
        Ok(Self::new(
            anchor, memory, data_bytes, cpu, numbering, progress,
        ))
    }

    fn new(
        anchor: OwnedFd,
        memory: MappedWords,
        data_bytes: usize,
        cpu: u32,
        numbering: Numbering,
        progress: RingProgress,
    ) -> Self {
        let capacity = data_bytes as u64 / SWITCH_RECORD_BYTES;
        let output = |hook: Hook, progress| {
            // The size of a ring is in bytes; the capacity that is stated here is derived from it.
            let feed = hook.feed(0);
            let descriptor = numbering.describe(hook as u32, &feed, cpu, capacity);
            OutputStream::resumed(descriptor, progress)
        };
        let [switches, lives] = progress.outputs;
        Self {
            cpu,
            memory,
            data_bytes,
            switches: output(Hook::Switch, switches),
            lives: output(Hook::Life, lives),
            pending: Vec::new(),
            lost_seen: progress.lost_seen,
            events: Vec::new(),
            lost_by_closed: progress.lost_by_closed,
            anchor,
        }
    }

    /// Opens its streams in the inbox.
    pub(super) fn open(&self, inbox: &mut dyn Inbox) {
        inbox.open(Arc::clone(&self.switches.descriptor));
        inbox.open(Arc::clone(&self.lives.descriptor));
    }

    /// Closes its streams in the inbox.
    pub(super) fn close(&mut self, inbox: &mut dyn Inbox) {
        self.report_remaining_losses(inbox);
        inbox.close(self.switches.descriptor.id);
        inbox.close(self.lives.descriptor.id);
    }

    /// The read state of the ring.
    pub(super) fn progress(&self) -> RingProgress {
        RingProgress {
            outputs: [self.switches.progress(), self.lives.progress()],
            lost_seen: self.lost_seen,
            lost_by_closed: self.lost_by_closed,
        }
    }

    /// Copies the bytes that are available now, frees the room at once, and parses them.
    pub(super) fn fetch(&mut self) {
        // SYNC(perf-head): pairs with the kernel's barrier before it moves the head. The records
        // before the head are complete.
        let head = self.memory.word(HEAD).load(Ordering::Acquire);
        // Relaxed: only this thread stores the tail.
        let tail = self.memory.word(TAIL).load(Ordering::Relaxed);
        let bytes = self.copy(tail, head);
        // SYNC(perf-tail): pairs with the kernel's load of the tail. Our copies of the records
        // before it are complete before the kernel may overwrite them.
        self.memory.word(TAIL).store(head, Ordering::Release);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match record::split_first(rest) {
                Ok((record, after)) => {
                    if record.what != RecordKind::Other {
                        self.pending.push(record);
                    }
                    rest = after;
                }
                Err(record::Malformed) => {
                    let time_ns = self.pending.last().map_or(0, |record| record.time_ns);
                    let what = RecordKind::Damaged;
                    self.pending.push(Record { time_ns, what });
                    return;
                }
            }
        }
    }

    fn copy(&self, tail: u64, head: u64) -> Vec<u8> {
        let total = (head.wrapping_sub(tail) as usize).min(self.data_bytes);
        let start = tail as usize & (self.data_bytes - 1);
        let mut words = vec![0; total / 8];
        let until_end = ((self.data_bytes - start) / 8).min(words.len());
        let (first, second) = words.split_at_mut(until_end);
        let data = page_size() / 8;
        for (from, to) in [(data + start / 8, first), (data, second)] {
            let from = self.memory.range(from, to.len());
            for (to, from) in to.iter_mut().zip(from) {
                // Relaxed: SYNC(perf-head) and SYNC(perf-tail) order the copy.
                *to = from.load(Ordering::Relaxed);
            }
        }
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(super) fn deliver(
        &mut self,
        record: Record,
        threads_state: &mut ThreadStates,
        inbox: &mut dyn Inbox,
    ) {
        let Record { time_ns, what } = record;
        let life = |thread: ThreadIds, kind, comm| Life {
            tid: thread.tid,
            pid: thread.pid,
            parent_tid: 0,
            parent_pid: 0,
            kind,
            code: 0,
            cpu_ns: 0,
            comm,
        };
        let life = match what {
            RecordKind::Departure {
                thread,
                still_runnable,
            } => {
                let switch = departure(thread, still_runnable);
                self.switches.element(time_ns, &switch.to_payload(), inbox);
                return;
            }
            RecordKind::Arrival { thread } => {
                let switch = arrival(thread);
                self.switches.element(time_ns, &switch.to_payload(), inbox);
                return;
            }
            RecordKind::Lost { records } => {
                self.lost_seen += records;
                self.switches.gap(records, GapCause::Kernel, inbox);
                return;
            }
            RecordKind::Damaged => {
                self.switches.gap(1, GapCause::Corrupt, inbox);
                return;
            }
            RecordKind::Mapping { thread } => {
                threads_state.executing.remove(&thread.tid);
                return;
            }
            RecordKind::Other => return,
            RecordKind::Fork { parent, .. } if threads_state.tracks_alone(parent) => return,
            RecordKind::Fork { child, parent } => {
                let name = threads_state.names.of(parent.tid);
                threads_state.names.0.insert(child.tid, name);
                threads_state.sampler.follow(child.pid);
                Life {
                    parent_tid: parent.tid,
                    parent_pid: parent.pid,
                    ..life(child, Life::FORK, name)
                }
            }
            RecordKind::Exit { thread } => {
                if threads_state.executing.remove(&thread.tid) {
                    self.report_revoked_events(thread, inbox);
                }
                let name = threads_state
                    .names
                    .0
                    .remove(&thread.tid)
                    .unwrap_or_default();
                life(thread, Life::EXIT, name)
            }
            RecordKind::Tracked { thread, unique_id } => Life {
                code: unique_id,
                ..life(thread, Life::TRACKED, threads_state.names.of(thread.tid))
            },
            RecordKind::Untracked { thread } => {
                let name = threads_state
                    .names
                    .0
                    .remove(&thread.tid)
                    .unwrap_or_default();
                life(thread, Life::UNTRACKED, name)
            }
            RecordKind::Name { thread, comm, exec } => {
                threads_state.names.0.insert(thread.tid, comm);
                if exec {
                    threads_state.executing.insert(thread.tid);
                }
                life(thread, if exec { Life::EXEC } else { Life::NAME }, comm)
            }
        };
        self.lives.element(time_ns, &life.to_payload(), inbox);
    }

    /// Reports that the kernel has taken the thread's events away. It does so in the middle of an
    /// `exec` of a program with other privileges, or of one that the user may not read. From here
    /// on, neither the thread nor its children are recorded.
    ///
    /// The kernel then writes the record of an exit, too, although the thread still lives. Only the
    /// records distinguish the two cases, however short the program is: a thread that lives on with
    /// its events first maps the code of the program.
    fn report_revoked_events(&self, thread: ThreadIds, inbox: &mut dyn Inbox) {
        inbox.gap(
            self.switches.descriptor.id,
            self.switches.next,
            0,
            GapCause::Kernel,
        );
        inbox.complain(SourceError(format!(
            "process {} executed a program with other privileges, or one that this user may not \
             read: the kernel gives no more perf records of it; run overhear as root to record it",
            thread.pid
        )));
    }

    /// The kernel reports losses with the next record that fits; at the end there may be no such
    /// record.
    fn report_remaining_losses(&mut self, inbox: &mut dyn Inbox) {
        let counts = self
            .events
            .iter()
            .map(|(_, event)| sys::lost(event.as_fd()));
        let open: u64 = counts.map(Option::unwrap_or_default).sum();
        let total = open + self.lost_by_closed;
        let unreported = total.saturating_sub(self.lost_seen);
        self.lost_seen += unreported;
        self.switches.gap(unreported, GapCause::Kernel, inbox);
    }
}

fn departure(thread: ThreadIds, still_runnable: bool) -> Switch {
    let (prev_state, flag) = if still_runnable {
        (0, Switch::PREEMPTED)
    } else {
        (1, Switch::VOLUNTARY)
    };
    Switch {
        prev_tid: thread.tid,
        next_tid: Switch::UNKNOWN,
        prev_pid: thread.pid,
        next_pid: Switch::UNKNOWN,
        prev_state,
        flags: Switch::PREV_TRACKED | flag,
        prev_run_ns: Switch::UNKNOWN,
    }
}

fn arrival(thread: ThreadIds) -> Switch {
    Switch {
        prev_tid: Switch::UNKNOWN,
        next_tid: thread.tid,
        prev_pid: Switch::UNKNOWN,
        next_pid: thread.pid,
        prev_state: 0,
        flags: Switch::NEXT_TRACKED,
        prev_run_ns: Switch::UNKNOWN,
    }
}

/// Maps the largest ring that the limits of locked memory permit.
fn map_largest(anchor: BorrowedFd<'_>, max_pages: usize) -> io::Result<(MappedWords, usize)> {
    let mut last = Errno::INVAL.into();
    for pages in RING_PAGES.into_iter().filter(|&pages| pages <= max_pages) {
        let data_bytes = pages * page_size();
        match map_ring(anchor, data_bytes) {
            Ok(memory) => return Ok((memory, data_bytes)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn map_ring(anchor: BorrowedFd<'_>, data_bytes: usize) -> io::Result<MappedWords> {
    let bytes = page_size() + data_bytes;
    Ok(Mapping::new(anchor, bytes, Access::Write)?.part(0, bytes))
}

/// Whether a ring of a monitor can have `data_bytes` bytes.
pub(super) fn is_ring_size(data_bytes: u64) -> bool {
    let sizes = RING_PAGES.map(|pages| (pages * page_size()) as u64);
    sizes.contains(&data_bytes)
}
