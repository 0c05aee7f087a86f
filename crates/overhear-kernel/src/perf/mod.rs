// SPDX-License-Identifier: MIT OR Apache-2.0
//! The perf backend: context-switch records, for users who may not load BPF programs.
//!
//! Every CPU has a ring, owned by an *anchor* event that observes no thread. To follow a thread,
//! one event per CPU is opened on it; the event writes to the ring of that CPU, and all children of
//! the thread inherit it. (The kernel inherits an event whose records go to a ring only if the
//! event is bound to one CPU.) A record has one side of a switch: a departure or an arrival.
//!
//! Limits, compared to BPF: there are no wake-ups. A `sched_yield` looks like a preemption, and so
//! does a sleep that a pending signal prevented. Exit codes and CPU times are unknown. The last
//! departure of a thread is not recorded, because the kernel drops its events before. If a ring was
//! full, the kernel reports the number of dropped records but not their kind, so the gap is in the
//! stream of switches, by far the most frequent kind.

mod hand_over;
mod record;
mod ring;
mod sys;

pub(crate) use hand_over::KIND;
pub(crate) use sys::{clock, faults, served_faults, tracepoint};

use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use overhear_event::{Inbox, StreamDescriptor, Timestamp};
use overhear_sampling::perf_event::{perf_event_paranoid, set_enabled};
use rustix::io::Errno;

use crate::machine;
use crate::sampler::{now_ns, Sampler};
use crate::streams::Numbering;
use crate::SelectError;
use record::{Record, RecordKind, ThreadIds};
use ring::{CpuRing, Names, ThreadStates};

/// As for BPF: maximum number of passes over the threads of a process until no thread is new.
const FOLLOW_PASSES: u32 = 100;

pub(crate) struct PerfSource {
    rings: Vec<CpuRing>,
    threads_state: ThreadStates,
    numbering: Numbering,
    sampler_descriptor: Arc<StreamDescriptor>,
    active: bool,
    opened: bool,
    finished: bool,
    closed: bool,
}

impl PerfSource {
    /// Creates the rings; the phrase in the error follows "because".
    pub(crate) fn start(numbering: Numbering, max_pages: usize) -> Result<Self, String> {
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
            rings.push(CpuRing::create(anchor, cpu, numbering, max_pages).map_err(explain_map)?);
        }
        Ok(Self {
            rings,
            threads_state: ThreadStates {
                names: Names::default(),
                sampler: Sampler::default(),
                executing: BTreeSet::new(),
            },
            numbering,
            sampler_descriptor: numbering.describe_sampler(),
            active: false,
            opened: false,
            finished: false,
            closed: false,
        })
    }

    /// Tracks all threads of a process and all that they create, without TRACKED elements.
    pub(crate) fn follow(&mut self, pid: u32) -> Result<(), SelectError> {
        self.track_process(pid, false)
    }

    /// Tracks all threads of a process and all that they create, and announces them with TRACKED
    /// elements: otherwise the names of existing threads would be unknown.
    pub(crate) fn monitor_process(&mut self, pid: u32) -> Result<(), SelectError> {
        self.track_process(pid, true)
    }

    fn track_process(&mut self, pid: u32, announce: bool) -> Result<(), SelectError> {
        // A second set of events would record everything twice.
        if self.threads_state.sampler.follows(pid) {
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
                // The events of a thread that was tracked individually would be a second set, too.
                if self.threads_state.sampler.leave_thread(tid) {
                    self.close(tid);
                }
                match self.observe(tid, true) {
                    Ok(()) => {
                        let name = machine::thread_name(pid, tid);
                        self.threads_state.names.0.insert(tid, name);
                        done.insert(tid);
                        if announce {
                            let thread = ThreadIds { tid, pid };
                            let unique_id = 0;
                            self.push_record(RecordKind::Tracked { thread, unique_id });
                        }
                    }
                    Err(Errno::SRCH) => {}
                    Err(error) => return Err(refused(format!("process {pid}"), error)),
                }
            }
        }
        if done.is_empty() {
            return Err(SelectError::NoSuchProcess { pid });
        }
        self.threads_state.sampler.follow(pid);
        Ok(())
    }

    /// Follows one thread, but not the threads that it creates.
    ///
    /// The kernel looks the id up once for each CPU. If the start time of the thread is the same
    /// before and afterwards, the id belonged to the same thread all the time.
    pub(crate) fn monitor_thread(&mut self, tid: u32, unique_id: u32) -> Result<(), SelectError> {
        let gone = || SelectError::NoSuchThread { tid };
        let before = machine::thread_start(tid).ok_or_else(gone)?;
        let pid = machine::process_of(tid).ok_or_else(gone)?;
        let sampler = &mut self.threads_state.sampler;
        // It is tracked already: a second set of events would record everything twice.
        if sampler.follows(pid) || !sampler.follow_thread(tid, pid) {
            return Ok(());
        }
        let observed = match self.observe(tid, false) {
            Ok(()) if machine::thread_start(tid) == Some(before) => Ok(()),
            Ok(()) | Err(Errno::SRCH) => Err(gone()),
            Err(error) => Err(refused(format!("thread {tid}"), error)),
        };
        if observed.is_err() {
            self.threads_state.sampler.leave_thread(tid);
            self.close(tid);
            return observed;
        }
        let comm = machine::thread_name(pid, tid);
        self.threads_state.names.0.insert(tid, comm);
        let thread = ThreadIds { tid, pid };
        self.push_record(RecordKind::Tracked { thread, unique_id });
        Ok(())
    }

    /// Stops following a thread.
    pub(crate) fn unmonitor_thread(&mut self, tid: u32) -> Result<(), SelectError> {
        if !self.threads_state.sampler.leave_thread(tid) {
            return Err(match machine::thread_start(tid) {
                Some(_) => SelectError::NotMonitored { tid },
                None => SelectError::NoSuchThread { tid },
            });
        }
        self.close(tid);
        let pid = machine::process_of(tid).unwrap_or(tid);
        let thread = ThreadIds { tid, pid };
        self.push_record(RecordKind::Untracked { thread });
        Ok(())
    }

    /// Appends a record of our own to those that the kernel has written by now.
    fn push_record(&mut self, what: RecordKind) {
        if let Some(ring) = self.rings.first_mut() {
            ring.fetch();
            let time_ns = now_ns();
            ring.pending.push(Record { time_ns, what });
        }
    }

    /// Closes the events of a thread that is tracked individually.
    fn close(&mut self, tid: u32) {
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
        let from_ns = now_ns();
        for (_, event) in self.rings.iter().flat_map(|ring| &ring.events) {
            set_enabled(event.as_fd(), active);
        }
        if active != self.active {
            self.changed_since(from_ns);
        }
        self.active = active;
    }

    /// Marks the time from `from_ns` until now, in which events were enabled or disabled CPU by
    /// CPU: some of a thread's switches are recorded, others are not.
    fn changed_since(&mut self, from_ns: u64) {
        let until_ns = now_ns();
        for ring in self.rings.iter_mut().filter(|ring| !ring.events.is_empty()) {
            ring.switches.resumptions.add(from_ns, until_ns);
        }
    }

    /// Size of all rings in bytes.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.data_bytes as u64).sum()
    }

    /// Opens the events of one thread, all or none.
    fn observe(&mut self, tid: u32, inherit: bool) -> Result<(), Errno> {
        let from_ns = now_ns();
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
        if self.active && self.has_switched(tid, from_ns) {
            self.changed_since(from_ns);
        }
        Ok(())
    }

    /// Whether switches of this thread were recorded since then. This fetches records.
    fn has_switched(&mut self, tid: u32, since_ns: u64) -> bool {
        self.rings.iter_mut().any(|ring| {
            ring.fetch();
            let mut fresh = ring
                .pending
                .iter()
                .rev()
                .take_while(|it| it.time_ns >= since_ns);
            fresh.any(|record| match record.what {
                RecordKind::Departure { thread, .. } | RecordKind::Arrival { thread } => {
                    thread.tid == tid
                }
                _ => false,
            })
        })
    }

    pub(crate) fn poll(&mut self, inbox: &mut dyn Inbox) {
        if self.closed {
            return;
        }
        if !self.opened {
            for ring in &self.rings {
                ring.open(inbox);
            }
            inbox.open(Arc::clone(&self.sampler_descriptor));
            self.opened = true;
        }
        // A thread moves between CPUs, and its properties (its name) must be applied in the order
        // of time, not ring by ring. Every record older than this moment is in a ring by now; newer
        // ones wait for the next poll, which has the records of the other CPUs, too.
        let limit = if self.finished { u64::MAX } else { now_ns() };
        let mut records = Vec::new();
        for (index, ring) in self.rings.iter_mut().enumerate() {
            ring.fetch();
            let due = ring.pending.iter().take_while(|r| r.time_ns <= limit);
            let due = due.count();
            records.extend(ring.pending.drain(..due).map(|record| (index, record)));
        }
        // The sort is stable: records of one CPU stay in their order.
        records.sort_by_key(|(_, record)| record.time_ns);
        for (index, record) in records {
            if let Some(ring) = self.rings.get_mut(index) {
                ring.deliver(record, &mut self.threads_state, inbox);
            }
            // Soon another thread may have its id.
            if let RecordKind::Exit { thread } = record.what {
                if self.threads_state.sampler.leave_thread(thread.tid) {
                    self.close(thread.tid);
                }
            }
        }
        if !self.finished {
            self.threads_state.sampler.sample_if_due();
        }
        self.threads_state
            .sampler
            .deliver(self.sampler_descriptor.id, inbox);
        if self.finished {
            for ring in &mut self.rings {
                ring.close(inbox);
            }
            inbox.close(self.sampler_descriptor.id);
            self.closed = true;
        }
    }

    /// Takes the last samples and stops all events. The rings remain for the last poll.
    pub(crate) fn finish(&mut self) {
        if self.finished {
            return;
        }
        self.threads_state.sampler.sample();
        self.set_active(false);
        self.finished = true;
    }
}

/// The phrase that follows "because".
fn explain_open(error: Errno) -> String {
    match error {
        Errno::ACCESS | Errno::PERM => match perf_event_paranoid() {
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

impl Sampler {
    /// Delivers the collected samples.
    fn deliver(&mut self, id: overhear_event::StreamId, inbox: &mut dyn Inbox) {
        for (sequence, time_ns, sample) in self.take() {
            let time = Timestamp::from_monotonic_ns(time_ns);
            inbox.element(id, sequence, time, &sample.to_payload());
        }
    }
}
