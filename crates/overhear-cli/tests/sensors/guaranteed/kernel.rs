// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guaranteed monitors over sensors of the kernel: a program that sleeps a known number of times,
//! and a metric over its switches and wake-ups.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use super::{
    alone, file, has_no_faults, is_complete, is_held, lacks_guarantee, messages, refused, run_of,
    unharmed, witnessed,
};
use crate::program::{compiled, number};
use crate::support::{finish, folder, is_root, overhear, path, run_json, Ended};
use crate::witness::{keeps, Doubt, Excuse};

/// A monitor for a machine that may be very late: these tests check the statements only.
const MONITOR: &str = r#"
    [monitor]
    latency = "600ms"
    level = "shared"
    executor = "EXECUTOR"
    wake_up_lateness = "80ms"
    scheduler_lateness = "40ms"
    hold_back = "100ms"
    overhead = "2ms"
    cpu_percent = 60
    watchdog = true
"#;

/// One nap is two switches and up to two elements of a wake-up.
const FILE: &str = r#"
    [[sensor]]
    id = "kernel:sched_switch"
    period = "1ms"
    jitter = "150ms"
    [[sensor]]
    id = "kernel:sched_wake"
    period = "1ms"
    jitter = "150ms"
    [[update]]
    name = "delays"
    wcet = "200us"
    metric = "run_delay"
    [[metric]]
    name = "run_delay"
"#;

/// Probes of the napper; PROGRAM stands for its path.
const PROBES: &str = r#"
    [[probe]]
    function = "PROGRAM:nap"
    [[probe]]
    function = "PROGRAM:nap:return"
    [[sensor]]
    id = "kernel:probe/nap"
    period = "2ms"
    jitter = "150ms"
    [[sensor]]
    id = "kernel:probe/nap/return"
    period = "2ms"
    jitter = "150ms"
    [[sensor]]
    id = "kernel:task_life"
    period = "2ms"
    jitter = "150ms"
    [[update]]
    name = "naps"
    wcet = "200us"
    metric = "nap.metric"
    [[update]]
    name = "lengths"
    wcet = "200us"
    sensors = ["kernel:probe/nap"]
    field = "argument_1"
    [[metric]]
    file = "nap.metric"
"#;

/// The text of a configuration file: the monitor with an executor, and what it evaluates.
fn config(evaluated: &str, executor: &str) -> String {
    MONITOR.replace("EXECUTOR", executor) + evaluated
}

/// A nap, from the call of the function to its return.
const NAP: &str = "metric nap
event call = kernel:probe/nap
event back = kernel:probe/nap/return
state idle out
state called begin
state asleep in
state gone end
idle -> called: call, i
called -> asleep: lambda
asleep -> gone: back, i
gone -> idle: lambda
";

const NAPS: u64 = 100;

/// The program `napper.c`, compiled once.
fn napper() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("tests/sensors/napper.c", "napper"))
}

/// Runs the napper with the monitor of this file.
fn run(text: &str, more: &[&str]) -> (Ended, Value) {
    let naps = NAPS.to_string();
    run_of(text, more, &[path(napper()), &naps, "4000"])
}

/// Without privileges the guarantee is optional, and the report has the reason for its lack.
fn is_optional(ended: &Ended, guarantee: &Value) -> bool {
    let is_other = guarantee["executor"] == "best_effort";
    if is_other {
        assert_eq!(guarantee["verdict"], Value::Null);
        assert!(ended.stderr.contains("nothing is guaranteed"), "{ended:#?}");
    }
    is_other
}

#[test]
fn guaranteed_kernel_metric_equals_that_of_the_run() {
    let _alone = alone();
    keeps(|| {
        let ((ended, report), machine) = witnessed(|| run(&config(FILE, "auto"), &[]));
        let guarantee = &report["guarantee"];
        if is_optional(&ended, guarantee) {
            return lacks_guarantee(&ended, &machine);
        }
        assert_eq!(guarantee["executor"], "deadline", "{guarantee:#}");
        let expected = match guarantee["verdict"] == "held" {
            true => unharmed(&report),
            false => 3,
        };
        assert_eq!(ended.status, expected, "{ended:#?}");
        is_held(&report, &machine)?;
        assert_eq!(number(guarantee, "missed"), 0);
        for sensor in guarantee["sensors"].as_array().unwrap() {
            assert!(number(sensor, "elements") >= NAPS, "{sensor:#}");
            let latency = number(sensor, "latency_ns");
            assert!(latency > 0 && latency <= number(guarantee, "latency_ns"));
            // All CPUs together, and not one of them.
            let names = sensor["sensors"].as_array().unwrap();
            let name = sensor["id"].as_str().unwrap().replace(':', "/");
            assert_eq!(names, &[Value::String(name)]);
        }
        let (taken, stated) = ("memory_bytes", "stated_memory_bytes");
        assert!(number(guarantee, taken) <= number(guarantee, stated));
        has_no_faults(guarantee, &machine)?;
        // Each nap ends by a wake-up.
        let values = &guarantee["updates"][0]["values"];
        assert!(number(values, "count") >= NAPS, "{guarantee:#}");
        // The run and its guaranteed monitor track the program one after the other. Under load it
        // can be displaced in between, before its first instruction, and only the first one
        // measures that.
        let [count, longest] = measured(&report);
        let guaranteed = ["count", "max"].map(|key| number(values, key));
        assert!(count.abs_diff(guaranteed[0]) <= 1, "{count} {guarantee:#}");
        if count == guaranteed[0] {
            assert_eq!(longest, guaranteed[1]);
        }
        Ok(())
    });
}

#[test]
fn updates_over_probes_are_guaranteed_and_as_the_run_measures_them() {
    let _alone = alone();
    let text = config(PROBES, "auto");
    let text = text.replace("PROGRAM", path(napper()));
    let (folder, config) = file(&text);
    std::fs::write(folder.path().join("nap.metric"), NAP).unwrap();
    let naps = NAPS.to_string();
    keeps(|| {
        let ((ended, report), machine) = witnessed(|| {
            run_json(
                &["--config", path(&config)],
                &[path(napper()), &naps, "4000"],
            )
        });
        let guarantee = &report["guarantee"];
        if is_optional(&ended, guarantee) {
            return lacks_guarantee(&ended, &machine);
        }
        assert_eq!(guarantee["executor"], "deadline", "{guarantee:#}");
        let expected = match guarantee["verdict"] == "held" {
            true => unharmed(&report),
            false => 3,
        };
        assert_eq!(ended.status, expected, "{ended:#?}");
        is_held(&report, &machine)?;
        let elements = |id: &str| {
            let mut sensors = guarantee["sensors"].as_array().unwrap().iter();
            number(
                sensors.find(|sensor| sensor["id"] == id).unwrap(),
                "elements",
            )
        };
        assert_eq!(elements("kernel:probe/nap"), NAPS, "{guarantee:#}");
        assert_eq!(elements("kernel:probe/nap/return"), NAPS);
        let [naps, lengths] = [0, 1].map(|at| &guarantee["updates"][at]["values"]);
        let least = |values: &Value| ["count", "min"].map(|key| number(values, key));
        // No nap is shorter than requested.
        assert_eq!(number(naps, "count"), NAPS, "{guarantee:#}");
        assert!(number(naps, "min") >= 4_000_000, "{guarantee:#}");
        assert_eq!(least(lengths), [NAPS, 4000]);
        // The run has probes of its own at the same addresses, with stamps a moment earlier or
        // later.
        if report["complete"] == true {
            assert_eq!(measured(&report)[0], NAPS);
        }
        Ok(())
    });
}

/// The number of the run's own measurements of the metric, and the longest.
fn measured(report: &Value) -> [u64; 2] {
    let metrics = report["metrics"]["metrics"].as_array().unwrap();
    let tasks = metrics[0]["tasks"].as_array().unwrap();
    let count = tasks.iter().map(|task| number(task, "count")).sum();
    let longest = tasks.iter().map(|task| number(task, "max_ns")).max();
    [count, longest.unwrap()]
}

#[test]
fn too_fast_kernel_sensor_is_named_and_ends_the_guarantee() {
    let _alone = alone();
    let text = config(FILE, "auto");
    let text = text.replacen("jitter = \"150ms\"", "jitter = \"0ms\"", 1);
    let text = text.replacen("1ms", "400ms", 1);
    keeps(|| {
        let ((ended, report), machine) = witnessed(|| run(&text, &[]));
        let guarantee = &report["guarantee"];
        if is_optional(&ended, guarantee) {
            return lacks_guarantee(&ended, &machine);
        }
        assert_eq!(guarantee["verdict"], "inconclusive", "{guarantee:#}");
        assert_eq!(ended.status, 3, "{ended:#?}");
        if guarantee["begun_ns"] == Value::Null {
            return is_held(&report, &machine);
        }
        let found = messages(guarantee);
        let is_of = |it: &&str| it.contains("sensor `kernel:sched_switch`");
        let is_named = |it: &&str| it.contains("demands") || it.contains("tau allows");
        assert!(
            found.iter().any(|it| is_of(it) && is_named(it)),
            "{guarantee:#}"
        );
        let [switches, wakes] = guarantee["sensors"].as_array().unwrap().as_slice() else {
            panic!("{guarantee:#}");
        };
        assert!(number(switches, "exceeding") > 0 && number(wakes, "exceeding") == 0);
        Ok(())
    });
}

#[test]
fn losses_of_a_kernel_ring_are_counted_and_end_the_guarantee() {
    let _alone = alone();
    // Rings for a slow program, and a fast one.
    let text = config(FILE, "auto").replace("150ms", "10ms");
    let text = text.replace("period = \"1ms\"", "period = \"50ms\"");
    // Until it was faster than the reader of its rings; a lossless monitor never allows that.
    let mut turns = 20_000;
    loop {
        let program = [path(napper()), "pingpong", &turns.to_string()];
        let ((ended, report), machine) = witnessed(|| run_of(&text, &[], &program));
        let guarantee = &report["guarantee"];
        if is_optional(&ended, guarantee) {
            return keeps(|| lacks_guarantee(&ended, &machine));
        }
        let missed = number(guarantee, "missed");
        let of_sensors = guarantee["sensors"].as_array().unwrap().iter();
        let by_sensor = of_sensors.map(|it| number(it, "missed")).sum::<u64>();
        assert_eq!(by_sensor, missed);
        assert_eq!(number(&guarantee["updates"][0], "missed"), missed);
        if missed == 0 {
            turns *= 4;
            assert!(turns < 20_000_000, "nothing is lost: {guarantee:#}");
            continue;
        }
        assert_eq!(
            (ended.status, &guarantee["verdict"]),
            (3, &"inconclusive".into())
        );
        if guarantee["begun_ns"] != Value::Null {
            let exceeding = |it: &Value| number(it, "exceeding") > 0;
            let sensors = guarantee["sensors"].as_array().unwrap();
            assert!(sensors.iter().any(exceeding), "{guarantee:#}");
        }
        return;
    }
}

#[test]
fn kernel_sensors_work_under_each_executor() {
    let _alone = alone();
    for executor in ["bandwidth", "buffered", "best_effort"] {
        let text = config(FILE, executor);
        let (ended, ran) = refused(&text);
        if ended.status == 5 {
            assert!(!ran);
            println!("skipped: {}", ended.stderr);
            continue;
        }
        keeps(|| {
            let ((ended, report), machine) = witnessed(|| run(&text, &[]));
            let guarantee = &report["guarantee"];
            assert_eq!(guarantee["executor"], executor);
            if guarantee["reasons"] != Value::Array(Vec::new()) {
                let is_named =
                    |it: &&str| it.contains("sensor `kernel:") && it.contains("is not recorded");
                assert!(messages(guarantee).iter().all(is_named), "{guarantee:#}");
                assert_eq!(ended.status, 3);
                println!("skipped: {}", ended.stderr);
                return Ok(());
            }
            let update = &guarantee["updates"][0];
            let seen = number(update, "elements") + number(update, "missed");
            assert!(seen >= 2 * NAPS, "{guarantee:#}");
            is_complete(&report, &machine)?;
            assert_eq!(
                number(&update["values"], "count"),
                measured(&report)[0],
                "{guarantee:#}"
            );
            Ok(())
        });
    }
}

#[test]
fn monitor_evaluates_sensors_of_program_and_kernel() {
    let _alone = alone();
    let program = crate::program::program();
    let eager = r#"
    [[sensor]]
    id = "eager"
    period = "1ms"
    jitter = "1s"
    [[update]]
    name = "both"
    wcet = "10us"
    sensors = ["eager", "kernel:sched_switch"]
    [[update]]
    name = "delays"
    sensors = ["kernel:sched_switch", "kernel:sched_wake"]
    "#;
    let text = config(FILE, "best_effort");
    let text = text.replacen("[[update]]\n    name = \"delays\"", eager, 1);
    let (ended, report) = run_of(&text, &[], &[path(program), "eager", "200"]);
    let guarantee = &report["guarantee"];
    let of = |id: &str| {
        let mut sensors = guarantee["sensors"].as_array().unwrap().iter();
        let sensor = sensors.find(|sensor| sensor["id"] == id).unwrap();
        number(sensor, "elements") + number(sensor, "missed")
    };
    assert_eq!(of("eager"), 200, "{ended:#?}");
    let is_not_recorded =
        |it: &&str| it.contains("sensor `kernel:") && it.contains("is not recorded");
    if messages(guarantee).iter().any(is_not_recorded) {
        println!("skipped: {:?}", messages(guarantee));
        return;
    }
    assert!(of("kernel:sched_switch") > 0, "{guarantee:#}");
    let both = &guarantee["updates"][0];
    let seen = number(both, "elements") + number(both, "missed");
    assert_eq!(
        seen,
        of("eager") + of("kernel:sched_switch"),
        "{guarantee:#}"
    );
}

#[test]
fn invalid_kernel_sensor_is_refused_by_name() {
    let _alone = alone();
    for (from, to, status, words) in [
        (
            "id = \"kernel:sched_wake\"",
            "id = \"kernel:sched_wakes\"",
            2,
            "sensor `kernel:sched_wakes`: there is no kernel sensor \"sched_wakes\"; there are sched_switch, ",
        ),
        (
            "id = \"kernel:sched_wake\"",
            "id = \"kernel:task_life\"",
            2,
            "update `delays`: the metric run_delay requires kernel:sched_wake, whose rate is not declared",
        ),
        (
            "id = \"kernel:sched_wake\"",
            "count = 2\n id = \"kernel:sched_wake\"",
            2,
            "sensor `kernel:sched_wake`: a kernel sensor is one sensor",
        ),
        (
            "metric = \"run_delay\"\n    [[",
            "metric = \"block_io\"\n    [[",
            2,
            "requires kernel:block_io",
        ),
        (
            "id = \"kernel:sched_wake\"",
            "id = \"kernel:sched_wake\"\n buffer = 65536",
            2,
            "a ring of the kernel holds at most 65535",
        ),
        (
            "id = \"kernel:sched_wake\"",
            "id = \"kernel:sched_wake\"\n buffer = 60",
            4,
            "sensor `kernel:sched_wake`",
        ),
        ("wcet = \"200us\"", "wcet = \"900us\"", 4, "of a CPU in the mean"),
    ] {
        let text = config(FILE, "auto").replacen(from, to, 1);
        let (ended, ran) = refused(&text);
        assert_eq!((ended.status, ran), (status, false), "{to}: {ended:#?}");
        assert!(ended.stderr.contains(words), "{to}: {ended:#?}");
        // `admit` has the same message.
        let (_folder, place) = file(&text);
        let admitted = finish(&mut overhear(&["admit", "--config", path(&place)]));
        assert_eq!(admitted.status, status, "{to}: {admitted:#?}");
    }
    // A probe that the file does not contain, and one of an absent function.
    let text = config(PROBES, "auto");
    let text = text.replace("    metric = \"nap.metric\"\n", "");
    let text = text.replace("    [[metric]]\n    file = \"nap.metric\"\n", "");
    let text = text.replace("PROGRAM", path(napper()));
    for (from, to, words) in [
        (
            "[[probe]]\n    function = \"PROGRAM:nap:return\"",
            "",
            "sensor `kernel:probe/nap/return`: there is no [[probe]] of this name in the file",
        ),
        (
            ":nap\"",
            ":naps\"",
            "sensor `kernel:probe/nap`: there is no [[probe]]",
        ),
        (
            ":nap:return\"",
            ":nap\"",
            "several probes of the file have this name",
        ),
        (
            "argument_1",
            "argument_7",
            "update `lengths`: `kernel:probe/nap` has no number `argument_7`; it has `tid`",
        ),
    ] {
        let from = from.replace("PROGRAM", path(napper()));
        let (ended, ran) = refused(&text.replacen(&from, to, 1));
        assert_eq!((ended.status, ran), (2, false), "{to}: {ended:#?}");
        assert!(ended.stderr.contains(words), "{to}: {ended:#?}");
    }
    let missing = text
        .replace(":nap", ":naps")
        .replace("probe/nap", "probe/naps");
    let (ended, ran) = refused(&missing);
    assert_eq!((ended.status, ran), (2, false), "{ended:#?}");
    assert!(ended.stderr.contains("has no function naps"), "{ended:#?}");
    // Threads without an event of their end.
    let text = config(FILE, "auto");
    let text = text
        .replace("sched_switch", "syscall")
        .replace("sched_wake", "signal");
    let (ended, ran) = refused(&text.replacen("run_delay", "system_call", 1));
    assert_eq!((ended.status, ran), (2, false), "{ended:#?}");
    assert!(
        ended
            .stderr
            .contains("add a [[sensor]] with the id kernel:task_life"),
        "{ended:#?}"
    );
}

#[test]
fn missing_kernel_privilege_is_named() {
    let _alone = alone();
    if !is_root() {
        println!("skipped: only root can drop a single privilege");
        return;
    }
    let unavailable = |executor: &str| {
        let (_folder, place) = file(&config(FILE, executor));
        let whole = overhear(&["run", "--config", path(&place), "--", "true"]);
        let mut without = std::process::Command::new("setpriv");
        without.args([
            "--bounding-set=-bpf,-perfmon,-sys_admin",
            "--inh-caps=-bpf,-perfmon,-sys_admin",
        ]);
        without.arg(whole.get_program()).args(whole.get_args());
        finish(&mut without)
    };
    let ended = unavailable("deadline");
    if ended.status == 127 || ended.status == 126 {
        println!("skipped: setpriv is not there");
        return;
    }
    assert_eq!(ended.status, 5, "{ended:#?}");
    let words = ["`kernel:sched_switch`", "cap_bpf", "cap_sys_nice", "cpuset"];
    assert!(
        words.iter().any(|it| ended.stderr.contains(it)),
        "{ended:#?}"
    );
    let ended = unavailable("auto");
    assert!(ended.stderr.contains("nothing is guaranteed"), "{ended:#?}");
}

#[test]
fn recorded_kernel_sensor_is_fitted_over_all_cpus() {
    let _alone = alone();
    let folder = folder();
    let out = folder.path().join("out");
    let naps = NAPS.to_string();
    let options = ["--kernel", "sched", "--out", path(&out)];
    let fit = |sensor: &str| finish(&mut overhear(&["fit-rate", path(&out), sensor, "--json"]));
    let mut is_connected = false;
    keeps(|| {
        let _ = std::fs::remove_dir_all(&out);
        let program = [path(napper()), &naps, "1000"];
        let ((ended, report), machine) = witnessed(|| run_json(&options, &program));
        is_connected = report["sources"][0]["active"] == "bpf";
        if !is_connected {
            println!("skipped: {}", ended.stderr);
            return Ok(());
        }
        match report["complete"] == true {
            true => Ok(()),
            false => Err(Doubt {
                excuse: Excuse::seen(machine.was_crowded()),
                reasons: report["losses"].to_string(),
            }),
        }
    });
    if !is_connected {
        return;
    }
    let fitted = fit("kernel:sched_switch");
    assert_eq!(fitted.status, 0, "{fitted:#?}");
    let fitted: Value = serde_json::from_str(&fitted.stdout).unwrap();
    assert_eq!(fitted["sensor"], "kernel:sched_switch");
    // Every nap leaves a CPU and arrives on one.
    assert!(number(&fitted, "elements") >= 2 * NAPS, "{fitted:#}");
    fit("kernel:nothing").has_message(2, &["there is no kernel sensor `nothing`", "sched_switch"]);
    // Admission used this recording.
    let text = config(FILE, "auto").replacen(
        "period = \"1ms\"\n    jitter = \"150ms\"",
        &format!("fitted = \"{}\"", path(&out)),
        1,
    );
    let (_folder, place) = file(&text);
    let admitted = finish(&mut overhear(&[
        "admit",
        "--config",
        path(&place),
        "--json",
    ]));
    let admitted: Value = serde_json::from_str(&admitted.stdout).unwrap();
    let sensor = &admitted["sensors"][0];
    assert_eq!(sensor["period_ns"], fitted["period_ns"], "{admitted:#}");
    assert_eq!(sensor["jitter_ns"], fitted["jitter_ns"], "{admitted:#}");
    assert!(number(sensor, "rings") >= 1, "{admitted:#}");
}
