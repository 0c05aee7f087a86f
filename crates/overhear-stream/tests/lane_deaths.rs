// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread dies at every instruction of a claim, a write, and a commit.
//!
//! The pool lies in shared memory. A child process claims a lane and writes; this process lets it
//! execute one instruction after the other (`ptrace`), and before each reads the lane as if the child
//! had died there: what was committed is readable, nothing is torn, the counter never goes back. At
//! some of the places the child dies indeed, and another thread takes the lane over.
#![cfg(all(target_os = "linux", not(any(loom, miri))))]

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::FromRawFd;
use std::ptr::{null_mut, NonNull};

use memmap2::{MmapOptions, MmapRaw};
use overhear_event::{ClockId, Ticks};
use overhear_stream::{
    Claimant, ControlLayout, ControlLine, Frame, Lane, LaneClaims, LanePool, OwnedWords, Reader,
    Shape, SharedWords,
};

const PAYLOAD: u32 = 40;
const WRITES: u64 = 3;
const CHILD: Claimant = Claimant {
    tid: 77,
    number: NonZeroU64::MIN,
};

/// A pool of one lane that a forked child shares.
struct Pool {
    claims: LaneClaims<SharedWords, OwnedWords>,
    control: ControlLine<OwnedWords>,
    lane: Lane<SharedWords>,
    shape: LanePool,
    // Dropped last: the words above point into it.
    map: MmapRaw,
}

impl Pool {
    fn new() -> Self {
        let shape = LanePool::new(PAYLOAD, 8, 1).unwrap();
        let map = shared_memory(shape.bytes());
        let lines = ControlLayout::new(ControlLayout::lines_of_sensor(1)).unwrap();
        let control = OwnedWords::zeroed(lines.bytes() / 8);
        let line = || ControlLine::new(control.share(), 0, 1).unwrap();
        let (all, lane) = (words(&map, 0), words(&map, shape.lane_offset(0)));
        Shape::Laned(shape).store(&all, ClockId::Monotonic, 1);
        Self {
            claims: LaneClaims::new(all, shape, Some(line())).unwrap(),
            control: line(),
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

    /// What the child does: a claim, elements in one call and in three, and its end.
    fn live(&self) {
        self.claim(CHILD);
        self.write(0);
        for value in 1..WRITES {
            let stamp = || Ticks::from_raw(value);
            let _ = self.lane.begin(Frame::from_raw(64, 0), |_, _| false, stamp);
            self.lane.fill(&payload(value));
            self.lane.commit(stamp);
        }
    }

    /// How many elements a reader finds; each must be whole.
    fn read(&self) -> u64 {
        let words = words(&self.map, self.shape.lane_offset(0));
        let mut reader = Reader::from_start(words, *self.shape.lane()).unwrap();
        let report = reader.poll(usize::MAX, |element| {
            assert_eq!(element.stamp.as_raw(), element.sequence);
            assert_eq!(element.payload[8..], payload(element.sequence));
        });
        let report = report.unwrap();
        assert_eq!((report.missed, report.void), (0, 0));
        report.delivered
    }

    fn owner(&self) -> u64 {
        let words = words(&self.map, 0);
        overhear_stream::lane_owner(&words, &Shape::Laned(self.shape), 0)
    }
}

/// Zeros that a forked child shares: a file that has no name any more.
fn shared_memory(bytes: usize) -> MmapRaw {
    // SAFETY: the name is a string that ends with a zero byte; the descriptor belongs to the file.
    let file = unsafe {
        let file = libc::memfd_create(c"lane_deaths".as_ptr(), libc::MFD_CLOEXEC);
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

fn payload(value: u64) -> [u8; PAYLOAD as usize] {
    let mut payload = [0; PAYLOAD as usize];
    for (at, chunk) in payload.chunks_exact_mut(8).enumerate() {
        chunk.copy_from_slice(&(value * 1000 + at as u64).to_ne_bytes());
    }
    payload
}

/// A child that is about to live, stopped. `None` if this machine does not let us step.
struct Child(libc::pid_t);

impl Child {
    fn start(pool: &Pool) -> Option<Self> {
        // SAFETY: the child calls nothing that another thread could have left locked: ptrace, raise,
        // the writer, which does not allocate, and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                if libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<u8>(), null_mut::<u8>()) != 0 {
                    libc::_exit(99);
                }
                libc::raise(libc::SIGSTOP);
                pool.live();
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

    /// One instruction; false if the child has ended.
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

#[test]
fn a_thread_may_die_at_every_instruction() {
    let pool = Pool::new();
    let Some(child) = Child::start(&pool) else {
        println!("skipped: processes cannot be traced here");
        return;
    };
    let (mut steps, mut published, mut claimed) = (0_u64, 0, 0);
    let mut changes = Vec::new();
    while child.step() {
        steps += 1;
        let (now, owner) = (pool.read(), pool.owner());
        assert!(now == published || now == published + 1, "at {steps}");
        assert!(owner == claimed || owner == 1 << 32 | 77, "at {steps}");
        if (now, owner) != (published, claimed) {
            changes.push(steps);
        }
        (published, claimed) = (now, owner);
    }
    assert_eq!((published, claimed), (WRITES, 1 << 32 | 77));
    println!("{steps} instructions, changes behind {changes:?}");

    // The same for good: right before and behind each change, and at places in between.
    let places = changes
        .iter()
        .flat_map(|change| [change - 1, *change])
        .chain((1..4).map(|part| steps * part / 4));
    for place in places {
        let pool = Pool::new();
        let child = Child::start(&pool).expect("it went well before");
        for _ in 0..place {
            assert!(child.step());
        }
        child.kill();
        let left = pool.read();
        if pool.owner() != 0 {
            let other = Claimant {
                tid: 78,
                number: NonZeroU64::MAX,
            };
            assert!(!pool.claim(other), "nobody has said that the thread ended");
            pool.control.reclaim(0, pool.owner());
        }
        let next = Claimant {
            tid: 79,
            number: NonZeroU64::new(3).unwrap(),
        };
        assert!(pool.claim(next));
        pool.write(left);
        assert_eq!(pool.read(), left + 1, "killed at {place}");
    }
}
