// SPDX-License-Identifier: MIT OR Apache-2.0
//! Proofs with literal values, and with a scheduler that omits some of its switches.

use overhear_event::kernel::{Life, Switch};
use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest, ProptestConfig};

use super::{Continuity, CpuIndex, Scope, DIRECT_ENTRIES};

const UNKNOWN: u32 = Switch::UNKNOWN;
/// The process of all threads of a scene, unless the scene names another one.
const PID: u32 = 7;

/// A switch between threads, 0 for an untracked one, after a run of unknown length.
fn switch(prev: u32, next: u32) -> Switch {
    let flag = |tid, flag| if tid == 0 { 0 } else { flag };
    Switch {
        prev_tid: prev,
        next_tid: next,
        prev_pid: PID,
        next_pid: PID,
        prev_state: 1,
        flags: flag(prev, Switch::PREV_TRACKED) | flag(next, Switch::NEXT_TRACKED),
        prev_run_ns: UNKNOWN,
    }
}

fn life(kind: u32, tid: u32, parent_tid: u32) -> Life {
    Life {
        tid,
        pid: PID,
        parent_tid,
        parent_pid: 0,
        kind,
        code: 0,
        cpu_ns: 0,
        comm: [0; 16],
    }
}

struct Scene {
    continuity: Continuity,
    cpus: [CpuIndex; 3],
}

impl Scene {
    fn new(continuity: Continuity) -> Self {
        let mut continuity = continuity;
        let cpus = std::array::from_fn(|_| continuity.add_cpu());
        Self { continuity, cpus }
    }

    fn tracked() -> Self {
        Self::new(Continuity::new(Scope::Tracked))
    }

    /// The CPUs on which a switch is missing before this one.
    fn take(&mut self, cpu: usize, switch: &Switch) -> Vec<usize> {
        let holes = self.continuity.switch(self.cpus[cpu], switch);
        assert_eq!(holes.is_empty(), holes.iter().count() == 0);
        holes.iter().map(CpuIndex::get).collect()
    }

    /// A switch between these threads on this CPU.
    fn then(&mut self, cpu: usize, prev: u32, next: u32) -> Vec<usize> {
        self.take(cpu, &switch(prev, next))
    }

    /// Like [`Self::then`], and nothing is missing.
    fn fine(&mut self, cpu: usize, prev: u32, next: u32) -> &mut Self {
        assert_eq!(
            self.then(cpu, prev, next),
            [0_usize; 0],
            "{prev} to {next} on {cpu}"
        );
        self
    }

    fn life(&mut self, kind: u32, tid: u32, parent_tid: u32) -> &mut Self {
        self.continuity.life(&life(kind, tid, parent_tid));
        self
    }
}

#[test]
fn complete_switches_prove_nothing() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).fine(0, 1, 2).fine(0, 2, 0);
    scene
        .fine(1, 0, 2)
        .fine(0, 0, 1)
        .fine(1, 2, 0)
        .fine(0, 1, 0);
    // Untracked threads arrive and leave without an element.
    scene.fine(1, 0, 1).fine(1, 1, 0).fine(1, 0, 1);
}

#[test]
fn two_departures_without_arrival_prove_it_missing() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).fine(0, 1, 0);
    assert_eq!(scene.then(0, 1, 0), [0]);
    // On a CPU without earlier elements, too.
    assert_eq!(scene.then(2, 1, 0), [2]);
    assert_eq!(scene.then(2, 1, 0), [2]);
    scene.fine(2, 0, 1).fine(2, 1, 0);
}

#[test]
fn known_run_stands_in_for_arrival() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).fine(0, 1, 0);
    let known = Switch {
        prev_run_ns: 500,
        ..switch(1, 0)
    };
    assert_eq!(scene.take(0, &known), [0_usize; 0]);
    // But nothing replaces the departure of another thread from that CPU.
    scene.fine(0, 0, 2);
    assert_eq!(scene.take(0, &known), [0]);
}

#[test]
fn next_switch_of_cpu_proves_departure_missing() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1);
    assert_eq!(scene.then(0, 2, 0), [0]);
    scene.fine(0, 0, 1);
    assert_eq!(scene.then(0, 0, 2), [0]);
    // Each is proven once.
    scene.fine(0, 2, 0).fine(1, 0, 1).fine(1, 1, 0);
}

#[test]
fn appearance_elsewhere_proves_departure_missing_there() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1);
    assert_eq!(scene.then(1, 0, 1), [0]);
    scene
        .fine(1, 1, 0)
        .fine(0, 0, 2)
        .fine(0, 2, 0)
        .fine(0, 0, 1);
    // Its arrival on the CPU that it leaves is missing, too.
    assert_eq!(scene.then(2, 1, 0), [0, 2]);
    scene.fine(0, 0, 3).fine(1, 0, 1);
    assert_eq!(scene.then(2, 3, 1), [0, 2, 1]);
}

#[test]
fn thread_selected_while_it_runs_proves_nothing() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).fine(0, 1, 0);
    scene.life(Life::TRACKED, 2, 0).fine(0, 2, 0);
    // Without an announcement, too; but only once.
    scene.fine(0, 3, 0);
    assert_eq!(scene.then(0, 3, 0), [0]);
    scene.life(Life::UNTRACKED, 1, 0).life(Life::TRACKED, 1, 0);
    scene.fine(1, 1, 0);
}

#[test]
fn thread_untracked_while_it_runs_proves_nothing() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).life(Life::UNTRACKED, 1, 0);
    scene.fine(0, 0, 2).fine(0, 2, 0);
    // A switch at the same time may be recorded after it.
    scene.life(Life::UNTRACKED, 2, 0);
    scene.fine(0, 0, 2).fine(0, 0, 3).fine(0, 3, 0);
    scene.life(Life::TRACKED, 2, 0).fine(0, 0, 2);
    assert_eq!(scene.then(0, 0, 3), [0]);
}

#[test]
fn thread_that_ends_need_not_leave() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).life(Life::EXIT, 1, 0).fine(0, 0, 2);
    scene.life(Life::EXIT, 2, 0).fine(0, 2, 0);
    // The next thread with its id is another one.
    scene.life(Life::FORK, 1, 2).fine(1, 0, 1).fine(1, 1, 0);
    scene.life(Life::FORK, 2, 1);
    assert_eq!(scene.then(0, 2, 0), [0], "a child begins with an arrival");
}

#[test]
fn thread_takes_over_id_of_its_leader() {
    // 7 is the leader, 8 executes.
    let leader = PID;
    let enter = |scene: &mut Scene| {
        let dead = Switch {
            prev_state: 0x80,
            ..switch(leader, 8)
        };
        scene.fine(0, 0, leader).life(Life::EXIT, leader, 0);
        assert_eq!(scene.take(0, &dead), [0_usize; 0]);
    };
    // It leaves before the element, or after it.
    let mut scene = Scene::tracked();
    enter(&mut scene);
    scene.fine(0, leader, 0).fine(1, 0, leader);
    scene.life(Life::EXEC, leader, 8);
    scene.fine(1, leader, 0).fine(1, 0, leader);
    let mut scene = Scene::tracked();
    enter(&mut scene);
    scene.life(Life::EXEC, leader, 8).fine(0, leader, 0);
    assert_eq!(scene.then(0, leader, 0), [0]);
    // The leader leaves for the last time after the exchange of ids, with the id of the other.
    let mut scene = Scene::tracked();
    scene.fine(1, 0, leader).fine(0, 0, 8);
    scene.life(Life::EXIT, leader, 0);
    let last = Switch {
        prev_state: 0x80,
        ..switch(8, 0)
    };
    assert_eq!(scene.take(1, &last), [0_usize; 0]);
    scene.fine(0, leader, 0).life(Life::EXEC, leader, 8);
    scene.fine(1, 0, leader).fine(1, leader, 0);
    // A thread that has not exited does not.
    let mut scene = Scene::tracked();
    scene.fine(1, 0, leader).fine(0, 0, 8);
    assert_eq!(scene.take(1, &last), [1, 0]);
    // An unrelated thread does not.
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 8);
    let stranger = Switch {
        prev_pid: 9,
        ..switch(9, 0)
    };
    assert_eq!(scene.take(0, &stranger), [0]);
}

#[test]
fn counted_losses_explain_later_switches() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).fine(1, 0, 2).fine(1, 2, 0);
    scene.continuity.gap(scene.cpus[0]);
    // Any events on that CPU: 1 has left it, 2 has arrived.
    scene.fine(1, 0, 1).fine(0, 2, 0);
    // The loss does not explain anything on the others.
    assert_eq!(scene.then(1, 3, 0), [1]);
    scene.fine(2, 0, 3).fine(2, 3, 0);
    scene.continuity.gap(scene.cpus[0]);
    assert_eq!(scene.then(2, 3, 0), [2]);
    scene.continuity.forget();
    scene.fine(0, 3, 0).fine(1, 2, 3).fine(2, 1, 2);
}

#[test]
fn resumed_monitor_begins_anew() {
    let mut scene = Scene::tracked();
    scene.fine(0, 0, 1).fine(1, 0, 2).fine(1, 2, 0);
    let resumed = Switch {
        flags: Switch::NEXT_TRACKED | Switch::RESUMED,
        ..switch(0, 3)
    };
    assert_eq!(scene.take(0, &resumed), [0_usize; 0]);
    scene.fine(1, 2, 0).fine(2, 1, 0).fine(0, 3, 0);
    assert_eq!(scene.then(0, 3, 0), [0]);
}

#[test]
fn perf_records_are_halves_of_switches() {
    let half = |prev: u32, next: u32| Switch {
        prev_tid: if prev == 0 { UNKNOWN } else { prev },
        next_tid: if next == 0 { UNKNOWN } else { next },
        ..switch(prev, next)
    };
    let mut scene = Scene::tracked();
    for half in [half(0, 1), half(1, 0), half(0, 2), half(2, 0)] {
        assert_eq!(scene.take(0, &half), [0_usize; 0]);
    }
    assert_eq!(scene.take(0, &half(2, 0)), [0]);
    assert_eq!(scene.take(0, &half(0, 1)), [0_usize; 0]);
    assert_eq!(scene.take(0, &half(0, 2)), [0]);
}

#[test]
fn idle_cpu_of_machine_has_no_unseen_thread() {
    let machine = || Scene::new(Continuity::new(Scope::Machine));
    let mut scene = machine();
    // The running thread at the begin of the trace is unknown; afterwards it is known.
    scene.fine(0, 1, 0).fine(1, 2, 3);
    assert_eq!(scene.then(0, 4, 0), [0]);
    assert_eq!(scene.then(1, 0, 4), [1]);
    // A thread of the machine leaves after its exit, too.
    scene.fine(0, 0, 5).life(Life::EXIT, 5, 0);
    assert_eq!(scene.then(0, 0, 6), [0]);
    // If only some threads are tracked, this is unknown.
    let mut scene = Scene::tracked();
    scene.fine(0, 1, 0).fine(0, 4, 0);
}

#[test]
fn clocks_that_disagree_are_noticed_and_forgiven() {
    let unordered = || Scene::new(Continuity::new(Scope::Machine).unordered());
    // Thread 1 leaves CPU 0 and enters CPU 1, whose clock is late.
    let mut scene = unordered();
    scene.fine(0, 0, 1).fine(1, 0, 1);
    assert!(!scene.continuity.is_disordered());
    assert_eq!(scene.continuity.unfinished().count(), 1);
    scene.fine(0, 1, 0).fine(1, 1, 0);
    assert!(scene.continuity.is_disordered());
    assert_eq!(scene.continuity.unfinished().count(), 0);
    // It does not leave CPU 0: the next departure shows that, or the end.
    let mut scene = unordered();
    scene.fine(0, 0, 1).fine(1, 0, 1).fine(1, 1, 0);
    let unfinished: Vec<_> = scene.continuity.unfinished().map(CpuIndex::get).collect();
    assert_eq!(unfinished, [0]);
    assert_eq!(scene.then(0, 2, 0), [0]);
    assert!(!scene.continuity.is_disordered());
    let mut scene = unordered();
    scene.fine(2, 0, 1);
    assert_eq!(scene.continuity.unfinished().count(), 0, "it still runs");
}

#[test]
fn threads_that_share_an_entry_are_distinguished() {
    let (near, far) = (5, 5 + 3 * DIRECT_ENTRIES as u32);
    let mut scene = Scene::tracked();
    scene.fine(0, 0, near).fine(1, 0, far).fine(0, near, 0);
    assert_eq!(scene.then(2, 0, far), [1]);
    assert_eq!(scene.then(2, 0, near), [2]);
    assert_eq!(scene.then(0, far, 0), [0], "its arrival");
    scene.fine(2, near, 0);
    let fixed = Continuity::new(Scope::Tracked).with_fixed_memory();
    let mut scene = Scene::new(fixed);
    let room = scene.continuity.threads.far.capacity();
    for tid in 1..20_000 {
        scene.fine(0, 0, tid).fine(0, tid, 0);
    }
    assert_eq!(scene.continuity.threads.far.capacity(), room);
    assert_eq!(scene.then(0, 19_999, 0), [0]);
}

/// A machine with scripted threads on its CPUs.
struct Machine {
    /// The thread on each CPU, 0 for none.
    on: [u32; 3],
    /// Of each thread, from 1 on, whether it is tracked.
    tracked: [bool; 6],
}

impl Machine {
    /// The number of a thread if it is tracked, otherwise 0.
    fn seen(&self, tid: u32) -> u32 {
        match tid {
            0 => 0,
            _ if self.tracked[tid as usize - 1] => tid,
            _ => 0,
        }
    }

    /// The next thread of a CPU; 0 if it runs elsewhere.
    fn choose(&self, wanted: u32) -> u32 {
        match self.on.contains(&wanted) {
            true => 0,
            false => wanted,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Complete streams prove nothing for any schedule, and the number of proofs never exceeds the
    /// number of missing switches.
    #[test]
    fn proofs_do_not_exceed_missing_switches(
        steps in proptest::collection::vec((0..3_usize, 0..7_u32, 0..12_u32), 1..200),
        tracked in any::<[bool; 6]>(),
        loses in any::<bool>(),
        knows_runs in any::<bool>(),
    ) {
        let mut machine = Machine { on: [0; 3], tracked };
        let mut scene = Scene::tracked();
        let (mut missing, mut proven) = (0, 0);
        for (cpu, wanted, chance) in steps {
            let (tid, at) = (wanted.max(1), wanted.max(1) as usize - 1);
            if chance == 0 {
                // Tracking of a thread begins or ends, in any state.
                machine.tracked[at] = !machine.tracked[at];
                let kind = if machine.tracked[at] { Life::TRACKED } else { Life::UNTRACKED };
                scene.life(kind, tid, 0);
                continue;
            }
            let (prev, next) = (machine.on[cpu], machine.choose(wanted));
            if prev == next {
                continue;
            }
            machine.on[cpu] = next;
            let seen = (machine.seen(prev), machine.seen(next));
            if seen == (0, 0) {
                continue;
            }
            if loses && chance < 3 {
                missing += 1;
                continue;
            }
            let element = Switch {
                prev_run_ns: if knows_runs { 3 } else { UNKNOWN },
                ..switch(seen.0, seen.1)
            };
            proven += scene.take(cpu, &element).len();
            prop_assert!(proven <= missing, "{proven} of {missing}");
        }
    }

    /// A missing switch is proven as soon as a later switch contradicts its absence.
    #[test]
    fn missing_switch_is_proven_by_next_of_its_threads_or_cpu(
        steps in proptest::collection::vec((0..3_usize, 0..7_u32), 1..200),
        lost in 0..100_usize,
    ) {
        let mut machine = Machine { on: [0; 3], tracked: [true; 6] };
        let mut scene = Scene::tracked();
        let mut missing: Option<(usize, u32, u32)> = None;
        let mut known = [false; 7];
        for (number, (cpu, wanted)) in steps.into_iter().enumerate() {
            let (prev, next) = (machine.on[cpu], machine.choose(wanted));
            if prev == next {
                continue;
            }
            machine.on[cpu] = next;
            // The entering thread has an earlier element: otherwise its first departure proves
            // nothing.
            let is_known = prev != 0 || known[next as usize];
            if missing.is_none() && number >= lost && is_known {
                missing = Some((cpu, prev, next));
                continue;
            }
            known[next as usize] = true;
            let holes = scene.then(cpu, prev, next);
            let Some((where_, left, entered)) = missing else {
                prop_assert_eq!(holes, [0_usize; 0]);
                continue;
            };
            let contradicts = match left {
                0 => prev == entered,
                _ => {
                    let is_of_entered = entered != 0 && prev == entered;
                    cpu == where_ || [prev, next].contains(&left) || is_of_entered
                }
            };
            if contradicts {
                prop_assert_eq!(holes, [where_]);
                break;
            }
            prop_assert_eq!(holes, [0_usize; 0]);
        }
    }
}
