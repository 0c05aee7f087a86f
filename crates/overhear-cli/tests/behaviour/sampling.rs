// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samplers: `run` and `record` with `--sample`, and `list --data-sources`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{as_nobody, finish, overhear, Ended, Started};

/// A program that touches pages and takes CPU time.
const BUSY: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";

fn run(options: &[&str], program: &[&str]) -> Ended {
    let mut arguments = vec!["run", "--kernel", "off", "--quiet"];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(program);
    finish(&mut overhear(&arguments))
}

/// The rows of the samples in a recording: the position of each, and its fields by name; or the
/// number of missed ones, and the cause.
struct Sampled {
    /// Position, fields.
    samples: Vec<(u64, Vec<(String, i64)>)>,
    /// Position, number, cause.
    gaps: Vec<(u64, u64, String)>,
}

impl Sampled {
    fn of(recording: &Path, sampler: &str) -> Self {
        let folder = recording.to_str().unwrap();
        let exported = finish(&mut overhear(&[
            "export", folder, "--to", "csv", "--output", "-",
        ]));
        assert!([0, 3].contains(&exported.status), "{exported:#?}");
        let (mut samples, mut gaps) = (Vec::new(), Vec::new());
        for line in exported.stdout.lines().skip(1) {
            let columns: Vec<&str> = line.split(',').collect();
            if columns[1] != format!("sampler/{sampler}") {
                continue;
            }
            let position = columns[3].parse().unwrap();
            if columns[5].is_empty() {
                let fields = columns[6].split(' ').map(|field| {
                    let (name, value) = field.split_once('=').unwrap();
                    (name.to_owned(), value.parse().unwrap_or(i64::MIN))
                });
                samples.push((position, fields.collect()));
            } else {
                gaps.push((position, columns[4].parse().unwrap(), columns[5].to_owned()));
            }
        }
        Self { samples, gaps }
    }

    fn values(&self, name: &str) -> Vec<i64> {
        let samples = self.samples.iter();
        let value = |fields: &[(String, i64)]| {
            let found = fields.iter().find(|(field, _)| field == name);
            found.unwrap_or_else(|| panic!("no {name} in {fields:?}")).1
        };
        samples.map(|(_, fields)| value(fields)).collect()
    }

    fn sum(&self, name: &str) -> i64 {
        self.values(name).iter().sum()
    }

    /// Positions that have a sample, and those that are in gaps.
    fn positions(&self) -> (u64, u64) {
        let missed = self.gaps.iter().map(|(_, missed, _)| missed).sum();
        (self.samples.len() as u64, missed)
    }
}

#[test]
fn periods_are_sampled_or_counted() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let sample = "cpu-time,page-faults,resident,psi:cpu,stat:ctxt,task-clock";
    let options = [
        "--sample",
        sample,
        "--every",
        "2ms",
        "--out",
        out.to_str().unwrap(),
    ];
    let ended = run(&options, &["sh", "-c", &format!("{BUSY}; sleep 0.2")]);
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    if ended.stderr.contains("psi:cpu") {
        println!("skipped: this kernel has no pressure stall information");
        return;
    }
    let sampled = Sampled::of(&out, "samples");
    let (samples, missed) = sampled.positions();
    // Positions are those of periods, and the last one is the rest: so gaps are where they belong.
    let last = sampled.samples.last().unwrap().0;
    assert_eq!(last + 1, samples + missed, "{:?}", sampled.gaps);
    assert!(
        sampled.gaps.iter().all(|gap| gap.2 == "unsampled"),
        "{:?}",
        sampled.gaps
    );
    // 200 ms of sleep are 100 periods.
    assert!(samples + missed >= 100, "{samples} {missed}");
    // The times of the samples follow one another without holes: also over missed periods.
    let length = sampled.sum("duration");
    let expected = i64::try_from(samples + missed - 1).unwrap() * 2_000_000;
    assert!(length >= expected, "{length} {expected}");
    assert!(
        sampled.sum("cpu_time") > 1_000_000,
        "{}",
        sampled.sum("cpu_time")
    );
    assert!(
        sampled.sum("page_faults") > 50,
        "{}",
        sampled.sum("page_faults")
    );
    assert!(sampled.sum("stat_ctxt") > 0);
    assert!(sampled
        .values("resident")
        .iter()
        .any(|bytes| *bytes > 100_000));
    let pids = sampled.values("pid");
    assert!(
        pids[0] > 0 && pids.iter().all(|pid| *pid == pids[0]),
        "{pids:?}"
    );
    let report = finish(&mut overhear(&["report", out.to_str().unwrap(), "--json"]));
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["missed_total"], missed, "{report:#}");
}

#[test]
fn sums_are_what_the_kernel_accounts_to_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let options = [
        "--sample",
        "minor-faults,cpu-time,voluntary-switches",
        "--every",
        "10ms",
        "--out",
        out.to_str().unwrap(),
    ];
    // The shell prints its own accounts at its end: minor faults of /proc/PID/stat.
    let script =
        format!("{BUSY}; sleep 0.05; read a b c d e f g h i j rest < /proc/$$/stat; echo $j");
    let ended = run(&options, &["sh", "-c", &script]);
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    let own: i64 = ended.stdout.trim().parse().unwrap();
    let sampled = Sampled::of(&out, "samples");
    let sum = sampled.sum("minor_faults");
    // What it did before its first instruction belongs to the launcher, and after the last line it
    // only ends.
    assert!(sum <= own + 100 && 2 * sum >= own, "{sum} of {own}");
    assert!(sampled.sum("voluntary_switches") >= 1);
}

#[test]
fn wrong_samplers_are_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let witness = folder.path().join("witness");
    let witness = witness.to_str().unwrap();
    let cases: [(&[&str], i32, &[&str]); 9] = [
        (
            &["--sample", "cpu-time"],
            2,
            &["when to sample cpu-time", "--every"],
        ),
        (&["--every", "1ms"], 2, &["nothing to sample"]),
        (
            &["--sample", "cpu-tim", "--every", "1ms"],
            2,
            &["near it are `cpu-time`"],
        ),
        (
            &["--sample", "psi:cpux", "--every", "1ms"],
            2,
            &["`psi:cpu.some`"],
        ),
        (
            &["--sample", "cpu-time", "--every", "1us"],
            2,
            &["1000000 samples per second"],
        ),
        (
            &["--sample", "cpu-time", "--every", "soon"],
            2,
            &["`soon` is no period"],
        ),
        (
            &["--sample", "cpu-time", "--per", "lunch"],
            2,
            &["`lunch` is no point"],
        ),
        (
            &["--sample", "cpu-time,cpu-time", "--every", "1ms"],
            2,
            &["sampled twice"],
        ),
        (
            &["--sample", "hwmon:nothing/temp1", "--every", "1ms"],
            5,
            &["no chip `nothing`"],
        ),
    ];
    for (options, status, parts) in cases {
        let ended = run(options, &["touch", witness]);
        ended.has_only_message(status, parts);
        assert!(
            !Path::new(witness).exists(),
            "{options:?} has run the program"
        );
    }
}

#[test]
fn demanded_counters_are_there_or_the_status_is_5() {
    let ended = run(
        &["--sample", "cycles,cpu-time", "--every", "5ms"],
        &["true"],
    );
    match ended.status {
        5 => ended.has_only_message(5, &["the counter `cycles`"]),
        status => assert!([0, 3].contains(&status), "{ended:#?}"),
    }
}

#[test]
fn ordinary_user_samples_accounts() {
    let arguments = [
        "run",
        "--kernel",
        "off",
        "--quiet",
        "--sample",
        "cpu-time,page-faults",
        "--every",
        "5ms",
        "--json",
        "--",
        "sleep",
        "0.05",
    ];
    let Some(mut command) = as_nobody(&arguments) else {
        return;
    };
    let ended = finish(&mut command);
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let sources = report["sources"].as_array().unwrap();
    let samplers = sources.iter().find(|source| source["name"] == "samplers");
    assert_eq!(samplers.unwrap()["sensors"][0], "samples", "{report:#}");
}

#[test]
fn running_process_is_sampled_until_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut shell = Command::new("sh")
        .args(["-c", &format!("read go; {BUSY}; sleep 0.1")])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = shell.id().to_string();
    let mut recording = Started::spawn(&mut overhear(&[
        "record",
        "--pid",
        &pid,
        "--sample",
        "cpu-time,meminfo:MemFree",
        "--every",
        "1ms",
        "--out",
        out.to_str().unwrap(),
        "--quiet",
    ]));
    while !out.join("trace/overhear/run.json").exists() {
        if recording.child.try_wait().unwrap().is_some() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    drop(shell.stdin.take());
    shell.wait().unwrap();
    let ended = recording.end();
    if ended.status == 5 {
        println!("skipped: {}", ended.stderr);
        return;
    }
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    let sampled = Sampled::of(&out, "samples");
    assert!(sampled.samples.len() > 10);
    assert!(sampled.sum("cpu_time") > 1_000_000);
    assert!(sampled
        .values("meminfo_MemFree")
        .iter()
        .all(|bytes| *bytes > 0));
}

#[test]
fn several_processes_are_sampled_in_turn() {
    let ended = finish(&mut overhear(&[
        "record",
        "--all",
        "--sample",
        "cpu-time",
        "--every",
        "1ms",
        "--duration",
        "10ms",
    ]));
    if ended.status == 5 {
        println!("skipped: {}", ended.stderr);
        return;
    }
    ended.has_message(2, &["`cpu-time` is a quantity of a process"]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut sleepers = [0; 2].map(|_| Command::new("sleep").arg("30").spawn().unwrap());
    let pids = [0, 1].map(|index| sleepers[index].id().to_string());
    let ended = finish(&mut overhear(&[
        "record",
        "--pid",
        &pids[0],
        "--pid",
        &pids[1],
        "--sample",
        "cpu-time,psi:cpu",
        "--every",
        "1ms",
        "--duration",
        "50ms",
        "--out",
        out.to_str().unwrap(),
        "--quiet",
    ]));
    for sleeper in &mut sleepers {
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    let sampled = Sampled::of(&out, "samples");
    let found = sampled.values("pid");
    for pid in pids {
        assert!(found.contains(&pid.parse().unwrap()), "{pid} in {found:?}");
    }
    assert!(found.windows(2).all(|two| two[0] != two[1]), "{found:?}");
    let machine = Sampled::of(&out, "samples/machine");
    assert!(machine.values("pid").iter().all(|pid| *pid == 0) && !machine.samples.is_empty());
}

#[test]
fn data_sources_are_listed() {
    let ended = finish(&mut overhear(&["list", "--data-sources", "--json"]));
    assert_eq!(ended.status, 0, "{ended:#?}");
    let listing: Value = serde_json::from_str(&ended.stdout).unwrap();
    let sources = listing["data_sources"].as_array().unwrap();
    let has = |name: &str| sources.iter().any(|source| source["name"] == name);
    for name in ["cpu-time", "page-faults", "meminfo:MemFree", "stat:ctxt"] {
        assert!(has(name), "{name} in {sources:#?}");
    }
}

/// Two samplers.
const FILE: &str = "[[sampler]]\nname = \"load\"\nsample = [\"cpu-time\", \"minor-faults\"]\n\
    every = \"2ms\"\n[[sampler]]\nname = \"memory\"\nsample = [\"meminfo:MemTotal\"]\nevery = \"10ms\"\n";

#[test]
fn samplers_of_a_file_are_admitted_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overhear.toml");
    std::fs::write(&file, FILE).unwrap();
    let file = file.to_str().unwrap();
    let admitted = finish(&mut overhear(&["admit", "--config", file, "--json"]));
    assert_eq!(admitted.status, 0, "{admitted:#?}");
    let report: Value = serde_json::from_str(&admitted.stdout).unwrap();
    let samplers = report["samplers"].as_array().unwrap();
    assert_eq!(samplers.len(), 2, "{report:#}");
    for (sampler, name, period) in [(&samplers[0], "load", 2e6), (&samplers[1], "memory", 1e7)] {
        assert_eq!(sampler["name"], name);
        // An element of the ring: stamp, position, header and quantities.
        let count = sampler["sample"].as_array().unwrap().len() as u64;
        let stated = sampler["memory_bytes"].as_u64().unwrap();
        let samples = sampler["buffer_samples"].as_u64().unwrap();
        assert!(stated >= samples * (8 + 8 + 24 + 8 * count), "{sampler:#}");
        let share = sampler["sample_ns"].as_f64().unwrap() / period;
        assert!(
            (sampler["overhead"].as_f64().unwrap() - share).abs() < 1e-9,
            "{sampler:#}"
        );
    }
    let text = finish(&mut overhear(&["admit", "--config", file])).stdout;
    assert!(text.contains("load") && text.contains("every 2"), "{text}");
    let out = folder.path().join("run");
    let ended = run(
        &["--config", file, "--out", out.to_str().unwrap()],
        &["sleep", "0.1"],
    );
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    assert!(Sampled::of(&out, "load").positions().0 > 10);
    let memory = Sampled::of(&out, "memory");
    assert!(memory
        .values("meminfo_MemTotal")
        .iter()
        .all(|bytes| *bytes > 1 << 20));
    // The options of the command add a sampler, under another name.
    let twice = ["--config", file, "--sample", "cpu-time", "--every", "1ms"];
    assert!([0, 3].contains(&run(&twice, &["true"]).status));
}

#[test]
fn wrong_samplers_of_a_file_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overhear.toml");
    let path = file.to_str().unwrap();
    let sample = |line: &str| format!("[[sampler]]\nsample = [\"cpu-time\"]\n{line}\n");
    let plugin = "[[sampler]]\nsample = [\"plugin:no.so\"]\nevery = \"1ms\"\n";
    let cases: [(String, &[&str], i32, &str); 4] = [
        (
            sample("every = \"never\""),
            &[],
            2,
            "the sampler no. 1: `never` is no period",
        ),
        (sample(""), &[], 2, "when to sample cpu-time"),
        (
            plugin.to_owned(),
            &["--no-exec"],
            2,
            "`plugin:no.so` is of a plug-in",
        ),
        (plugin.to_owned(), &[], 2, "no.so"),
    ];
    for (text, options, status, part) in cases {
        std::fs::write(&file, text).unwrap();
        let mut all = vec!["--config", path];
        all.extend(options);
        let ended = run(&all, &["true"]);
        assert!([status, 5].contains(&ended.status), "{ended:#?}");
        assert!(ended.stderr.contains(part), "{ended:#?}");
        ended.does_not_panic();
    }
}

#[test]
fn points_of_the_kernel_are_sampled_beside_periods() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("overhear.toml");
    let text = format!(
        "{FILE}[[sampler]]\nname = \"switches\"\nsample = [\"cpu-time\"]\nper = \"switch\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let out = folder.path().join("run");
    let arguments = [
        "run",
        "--quiet",
        "--config",
        file.to_str().unwrap(),
        "--out",
        out.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "sleep 0.01; sleep 0.01; sleep 0.05",
    ];
    let ended = finish(&mut overhear(&arguments));
    if ended.status == 5 {
        println!("skipped: {}", ended.stderr);
        return;
    }
    assert!([0, 3].contains(&ended.status), "{ended:#?}");
    assert!(Sampled::of(&out, "load").positions().0 > 10);
    let exported = finish(&mut overhear(&[
        "export",
        out.to_str().unwrap(),
        "--to",
        "csv",
        "--output",
        "-",
    ]));
    let switches = exported
        .stdout
        .lines()
        .filter(|line| line.contains("switches") && line.contains("point=2"));
    assert!(switches.count() >= 3, "{}", exported.stdout);
}
