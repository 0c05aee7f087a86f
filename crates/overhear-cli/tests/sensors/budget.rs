// SPDX-License-Identifier: MIT OR Apache-2.0
//! Budgets: unobserved events are counted to the last write, live and in the recording, and judged
//! as users request.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::program::compiled;
use crate::support::{finish, folder, overhear, path, report_json, run_json, Ended};

fn spender() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("tests/sensors/spender.c", "spender"))
}

/// Runs the program with these options. Returns the numbers of writes that it printed, too.
fn spend(options: &[&str], steps: &str) -> (Ended, Value, [u64; 2]) {
    spend_with(options, &["1500", steps])
}

/// The same with these arguments of the program.
fn spend_with(options: &[&str], arguments: &[&str]) -> (Ended, Value, [u64; 2]) {
    let options = [&["--kernel", "off"], options].concat();
    let command = [&[path(spender())], arguments].concat();
    let (ended, report) = run_json(&options, &command);
    let wrote = ["frequent ", "rare "].map(|name| {
        let lines = ended.stdout.lines().chain(ended.stderr.lines());
        let mut counts = lines.filter_map(|line| line.strip_prefix(name)?.parse().ok());
        counts
            .next()
            .unwrap_or_else(|| panic!("{name}: {ended:#?}"))
    });
    (ended, report, wrote)
}

/// The entry of a sensor in the budget.
pub(crate) fn sensor<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["budget"]["sensors"].as_array().unwrap();
    let of = |sensor: &&Value| sensor["name"].as_str().unwrap().ends_with(name);
    all.iter()
        .find(of)
        .unwrap_or_else(|| panic!("{name}: {report:#}"))
}

pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {value}"))
}

/// Missed elements of this cause.
pub(crate) fn lost(report: &Value, cause: &str) -> u64 {
    let all = report["losses"].as_array().unwrap().iter();
    all.filter(|loss| loss["cause"] == cause)
        .map(|loss| number(loss, "missed"))
        .sum()
}

#[test]
fn every_write_is_observed_or_counted() {
    let folder = folder();
    let out = folder.path().join("out");
    let (ended, report, [frequent, rare]) = spend(&["--budget", "2%", "--out", path(&out)], "4");
    assert_eq!(ended.status, 3, "{ended:#?}");
    let of_frequent = sensor(&report, "/frequent");
    let (written, skipped) = (
        number(of_frequent, "written"),
        number(of_frequent, "skipped"),
    );
    assert_eq!(written + skipped, frequent, "{of_frequent}");
    assert!(written > 0 && skipped > frequent / 2, "{of_frequent}");
    // A source of nearly no cost is always on, except while its price is unknown.
    let of_rare = sensor(&report, "/rare");
    assert_eq!(
        number(of_rare, "written") + number(of_rare, "skipped"),
        rare
    );
    assert!(number(of_rare, "skipped") < rare / 2, "{of_rare}");
    assert_eq!(
        lost(&report, "budget"),
        skipped + number(of_rare, "skipped")
    );
    assert_eq!(report["budget"]["target"], 0.02);
    // Skipped writes cost something too, and may take half of the target.
    let [counting_ns, cpu_ns] = ["counting_ns", "cpu_ns"].map(|key| number(&report["budget"], key));
    assert!(counting_ns > 0 && counting_ns <= cpu_ns / 100, "{report:#}");
    assert_eq!(report["complete"], false);
    // The recording has the same account.
    let (_, recorded) = report_json(&out);
    assert_eq!(recorded["budget"], report["budget"]);
    assert_eq!(recorded["losses"], report["losses"]);
    let text = finish(&mut overhear(&["report", path(&out)])).stdout;
    assert!(text.contains("budget: 2.00 % of the CPU time"), "{text}");
}

/// Asserts the status, and that the output has these words.
#[track_caller]
fn prints(ended: &Ended, status: i32, words: &str) {
    assert_eq!(ended.status, status, "{ended:#?}");
    assert!(ended.stdout.contains(words), "{words}: {ended:#?}");
}

#[test]
fn every_verb_names_the_gaps_of_a_budget() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let out = at("out");
    let (_, report, _) = spend(&["--budget", "0.5%", "--out", path(&out)], "4000");
    let skipped = number(sensor(&report, "/frequent"), "skipped");
    let all = skipped + number(sensor(&report, "/rare"), "skipped");
    assert_eq!(lost(&report, "budget"), all);
    let verb = |arguments: &[&str]| finish(&mut overhear(arguments));

    let ended = verb(&["report", path(&out)]);
    assert!(
        ended.stdout.contains(&format!("{skipped} budget in ")),
        "{ended:#?}"
    );
    let metric = "metric pair \"x\"\nevent write = user:frequent task number\n\
                  state idle out\nstate begins begin\nstate under_way in\nstate done end\n\
                  idle -> begins: write, i\nbegins -> under_way: lambda\n\
                  under_way -> done: write, i\ndone -> idle: lambda\n";
    fs::write(at("pair.metric"), metric).unwrap();
    let ended = verb(&["metrics", path(&out), "--metric", path(&at("pair.metric"))]);
    let words = format!("{skipped} of them to keep a budget");
    prints(&ended, 3, &words);
    let constraint =
        "[[constraint]]\nname = \"all\"\nof = \"user:frequent\"\nfield = \"number\"\nmin = 0\n";
    fs::write(at("c.toml"), constraint).unwrap();
    let ended = verb(&["check", path(&out), "--config", path(&at("c.toml"))]);
    prints(
        &ended,
        3,
        &format!("{skipped} not observed to keep a budget"),
    );
    let ended = verb(&["fit-rate", path(&out), "frequent"]);
    prints(&ended, 3, "of them to keep a budget");

    let csv = at("out.csv");
    let ended = verb(&["export", path(&out), "--to", "csv", "--output", path(&csv)]);
    assert_eq!(ended.status, 3, "{ended:#?}");
    let mut rows = csv::Reader::from_path(&csv).unwrap();
    let heads = rows.headers().unwrap().clone();
    let column = |name: &str| heads.iter().position(|head| head == name).unwrap();
    let (cause, missed) = (column("cause"), column("missed"));
    let of_budget = rows
        .records()
        .map(Result::unwrap)
        .filter(|row| &row[cause] == "budget");
    let exported: u64 = of_budget
        .map(|row| row[missed].parse::<u64>().unwrap())
        .sum();
    assert_eq!(exported, all);
    let proto = at("out.pftrace");
    verb(&[
        "export",
        path(&out),
        "--to",
        "perfetto",
        "--output",
        path(&proto),
    ]);
    let proto = fs::read(&proto).unwrap();
    assert!(proto.windows(6).any(|word| word == b"budget"));

    // The page, of one run and of two.
    let page = at("out.html");
    verb(&["report", path(&out), "--html", path(&page)]);
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains(r#""cause":"budget""#) && page.contains(r#""target":0.005"#));
}

#[test]
fn budget_that_suffices_leaves_nothing_out() {
    // Enough work for the first prices of a build without optimisation.
    let (ended, report, [frequent, _]) = spend(&["--budget", "1000%"], "4000");
    let of_frequent = sensor(&report, "/frequent");
    assert_eq!(number(of_frequent, "written"), frequent, "{ended:#?}");
    assert_eq!(number(of_frequent, "skipped"), 0);
    assert_eq!(lost(&report, "budget"), 0);
}

#[test]
fn constraint_over_a_budget_follows_the_file() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let text = "[budget]\ntarget = \"1%\"\n\
                [[budget.sensor]]\nname = \"rare\"\nalways = true\n\
                [[constraint]]\nname = \"all\"\nof = \"user:frequent\"\nfield = \"number\"\nmin = 0\n\
                [[constraint]]\nname = \"sample\"\nof = \"user:frequent\"\nfield = \"number\"\nmin = 0\n\
                sampled = true\n\
                [[constraint]]\nname = \"rare\"\nof = \"user:rare\"\nfield = \"number\"\nmin = 0\n";
    fs::write(&file, text).unwrap();
    let (_, report, [_, rare]) = spend(&["--config", path(&file)], "4");
    let constraints = report["check"]["constraints"].as_array().unwrap();
    let verdict = |index: usize| constraints[index]["verdict"].as_str().unwrap();
    assert_eq!(verdict(0), "inconclusive", "{report:#}");
    // Overwritten elements are no part of a sample: a loaded machine may have some.
    let overwritten = lost(&report, "overwritten") + lost(&report, "late");
    let expected = if overwritten == 0 {
        "held"
    } else {
        "inconclusive"
    };
    assert_eq!(verdict(1), expected, "{report:#}");
    let reasons = constraints[1]["reasons"].to_string();
    assert!(reasons.contains("judged as a sample: "), "{reasons}");
    // A source that is always on has no gap of the budget.
    assert_eq!(number(sensor(&report, "/rare"), "written"), rare);
}

/// Runs the program with its twin under a small budget with this rule for the twin. Returns how
/// many times more elements the twin wrote than the other sensor.
fn ratio_under(line: &str) -> f64 {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let text = "[budget]\ntarget = \"0.2%\"\n[[budget.sensor]]\nname = \"twin\"\n";
    fs::write(&file, format!("{text}{line}\n")).unwrap();
    let options = ["--config", path(&file)];
    let (_, report, _) = spend_with(&options, &["3000", "4000", "twin"]);
    let [frequent, twin] = ["/frequent", "/twin"].map(|name| sensor(&report, name));
    assert!(number(frequent, "skipped") > 0, "{frequent}");
    number(twin, "written") as f64 / number(frequent, "written") as f64
}

#[test]
fn weight_and_floor_divide_the_budget() {
    let [light, heavy] = ["weight = 0.2", "weight = 5"].map(ratio_under);
    assert!(light < 0.5 && heavy > 2.0, "{light} {heavy}");
    let floor = ratio_under("weight = 0.2\nfloor = \"0.17%\"");
    assert!(floor > 2.0 * light, "{light} {floor}");
}

#[test]
fn window_is_that_of_the_course() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let points = ["100ms", "1s"].map(|window| {
        let text = format!("[budget]\ntarget = \"2%\"\nwindow = \"{window}\"\n");
        fs::write(&file, text).unwrap();
        let (_, report, _) = spend(&["--config", path(&file)], "4");
        let course = report["budget"]["course"].as_array().unwrap().len();
        (number(&report["budget"], "window_ns"), course)
    });
    assert_eq!(points.map(|it| it.0), [100_000_000, 1_000_000_000]);
    // 1.5 s of CPU time; a point comes with the first tick after each window.
    assert!(points[0].1 >= 8 && points[1].1 <= 3, "{points:?}");
}

#[test]
fn sensors_of_a_guaranteed_monitor_stay_on() {
    let _alone = crate::guaranteed::alone();
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let monitor = crate::guaranteed::FILE.replace("eager", "rare");
    let monitor = monitor.replace("id = \"rare\"", "id = \"rare\"\nbuffer = 4096");
    let skipped_by = |executor: &str| {
        let budget = "[budget]\ntarget = \"0%\"\n";
        let text = format!("{}\n{budget}", monitor.replace("EXECUTOR", executor));
        fs::write(&file, text).unwrap();
        let (ended, report, _) = spend(&["--config", path(&file)], "4");
        assert!(number(sensor(&report, "/frequent"), "skipped") > 0);
        let executor = report["guarantee"]["executor"].clone();
        let messages = report["notes"].to_string() + &ended.stderr;
        let skipped = number(sensor(&report, "/rare"), "skipped");
        (executor, skipped, messages)
    };
    let (executor, skipped, messages) = skipped_by("best_effort");
    assert_eq!(executor, "best_effort");
    assert!(skipped > 0, "{messages}");
    let (executor, skipped, messages) = skipped_by("auto");
    if executor == "best_effort" {
        println!("skipped: {messages}");
        return;
    }
    assert_eq!(skipped, 0, "{messages}");
    let expected = "sensors that are always on cost ";
    assert!(messages.contains(expected), "{messages}");
}

#[test]
fn budget_without_a_switch_is_named() {
    let message = "the budget has no source that can be switched";
    let (ended, report) = run_json(&["--kernel", "off", "--budget", "5%"], &["true"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let notes = report["notes"].to_string();
    assert!(
        notes.contains(message) && notes.contains("no program had a sensor"),
        "{notes}"
    );
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let text = "[budget]\ntarget = \"5%\"\n[[budget.sensor]]\nname = \"*\"\nalways = true\n";
    fs::write(&file, text).unwrap();
    let (_, report, [frequent, rare]) = spend(&["--config", path(&file)], "400");
    let notes = report["notes"].to_string();
    assert!(
        notes.contains(message) && notes.contains("all sensors are always on"),
        "{notes}"
    );
    // Nothing is lost by it.
    assert_eq!(number(sensor(&report, "/frequent"), "written"), frequent);
    assert_eq!(number(sensor(&report, "/rare"), "written"), rare);
    assert_eq!(lost(&report, "budget"), 0);
}

/// The results of reactions are written by the monitor, and the program does not pay for them.
#[test]
fn results_of_reactions_are_no_part_of_the_budget() {
    let folder = folder();
    let file = folder.path().join("overhear.toml");
    let text = "[budget]\ntarget = \"0%\"\n\
                [[constraint]]\nname = \"none\"\nof = \"user:frequent\"\nfield = \"number\"\n\
                max = -1\nsampled = true\n\
                [[reaction]]\nname = \"tell\"\non = [\"violated\"]\nsensor = \"told\"\n";
    fs::write(&file, text).unwrap();
    let (_, report, _) = spend(&["--config", path(&file)], "4000");
    let sensors = report["sensors"].as_array().unwrap().iter();
    let told: Vec<_> = sensors.filter(|it| it["id"] == "told").collect();
    assert_eq!(told.len(), 1, "{report:#}");
    let of_budget = report["budget"]["sensors"].as_array().unwrap().iter();
    let names: Vec<_> = of_budget.map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(!names.iter().any(|it| it.ends_with("/told")), "{names:?}");
}

/// A budget that suffices for both sensors, and one that does not.
#[test]
fn damaged_counts_take_no_budget_from_others() {
    let liar = compiled("tests/sensors/liar.c", "liar");
    for target in ["1000%", "0.3%"] {
        let options = ["--kernel", "off", "--budget", target];
        let (ended, report) = run_json(&options, &[path(&liar)]);
        ended.does_not_panic();
        let lines = ended.stdout.lines().chain(ended.stderr.lines());
        let mut counts = lines.filter_map(|line| line.strip_prefix("honest ")?.parse().ok());
        let all: u64 = counts.next().unwrap_or_else(|| panic!("{ended:#?}"));
        let honest = sensor(&report, "/honest");
        let (written, skipped) = (number(honest, "written"), number(honest, "skipped"));
        assert_eq!(written + skipped, all, "{honest}");
        let notes = report["notes"].to_string();
        let message = "/liar are damaged: its budget is not exact";
        assert!(notes.contains(message), "{notes}");
        assert!(!notes.contains("/honest are damaged"), "{notes}");
        match target {
            // What the damaged counts could cost is unknown, so prices are learned: both are off
            // for one of four intervals at most.
            "1000%" => assert!(written > all / 2, "{report:#}"),
            _ => assert!(written > all / 100, "{report:#}"),
        }
        let observed = report["budget"]["observed"].as_f64().unwrap();
        assert!(observed.is_finite() && observed < 10.0, "{observed}");
    }
}

#[test]
fn impossible_budgets_are_refused_before_anything_runs() {
    let folder = folder();
    for (target, message) in [
        (
            "-1%",
            "an overhead of -1 % is not possible; give 0 % or more",
        ),
        (
            "much",
            "`much` is no budget; give per cent of the CPU time, for example 5%",
        ),
    ] {
        let mut run = overhear(&["run", &format!("--budget={target}"), "--", path(spender())]);
        let ended = finish(&mut run);
        assert_eq!(ended.status, 2, "{ended:#?}");
        assert!(ended.stderr.contains(message), "{ended:#?}");
    }
    let file = folder.path().join("overhear.toml");
    fs::write(&file, "[budget]\ntarget = \"1%\"\nwindow = \"5us\"\n").unwrap();
    let run = ["run", "--config", path(&file), "--", path(spender())];
    let ended = finish(&mut overhear(&run));
    assert_eq!(ended.status, 2, "{ended:#?}");
    let message = "the window of the budget is 5000 ns; give at least 1 ms of CPU time";
    assert!(ended.stderr.contains(message), "{ended:#?}");
    assert_eq!(ended.stdout, "");
}
