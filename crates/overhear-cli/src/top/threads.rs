// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rates of threads: differences of their accounts between two snapshots.

use std::collections::BTreeMap;

use overhear_event::Timestamp;
use overhear_metrics::{Observer, Scheduling, Thread};

use super::snapshot::ThreadRow;
use overhear_session::quantities::Quantiles;

/// Keeps the accounts of the latest snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadRates {
    last: BTreeMap<(u32, u32), Sums>,
    at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    run: u64,
    runnable: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Sums {
    fn of(thread: &Thread) -> Self {
        Self {
            run: thread.run.as_ns(),
            runnable: thread.runnable.as_ns(),
            voluntary: thread.switches_voluntary,
            involuntary: thread.switches_involuntary,
        }
    }
}

impl ThreadRates {
    /// The living threads, with their rates since the latest call.
    ///
    /// An account grows when an interval ends, so a thread that runs without being displaced
    /// has a share of 0 at first, and later a share above 1, which is limited to 1.
    pub(crate) fn rows<O: Observer>(
        &mut self,
        scheduling: &Scheduling<O>,
        now: Timestamp,
    ) -> Vec<ThreadRow> {
        let span = self.at.map(|at| now.since(at).as_ns()).filter(|&ns| ns > 0);
        let per_ns = span.map_or(0.0, |ns| 1.0 / ns as f64);
        let share = |ns: u64| (ns as f64 * per_ns).min(1.0);
        let mut next = BTreeMap::new();
        let rows = scheduling
            .alive()
            .map(|thread| {
                let key = (thread.pid, thread.tid);
                let sums = Sums::of(thread);
                let last = self.last.get(&key).copied().unwrap_or_default();
                next.insert(key, sums);
                let latency = Quantiles::of(&thread.wakeup_latency);
                let sees = scheduling.sees_wakeups();
                ThreadRow {
                    pid: thread.pid,
                    tid: thread.tid,
                    comm: thread.comm.clone(),
                    run: share(sums.run.saturating_sub(last.run)),
                    runnable: sees.then(|| share(sums.runnable.saturating_sub(last.runnable))),
                    voluntary_hz: sums.voluntary.saturating_sub(last.voluntary) as f64
                        * per_ns
                        * 1e9,
                    involuntary_hz: sums.involuntary.saturating_sub(last.involuntary) as f64
                        * per_ns
                        * 1e9,
                    migrations: thread.migrations,
                    wakeup_latency_ns: latency.filter(|_| sees),
                }
            })
            .collect();
        self.last = next;
        self.at = Some(now);
        rows
    }
}
