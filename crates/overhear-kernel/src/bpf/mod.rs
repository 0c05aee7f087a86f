// SPDX-License-Identifier: MIT OR Apache-2.0
//! The BPF sensor: programs on scheduler tracepoints write rings, this module reads them.
//!
//! `sched.bpf.c` opens with the protocol. This side decides who is tracked first, reads the
//! rings without system calls, and turns what the headers count into gaps.
//!
//! One loss is counted neither by a ring nor by a program, because the program does not run: the
//! kernel does not enter a program on a CPU that is inside it already. That is rare, because
//! switches and wake-ups of others run with interrupts off; it takes an interrupt with a wake-up
//! while a thread is waking itself. The kernel counts such misses per program, without the CPU or
//! the time, and does not ask whether the thread was a tracked one. So they are read once, at the
//! end, and are one gap of cause `Kernel` in the stream of the hook's first CPU: an upper bound
//! of the elements missed, at a place that says "somewhere on this hook".

mod layout;
mod load;

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, MapHandle, Object};
use overhear_event::{GapCause, Inbox, SourceError, StreamDescriptor, StreamId};
use overhear_stream::sync::Ordering;
use overhear_stream::{Found, Reader, Words};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{pidfd_open, Pid, PidfdFlags};

use load::Program;
pub(crate) use load::Settings;

use crate::machine;
use crate::mapping::MappedWords;
use crate::order::Order;
use crate::streams::Hook;
use crate::FollowError;

/// How often `follow` lists a process' threads before it gives up on one that creates threads
/// faster than they can be listed.
const FOLLOW_PASSES: u32 = 100;
/// How long `finish` waits for ended threads to leave their CPUs, in steps.
const LAST_DEPARTURE_STEPS: u32 = 200;
const LAST_DEPARTURE_STEP: Duration = Duration::from_micros(500);

/// One ring and what its stream has delivered so far.
struct KernelStream {
    descriptor: Arc<StreamDescriptor>,
    hook: Hook,
    reader: Reader<MappedWords>,
    order: Order,
    /// Refused elements already reported. They have no position in the ring but one in the
    /// stream, so sequences run ahead of positions by this much.
    refused: u64,
    nested_seen: u64,
    inherit_seen: u64,
    /// Nothing more can be said about it.
    damaged: bool,
}

impl KernelStream {
    fn new(descriptor: Arc<StreamDescriptor>, hook: Hook, reader: Reader<MappedWords>) -> Self {
        Self {
            descriptor,
            hook,
            reader,
            order: Order::default(),
            refused: 0,
            nested_seen: 0,
            inherit_seen: 0,
            damaged: false,
        }
    }

    /// A count in the header, which stands alone and orders nothing.
    fn header_word(&self, offset: usize) -> u64 {
        let word = self.reader.words().word(offset / 8);
        word.load(Ordering::Relaxed)
    }

    fn poll(&mut self, until: u64, inbox: &mut dyn Inbox) -> Result<(), SourceError> {
        if self.damaged {
            return Ok(());
        }
        let id = self.descriptor.id;
        let nested = self.header_word(layout::LOST_NESTED_OFFSET);
        let inherit = self.header_word(layout::LOST_INHERIT_OFFSET);
        let fresh = nested.wrapping_sub(self.nested_seen);
        self.refuse(fresh, GapCause::Nested, inbox);
        self.nested_seen = nested;
        let fresh = inherit.wrapping_sub(self.inherit_seen);
        self.refuse(fresh, GapCause::Kernel, inbox);
        self.inherit_seen = inherit;

        let (refused, order) = (self.refused, &mut self.order);
        let result = self.reader.poll_until(until, |found| match found {
            Found::Element(element) => {
                let sequence = element.sequence + refused;
                match order.admit(element.stamp.as_raw()) {
                    Some(time) => inbox.element(id, sequence, time, element.payload),
                    None => inbox.gap(id, sequence, 1, GapCause::Corrupt),
                }
            }
            Found::Missed { first, count } => {
                inbox.gap(id, first + refused, count, GapCause::Overwritten);
            }
        });
        // The ring is frozen and its programs only count upwards, so this needs a broken kernel.
        let Err(error) = result else { return Ok(()) };
        self.damaged = true;
        inbox.gap(id, self.next_sequence(), 0, GapCause::Corrupt);
        inbox.close(id);
        let label = self.descriptor.label();
        Err(SourceError(format!("{label}: {error}")))
    }

    fn next_sequence(&self) -> u64 {
        self.reader.position() + self.refused
    }

    fn refuse(&mut self, count: u64, cause: GapCause, inbox: &mut dyn Inbox) {
        if count > 0 && !self.damaged {
            inbox.gap(self.descriptor.id, self.next_sequence(), count, cause);
            self.refused += count;
        }
    }
}

/// The state of the source towards its inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Open,
    Closed,
}

/// Loaded programs and their rings.
pub(crate) struct BpfSource {
    streams: Vec<KernelStream>,
    phase: Phase,
    tracked: MapHandle,
    notes: Vec<&'static str>,
    /// How often the kernel did not enter each hook's programs; not yet reported.
    not_entered: [u64; 3],
    /// Dropping a link detaches its program, so the links go before the object.
    links: Vec<(&'static Program, Link)>,
    object: Object,
}

impl BpfSource {
    /// Loads and attaches; the phrase in the error follows "because".
    pub(crate) fn start(settings: &Settings) -> Result<Self, String> {
        let loaded = load::load(settings)?;
        let numbering = settings.numbering;
        let mut streams = Vec::new();
        for (hook, memory) in Hook::ALL.into_iter().zip(loaded.rings) {
            let schema = Arc::new(hook.schema());
            let geometry = settings.geometry(hook).map_err(|error| error.to_string())?;
            for cpu in 0..numbering.cpus() {
                let ring = memory.part(geometry.bytes() * cpu as usize, geometry.bytes());
                let reader =
                    Reader::from_start(ring, geometry).map_err(|error| error.to_string())?;
                let descriptor = numbering.describe(hook, cpu, &schema, geometry.capacity());
                streams.push(KernelStream::new(descriptor, hook, reader));
            }
        }
        Ok(Self {
            streams,
            phase: Phase::New,
            tracked: loaded.tracked,
            notes: loaded.notes,
            not_entered: [0; 3],
            links: loaded.links,
            object: loaded.object,
        })
    }

    /// What this kernel lacks, as phrases.
    pub(crate) fn notes(&self) -> &[&'static str] {
        &self.notes
    }

    /// How many elements the programs committed to a stream.
    pub(crate) fn committed(&self, id: StreamId) -> Option<u64> {
        let stream = self.streams.iter().find(|s| s.descriptor.id == id)?;
        Some(stream.reader.published())
    }

    /// Tracks all threads of a process.
    ///
    /// A thread created by one that is not tracked yet may escape a listing, so listings are
    /// repeated until one finds nobody new.
    pub(crate) fn follow(&mut self, pid: u32) -> Result<(), FollowError> {
        let mut done = BTreeSet::new();
        for _ in 0..FOLLOW_PASSES {
            let threads = machine::threads_of(pid);
            let fresh: Vec<u32> = threads.difference(&done).copied().collect();
            if fresh.is_empty() {
                break;
            }
            for tid in fresh {
                if self.track(pid, tid)? {
                    done.insert(tid);
                }
            }
        }
        if done.is_empty() {
            return Err(FollowError::NoSuchProcess { pid });
        }
        Ok(())
    }

    /// Tracks one thread; false if it has ended meanwhile.
    ///
    /// The storage starts with the thread's present count of voluntary switches. If the thread
    /// runs, the count may change between reading and storing, so it is read again afterwards.
    /// For a stopped or sleeping thread the first attempt is exact.
    fn track(&self, pid: u32, tid: u32) -> Result<bool, FollowError> {
        let Some(thread) = open_thread(pid, tid)? else {
            return Ok(false);
        };
        let key = thread.as_raw_fd().to_ne_bytes();
        let mut flags = MapFlags::NO_EXIST;
        for _ in 0..FOLLOW_PASSES {
            let Some(count) = machine::voluntary_switches(pid, tid) else {
                return Ok(false);
            };
            let stored = self.tracked.update(&key, &layout::tracking(count), flags);
            if let Err(error) = stored {
                if error.kind() == ErrorKind::AlreadyExists {
                    // Tracked already: created by a tracked thread, or followed before.
                    return Ok(true);
                }
                if machine::voluntary_switches(pid, tid).is_none() {
                    return Ok(false);
                }
                return Err(FollowError::Refused {
                    pid,
                    why: format!("task storage for thread {tid}: {error}"),
                });
            }
            if machine::voluntary_switches(pid, tid) == Some(count) {
                break;
            }
            flags = MapFlags::EXIST;
        }
        Ok(true)
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
        // All limits are taken before the first element is delivered: what is committed while
        // this call runs belongs to the next one.
        let limits: Vec<u64> = self.streams.iter().map(|s| s.reader.published()).collect();
        let mut complaint = None;
        for (stream, limit) in self.streams.iter_mut().zip(limits) {
            if let Err(error) = stream.poll(limit, inbox) {
                complaint.get_or_insert(error);
            }
        }
        if self.links.is_empty() {
            self.report_not_entered(inbox);
            for stream in self.streams.iter().filter(|stream| !stream.damaged) {
                inbox.close(stream.descriptor.id);
            }
            self.phase = Phase::Closed;
        }
        complaint.map_or(Ok(()), Err)
    }

    fn report_not_entered(&mut self, inbox: &mut dyn Inbox) {
        for (hook, count) in Hook::ALL.into_iter().zip(self.not_entered) {
            let first = self.streams.iter_mut().find(|stream| stream.hook == hook);
            if let Some(stream) = first {
                stream.refuse(count, GapCause::Kernel, inbox);
            }
        }
    }

    /// Waits until threads that have announced their exit have left their CPUs, then detaches.
    ///
    /// A process can be waited for a little before its last departure, and that one belongs to
    /// its story. The wait is bounded, because a machine can be arbitrarily busy.
    pub(crate) fn finish(&mut self) {
        for _ in 0..LAST_DEPARTURE_STEPS {
            if self.ended(Hook::Switch) >= self.ended(Hook::Life) {
                break;
            }
            thread::sleep(LAST_DEPARTURE_STEP);
        }
        // Detached first: then the counts are final.
        for (known, link) in self.links.drain(..) {
            drop(link);
            let program = self.object.progs().find(|p| p.name() == known.name);
            if let Some(program) = program {
                self.not_entered[known.hook as usize] += not_entered(program.as_fd());
            }
        }
    }

    fn ended(&self, hook: Hook) -> u64 {
        self.streams
            .iter()
            .filter(|stream| stream.hook == hook)
            .map(|stream| stream.header_word(layout::ENDED_OFFSET))
            .sum()
    }
}

/// How often the kernel did not enter a program because its CPU was in it already; 0 before
/// Linux 5.12, which counts it first. The descriptor's file tells what `bpf_prog_info` has as
/// `recursion_misses`.
fn not_entered(program: BorrowedFd<'_>) -> u64 {
    let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
    let info = fs::read_to_string(path).unwrap_or_default();
    machine::field(&info, "recursion_misses:")
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

/// A file descriptor for exactly this thread; `None` if it has ended.
fn open_thread(pid: u32, tid: u32) -> Result<Option<rustix::fd::OwnedFd>, FollowError> {
    // PIDFD_THREAD is O_EXCL. Kernels before 6.9 refuse it; they know only leaders.
    let thread = PidfdFlags::from_bits_retain(OFlags::EXCL.bits());
    let Some(raw) = i32::try_from(tid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    let opened = match pidfd_open(raw, thread) {
        Err(Errno::INVAL) if pid == tid => pidfd_open(raw, PidfdFlags::empty()),
        other => other,
    };
    match opened {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::SRCH | Errno::NOENT) => Ok(None),
        Err(Errno::INVAL) => Err(FollowError::Refused {
            pid,
            why: "this kernel can follow a process only from its start (thread pidfds came \
                  with Linux 6.9)"
                .to_owned(),
        }),
        Err(error) => Err(FollowError::Refused {
            pid,
            why: format!("pidfd_open for thread {tid}: {error}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use overhear_event::Timestamp;
    use overhear_stream::{Geometry, COUNTER_OFFSET, HEADER_SIZE};
    use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

    use super::{layout, AsRawFd, BpfSource, KernelStream, MappedWords, Settings};
    use super::{Arc, GapCause, Hook, Inbox, Ordering, Reader, StreamDescriptor, StreamId, Words};
    use crate::mapping::{Access, Mapping};
    use crate::streams::Numbering;

    #[derive(Debug, PartialEq, Eq)]
    enum Told {
        Element(u64),
        Gap(u64, u64, GapCause),
        Closed,
    }

    #[derive(Default)]
    struct Log(Vec<Told>);

    impl Inbox for Log {
        fn open(&mut self, _: Arc<StreamDescriptor>) {}
        fn element(&mut self, _: StreamId, sequence: u64, _: Timestamp, _: &[u8]) {
            self.0.push(Told::Element(sequence));
        }
        fn gap(&mut self, _: StreamId, first: u64, missed: u64, cause: GapCause) {
            self.0.push(Told::Gap(first, missed, cause));
        }
        fn close(&mut self, _: StreamId) {
            self.0.push(Told::Closed);
        }
    }

    /// A ring of 8 wake-ups, and its memory as its programs see it.
    fn wakes() -> (KernelStream, MappedWords) {
        let geometry = Geometry::with_stride(24, 32, 8).unwrap();
        let file = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, geometry.bytes() as u64).unwrap();
        let mapping = Mapping::new(file.as_fd(), geometry.bytes(), Access::Write).unwrap();
        let part = || mapping.part(0, geometry.bytes());
        let numbering = Numbering::new(StreamId::from_raw(0), 1);
        let schema = Arc::new(Hook::Wake.schema());
        let descriptor = numbering.describe(Hook::Wake, 0, &schema, 8);
        let reader = Reader::from_start(part(), geometry).unwrap();
        (KernelStream::new(descriptor, Hook::Wake, reader), part())
    }

    #[test]
    fn refused_elements_take_part_in_the_sequence() {
        let (mut stream, memory) = wakes();
        let store = |offset: usize, value| memory.word(offset / 8).store(value, Ordering::Relaxed);
        let mut log = Log::default();
        store(COUNTER_OFFSET, 2);
        stream.poll(2, &mut log).unwrap();
        store(layout::LOST_NESTED_OFFSET, 3);
        store(layout::LOST_INHERIT_OFFSET, 1);
        // An element with a time far behind its predecessor's is not delivered.
        store(HEADER_SIZE + 3 * 32, 5_000_000_000);
        store(COUNTER_OFFSET, 5);
        stream.poll(5, &mut log).unwrap();
        store(COUNTER_OFFSET, 20);
        stream.poll(14, &mut log).unwrap();
        let expected = [
            Told::Element(0),
            Told::Element(1),
            Told::Gap(2, 3, GapCause::Nested),
            Told::Gap(5, 1, GapCause::Kernel),
            Told::Element(6),
            Told::Element(7),
            Told::Gap(8, 1, GapCause::Corrupt),
            Told::Gap(9, 8, GapCause::Overwritten),
            Told::Gap(17, 1, GapCause::Corrupt),
        ];
        assert_eq!(log.0, expected);
    }

    #[test]
    fn calls_that_entered_no_program_are_a_gap_at_the_end() {
        let settings = Settings {
            numbering: Numbering::new(StreamId::from_raw(0), 2),
            capacities: [8; 3],
            mask_interrupts: true,
        };
        let mut source = match BpfSource::start(&settings) {
            Ok(source) => source,
            Err(why) => {
                println!("skipped: {why}");
                return;
            }
        };
        for program in source.object.progs() {
            let path = format!("/proc/self/fdinfo/{}", program.as_fd().as_raw_fd());
            let info = std::fs::read_to_string(path).unwrap();
            // Linux 5.18, the oldest with all that the programs need, has the line.
            assert!(info.contains("\nrecursion_misses:\t"), "{info}");
        }
        let mut log = Log::default();
        source.poll(&mut log).unwrap();
        source.finish();
        source.not_entered = [0, 3, 0];
        source.poll(&mut log).unwrap();
        source.poll(&mut log).unwrap();
        let mut expected = vec![Told::Gap(0, 3, GapCause::Kernel)];
        expected.resize_with(1 + 6, || Told::Closed);
        assert_eq!(log.0, expected);
    }

    #[test]
    fn a_damaged_ring_ends_its_stream_once() {
        let (mut stream, memory) = wakes();
        let counter = memory.word(COUNTER_OFFSET / 8);
        counter.store(2, Ordering::Relaxed);
        let mut log = Log::default();
        stream.poll(2, &mut log).unwrap();
        counter.store(1, Ordering::Relaxed);
        let error = stream.poll(1, &mut log).unwrap_err();
        assert!(error.0.contains("went back"), "{error}");
        stream.poll(1, &mut log).unwrap();
        assert_eq!(
            log.0[2..],
            [Told::Gap(2, 0, GapCause::Corrupt), Told::Closed]
        );
    }
}
