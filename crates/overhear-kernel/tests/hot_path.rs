// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rounds of a monitor with reserved memory over kernel rings allocate nothing, and have no page
//! fault once all memory is locked: with any elements, and even if rings were too small.

#[path = "../../overhear-monitor/tests/support/counting.rs"]
mod counting;

use std::sync::mpsc::channel;

use overhear_event::{Analysis, ElementView, Gap, Nanos, StreamDescriptor, Timestamp};
use overhear_kernel::{ActiveBackend, Backend, KernelMonitor, Sensor};
use overhear_monitor::{Clock, Monitor, PageFaults, QueueMemory, SystemClock};
use rustix::mm::{mlockall, MlockAllFlags};

use counting::calls;

/// Counts elements, and reads their bytes.
#[derive(Default)]
struct Sum {
    elements: u64,
    bytes: u64,
    missed: u64,
}

impl Analysis for Sum {
    fn element(&mut self, element: &ElementView<'_>) {
        self.elements += 1;
        let sum: u64 = element.payload.iter().map(|byte| u64::from(*byte)).sum();
        self.bytes = self.bytes.wrapping_add(sum);
    }

    fn gap(&mut self, _: &StreamDescriptor, gap: &Gap) {
        self.missed += gap.missed;
    }

    fn advance(&mut self, _: Timestamp) {}
}

/// Number of pages that the kernel has moved. It moves locked ones, too, and an access meanwhile is
/// a fault.
fn moved_pages() -> u64 {
    let all = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let moved = all.lines().filter_map(|line| line.split_once(' '));
    let mut moved = moved.filter(|(name, _)| *name == "pgmigrate_success");
    moved
        .next()
        .and_then(|(_, count)| count.parse().ok())
        .unwrap_or(0)
}

/// The only test of this binary: other tests would be counted with it.
#[test]
fn rounds_over_kernel_rings_neither_allocate_nor_fault() {
    let sensors = ["sched_switch", "sched_wake", "syscall"];
    let sensors = sensors.map(|name| name.parse::<Sensor>().unwrap());
    let [switch, wake, call] = sensors;
    let builder = KernelMonitor::builder()
        .backend(Backend::Bpf)
        .sensors(sensors)
        .ring(switch, 256)
        .ring(wake, 512)
        // Too small for the elements between two rounds.
        .ring(call, 8);
    let mut kernel = match builder.create() {
        Ok(kernel) => kernel,
        Err(error) => return println!("skipped: {error}"),
    };
    assert_eq!(kernel.status().unwrap().active, ActiveBackend::Bpf);
    assert_eq!(kernel.ring_elements(switch), Ok(Some(256)));
    assert_eq!(kernel.ring_elements(wake), Ok(Some(512)));
    let signal: Sensor = "signal".parse().unwrap();
    assert_eq!(kernel.ring_elements(signal), Ok(None));
    kernel.process_monitor(std::process::id()).unwrap();
    kernel.resume().unwrap();

    let mut monitor = Monitor::with_memory(Nanos::from_ms(1), QueueMemory::Reserved);
    monitor.add_source(Box::new(kernel));
    let mut sum = Sum::default();
    monitor.round(SystemClock.now(), &mut sum);
    if let Err(error) = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE) {
        return println!("skipped: memory cannot be locked ({error})");
    }

    // Another thread is woken, and sleeps again: its allocations are its own.
    let (there, called) = channel::<()>();
    let (answer, back) = channel::<()>();
    let other = std::thread::spawn(move || {
        while called.recv().is_ok() {
            let _ = answer.send(());
        }
    });
    let wake_up = || {
        let _ = there.send(());
        let _ = back.recv();
    };
    for _ in 0..50 {
        wake_up();
        monitor.round(SystemClock.now(), &mut sum);
    }
    let (mut allocated, mut faulted, moved) = (0, 0, moved_pages());
    let before = sum.elements;
    for _ in 0..300 {
        wake_up();
        let (faults, calls_before) = (PageFaults::so_far(), calls());
        monitor.round(SystemClock.now(), &mut sum);
        let faults = PageFaults::so_far().since(faults);
        allocated += calls() - calls_before;
        faulted += faults.minor + faults.major;
    }
    assert_eq!(allocated, 0);
    assert!(sum.elements > before + 300, "{} elements", sum.elements);
    assert!(sum.missed > 0, "rings of 8 elements lost nothing");
    if faulted > 0 && moved_pages() > moved {
        println!("skipped: {faulted} page faults, and the kernel moved pages meanwhile");
    } else {
        assert_eq!(faulted, 0);
    }
    drop(there);
    other.join().unwrap();
}
