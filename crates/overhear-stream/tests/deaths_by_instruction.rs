// SPDX-License-Identifier: MIT OR Apache-2.0
//! A writer dies at every instruction of a write and a commit, and of a claim.
//!
//! The memory is shared. A child process writes; this process lets it execute one instruction after
//! the other (`ptrace`), and copies the memory after each, because only the memory would survive a
//! death: committed elements are readable, nothing is torn, the count never goes back, and another
//! writer continues. Around every change, and at some other instructions, the child really dies.
//! `native/tests/deaths.c` is the same for C.
#![cfg(all(target_os = "linux", not(any(loom, miri))))]

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::FromRawFd;
use std::ptr::{null_mut, NonNull};

use memmap2::{MmapOptions, MmapRaw};
use overhear_event::{ClockId, Ticks};
use overhear_stream::sync::Ordering;
use overhear_stream::{
    Claimant, ControlLayout, ControlLine, Frame, Geometry, Lane, LaneClaims, LanePool, OwnedWords,
    QueueGeometry, QueueWriter, ReadItem, Reader, Shape, SharedWords, SimpleWriter, Words,
};

const PAYLOAD: u32 = 16;
const CAPACITY: u64 = 2;
/// Elements that exist before the child writes: the ring is lapped.
const BEFORE: u64 = 3;
/// Numbers of the child's elements: one in one call, one in several.
const WRITES: u64 = 2;
const CHILD: Claimant = Claimant {
    tid: 77,
    number: NonZeroU64::MIN,
};

/// The numbers of the child's elements.
const WRITTEN: std::ops::Range<u64> = BEFORE..BEFORE + WRITES;

/// The sensor that the child writes to, and the writer that continues afterwards.
trait Subject: Sized {
    /// The same memory with other owners: a copy of the state after a death.
    fn left(&self) -> Self;
    /// The work of the child: elements with the numbers of [`WRITTEN`].
    fn live(&self);
    /// A reader from the stream's start.
    fn reader(&self) -> Reader<SharedWords>;
    /// The state that a death may change besides the elements: the owner of the lane.
    fn owner(&self) -> u64 {
        0
    }
    /// Another writer continues, after a death or at the beginning, with an element of this value.
    fn go_on(&self, value: u64);
    /// Elements that a death may lose for ever, checked last.
    fn conclude(&self) {}
}

/// Zeros that a forked child shares: a file without a name.
fn shared_memory(bytes: usize) -> MmapRaw {
    // SAFETY: the name is a string that ends with a zero byte; the descriptor belongs to the file.
    let file = unsafe {
        let file = libc::memfd_create(c"deaths".as_ptr(), libc::MFD_CLOEXEC);
        assert!(file >= 0, "{}", std::io::Error::last_os_error());
        File::from_raw_fd(file)
    };
    file.set_len(bytes as u64).unwrap();
    MmapOptions::new().map_raw(&file).unwrap()
}

fn words(map: &MmapRaw, start: usize) -> SharedWords {
    // SAFETY: the map has these words, aligned to a page; both processes reach them through words
    // alone, which are kept beside the map or used before it ends.
    unsafe {
        let base = map.as_mut_ptr().add(start).cast();
        SharedWords::new(NonNull::new(base).unwrap(), (map.len() - start) / 8)
    }
}

/// The memory of a sensor, as its directory makes it.
fn sensor_memory(shape: Shape) -> MmapRaw {
    let map = shared_memory(shape.bytes());
    shape.store(&words(&map, 0), ClockId::Monotonic, 1);
    map
}

/// A copy of the words. The child that writes them is stopped.
fn copy(from: &impl Words, to: &impl Words) {
    for index in 0..from.len() {
        let word = from.word(index).load(Ordering::Relaxed);
        to.word(index).store(word, Ordering::Relaxed);
    }
}

fn copy_of(map: &MmapRaw) -> MmapRaw {
    let copied = MmapOptions::new().len(map.len()).map_anon().unwrap();
    let copied = MmapRaw::from(copied);
    copy(&words(map, 0), &words(&copied, 0));
    copied
}

fn payload(value: u64) -> [u8; PAYLOAD as usize] {
    let mut payload = [0; PAYLOAD as usize];
    for (at, chunk) in payload.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(value * 1000 + at as u64).to_ne_bytes());
    }
    payload
}

/// A simple sensor.
struct Simple {
    geometry: Geometry,
    map: MmapRaw,
}

impl Simple {
    fn new() -> Self {
        let geometry = Geometry::new(PAYLOAD, CAPACITY).unwrap();
        let map = sensor_memory(Shape::Simple(geometry));
        Self { geometry, map }
    }

    fn writer(&self) -> SimpleWriter<SharedWords> {
        SimpleWriter::new(words(&self.map, 0), self.geometry).unwrap()
    }
}

impl Subject for Simple {
    fn left(&self) -> Self {
        let (geometry, map) = (self.geometry, copy_of(&self.map));
        Self { geometry, map }
    }

    fn live(&self) {
        let mut writer = self.writer();
        for value in WRITTEN {
            writer.write(&payload(value), || Ticks::from_raw(value));
        }
    }

    fn reader(&self) -> Reader<SharedWords> {
        Reader::from_start(words(&self.map, 0), self.geometry).unwrap()
    }

    fn go_on(&self, value: u64) {
        let mut writer = self.writer();
        assert_eq!(writer.count(), value, "it goes on behind the dead one");
        writer.write(&payload(value), || Ticks::from_raw(value));
    }
}

/// A pool of one lane.
struct Pool {
    claims: LaneClaims<SharedWords, OwnedWords>,
    control: ControlLine<OwnedWords>,
    // The memory of the control line.
    page: OwnedWords,
    lane: Lane<SharedWords>,
    shape: LanePool,
    // Dropped last: the words above point into it.
    map: MmapRaw,
}

impl Pool {
    fn new() -> Self {
        let shape = LanePool::new(PAYLOAD, CAPACITY, 1).unwrap();
        let lines = ControlLayout::new(ControlLayout::lines_of_sensor(1)).unwrap();
        let page = OwnedWords::zeroed(lines.bytes() / 8);
        Self::of(shape, sensor_memory(Shape::Laned(shape)), page)
    }

    fn of(shape: LanePool, map: MmapRaw, page: OwnedWords) -> Self {
        let line = || ControlLine::new(page.share(), 0, 1).unwrap();
        let (all, lane) = (words(&map, 0), words(&map, shape.lane_offset(0)));
        Self {
            claims: LaneClaims::new(all, shape, Some(line())).unwrap(),
            control: line(),
            page,
            lane: Lane::new(lane, *shape.lane()).unwrap(),
            shape,
            map,
        }
    }

    fn claim(&self, thread: Claimant) -> bool {
        let lane = self.claims.claim(thread, |_| self.lane.take(thread.tid));
        lane.is_some()
    }

    fn write(&self, value: u64) {
        let frame = Frame::from_raw(64, 0);
        let stamp = || Ticks::from_raw(value);
        let _ = self.lane.write(frame, |_, _| false, &payload(value), stamp);
    }
}

impl Subject for Pool {
    fn left(&self) -> Self {
        let page = OwnedWords::zeroed(self.page.len());
        copy(&self.page, &page);
        Self::of(self.shape, copy_of(&self.map), page)
    }

    fn live(&self) {
        self.claim(CHILD);
        for value in WRITTEN {
            if value % 2 == 0 {
                self.write(value);
                continue;
            }
            let stamp = || Ticks::from_raw(value);
            let _ = self.lane.begin(Frame::from_raw(64, 0), |_, _| false, stamp);
            self.lane.fill(&payload(value));
            self.lane.commit(stamp);
        }
    }

    fn reader(&self) -> Reader<SharedWords> {
        let words = words(&self.map, self.shape.lane_offset(0));
        Reader::from_start(words, *self.shape.lane()).unwrap()
    }

    fn owner(&self) -> u64 {
        let words = words(&self.map, 0);
        overhear_stream::lane_owner(&words, &Shape::Laned(self.shape), 0)
    }

    fn go_on(&self, value: u64) {
        if self.owner() as u32 == CHILD.tid {
            let other = Claimant {
                tid: 78,
                number: NonZeroU64::MAX,
            };
            assert!(!self.claim(other), "nobody has said that the thread ended");
            self.control.reclaim(0, self.owner());
        }
        let next = Claimant {
            tid: 79,
            number: NonZeroU64::new(3 + value).unwrap(),
        };
        assert!(self.claim(next));
        self.write(value);
        // It ends as well.
        self.control.reclaim(0, self.owner());
    }
}

/// A concurrent sensor.
struct Queue {
    geometry: QueueGeometry,
    map: MmapRaw,
}

impl Queue {
    fn new() -> Self {
        let geometry = QueueGeometry::new(PAYLOAD, CAPACITY).unwrap();
        let map = sensor_memory(Shape::Concurrent(geometry));
        Self { geometry, map }
    }

    fn writer(&self) -> QueueWriter<SharedWords> {
        QueueWriter::new(words(&self.map, 0), self.geometry).unwrap()
    }
}

impl Subject for Queue {
    fn left(&self) -> Self {
        let (geometry, map) = (self.geometry, copy_of(&self.map));
        Self { geometry, map }
    }

    fn live(&self) {
        let writer = self.writer();
        for value in WRITTEN {
            let stamp = || Ticks::from_raw(value);
            if value % 2 == 0 {
                let _ = writer.write(CHILD.tid, &payload(value), stamp);
            } else if let Ok(mut taken) = writer.take() {
                taken.fill(&payload(value));
                taken.commit(CHILD.tid, stamp);
            }
        }
    }

    fn reader(&self) -> Reader<SharedWords> {
        Reader::from_start(words(&self.map, 0), self.geometry).unwrap()
    }

    fn go_on(&self, value: u64) {
        let writer = self.writer();
        let stamp = || Ticks::from_raw(value);
        let written = writer.write(78, &payload(value), stamp);
        written.expect("the dead one has one element at most");
    }

    fn conclude(&self) {
        let writer = self.writer();
        let all: Vec<_> = std::iter::from_fn(|| writer.take().ok()).collect();
        assert!(all.len() as u64 >= CAPACITY - 1, "{} are left", all.len());
        all.into_iter().for_each(std::mem::forget);
    }
}

/// The number of committed elements, as a reader that reads them all finds it: each is intact or
/// was overwritten.
fn committed(subject: &impl Subject) -> u64 {
    let mut reader = subject.reader();
    let mut passed = 0;
    let report = reader.poll_until(reader.published(), |found| match found {
        ReadItem::Element(element) => {
            assert_eq!(element.sequence, passed);
            assert_eq!(element.stamp.as_raw(), element.sequence);
            let own = &element.payload[element.payload.len() - PAYLOAD as usize..];
            assert_eq!(own, payload(element.sequence));
            passed += 1;
        }
        ReadItem::Missed { first, count } => {
            assert_eq!(first, passed);
            passed += count;
        }
    });
    let report = report.unwrap();
    assert_eq!((report.delivered + report.missed, report.void), (passed, 0));
    // One slot of a ring belongs to its writer; of a queue one element, while it is dequeued.
    let (least, most) = (passed.min(CAPACITY - 1), passed.min(CAPACITY));
    assert!((least..=most).contains(&report.delivered), "{report:?}");
    passed
}

/// A child that is stopped before its work.
struct Child(libc::pid_t);

impl Child {
    /// `None` if this machine does not permit single steps.
    fn start(subject: &impl Subject) -> Option<Self> {
        // SAFETY: the child calls nothing that another thread could have left locked: ptrace,
        // raise, the writer, which does not allocate, and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                if libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) != 0 {
                    libc::_exit(99);
                }
                libc::raise(libc::SIGSTOP);
                subject.live();
                libc::_exit(0);
            }
        }
        assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
        let child = Self(child);
        child.is_stopped().then_some(child)
    }

    /// Whether the child has stopped, or ended.
    fn is_stopped(&self) -> bool {
        let mut status = 0;
        // SAFETY: the status is a valid place for the result.
        let waited = unsafe { libc::waitpid(self.0, &mut status, 0) };
        assert_eq!(waited, self.0);
        libc::WIFSTOPPED(status)
    }

    /// Executes one instruction; returns false if the child has ended.
    fn step(&self) -> bool {
        // SAFETY: the child is stopped and traced by this thread.
        let stepped = unsafe {
            libc::ptrace(
                libc::PTRACE_SINGLESTEP,
                self.0,
                null_mut::<u8>(),
                null_mut::<u8>(),
            )
        };
        assert_eq!(stepped, 0, "{}", std::io::Error::last_os_error());
        self.is_stopped()
    }

    fn kill(self) {
        // SAFETY: this child was started here and has not been waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        assert!(!self.is_stopped());
    }
}

/// Dies after every instruction from the view of the others, and really dies if something has
/// changed.
fn die_everywhere<S: Subject>(make: impl Fn() -> S) {
    let make = || {
        let subject = make();
        (0..BEFORE).for_each(|value| subject.go_on(value));
        subject
    };
    let subject = make();
    let Some(child) = Child::start(&subject) else {
        println!("skipped: processes cannot be traced here");
        return;
    };
    let (mut steps, mut before, mut claimed) = (0_u64, BEFORE, subject.owner());
    let mut changes = Vec::new();
    while child.step() {
        steps += 1;
        let (now, owner) = (committed(&subject), subject.owner());
        assert!(now == before || now == before + 1, "at {steps}");
        assert!(
            owner == claimed || owner == claimed + (1 << 32) - 2,
            "at {steps}"
        );
        if (now, owner) != (before, claimed) {
            changes.push(steps);
        }
        (before, claimed) = (now, owner);
        goes_on(&subject.left(), &format!("behind instruction {steps}"));
    }
    assert_eq!(before, WRITTEN.end);
    println!("{steps} instructions, changes behind {changes:?}");

    // Real deaths: right before and after each change, and at instructions in between.
    let places = changes
        .iter()
        .flat_map(|change| [change - 1, *change])
        .chain((1..4).map(|part| steps * part / 4));
    for place in places {
        let subject = make();
        let child = Child::start(&subject).expect("it went well before");
        for _ in 0..place {
            assert!(child.step());
        }
        child.kill();
        goes_on(&subject, &format!("killed at {place}"));
    }
}

fn goes_on(subject: &impl Subject, place: &str) {
    let left = committed(subject);
    subject.go_on(left);
    assert_eq!(committed(subject), left + 1, "{place}");
    subject.conclude();
}

#[test]
fn writer_of_a_simple_sensor_may_die_at_every_instruction() {
    die_everywhere(Simple::new);
}

#[test]
fn thread_with_a_lane_may_die_at_every_instruction() {
    die_everywhere(Pool::new);
}

#[test]
fn thread_with_an_element_of_a_queue_may_die_at_every_instruction() {
    die_everywhere(Queue::new);
}
