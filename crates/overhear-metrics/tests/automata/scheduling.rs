// SPDX-License-Identifier: MIT OR Apache-2.0
//! The built-in metrics agree with the accounts of the report, number by number.

use overhear_event::kernel::Switch;
use overhear_event::{Analysis, Timestamp};
use overhear_metrics::automaton::{system_metric, Metrics};
use overhear_metrics::{Histogram, Observer, Scheduling, Thread, ThreadIndex, ThreadState};
use proptest::prelude::{prop, proptest, ProptestConfig};
use proptest::{prop_assert_eq, prop_assume};

use crate::scene::{each_element, Line, Row, Rows};

/// The intervals in which threads waited for a CPU: thread, end, length.
#[derive(Debug, Default)]
struct Waits(Vec<(u32, u64, u64)>);

impl Observer for Waits {
    fn interval(
        &mut self,
        _: ThreadIndex,
        thread: &Thread,
        from: Timestamp,
        to: Timestamp,
        state: ThreadState,
        _: Option<u32>,
    ) {
        if matches!(state, ThreadState::Runnable | ThreadState::Preempted) {
            self.0
                .push((thread.tid, to.as_monotonic_ns(), to.since(from).as_ns()));
        }
    }
}

/// Kernel events of two threads on a CPU each, by arbitrary decisions. The effect of a decision
/// depends on the state of the thread, so that only possible events happen.
fn schedule(decisions: &[(u64, u32, u8)]) -> Vec<Line> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        Asleep,
        Woken,
        Queued,
        Running(u64),
    }
    let (mut threads, mut time) = ([State::Asleep; 2], 1_000_u64);
    let mut pending = [false; 2];
    let mut lines = Vec::new();
    for &(step, which, decision) in decisions {
        time += step;
        let (index, tid) = (which as usize, 7 + which);
        let wake = |kind| format!("{time} kernel:sched_wake tid={tid} kind={kind}");
        let leave = |state: u16, since: u64| {
            let flags = Switch::PREV_TRACKED | if state == 0 { 1 } else { Switch::VOLUNTARY };
            let ran = time - since;
            format!("{time} kernel:sched_switch prev_tid={tid} prev_state={state} flags={flags} prev_run_ns={ran}")
        };
        let arrive = format!("{time} kernel:sched_switch next_tid={tid} flags=4");
        let (line, next) = match (threads[index], decision % 8) {
            (State::Asleep, 0..=5) => (Some(wake(1)), State::Woken),
            (State::Asleep, _) => (Some(wake(3)), State::Queued),
            (State::Woken, 0) => (Some(wake(1)), State::Woken),
            (State::Woken, _) => (Some(wake(2)), State::Queued),
            (State::Queued, 0) => (Some(wake(1)), State::Queued),
            (State::Queued, 1) => (Some(wake(2)), State::Queued),
            // Now and then the kernel records no arrival.
            (State::Queued, 2) => (None, State::Running(time)),
            (State::Queued, _) => (Some(arrive), State::Running(time)),
            (State::Running(since), 0 | 1) => {
                pending[index] = true;
                (Some(wake(1)), State::Running(since))
            }
            (State::Running(since), 2) => {
                let line = pending[index].then(|| wake(2));
                pending[index] = false;
                (line, State::Running(since))
            }
            (State::Running(since), 3 | 4) => (Some(leave(0, since)), State::Queued),
            (State::Running(since), _) => {
                let woken = if pending[index] {
                    State::Woken
                } else {
                    State::Asleep
                };
                pending[index] = false;
                (Some(leave(1, since)), woken)
            }
        };
        threads[index] = next;
        lines.extend(line.and_then(|line| Line::parse(&line)));
    }
    lines
}

fn rows(name: &str, lines: &[Line]) -> Vec<Row> {
    let mut metrics = Metrics::new(Rows::default());
    metrics.add(system_metric(name).unwrap());
    each_element(lines, |element| metrics.element(element));
    metrics.into_sink().0
}

fn summary(histogram: &Histogram) -> Vec<Option<u64>> {
    let quantiles = [0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];
    let mut numbers = vec![Some(histogram.count()), histogram.min(), histogram.max()];
    numbers.push(histogram.mean().map(f64::to_bits));
    numbers.extend(quantiles.map(|quantile| histogram.quantile(quantile)));
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn wake_up_latency_and_run_delay_match_the_accounts(
        decisions in prop::collection::vec((1..50_u64, 0..2_u32, 0..8_u8), 20..300),
    ) {
        let lines = schedule(&decisions);
        let mut scheduling = Scheduling::new(Waits::default());
        each_element(&lines, |element| scheduling.element(element));
        let latencies = rows("wakeup_latency", &lines);
        prop_assume!(latencies.len() > 1);
        for thread in scheduling.threads() {
            let mut histogram = Histogram::new();
            for row in latencies.iter().filter(|row| row.task == thread.tid) {
                histogram.record(row.length);
            }
            prop_assert_eq!(summary(&histogram), summary(&thread.wakeup_latency));
        }
        let delays: Vec<(u32, u64, u64)> = rows("run_delay", &lines)
            .iter()
            .filter(|row| row.length > 0)
            .map(|row| (row.task, row.end, row.length))
            .collect();
        prop_assert_eq!(&delays, &scheduling.observer().0);
    }
}
