// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a CPU, as the kernel's schedstat counts it, and the sum of all states, which is the
//! thread's life.

use std::ffi::OsStr;
use std::fs;

use overhear_event::kernel::{Switch, Wake};
use overhear_event::Timestamp;
use serde_json::Value;

use crate::harness::{cpu_lock, workload, Backend, Found, Overhear};
use crate::run_time::steal_ns;

fn number(thread: &Value, member: &str) -> u64 {
    thread[member].as_u64().unwrap()
}

/// From the first wake-up of a thread to its last departure.
fn life_ns(found: &Found, tid: u32) -> u64 {
    let wakes = &found.events.wakes;
    let mut wakes = wakes.iter();
    let begin = wakes.find(|(_, _, wake)| wake.tid == tid && wake.kind == Wake::NEW);
    let switches = found.events.switches.iter();
    let departs = |(_, switch): &&(Timestamp, Switch)| {
        switch.prev_tid == tid && switch.flags & Switch::PREV_TRACKED != 0
    };
    let end = switches.rev().find(departs);
    end.unwrap().0.since(begin.unwrap().0).as_ns()
}

/// Compares the report about the two threads of `workload pass` with their own readings of
/// schedstat.
///
/// Of each thread, run, runnable, blocked and unknown time must add up to its life, to the
/// nanosecond. The waiting time must be schedstat's within 10 % and 1 us per switch: the kernel
/// reads its clock at the enqueue and when it picks a thread, the tracepoints fire a little later
/// each time. From the wakings on it would be several times as long, because another CPU is woken
/// by an interrupt.
///
/// Says whether the waiting times agree, and how much was stolen meanwhile.
fn compare() -> (bool, u64) {
    let folder = tempfile::tempdir().unwrap();
    let accounts = folder.path().join("accounts");
    let program = [
        workload().as_os_str(),
        OsStr::new("pass"),
        accounts.as_os_str(),
    ];
    let before = steal_ns();
    let found = Overhear::new(&folder).backend(Backend::Bpf).run(program);
    let steal = steal_ns() - before;
    let text = fs::read_to_string(&accounts).unwrap();
    assert_eq!(text.lines().count(), 2);
    let mut agree = true;
    for line in text.lines() {
        let words: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
        let [tid, run, wait] = words[..] else {
            panic!("{line}");
        };
        let thread = found.thread(tid as u32);
        let states = ["run_ns", "runnable_ns", "blocked_ns", "unknown_ns"];
        let sum: u64 = states.iter().map(|state| number(thread, state)).sum();
        let life = life_ns(&found, tid as u32);
        let switches =
            number(thread, "switches_voluntary") + number(thread, "switches_involuntary");
        let runnable = number(thread, "runnable_ns");
        println!(
            "thread {tid}, {switches} switches: run {} ns, schedstat {run}; runnable {runnable} ns, schedstat {wait}; \
             sum {sum} ns of a life of {life}; wake-up latency {}; {steal} ns stolen",
            number(thread, "run_ns"),
            thread["wakeup_latency_ns"]
        );
        assert_eq!(sum, life, "thread {tid}");
        agree &= runnable.abs_diff(wait) <= wait / 10 + 1_000 * switches + steal;
    }
    (agree, steal)
}

#[test]
fn waiting_time_is_that_of_schedstat_and_all_states_add_up_to_the_life() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let mut stolen = 0;
    for _ in 0..3 {
        let (agree, steal) = compare();
        if agree {
            return;
        }
        stolen += steal;
    }
    // Without steal there is no excuse.
    assert!(stolen > 0, "waiting time is not that of schedstat");
    println!(
        "skipped: machine lateness, {} ms stolen",
        stolen / 1_000_000
    );
}
