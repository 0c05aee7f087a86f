// SPDX-License-Identifier: MIT OR Apache-2.0
//! The BPF sensor.

use std::collections::BTreeMap;
use std::fs;

use overhear_event::kernel::{Life, Switch, Wake};
use overhear_event::{GapCause, StreamId};
use overhear_kernel::{
    ActiveBackend, Backend, BudgetState, Kernel, KernelBuilder, SelectError, StartError,
};

use crate::harness::{cpu_lock, Program, Recorder};
use crate::roles::BROOD;

/// The kernel's bit for the state of a thread that will never run again.
const TASK_DEAD: u16 = 0x80;

fn start(builder: KernelBuilder) -> Option<Kernel> {
    match builder.backend(Backend::Bpf).build() {
        Ok(kernel) => {
            println!("{}", kernel.status().message);
            assert_eq!(kernel.status().active, ActiveBackend::Bpf);
            Some(kernel)
        }
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    }
}

/// Observes a workload up to the point where its threads are parked, compares the counts, and
/// ends it.
fn compare_counts(role: &str, mut kernel: Kernel) -> Recorder {
    let _cpus = cpu_lock();
    let mut recorder = Recorder::default();
    let mut program = Program::start(role, |pid| kernel.follow(pid).unwrap());
    program.until_parked(|| recorder.poll(&mut kernel));
    let expected = program.switches();
    let run_times = program.run_times();
    recorder.poll(&mut kernel);
    recorder.assert_only_gaps_of(GapCause::Nested);
    assert!(expected.len() > 4);
    for (&tid, &counts) in &expected {
        recorder.assert_counts(tid, counts);
        recorder.assert_run_time(tid, run_times[&tid]);
    }
    program.end();
    kernel.finish();
    recorder.poll(&mut kernel);
    recorder.assert_complete(&kernel);
    println!("{} calls not entered", recorder.missed(GapCause::Kernel));
    recorder
}

#[test]
fn switches_are_those_the_kernel_counts() {
    if let Some(kernel) = start(Kernel::builder().first_stream(StreamId::from_raw(7))) {
        let recorder = compare_counts("counted", kernel);
        assert_eq!(recorder.missed(GapCause::Nested), 0);
        let names: Vec<_> = recorder.lives.iter().map(|(_, life)| life.comm()).collect();
        assert!(names.contains(&"work-0") && names.contains(&"work-7"));
        for kind in [Wake::WAKING, Wake::WAKEUP, Wake::NEW] {
            assert!(recorder.wakes.iter().any(|(_, wake)| wake.kind == kind));
        }
    }
}

#[test]
fn voluntary_is_exact_with_pending_signals() {
    if let Some(kernel) = start(Kernel::builder()) {
        let recorder = compare_counts("signalled", kernel);
        let unlike_state = |switch: &Switch| {
            switch.flags & Switch::PREV_TRACKED != 0
                && switch.is_voluntary()
                && switch.prev_state == 0
        };
        let count = recorder.switches.iter().filter(|s| unlike_state(&s.2));
        println!("{} voluntary switches in state 0", count.count());
    }
}

#[test]
fn busy_word_replaces_interrupt_masking() {
    if let Some(kernel) = start(Kernel::builder().without_interrupt_masking()) {
        let recorder = compare_counts("counted", kernel);
        println!("{} refused", recorder.missed(GapCause::Nested));
        assert!(!recorder.wakes.is_empty() && !recorder.lives.is_empty());
    }
}

#[test]
fn children_inherit_before_they_run() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = start(Kernel::builder()) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("brood", |pid| kernel.follow(pid).unwrap());
    program.until_parked(|| recorder.poll(&mut kernel));
    program.end();
    kernel.finish();
    recorder.poll(&mut kernel);
    recorder.assert_complete(&kernel);
    assert_eq!(recorder.missed(GapCause::Nested), 0);
    // Program calls that the kernel skipped, because the program was already running on the CPU.
    // Each is counted, none is recorded.
    let not_entered = recorder.missed(GapCause::Kernel);
    println!("{not_entered} calls not entered");

    let of_kind = |kind: u32| -> BTreeMap<u32, Life> {
        let lives = recorder.lives.iter().map(|(_, life)| *life);
        lives
            .filter(|life| life.kind == kind)
            .map(|life| (life.tid, life))
            .collect()
    };
    let (forks, exits) = (of_kind(Life::FORK), of_kind(Life::EXIT));
    let died = |tid: u32| {
        // A poll delivers CPU by CPU: the last item in time need not be the last one delivered.
        let own = recorder.switches.iter().filter(|s| s.2.prev_tid == tid);
        let last = own.max_by_key(|s| s.1);
        last.is_some_and(|s| s.2.prev_state & TASK_DEAD != 0 && s.2.is_voluntary())
    };
    let woken = |tid: u32| {
        let new = |wake: &Wake| wake.tid == tid && wake.kind == Wake::NEW;
        recorder.wakes.iter().any(|(_, wake)| new(wake))
    };
    assert_eq!(program.printed.len(), BROOD as usize);
    for line in &program.printed {
        let words: Vec<&str> = line.split(' ').collect();
        let tid: u32 = words[1].parse().unwrap();
        let (Some(fork), Some(exit)) = (forks.get(&tid), exits.get(&tid)) else {
            assert!(
                not_entered > 0,
                "a begin or an end of {tid} is lost in silence"
            );
            continue;
        };
        assert_eq!(fork.parent_pid, program.pid);
        assert_eq!(fork.code, 0);
        if words[0] == "process" {
            assert_eq!((fork.pid, exit.pid), (tid, tid));
            assert_eq!(exit.code, words[2].parse().unwrap());
        } else {
            assert_eq!((fork.pid, exit.pid), (program.pid, program.pid));
        }
        let has_run = exit.cpu_ns > 0 || recorder.missing_arrivals(tid) > 0;
        assert!(has_run, "{tid} ended without having run");
        assert!(woken(tid) || not_entered > 0, "no first wake-up of {tid}");
        assert!(died(tid), "no last departure of {tid}");
        recorder.assert_counts(tid, recorder.departures(tid));
    }
    assert!(died(program.pid));
    assert!(exits.contains_key(&program.pid) || not_entered > 0);
    if let Some(main) = exits.get(&program.pid) {
        // The zombie's account is final: it has the value of the exit element, plus the exit
        // itself.
        let account = format!("/proc/{0}/task/{0}/schedstat", program.pid);
        let account = fs::read_to_string(account).unwrap();
        let account: u64 = account.split(' ').next().unwrap().parse().unwrap();
        println!("{} ns at exit, {account} ns in the end", main.cpu_ns);
        assert!(main.cpu_ns > account / 4 && main.cpu_ns < account + account / 10);
    }
    let execs: Vec<&Life> = recorder
        .lives
        .iter()
        .map(|(_, life)| life)
        .filter(|life| life.kind == Life::EXEC)
        .collect();
    assert_eq!(execs.len(), 1);
    assert_eq!(execs[0].tid, program.pid);
    assert!(!execs[0].comm().is_empty());
}

#[test]
fn exec_by_non_leader_has_old_id() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = start(Kernel::builder()) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("usurper", |pid| kernel.follow(pid).unwrap());
    program.until_parked(|| recorder.poll(&mut kernel));
    program.end();
    kernel.finish();
    recorder.poll(&mut kernel);
    recorder.assert_complete(&kernel);
    let old_tid: u32 = program.printed[0].parse().unwrap();
    let of = |tid: u32, kind: u32| {
        let lives = recorder.lives.iter().map(|(_, life)| life);
        lives.filter(move |life| life.tid == tid && life.kind == kind)
    };
    let parents: Vec<u32> = of(program.pid, Life::EXEC)
        .map(|life| life.parent_tid)
        .collect();
    assert_eq!(parents, [0, old_tid], "the first exec is the leader's own");
    assert_eq!(of(old_tid, Life::FORK).count(), 1);
    assert_eq!(of(old_tid, Life::EXIT).count(), 0);
    assert_eq!(
        of(program.pid, Life::EXIT).count(),
        2,
        "the leader, then its heir"
    );
}

#[test]
fn gaps_of_tiny_rings_are_exact() {
    let _cpus = cpu_lock();
    for (elements, life_elements) in [(8, 8), (16, 32), (64, 16)] {
        let builder = Kernel::builder()
            .elements(elements)
            .life_elements(life_elements);
        let Some(mut kernel) = start(builder) else {
            return;
        };
        let mut recorder = Recorder::default();
        let mut program = Program::start("flood", |pid| kernel.follow(pid).unwrap());
        program.until_parked(|| recorder.poll(&mut kernel));
        program.end();
        kernel.finish();
        recorder.poll(&mut kernel);
        recorder.assert_complete(&kernel);
        let missed = recorder.missed(GapCause::Overwritten);
        let not_entered = recorder.missed(GapCause::Kernel);
        println!("{elements} elements: {missed} overwritten, {not_entered} calls not entered");
        assert!(missed > 0);
        // The delivered elements are intact: every switch concerns a tracked thread.
        for (_, _, switch) in &recorder.switches {
            let tracked = Switch::PREV_TRACKED | Switch::NEXT_TRACKED;
            assert_ne!(switch.flags & tracked, 0);
            assert_eq!(switch.flags >> 4, 0);
        }
        for (_, wake) in &recorder.wakes {
            assert_eq!(wake.pid, program.pid);
            assert!((Wake::WAKING..=Wake::NEW).contains(&wake.kind));
        }
    }
}

#[test]
fn running_process_is_followed_with_all_threads() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = start(Kernel::builder()) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("counted", |_| {});
    program.until_parked(|| {});
    let before = program.switches();
    kernel.follow(program.pid).unwrap();
    recorder.poll(&mut kernel);
    program.end();
    kernel.finish();
    recorder.poll(&mut kernel);
    recorder.assert_complete(&kernel);
    for &tid in before.keys() {
        let exits = recorder.lives.iter().map(|(_, life)| life);
        let exits = exits.filter(|life| life.tid == tid && life.kind == Life::EXIT);
        assert_eq!(exits.count(), 1, "thread {tid}");
    }
}

#[test]
fn invalid_requests_fail_with_messages() {
    for elements in [0, 4, 100, 1 << 20] {
        let error = Kernel::builder().elements(elements).build().unwrap_err();
        assert!(matches!(error, StartError::RingSize { given, .. } if given == elements));
        assert!(error.to_string().contains("power of two"));
    }
    if let Some(mut kernel) = start(Kernel::builder().elements(8).life_elements(8)) {
        let pid = 0x7fff_fff0;
        let error = kernel.follow(pid).unwrap_err();
        assert_eq!(error, SelectError::NoSuchProcess { pid });
        assert_eq!(kernel.stream_ids_used() % 3, 1);
    }
}

/// The budget switches everything off except begins and ends of threads, which stay exact. No
/// recorded element contradicts a skipped one.
#[test]
fn lives_are_recorded_while_a_budget_has_the_sensors_off() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = start(Kernel::builder()) else {
        return;
    };
    let mut recorder = Recorder::default();
    let mut program = Program::start("brood", |pid| kernel.follow(pid).unwrap());
    let mut rounds = 0;
    program.until_parked(|| {
        rounds += 1;
        let mut switch_all = |to| {
            for sensor in kernel.writes() {
                let stream = sensor.descriptor.id;
                kernel.switch_for_budget(stream, to).unwrap();
            }
        };
        // Off in three of four rounds, sometimes on for a moment only.
        match rounds % 4 {
            0 => switch_all(BudgetState::Counted),
            3 => switch_all(BudgetState::On),
            2 => {
                switch_all(BudgetState::On);
                switch_all(BudgetState::Detached);
            }
            _ => {}
        }
        recorder.poll(&mut kernel);
    });
    program.end();
    kernel.finish();
    recorder.poll(&mut kernel);
    recorder.assert_only_gaps_of(GapCause::Budget);
    let gaps = recorder.gaps();
    println!("{rounds} rounds, {} switches", recorder.switches.len());
    assert!(rounds >= 8, "too few rounds: {rounds}");
    assert!(
        gaps.iter().any(|gap| gap.contains("sched_switch")),
        "{gaps:?}"
    );
    assert!(
        !gaps.iter().any(|gap| gap.contains("task_life")),
        "{gaps:?}"
    );
    let count = |kind: u32, tid: u32| {
        let lives = recorder.lives.iter().map(|(_, life)| life);
        lives
            .filter(|life| life.tid == tid && life.kind == kind)
            .count()
    };
    for line in &program.printed {
        let tid: u32 = line.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(
            (count(Life::FORK, tid), count(Life::EXIT, tid)),
            (1, 1),
            "{line}"
        );
        let last = recorder.switches.iter().filter(|it| it.2.prev_tid == tid);
        let last = last.max_by_key(|it| it.1).map(|it| it.2.prev_state);
        assert!(
            last.is_some_and(|state| state & TASK_DEAD != 0),
            "{line}: its last departure"
        );
    }
}
