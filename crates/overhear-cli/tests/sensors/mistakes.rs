// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mistakes in `overhear.toml`: each is one clear message that names the entry.

use std::fs;
use std::path::Path;

use crate::guaranteed;
use crate::program::program;
use crate::support::{finish, folder, overhear, path, plugin, run_json_with_panics, Ended};
use crate::updates::in_rust;

/// A valid file, of which each case replaces one part by an error.
const RIGHT: &str = r#"
[monitor]
latency = "50ms"
level = "shared"
executor = "best_effort"

[[sensor]]
id = "pace"
period = "1ms"
distance = "100us"
jitter = "5ms"

[[update]]
name = "count"
wcet = "2us"
"#;

const PERIOD: &str = "period = \"1ms\"";
const LATENCY: &str = "latency = \"50ms\"";
const WCET: &str = "wcet = \"2us\"";
const NAME: &str = "name = \"count\"";

/// The replaced text, its replacement, the status of `admit`, and parts of the message.
const WRONG: [(&str, &str, i32, &[&str]); 31] = [
    (
        PERIOD,
        "period = \"0s\"",
        2,
        &["sensor `pace`: the period T is 0 ns"],
    ),
    (
        PERIOD,
        "period = \"-1ms\"",
        2,
        &["line 9: sensor `pace`, `period`: `-1ms` is not a length of time"],
    ),
    (
        PERIOD,
        "period = 5",
        2,
        &["sensor `pace`, `period`: invalid type"],
    ),
    (
        PERIOD,
        "period = \"1000000000000s\"",
        2,
        &["sensor `pace`, `period`: ", "longer than 584 years"],
    ),
    (PERIOD, "", 2, &["sensor `pace`: it has no period"]),
    (
        "distance = \"100us\"",
        "distance = \"2ms\"",
        2,
        &[
            "sensor `pace`: the least distance D = ",
            "exceeds the period T",
        ],
    ),
    (
        "jitter = \"5ms\"",
        "jitter = \"-5ms\"",
        2,
        &["sensor `pace`, `jitter`: `-5ms` is not a length"],
    ),
    (
        "jitter = \"5ms\"",
        "buffer = 0",
        2,
        &["sensor `pace`: its buffer is 0"],
    ),
    (
        "jitter = \"5ms\"",
        "buffer = -1",
        2,
        &["sensor `pace`, `buffer`: invalid value"],
    ),
    (
        WCET,
        "wcet = \"-2us\"",
        2,
        &["update `count`, `wcet`: `-2us` is not a length"],
    ),
    (WCET, "", 2, &["update `count` has no wcet"]),
    (
        "[[update]]",
        "[[reaction]]\nname = \"tell\"\non = [\"violated\"]\nof = [\"nothing\"]\nlog = \"-\"\n[[update]]",
        2,
        &["reaction `tell`: "],
    ),
    (
        WCET,
        "wcet = \"2ms\"",
        4,
        &[
            "sensor `pace` is evaluated for 2.00 ms per element, above its period, 1.00 ms",
            "update `count` has a wcet of 2.00 ms, above the period of sensor `pace`, 1.00 ms",
        ],
    ),
    // Two values that are invalid only together.
    (
        "[[update]]",
        "[[update]]\nname = \"other\"\nwcet = \"999us\"\n[[update]]",
        4,
        &["sensor `pace` is evaluated for 1.00 ms per element, above its period"],
    ),
    (
        WCET,
        "wcet = \"584y\"",
        4,
        &[
            "update `count` has a wcet of ",
            "above the period of sensor `pace`",
        ],
    ),
    (
        LATENCY,
        "latency = \"2450us\"",
        4,
        &[
            "[monitor] `latency` is 2.45 ms",
            "a latency of ",
            " would fit",
        ],
    ),
    (
        LATENCY,
        "latency = \"1ms\"",
        2,
        &[
            "[monitor] `latency` is 1.00 ms, and ",
            "`hold_back` alone are 2.40 ms",
        ],
    ),
    (
        LATENCY,
        "latency = \"50ms\"\nhold_back = \"584y\"\nscheduler_lateness = \"584y\"",
        2,
        &["[monitor] `wake_up_lateness`, `scheduler_lateness` and `hold_back`"],
    ),
    (
        LATENCY,
        "latency = \"50ms\"\nlargest_period = \"1us\"",
        2,
        &["[monitor] `largest_period` is 1.00 us, below `least_period`"],
    ),
    (
        LATENCY,
        "latency = \"50ms\"\ncpu_percent = 101",
        2,
        &["[monitor] `cpu_percent` is 101; give 1 to 100"],
    ),
    // With and without copies.
    (
        LATENCY,
        "latency = \"50ms\"\nbuffered_elements = 1",
        2,
        &["[monitor] `buffered_elements` is 1; give 2 to 4194304"],
    ),
    (
        "id = \"pace\"",
        "id = \"[pace\"",
        2,
        &["sensor `[pace`: ", "is not a pattern for sensors"],
    ),
    (
        "id = \"pace\"",
        "id = \"\"",
        2,
        &["[[sensor]] number 1: its `id` is empty"],
    ),
    (
        "jitter = \"5ms\"",
        "payload = 65537",
        2,
        &["sensor `pace`: its payload is 65537; give 0 to 65536"],
    ),
    (
        NAME,
        "name = \"count\"\nfield = \"number\"\nplugin = \"nowhere.so\"",
        2,
        &["update `count`: give one of `metric`, `field` and `plugin`"],
    ),
    (
        NAME,
        "name = \"count\"\nmetric = \"nonsense\"",
        2,
        &["update `count`: there is no ", "metric `nonsense`"],
    ),
    (
        "[[update]]",
        "[[update]]\nname = \"count\"\nwcet = \"1us\"\n[[update]]",
        2,
        &["update `count` is listed twice"],
    ),
    (
        LATENCY,
        "latency = \"50ms\"\nlatencies = 1",
        2,
        &["line 4: ", "unknown field `latencies`"],
    ),
    (
        NAME,
        "name = \"count\"\nsensors = [\"lace\"]",
        2,
        &["update `count` takes sensor `lace`, which is not described"],
    ),
    (
        NAME,
        "name = \"count\"\nmissed = \"maybe\"",
        2,
        &["update `count`, `missed`: unknown variant `maybe`"],
    ),
    (
        "[[update]]",
        "[[sensor]]\nid = \"pace\"\nperiod = \"1ms\"\n[[update]]",
        2,
        &["sensor `pace` is listed twice"],
    ),
];

fn wrong(folder: &Path, from: &str, to: &str) -> std::path::PathBuf {
    assert!(RIGHT.contains(from), "{from}");
    let file = folder.join("overhear.toml");
    fs::write(&file, RIGHT.replacen(from, to, 1)).unwrap();
    file
}

#[test]
fn each_mistake_in_a_file_is_named_with_its_entry() {
    let folder = folder();
    for (from, to, status, words) in WRONG {
        let file = wrong(folder.path(), from, to);
        let ended = finish(&mut overhear(&["admit", "--config", path(&file)]));
        assert_eq!(ended.status, status, "{to}: {ended:#?}");
        // A refusal is an answer, the rest are errors.
        let messages = match status {
            4 => ended.stdout.lines().next().unwrap_or_default(),
            _ => {
                assert_eq!(ended.stderr.lines().count(), 1, "{to}: {ended:#?}");
                assert!(ended.stderr.contains(path(&file)), "{to}: {ended:#?}");
                ended.stderr.as_str()
            }
        };
        for word in words {
            assert!(messages.contains(word), "{to}: {word}: {messages}");
        }
        ended.does_not_panic();
    }
    // The unchanged file is valid.
    let file = wrong(folder.path(), PERIOD, PERIOD);
    let right = finish(&mut overhear(&["admit", "--config", path(&file)]));
    assert!(
        !right.stdout.contains("[monitor]") && right.stderr.is_empty(),
        "{right:#?}"
    );
}

#[test]
fn share_that_cannot_be_reserved_is_refused() {
    let text = RIGHT.replacen(LATENCY, "latency = \"50ms\"\ncpu_percent = 96", 1);
    let of = |executor| text.replacen("best_effort", executor, 1);
    let (ended, ran) = guaranteed::refused(&of("bandwidth"));
    assert!(!ran, "{ended:#?}");
    ended.has_message(
        2,
        &[
            "[monitor] `cpu_percent` is 96",
            "\"bandwidth\"",
            "give 1 to 95",
        ],
    );
    let (ended, ran) = guaranteed::refused(&of("best_effort"));
    assert!(ran, "{ended:#?}");
}

#[test]
fn invalid_values_are_refused_under_every_executor() {
    for executor in ["best_effort", "bandwidth", "buffered", "auto"] {
        let text = RIGHT.replacen("best_effort", executor, 1);
        let text = text.replacen(LATENCY, "latency = \"50ms\"\ncpu_percent = 0", 1);
        let (ended, ran) = guaranteed::refused(&text);
        assert!(!ran, "{executor}: {ended:#?}");
        ended.has_message(2, &["[monitor] `cpu_percent` is 0; give 1 to 100"]);
    }
}

/// Runs the program with the monitor of the file with this replacement.
fn run(from: &str, to: &str) -> (Ended, serde_json::Value) {
    let folder = folder();
    let file = wrong(folder.path(), from, to);
    let options = ["--kernel", "off", "--config", path(&file)];
    run_json_with_panics(&options, &[path(program()), "paced", "5"])
}

#[test]
fn absent_sensor_is_named_and_makes_the_run_inconclusive() {
    let (ended, report) = run("id = \"pace\"", "id = \"lace\"");
    ended.does_not_panic();
    assert_eq!(ended.status, 3, "{ended:#?}");
    let reasons = report["guarantee"]["reasons"].to_string();
    assert!(
        reasons.contains("sensor `lace` never appeared"),
        "{reasons}"
    );
    let (ended, report) = run(NAME, "name = \"count\"\nfield = \"nummer\"");
    assert_eq!(ended.status, 3, "{ended:#?}");
    let update = &report["guarantee"]["updates"][0];
    let complaint = update["complaints"][0].as_str().unwrap();
    let fields = "has no number `nummer`; it has `number`, `load`, `change`";
    assert!(
        complaint.contains("/pace#first") && complaint.contains(fields),
        "{complaint}"
    );
}

#[test]
fn failing_plug_in_is_named_with_its_entry() {
    let folder = folder();
    let entry = |plugin: &str| format!("{NAME}\nplugin = \"{plugin}\"");
    let refused = |plugin: &str, words: &[&str]| {
        let (ended, ran) = guaranteed::refused(&RIGHT.replacen(NAME, &entry(plugin), 1));
        assert!(!ran, "{ended:#?}");
        ended.has_message(2, &[&["update `count`: ", "plug-in "], words].concat());
    };
    refused("nowhere.so", &["nowhere.so does not load"]);
    let Some(cpp) = plugin(
        "g++",
        "-std=c++17",
        "crates/overhear-cli/tests/sensors/updates.cpp",
        &folder.path().join("cpp.so"),
    ) else {
        return;
    };
    refused(
        &format!("{}:nobody", path(&cpp)),
        &["has no update `nobody`"],
    );
    let empty = folder.path().join("empty.c");
    fs::write(&empty, "int nothing;\n").unwrap();
    if let Some(empty) = plugin(
        "gcc",
        "-std=c11",
        path(&empty),
        &folder.path().join("empty.so"),
    ) {
        refused(path(&empty), &["lacks the function `oh_plugin_v1`"]);
    }
    // Updates that end with a message at their call; the run continues.
    let fails = |plugin: &str, words: &[&str]| {
        let (ended, report) = run(NAME, &entry(plugin));
        // One ends its own process boundary only.
        assert_eq!(ended.status, 3, "{ended:#?}");
        let update = &report["guarantee"]["updates"][0]["plugin"][0];
        assert_eq!(update["state"], "failed", "{update:#}");
        let message = update["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "{message}");
        }
    };
    let throwing = ["update `throwing`: ", "the third is too much"];
    fails(&format!("{}:throwing", path(&cpp)), &throwing);
    if let Some(rust) = in_rust("restless") {
        let panics = ["update `panicking`: ", "it panicked: the third is too much"];
        fails(&format!("{}:panicking", path(&rust)), &panics);
    }
    // Sensors that the recording does not contain are no failure, but nothing was evaluated; the
    // same holds for types that do not fit.
    for (name, words) in [
        (
            "elsewhere",
            "update `elsewhere` takes the sensors `*/lace`, and this monitor has none of them",
        ),
        ("mistyped", "update `mistyped` evaluates type `sample`"),
    ] {
        let (ended, report) = run(NAME, &entry(&format!("{}:{name}", path(&cpp))));
        assert_eq!(ended.status, 3, "{ended:#?}");
        let update = &report["guarantee"]["updates"][0]["plugin"][0];
        let complaint = update["complaints"][0].as_str().unwrap();
        assert!(complaint.starts_with(words), "{complaint}");
    }
}
