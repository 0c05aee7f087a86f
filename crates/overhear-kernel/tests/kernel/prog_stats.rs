// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often programs run and how long, as the kernel tells.

use overhear_kernel::{Backend, KernelMonitor, ProgStatsGuard, Sensor, StartError};

use crate::harness::turn;

#[test]
fn kernel_measures_program_run_time() {
    const CALLS: u64 = 100;
    let _turn = turn();
    let calls = Sensor::all().filter(|sensor| sensor.name() == "syscall");
    let builder = KernelMonitor::builder()
        .backend(Backend::Bpf)
        .sensors(calls);
    let mut monitor = match builder.create() {
        Ok(monitor) => monitor,
        Err(StartError::Bpf { why }) => return println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    };
    let clock = match ProgStatsGuard::start() {
        Ok(clock) => clock,
        Err(error) => return println!("skipped: {error}"),
    };
    monitor.resume().unwrap();
    let before = monitor.prog_stats("syscall").unwrap();
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getppid());
    }
    let ran = monitor.prog_stats("syscall").unwrap() - before;
    drop(clock);
    // At the entry and the exit of each call, whoever is tracked; others make calls as well.
    assert!(ran.run_count >= 2 * CALLS, "{ran:?}");
    assert!(ran.run_time_ns > 0, "{ran:?}");
    // Nobody has asked for these.
    assert_eq!(monitor.prog_stats("page_fault"), None);
    assert_eq!(monitor.prog_stats("probe"), None);
    monitor.terminate().unwrap();
    assert_eq!(monitor.prog_stats("syscall"), None);
}
