// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs of the distribution: the sums of our counts are those of `getrusage`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use overhear_event::kernel::{Life, Switch};
use tempfile::TempDir;

use crate::harness::{cpu_lock, has_tool, wrapper, Backend, Found, Overhear};

/// Voluntary and involuntary switches.
type Sums = (u64, u64);

/// The line that `wrapper usage` writes: the program's pid, and its switches by wait4.
pub(crate) fn read_usage(file: &Path) -> (u32, Sums) {
    let line = fs::read_to_string(file).unwrap();
    let mut words = line.split_whitespace().map(|word| word.parse().unwrap());
    let mut word = || -> u64 { words.next().unwrap() };
    let pid = u32::try_from(word()).unwrap();
    (pid, (word(), word()))
}

/// Departures of all threads except the wrapper's: before their exits, and after them.
fn sums(found: &Found, wrapper_pid: u32) -> (Sums, Sums) {
    let events = &found.events;
    // The times at which threads began to end. A reused thread id belongs to a new thread.
    let mut lives = events.lives.iter().peekable();
    let mut ending = BTreeSet::new();
    let (mut before, mut after) = ((0, 0), (0, 0));
    for (time, switch) in &events.switches {
        while let Some((_, life)) = lives.next_if(|(born, _)| born <= time) {
            match life.kind {
                Life::FORK => ending.remove(&life.tid),
                Life::EXIT => ending.insert(life.tid),
                _ => false,
            };
        }
        if switch.flags & Switch::PREV_TRACKED == 0 || switch.prev_pid == wrapper_pid {
            continue;
        }
        let sums = match ending.contains(&switch.prev_tid) {
            true => &mut after,
            false => &mut before,
        };
        match switch.is_voluntary() {
            true => sums.0 += 1,
            false => sums.1 += 1,
        }
    }
    (before, after)
}

/// Compares a run of `wrapper usage` with the result of wait4 there.
///
/// wait4 counts a thread's departures up to the moment at which the thread is taken out of its
/// process, which is somewhere between the announcement of its exit and its last departure; and of
/// the last thread of a process perhaps the last departure too. So
///
/// - with BPF the truth lies between our departures before the exits and all of ours, and nothing
///   else is tolerated;
/// - with perf, whose records stop with the announcement, it may be up to one voluntary departure
///   per thread more than ours, the last one, and preemptions just before it: there were three of
///   two threads under load.
pub(crate) fn assert_sums(found: &Found, usage: &Path, backend: Backend) {
    let (pid, theirs) = read_usage(usage);
    let wrapper_pid = found.threads().next().unwrap()["pid"].as_u64().unwrap();
    let wrapper_pid = u32::try_from(wrapper_pid).unwrap();
    assert_ne!(pid, wrapper_pid);
    let (before, after) = sums(found, wrapper_pid);
    let threads = found.threads().filter(|t| t["pid"] != wrapper_pid);
    let threads = threads.count() as u64;
    println!("{threads} threads: {before:?} before and {after:?} after exits; wait4 {theirs:?}");

    // The report has the counts of the trace.
    let reported = |member: &str| -> u64 {
        let ours = found.threads().filter(|t| t["pid"] != wrapper_pid);
        ours.map(|thread| thread[member].as_u64().unwrap()).sum()
    };
    assert_eq!(reported("switches_voluntary"), before.0 + after.0);
    assert_eq!(reported("switches_involuntary"), before.1 + after.1);

    let beyond = match backend {
        Backend::Bpf => after,
        Backend::Perf => {
            assert_eq!(after, (0, 0));
            (threads, 3 * threads)
        }
    };
    let voluntary = before.0..=before.0 + beyond.0;
    let involuntary = before.1..=before.1 + beyond.1;
    assert!(voluntary.contains(&theirs.0), "{theirs:?} {voluntary:?}");
    assert!(
        involuntary.contains(&theirs.1),
        "{theirs:?} {involuntary:?}"
    );
}

/// Lines of pseudo-random numbers, from Marsaglia's xorshift64: the same on every machine.
pub(crate) fn write_numbers(file: &Path, lines: u32) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut text = String::new();
    for _ in 0..lines {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&state.to_string());
        text.push('\n');
    }
    fs::write(file, text).unwrap();
}

fn compare(backend: Backend, programs: &[&[&str]]) {
    let folder = tempfile::tempdir().unwrap();
    let numbers = folder.path().join("numbers");
    write_numbers(&numbers, 300_000);
    for words in programs {
        let run = TempDir::new_in(folder.path()).unwrap();
        let usage = run.path().join("usage");
        let program: Vec<OsString> = words
            .iter()
            .map(|word| match *word {
                "NUMBERS" => numbers.clone().into(),
                other => other.into(),
            })
            .collect();
        let mut command: Vec<OsString> =
            vec![wrapper().into(), "usage".into(), usage.clone().into()];
        command.extend(program);
        println!("{}:", words.join(" "));
        let found = Overhear::new(&run).backend(backend).run(&command);
        assert_sums(&found, &usage, backend);
    }
}

const XZ: &[&str] = &[
    "sh",
    "-c",
    "exec xz -T2 -0 --block-size=512KiB -c \"$0\" > /dev/null",
    "NUMBERS",
];
const SORT: &[&str] = &[
    "sort",
    "--parallel=2",
    "-S",
    "64M",
    "-o",
    "/dev/null",
    "NUMBERS",
];
const PIPELINE: &[&str] = &[
    "sh",
    "-c",
    "for i in 1 2 3; do head -n 20000 \"$0\" | tr 1-8 2-9 | sort -n | uniq | wc -l; done > /dev/null",
    "NUMBERS",
];

fn sums_are_those_of_getrusage(backend: Backend) {
    let _cpus = cpu_lock();
    if backend.works() {
        compare(backend, &[SORT, PIPELINE]);
    }
}

fn sums_of_xz_are_those_of_getrusage(backend: Backend) {
    let _cpus = cpu_lock();
    if has_tool("xz") && backend.works() {
        compare(backend, &[XZ]);
    }
}

#[test]
fn sums_are_those_of_getrusage_via_bpf() {
    sums_are_those_of_getrusage(Backend::Bpf);
}

#[test]
fn sums_are_those_of_getrusage_via_perf() {
    sums_are_those_of_getrusage(Backend::Perf);
}

#[test]
fn sums_of_xz_are_those_of_getrusage_via_bpf() {
    sums_of_xz_are_those_of_getrusage(Backend::Bpf);
}

#[test]
fn sums_of_xz_are_those_of_getrusage_via_perf() {
    sums_of_xz_are_those_of_getrusage(Backend::Perf);
}
