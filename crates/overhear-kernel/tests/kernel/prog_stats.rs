// SPDX-License-Identifier: MIT OR Apache-2.0
//! Run count and run time of programs, by the kernel's statistics.

use overhear_kernel::{Backend, KernelMonitor, ProgStatsGuard, Sensor, StartError};

use crate::harness::cpu_lock;

#[test]
fn kernel_measures_program_run_time() {
    const CALLS: u64 = 100;
    let _cpus = cpu_lock();
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
    // One run at the entry and one at the exit of each call, of any thread; other threads make
    // calls as well.
    assert!(ran.run_count >= 2 * CALLS, "{ran:?}");
    assert!(ran.run_time_ns > 0, "{ran:?}");
    // No monitor has requested these.
    assert_eq!(monitor.prog_stats("page_fault"), None);
    assert_eq!(monitor.prog_stats("probe"), None);
    monitor.terminate().unwrap();
    assert_eq!(monitor.prog_stats("syscall"), None);
}
