// SPDX-License-Identifier: MIT OR Apache-2.0
//! How often programs run and how long, as the kernel tells.

use overhear_kernel::{Choice, KernelMonitor, RunClock, Sensor, StartError};

use crate::harness::turn;

#[test]
fn the_kernel_tells_how_long_programs_run() {
    const CALLS: u64 = 100;
    let _turn = turn();
    let calls = Sensor::all().filter(|sensor| sensor.name() == "syscall");
    let builder = KernelMonitor::builder().choice(Choice::Bpf).sensors(calls);
    let mut monitor = match builder.create() {
        Ok(monitor) => monitor,
        Err(StartError::Bpf { why }) => return println!("skipped: {why}"),
        Err(error) => panic!("{error}"),
    };
    let clock = match RunClock::start() {
        Ok(clock) => clock,
        Err(error) => return println!("skipped: {error}"),
    };
    monitor.resume().unwrap();
    let before = monitor.runs("syscall").unwrap();
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getppid());
    }
    let ran = monitor.runs("syscall").unwrap() - before;
    drop(clock);
    // At the entry and the exit of each call, whoever is tracked; others make calls as well.
    assert!(ran.count >= 2 * CALLS, "{ran:?}");
    assert!(ran.total_ns > 0, "{ran:?}");
    // Nobody has asked for these.
    assert_eq!(monitor.runs("page_fault"), None);
    assert_eq!(monitor.runs("probe"), None);
    monitor.terminate().unwrap();
    assert_eq!(monitor.runs("syscall"), None);
}
