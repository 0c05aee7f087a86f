// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program's own counts equal those of `perf stat` over the whole program: task clock within 1 %,
//! instructions in user space within 0.1 %.
//!
//! The program is this test, started again: a thread opens its counters, works for about a second
//! of CPU time, and prints its totals. `perf stat` also counts its start and its end.

use std::hint::black_box;
use std::process::Command;

use overhear_sampling::counters::{CounterError, CounterEvent, CounterOptions, ThreadCounters};

/// The list of counters of the started program.
const LIST: &str = "OVERHEAR_TEST_PERF_STAT";
/// Begins the line with the totals.
const TOTALS: &str = "totals: ";
/// Nanoseconds of CPU time of the work.
const WORK_NS: u64 = 1_000_000_000;
const PAGES: usize = 20_000;

fn cpu_time_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn work() {
    let mut pages = vec![0_u8; PAGES << 12];
    for page in pages.chunks_mut(1 << 12) {
        page[0] = 1;
    }
    black_box(&pages);
    let mut sum = 0_u64;
    while cpu_time_ns() < WORK_NS {
        sum = (0..100_000).fold(sum, |sum, step| black_box(sum.wrapping_add(step)));
    }
    black_box(sum);
}

/// Runs the work if the variable has a list; otherwise this is no test.
#[test]
fn program_with_counters() {
    let Ok(list) = std::env::var(LIST) else {
        return;
    };
    let events = CounterEvent::parse_list(&list).unwrap();
    let mut counters = ThreadCounters::open(&events, CounterOptions::default()).unwrap();
    work();
    let mut totals = vec![0; events.len()];
    counters.read(&mut totals).unwrap();
    let totals: Vec<String> = totals.iter().map(u64::to_string).collect();
    println!("\n{TOTALS}{}", totals.join(" "));
}

/// The totals of the program itself and of `perf stat`, for each counter; a reason if there is no
/// `perf` or no such counter.
fn both(list: &str) -> Result<Vec<(u64, u64)>, String> {
    let events = CounterEvent::parse_list(list).unwrap();
    match ThreadCounters::open(&events, CounterOptions::default()) {
        Ok(_) => {}
        Err(CounterError::Unsupported { reason, .. }) => return Err(reason),
        Err(error) => return Err(error.to_string()),
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("perf.csv");
    let output = Command::new("perf")
        .args(["stat", "-x", ",", "-e", list, "-o"])
        .arg(&file)
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(["program_with_counters", "--exact", "--nocapture"])
        .env(LIST, list)
        .output();
    let output = output.map_err(|_| "perf is not installed".to_owned())?;
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{text}{errors}");
    let own = text.lines().find_map(|line| line.strip_prefix(TOTALS));
    let own = own.unwrap_or_else(|| panic!("{text}{errors}")).split(' ');
    let csv = std::fs::read_to_string(&file).unwrap();
    // VALUE,UNIT,EVENT,...; the task clock in milliseconds with two decimal places.
    let perf = csv.lines().filter(|line| !line.starts_with('#'));
    let perf = perf.filter_map(|line| {
        let (value, rest) = line.split_once(',')?;
        let value: f64 = value.parse().ok()?;
        let unit_ns = if rest.starts_with("msec") { 1e6 } else { 1.0 };
        Some((value * unit_ns) as u64)
    });
    let pairs: Vec<_> = own.map(|own| own.parse().unwrap()).zip(perf).collect();
    assert_eq!(pairs.len(), events.len(), "{csv}");
    Ok(pairs)
}

#[test]
fn task_clock_and_faults_equal_those_of_perf_stat() {
    let [(own_clock, clock), (own_faults, faults)] = match both("task-clock,page-faults").as_deref()
    {
        Ok([clock, faults]) => [*clock, *faults],
        Ok(other) => panic!("{other:?}"),
        Err(reason) => return println!("skipped: {reason}"),
    };
    // The start and the end of a program are part of perf's time, and neither is counted by the
    // thread. Both are a few milliseconds.
    assert!(
        clock.abs_diff(own_clock) * 100 <= clock,
        "{own_clock} {clock}"
    );
    assert!(
        own_faults >= 1 && faults >= own_faults,
        "{own_faults} {faults}"
    );
    assert!(faults - own_faults < 2_000, "{own_faults} {faults}");
}

#[test]
fn instructions_equal_those_of_perf_stat() {
    let (own, perf) = match both("instructions:u").as_deref() {
        Ok([instructions]) => *instructions,
        Ok(other) => panic!("{other:?}"),
        Err(reason) => return println!("skipped: {reason}"),
    };
    assert!(perf.abs_diff(own) * 1_000 <= perf, "{own} {perf}");
}
