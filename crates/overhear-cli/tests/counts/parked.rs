// SPDX-License-Identifier: MIT OR Apache-2.0
//! Threads at rest: our counts equal the kernel's exactly.

use overhear_event::Timestamp;

use crate::harness::{cpu_lock, Backend, Overhear, Parked};

/// The kernel's counts are read while all threads rest. So every counted departure lies before the
/// reading, and every later one after it. The number of recorded departures up to that time is the
/// same, for each thread and each kind.
fn counts_are_the_kernels(backend: Backend) {
    let _cpus = cpu_lock();
    if !backend.works() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let overhear = Overhear::new(&folder).backend(backend);
    let mut program = Parked::start(&overhear);
    let (pid, (first_time, first)) = program.counts();
    program.go_on();
    let (_, (time, counts)) = program.counts();
    program.end();

    let events = overhear.found().events;
    assert_eq!(counts.len(), 9);
    let (mut voluntary, mut involuntary) = (0, 0);
    for (&tid, &kernels) in &counts {
        // The main thread existed before it was followed: its counts start at the first rest.
        let (start, before) = if tid == pid {
            (first_time, first[&tid])
        } else {
            (Timestamp::ZERO, (0, 0))
        };
        let kernels = (kernels.0 - before.0, kernels.1 - before.1);
        let ours = events.departures(tid, start, time);
        println!("thread {tid}: {ours:?} voluntary and involuntary, by the kernel {kernels:?}");
        assert_eq!(ours, kernels, "thread {tid}");
        voluntary += ours.0;
        involuntary += ours.1;
    }
    println!("{voluntary} voluntary and {involuntary} involuntary switches");
    assert!(voluntary > 1_000 && involuntary > 0);
}

#[test]
fn counts_of_parked_threads_are_the_kernels_via_bpf() {
    counts_are_the_kernels(Backend::Bpf);
}

#[test]
fn counts_of_parked_threads_are_the_kernels_via_perf() {
    counts_are_the_kernels(Backend::Perf);
}
