// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scripted lives of threads.

use overhear_event::kernel::{
    events, Life, SchedStat, Switch, Wake, SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE,
};
use overhear_event::{
    Analysis, ElementView, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId, Timestamp,
    TypeSchema,
};

use super::Scheduling;
use crate::thread::{StateReason, ThreadState};
use crate::timeline::Timeline;

fn stream(sensor: &str, cpu: u32, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor::new(
        StreamId::from_raw(1 + cpu),
        Origin::Kernel { cpu },
        sensor,
        schema,
    )
}

#[derive(Default)]
struct Script(Scheduling<Timeline>);

impl Script {
    fn feed(&mut self, stream: &StreamDescriptor, ns: u64, payload: &[u8]) {
        let time = Timestamp::from_monotonic_ns(ns);
        self.0.element(&ElementView {
            stream,
            sequence: 0,
            time,
            payload,
        });
    }

    fn switch(&mut self, ns: u64, cpu: u32, prev: (u32, u16), next: u32, extra: u16) {
        self.switch_after(ns, cpu, prev, next, extra, Switch::UNKNOWN);
    }

    fn switch_after(
        &mut self,
        ns: u64,
        cpu: u32,
        prev: (u32, u16),
        next: u32,
        extra: u16,
        prev_run_ns: u32,
    ) {
        let tracked = |tid| tid == 7 || tid == 8;
        let mut flags = extra;
        if tracked(prev.0) {
            flags |= Switch::PREV_TRACKED;
        }
        if tracked(next) {
            flags |= Switch::NEXT_TRACKED;
        }
        if prev.1 != 0 {
            flags |= Switch::VOLUNTARY;
        }
        let switch = Switch {
            prev_tid: prev.0,
            next_tid: next,
            prev_pid: 7,
            next_pid: 7,
            prev_state: prev.1,
            flags,
            prev_run_ns,
        };
        self.feed(
            &stream(SCHED_SWITCH, cpu, Switch::schema()),
            ns,
            &switch.to_payload(),
        );
    }

    fn wake(&mut self, ns: u64, tid: u32, kind: u32) {
        let wake = Wake {
            tid,
            pid: 7,
            waker_tid: 1,
            waker_pid: 1,
            target_cpu: 0,
            kind,
        };
        self.feed(
            &stream(SCHED_WAKE, 0, Wake::schema()),
            ns,
            &wake.to_payload(),
        );
    }
}

#[test]
fn states_add_up_to_the_life() {
    let mut script = Script::default();
    let mut comm = [0; 16];
    comm[..6].copy_from_slice(b"worker");
    let life = |kind, cpu_ns| Life {
        tid: 7,
        pid: 7,
        parent_tid: 1,
        parent_pid: 1,
        kind,
        code: 0,
        cpu_ns,
        comm,
    };
    let lives = stream(TASK_LIFE, 0, Life::schema());
    script.feed(&lives, 100, &life(Life::FORK, 0).to_payload());
    script.wake(110, 7, Wake::NEW);
    script.switch(150, 0, (0, 0), 7, 0); // first run after 40 ns
    script.switch(250, 0, (7, 0), 9, Switch::PREEMPTED);
    script.switch(300, 1, (0, 0), 7, 0); // displaced for 50, migrated
    script.switch(400, 1, (7, 1), 0, 0); // asleep
    script.wake(500, 7, Wake::WAKING);
    script.wake(505, 7, Wake::WAKEUP);
    script.switch(520, 1, (0, 0), 7, 0); // latency 20
    script.feed(&lives, 550, &life(Life::EXIT, 230).to_payload());
    script.switch(560, 1, (7, 0x80), 0, 0);
    script.0.finish(Timestamp::from_monotonic_ns(1_000));
    let thread = &script.0.threads()[0];
    assert_eq!(thread.comm, "worker");
    assert_eq!(thread.run, Nanos::from_ns(100 + 100 + 40));
    assert_eq!(thread.runnable, Nanos::from_ns(40 + 50 + 15));
    assert_eq!(thread.blocked, Nanos::from_ns(105));
    assert_eq!(
        (thread.switches_voluntary, thread.switches_involuntary),
        (2, 1)
    );
    assert_eq!(thread.migrations, 1);
    assert_eq!(thread.cpu_at_exit, Some(Nanos::from_ns(230)));
    assert_eq!(thread.wakeup_latency.min(), Some(20));
    assert_eq!(thread.wakeup_latency.max(), Some(40));
    let row = &script.0.observer().rows()[0];
    let states: Vec<(u8, u64)> = row.intervals().map(|i| (i.state, i.length)).collect();
    assert_eq!(
        states,
        [
            (0, 10),
            (2, 40),
            (1, 100),
            (4, 50),
            (1, 100),
            (3, 105),
            (2, 15),
            (1, 40)
        ]
    );
}

#[test]
fn intervals_have_a_reason() {
    let mut script = Script::default();
    script.wake(110, 7, Wake::NEW);
    script.switch(150, 0, (0, 0), 7, 0);
    script.switch(250, 0, (7, 0), 9, Switch::PREEMPTED);
    script.switch(300, 1, (0, 0), 7, 0);
    script.switch(350, 1, (7, 0), 7, Switch::PREEMPTED);
    script.switch(360, 1, (7, 0), 8, 0);
    script.switch(370, 1, (8, 2), 7, 0);
    script.switch(400, 1, (7, 1), 0, 0);
    script.wake(500, 7, Wake::WAKING);
    script.wake(505, 7, Wake::WAKEUP);
    script.switch(520, 1, (0, 0), 7, 0);
    script.0.finish(Timestamp::from_monotonic_ns(600));
    let row = &script.0.observer().rows()[0];
    let shown: Vec<(u8, u64, StateReason)> = row
        .intervals()
        .zip(&row.reasons)
        .map(|(interval, &reason)| (interval.state, interval.length, reason))
        .collect();
    let expected = [
        (2, 40, StateReason::Woken(1)),
        (1, 100, StateReason::Unknown),
        (4, 50, StateReason::Displaced(9)),
        (1, 50, StateReason::Unknown),
        // The scheduler chose it again at once: two adjacent runs.
        (1, 10, StateReason::Again),
        (4, 10, StateReason::Yielded(8)),
        (1, 30, StateReason::Unknown),
        (3, 105, StateReason::Asleep(1)),
        (2, 15, StateReason::Woken(1)),
        (1, 80, StateReason::Unknown),
    ];
    assert_eq!(shown, expected);
    let other = &script.0.observer().rows()[1];
    assert_eq!(other.reasons.last(), Some(&StateReason::Asleep(2)));
}

#[test]
fn flutter_is_two_adjacent_runs_and_no_switch() {
    let mut script = Script::default();
    script.switch(100, 1, (0, 0), 7, 0);
    let stream = stream(events::FLUTTER, 1, events::flutter_schema());
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&7_u32.to_ne_bytes());
    script.feed(&stream, 130, &payload);
    // A thread with a missed arrival is running.
    payload[..4].copy_from_slice(&8_u32.to_ne_bytes());
    script.feed(&stream, 140, &payload);
    script.switch(150, 1, (7, 1), 0, 0);
    script.0.finish(Timestamp::from_monotonic_ns(160));
    let row = &script.0.observer().rows()[0];
    let shown: Vec<(u8, u64, StateReason)> = row
        .intervals()
        .zip(&row.reasons)
        .map(|(interval, &reason)| (interval.state, interval.length, reason))
        .collect();
    let expected = [
        (1, 30, StateReason::Unknown),
        (1, 20, StateReason::Again),
        (3, 10, StateReason::Asleep(1)),
    ];
    assert_eq!(shown, expected);
    let thread = &script.0.threads()[0];
    let switches = thread.switches_voluntary + thread.switches_involuntary;
    assert_eq!((switches, thread.run.as_ns()), (1, 50));
    assert_eq!(script.0.threads()[1].state, ThreadState::Running);
}

#[test]
fn waking_before_departure_counts_only_in_the_latency() {
    let mut script = Script::default();
    script.switch(100, 0, (0, 0), 7, 0);
    script.wake(195, 7, Wake::WAKING);
    script.switch(200, 0, (7, 1), 0, 0);
    script.wake(204, 7, Wake::WAKEUP);
    script.switch(230, 0, (0, 0), 7, 0);
    let thread = &script.0.threads()[0];
    assert_eq!(thread.blocked, Nanos::from_ns(4));
    assert_eq!(thread.runnable, Nanos::from_ns(26));
    assert_eq!(thread.wakeup_latency.max(), Some(35));
}

#[test]
fn waking_that_cancels_a_sleep_is_no_wakeup() {
    let mut script = Script::default();
    script.switch(100, 0, (0, 0), 7, 0);
    script.wake(150, 7, Wake::WAKING);
    script.wake(151, 7, Wake::WAKEUP);
    script.switch(900, 0, (7, 1), 0, 0);
    script.wake(950, 7, Wake::WAKING);
    script.wake(951, 7, Wake::WAKEUP);
    script.switch(960, 0, (0, 0), 7, 0);
    let thread = &script.0.threads()[0];
    assert_eq!(
        (thread.wakeup_latency.count(), thread.wakeup_latency.max()),
        (1, Some(10))
    );
    assert_eq!(thread.blocked, Nanos::from_ns(51));
}

#[test]
fn time_after_a_gap_is_unknown_until_the_next_element() {
    let mut script = Script::default();
    script.switch(100, 0, (0, 0), 7, 0);
    let at = Timestamp::from_monotonic_ns;
    let lost = stream(SCHED_SWITCH, 0, Switch::schema());
    let gap = Gap {
        stream: lost.id,
        first: 1,
        missed: 3,
        from: at(150),
        to: at(400),
        cause: GapCause::Overwritten,
    };
    script.0.gap(&lost, &gap);
    script.switch(450, 0, (0, 0), 7, 0);
    script.switch(500, 0, (7, 1), 0, 0);
    let thread = &script.0.threads()[0];
    assert_eq!(thread.unknown, Nanos::from_ns(300));
    assert_eq!(thread.run, Nanos::from_ns(100));
}

#[test]
fn unseen_arrival_is_derived_from_the_departure() {
    let mut script = Script::default();
    script.switch(100, 0, (0, 0), 7, 0);
    script.switch(200, 0, (7, 1), 0, 0);
    script.wake(300, 7, Wake::WAKING);
    script.wake(301, 7, Wake::WAKEUP);
    script.switch_after(400, 1, (7, 1), 0, 0, 60);
    let thread = &script.0.threads()[0];
    assert_eq!(thread.run, Nanos::from_ns(100 + 60));
    assert_eq!(thread.runnable, Nanos::from_ns(39));
    assert_eq!(script.0.runs().min(), Some(60));
    assert_eq!(thread.wakeup_latency.max(), Some(40));
    assert_eq!(thread.migrations, 1);
}

#[test]
fn thread_without_last_departure_ends_with_its_exit() {
    let exit = Life {
        tid: 7,
        pid: 7,
        parent_tid: 0,
        parent_pid: 0,
        kind: Life::EXIT,
        code: 0,
        cpu_ns: 0,
        comm: [0; 16],
    };
    let lives = stream(TASK_LIFE, 0, Life::schema());
    for lossy in [false, true] {
        let mut script = Script::default();
        script.switch(100, 0, (0, 0), 7, 0);
        assert_eq!(script.0.alive().count(), 1);
        script.feed(&lives, 300, &exit.to_payload());
        assert_eq!(script.0.alive().count(), 0);
        if lossy {
            let stream = stream(SCHED_SWITCH, 0, Switch::schema());
            let gap = Gap {
                stream: stream.id,
                first: 1,
                missed: 1,
                from: Timestamp::from_monotonic_ns(400),
                to: Timestamp::from_monotonic_ns(500),
                cause: GapCause::Kernel,
            };
            script.0.gap(&stream, &gap);
        }
        script.0.finish(Timestamp::from_monotonic_ns(1_000));
        let thread = &script.0.threads()[0];
        assert_eq!(thread.run, Nanos::from_ns(200));
        assert_eq!(thread.unknown, Nanos::ZERO);
    }
}

#[test]
fn id_of_an_executing_thread_ends_with_the_exec() {
    let mut script = Script::default();
    let lives = stream(TASK_LIFE, 0, Life::schema());
    let life = |kind, tid, parent_tid| Life {
        tid,
        pid: 7,
        parent_tid,
        parent_pid: 0,
        kind,
        code: 0,
        cpu_ns: 0,
        comm: *b"heir\0\0\0\0\0\0\0\0\0\0\0\0",
    };
    // The leader ends for its thread 8, which executes a program and is 7 from then on.
    script.switch(50, 1, (0, 0), 8, 0);
    script.switch(100, 0, (0, 0), 7, 0);
    script.feed(&lives, 190, &life(Life::EXIT, 7, 0).to_payload());
    script.switch(200, 0, (7, 0x80), 0, 0);
    let lives = stream(TASK_LIFE, 1, Life::schema());
    script.feed(&lives, 250, &life(Life::EXEC, 7, 8).to_payload());
    script.switch(400, 1, (7, 1), 0, 0);
    script.0.finish(Timestamp::from_monotonic_ns(500));
    let [old, leader, heir] = script.0.threads() else {
        panic!("three ids lived: {:?}", script.0.threads());
    };
    assert_eq!(
        (old.run, old.state),
        (Nanos::from_ns(200), ThreadState::Absent)
    );
    assert_eq!(old.ended, Some(Timestamp::from_monotonic_ns(250)));
    assert_eq!(
        (leader.run, leader.blocked),
        (Nanos::from_ns(100), Nanos::ZERO)
    );
    assert_eq!((heir.tid, heir.run), (7, Nanos::from_ns(150)));
    assert_eq!(
        (heir.blocked, heir.comm.as_str()),
        (Nanos::from_ns(100), "heir")
    );
}

#[test]
fn reused_thread_ids_are_new_threads() {
    let mut script = Script::default();
    script.switch(100, 0, (0, 0), 8, 0);
    script.switch(200, 0, (8, 0x80), 0, 0);
    script.switch(300, 0, (0, 0), 8, 0);
    assert_eq!(script.0.threads().len(), 2);
}

/// Wakes threads alternately, each after a latency of its own choice.
fn wake_by_turns(scheduling: &mut Scheduling, threads: u32, turns: u64) -> Vec<Vec<u64>> {
    let wakes = stream(SCHED_WAKE, 0, Wake::schema());
    let switches = stream(SCHED_SWITCH, 0, Switch::schema());
    let mut latencies = vec![Vec::new(); threads as usize];
    let mut now_ns = 1;
    let mut feed = |stream, ns, payload: &[u8]| {
        scheduling.element(&ElementView {
            stream,
            sequence: 0,
            time: Timestamp::from_monotonic_ns(ns),
            payload,
        });
    };
    for turn in 0..turns * u64::from(threads) {
        let tid = 1 + (turn % u64::from(threads)) as u32;
        let latency_ns = 1_000 + (turn * 48_271 % 65_537) * (1 << (turn % 9));
        for kind in [Wake::WAKING, Wake::WAKEUP] {
            let wake = Wake {
                tid,
                pid: 1,
                waker_tid: 0,
                waker_pid: 0,
                target_cpu: 0,
                kind,
            };
            feed(&wakes, now_ns, &wake.to_payload());
        }
        latencies[tid as usize - 1].push(latency_ns);
        let switch = Switch {
            prev_tid: if tid == 1 { threads } else { tid - 1 },
            next_tid: tid,
            prev_pid: 1,
            next_pid: 1,
            prev_state: 1,
            flags: Switch::PREV_TRACKED | Switch::NEXT_TRACKED,
            prev_run_ns: Switch::UNKNOWN,
        };
        feed(&switches, now_ns + latency_ns, &switch.to_payload());
        now_ns += latency_ns + 1_000;
    }
    latencies
}

#[test]
fn latencies_stay_within_their_memory() {
    const BYTES: usize = 256 << 10;
    let mut scheduling = Scheduling::new(()).with_histogram_bytes(BYTES);
    let latencies = wake_by_turns(&mut scheduling, 100, 1_000);
    let threads = scheduling.threads();
    let bytes: usize = threads
        .iter()
        .map(|it| it.wakeup_latency.heap_bytes())
        .sum();
    assert!(bytes <= BYTES, "{bytes}");
    let error = scheduling.quantile_error();
    assert!((0.001..0.1).contains(&error), "{error}");
    let median = |values: &mut Vec<u64>| {
        values.sort_unstable();
        values[values.len() / 2 - 1] as f64
    };
    for thread in threads {
        let mut latencies = latencies[thread.tid as usize - 1].clone();
        let found = &thread.wakeup_latency;
        assert_eq!(found.count(), latencies.len() as u64);
        assert_eq!(found.max(), latencies.iter().copied().max());
        let exact = median(&mut latencies);
        let found = found.quantile(0.5).unwrap() as f64;
        assert!((found - exact).abs() <= exact * error, "{found}: {exact}");
    }
    // Their sum is exact.
    let all = scheduling.wakeup_latencies();
    let exact = median(&mut latencies.concat());
    let found = all.quantile(0.5).unwrap() as f64;
    assert!((found - exact).abs() <= exact * 0.001, "{found}: {exact}");
    assert_eq!(all.error(), 0.001);
}

/// Run, runnable, blocked and unknown time.
fn sums(script: &Script, index: usize) -> [u64; 4] {
    let thread = &script.0.threads()[index];
    [thread.run, thread.runnable, thread.blocked, thread.unknown].map(Nanos::as_ns)
}

#[test]
fn states_add_up_to_the_life_if_the_kernel_charges_more() {
    let mut script = Script::default();
    script.wake(0, 7, Wake::NEW);
    script.switch(40, 0, (0, 0), 7, 0);
    // The account began at the wake-up's clock, 30 before the stamp of the arrival.
    script.switch_after(140, 0, (7, 0), 9, Switch::PREEMPTED, 130);
    assert_eq!(sums(&script, 0), [130, 10, 0, 0]);
    // It charges less as well.
    script.switch(160, 0, (9, 0), 7, 0);
    script.switch_after(260, 0, (7, 1), 0, 0, 95);
    assert_eq!(sums(&script, 0), [225, 35, 0, 0]);
    // More than the wait: by the account the rest was sleep.
    script.wake(300, 7, Wake::WAKING);
    script.wake(305, 7, Wake::WAKEUP);
    script.switch(310, 0, (0, 0), 7, 0);
    script.switch_after(410, 0, (7, 1), 0, 0, 150);
    assert_eq!(sums(&script, 0), [375, 0, 35, 0]);
    // No wake-up was recorded: it slept until it ran.
    script.switch(460, 0, (0, 0), 7, 0);
    script.switch_after(560, 0, (7, 1), 0, 0, 101);
    assert_eq!(sums(&script, 0), [476, 0, 84, 0]);
    assert_eq!(sums(&script, 0).iter().sum::<u64>(), 560);
}

#[test]
fn first_run_is_not_longer_than_the_life() {
    let mut script = Script::default();
    script.wake(0, 7, Wake::NEW);
    script.switch(10, 0, (0, 0), 7, 0);
    // The account began before the stamp of the first wake-up.
    script.switch_after(110, 0, (7, 1), 9, 0, 115);
    assert_eq!(sums(&script, 0), [110, 0, 0, 0]);
    script.switch(210, 0, (9, 0), 7, 0);
    script.switch_after(310, 0, (7, 1), 0, 0, 104);
    assert_eq!(sums(&script, 0), [214, 0, 96, 0]);
}

#[test]
fn account_of_several_runs_counts_once() {
    // Two adjacent runs that the kernel counts as one.
    let mut script = Script::default();
    script.wake(0, 7, Wake::NEW);
    script.switch(20, 1, (0, 0), 7, 0);
    let flutters = stream(events::FLUTTER, 1, events::flutter_schema());
    let mut payload = [0; 8];
    payload[..4].copy_from_slice(&7_u32.to_ne_bytes());
    script.feed(&flutters, 70, &payload);
    script.switch_after(120, 1, (7, 1), 0, 0, 110);
    assert_eq!(sums(&script, 0), [110, 10, 0, 0]);

    // A run with a gap in it: only its stamps are known.
    let at = Timestamp::from_monotonic_ns;
    let lost = stream(SCHED_SWITCH, 0, Switch::schema());
    let gap = Gap {
        stream: lost.id,
        first: 1,
        missed: 3,
        from: at(250),
        to: at(300),
        cause: GapCause::Overwritten,
    };
    script.switch(200, 1, (0, 0), 7, 0);
    script.0.gap(&lost, &gap);
    script.switch_after(400, 1, (7, 1), 0, 0, 200);
    assert_eq!(sums(&script, 0), [110 + 50 + 150, 10, 80, 0]);
    assert_eq!(sums(&script, 0).iter().sum::<u64>(), 400);
}

#[test]
fn schedstat_samples_replace_stamps_and_keep_the_sum() {
    let mut script = Script::default();
    script.switch(100, 0, (0, 0), 7, 0);
    script.switch(200, 0, (7, 1), 0, 0);
    script.switch(300, 0, (0, 0), 7, 0);
    script.switch(400, 0, (7, 1), 0, 0);
    let sample = SchedStat {
        tid: 7,
        pid: 7,
        run_ns: 230,
        wait_ns: 5,
    };
    let sampler = StreamDescriptor {
        origin: Origin::Sampler,
        ..stream(SCHEDSTAT, 0, SchedStat::schema())
    };
    script.feed(&sampler, 450, &sample.to_payload());
    script.0.finish(Timestamp::from_monotonic_ns(500));
    assert_eq!(sums(&script, 0), [230, 0, 170, 0]);
}
