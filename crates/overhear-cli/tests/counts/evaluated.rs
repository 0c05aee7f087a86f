// SPDX-License-Identifier: MIT OR Apache-2.0
//! Metrics and constraints over probes, static probes and tracepoints, by the names that exports
//! print: live, and over the recording of the same run.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{json, Value};

use crate::harness::{called, cpu_lock, Backend, OVERHEAR};

/// From the static probe to the return of the function after it, with the call between them.
const METRIC: &str = r#"metric turn "A turn of the loop, from the static probe on"
event turn = kernel:usdt/called/turn [argument_1 != 7]
event call = kernel:probe/doubled
event back = kernel:probe/doubled/return
state idle out
state begun begin
state waits out
state calls in
state ended end
idle -> begun: turn, i
begun -> waits: lambda
waits -> calls: call, i
calls -> ended: back, i
ended -> idle: lambda
"#;

/// Evaluates the probes; PROGRAM stands for the program.
const FILE: &str = r#"
[[probe]]
function = "PROGRAM:doubled"
[[probe]]
function = "PROGRAM:doubled:return"
[[probe]]
usdt = "PROGRAM:called:turn"
[[probe]]
tracepoint = "sched:sched_process_exec"

[[metric]]
file = "turn.metric"
[[metric]]
name = "doubling"
initial = "kernel:probe/doubled"
final = "kernel:probe/doubled/return"

[[constraint]]
name = "small"
of = "kernel:probe/doubled"
field = "argument_1"
max = 99
[[constraint]]
name = "smaller"
of = "kernel:usdt/called/turn"
field = "argument_1"
max = 97
[[constraint]]
name = "turns"
of = "kernel:probe/doubled [argument_1 == 50]"
after = "kernel:usdt/called/turn [argument_1 == 50]"
within = "1 h"
[[constraint]]
name = "in order"
order = ["kernel:usdt/called/turn", "kernel:probe/doubled", "kernel:probe/doubled/return"]
[[constraint]]
name = "never begun"
of = "kernel:tracepoint/sched/sched_process_exec"
never = true
[[constraint]]
name = "soon back"
metric = "turn.metric"
max = "1 h"
"#;

/// Expected counts of the run.
const EVENTS: [(&str, u64); 4] = [
    ("kernel:tracepoint/sched/sched_process_exec", 1),
    ("kernel:probe/doubled", 100),
    ("kernel:probe/doubled/return", 100),
    ("kernel:usdt/called/turn", 100),
];

fn overhear(arguments: &[&str]) -> Output {
    Command::new(OVERHEAR).args(arguments).output().unwrap()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn probes_are_evaluated_by_the_names_of_exports_alike_live_and_recorded() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() || !cfg!(target_arch = "x86_64") {
        return println!("skipped: static probes of the program are for x86-64, and need BPF");
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (config, out, report) = (at("overhear.toml"), at("out"), at("report.json"));
    fs::write(&config, FILE.replace("PROGRAM", text(called()))).unwrap();
    fs::write(at("turn.metric"), METRIC).unwrap();
    let to_report = format!("--json={}", text(&report));
    let ended = overhear(&[
        "run",
        "--backend",
        "bpf",
        "--config",
        text(&config),
        "--out",
        text(&out),
        &to_report,
        "--",
        text(called()),
    ]);
    let messages = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{messages}");
    let live = read(&report);
    assert_eq!(live["complete"], true, "{messages}");

    // The names of the report and of the exported rows are those of the file.
    let export = overhear(&["export", text(&out), "--to", "csv", "--output", "-"]);
    let rows = String::from_utf8(export.stdout).unwrap();
    let mut lines = rows.lines();
    let heads: Vec<&str> = lines.next().unwrap().split(',').collect();
    let column = heads.iter().position(|head| *head == "event").unwrap();
    let of_rows: Vec<&str> = lines
        .map(|line| line.split(',').nth(column).unwrap())
        .collect();
    for (event, count) in EVENTS {
        let sensors = live["kernel_sensors"].as_array().unwrap();
        let found = sensors.iter().find(|sensor| sensor["event"] == event);
        assert_eq!(found.unwrap()["elements"], count, "{event}");
        let rows = of_rows.iter().filter(|of_row| **of_row == event);
        assert_eq!(rows.count() as u64, count, "{event}");
    }

    let metrics = live["metrics"]["metrics"].as_array().unwrap();
    let counts = |metric: &Value| {
        let keys = ["completed", "incomplete", "unfinished", "missed"];
        keys.map(|key| metric[key].as_u64().unwrap())
    };
    assert_eq!(metrics[0]["name"], "turn");
    assert_eq!(counts(&metrics[0]), [99, 0, 0, 0]);
    assert_eq!(counts(&metrics[1]), [100, 0, 0, 0]);
    let constraints = live["check"]["constraints"].as_array().unwrap();
    let verdicts: Vec<Value> = constraints
        .iter()
        .map(|it| json!([it["name"], it["verdict"], it["judged"], it["offences"]]))
        .collect();
    assert_eq!(
        json!(verdicts),
        json!([
            ["small", "held", 100, 0],
            ["smaller", "violated", 100, 2],
            ["turns", "held", 1, 0],
            ["in order", "held", 300, 0],
            ["never begun", "violated", 1, 1],
            ["soon back", "held", 99, 0],
        ])
    );

    // The recording of it comes to the same.
    let of_recording = |command: &str, status: i32| -> Value {
        let ended = overhear(&[command, text(&out), "--config", text(&config), "--json"]);
        let messages = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(status), "{command}: {messages}");
        serde_json::from_slice(&ended.stdout).unwrap()
    };
    assert_eq!(
        of_recording("metrics", 0)["metrics"],
        live["metrics"]["metrics"]
    );
    assert_eq!(of_recording("check", 1), live["check"]);

    // A metric alone, with a probe of the command line.
    let metric = at("turn.metric");
    let probes = ["doubled", "doubled:return"].map(|it| format!("{}:{it}", text(called())));
    let usdt = format!("{}:called:turn", text(called()));
    let arguments = [
        "run",
        "--backend",
        "bpf",
        "--quiet",
        "--metric",
        text(&metric),
        &to_report,
    ];
    let arguments = [
        &arguments[..],
        &["--probe", &probes[0], "--probe", &probes[1]],
    ]
    .concat();
    let ended = overhear(&[&arguments[..], &["--usdt", &usdt, "--", text(called())]].concat());
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(
        counts(&read(&report)["metrics"]["metrics"][0]),
        [99, 0, 0, 0]
    );

    // Without one of them it would measure nothing.
    refused(
        &arguments,
        &[
            "`kernel:usdt/called/turn`",
            "--usdt",
            "there is kernel:probe/doubled, ",
        ],
    );
    // A static probe has only the arguments that its note describes.
    fs::write(&metric, METRIC.replace("argument_1", "argument_2")).unwrap();
    refused(
        &[&arguments[..], &["--usdt", &usdt]].concat(),
        &[
            "metric turn cannot use kernel:usdt/called/turn",
            "has no field `argument_2`; its fields are tid, pid, argument_1\n",
        ],
    );
    fs::write(&metric, METRIC).unwrap();
    let wrong = FILE.replace("PROGRAM", text(called()));
    let wrong = wrong.replace("[argument_1 == 50]", "[value == 50]");
    fs::write(&config, wrong).unwrap();
    refused(
        &["run", "--backend", "bpf", "--config", text(&config)],
        &[
            "constraint turns cannot use kernel:probe/doubled",
            "has no field `value`",
        ],
    );
}

/// The command ends with these words, before a program is run.
#[track_caller]
fn refused(arguments: &[&str], parts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("begun");
    let ended = overhear(&[arguments, &["--", "touch", text(&mark)]].concat());
    let messages = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(
        (ended.status.code(), mark.exists()),
        (Some(2), false),
        "{messages}"
    );
    for part in parts {
        assert!(messages.contains(part), "{part}: {messages}");
    }
}

#[test]
fn updates_take_probes_by_their_events_alike_live_and_recorded() {
    let _cpus = cpu_lock();
    if !Backend::Bpf.works() {
        return println!("skipped: probes need BPF");
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (plugin, out, report) = (at("arguments.so"), at("out"), at("report.json"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-shared", "-fPIC", "-Wall", "-Werror", "-I"])
        .arg(here.join("../../include"))
        .arg(here.join("tests/counts/arguments.c"))
        .arg("-o")
        .arg(&plugin)
        .status();
    assert!(compiled.unwrap().success(), "cc cannot compile arguments.c");
    let probe = format!("{}:doubled", text(called()));
    let (update, to_report) = (text(&plugin), format!("--json={}", text(&report)));
    let arguments = [
        "run",
        "--backend",
        "bpf",
        "--probe",
        &probe,
        "--update",
        update,
    ];
    let arguments = [&arguments[..], &["--out", text(&out), &to_report, "--"]].concat();
    let ended = overhear(&[&arguments[..], &[text(called())]].concat());
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    let results = |report: &Value| report["updates"][0]["results"].clone();
    let expected = json!({"elements": 100, "arguments": 4950});
    assert_eq!(results(&read(&report)), expected);
    let ended = overhear(&["report", text(&out), "--update", update, &to_report]);
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert_eq!(results(&read(&report)), expected);
    refused(
        &["run", "--backend", "bpf", "--update", update],
        &["update `arguments` takes `kernel:probe/doubled`", "--probe"],
    );
}
