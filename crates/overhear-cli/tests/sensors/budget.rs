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
    let options = [&["--kernel", "off"], options].concat();
    let (ended, report) = run_json(&options, &[path(spender()), "1500", steps]);
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
fn sensor<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["budget"]["sensors"].as_array().unwrap();
    let of = |sensor: &&Value| sensor["name"].as_str().unwrap().ends_with(name);
    all.iter()
        .find(of)
        .unwrap_or_else(|| panic!("{name}: {report:#}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key}: {value}"))
}

/// Missed elements of this cause.
fn lost(report: &Value, cause: &str) -> u64 {
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
    assert_eq!(report["complete"], false);
    // The recording has the same account.
    let (_, recorded) = report_json(&out);
    assert_eq!(recorded["budget"], report["budget"]);
    assert_eq!(recorded["losses"], report["losses"]);
    let text = finish(&mut overhear(&["report", path(&out)])).stdout;
    assert!(text.contains("budget: 2.00 % of the CPU time"), "{text}");
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
