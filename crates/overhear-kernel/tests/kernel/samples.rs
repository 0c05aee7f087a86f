// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples that BPF programs take, against the kernel's own accounts of the threads.

use std::collections::BTreeMap;
use std::fs;

use overhear_event::{GapCause, SamplePoint};
use overhear_kernel::{Backend, FlowPoint, Kernel, KernelSampler, StartError};

use crate::harness::{cpu_lock, settled_switches, Program, Recorder};

const ACCOUNTS: [&str; 8] = [
    "cpu-time",
    "wait-time",
    "voluntary-switches",
    "involuntary-switches",
    "minor-faults",
    "major-faults",
    "read-bytes",
    "write-bytes",
];

/// The totals of a thread, by the names of the fields of samples.
type Totals = BTreeMap<&'static str, i128>;

/// The kernel's totals of a thread. A zombie has no `io` file.
fn totals_of(pid: u32, tid: u32) -> Totals {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
    let words = |text: String| -> Vec<i128> {
        let numbers = text.split_whitespace().map(str::parse);
        numbers.map(Result::unwrap_or_default).collect()
    };
    let schedstat = words(read("schedstat").unwrap());
    let stat = read("stat").unwrap();
    let stat = words(stat.rsplit_once(')').unwrap().1.to_owned());
    let status = read("status").unwrap();
    let line = |text: &str, key: &str| -> i128 {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap().trim().parse().unwrap()
    };
    let mut totals = Totals::from([
        ("cpu_time", schedstat[0]),
        ("wait_time", schedstat[1]),
        (
            "voluntary_switches",
            line(&status, "voluntary_ctxt_switches:"),
        ),
        (
            "involuntary_switches",
            line(&status, "nonvoluntary_ctxt_switches:"),
        ),
        // Fields are counted from the state, which is the third.
        ("minor_faults", stat[7]),
        ("major_faults", stat[9]),
    ]);
    if let Ok(io) = read("io") {
        totals.insert("read_bytes", line(&io, "read_bytes:"));
        totals.insert("write_bytes", line(&io, "write_bytes:"));
    }
    totals
}

fn totals_of_all(pid: u32) -> BTreeMap<u32, Totals> {
    let settled = settled_switches(pid);
    settled
        .keys()
        .map(|tid| (*tid, totals_of(pid, *tid)))
        .collect()
}

fn minus(mut totals: Totals, before: &Totals) -> Totals {
    for (name, total) in &mut totals {
        *total -= before.get(name).copied().unwrap_or_default();
    }
    totals
}

type Sample = BTreeMap<String, i128>;

fn samples<'a>(recorder: &'a Recorder, sampler: &str) -> &'a [Sample] {
    recorder.others.get(sampler).map_or(&[], Vec::as_slice)
}

fn at(sample: &Sample, point: SamplePoint) -> bool {
    sample["point"] == i128::from(point.as_raw())
}

/// Sums of a sampler's samples of a thread, for these quantities.
fn sums(samples: &[Sample], tid: u32, of: &Totals) -> Totals {
    let own = samples.iter().filter(|sample| sample["tid"] == tid.into());
    let mut sums: Totals = of.keys().map(|name| (*name, 0)).collect();
    for sample in own {
        for (name, sum) in &mut sums {
            *sum += sample[*name];
        }
    }
    sums
}

/// Starts a kernel with this sampler; `None` after printing "skipped".
fn kernel(sampler: KernelSampler) -> Option<Kernel> {
    let builder = Kernel::builder().backend(Backend::Bpf);
    match builder.samplers([sampler]).build() {
        Ok(kernel) => Some(kernel),
        Err(error @ StartError::Bpf { .. }) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn switches() -> KernelSampler {
    KernelSampler::new("samples")
        .quantities(ACCOUNTS)
        .at(FlowPoint::Switch)
        .elements(65_536)
}

#[test]
fn sums_of_samples_are_the_totals_of_each_thread() {
    let _cpus = cpu_lock();
    let Some(mut kernel) = kernel(switches()) else {
        return;
    };
    let mut before = Totals::new();
    let mut program = Program::start("counted", |pid| {
        before = totals_of(pid, pid);
        kernel.follow(pid).unwrap();
    });
    let mut recorder = Recorder::default();
    program.until_parked(|| recorder.poll(&mut kernel));
    let mut totals = totals_of_all(program.pid);
    recorder.poll(&mut kernel);
    assert!(totals.len() > 8, "the main thread and its workers");
    let main = totals.get_mut(&program.pid).unwrap();
    *main = minus(std::mem::take(main), &before);
    for (tid, total) in &totals {
        println!("thread {tid}: {total:?}");
        assert_eq!(
            sums(samples(&recorder, "samples"), *tid, total),
            *total,
            "thread {tid}"
        );
    }
    let moved = samples(&recorder, "samples").iter().map(|it| it["cpu"]);
    let cpus: std::collections::BTreeSet<_> = moved.collect();
    println!("samples on CPUs {cpus:?}");

    // The end: each thread has a last sample, and nothing is missing.
    program.end();
    kernel.finish();
    recorder.poll(&mut kernel);
    let samples = samples(&recorder, "samples");
    for tid in totals.keys() {
        let own = samples
            .iter()
            .filter(|sample| sample["tid"] == (*tid).into());
        let ends: Vec<_> = own
            .map(|sample| at(sample, SamplePoint::ThreadEnd))
            .collect();
        assert_eq!(ends.iter().filter(|end| **end).count(), 1, "thread {tid}");
        assert_eq!(ends.last(), Some(&true), "thread {tid}");
    }
    let total = minus(totals_of(program.pid, program.pid), &before);
    assert_eq!(sums(samples, program.pid, &total), total, "after the end");
    recorder.assert_complete(&kernel);
    assert_eq!(recorder.missed(GapCause::Overwritten), 0);
}
