// SPDX-License-Identifier: MIT OR Apache-2.0
//! The experiment of [POSIX-metrics, section 4] by POSIX trace streams alone: a stream with a log
//! while fifteen periodic tasks run, and metrics over that log (`examples/periodic/measure.c`).
//!
//! The command `overhear` reads the same log as a recording. Both evaluate the same events, so they
//! have the same measurements, one by one, and the same overheads in the table.
//!
//! `OVERHEAR_EXPERIMENT_SECONDS` sets the length of the run (`make experiment-posix`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::harness::{cpu_lock, Backend, OVERHEAR};

const TASKS: usize = 15;
/// Seconds of the run: five of the longest periods.
const SECONDS: &str = "1";
/// Cost of an event for a task: the least one of the calibrations in docs/calibration.md.
const EVENT_COST_NS: &str = "200";
/// The columns of the table, and the observed response times.
const METRICS: [&str; 4] = [
    "job_system_time",
    "system_blocking",
    "delay_until_wakeup",
    "response_time",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder in which cargo has built the C libraries that this test depends on.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

/// Compiles an example of `examples/periodic`.
fn compiled(name: &str, library: Option<&str>) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("posix_{name}"));
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    for folder in ["include", "include/overhear"] {
        compiler.arg("-I").arg(root().join(folder));
    }
    compiler
        .arg(root().join(format!("examples/periodic/{name}.c")))
        .arg("-o")
        .arg(&program);
    if let Some(library) = library {
        let libraries = libraries().display().to_string();
        compiler.arg(format!("-L{libraries}"));
        compiler.args([format!("-Wl,-rpath,{libraries}"), format!("-l{library}")]);
    }
    let status = compiler.status();
    let status = status.expect("the tests need the C compiler cc");
    assert!(status.success(), "{name}");
    program
}

/// A measurement: task, length, begin, end, intermediate events, those of the task, lost events.
type Measured = [u64; 7];

/// The output of the program.
#[derive(Default)]
struct Printed {
    /// The last name of each thread.
    names: BTreeMap<u64, String>,
    measured: BTreeMap<String, Vec<Measured>>,
    lost: u64,
}

impl Printed {
    fn parse(text: &str) -> Self {
        let mut printed = Self::default();
        for line in text.lines() {
            let (kind, rest) = line.split_once(',').unwrap();
            match kind {
                "task" => {
                    let (tid, name) = rest.split_once(',').unwrap();
                    printed.names.insert(tid.parse().unwrap(), name.to_owned());
                }
                "lost" => printed.lost += rest.split_once(',').unwrap().1.parse::<u64>().unwrap(),
                _ => {
                    let values: Vec<u64> = rest.split(',').map(|it| it.parse().unwrap()).collect();
                    let all = printed.measured.entry(kind.to_owned()).or_default();
                    all.push(values.try_into().unwrap());
                }
            }
        }
        printed
    }

    /// The longest measurement of a metric by the task of this name, and their number.
    fn longest(&self, metric: &str, name: &str) -> (u64, usize) {
        let all = self.measured.get(metric).into_iter().flatten();
        let own = all.filter(|it| self.names.get(&it[0]).is_some_and(|known| known == name));
        let lengths: Vec<u64> = own.map(|it| it[1]).collect();
        (lengths.iter().copied().max().unwrap_or(0), lengths.len())
    }
}

/// Runs `overhear`; returns its document.
fn overhear(arguments: &[&str]) -> Value {
    let output = Command::new(OVERHEAR).args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The measurements that the command finds in the log.
fn of_command(log: &str, metric: &str) -> Vec<Measured> {
    let cost = format!("{EVENT_COST_NS}ns");
    let arguments = [
        "metrics",
        log,
        "--metric",
        metric,
        "--measurements",
        "--json",
    ];
    let document = overhear(&[&arguments[..], &["--element-cost", &cost]].concat());
    let all = document["metrics"][0]["measurements"].as_array().unwrap();
    let of = |one: &Value| {
        let keys = [
            "task",
            "length_ns",
            "begin_ns",
            "end_ns",
            "intermediate_events",
            "own_events",
            "missed",
        ];
        keys.map(|key| {
            one[key]
                .as_u64()
                .unwrap_or_else(|| panic!("{key} of {one}"))
        })
    };
    all.iter().map(of).collect()
}

/// The example's tasks with measured overheads.
fn config(printed: &Printed) -> String {
    let example = std::fs::read_to_string(root().join("examples/periodic/overhear.toml")).unwrap();
    let mut tasks: toml::Table = example.parse().unwrap();
    let tasks = tasks["task"].as_array_mut().unwrap();
    let mut text = String::new();
    for task in tasks {
        let task = task.as_table_mut().unwrap();
        let name = task["name"].as_str().unwrap().to_owned();
        for metric in &METRICS[..3] {
            let (longest, _) = printed.longest(metric, &name);
            task.insert((*metric).to_owned(), format!("{longest} ns").into());
        }
        text += &format!("[[task]]\n{task}\n");
    }
    text
}

fn micros(ns: u64) -> String {
    format!("{:.1} us", ns as f64 / 1e3)
}

fn millis(ns: &Value) -> String {
    ns.as_u64()
        .map_or("-".to_owned(), |ns| format!("{:.3} ms", ns as f64 / 1e6))
}

#[test]
fn metrics_of_a_log_give_the_tables_of_the_experiment() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return;
    }
    let requested = std::env::var("OVERHEAR_EXPERIMENT_SECONDS");
    let seconds = requested.unwrap_or_else(|_| SECONDS.to_owned());
    let measure = compiled("measure", Some("overhear_posixtrace"));
    let program = compiled("periodic", None);
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("periodic.log");
    let log = log.to_str().unwrap();
    let output = Command::new(measure)
        .args([log, &METRICS.join(","), EVENT_COST_NS])
        .arg(&program)
        .arg(&seconds)
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        return println!("skipped: {}", messages.trim());
    }
    assert!(output.status.success(), "{messages}");
    let printed = Printed::parse(&String::from_utf8_lossy(&output.stdout));

    for metric in METRICS {
        let mut own = printed.measured[metric].clone();
        let mut others = of_command(log, metric);
        own.sort_unstable();
        others.sort_unstable();
        assert_eq!(own, others, "{metric}");
    }

    let written = folder.path().join("measured.toml");
    std::fs::write(&written, config(&printed)).unwrap();
    let written = written.to_str().unwrap();
    let computed = overhear(&["response-times", "--config", written, "--json"]);
    let example = root().join("examples/periodic/overhear.toml");
    let cost = format!("{EVENT_COST_NS}ns");
    let example = example.to_str().unwrap();
    let arguments = ["response-times", log, "--config", example, "--json"];
    let recorded = overhear(&[&arguments[..], &["--element-cost", &cost]].concat());
    let [computed, recorded] = [&computed, &recorded].map(|it| it["tasks"].as_array().unwrap());

    println!("| task | Job System Time | System Blocking | Delay Until Wakeup | R computed | R observed | jobs |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    let mut rows = 0;
    for (computed, recorded) in computed.iter().zip(recorded).skip(1) {
        let name = computed["name"].as_str().unwrap();
        let overheads = &METRICS[..3];
        for metric in overheads {
            let (longest, count) = printed.longest(metric, name);
            assert!(count > 0 && longest > 0, "{metric} of {name}");
            let key = format!("{metric}_ns");
            assert_eq!(recorded[&key].as_u64(), Some(longest), "{recorded}");
            assert_eq!(computed[&key].as_u64(), Some(longest), "{computed}");
        }
        let (observed, jobs) = printed.longest("response_time", name);
        print!("| {name} |");
        for metric in overheads {
            print!(" {} |", micros(printed.longest(metric, name).0));
        }
        let response = millis(&computed["response_ns"]);
        println!(" {response} | {} | {jobs} |", millis(&observed.into()));
        rows += 1;
    }
    assert_eq!(rows, TASKS);
    println!("lost events: {}", printed.lost);
}
