// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear calibrate`, and reports with a calibration.

use std::path::Path;

use serde_json::{json, Value};

use crate::support::{as_nobody, finish, overhear, Ended};
use crate::witness::{keeps, Doubt, Excuse, Witness};

fn cost(ns: f64) -> Value {
    json!({ "mean_ns": ns, "deviation_ns": 1.0, "within_ns": 0.5, "samples": 41 })
}

/// A calibration in which each element of the kernel costs 100 ns; the price of wake-ups is
/// unknown.
pub(crate) fn calibration(path: &Path, sensors: &[&str]) {
    let kernel: Vec<Value> = sensors
        .iter()
        .map(|sensor| {
            json!({ "sensor": sensor, "by": "hand", "cost_per_event": cost(100.0), "constant": null, "assumed": false })
        })
        .collect();
    let document = json!({
        "overhear_version": "0.1.0",
        "format": 1,
        "measured_at": 1,
        "cpu": "another",
        "release": "another",
        "rounds": 41,
        "kernel": kernel,
        "programs": [],
        "reading": [],
        "notes": [],
    });
    std::fs::write(path, document.to_string()).unwrap();
}

/// From a thread's first arrival to its end, with its departures in between.
const LIFE: &str = r#"
metric life "From the first arrival to the end"

event left    = kernel:sched_switch [flags has 2] task prev_tid
event arrived = kernel:sched_switch [flags has 4] task next_tid
event ended   = kernel:task_life [kind == 3] task tid

state away   out
state begins begin
state alive  in
state ends   end

away -> begins: arrived, i
begins -> alive: lambda
alive -> alive: left, i
alive -> ends: ended, i
ends -> away: lambda
"#;

pub(crate) fn number(value: &Value, member: &str) -> u64 {
    value[member]
        .as_u64()
        .unwrap_or_else(|| panic!("no {member} in {value:#}"))
}

/// An upper limit that no sensor of a current machine reaches. A wrong unit or a miscounted loop
/// exceeds it.
const MOST_NS: f64 = 100_000.0;

/// Sensors whose price is zero or above the limit, with the price.
fn implausible(calibration: &Value) -> Vec<String> {
    let of_programs = calibration["programs"].as_array().unwrap().iter();
    let of_programs = of_programs.map(|cost| (&cost["kind"], &cost["write"]));
    let of_kernel = calibration["kernel"].as_array().unwrap().iter();
    let of_kernel = of_kernel.map(|cost| (&cost["sensor"], &cost["cost_per_event"]));
    of_programs
        .chain(of_kernel)
        .filter_map(|(name, price)| {
            let mean_ns = price["mean_ns"].as_f64().unwrap();
            let is_plausible = mean_ns > 0.0 && mean_ns < MOST_NS;
            (!is_plausible).then(|| format!("{name}: {mean_ns} ns"))
        })
        .collect()
}

#[test]
fn sensors_are_measured_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new/calibration.json");
    let named = file.to_str().unwrap();
    keeps(|| {
        let witness = Witness::without_watchdog();
        let ended = finish(&mut overhear(&[
            "calibrate",
            "--rounds",
            "2",
            "--output",
            named,
            "--json",
        ]));
        let machine = witness.stop();
        let printed = measured_and_kept(&file, &ended);
        let found = implausible(&printed);
        match found.is_empty() {
            true => Ok(()),
            // Prices are differences of times. On a busy machine they have any value.
            false => Err(Doubt {
                excuse: match machine.was_crowded() {
                    true => Excuse::Seen,
                    false => Excuse::Unseen,
                },
                reasons: format!("{found:?}"),
            }),
        }
    });
}

/// The printed calibration, which equals the one in the file, for every sensor.
fn measured_and_kept(file: &Path, ended: &Ended) -> Value {
    let named = file.to_str().unwrap();
    ended.has_only_message(0, &["calibration:", named]);
    let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
    let kept: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(printed, kept);
    let kinds: Vec<&str> = printed["programs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cost| cost["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["simple", "laned", "concurrent"]);
    for cost in printed["programs"].as_array().unwrap() {
        assert_eq!(number(&cost["write"], "samples"), 2);
        assert!(cost["write"]["mean_ns"].is_number(), "{cost:#}");
    }
    let kernel = printed["kernel"].as_array().unwrap();
    if kernel.is_empty() {
        let notes = printed["notes"].to_string();
        assert!(
            notes.contains("kernel sensors are not calibrated"),
            "{notes}"
        );
        println!("skipped: {notes}");
        return printed;
    }
    let of = |name: &str| kernel.iter().find(|cost| cost["sensor"] == name);
    for name in ["sched_wake", "syscall", "page_fault"] {
        assert_eq!(of(name).unwrap()["assumed"], false, "{printed:#}");
    }
    // Every sensor has a price, or a reason for its absence.
    for name in [
        "task_life",
        "block_io",
        "sched_migrate",
        "cpu_idle",
        "cpu_frequency",
        "lock",
    ] {
        let cost = of(name).unwrap_or_else(|| panic!("{name}: {printed:#}"));
        if cost["assumed"] == true {
            assert!(cost["because"].is_string(), "{cost:#}");
            let note = format!("kernel:{name} is not calibrated, because ");
            assert!(printed["notes"].to_string().contains(&note), "{printed:#}");
            let instead = cost["instead"].as_str().unwrap();
            let other = of(instead).unwrap();
            assert_eq!(other["assumed"], false, "{cost:#}");
            assert_eq!(other["cost_per_event"], cost["cost_per_event"]);
        } else {
            assert!(
                ["loop", "statistics"].contains(&cost["method"].as_str().unwrap()),
                "{cost:#}"
            );
        }
    }
    // Probes interrupt the program: no other price replaces theirs.
    if cfg!(target_arch = "x86_64") {
        for name in ["probe", "probe/return", "usdt"] {
            let missing = printed["notes"]
                .to_string()
                .contains(&format!("kernel:{name} is not"));
            let measured = of(name).is_some_and(|cost| cost["method"] == "loop");
            assert!(measured || missing, "{name}: {printed:#}");
        }
    }
    printed
}

#[test]
fn program_sensors_are_measured_without_bpf() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("calibration.json");
    // The user `nobody` must be able to write there.
    std::fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let arguments = [
        "calibrate",
        "--rounds",
        "2",
        "--output",
        file.to_str().unwrap(),
    ];
    let Some(mut command) = as_nobody(&arguments) else {
        return;
    };
    let ended = finish(&mut command);
    ended.has_message(0, &["calibration:"]);
    assert!(ended.stdout.contains("concurrent"), "{ended:#?}");
    assert!(
        ended
            .stdout
            .contains("note: kernel sensors are not calibrated: "),
        "{ended:#?}"
    );
}

#[test]
fn reports_contain_the_cost_of_observing() {
    let folder = tempfile::tempdir().unwrap();
    let (prices, out) = (folder.path().join("prices.json"), folder.path().join("out"));
    calibration(&prices, &["sched_switch", "task_life"]);
    let (prices, out) = (prices.to_str().unwrap(), out.to_str().unwrap());
    let script = "for i in 1 2 3 4 5; do (:); done";
    let ended = finish(&mut overhear(&[
        "run",
        "--calibration",
        prices,
        "--out",
        out,
        "--json",
        "--",
        "sh",
        "-c",
        script,
    ]));
    ended.does_not_panic();
    let live: Value = serde_json::from_str(&ended.stdout).unwrap();
    if live["sources"][0]["active"] != "bpf" {
        println!("skipped: {}", live["sources"][0]["message"]);
        return;
    }
    let overhead = &live["overhead"];
    let of = |list: &str| -> u64 {
        let all = overhead[list].as_array().unwrap();
        all.iter().map(|one| number(one, "overhead_ns")).sum()
    };
    let parts = of("threads") + of("programs");
    let parts = parts + number(overhead, "interrupts_ns") + number(overhead, "missed_ns");
    assert_eq!(number(overhead, "total_ns"), parts);
    // Every element has its price or is named.
    let unpriced = &overhead["unpriced"][0];
    assert_eq!(unpriced["event"], "kernel:sched_wake", "{overhead:#}");
    let priced = number(overhead, "elements");
    assert_eq!(
        priced + number(unpriced, "elements"),
        number(&live["trace"], "events")
    );
    assert_eq!(
        number(overhead, "total_ns"),
        100 * (priced + number(&live, "missed_total"))
    );

    // Metrics subtract them: each departure of a thread lies in its life, and costs 100 ns. The
    // element of a wake-up by the thread lies there, too; it has a price only if all elements have
    // the same one.
    let life = folder.path().join("life.metric");
    std::fs::write(&life, LIFE).unwrap();
    let total = |cost: &str| {
        let mut command = overhear(&["metrics", out, "--metric", life.to_str().unwrap(), "--json"]);
        let ended = finish(command.args(["--element-cost", cost]));
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
        let tasks = printed["metrics"][0]["tasks"].as_array().unwrap().clone();
        let totals = tasks.iter().map(|task| number(task, "total_ns"));
        totals.sum::<u64>()
    };
    let (plain, uniform, calibrated) = (total("0s"), total("100ns"), total("calibrated"));
    assert!(plain > calibrated, "{plain} {calibrated}");
    assert_eq!((plain - calibrated) % 100, 0);
    let unpriced = 100 * number(unpriced, "elements");
    assert!(
        (uniform..=uniform + unpriced).contains(&calibrated),
        "{calibrated} {uniform} {unpriced}"
    );

    // The recording contains its prices; the command line can name other ones.
    let ended = finish(&mut overhear(&["report", out, "--json"]));
    let replayed: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(replayed["overhead"], *overhead);
    let ended = finish(&mut overhear(&["report", out]));
    assert!(
        ended.stdout.contains("monitoring overhead about"),
        "{ended:#?}"
    );
    assert!(
        ended.stdout.contains("x kernel:sched_wake: not calibrated"),
        "{ended:#?}"
    );
    calibration(
        Path::new(prices),
        &["sched_switch", "task_life", "sched_wake"],
    );
    let ended = finish(&mut overhear(&[
        "report",
        out,
        "--calibration",
        prices,
        "--json",
    ]));
    let other: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(other["overhead"]["unpriced"], json!([]));
    assert_eq!(
        number(&other["overhead"], "elements"),
        number(&live["trace"], "events")
    );
}

#[test]
fn perf_records_have_a_price_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let prices = folder.path().join("prices.json");
    calibration(&prices, &["sched_switch", "sched_wake", "task_life"]);
    let text = std::fs::read_to_string(&prices).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let named = prices.to_str().unwrap();
    let overhead = |document: &Value| {
        std::fs::write(&prices, document.to_string()).unwrap();
        let run = [
            "run",
            "--backend",
            "perf",
            "--calibration",
            named,
            "--json",
            "--",
        ];
        let ended = finish(overhear(&run).args(["sh", "-c", "(:); (:)"]));
        if ended.status == 5 {
            println!("skipped: {}", ended.stderr);
            return None;
        }
        ended.does_not_panic();
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
        Some(printed["overhead"].clone())
    };
    // The price of the BPF programs does not apply to them.
    let Some(found) = overhead(&document) else {
        return;
    };
    assert_eq!(number(&found, "total_ns"), 0, "{found:#}");
    let unpriced = found["unpriced"].to_string();
    assert!(unpriced.contains("kernel:sched_switch"), "{unpriced}");
    document["perf"] = cost(700.0);
    let Some(found) = overhead(&document) else {
        return;
    };
    let unpriced = found["unpriced"].to_string();
    assert!(!unpriced.contains("kernel:sched_switch"), "{unpriced}");
    // Samples of the sampler cost the program nothing.
    let total = number(&found, "total_ns");
    assert!(total > 0 && total.is_multiple_of(700), "{found:#}");
}

#[test]
fn lengths_cannot_be_calibrated_by_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out = out.to_str().unwrap();
    // Without a calibration.
    let run =
        finish(overhear(&["run", "--out", out, "--", "true"]).env("XDG_CACHE_HOME", folder.path()));
    run.does_not_panic();
    let ended = finish(&mut overhear(&[
        "metrics",
        out,
        "--element-cost",
        "calibrated",
    ]));
    ended.has_only_message(2, &["no calibration", "overhear calibrate"]);
    finish(&mut overhear(&["metrics", out, "--element-cost", "dear"]))
        .has_message(2, &["--element-cost"]);
}

#[test]
fn invalid_calibration_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prices.json");
    let named = file.to_str().unwrap();
    let run = ["run", "--calibration", named, "--", "true"];
    finish(&mut overhear(&run)).has_only_message(2, &[named, "is no calibration", "No such file"]);
    std::fs::write(&file, "{}").unwrap();
    finish(&mut overhear(&run)).has_only_message(2, &[named, "is no calibration", "missing field"]);
    finish(&mut overhear(&["calibrate", "--rounds", "1"])).has_message(2, &["1 is not in 2.."]);
    let nowhere = [
        "calibrate",
        "--rounds",
        "2",
        "--output",
        "/proc/here/c.json",
    ];
    finish(&mut overhear(&nowhere))
        .has_message(5, &["cannot keep the calibration in /proc/here/c.json"]);
    let homeless = finish(
        overhear(&["calibrate", "--rounds", "2"])
            .env_remove("HOME")
            .env_remove("XDG_CACHE_HOME"),
    );
    homeless.has_only_message(2, &["the calibration has no default file", "--output"]);
}

#[test]
fn assumed_prices_and_old_calibrations_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let prices = folder.path().join("prices.json");
    calibration(&prices, &["sched_switch", "sched_wake", "probe"]);
    let text = std::fs::read_to_string(&prices).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    let lives = json!({ "sensor": "task_life", "by": null, "cost_per_event": cost(50.0), "constant": null, "assumed": true,
        "because": "no thread could begin", "instead": "sched_wake" });
    document["kernel"].as_array_mut().unwrap().push(lives);
    std::fs::write(&prices, document.to_string()).unwrap();
    let program = env!("CARGO_BIN_EXE_overhear");
    let probe = format!("{program}:main");
    let named = prices.to_str().unwrap();
    let run = ["run", "--calibration", named, "--probe", &probe, "--json"];
    let measure = || {
        let ended = finish(overhear(&run).args(["--", program, "--version"]));
        if ended.status == 5 {
            println!("skipped: {}", ended.stderr);
            return None;
        }
        ended.does_not_panic();
        let printed: Value = serde_json::from_str(&ended.stdout).unwrap();
        Some(printed["overhead"].clone())
    };
    let Some(overhead) = measure() else {
        return;
    };
    let assumed = &overhead["assumed"][0];
    assert_eq!(assumed["event"], "kernel:task_life", "{overhead:#}");
    assert_eq!(assumed["instead"], "sched_wake");
    assert_eq!(assumed["because"], "no thread could begin");
    assert!(number(assumed, "elements") > 0);
    assert_eq!(overhead["notes"], json!([]));
    // The probe has its price.
    assert_eq!(overhead["unpriced"], json!([]), "{overhead:#}");

    // A calibration of an older version contains neither reasons nor probes.
    let older = document.as_object_mut().unwrap();
    older.remove("format");
    let kernel = older["kernel"].as_array_mut().unwrap();
    kernel.retain(|cost| cost["sensor"] != "probe");
    for cost in kernel {
        let members = cost.as_object_mut().unwrap();
        members.remove("because");
        members.remove("instead");
    }
    std::fs::write(&prices, document.to_string()).unwrap();
    let Some(overhead) = measure() else {
        return;
    };
    assert_eq!(overhead["assumed"][0]["instead"], Value::Null);
    let unpriced = &overhead["unpriced"][0];
    assert_eq!(unpriced["event"], "kernel:probe/main", "{overhead:#}");
    let note = overhead["notes"][0].as_str().unwrap();
    assert!(note.contains("run `overhear calibrate` again"), "{note}");
}
