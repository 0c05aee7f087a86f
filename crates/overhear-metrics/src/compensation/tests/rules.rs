// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each rule separately, and other times: accounts in payloads, gaps, intervals.

use overhear_event::kernel::{
    Life, SchedStat, Switch, Wake, SCHEDSTAT, SCHED_SWITCH, SCHED_WAKE, TASK_LIFE,
};
use overhear_event::{
    Analysis, ElementView, FieldKind, Gap, GapCause, Nanos, Origin, StreamDescriptor, StreamId,
    Timestamp, TypeSchema,
};

use crate::compensation::{Compensation, Delays};
use crate::{Costs, Scheduling, Timeline};

/// The cost of an element of each kind in these tests.
const COST: u64 = 100;
const ASLEEP: u16 = 1;
const BOTH: u16 = Switch::PREV_TRACKED | Switch::NEXT_TRACKED;

fn at(ns: u64) -> Timestamp {
    Timestamp::from_monotonic_ns(ns)
}

fn stream(id: u32, origin: Origin, sensor: &str, schema: TypeSchema) -> StreamDescriptor {
    StreamDescriptor::new(StreamId::from_raw(id), origin, sensor, schema)
}

fn switches(cpu: u32) -> StreamDescriptor {
    stream(
        10 + cpu,
        Origin::Kernel { cpu },
        SCHED_SWITCH,
        Switch::schema(),
    )
}

fn wakes(cpu: u32) -> StreamDescriptor {
    stream(20 + cpu, Origin::Kernel { cpu }, SCHED_WAKE, Wake::schema())
}

fn lives(cpu: u32) -> StreamDescriptor {
    stream(30 + cpu, Origin::Kernel { cpu }, TASK_LIFE, Life::schema())
}

fn program(id: u32, pid: u32, schema: TypeSchema) -> StreamDescriptor {
    stream(id, Origin::program(pid, ""), "mark", schema)
}

fn marks(pid: u32) -> StreamDescriptor {
    program(40 + pid, pid, TypeSchema::builder("mark").build().unwrap())
}

/// From one thread to another; both are their own processes.
fn switch(prev: u32, next: u32, prev_state: u16) -> [u8; 24] {
    let mut flags = BOTH;
    flags &= if prev == 0 {
        !Switch::PREV_TRACKED
    } else {
        BOTH
    };
    flags &= if next == 0 {
        !Switch::NEXT_TRACKED
    } else {
        BOTH
    };
    Switch {
        prev_tid: prev,
        next_tid: next,
        prev_pid: prev,
        next_pid: next,
        prev_state,
        flags,
        prev_run_ns: 5_000,
    }
    .to_payload()
}

fn wake(tid: u32, waker_tid: u32) -> [u8; 24] {
    Wake {
        tid,
        pid: tid,
        waker_tid,
        waker_pid: waker_tid,
        target_cpu: 0,
        kind: Wake::WAKING,
    }
    .to_payload()
}

fn costs() -> Costs {
    let mut costs = Costs::default();
    for sensor in [SCHED_SWITCH, SCHED_WAKE, TASK_LIFE] {
        costs.kernel(sensor, COST as f64);
    }
    costs.simple(COST as f64);
    costs
}

fn delays() -> Delays {
    Delays::new(costs())
}

fn place(delays: &mut Delays, stream: &StreamDescriptor, time: u64, payload: &[u8]) -> u64 {
    let moved = delays.element(&ElementView {
        stream,
        sequence: 0,
        time: at(time),
        payload,
    });
    moved.time.as_monotonic_ns()
}

#[test]
fn stamp_is_moved_by_the_costs_before_it() {
    let mut delays = delays();
    let (switches, marks) = (switches(0), marks(1));
    assert_eq!(
        place(&mut delays, &switches, 10_000, &switch(0, 1, 0)),
        10_000
    );
    for beat in 1..5 {
        let time = 10_000 + beat * 1_000;
        assert_eq!(place(&mut delays, &marks, time, &[]), time - beat * COST);
    }
    assert_eq!(delays.last(), Nanos::from_ns(4 * COST));
    assert_eq!(delays.greatest(), Nanos::from_ns(5 * COST));
    // A time between two elements is moved like the element before.
    assert_eq!(delays.moved(1, at(14_000)), at(13_600));
    assert_eq!(delays.moved(1, at(14_500)), at(14_100));
    assert_eq!(delays.moved(99, at(14_500)), at(14_500));
}

#[test]
fn costs_above_the_elapsed_time_are_dropped() {
    let mut delays = delays();
    let (switches, marks) = (switches(0), marks(1));
    place(&mut delays, &switches, 10_000, &switch(0, 1, 0));
    // Ten elements in 10 ns cannot have cost 1000 ns.
    for beat in 1..=10 {
        assert_eq!(place(&mut delays, &marks, 10_000 + beat, &[]), 10_000);
    }
    assert_eq!(place(&mut delays, &marks, 20_000, &[]), 20_000 - 10 - COST);
}

#[test]
fn wake_up_carries_the_delay_to_another_cpu() {
    let mut delays = delays();
    place(&mut delays, &switches(0), 10_000, &switch(0, 1, 0));
    place(&mut delays, &marks(1), 11_000, &[]);
    // Thread 2 has slept on CPU 1, which is idle.
    place(&mut delays, &switches(1), 9_000, &switch(2, 0, ASLEEP));
    assert_eq!(place(&mut delays, &wakes(0), 12_000, &wake(2, 1)), 11_800);
    // 1.9 us after the cost of the waking.
    assert_eq!(
        place(&mut delays, &switches(1), 14_000, &switch(0, 2, 0)),
        13_700
    );
}

#[test]
fn rest_absorbs_the_delay() {
    let mut delays = delays();
    place(&mut delays, &switches(0), 10_000, &switch(0, 1, 0));
    place(&mut delays, &marks(1), 11_000, &[]);
    assert_eq!(
        place(&mut delays, &switches(0), 12_000, &switch(1, 0, ASLEEP)),
        11_800
    );
    // A timer does not depend on the cost.
    assert_eq!(place(&mut delays, &wakes(0), 20_000, &wake(1, 0)), 20_000);
    assert_eq!(
        place(&mut delays, &switches(0), 21_000, &switch(0, 1, 0)),
        20_900
    );
}

#[test]
fn untracked_thread_passes_the_delay_on() {
    let mut delays = delays();
    place(&mut delays, &switches(0), 10_000, &switch(0, 1, 0));
    let leave = Switch {
        flags: Switch::PREV_TRACKED,
        ..Switch::parse(&switch(1, 77, 0)).unwrap()
    };
    assert_eq!(
        place(&mut delays, &switches(0), 11_000, &leave.to_payload()),
        10_900
    );
    // Other threads ran meanwhile, without elements.
    let enter = Switch {
        flags: Switch::NEXT_TRACKED,
        ..Switch::parse(&switch(78, 1, 0)).unwrap()
    };
    assert_eq!(
        place(&mut delays, &switches(0), 15_000, &enter.to_payload()),
        14_800
    );
    assert_eq!(place(&mut delays, &marks(1), 16_000, &[]), 15_700);
}

#[test]
fn perf_records_follow_the_rule_of_the_report() {
    let mut delays = delays();
    let unknown = Switch::UNKNOWN;
    let alone = |prev: u32, next: u32, state| switch(prev, next, state);
    let records = [
        (10_000, alone(unknown, 1, 0), 10_000),
        (11_000, alone(1, unknown, ASLEEP), 10_900),
        (11_200, alone(unknown, 2, 0), 11_000),
        (12_000, alone(2, unknown, ASLEEP), 11_700),
    ];
    for (time, record, moved) in records {
        assert_eq!(place(&mut delays, &switches(0), time, &record), moved);
    }
}

#[test]
fn unknown_writer_is_the_thread_with_the_least_delay() {
    let mut delays = delays();
    let of_process = |prev, next, state| {
        let mut switch = Switch::parse(&switch(prev, next, state)).unwrap();
        (switch.prev_pid, switch.next_pid) = (7, 7);
        switch.to_payload()
    };
    place(&mut delays, &switches(0), 10_000, &of_process(0, 7, 0));
    place(&mut delays, &switches(1), 10_000, &of_process(0, 8, 0));
    place(&mut delays, &wakes(0), 11_000, &wake(99, 7));
    // Thread 7 is 200 ns late, thread 8 only 100.
    assert_eq!(place(&mut delays, &marks(7), 12_000, &[]), 11_900);
    // An element that names its writer is moved with the writer.
    let schema = TypeSchema::builder("mark").field("n", FieldKind::U64, "");
    let marked = program(90, 7, schema.build().unwrap().with_writer().unwrap());
    let mut payload = [0; 16];
    payload[..4].copy_from_slice(&7_u32.to_ne_bytes());
    assert_eq!(place(&mut delays, &marked, 13_000, &payload), 12_800);
}

#[test]
fn process_without_switches_is_moved_by_its_own_costs() {
    let mut delays = delays();
    for beat in 0..4 {
        let time = 10_000 + beat * 1_000;
        assert_eq!(place(&mut delays, &marks(1), time, &[]), time - beat * COST);
        assert_eq!(place(&mut delays, &marks(2), time, &[]), time - beat * COST);
    }
}

#[test]
fn thread_with_its_leaders_id_keeps_its_delay() {
    let mut delays = delays();
    place(&mut delays, &switches(0), 10_000, &switch(0, 5, 0));
    let exec = Life {
        tid: 1,
        pid: 1,
        parent_tid: 5,
        parent_pid: 0,
        kind: Life::EXEC,
        code: 0,
        cpu_ns: 0,
        comm: [0; 16],
    };
    assert_eq!(
        place(&mut delays, &lives(0), 11_000, &exec.to_payload()),
        10_900
    );
    assert_eq!(
        place(&mut delays, &switches(0), 12_000, &switch(1, 0, ASLEEP)),
        11_800
    );
}

#[test]
fn concurrent_sensors_have_a_price_of_their_own() {
    let schema = TypeSchema::builder("mark").field("n", FieldKind::U64, "");
    let schema = schema.build().unwrap();
    let mut costs = Costs::default();
    costs.simple(10.0);
    let (simple, concurrent) = (
        program(1, 7, schema.clone()),
        program(2, 7, schema.with_writer().unwrap()),
    );
    let ns = |costs: &Costs, stream: &StreamDescriptor| costs.of_stream(stream).map(Nanos::as_ns);
    assert_eq!(ns(&costs, &concurrent), Some(10));
    costs.concurrent(40.0);
    costs.laned(20.0);
    assert_eq!(ns(&costs, &simple), Some(10));
    assert_eq!(ns(&costs, &concurrent), Some(40));
    let lane = StreamDescriptor {
        lane: Some(0),
        ..concurrent
    };
    assert_eq!(ns(&costs, &lane), Some(20));
}

/// Stores its items.
#[derive(Default)]
struct Kept {
    elements: Vec<(u64, Vec<u8>)>,
    gaps: Vec<(u64, u64)>,
}

impl Analysis for &mut Kept {
    fn element(&mut self, element: &ElementView<'_>) {
        let time = element.time.as_monotonic_ns();
        self.elements.push((time, element.payload.to_vec()));
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        let (from, to) = (gap.from.as_monotonic_ns(), gap.to.as_monotonic_ns());
        self.gaps.push((from, to));
    }

    fn advance(&mut self, _: Timestamp) {}
}

fn compensated(elements: &[(&StreamDescriptor, u64, &[u8])]) -> Kept {
    let mut kept = Kept::default();
    let mut compensation = Compensation::new(costs(), &mut kept);
    for (stream, time, payload) in elements {
        compensation.advance(at(*time));
        compensation.element(&ElementView {
            stream,
            sequence: 0,
            time: at(*time),
            payload,
        });
    }
    compensation.finish();
    kept
}

#[test]
fn cpu_rests_until_the_entering_thread_is_ready() {
    let zero = switches(0);
    let (marks, wakes) = (marks(1), wakes(1));
    let mut elements: Vec<(&StreamDescriptor, u64, &[u8])> = Vec::new();
    let (sleeps, enters, wakes_it, last) = (
        switch(2, 1, ASLEEP),
        switch(0, 2, 0),
        wake(2, 0),
        switch(1, 2, ASLEEP),
    );
    elements.push((&zero, 9_000, &enters));
    elements.push((&zero, 10_000, &sleeps));
    for beat in 0..10 {
        elements.push((&marks, 11_000 + beat * 200, &[]));
    }
    // Thread 2 is woken on another CPU, which is idle, while thread 1 is a microsecond late.
    elements.push((&wakes, 12_900, &wakes_it));
    elements.push((&zero, 13_000, &last));
    let kept = compensated(&elements);
    let [.., (woken, _), (entered, second)] = &kept.elements[..] else {
        panic!("too few");
    };
    // It left at 13000 - 12 * 100, and the other one is ready only at 12900.
    assert_eq!((*woken, *entered), (12_900, 12_900));
    let leaves = kept.elements.iter().find_map(|(time, payload)| {
        let switch = Switch::parse(payload)?;
        (switch.prev_tid == 1).then_some((*time, switch))
    });
    let (left, first) = leaves.unwrap();
    let second = Switch::parse(second).unwrap();
    assert_eq!(left, 11_800);
    assert_eq!((first.next_tid, first.flags), (0, Switch::PREV_TRACKED));
    assert_eq!(
        (first.prev_state, first.prev_run_ns),
        (ASLEEP, 5_000 - 1_100)
    );
    assert_eq!((second.prev_tid, second.next_tid), (0, 2));
    assert_eq!(
        (second.flags, second.prev_run_ns),
        (Switch::NEXT_TRACKED, Switch::UNKNOWN)
    );
}

#[test]
fn accounts_of_cpu_time_shrink_with_the_runs() {
    let (switches, marks, lives) = (switches(0), marks(1), lives(0));
    let sampler = stream(50, Origin::Sampler, SCHEDSTAT, SchedStat::schema());
    let life = Life {
        tid: 1,
        pid: 1,
        parent_tid: 0,
        parent_pid: 0,
        kind: Life::EXIT,
        code: 0,
        cpu_ns: 9_000,
        comm: [0; 16],
    };
    let sample = SchedStat {
        tid: 1,
        pid: 1,
        run_ns: 8_000,
        wait_ns: 3,
    };
    let (enters, leaves, life) = (switch(0, 1, 0), switch(1, 0, ASLEEP), life.to_payload());
    let sample = sample.to_payload();
    let kept = compensated(&[
        (&switches, 10_000, &enters),
        (&marks, 11_000, &[]),
        (&switches, 12_000, &leaves),
        (&sampler, 13_000, &sample),
        (&switches, 14_000, &enters),
        (&lives, 15_000, &life),
    ]);
    let payload = |place: usize| &kept.elements[place].1[..];
    // Entering has a cost, too: the thread had the CPU, but did not work.
    assert_eq!(Switch::parse(payload(2)).unwrap().prev_run_ns, 5_000 - 200);
    let sample = SchedStat::parse(payload(3)).unwrap();
    assert_eq!((sample.run_ns, sample.wait_ns), (8_000 - 200, 3));
    assert_eq!(Life::parse(payload(5)).unwrap().cpu_ns, 9_000 - 300);
}

#[test]
fn missed_elements_cost_as_much_as_others() {
    let (switches, marks, wakes) = (switches(0), marks(1), wakes(0));
    let mut kept = Kept::default();
    let mut compensation = Compensation::new(costs(), &mut kept);
    let enters = switch(0, 1, 0);
    let element = |stream, time, payload| ElementView {
        stream,
        sequence: 0,
        time: at(time),
        payload,
    };
    compensation.element(&element(&switches, 10_000, &enters));
    compensation.element(&element(&marks, 11_000, &[]));
    let gap = Gap {
        stream: wakes.id,
        first: 0,
        missed: 7,
        from: at(10_500),
        to: at(12_000),
        cause: GapCause::Overwritten,
    };
    compensation.gap(&wakes, &gap);
    compensation.element(&element(&marks, 13_000, &[]));
    compensation.finish();
    assert_eq!(kept.gaps, [(10_500, 11_800)]);
    assert_eq!(kept.elements.last().unwrap().0, 13_000 - 900);
}

#[test]
fn time_line_has_both_lengths() {
    let (switches, marks) = (switches(0), marks(1));
    let mut delays = delays();
    let mut scheduling = Scheduling::new(Timeline::default().compensated());
    let enters = switch(0, 1, 0);
    let leaves = switch(1, 0, ASLEEP);
    let mut elements: Vec<(&StreamDescriptor, u64, &[u8])> = Vec::new();
    for beat in 0..3 {
        let begin = 10_000 + beat * 10_000;
        elements.push((&switches, begin, &enters));
        elements.push((&marks, begin + 1_000, &[]));
        elements.push((&switches, begin + 3_000, &leaves));
    }
    for (stream, time, payload) in elements {
        let element = ElementView {
            stream,
            sequence: 0,
            time: at(time),
            payload,
        };
        delays.element(&element);
        scheduling.element(&element);
        scheduling
            .observer_mut()
            .settle(|tid, at| delays.moved(tid, at));
    }
    scheduling.finish(at(50_000));
    scheduling
        .observer_mut()
        .settle(|tid, at| delays.moved(tid, at));
    let row = &scheduling.observer().rows()[0];
    assert_eq!(row.lengths, [3_000, 7_000, 3_000, 7_000, 3_000, 17_000]);
    // Each run is shorter by the costs of entering and of the mark; idle time absorbs them.
    assert_eq!(row.shrinks, [200, -200, 200, -200, 200, 0]);
    assert_eq!(row.first_delay, Nanos::ZERO);
}

/// Checks the order of its items.
#[derive(Default)]
struct Ordered {
    last: Timestamp,
    elements: u64,
}

impl Analysis for Ordered {
    fn element(&mut self, element: &ElementView<'_>) {
        assert!(element.time >= self.last);
        self.last = element.time;
        self.elements += 1;
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, _: Timestamp) {}
}

#[test]
fn held_back_items_are_bounded() {
    let (switches, marks) = (switches(0), marks(1));
    let nothing = TypeSchema::builder("t").build().unwrap();
    let interrupts = stream(50, Origin::Kernel { cpu: 1 }, "interrupt", nothing);
    let run = |most_held: usize, rounds: u64| {
        let mut compensation = Compensation::new(costs(), Ordered::default());
        compensation.most_held = most_held;
        compensation.element(&ElementView {
            stream: &switches,
            sequence: 0,
            time: at(1_000),
            payload: &switch(0, 1, 0),
        });
        // One CPU is never idle, and its delay grows; the elements of the other one wait for it.
        for round in 0..rounds {
            for (stream, offset) in [(&marks, 0), (&interrupts, 500)] {
                compensation.element(&ElementView {
                    stream,
                    sequence: round,
                    time: at(2_000 + round * 1_000 + offset),
                    payload: &[],
                });
                assert!(compensation.held.len() <= most_held);
            }
            compensation.advance(at(2_000 + round * 1_000 + 500));
        }
        let (delays, ordered) = compensation.into_parts();
        assert_eq!(ordered.elements, 1 + 2 * rounds);
        delays
    };
    // The capacity is for few: nothing is released early.
    assert_eq!(run(200, 1_000).hurried(), 0);
    let delays = run(200, 20_000);
    assert!(delays.hurried() > 1_000, "{}", delays.hurried());
}
