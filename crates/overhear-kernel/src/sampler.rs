// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Sampler`]: samples CPU time and waiting time of threads from `/proc/PID/task/TID/schedstat`,
//! for users without BPF.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use overhear_event::kernel::SchedStat;
use rustix::time::{clock_gettime, ClockId};

use crate::machine;

/// Time between two samples of a thread, if polls are frequent enough.
const PERIOD_NS: u64 = 50_000_000;

/// Samples every live thread of the followed processes, and threads that are tracked individually.
///
/// The time of a thread between its last sample and its end is not seen. Only the main thread of a
/// process can still be read after its end, until its parent waits for it.
#[derive(Debug, Default)]
pub(crate) struct Sampler {
    pids: BTreeSet<u32>,
    /// Threads that are tracked individually, with their processes.
    threads: BTreeMap<u32, u32>,
    due_ns: u64,
    next_sequence: u64,
    collected: Vec<(u64, u64, SchedStat)>,
}

impl Sampler {
    pub(crate) fn follow(&mut self, pid: u32) {
        self.pids.insert(pid);
    }

    /// Whether the process is followed, or was when it was last sampled.
    pub(crate) fn follows(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Samples one thread, without the rest of its process. False if it was sampled already.
    pub(crate) fn follow_thread(&mut self, tid: u32, pid: u32) -> bool {
        self.threads.insert(tid, pid).is_none()
    }

    /// Stops sampling a single thread. False if it was not sampled.
    pub(crate) fn leave_thread(&mut self, tid: u32) -> bool {
        self.threads.remove(&tid).is_some()
    }

    /// Whether the thread is tracked individually.
    pub(crate) fn follows_thread(&self, tid: u32) -> bool {
        self.threads.contains_key(&tid)
    }

    /// The threads that are tracked individually, with their processes.
    pub(crate) fn threads(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.threads.iter().map(|(tid, pid)| (*tid, *pid))
    }

    /// Sampled processes, and the sequence of the next sample. Undelivered samples are taken again.
    pub(crate) fn progress(&self) -> (Vec<u32>, u64) {
        let delivered = self.next_sequence - self.collected.len() as u64;
        (self.pids.iter().copied().collect(), delivered)
    }

    /// Continues where another process stopped.
    pub(crate) fn resumed(
        (pids, next_sequence): (Vec<u32>, u64),
        threads: impl IntoIterator<Item = (u32, u32)>,
    ) -> Self {
        Self {
            pids: pids.into_iter().collect(),
            threads: threads.into_iter().collect(),
            next_sequence,
            ..Self::default()
        }
    }

    pub(crate) fn sample_if_due(&mut self) {
        if now_ns() >= self.due_ns {
            self.sample();
        }
    }

    pub(crate) fn sample(&mut self) {
        for pid in std::mem::take(&mut self.pids) {
            let threads = machine::threads_of(pid);
            if threads.is_empty() {
                // The process has ended and will not come back.
                continue;
            }
            self.pids.insert(pid);
            for tid in threads {
                self.sample_thread(tid, pid);
            }
        }
        for (tid, pid) in self.threads.clone() {
            self.sample_thread(tid, pid);
        }
        self.due_ns = now_ns() + PERIOD_NS;
    }

    fn sample_thread(&mut self, tid: u32, pid: u32) {
        let time_ns = now_ns();
        let path = format!("/proc/{pid}/task/{tid}/schedstat");
        let text = fs::read_to_string(path).unwrap_or_default();
        if let Some(sample) = parse(pid, tid, &text) {
            self.collected.push((self.next_sequence, time_ns, sample));
            self.next_sequence += 1;
        }
    }

    /// The samples not yet delivered: sequence, time, value.
    pub(crate) fn take(&mut self) -> Vec<(u64, u64, SchedStat)> {
        std::mem::take(&mut self.collected)
    }
}

/// The file has time on a CPU and time waiting for one, in nanoseconds, and a count of slices.
fn parse(pid: u32, tid: u32, text: &str) -> Option<SchedStat> {
    let mut words = text.split_whitespace();
    Some(SchedStat {
        tid,
        pid,
        run_ns: words.next()?.parse().ok()?,
        wait_ns: words.next()?.parse().ok()?,
    })
}

/// `CLOCK_MONOTONIC`.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::{parse, Sampler};

    #[test]
    fn lines_of_schedstat() {
        let sample = parse(1, 2, "1234 567 8\n").unwrap();
        assert_eq!((sample.run_ns, sample.wait_ns), (1234, 567));
        assert_eq!(parse(1, 2, ""), None);
    }

    #[test]
    fn own_threads_are_sampled_and_dead_processes_forgotten() {
        let mut sampler = Sampler::default();
        sampler.follow(std::process::id());
        sampler.follow(u32::MAX - 1);
        sampler.sample();
        let samples = sampler.take();
        assert!(!samples.is_empty());
        assert_eq!(sampler.pids.len(), 1);
        assert!(sampler.take().is_empty());
    }

    #[test]
    fn single_thread_is_sampled_alone() {
        let me = std::process::id();
        let end = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            // The process has a second thread, of this name or another.
            scope.spawn(|| end.wait());
            let mut sampler = Sampler::default();
            assert!(sampler.follow_thread(me, me));
            assert!(!sampler.follow_thread(me, me));
            sampler.sample();
            let sampled: Vec<_> = sampler.take().iter().map(|s| (s.2.pid, s.2.tid)).collect();
            assert_eq!(sampled, [(me, me)]);
            assert!(sampler.leave_thread(me) && !sampler.follows_thread(me));
            sampler.sample();
            assert!(sampler.take().is_empty());
            end.wait();
        });
    }
}
