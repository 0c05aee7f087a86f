// SPDX-License-Identifier: MIT OR Apache-2.0
//! The perf sensor: context-switch records for users whom the kernel does not let load BPF.
//!
//! Every CPU has a ring, owned by an *anchor* event that observes nobody. Following a thread
//! opens one event per CPU on it, which writes into that CPU's ring and is inherited by all that
//! the thread creates. (The kernel inherits only events that are bound to one CPU, if their
//! records go to a ring.) A record tells one side of a switch: a departure or an arrival.
//!
//! What differs from BPF, and cannot be helped: there are no wake-ups; a `sched_yield` looks like
//! a preemption, and so does a sleep that a pending signal prevented; exit codes and CPU times
//! are unknown; the last departure of a thread is not recorded, because the kernel drops its
//! events before. If the ring was full, the kernel says how many records it dropped but not of
//! which kind, so the gap is reported in the stream of switches, by far the most frequent.

mod record;
mod sys;

pub(crate) use sys::served_faults;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use overhear_event::kernel::{Life, Switch};
use overhear_event::{GapCause, Inbox, SourceError, StreamDescriptor, Timestamp};
use overhear_stream::sync::Ordering;
use overhear_stream::Words;
use rustix::io::Errno;
use rustix::param::page_size;

use crate::machine;
use crate::mapping::{Access, MappedWords, Mapping};
use crate::order::Order;
use crate::schedstat::{now_ns, Clerk};
use crate::streams::{Hook, Numbering};
use crate::SelectError;
use record::{Record, What, Who};

/// Offsets of the head, which the kernel moves, and the tail, which we move, in words.
const HEAD: usize = 1024 / 8;
const TAIL: usize = 1032 / 8;
/// Bytes of a switch record, for the stated capacity.
const SWITCH_RECORD_BYTES: u64 = 32;
/// As for BPF: how often a process' threads are listed until none is new.
const FOLLOW_PASSES: u32 = 100;
/// Sizes of a ring in pages that are tried, largest first. An ordinary user may lock 516 KiB per
/// CPU, which is what the first takes with its header.
const RING_PAGES: [usize; 5] = [128, 64, 32, 16, 8];

/// One output stream: perf has no positions, so sequences are counted here.
struct Output {
    descriptor: Arc<StreamDescriptor>,
    order: Order,
    next: u64,
}

impl Output {
    fn element(&mut self, time_ns: u64, payload: &[u8], inbox: &mut dyn Inbox) {
        match self.order.admit(time_ns) {
            Some(time) => {
                inbox.element(self.descriptor.id, self.next, time, payload);
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
struct CpuRing {
    cpu: u32,
    memory: MappedWords,
    data_bytes: usize,
    switches: Output,
    lives: Output,
    /// Copied but not yet delivered: newer than the poll that found them.
    pending: Vec<Record>,
    /// Lost records reported so far.
    lost_seen: u64,
    /// Events of followed threads, by their first thread; closed with this value.
    events: Vec<(u32, OwnedFd)>,
    /// What the events had lost that are closed already.
    lost_by_closed: u64,
    /// Owns the ring, so it is closed last.
    anchor: OwnedFd,
}

/// Names of threads, which records of fork and exit do not carry.
#[derive(Default)]
struct Names(HashMap<u32, [u8; 16]>);

impl Names {
    fn of(&self, tid: u32) -> [u8; 16] {
        self.0.get(&tid).copied().unwrap_or_default()
    }
}

/// What records of all CPUs contribute to.
struct Knowledge {
    names: Names,
    clerk: Clerk,
}

pub(crate) struct PerfSource {
    rings: Vec<CpuRing>,
    knowledge: Knowledge,
    clerk_descriptor: Arc<StreamDescriptor>,
    /// Threads that are monitored by themselves.
    threads: BTreeSet<u32>,
    active: bool,
    opened: bool,
    finished: bool,
    closed: bool,
}

impl PerfSource {
    /// Creates the rings; the phrase in the error follows "because".
    pub(crate) fn start(numbering: Numbering, max_pages: usize) -> Result<Self, String> {
        // Rings are of bytes; what they are said to hold is stated below.
        let feeds = Hook::SCHED.map(|hook| hook.feed(0));
        let mut rings = Vec::new();
        for cpu in machine::online_cpus() {
            if cpu >= numbering.cpus() {
                continue;
            }
            let anchor = match sys::open(sys::Target::Anchor, cpu) {
                Ok(anchor) => anchor,
                // The CPU went offline between the listing and here.
                Err(Errno::NODEV) => continue,
                Err(error) => return Err(explain_open(error)),
            };
            let (memory, data_bytes) = map_ring(&anchor, max_pages).map_err(explain_map)?;
            let capacity = data_bytes as u64 / SWITCH_RECORD_BYTES;
            let output = |hook: Hook| Output {
                descriptor: numbering.describe(hook as u32, &feeds[hook as usize], cpu, capacity),
                order: Order::default(),
                next: 0,
            };
            rings.push(CpuRing {
                cpu,
                memory,
                data_bytes,
                switches: output(Hook::Switch),
                lives: output(Hook::Life),
                pending: Vec::new(),
                lost_seen: 0,
                events: Vec::new(),
                lost_by_closed: 0,
                anchor,
            });
        }
        Ok(Self {
            rings,
            knowledge: Knowledge {
                names: Names::default(),
                clerk: Clerk::default(),
            },
            clerk_descriptor: numbering.describe_clerk(),
            threads: BTreeSet::new(),
            active: false,
            opened: false,
            finished: false,
            closed: false,
        })
    }

    pub(crate) fn follow(&mut self, pid: u32) -> Result<(), SelectError> {
        // A second set of events would record everything twice.
        if self.knowledge.clerk.follows(pid) {
            return Ok(());
        }
        let mut done = BTreeSet::new();
        for _ in 0..FOLLOW_PASSES {
            let threads = machine::threads_of(pid);
            let fresh: Vec<u32> = threads.difference(&done).copied().collect();
            if fresh.is_empty() {
                break;
            }
            for tid in fresh {
                match self.observe(tid, true) {
                    Ok(()) => {
                        let name = machine::thread_name(pid, tid);
                        self.knowledge.names.0.insert(tid, name);
                        done.insert(tid);
                    }
                    Err(Errno::SRCH) => {}
                    Err(error) => return Err(refused(format!("process {pid}"), error)),
                }
            }
        }
        if done.is_empty() {
            return Err(SelectError::NoSuchProcess { pid });
        }
        self.knowledge.clerk.follow(pid);
        Ok(())
    }

    /// Follows one thread, but not what it creates.
    ///
    /// The kernel looks the id up once for each CPU; that it was the same thread's each time
    /// follows from its start being the same before and afterwards.
    pub(crate) fn monitor_thread(&mut self, tid: u32, unique_id: u32) -> Result<(), SelectError> {
        let gone = || SelectError::NoSuchThread { tid };
        let before = machine::thread_start(tid).ok_or_else(gone)?;
        let pid = machine::process_of(tid).ok_or_else(gone)?;
        if !self.threads.insert(tid) {
            return Ok(());
        }
        let observed = match self.observe(tid, false) {
            Ok(()) if machine::thread_start(tid) == Some(before) => Ok(()),
            Ok(()) | Err(Errno::SRCH) => Err(gone()),
            Err(error) => Err(refused(format!("thread {tid}"), error)),
        };
        if observed.is_err() {
            self.close(tid);
            return observed;
        }
        let comm = machine::thread_name(pid, tid);
        self.knowledge.names.0.insert(tid, comm);
        let who = Who { tid, pid };
        self.tell(What::Tracked { who, unique_id });
        Ok(())
    }

    /// Follows a thread no more.
    pub(crate) fn unmonitor_thread(&mut self, tid: u32) -> Result<(), SelectError> {
        if !self.threads.contains(&tid) {
            return Err(match machine::thread_start(tid) {
                Some(_) => SelectError::NotMonitored { tid },
                None => SelectError::NoSuchThread { tid },
            });
        }
        self.close(tid);
        let pid = machine::process_of(tid).unwrap_or(tid);
        let who = Who { tid, pid };
        self.tell(What::Untracked { who });
        Ok(())
    }

    /// Puts a record of our own behind those that the kernel has written by now.
    fn tell(&mut self, what: What) {
        if let Some(ring) = self.rings.first_mut() {
            ring.fetch();
            let time_ns = now_ns();
            ring.pending.push(Record { time_ns, what });
        }
    }

    /// Closes the events of a thread that is monitored by itself.
    fn close(&mut self, tid: u32) {
        self.threads.remove(&tid);
        for ring in &mut self.rings {
            let lost = &mut ring.lost_by_closed;
            ring.events.retain(|(first, event)| {
                if *first == tid {
                    *lost += sys::lost(event.as_fd()).unwrap_or_default();
                }
                *first != tid
            });
        }
    }

    /// Resumes or suspends all events.
    pub(crate) fn set_active(&mut self, active: bool) {
        self.active = active;
        for (_, event) in self.rings.iter().flat_map(|ring| &ring.events) {
            sys::set_enabled(event.as_fd(), active);
        }
    }

    /// Bytes of all rings.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.data_bytes as u64).sum()
    }

    /// Opens the events of one thread, all or none.
    fn observe(&mut self, tid: u32, inherit: bool) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(self.rings.len());
        let target = sys::Target::Thread {
            tid,
            inherit,
            disabled: !self.active,
        };
        for ring in &self.rings {
            let event = match sys::open(target, ring.cpu) {
                Ok(event) => event,
                Err(Errno::NODEV) => continue,
                Err(error) => return Err(error),
            };
            sys::redirect(event.as_fd(), ring.anchor.as_fd())?;
            events.push((ring.cpu, event));
        }
        for (cpu, event) in events {
            if let Some(ring) = self.rings.iter_mut().find(|ring| ring.cpu == cpu) {
                ring.events.push((tid, event));
            }
        }
        Ok(())
    }

    pub(crate) fn poll(&mut self, inbox: &mut dyn Inbox) {
        if self.closed {
            return;
        }
        if !self.opened {
            for ring in &self.rings {
                inbox.open(Arc::clone(&ring.switches.descriptor));
                inbox.open(Arc::clone(&ring.lives.descriptor));
            }
            inbox.open(Arc::clone(&self.clerk_descriptor));
            self.opened = true;
        }
        // A thread moves between CPUs, and what is known of it (its name) must be applied in the
        // order of time, not ring by ring. Every record older than this moment is in a ring by
        // now; newer ones wait for the next poll, which sees their neighbours too.
        let limit = if self.finished { u64::MAX } else { now_ns() };
        let mut records = Vec::new();
        for (index, ring) in self.rings.iter_mut().enumerate() {
            ring.fetch();
            let due = ring.pending.iter().take_while(|r| r.time_ns <= limit);
            let due = due.count();
            records.extend(ring.pending.drain(..due).map(|record| (index, record)));
        }
        // The sort is stable: what one CPU recorded stays in its order.
        records.sort_by_key(|(_, record)| record.time_ns);
        for (index, record) in records {
            if let Some(ring) = self.rings.get_mut(index) {
                ring.deliver(record, &mut self.knowledge, inbox);
            }
        }
        if !self.finished {
            self.knowledge.clerk.sample_if_due();
        }
        self.knowledge
            .clerk
            .deliver(self.clerk_descriptor.id, inbox);
        if self.finished {
            for ring in &mut self.rings {
                ring.report_untold_losses(inbox);
                inbox.close(ring.switches.descriptor.id);
                inbox.close(ring.lives.descriptor.id);
            }
            inbox.close(self.clerk_descriptor.id);
            self.closed = true;
        }
    }

    /// Takes the last samples and stops all events. The rings remain for the last poll.
    pub(crate) fn finish(&mut self) {
        if self.finished {
            return;
        }
        self.knowledge.clerk.sample();
        self.set_active(false);
        self.finished = true;
    }
}

impl CpuRing {
    /// Copies the bytes that are there now, gives the room back at once, and parses.
    fn fetch(&mut self) {
        // SYNC(perf-head): pairs with the kernel's barrier before it moves the head. The records
        // before the head are complete.
        let head = self.memory.word(HEAD).load(Ordering::Acquire);
        // Relaxed: nobody but this thread stores the tail.
        let tail = self.memory.word(TAIL).load(Ordering::Relaxed);
        let bytes = self.copy(tail, head);
        // SYNC(perf-tail): pairs with the kernel's load of the tail. Our copies of the records
        // before it are complete before the kernel may overwrite them.
        self.memory.word(TAIL).store(head, Ordering::Release);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match record::split_first(rest) {
                Ok((record, after)) => {
                    if record.what != What::Other {
                        self.pending.push(record);
                    }
                    rest = after;
                }
                Err(record::Malformed) => {
                    let time_ns = self.pending.last().map_or(0, |record| record.time_ns);
                    let what = What::Damaged;
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

    fn deliver(&mut self, record: Record, knowledge: &mut Knowledge, inbox: &mut dyn Inbox) {
        let Record { time_ns, what } = record;
        let life = |who: Who, kind, comm| Life {
            tid: who.tid,
            pid: who.pid,
            parent_tid: 0,
            parent_pid: 0,
            kind,
            code: 0,
            cpu_ns: 0,
            comm,
        };
        let life = match what {
            What::Departure {
                who,
                still_runnable,
            } => {
                let switch = departure(who, still_runnable);
                self.switches.element(time_ns, &switch.to_payload(), inbox);
                return;
            }
            What::Arrival { who } => {
                let switch = arrival(who);
                self.switches.element(time_ns, &switch.to_payload(), inbox);
                return;
            }
            What::Lost { records } => {
                self.lost_seen += records;
                self.switches.gap(records, GapCause::Kernel, inbox);
                return;
            }
            What::Damaged => {
                self.switches.gap(1, GapCause::Corrupt, inbox);
                return;
            }
            What::Other => return,
            What::Fork { child, parent } => {
                let name = knowledge.names.of(parent.tid);
                knowledge.names.0.insert(child.tid, name);
                knowledge.clerk.follow(child.pid);
                Life {
                    parent_tid: parent.tid,
                    parent_pid: parent.pid,
                    ..life(child, Life::FORK, name)
                }
            }
            What::Exit { who } => {
                if machine::goes_on(who.pid, who.tid) {
                    self.say_deaf(who, inbox);
                }
                let name = knowledge.names.0.remove(&who.tid).unwrap_or_default();
                life(who, Life::EXIT, name)
            }
            What::Tracked { who, unique_id } => Life {
                code: unique_id,
                ..life(who, Life::TRACKED, knowledge.names.of(who.tid))
            },
            What::Untracked { who } => {
                let name = knowledge.names.0.remove(&who.tid).unwrap_or_default();
                life(who, Life::UNTRACKED, name)
            }
            What::Name { who, comm, exec } => {
                knowledge.names.0.insert(who.tid, comm);
                life(who, if exec { Life::EXEC } else { Life::NAME }, comm)
            }
        };
        self.lives.element(time_ns, &life.to_payload(), inbox);
    }

    /// The kernel says that a thread has ended, and it goes on: at an `exec` of a program with other
    /// privileges, or one that the user may not read, the kernel takes the thread's events away.
    /// What it and its children do from here on is not heard.
    fn say_deaf(&self, who: Who, inbox: &mut dyn Inbox) {
        inbox.gap(
            self.switches.descriptor.id,
            self.switches.next,
            0,
            GapCause::Kernel,
        );
        inbox.complain(SourceError(format!(
            "process {} executed a program with other privileges, or one that this user may not \
             read: the kernel gives no more perf records of it; run overhear as root to hear it",
            who.pid
        )));
    }

    /// The kernel tells of losses with the next record that fits; at the end there may be none.
    fn report_untold_losses(&mut self, inbox: &mut dyn Inbox) {
        let counts = self
            .events
            .iter()
            .map(|(_, event)| sys::lost(event.as_fd()));
        let open: u64 = counts.map(Option::unwrap_or_default).sum();
        let total = open + self.lost_by_closed;
        let untold = total.saturating_sub(self.lost_seen);
        self.lost_seen += untold;
        self.switches.gap(untold, GapCause::Kernel, inbox);
    }
}

fn departure(who: Who, still_runnable: bool) -> Switch {
    let (prev_state, flag) = if still_runnable {
        (0, Switch::PREEMPTED)
    } else {
        (1, Switch::VOLUNTARY)
    };
    Switch {
        prev_tid: who.tid,
        next_tid: Switch::UNKNOWN,
        prev_pid: who.pid,
        next_pid: Switch::UNKNOWN,
        prev_state,
        flags: Switch::PREV_TRACKED | flag,
        prev_run_ns: Switch::UNKNOWN,
    }
}

fn arrival(who: Who) -> Switch {
    Switch {
        prev_tid: Switch::UNKNOWN,
        next_tid: who.tid,
        prev_pid: Switch::UNKNOWN,
        next_pid: who.pid,
        prev_state: 0,
        flags: Switch::NEXT_TRACKED,
        prev_run_ns: Switch::UNKNOWN,
    }
}

/// Maps the largest ring that the limits of locked memory permit.
fn map_ring(anchor: &OwnedFd, max_pages: usize) -> Result<(MappedWords, usize), io::Error> {
    let mut last = Errno::INVAL.into();
    for pages in RING_PAGES.into_iter().filter(|&pages| pages <= max_pages) {
        let data_bytes = pages * page_size();
        let bytes = page_size() + data_bytes;
        match Mapping::new(anchor.as_fd(), bytes, Access::Write) {
            Ok(mapping) => return Ok((mapping.part(0, bytes), data_bytes)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The phrase that follows "because".
fn explain_open(error: Errno) -> String {
    match error {
        Errno::ACCESS | Errno::PERM => match machine::perf_event_paranoid() {
            Some(level) if level > 2 => format!(
                "perf_event_open needs kernel.perf_event_paranoid to be 2 or less, and it is {level}"
            ),
            _ => "the kernel refused perf_event_open, as a seccomp filter or security module does"
                .to_owned(),
        },
        Errno::MFILE | Errno::NFILE => "perf_event_open needs one file descriptor per CPU and more \
            for each followed process, and the limit is reached (see ulimit -n)"
            .to_owned(),
        Errno::NOSYS => "this kernel has no perf events".to_owned(),
        _ => format!("perf_event_open failed ({})", machine::error_text(error)),
    }
}

fn explain_map(error: io::Error) -> String {
    format!(
        "mapping a perf ring failed ({}; see kernel.perf_event_mlock_kb and ulimit -l)",
        machine::error_text(error)
    )
}

fn refused(what: String, error: Errno) -> SelectError {
    SelectError::Refused {
        what,
        why: match error {
            Errno::ACCESS | Errno::PERM => {
                "it belongs to another user or has privileges of its own".to_owned()
            }
            _ => explain_open(error),
        },
    }
}

impl Clerk {
    /// Hands the collected samples on.
    fn deliver(&mut self, id: overhear_event::StreamId, inbox: &mut dyn Inbox) {
        for (sequence, time_ns, sample) in self.take() {
            let time = Timestamp::from_monotonic_ns(time_ns);
            inbox.element(id, sequence, time, &sample.to_payload());
        }
    }
}
