// SPDX-License-Identifier: MIT OR Apache-2.0
//! The examples: the same programs in C, C++ and Rust. Each runs under `overhear run`, which must
//! receive all its elements, with the same schema and values in every language; and each runs
//! without a monitor. The same holds for those in Python, in `python/tests/test_examples.py`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{json, Value};

/// Values that differ in every run.
const ACCIDENTAL: [&str; 2] = ["cpu_ns", "writer_tid"];

/// Every example, and the sensors that a monitor must find; for fields the name, unit, least and
/// largest value.
fn examples() -> Vec<(&'static str, Value)> {
    vec![
        (
            "hello_sensor",
            json!([{
                "id": "turn", "instance": "", "type": "hello_turn", "elements": 1000,
                "declared": null,
                "fields": [
                    ["cpu_ns", "ns", null, null], ["number", "", 0.0, 999.0],
                    ["sum", "", 499_500.0, 1_997_001.0],
                ],
            }]),
        ),
        (
            "spans",
            json!([{
                "id": "work", "instance": "", "type": "work_edge", "elements": 1000,
                "declared": null,
                "fields": [
                    ["unit", "", 0.0, 499.0], ["edge", "", 0.0, 1.0],
                    ["amount", "steps", 1_000.0, 5_990.0],
                ],
            }]),
        ),
        (
            "threads",
            json!([{
                "id": "step", "instance": "", "type": "step", "elements": 1000,
                "declared": null,
                "fields": [
                    ["writer_tid", "", null, null], ["writer_flags", "", 0.0, 0.0],
                    ["worker", "", 0.0, 3.0], ["number", "", 0.0, 249.0],
                ],
            }]),
        ),
        (
            "paced",
            json!([{
                "id": "level", "instance": "", "type": "level", "elements": 200,
                "declared": [1_000_000, 100_000, 10_000_000],
                "fields": [["number", "", 0.0, 199.0], ["volts", "V", 0.0, 4.9]],
            }]),
        ),
        (
            "jobs",
            json!([{
                "id": "frame", "instance": "", "type": "overhear_sample", "elements": 100,
                "declared": null,
                "fields": [],
                "quantities": [["task_clock", "ns"], ["page_faults", ""]], "jobs": [100],
            }]),
        ),
    ]
}

/// The folders of cargo's results: the folder of the tests, and the one above it.
fn built() -> (PathBuf, PathBuf) {
    let here = std::env::current_exe().unwrap();
    let tests = here.parent().unwrap();
    (tests.to_owned(), tests.parent().unwrap().to_owned())
}

/// The program of each example in each language, with both; only the available ones.
fn programs() -> &'static [(&'static str, &'static str, PathBuf)] {
    static PROGRAMS: OnceLock<Vec<(&str, &str, PathBuf)>> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let examples = examples().into_iter();
        examples
            .filter(|(name, _)| *name != "jobs" || may_count())
            .flat_map(|(name, _)| {
                let programs = programs_of(name).into_iter();
                programs.map(move |(language, program)| (name, language, program))
            })
            .collect()
    })
}

/// Whether this user may open counters.
fn may_count() -> bool {
    let sampler = overhear::Sampler::builder("probe").counters(["task-clock"]);
    match sampler.register() {
        Ok(_) => true,
        Err(reason) => {
            println!("skipped: {reason}");
            false
        }
    }
}

fn programs_of(name: &str) -> Vec<(&'static str, PathBuf)> {
    let (tests, built) = built();
    let mut programs = Vec::new();
    // Cargo builds the examples of a crate before it runs all of its tests.
    let rust = built.join("examples").join(name);
    if rust.exists() {
        programs.push(("rust", rust));
    } else {
        println!("skipped: the examples are not built; type `cargo build --examples -p overhear`");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (language, compiler, standard, ending) in [
        ("c", "gcc", "-std=c11", "c"),
        ("cpp", "g++", "-std=c++17", "cpp"),
    ] {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{language}"));
        let mut command = Command::new(compiler);
        command
            .args([standard, "-Wall", "-Wextra", "-Werror", "-O2", "-pthread"])
            .arg("-I")
            .arg(root.join("include"))
            .arg(root.join(format!("examples/{language}/{name}.{ending}")))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(&tests)
            .arg("-loverhear")
            // A run path of the old kind is searched before LD_LIBRARY_PATH, in which cargo names a
            // folder that may contain the library of an earlier build.
            .arg(format!(
                "-Wl,--disable-new-dtags,-rpath,{}",
                tests.display()
            ));
        match command.output() {
            Ok(output) => {
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{errors}");
                programs.push((language, program));
            }
            Err(_) => println!("skipped: the compiler {compiler} is not installed"),
        }
    }
    programs
}

/// The sensors in the report, without values that differ from run to run.
fn described(report: &Value) -> Value {
    let sensors = report["sensors"].as_array().unwrap().iter();
    let sensors = sensors.map(|sensor| {
        let fields = sensor["fields"].as_array().unwrap().iter();
        // The values of samples differ from run to run.
        let fields = fields.filter(|_| sensor["type"] != "overhear_sample");
        let fields = fields.map(|field| {
            let values = match field["name"].as_str() {
                Some(name) if ACCIDENTAL.contains(&name) => [&Value::Null, &Value::Null],
                _ => [&field["min"], &field["max"]],
            };
            json!([field["name"], field["unit"], values[0], values[1]])
        });
        let declared = match &sensor["declared"] {
            Value::Null => Value::Null,
            rate => json!([rate["period_ns"], rate["distance_ns"], rate["jitter_ns"]]),
        };
        let mut described = json!({
            "id": sensor["id"], "instance": sensor["instance"], "type": sensor["type"],
            "elements": sensor["elements"], "declared": declared,
            "fields": fields.collect::<Vec<_>>(),
        });
        let samplers = report["samplers"].as_array().into_iter().flatten();
        for sampler in samplers.filter(|sampler| sampler["id"] == sensor["id"]) {
            let quantities = sampler["quantities"].as_array().unwrap().iter();
            let quantities = quantities.map(|it| json!([it["name"], it["unit"]]));
            described["quantities"] = quantities.collect();
            let tasks = sampler["tasks"].as_array().unwrap().iter();
            described["jobs"] = tasks.map(|task| task["jobs"]["count"].clone()).collect();
        }
        described
    });
    let mut sensors: Vec<_> = sensors.collect();
    sensors.sort_by_key(|sensor| sensor["instance"].to_string());
    Value::Array(sensors)
}

#[test]
fn example_gives_same_report_in_every_language() {
    let overhear = built().1.join("overhear");
    if !overhear.exists() {
        println!("skipped: the command overhear is not built; type `cargo build -p overhear-cli`");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, expected) in examples() {
        for (_, language, program) in programs().iter().filter(|program| program.0 == name) {
            let file = folder.path().join(format!("{name}-{language}.json"));
            let output = Command::new(&overhear)
                .args(["run", "--quiet", "--kernel", "off"])
                .arg(format!("--json={}", file.display()))
                .arg("--")
                .arg(program)
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name} in {language}: {errors}");
            assert!(
                !errors.contains("not connected"),
                "{name} in {language}: {errors}"
            );
            let report = std::fs::read_to_string(&file).unwrap();
            let report: Value = serde_json::from_str(&report).unwrap();
            assert_eq!(described(&report), expected, "{name} in {language}");
            assert_eq!(report["complete"], true, "{name} in {language}");
        }
    }
}

#[test]
fn example_without_directory_runs_and_reports_it() {
    for (name, language, program) in programs() {
        let output = Command::new(program)
            .env("OVERHEAR_DIRECTORY", "")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} in {language}: {errors}");
        assert_eq!(output.stdout, b"", "{name} in {language}");
        let begin = "not connected: no directory listens";
        assert!(errors.starts_with(begin), "{name} in {language}: {errors}");
    }
}
