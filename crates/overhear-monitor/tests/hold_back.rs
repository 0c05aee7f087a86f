// SPDX-License-Identifier: MIT OR Apache-2.0
//! A writer that is stopped between its stamp and its publication.
//!
//! The writer is a process of its own, and the kernel really stops it there: it sends itself
//! `SIGSTOP` when it has read the clock for the stamp. What it publishes when it goes on has its
//! place in the total order if the hold-back was longer than the stop; else it is a missed element
//! with the cause *late*. How long the stop lasts is decided by the test, which waits for
//! conditions and for no span of time.

mod support;

use std::ptr::NonNull;

use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Nanos, StreamDescriptor, Ticks, Timestamp,
};
use overhear_monitor::Monitor;
use overhear_stream::{Geometry, SharedWords, SimpleWriter};

use support::{at, descriptor, ring, RingSource};

const CAPACITY: u64 = 16;

fn now() -> Timestamp {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    at(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Memory that this process and its children share. It is never freed: the test ends soon.
fn shared_words() -> impl Fn() -> SharedWords {
    let geometry = Geometry::new(8, CAPACITY).unwrap();
    // SAFETY: a new map, of which nothing is known to anybody else.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            geometry.bytes(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    let base = NonNull::new(base.cast()).unwrap();
    // SAFETY: the map is aligned, has this many words, stays, and is reached by these words alone.
    move || unsafe { SharedWords::new(base, geometry.words()) }
}

/// A process that writes three elements and is stopped in the middle of the second.
struct Preempted(libc::pid_t);

impl Preempted {
    /// Starts it and waits until it has been stopped.
    fn start(words: SharedWords) -> Self {
        let geometry = Geometry::new(8, CAPACITY).unwrap();
        let mut writer = SimpleWriter::new(words, geometry).unwrap();
        // SAFETY: the child writes to shared memory, makes system calls and ends: nothing that
        // needs a lock of another thread.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            for value in 0..3_u64 {
                writer.write(&value.to_ne_bytes(), || {
                    let stamp = Ticks::from_raw(now().as_monotonic_ns());
                    if value == 1 {
                        // SAFETY: stops this process, here.
                        unsafe { libc::raise(libc::SIGSTOP) };
                    }
                    stamp
                });
            }
            // SAFETY: ends the process without anything of the parent's.
            unsafe { libc::_exit(0) };
        }
        assert!(pid > 0, "no process can be made");
        let child = Self(pid);
        let status = child.wait(libc::WUNTRACED);
        assert!(libc::WIFSTOPPED(status), "the writer is not stopped");
        child
    }

    fn wait(&self, options: i32) -> i32 {
        let mut status = 0;
        // SAFETY: the kernel writes an int.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, options) };
        assert_eq!(waited, self.0);
        status
    }

    /// Lets it continue, and waits for its end.
    fn go_on(self) {
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
        let status = self.wait(0);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        std::mem::forget(self);
    }
}

impl Drop for Preempted {
    /// After a failed assertion.
    fn drop(&mut self) {
        // SAFETY: a signal to our own child, which has not been waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait(0);
    }
}

#[derive(Default)]
struct Received {
    elements: Vec<(String, u64)>,
    times: Vec<Timestamp>,
    gaps: Vec<Gap>,
}

impl Analysis for Received {
    fn element(&mut self, element: &ElementView<'_>) {
        let sensor = element.stream.sensor.clone();
        self.elements.push((sensor, element.sequence));
        self.times.push(element.time);
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        self.gaps.push(*gap);
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// The elements received from a writer that is stopped while `rounds` are run, and of another one
/// that writes once meanwhile. `rounds` gets the time at which the writer was found stopped.
fn observe(
    hold_back: Nanos,
    rounds: impl FnOnce(&mut Monitor, &mut Received, Timestamp),
) -> Received {
    let words = shared_words();
    let mut monitor = Monitor::new(hold_back);
    monitor.add_source(Box::new(RingSource::new(
        descriptor(1, "preempted", CAPACITY),
        words(),
    )));
    let (mut other, source) = ring(descriptor(2, "other", CAPACITY));
    monitor.add_source(Box::new(source));
    let mut received = Received::default();

    let writer = Preempted::start(words());
    let stopped = now();
    other.write(stopped.as_monotonic_ns(), 0);
    rounds(&mut monitor, &mut received, stopped);
    writer.go_on();
    monitor.finish(now(), &mut received);
    assert!(received.times.is_sorted());
    assert_eq!(
        monitor.losses().missed(),
        received.gaps.iter().map(|gap| gap.missed).sum::<u64>()
    );
    received
}

fn names(received: &Received) -> Vec<(&str, u64)> {
    let names = received.elements.iter();
    names.map(|(name, index)| (name.as_str(), *index)).collect()
}

#[test]
fn element_of_a_preempted_writer_keeps_its_order_within_the_hold_back() {
    // Longer than any delay of this test.
    let hour = Nanos::from_ms(3_600_000);
    let received = observe(hour, |monitor, received, stopped| {
        monitor.round(stopped.plus(Nanos::from_ms(1)), received);
        assert!(received.elements.is_empty(), "everything is held back");
    });
    assert_eq!(
        names(&received),
        [
            ("preempted", 0),
            ("preempted", 1),
            ("other", 0),
            ("preempted", 2)
        ]
    );
    assert_eq!(received.gaps, []);
}

#[test]
fn beyond_the_hold_back_it_is_missed_as_late_and_counted() {
    let hold_back = Nanos::from_ms(2);
    let received = observe(hold_back, |monitor, received, stopped| {
        // The first round whose watermark has passed the stamp.
        monitor.round(stopped.plus(hold_back).plus(Nanos::from_ns(1)), received);
        assert_eq!(names(received), [("preempted", 0), ("other", 0)]);
        assert_eq!(received.gaps, [], "nobody knows of it yet");
    });
    assert_eq!(
        names(&received),
        [("preempted", 0), ("other", 0), ("preempted", 2)]
    );
    let [gap] = received.gaps[..] else {
        panic!("{:?}", received.gaps);
    };
    assert_eq!(gap.cause, GapCause::Late);
    assert_eq!((gap.first, gap.missed), (1, 1));
    // From the last element of its stream to the next.
    assert_eq!((gap.from, gap.to), (received.times[0], received.times[2]));
}
