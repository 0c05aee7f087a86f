// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples at points of threads and at ends of jobs, against a program that knows its jobs.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use overhear_event::SamplePoint;

use crate::harness::{cpu_lock, jobs, Backend, OVERHEAR};

type Sample = BTreeMap<String, u64>;

/// The samples in a recording.
fn samples_in(folder: &Path) -> Vec<Sample> {
    let output = Command::new(OVERHEAR)
        .args(["export", "--to", "csv", "-o", "-"])
        .arg(folder)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let samples = text
        .lines()
        .filter(|line| line.contains(",kernel:samples,"));
    let sample = |line: &str| {
        let fields = line
            .rsplit(',')
            .next()
            .unwrap()
            .trim_matches('"')
            .split(' ');
        let fields = fields.filter_map(|field| field.split_once('='));
        fields
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect()
    };
    samples.map(sample).collect()
}

fn at(sample: &Sample, point: SamplePoint) -> bool {
    sample["point"] == u64::from(point.as_raw())
}

fn count(samples: &[Sample], point: SamplePoint) -> usize {
    samples.iter().filter(|sample| at(sample, point)).count()
}

#[test]
fn each_job_of_a_run_is_one_sample() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    for (rule, expected) in [
        ("yield", 20),
        ("sleep", 21),
        ("futex=gate", 22),
        ("read=/dev/zero", 23),
        ("function=step", 24),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let output = Command::new(OVERHEAR)
            .args([
                "run",
                "--quiet",
                "--sample",
                "cpu-time,context-switches,cpu-clock",
            ])
            .args(["--per", &format!("job={rule}"), "--out"])
            .arg(&trace)
            .arg("--")
            .arg(jobs())
            .output()
            .unwrap();
        assert!(output.status.success(), "{rule}: {output:?}");
        let samples = samples_in(&trace);
        assert_eq!(count(&samples, SamplePoint::JobEnd), expected, "{rule}");
        assert_eq!(count(&samples, SamplePoint::ThreadEnd), 1, "{rule}");
        assert_eq!(samples.len(), expected + 1, "{rule}");
        let job = |sample: &&Sample| at(sample, SamplePoint::JobEnd);
        assert!(
            samples.iter().filter(job).all(|it| it["cpu_clock"] > 0),
            "{rule}"
        );
    }
}

/// The number of the first line of a source with this text.
fn line_with(source: &str, text: &str) -> usize {
    let mut lines = source.lines();
    lines.position(|line| line.contains(text)).unwrap() + 1
}

#[test]
fn line_of_source_is_a_point() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let line = line_with(include_str!("jobs.c"), "sched_yield();");
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let output = Command::new(OVERHEAR)
        .args(["run", "--quiet", "--sample", "cpu-time", "--per"])
        .arg(format!("line=jobs.c:{line}"))
        .arg("--out")
        .args([&trace, Path::new("--"), jobs()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let samples = samples_in(&trace);
    assert_eq!(count(&samples, SamplePoint::Probe), 20);
    assert_eq!(samples.len(), 20 + 1);
}

#[test]
fn jobs_of_a_running_process_are_recorded() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let mut program = Command::new(jobs())
        .arg("periodic")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let output = Command::new(OVERHEAR)
        .args(["record", "--quiet", "--duration", "500ms", "--pid"])
        .arg(program.id().to_string())
        .args(["--sample", "cpu-time", "--per", "job", "--out"])
        .arg(&trace)
        .output()
        .unwrap();
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
    assert!(output.status.success(), "{output:?}");
    let samples = samples_in(&trace);
    println!("{} jobs", samples.len());
    assert!(samples.len() > 10);
    assert_eq!(count(&samples, SamplePoint::JobEnd), samples.len());
}

/// The status and the message of a run that is not possible.
fn refused(options: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(OVERHEAR)
        // Cargo lets the loader find the library in its folder.
        .env_remove("LD_LIBRARY_PATH")
        .arg("run")
        .args(options)
        .args(["--", "true"])
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn impossible_samplers_are_refused_with_a_sentence() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let sample = ["--sample", "cpu-time", "--per"];
    for (per, more, status, part) in [
        ("job=call", &[][..], 2, "calls oh_job_end()"),
        ("job=futex=no_such_lock", &[], 2, "no_such_lock"),
        ("job=read=/no/such/file", &[], 2, "/no/such/file"),
        ("function=no_such_function", &[], 2, "no_such_function"),
        (
            "line=no_such_source.c:7",
            &[],
            2,
            "no_such_source.c@7; compile it with -g",
        ),
        ("line=7", &[], 2, "line=SOURCE:LINE"),
        ("switch", &["--kernel", "off"], 5, "need BPF"),
        ("switch", &["--backend", "perf"], 5, "need BPF"),
    ] {
        let options = [&sample[..], &[per], more].concat();
        let (code, message) = refused(&options);
        assert_eq!(code, Some(status), "{per}: {message}");
        assert!(message.contains(part), "{per}: {message}");
    }
    let (code, message) = refused(&["--sample", "cpu-tim", "--per", "switch"]);
    assert!(code == Some(2) && message.contains("cpu-time"), "{message}");
}

/// The account of a program begins within its slice, at an estimated CPU time, which can be more
/// than that of a switch soon after.
#[test]
fn no_sample_has_more_cpu_time_than_the_run_lasts() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    const LONGEST_NS: u64 = 60_000_000_000;
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let output = Command::new(OVERHEAR)
            .args(["run", "--quiet", "--sample", "cpu-time", "--per", "switch"])
            .arg("--out")
            .arg(&trace)
            .args(["--", "sleep", "0.01"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let samples = samples_in(&trace);
        assert!(!samples.is_empty());
        for sample in samples {
            assert!(sample["cpu_time"] < LONGEST_NS, "{sample:?}");
        }
    }
}
