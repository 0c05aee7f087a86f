// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[[reaction]]`: occurrences while a program runs start the reactions of the file.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::guaranteed::{alone, FILE};
use crate::program::{number, only_sensor, program};
use crate::support::{finish, folder, overhear, path, plugin, report_json, run_json, Ended};
use crate::updates::in_rust;

/// `eager` writes up to 2,000 elements per second, and the file allows one: each but the first is
/// too early.
pub(crate) const SLOW: &str = r#"
    [monitor]
    latency = "600ms"
    level = "shared"
    executor = "best_effort"
    [[sensor]]
    id = "eager"
    period = "1h"
    [[update]]
    name = "numbers"
    field = "number"
"#;

const ELEMENTS: u64 = 200;

/// Runs the eager program with the monitor of this file.
fn run(folder: &Path, text: &str, more: &[&str]) -> (Ended, Value) {
    let elements = ELEMENTS.to_string();
    run_words(folder, text, more, &[path(program()), "eager", &elements])
}

fn run_words(folder: &Path, text: &str, more: &[&str], words: &[&str]) -> (Ended, Value) {
    let file = folder.join("overhear.toml");
    fs::write(&file, text).unwrap();
    let options = [&["--kernel", "off", "--config", path(&file)], more].concat();
    run_json(&options, words)
}

#[track_caller]
fn reaction<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["reactions"]["reactions"].as_array().unwrap();
    let found = all.iter().find(|reaction| reaction["name"] == name);
    found.unwrap_or_else(|| panic!("{report:#}"))
}

/// Lines of a file that a reaction appends to.
fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(str::to_string).collect()
}

#[test]
fn too_fast_sensor_triggers_a_reaction_per_element() {
    let folder = folder();
    let text = format!(
        "{SLOW}
        [[reaction]]
        name = \"each\"
        on = [\"stream\"]
        log = \"each.log\"
        [[reaction]]
        name = \"tenth\"
        on = [\"stream\"]
        of = [\"eager\"]
        after = 10
        once = true
        log = \"-\"
        exec = [\"sh\", \"-c\", \"echo $OVERHEAR_REACTION $OVERHEAR_ON $OVERHEAR_OF $OVERHEAR_COUNT $OVERHEAR_ELEMENT $OVERHEAR_BOUND > ran\"]
        "
    );
    let text = text.replace("> ran", &format!("> {}", path(&folder.path().join("ran"))));
    let (ended, report) = run(folder.path(), &text, &[]);
    let sensor = &report["guarantee"]["sensors"][0];
    assert_eq!(number(sensor, "elements"), ELEMENTS, "{report:#}");
    // An hour has not passed: the first element was good, and all others were not.
    assert_eq!(number(sensor, "exceeding"), ELEMENTS - 1);
    assert_eq!(number(&report["reactions"], "lost"), 0);
    let each = reaction(&report, "each");
    let counts = (number(each, "carried_out"), number(each, "failed"));
    assert_eq!(counts, (ELEMENTS - 1, 0), "{each:#}");
    // Decided at the element itself, for each of them, in order.
    let lines = lines(&folder.path().join("each.log"));
    assert_eq!(lines.len() as u64, ELEMENTS - 1);
    for (element, line) in (1..).zip(&lines) {
        let words =
            format!(" s sensor `eager` exceeded its stream with element {element}: observed ");
        assert!(
            line.starts_with("each: at ")
                && line.contains(&words)
                && line.ends_with(", bound 0 ns"),
            "{line}"
        );
    }
    let tenth = reaction(&report, "tenth");
    assert_eq!(number(tenth, "carried_out"), 1, "{tenth:#}");
    let first = tenth["first"].as_str().unwrap();
    ended.has_message(ended.status, &["overhear: tenth: ", first]);
    let ran = fs::read_to_string(folder.path().join("ran")).unwrap();
    assert_eq!(ran, "tenth stream eager 10 10 0\n");
    assert!(number(tenth, "first_ns") > 0);
}

#[test]
fn observed_program_gets_the_signal() {
    let folder = folder();
    let text = format!(
        "{SLOW}
        [[reaction]]
        name = \"stop\"
        on = [\"stream\"]
        once = true
        signal = \"USR1\"
        "
    );
    // It waits for the signal and ends by itself if none comes.
    let script = "trap 'exit 42' USR1; \"$0\" eager 50; i=0; \
                  while [ $i -lt 1200 ]; do sleep 0.05; i=$((i+1)); done";
    let words = ["sh", "-c", script, path(program())];
    let (ended, report) = run_words(folder.path(), &text, &[], &words);
    assert_eq!(ended.status, 42, "{ended:#?}");
    let stop = reaction(&report, "stop");
    assert_eq!(number(stop, "carried_out"), 1, "{stop:#}");
}

/// Source of the plug-in of the next test: an update that requests a reaction, and a function that
/// is called.
const PLUGIN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <overhear/update.h>

static void *create(oh_host *host, const char *argument)
{
    (void)host, (void)argument;
    return calloc(1, sizeof(uint64_t));
}
static int element(void *self, oh_host *host, const oh_element_view *element)
{
    (void)element;
    if (++*(uint64_t *)self % 50 == 0)
        oh_react(host, 7, (int64_t)*(uint64_t *)self);
    return 0;
}
static const oh_update asking = {
    .size = sizeof(oh_update), .name = "asking", .create = create, .element = element, .destroy = free,
};
OH_EXPORT_UPDATES(&asking)

void write_down(const oh_reaction *reaction);
void write_down(const oh_reaction *reaction)
{
    FILE *file = fopen(getenv("OVERHEAR_TEST_FILE"), "a");
    if (!file)
        return;
    fprintf(file, "%s %u %s %u %lld %g %g\n", reaction->name, reaction->on, reaction->of, reaction->code,
            (long long)reaction->value, reaction->observed, reaction->bound);
    fclose(file);
}
"#;

#[test]
fn update_triggers_a_function_under_every_executor() {
    let _alone = alone();
    let folder = folder();
    let source = folder.path().join("asking.c");
    fs::write(&source, PLUGIN).unwrap();
    let Some(plugin) = plugin(
        "gcc",
        "-std=c11",
        path(&source),
        &folder.path().join("a.so"),
    ) else {
        return;
    };
    assert!(plugin.exists());
    for executor in ["auto", "bandwidth", "best_effort"] {
        let out = folder.path().join(executor);
        fs::create_dir(&out).unwrap();
        // The file's update counts elements, and another one requests reactions.
        let entries = r#"
            [[update]]
            name = "asks"
            wcet = "40us"
            plugin = "../a.so:asking"
            [[reaction]]
            name = "answer"
            on = ["update"]
            of = ["asks"]
            function = "../a.so:write_down"
            sensor = "alarms"
        "#;
        let file = out.join("overhear.toml");
        let text = FILE.replace("EXECUTOR", executor) + entries;
        fs::write(&file, text).unwrap();
        let (messages, written) = (out.join("report.json"), out.join("written"));
        let json = format!("--json={}", path(&messages));
        let elements = ELEMENTS.to_string();
        let words = [
            "run",
            "--kernel",
            "off",
            "--config",
            path(&file),
            &json,
            "--",
        ];
        let program = [path(program()), "eager", &elements];
        let mut command = overhear(&[&words[..], &program].concat());
        let ended = finish(command.env("OVERHEAR_TEST_FILE", &written));
        if ended.status == 5 {
            println!("skipped: {executor}: {}", ended.stderr);
            continue;
        }
        let report: Value = serde_json::from_str(&fs::read_to_string(&messages).unwrap()).unwrap();
        let expected: Vec<String> = (1..=ELEMENTS / 50)
            .map(|number| format!("answer 5 asks 7 {} nan nan", 50 * number))
            .collect();
        assert_eq!(lines(&written), expected, "{executor}: {ended:#?}");
        let answer = reaction(&report, "answer");
        assert_eq!(number(answer, "carried_out"), ELEMENTS / 50, "{answer:#}");
        // The same run has read the result sensor, which belongs to this command.
        let sensors = report["sensors"].as_array().unwrap();
        let alarms = sensors.iter().find(|sensor| sensor["id"] == "alarms");
        let alarms = alarms.unwrap_or_else(|| panic!("{report:#}"));
        assert_eq!(number(alarms, "elements"), ELEMENTS / 50, "{executor}");
        assert_eq!(alarms["type"], "reaction");
    }
}

#[test]
fn function_gets_observed_value_and_bound() {
    let folder = folder();
    let source = folder.path().join("asking.c");
    fs::write(&source, PLUGIN).unwrap();
    let library = folder.path().join("a.so");
    if plugin("gcc", "-std=c11", path(&source), &library).is_none() {
        return;
    }
    let text = "[[constraint]]\nname = \"few\"\nof = \"user:pace\"\nfield = \"load\"\nmax = 8.5\n\
        [[reaction]]\nname = \"tell\"\non = [\"violated\"]\nfunction = \"a.so:write_down\"\n";
    let (file, written) = (
        folder.path().join("overhear.toml"),
        folder.path().join("written"),
    );
    fs::write(&file, text).unwrap();
    let words = [
        "run",
        "--kernel",
        "off",
        "--check",
        path(&file),
        "--",
        path(program()),
    ];
    let mut command = overhear(&[&words[..], &["paced", "20"]].concat());
    let ended = finish(command.env("OVERHEAR_TEST_FILE", &written));
    // The load is half of the number.
    let expected = ["tell 3 few 0 1 9 8.5", "tell 3 few 0 2 9.5 8.5"];
    assert_eq!(lines(&written), expected, "{ended:#?}");
}

#[test]
fn constraints_react_when_they_are_decided() {
    let folder = folder();
    let text = r#"
        [[constraint]]
        name = "few"
        of = "user:pace"
        field = "number"
        max = 15
        [[constraint]]
        name = "unheard"
        of = "user:nowhere"
        field = "number"
        max = 1
        [[reaction]]
        name = "violated"
        on = ["violated"]
        of = ["few"]
        log = "violated.log"
        exec = ["sh", "-c", "echo $OVERHEAR_OBSERVED $OVERHEAR_BOUND >> OUT"]
        sensor = "alarms"
        [[reaction]]
        name = "inconclusive"
        on = ["inconclusive"]
        log = "inconclusive.log"
    "#;
    let file = folder.path().join("overhear.toml");
    let ran = folder.path().join("ran");
    fs::write(&file, text.replace("OUT", path(&ran))).unwrap();
    // A file without a monitor, for --check.
    let options = ["--kernel", "off", "--check", path(&file)];
    let (ended, report) = run_json(&options, &[path(program()), "paced", "20"]);
    assert_eq!(ended.status, 1, "{ended:#?}");
    let violated = lines(&folder.path().join("violated.log"));
    assert_eq!(violated.len(), 4, "{violated:#?}");
    for (element, line) in (16..20).zip(&violated) {
        let end = format!(
            " s constraint `few` was violated by element {element} (offence {}): observed {element}, bound 15",
            element - 15
        );
        assert!(line.ends_with(&end), "{line}");
    }
    // Programs run at the same time.
    let mut measures = lines(&ran);
    measures.sort();
    assert_eq!(measures, ["16 15", "17 15", "18 15", "19 15"]);
    let first = reaction(&report, "violated");
    let measure = (
        first["first_observed"].as_f64(),
        first["first_bound"].as_f64(),
    );
    assert_eq!(measure, (Some(16.0), Some(15.0)), "{first:#}");
    let sensors = report["sensors"].as_array().unwrap();
    let alarms = sensors
        .iter()
        .find(|sensor| sensor["id"] == "alarms")
        .unwrap();
    let fields = alarms["fields"].as_array().unwrap();
    let of = |name: &str| {
        let field = fields.iter().find(|field| field["name"] == name).unwrap();
        (field["min"].as_f64(), field["max"].as_f64())
    };
    // A decision at the last elements of a program is too late for its own run.
    let (least, most) = of("observed");
    assert!(least == Some(16.0) && most <= Some(19.0), "{alarms:#}");
    assert_eq!(of("bound"), (Some(15.0), Some(15.0)));
    // An inconclusive constraint has neither.
    let inconclusive = reaction(&report, "inconclusive");
    assert_eq!(inconclusive["first_observed"], Value::Null);
    let inconclusive = lines(&folder.path().join("inconclusive.log"));
    assert_eq!(inconclusive.len(), 1, "{inconclusive:#?}");
    assert!(inconclusive[0].contains("constraint `unheard` became inconclusive"));
    assert_eq!(number(reaction(&report, "violated"), "carried_out"), 4);
}

#[test]
fn missed_elements_are_exact_and_updates_follow_their_policy() {
    let folder = folder();
    // Messages of up to twelve elements, through a ring of 64, faster than any reader.
    let text = r#"
        [monitor]
        latency = "600ms"
        level = "shared"
        executor = "best_effort"
        [[sensor]]
        id = "log"
        period = "1us"
        [[update]]
        name = "stops"
        missed = "stop"
        [[update]]
        name = "goes on"
        missed = "continue"
        PLUGIN
        [[reaction]]
        name = "missed"
        on = ["missed"]
        log = "missed.log"
    "#;
    // The missed policy of the file takes precedence over that of the plug-in.
    let plugin = in_rust("restless").map_or_else(String::new, |plugin| {
        let place = path(&plugin);
        format!("[[update]]\nname = \"foreign\"\nplugin = \"{place}:asking\"\nmissed = \"stop\"\n")
    });
    let text = &text.replace("PLUGIN", &plugin);
    // Until it was faster than any reader.
    let mut messages = 20_000;
    let (ended, report) = loop {
        let words = [path(program()), "talk", &messages.to_string()];
        let found = run_words(folder.path(), text, &[], &words);
        let sensor = &found.1["guarantee"]["sensors"][0];
        if number(sensor, "missed") > 0 {
            break found;
        }
        let whole = number(&found.1["guarantee"]["updates"][1], "elements");
        assert_eq!(whole, number(sensor, "elements"), "{:#}", found.1);
        messages *= 4;
        assert!(messages < 20_000_000, "nothing is missed: {sensor:#}");
    };
    let guarantee = &report["guarantee"];
    let (sensor, updates) = (&guarantee["sensors"][0], &guarantee["updates"]);
    let (elements, missed) = (number(sensor, "elements"), number(sensor, "missed"));
    let (stops, goes_on) = (&updates[0], &updates[1]);
    assert_eq!(number(goes_on, "elements"), elements, "{report:#}");
    assert_eq!(number(goes_on, "missed"), missed);
    assert_eq!(goes_on["state"], "finished");
    // A reader of the same sensor counts them.
    let sensor = only_sensor(&report);
    let written = number(sensor, "elements") + number(sensor, "missed");
    assert_eq!(elements + missed, written, "{report:#}");
    assert_eq!(ended.status, 3, "{ended:#?}");
    assert_eq!(stops["state"], "stopped", "{stops:#}");
    if !plugin.is_empty() {
        let foreign = &updates[2]["plugin"][0];
        assert_eq!(foreign["state"], "stopped", "{foreign:#}");
        assert_eq!(foreign["elements"], stops["elements"]);
    }
    let message = stops["message"].as_str().unwrap();
    assert!(message.contains("it does not go on then"), "{message}");
    assert!(number(stops, "elements") < written && number(stops, "missed") > 0);
    // The reactions are about the same elements, one gap each.
    let lines = lines(&folder.path().join("missed.log"));
    let numbers = lines.iter().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(words[5].starts_with("element"), "{line}");
        words[4].parse::<u64>().unwrap()
    });
    assert_eq!(numbers.sum::<u64>(), missed);
    assert_eq!(
        number(reaction(&report, "missed"), "carried_out"),
        lines.len() as u64
    );
}

#[test]
fn failed_reaction_is_reported_and_recorded() {
    let folder = folder();
    let text = format!(
        "{SLOW}
        [[reaction]]
        name = \"fails\"
        on = [\"stream\"]
        once = true
        exec = [\"sh\", \"-c\", \"exit 9\"]
        "
    );
    let out = folder.path().join("out");
    let (ended, report) = run(folder.path(), &text, &["--out", path(&out)]);
    assert_eq!(ended.status, 3, "{ended:#?}");
    let fails = reaction(&report, "fails");
    let counts = (number(fails, "carried_out"), number(fails, "failed"));
    assert_eq!(counts, (0, 1), "{fails:#}");
    assert!(
        fails["failure"].as_str().unwrap().contains("9"),
        "{fails:#}"
    );
    let (_, kept) = report_json(&out);
    assert_eq!(kept["reactions"], report["reactions"]);
    assert_eq!(kept["guarantee"], report["guarantee"]);
    let text = finish(&mut overhear(&["report", path(&out)]));
    assert!(text.stdout.contains("fails: FAILED: "), "{text:#?}");
    // A run that is inconclusive has an inconclusive report, even if nothing was missed.
    assert_eq!(text.status, 3, "{text:#?}");

    // A document that cannot be read is no verdict at all.
    fs::write(out.join("trace/overhear/guarantee.json"), "{}").unwrap();
    let damaged = finish(&mut overhear(&["report", path(&out)]));
    damaged.has_only_message(2, &["guarantee.json cannot be understood", "missing field"]);
}

#[test]
fn impossible_reaction_is_refused_before_the_program_runs() {
    let folder = folder();
    let (file, mark) = (
        folder.path().join("overhear.toml"),
        folder.path().join("mark"),
    );
    for (entry, message) in [
        ("on = [\"stream\"]", "it does nothing; give log"),
        ("on = []\nlog = \"-\"", "`on` is empty"),
        ("on = [\"late\"]\nlog = \"-\"", "unknown variant `late`"),
        ("on = [\"stream\"]\nafter = 0\nlog = \"-\"", "`after` is 0"),
        (
            "on = [\"stream\"]\nof = [\"lazy\"]\nlog = \"-\"",
            "names none of them; there is `eager`",
        ),
        (
            "on = [\"stream\", \"overrun\"]\nof = [\"eager\"]\nlog = \"-\"",
            "`overrun` is about updates, and `of` names none of them; there is `numbers`",
        ),
        (
            "on = [\"violated\"]\nof = [\"eager\"]\nlog = \"-\"",
            "there is no [[constraint]]",
        ),
        (
            "on = [\"stream\"]\nsignal = \"NOISE\"",
            "there is no signal `NOISE`; there is HUP",
        ),
        (
            "on = [\"stream\"]\nexec = [\"no-such-program\"]",
            "there is no program `no-such-program`",
        ),
        (
            "on = [\"stream\"]\nfunction = \"nowhere.so\"",
            "write FILE.so:FUNCTION",
        ),
        (
            "on = [\"stream\"]\nfunction = \"nowhere.so:f\"",
            "does not load",
        ),
        ("on = [\"stream\"]\nsensor = \"a/b\"", "without `/` and `#`"),
        (
            "on = [\"stream\"]\nlog = \"no/such/folder\"",
            "cannot be written",
        ),
    ] {
        let text = format!("{SLOW}\n[[reaction]]\nname = \"r\"\n{entry}\n");
        fs::write(&file, text).unwrap();
        let arguments = ["run", "--kernel", "off", "--config", path(&file), "--"];
        let touch = ["touch", path(&mark)];
        let ended = finish(&mut overhear(&[&arguments[..], &touch].concat()));
        assert_eq!(
            (ended.status, mark.exists()),
            (2, false),
            "{entry}: {ended:#?}"
        );
        ended.has_message(2, &["overhear: ", path(&file), message]);
    }
}

#[test]
fn reactions_decided_too_fast_are_lost_and_counted() {
    let folder = folder();
    let text = SLOW.replace("eager", "tight");
    let text = format!("{text}\n[[reaction]]\nname = \"r\"\non = [\"stream\"]\nsensor = \"r\"\n");
    // Tens of thousands of elements in a round, each too early.
    let mut elements = 2_000_000;
    loop {
        let words = [path(program()), "tight", &elements.to_string()];
        let (ended, report) = run_words(folder.path(), &text, &[], &words);
        let sensor = &report["guarantee"]["sensors"][0];
        let decided = number(sensor, "exceeding");
        assert_eq!(decided, number(sensor, "elements") - 1, "{sensor:#}");
        let (carried_out, lost) = (
            number(reaction(&report, "r"), "carried_out"),
            number(&report["reactions"], "lost"),
        );
        assert_eq!(carried_out + lost, decided, "{report:#}");
        if lost > 0 {
            assert_eq!(ended.status, 3, "{ended:#?}");
            return;
        }
        elements *= 4;
        assert!(elements < 200_000_000, "nothing is lost: {report:#}");
    }
}

#[test]
fn rust_update_triggers_a_reaction() {
    let folder = folder();
    let Some(plugin) = in_rust("restless") else {
        return;
    };
    let field = "field = \"number\"";
    let line = format!("plugin = \"{}:asking\"", path(&plugin));
    let text = SLOW.replace(field, &line);
    let text = format!("{text}\n[[reaction]]\nname = \"r\"\non = [\"update\"]\nlog = \"asked\"\n");
    let (_, report) = run(folder.path(), &text, &[]);
    assert_eq!(
        number(reaction(&report, "r"), "carried_out"),
        ELEMENTS,
        "{report:#}"
    );
    for (element, line) in lines(&folder.path().join("asked")).iter().enumerate() {
        let end = format!("update `numbers` requested a reaction with code 3 and value {element}");
        assert!(line.ends_with(&end), "{line}");
    }
}
