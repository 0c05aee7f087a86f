// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the specifications in `tests/specs`: each heading with a block `metric` is a case. Blocks
//! `trace` and `results` are the input and the output, `statistics` the counters, and `error` the
//! reason why the metric is refused. An invalid block fails the test.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

use overhear_metrics::automaton::{
    new_user_metric, system_metric_text, Catalogue, Metric, MetricStatistics, Pattern,
    Specification,
};

use crate::reference::interpret_all;
use crate::scene::{catalogue, play, steps, Line};

/// The first line of each block of results.
const HEADER: [&str; 6] = ["task", "begin", "end", "length", "events", "own"];

#[derive(Default)]
struct OffenceView {
    title: String,
    metric: Option<String>,
    linux: bool,
    /// Whether the trace takes every transition.
    covered: bool,
    limit: Option<usize>,
    trace: Option<String>,
    results: Option<String>,
    statistics: Option<String>,
    error: Option<String>,
}

fn cases(file: &str, text: &str) -> Vec<OffenceView> {
    let mut cases: Vec<OffenceView> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(title) = line.strip_prefix('#') {
            let title = format!("{file}: {}", title.trim_start_matches('#').trim());
            cases.push(OffenceView {
                title,
                ..OffenceView::default()
            });
        } else if let Some(kind) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            let block = block.join("\n") + "\n";
            let case = cases.last_mut().expect("a heading comes first");
            let mut words = kind.split_whitespace();
            let block_kind = match words.next().expect("a block has a kind") {
                "metric" => {
                    case.linux = kind.contains("linux");
                    case.covered = kind.contains("covered");
                    let limit = words.find_map(|word| word.strip_prefix("limit="));
                    case.limit = limit.map(|limit| limit.parse().unwrap());
                    &mut case.metric
                }
                "trace" => &mut case.trace,
                "results" => &mut case.results,
                "statistics" => &mut case.statistics,
                "error" => &mut case.error,
                other => panic!("{}: no block is called {other}", case.title),
            };
            assert!(
                block_kind.replace(block).is_none(),
                "{}: {kind} twice",
                case.title
            );
        }
    }
    cases.retain(|case| case.metric.is_some() || case.trace.is_some() || case.error.is_some());
    cases
}

/// A line `user metric with system time` stands for a metric from `user:initial` to `user:final`;
/// `without` for one without system time; with `from EVENT to EVENT` it is between these events.
fn user_metric(line: &str) -> Option<String> {
    let word = line.trim().strip_prefix("user metric ")?;
    let (word, events) = word
        .split_once(" from ")
        .unwrap_or((word, "initial to final"));
    let include_system = match word {
        "with system time" => true,
        "without system time" => false,
        other => panic!("no user metric is {other}"),
    };
    let linux = Catalogue::linux();
    let (initial, r#final) = events.split_once(" to ").expect("from EVENT to EVENT");
    let [initial, r#final] =
        [initial, r#final].map(|event| Pattern::parse_user_event(event, &linux).unwrap());
    let metric = new_user_metric("user_metric", &initial, &r#final, include_system, &linux);
    Some(metric.unwrap().to_string())
}

fn run(case: &OffenceView) {
    let title = &case.title;
    let text = case.metric.as_deref().expect("a case has a metric");
    let user_metric = user_metric(text);
    let text = user_metric.as_deref().unwrap_or(text);
    // A line `system NAME` stands for the file of a built-in metric.
    let text = text.trim().strip_prefix("system ").map_or(text, |name| {
        system_metric_text(name).unwrap_or_else(|| panic!("{title}: no system metric {name}"))
    });
    let specification: Result<Specification, _> = text.parse();
    let known = specification.as_ref().ok().filter(|_| !case.linux);
    let metric = specification
        .clone()
        .and_then(|specification| Metric::new(specification, &catalogue(known)));
    let metric = match (metric, &case.error) {
        (Err(error), Some(expected)) => {
            assert_eq!(error.to_string(), expected.trim(), "{title}");
            return;
        }
        (Err(error), None) => panic!("{title}: refused: {error}"),
        (Ok(_), Some(expected)) => panic!("{title}: accepted, but expected: {expected}"),
        (Ok(metric), None) => metric,
    };
    let printed = metric.to_string();
    let again: Specification = printed
        .parse()
        .unwrap_or_else(|error| panic!("{title}: {error}"));
    assert_eq!(&again, metric.specification(), "{title}");

    let trace = case.trace.as_deref().expect("a case has a trace");
    let lines: Vec<Line> = trace.lines().filter_map(Line::parse).collect();
    let played = play(&metric, &lines, case.limit);
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let results = case.results.as_deref().expect("a case has results");
    let mut expected: Vec<Vec<String>> = results.lines().map(words).collect();
    assert_eq!(
        expected.remove(0),
        HEADER,
        "{title}: the header of the results"
    );
    let actual: Vec<Vec<String>> = played.rows.iter().map(|row| row.words()).collect();
    let show = |rows: &[Vec<String>]| {
        let lines: Vec<String> = rows.iter().map(|row| row.join(" ")).collect();
        lines.join("\n")
    };
    assert_eq!(show(&actual), show(&expected), "{title}");
    for word in case
        .statistics
        .iter()
        .flat_map(|text| text.split_whitespace())
    {
        let (name, value) = word.split_once('=').expect("name=value");
        assert_eq!(
            counter(&played.statistics, name).to_string(),
            value,
            "{title}: {name}"
        );
    }
    if case.limit.is_some() {
        return;
    }
    let known = steps(metric.specification(), &lines);
    assert!(
        !case.covered || known.is_some(),
        "{title}: cannot be covered"
    );
    if let Some((steps, tasks)) = known {
        let (found, left_out) = interpret_all(metric.specification(), &steps, &tasks);
        if case.covered {
            assert!(left_out.is_empty(), "{title}: no trace takes {left_out:?}");
        }
        let found: Vec<Vec<String>> = found
            .iter()
            .map(|found| {
                vec![
                    found.task.to_string(),
                    found.begin.to_string(),
                    found.end.to_string(),
                    found.length.to_string(),
                    found.events.to_string(),
                    found.own.to_string(),
                ]
            })
            .collect();
        let actual: Vec<Vec<String>> = actual.iter().map(|row| row[..6].to_vec()).collect();
        assert_eq!(
            show(&found),
            show(&actual),
            "{title}: the reference disagrees"
        );
    }
}

fn counter(statistics: &MetricStatistics, name: &str) -> u64 {
    match name {
        "completed" => statistics.completed,
        "incomplete" => statistics.incomplete,
        "unfinished" => statistics.unfinished,
        "gaps" => statistics.gaps,
        "missed" => statistics.missed,
        "refused" => statistics.refused,
        "undoubted" => statistics.unattributed_gaps,
        other => panic!("no counter is called {other}"),
    }
}

#[test]
fn specifications_hold() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/specs");
    let (mut count, mut failures) = (0, Vec::new());
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        for case in cases(&name, &fs::read_to_string(&path).unwrap()) {
            // All failures are shown, each by the message of its panic.
            if catch_unwind(|| run(&case)).is_err() {
                failures.push(case.title);
            }
            count += 1;
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    assert!(count >= 40, "only {count} cases were found");
}

#[test]
#[should_panic(expected = "seeded.md: wrong length")]
fn wrong_result_is_found() {
    let text = "# wrong length\n```metric\nmetric m\nevent a = kernel:a task task\nstate 0 out\n\
        state 1 begin\nstate 2 in\nstate 3 end\n0 -> 1: a, i\n1 -> 2: lambda\n2 -> 3: a, i\n```\n\
        ```trace\n1 kernel:a task=1\n5 kernel:a task=1\n```\n\
        ```results\ntask begin end length events own\n1 1 5 3 0 0\n```\n";
    run(&cases("seeded.md", text)[0]);
}
