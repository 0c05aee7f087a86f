// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results as Markdown with a picture.

use std::fmt::Write;
use std::path::Path;

use crate::idleness::Idleness;
use crate::results::Results;
use crate::row::{Row, Verdict};
use crate::{TARGETS, WORKLOADS};

pub(crate) const HEAD: &str = "\
| workload | target | observed | estimated by the report | verdict | all observed | writes made | step without sensor |
|---|--:|--:|--:|---|--:|--:|--:|";

const ABOUT: &str = "\
# Experiment: budgets on sensors of programs

`make experiment-budget` measures this page. *Observed* is the CPU time (user and system) of a program with a budget over that of the
same program without sensors, less one. Both run the same steps in turns of 0.1 s, at the same time (programs with one thread on one
CPU), beside a third process that is observed in full. Each row has several such groups; the interval contains the mean over groups by 95 % (Student's distribution).

| verdict | meaning |
|---|---|
| met | the whole interval is at most 1 point from the target, 3 points at 100 %, 0.2 points at 0 % |
| not met | the whole interval is farther away |
| inconclusive | neither: the machine is too noisy |

Where everything costs less than the target (a second row of 10 %), the verdict requires at least 90 % of the writes, and no lower
limit. The rest of the writes falls into the intervals that are off while prices are learned: a run has some 5 s of CPU time.

- *steady*: one thread, one sensor.
- *threads*: four threads, one sensor with lanes.
- *bursty*: as steady, with 50 ms of idleness before each 50 ms of load.
- *sensors*: 400 sensors in one thread, with very different rates.

An element has 2 kB, so that large targets need no program that only writes. The work between two writes is chosen for each target, so
that observing everything costs about twice the target.
";

/// A line of the table.
pub(crate) fn line(row: &Row) -> String {
    format!(
        "| {} | {} % | {} | {} | {} | {} | {:.1} % | {:.0} ns |",
        row.workload,
        row.target,
        row.observed,
        row.estimated,
        word(row.verdict()),
        row.full,
        row.share_on.mean * 100.0,
        row.step_ns,
    )
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::NotMet => "not met",
        Verdict::Inconclusive => "inconclusive",
    }
}

/// A sentence.
pub(crate) fn idleness(it: &Idleness) -> String {
    format!(
        "After 60 s without load, the window in which the first burst began has an overhead of \
         {:.2} % by the report, at a target of {} %. The largest overhead of a window is {:.2} %: \
         {}.",
        it.first_window * 100.0,
        it.target,
        it.worst_window * 100.0,
        if it.is_met() {
            "observed, and below twice the target"
        } else {
            "not met"
        },
    )
}

/// Writes the page and, beside it, the picture.
pub(crate) fn write(path: &Path, results: &Results) {
    let picture = path.with_extension("svg");
    let mut text = format!("{ABOUT}\n");
    let name = picture.file_name().unwrap_or_default().to_string_lossy();
    let _ = writeln!(
        text,
        "![observed overhead against target]({name})\n\n{HEAD}"
    );
    for name in WORKLOADS {
        for row in sorted(results, name) {
            let _ = writeln!(text, "{}", line(row));
        }
    }
    if let Some(it) = &results.idleness {
        let _ = writeln!(text, "\n## A burst after idleness\n\n{}", idleness(it));
    }
    let groups = results.rows.iter().map(|row| row.groups).min().unwrap_or(0);
    let _ = writeln!(
        text,
        "\n## Machine\n\n{}; at least {groups} groups per row.",
        machine()
    );
    std::fs::write(path, text).expect("the page can be written");
    std::fs::write(&picture, svg(results)).expect("the picture can be written");
}

fn sorted<'a>(results: &'a Results, name: &str) -> Vec<&'a Row> {
    let mut rows: Vec<&Row> = results
        .rows
        .iter()
        .filter(|row| row.workload == name)
        .collect();
    rows.sort_by(|one, other| {
        let key = |row: &Row| (row.is_above_full, row.target);
        key(one)
            .partial_cmp(&key(other))
            .expect("targets are numbers")
    });
    rows
}

fn machine() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model.map_or("an unknown CPU", |it| {
        it.trim_start_matches([' ', '\t', ':'])
    });
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cpus} CPUs")
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 60.0;
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// The distance from the target in points, by target.
fn svg(results: &Results) -> String {
    let y = |points: f64| 140.0 - points.clamp(-4.0, 4.0) * 30.0;
    let columns = TARGETS.len() as f64;
    let column = (WIDTH - LEFT - 10.0) / columns;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    for points in [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0] {
        let at = y(points);
        let colour = if points == 0.0 { "#000000" } else { "#dddddd" };
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" y1=\"{at}\" x2=\"{WIDTH}\" y2=\"{at}\" stroke=\"{colour}\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{points:+}</text>",
            LEFT - 6.0,
            at + 4.0,
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"14\" y=\"140\" transform=\"rotate(-90 14 140)\" text-anchor=\"middle\">\
         observed - target, points</text>"
    );
    for (at, target) in TARGETS.into_iter().enumerate() {
        let x = LEFT + (at as f64 + 0.5) * column;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"278\" text-anchor=\"middle\">{target} %</text>"
        );
        for (number, name) in WORKLOADS.into_iter().enumerate() {
            let rows = sorted(results, name);
            let row = rows
                .iter()
                .find(|row| row.target == target && !row.is_above_full);
            let Some(row) = row else { continue };
            let x = x + (number as f64 - 1.5) * 12.0;
            let colour = COLOURS[number];
            let points = |overhead: f64| y(overhead * 100.0 - target);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" y1=\"{:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"{colour}\" \
                 stroke-width=\"2\"/><circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>",
                points(row.observed.low()),
                points(row.observed.high()),
                points(row.observed.mean),
            );
        }
    }
    for (number, name) in WORKLOADS.into_iter().enumerate() {
        let x = LEFT + number as f64 * 120.0;
        let colour = COLOURS[number];
        let _ = writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"304\" r=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"308\">{name}</text>",
            x + 10.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}
