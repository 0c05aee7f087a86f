// SPDX-License-Identifier: MIT OR Apache-2.0
//! Elements about the lives of threads that outlive their packets: later packets name threads by
//! number only, and their names and begins would be unknown.

use std::collections::BTreeMap;

use overhear_event::kernel::{Life, TASK_LIFE};
use overhear_event::{Origin, StreamDescriptor, Timestamp};

/// An element, as it was in its stream.
#[derive(Clone, Debug)]
pub(crate) struct LifeElement {
    /// Index of its stream.
    pub(crate) stream: usize,
    pub(crate) time: Timestamp,
    /// Position among all elements: the order of those with one time.
    order: u64,
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    pid: u32,
    begin: Option<LifeElement>,
    name: Option<LifeElement>,
}

/// The threads that live at the end of the removed packets: the last begin of each, and its last
/// name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lives {
    threads: BTreeMap<u32, Thread>,
    order: u64,
}

/// Whether the elements of a stream are about the lives of threads.
pub(crate) fn is_about_lives(stream: &StreamDescriptor) -> bool {
    matches!(stream.origin, Origin::Kernel { .. }) && stream.sensor == TASK_LIFE
}

impl Lives {
    /// Takes the next element of the removed packets.
    pub(crate) fn element(&mut self, stream: usize, time: Timestamp, payload: &[u8]) {
        let Some(life) = Life::parse(payload) else {
            return;
        };
        self.order += 1;
        let element = LifeElement {
            stream,
            time,
            order: self.order,
            payload: payload.to_vec(),
        };
        match life.kind {
            Life::EXIT | Life::UNTRACKED => {
                self.threads.remove(&life.tid);
                return;
            }
            Life::EXEC => {
                // All other threads of the process have ended.
                self.threads
                    .retain(|tid, thread| *tid == life.tid || thread.pid != life.pid);
                self.threads.remove(&life.parent_tid);
            }
            Life::FORK => {
                self.threads.remove(&life.tid);
            }
            _ => {}
        }
        let thread = self.threads.entry(life.tid).or_default();
        thread.pid = life.pid;
        match life.kind {
            Life::FORK | Life::TRACKED => thread.begin = Some(element),
            _ => thread.name = Some(element),
        }
    }

    /// The elements to repeat, in the order of their times: at most this number of the newest.
    pub(crate) fn elements(&self, most: usize) -> Vec<&LifeElement> {
        let threads = self.threads.values();
        let mut all: Vec<&LifeElement> = threads
            .flat_map(|thread| thread.begin.iter().chain(&thread.name))
            .collect();
        all.sort_by_key(|element| (element.time, element.order));
        let too_many = all.len().saturating_sub(most);
        all.split_off(too_many)
    }
}

#[cfg(test)]
mod tests {
    use overhear_event::kernel::Life;
    use overhear_event::Timestamp;

    use super::Lives;

    #[test]
    fn last_begin_and_name_of_each_living_thread_are_kept() {
        let mut lives = Lives::default();
        let mut now = 0;
        let mut happen = |tid, pid, kind, parent_tid| {
            now += 1;
            let life = Life {
                tid,
                pid,
                parent_tid,
                parent_pid: 0,
                kind,
                code: 0,
                cpu_ns: 0,
                comm: [0; 16],
            };
            lives.element(0, Timestamp::from_monotonic_ns(now), &life.to_payload());
        };
        happen(1, 1, Life::TRACKED, 0);
        happen(1, 1, Life::NAME, 0);
        happen(2, 1, Life::FORK, 1);
        happen(3, 1, Life::FORK, 1);
        happen(1, 1, Life::NAME, 0);
        happen(2, 1, Life::EXIT, 0);
        happen(4, 4, Life::FORK, 1);
        happen(5, 4, Life::FORK, 4);
        // Thread 5 takes over the number of its leader.
        happen(4, 4, Life::EXEC, 5);
        happen(6, 6, Life::FORK, 1);
        happen(6, 6, Life::UNTRACKED, 0);
        let kept = lives.elements(9);
        let kept: Vec<u64> = kept.iter().map(|it| it.time.as_monotonic_ns()).collect();
        assert_eq!(kept, [1, 4, 5, 7, 9]);
        assert_eq!(lives.elements(2)[0].time.as_monotonic_ns(), 7);
    }
}
