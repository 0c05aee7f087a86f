// SPDX-License-Identifier: MIT OR Apache-2.0
//! A witness of a recorder: when the machine did not let its threads run.
//!
//! The witness samples `/proc/PID/task/*` every few milliseconds until the process is dead. A
//! thread is stalled while it
//!
//! - waits for a CPU. `schedstat` has the sum of these waits, but the kernel adds a wait only when
//!   it is over: the wait that a kill interrupts is added when the thread runs once more to die, so
//!   the last sample is that of a zombie;
//! - sleeps uninterruptibly, for a disk or for memory;
//! - is runnable and neither runs nor waits for a CPU, because a hypervisor runs another machine.
//!
//! A thread that sleeps otherwise is not stalled: these are the pauses of the recorder itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::counting::now_ns;

/// Between two samples.
const PERIOD: Duration = Duration::from_millis(4);
/// A runnable thread is stalled if its counters do not change for longer. The kernel updates them
/// with its tick, which takes 10 ms at most.
const LONGER_THAN_TICKS_NS: u64 = 20_000_000;

/// The kernel's counters of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    ran_ns: u64,
    /// Completed waits for a CPU.
    waited_ns: u64,
    slices: u64,
}

/// A thread at one time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Before the counters were read, and after that.
    from_ns: u64,
    until_ns: u64,
    /// As in `/proc/PID/stat`: `R` runnable, `D` uninterruptible, `Z` dead.
    state: u8,
    counters: Counters,
    /// Begin of the first sample with the same counters, if the thread was runnable in all samples
    /// since then.
    still_since_ns: u64,
}

impl Sample {
    /// A thread that does not exist yet.
    const BEFORE_START: Self = Self {
        from_ns: 0,
        until_ns: 0,
        state: b'X',
        counters: Counters {
            ran_ns: 0,
            waited_ns: 0,
            slices: 0,
        },
        still_since_ns: 0,
    };

    /// Does nothing if the thread has gone.
    fn at(thread: &Path) -> Option<Self> {
        let from_ns = now_ns();
        let stat = fs::read_to_string(thread.join("stat")).ok()?;
        // The name in parentheses may contain anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let counters = fs::read_to_string(thread.join("schedstat")).ok()?;
        let mut counters = counters.split_whitespace().map(str::parse);
        let mut next = || counters.next()?.ok();
        Some(Self {
            from_ns,
            state: *rest.as_bytes().first()?,
            counters: Counters {
                ran_ns: next()?,
                waited_ns: next()?,
                slices: next()?,
            },
            still_since_ns: from_ns,
            until_ns: now_ns(),
        })
    }
}

/// A time during which a thread was stalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stall {
    /// Whether the thread slept instead of waiting for a CPU.
    is_sleep: bool,
    length_ns: u64,
    /// It ended at this time or later,
    ended_from_ns: u64,
    /// and not later than at this one.
    ended_until_ns: u64,
}

/// The times at which threads of a process were stalled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stalls {
    /// In any order; they may overlap.
    all: Vec<Stall>,
}

impl Stalls {
    /// Compares two samples of a thread.
    fn compare(&mut self, before: &Sample, now: &mut Sample) {
        // Less only if another thread has the same id by now.
        let length_ns = now.counters.waited_ns;
        let length_ns = length_ns.saturating_sub(before.counters.waited_ns);
        if length_ns > 0 {
            self.all.push(Stall {
                is_sleep: false,
                length_ns,
                ended_from_ns: before.from_ns,
                ended_until_ns: now.until_ns,
            });
        }
        if before.counters != now.counters {
            return;
        }
        let until_now = |from_ns: u64| Stall {
            is_sleep: now.state == b'D',
            length_ns: now.from_ns - from_ns,
            ended_from_ns: now.from_ns,
            ended_until_ns: now.from_ns,
        };
        match (before.state, now.state) {
            (b'D', b'D') => self.all.push(until_now(before.from_ns)),
            (b'R', b'R') => {
                let stall = until_now(before.still_since_ns);
                if stall.length_ns >= LONGER_THAN_TICKS_NS {
                    self.all.push(stall);
                }
                now.still_since_ns = before.still_since_ns;
            }
            _ => {}
        }
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Stall> {
        self.all.clone()
    }

    /// Only the waits for a CPU.
    pub(crate) fn waits(&self) -> Vec<Stall> {
        let waits = self.all.iter().filter(|stall| !stall.is_sleep);
        waits.copied().collect()
    }
}

/// The longest time between these two instants that the stalls may cover together.
pub(crate) fn total_ns(stalls: Vec<Stall>, from_ns: u64, to_ns: u64) -> u64 {
    let as_late_as_counts = |stall: &Stall| {
        let end_ns = to_ns.clamp(stall.ended_from_ns, stall.ended_until_ns);
        (end_ns.saturating_sub(stall.length_ns), end_ns)
    };
    let mut all: Vec<_> = stalls.iter().map(as_late_as_counts).collect();
    all.sort_unstable();
    let (mut sum_ns, mut covered_ns) = (0, from_ns);
    for (begin_ns, end_ns) in all {
        let (begin_ns, end_ns) = (begin_ns.max(covered_ns), end_ns.min(to_ns));
        sum_ns += end_ns.saturating_sub(begin_ns);
        covered_ns = covered_ns.max(end_ns);
    }
    sum_ns
}

/// A thread that samples a process.
pub(crate) struct Witness {
    /// Dropped to end it.
    stop: Sender<()>,
    thread: JoinHandle<Stalls>,
}

impl Witness {
    pub(crate) fn of(pid: i32) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut stalls = Stalls::default();
            let mut threads = BTreeMap::new();
            loop {
                let is_alive = sample(pid, &mut threads, &mut stalls);
                if !is_alive || stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    return stalls;
                }
            }
        });
        Self { stop, thread }
    }

    /// Whether the process has died.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the death of the process, which must not have been reaped: then the last wait of
    /// its main thread is counted as well.
    pub(crate) fn after_death(self) -> Stalls {
        let stalls = self.thread.join().unwrap();
        drop(self.stop);
        stalls
    }
}

/// Samples all threads of a process. Returns whether it lives.
fn sample(pid: i32, threads: &mut BTreeMap<u32, Sample>, stalls: &mut Stalls) -> bool {
    let folder = fs::read_dir(format!("/proc/{pid}/task"));
    let mut is_alive = false;
    for thread in folder.into_iter().flatten().flatten() {
        let Some(tid) = thread.file_name().to_str().and_then(|it| it.parse().ok()) else {
            continue;
        };
        let Some(mut now) = Sample::at(&thread.path()) else {
            continue;
        };
        let before = threads.get(&tid).copied().unwrap_or(Sample::BEFORE_START);
        stalls.compare(&before, &mut now);
        is_alive |= now.state != b'Z';
        threads.insert(tid, now);
    }
    is_alive
}

mod tests {
    use super::{total_ns, Counters, Sample, Stall, Stalls};

    fn sample(at_ms: u64, state: u8, waited_ms: u64, slices: u64) -> Sample {
        Sample {
            from_ns: at_ms * 1_000_000,
            until_ns: at_ms * 1_000_000,
            state,
            counters: Counters {
                ran_ns: 0,
                waited_ns: waited_ms * 1_000_000,
                slices,
            },
            still_since_ns: at_ms * 1_000_000,
        }
    }

    /// The stalls between 100 and 200 ms by these samples, in ms.
    fn stalled(samples: &[Sample]) -> u64 {
        let mut stalls = Stalls::default();
        let mut before = samples[0];
        for sample in &samples[1..] {
            let mut now = *sample;
            stalls.compare(&before, &mut now);
            before = now;
        }
        total_ns(stalls.all(), 100_000_000, 200_000_000) / 1_000_000
    }

    #[test]
    fn waits_count_where_they_overlap_the_time() {
        // The wait began before the time, or it ended after it: then its end is at most the time of
        // the sample.
        assert_eq!(
            stalled(&[sample(116, b'R', 0, 0), sample(120, b'S', 30, 1)]),
            20
        );
        assert_eq!(
            stalled(&[sample(190, b'R', 0, 0), sample(290, b'Z', 90, 1)]),
            90
        );
        assert_eq!(
            stalled(&[sample(210, b'R', 0, 0), sample(290, b'Z', 95, 1)]),
            85
        );
        assert_eq!(
            stalled(&[sample(10, b'R', 0, 0), sample(90, b'S', 80, 1)]),
            0
        );
        // Stalls that were over before the first sample count, too.
        assert_eq!(
            stalled(&[Sample::BEFORE_START, sample(130, b'S', 70, 9)]),
            30
        );
    }

    #[test]
    fn sleeps_are_stalls_if_they_are_uninterruptible() {
        let sleeps = |state| stalled(&[sample(110, state, 0, 0), sample(150, state, 0, 0)]);
        assert_eq!([b'S', b'D', b'R', b'T'].map(sleeps), [0, 40, 40, 0]);
        // A thread that ran in between did not sleep all the time.
        assert_eq!(
            stalled(&[sample(110, b'D', 0, 0), sample(150, b'D', 0, 1)]),
            0
        );
    }

    #[test]
    fn counters_that_stand_still_for_a_tick_are_no_stall() {
        let samples: Vec<Sample> = (0..30)
            .map(|it| sample(100 + 4 * it, b'R', 0, it / 3))
            .collect();
        assert_eq!(stalled(&samples), 0);
        let samples: Vec<Sample> = (0..30)
            .map(|it| sample(100 + 4 * it, b'R', 0, it / 15))
            .collect();
        assert_eq!(stalled(&samples), 96);
    }

    #[test]
    fn stalls_that_overlap_count_once() {
        let stall = |length_ns, ended_ns| Stall {
            is_sleep: false,
            length_ns,
            ended_from_ns: ended_ns,
            ended_until_ns: ended_ns,
        };
        let all = vec![stall(30, 90), stall(20, 80), stall(5, 40), stall(10, 95)];
        assert_eq!(total_ns(all, 0, 100), 5 + 35);
    }
}
