// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compensation of simulated runs, against the same runs without cost.

use std::collections::BTreeMap;

use overhear_event::kernel::{Switch, Wake, SCHED_SWITCH, SCHED_WAKE};
use overhear_event::{
    Analysis, ElementView, Gap, Origin, StreamDescriptor, StreamId, Timestamp, TypeSchema,
};
use proptest::prelude::*;

use super::simulator::{run, run_with_log, tid, Player, Prices, Recorded, Step, Written};
use crate::compensation::Compensation;
use crate::Costs;

const PRICES: Prices = Prices {
    switch: 263,
    wake: 141,
    mark: 17,
};
const NOTHING: Prices = Prices {
    switch: 0,
    wake: 0,
    mark: 0,
};

fn costs(prices: Prices) -> Costs {
    let mut costs = Costs::default();
    costs.kernel(SCHED_SWITCH, prices.switch as f64);
    costs.kernel(SCHED_WAKE, prices.wake as f64);
    costs.simple(prices.mark as f64);
    costs
}

fn streams(recorded: &[Recorded]) -> BTreeMap<(u8, usize), StreamDescriptor> {
    let mut streams = BTreeMap::new();
    for recorded in recorded {
        let kernel = Origin::Kernel {
            cpu: u32::try_from(recorded.cpu).unwrap(),
        };
        let (key, origin, sensor, schema) = match recorded.what {
            Written::Switch(_) => ((0, recorded.cpu), kernel, SCHED_SWITCH, Switch::schema()),
            Written::Wake(_) => ((1, recorded.cpu), kernel, SCHED_WAKE, Wake::schema()),
            Written::Mark { thread } => {
                let schema = TypeSchema::builder("mark").build().unwrap();
                (
                    (2, thread),
                    Origin::program(tid(thread), ""),
                    "mark",
                    schema,
                )
            }
        };
        let id = StreamId::from_raw(1 + u32::from(key.0) * 100 + u32::try_from(key.1).unwrap());
        streams
            .entry(key)
            .or_insert_with(|| StreamDescriptor::new(id, origin, sensor, schema));
    }
    streams
}

/// Stores the elements in the form of the simulator.
#[derive(Default)]
struct Collected {
    recorded: Vec<Recorded>,
    advanced: Timestamp,
}

impl Analysis for &mut Collected {
    fn element(&mut self, element: &ElementView<'_>) {
        assert!(element.time >= self.advanced, "older than was promised");
        let at = element.time.as_monotonic_ns();
        let cpu = match element.stream.origin {
            Origin::Kernel { cpu } => cpu as usize,
            _ => 0,
        };
        let what = match (&element.stream.origin, element.stream.sensor.as_str()) {
            (Origin::Program(task), _) => Written::Mark {
                thread: (task.pid - tid(0)) as usize,
            },
            (_, SCHED_SWITCH) => Written::Switch(Switch::parse(element.payload).unwrap()),
            _ => Written::Wake(Wake::parse(element.payload).unwrap()),
        };
        self.recorded.push(Recorded { at, cpu, what });
    }

    fn gap(&mut self, _: &StreamDescriptor, _: &Gap) {}

    fn advance(&mut self, now: Timestamp) {
        self.advanced = now;
    }
}

struct Compensated {
    recorded: Vec<Recorded>,
    rests: u64,
}

fn compensate(recorded: &[Recorded], prices: Prices) -> Compensated {
    let streams = streams(recorded);
    let mut collected = Collected::default();
    let mut compensation = Compensation::new(costs(prices), &mut collected);
    for (sequence, recorded) in (0..).zip(recorded) {
        let (key, payload): (_, Vec<u8>) = match recorded.what {
            Written::Switch(switch) => ((0, recorded.cpu), switch.to_payload().into()),
            Written::Wake(wake) => ((1, recorded.cpu), wake.to_payload().into()),
            Written::Mark { thread } => ((2, thread), Vec::new()),
        };
        let time = Timestamp::from_monotonic_ns(recorded.at);
        compensation.advance(time);
        compensation.element(&ElementView {
            stream: &streams[&key],
            sequence,
            time,
            payload: &payload,
        });
    }
    let delays = compensation.finish();
    Compensated {
        recorded: collected.recorded,
        rests: delays.rests(),
    }
}

/// The events of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    Enters(usize),
    Leaves(u16),
    Woken { kind: u32, by: u32 },
    Marks,
}

type Lives = BTreeMap<u32, Vec<(Fate, u64)>>;

/// The first difference, if there is one.
fn difference(found: &Lives, expected: &Lives) -> Option<String> {
    if fates(found) != fates(expected) {
        return Some("not the same happened".to_string());
    }
    let all = found.iter().flat_map(|(tid, life)| {
        let pairs = life.iter().zip(&expected[tid]).enumerate();
        pairs.map(move |(place, (found, expected))| (tid, place, found, expected))
    });
    let mut different = all.filter(|(_, _, found, expected)| found != expected);
    different.next().map(|first| format!("{first:?}"))
}

fn lives(recorded: &[Recorded]) -> Lives {
    let mut lives = Lives::new();
    for Recorded { at, cpu, what } in recorded {
        let mut add = |tid: u32, fate| lives.entry(tid).or_default().push((fate, *at));
        match what {
            Written::Switch(switch) => {
                if switch.prev_tid != 0 {
                    add(switch.prev_tid, Fate::Leaves(switch.prev_state));
                }
                if switch.next_tid != 0 {
                    add(switch.next_tid, Fate::Enters(*cpu));
                }
            }
            Written::Wake(wake) => {
                let (kind, by) = (wake.kind, wake.waker_tid);
                add(wake.tid, Fate::Woken { kind, by });
            }
            Written::Mark { thread } => add(tid(*thread), Fate::Marks),
        }
    }
    lives
}

fn fates(lives: &Lives) -> Vec<(u32, Vec<Fate>)> {
    let of = |life: &Vec<(Fate, u64)>| life.iter().map(|(fate, _)| *fate).collect();
    lives.iter().map(|(tid, life)| (*tid, of(life))).collect()
}

/// The threads on each CPU, one after the other, idle times included.
fn turns(recorded: &[Recorded]) -> BTreeMap<usize, Vec<u32>> {
    let mut turns: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for recorded in recorded {
        if let Written::Switch(switch) = recorded.what {
            turns.entry(recorded.cpu).or_default().push(switch.next_tid);
        }
    }
    turns
}

fn ascends(times: impl Iterator<Item = u64>) -> bool {
    let times: Vec<_> = times.collect();
    times.is_sorted()
}

/// The properties of every compensation: rule 6.
fn check_order(intruded: &[Recorded], compensated: &Compensated) {
    let recorded = &compensated.recorded;
    assert!(
        ascends(recorded.iter().map(|recorded| recorded.at)),
        "the new order is that of time"
    );
    assert_eq!(recorded.len(), intruded.len() + compensated.rests as usize);
    // For each CPU and each thread the order is the recorded one.
    let (before, after) = (lives(intruded), lives(recorded));
    assert_eq!(fates(&before), fates(&after));
    for (tid, life) in &before {
        for ((fate, plain), (_, moved)) in life.iter().zip(&after[tid]) {
            assert!(
                moved <= plain,
                "{tid} {fate:?}: {moved} is later than {plain}"
            );
        }
    }
    for cpu in 0..4 {
        let of = |recorded: &[Recorded]| -> Vec<Written> {
            let on = recorded.iter().filter(|recorded| recorded.cpu == cpu);
            let without_rest = on.filter_map(|recorded| match recorded.what {
                Written::Switch(switch) => Some(Written::Switch(Switch {
                    prev_tid: 0,
                    prev_pid: 0,
                    prev_state: 0,
                    flags: 0,
                    prev_run_ns: 0,
                    ..switch
                }))
                .filter(|_| switch.next_tid != 0),
                Written::Wake(_) => Some(recorded.what),
                Written::Mark { .. } => None,
            });
            without_rest.collect()
        };
        assert_eq!(of(intruded), of(recorded), "CPU {cpu}");
    }
}

fn in_all(recorded: &[Recorded], prices: Prices) -> u64 {
    let price = |recorded: &Recorded| match recorded.what {
        Written::Switch(_) => prices.switch,
        Written::Wake(_) => prices.wake,
        Written::Mark { .. } => prices.mark,
    };
    recorded.iter().map(price).sum()
}

/// A byte to and fro.
fn ping_pong(cpus: [usize; 2], rounds: usize) -> Vec<Player> {
    let side = |other: usize, first: bool| {
        let mut steps = vec![Step::Mark];
        for _ in 0..rounds {
            match first {
                true => steps.extend([
                    Step::Work(310),
                    Step::Post(other),
                    Step::Work(40),
                    Step::Wait,
                ]),
                false => steps.extend([
                    Step::Wait,
                    Step::Work(520),
                    Step::Post(other),
                    Step::Work(30),
                ]),
            }
        }
        steps.extend([Step::Mark, Step::Work(100)]);
        steps
    };
    let player = |index: usize| Player {
        cpu: cpus[index],
        urgency: 0,
        steps: side(1 - index, index == 0),
    };
    vec![player(0), player(1)]
}

fn gives_back(players: &[Player]) {
    let (ideal, intruded) = (run(players, NOTHING), run(players, PRICES));
    assert_ne!(ideal, intruded);
    let compensated = compensate(&intruded, PRICES);
    check_order(&intruded, &compensated);
    assert_eq!(
        difference(&lives(&compensated.recorded), &lives(&ideal)),
        None
    );
}

#[test]
fn ping_pong_on_one_cpu_is_restored() {
    gives_back(&ping_pong([0, 0], 50));
}

#[test]
fn ping_pong_on_two_cpus_is_restored() {
    gives_back(&ping_pong([0, 1], 50));
}

#[test]
fn timer_wake_up_keeps_its_time() {
    let steps = |begin: u64| {
        let beats = (0..30).map(move |beat| begin + beat * 1_000_000);
        let beat = |until| [Step::Until(until), Step::Work(250_000), Step::Mark];
        beats.flat_map(beat).collect()
    };
    let player = |cpu, begin| Player {
        cpu,
        urgency: 0,
        steps: steps(begin),
    };
    gives_back(&[player(0, 3_000_000), player(1, 3_400_000)]);
}

#[test]
fn chain_over_three_cpus_is_restored() {
    let mut first = Vec::new();
    let (mut second, mut third) = (Vec::new(), Vec::new());
    for beat in 0..20 {
        first.extend([
            Step::Until(4_000_000 + beat * 500_000),
            Step::Work(11_000),
            Step::Mark,
            Step::Post(1),
        ]);
        second.extend([Step::Wait, Step::Work(23_000), Step::Mark, Step::Post(2)]);
        third.extend([Step::Wait, Step::Work(31_000), Step::Mark]);
    }
    let steps = [first, second, third];
    let players = (0..).zip(steps).map(|(cpu, steps)| Player {
        cpu,
        urgency: 0,
        steps,
    });
    gives_back(&players.collect::<Vec<_>>());
}

/// The displaced thread would have been ahead; its skipped work is not repeated.
#[test]
fn displaced_thread_keeps_its_delay() {
    let mut worker = vec![Step::Until(2_500_000)];
    for _ in 0..400 {
        worker.extend([Step::Work(9_000), Step::Mark]);
    }
    // Wakes the urgent one from another CPU, at its own time.
    let mut waker = Vec::new();
    let mut urgent = Vec::new();
    for beat in 1..7 {
        waker.extend([Step::Until(2_500_000 + beat * 500_000), Step::Post(2)]);
        urgent.extend([Step::Wait, Step::Work(60_000)]);
    }
    let player = |cpu, urgency, steps| Player {
        cpu,
        urgency,
        steps,
    };
    let players = [
        player(0, 0, worker),
        player(1, 0, waker),
        player(0, 1, urgent),
    ];
    let (ideal, intruded) = (run(&players, NOTHING), run(&players, PRICES));
    let compensated = compensate(&intruded, PRICES);
    check_order(&intruded, &compensated);
    let end = |recorded: &[Recorded]| lives(recorded)[&tid(0)].last().unwrap().1;
    let (ideal, intruded, found) = (end(&ideal), end(&intruded), end(&compensated.recorded));
    assert!(intruded > ideal + 400 * PRICES.mark);
    assert!(
        found.abs_diff(ideal) <= 6 * super::simulator::LATENCY,
        "{found} instead of {ideal}"
    );
}

/// The rule of [MKM, section 5.2] on one CPU that is never idle: each stamp less the costs before
/// it.
fn simple_subtraction(recorded: &[Recorded], prices: Prices) -> Vec<u64> {
    let mut sum = 0;
    let mut moved = Vec::new();
    for one in recorded {
        moved.push(one.at - sum);
        sum += in_all(std::slice::from_ref(one), prices);
    }
    moved
}

fn step(threads: usize, timers: bool) -> impl Strategy<Value = Step> {
    let until = if timers { 2 } else { 0 };
    prop_oneof![
        6 => (1_u64..40_000).prop_map(Step::Work),
        2 => Just(Step::Mark),
        4 => (0..threads).prop_map(Step::Post),
        3 => Just(Step::Wait),
        1 => Just(Step::Yield),
        until => (1_100_000_u64..3_000_000).prop_map(Step::Until),
    ]
}

fn players(threads: usize, cpus: usize, timers: bool) -> impl Strategy<Value = Vec<Player>> {
    let player = (
        0..cpus,
        0_u32..2,
        prop::collection::vec(step(threads, timers), 1..40),
    );
    let player = player.prop_map(|(cpu, urgency, steps)| Player {
        cpu,
        urgency,
        steps,
    });
    prop::collection::vec(player, threads)
}

/// Threads of which none is displaced.
fn equals(threads: usize, cpus: usize) -> impl Strategy<Value = Vec<Player>> {
    players(threads, cpus, false).prop_map(|players| {
        let calm = players.into_iter().map(|player| Player {
            urgency: 0,
            ..player
        });
        calm.collect()
    })
}

/// The run without cost and the run with cost, if in both each thread has the same events in the
/// same sequence, and each CPU serves the same threads one after the other.
fn in_one_sequence(players: &[Player]) -> Option<(Vec<Recorded>, Vec<Recorded>)> {
    let (ideal, steps) = run_with_log(players, NOTHING);
    let (intruded, same_steps) = run_with_log(players, PRICES);
    let is_one = steps == same_steps
        && fates(&lives(&ideal)) == fates(&lives(&intruded))
        && turns(&ideal) == turns(&intruded);
    is_one.then_some((ideal, intruded))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn compensation_keeps_the_order(players in players(5, 3, true)) {
        let intruded = run(&players, PRICES);
        let compensated = compensate(&intruded, PRICES);
        check_order(&intruded, &compensated);
        let all = in_all(&intruded, PRICES);
        let (before, after) = (lives(&intruded), lives(&compensated.recorded));
        for (tid, life) in &before {
            for ((_, plain), (_, moved)) in life.iter().zip(&after[tid]) {
                prop_assert!(plain - moved <= all);
            }
        }
    }

    #[test]
    fn elements_without_cost_move_nothing(players in players(5, 3, true)) {
        let recorded = run(&players, NOTHING);
        let compensated = compensate(&recorded, NOTHING);
        prop_assert_eq!(compensated.rests, 0);
        prop_assert_eq!(difference(&lives(&compensated.recorded), &lives(&recorded)), None);
    }

    /// Wrong prices must not break the order, either.
    #[test]
    fn order_is_kept_with_wrong_prices(players in players(4, 2, true), factor in 0_u64..60) {
        let intruded = run(&players, PRICES);
        let wrong = Prices { switch: PRICES.switch * factor, wake: PRICES.wake * factor, mark: 5_000 };
        check_order(&intruded, &compensate(&intruded, wrong));
    }

    /// If the sequences are equal, the result is the run without cost.
    #[test]
    fn run_in_the_same_sequence_is_restored(players in equals(4, 3)) {
        let Some((ideal, intruded)) = in_one_sequence(&players) else {
            return Ok(());
        };
        let compensated = compensate(&intruded, PRICES);
        if compensated.rests > 0 {
            return Ok(());
        }
        prop_assert_eq!(difference(&lives(&compensated.recorded), &lives(&ideal)), None);
    }

    /// With displaced threads and timers, too: no time differs by more than all costs together.
    #[test]
    fn error_is_bounded_by_the_costs(players in players(4, 3, true)) {
        let Some((ideal, intruded)) = in_one_sequence(&players) else {
            return Ok(());
        };
        let compensated = lives(&compensate(&intruded, PRICES).recorded);
        let all = in_all(&intruded, PRICES);
        for (tid, life) in &lives(&ideal) {
            for ((_, ideal), (_, found)) in life.iter().zip(&compensated[tid]) {
                prop_assert!(ideal.abs_diff(*found) <= all, "{} instead of {}", found, ideal);
            }
        }
    }

    /// On one CPU that is never idle it is the subtraction of [MKM, section 5.2].
    #[test]
    fn busy_cpu_follows_the_rule_of_the_report(players in equals(5, 1)) {
        let intruded = run(&players, PRICES);
        let is_switch = |one: &Recorded, to_rest: bool| {
            matches!(one.what, Written::Switch(switch) if (switch.next_tid == 0) == to_rest)
        };
        // From the first run on, as long as a thread exists.
        let begin = intruded.iter().position(|one| is_switch(one, false)).unwrap();
        let end = begin + intruded[begin..].iter().position(|one| is_switch(one, true)).unwrap();
        let compensated = compensate(&intruded, PRICES);
        prop_assert_eq!(compensated.rests, 0);
        let times = |recorded: &[Recorded]| recorded[begin..=end].iter().map(|one| one.at).collect::<Vec<_>>();
        // The timer that wakes the first thread finds an idle CPU: its two elements delayed the
        // thread.
        let woken = 2 * PRICES.wake;
        let expected = simple_subtraction(&intruded[begin..=end], PRICES);
        let expected: Vec<_> = expected.into_iter().map(|at| at - woken).collect();
        prop_assert_eq!(times(&compensated.recorded), expected);
    }
}
