// SPDX-License-Identifier: MIT OR Apache-2.0
//! The page of the experiments: Markdown with SVG beside it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use crate::plot::{plot, Axes, Line};
use crate::run::{Budget, Workload};
use crate::statistics::Mean;
use crate::{Point, Results};

/// A table or figure of the paper that these experiments have no counterpart of, and the reason.
const MISSING: &str = "\
| figure or table | reason |
|---|---|
| 15, 17 (global controller) | the runtime has one control law; the paper's controllers are simulated in \
`crates/overhear-budget/tests/paper.rs` |
| 18, table 2 | non-accessed periods are another tool |
| 19, 20 | no clock thread stamps updates: there is no clock frequency to choose |
| 21 to 25 | the law has no gain and no adjustment interval to choose |
";

pub(crate) fn write(page: &Path, repetitions: usize, all: &[Results]) -> io::Result<()> {
    let folder = page.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut text = format!(
        "# The experiments of SMCO, with integer ranges\n\n\
         `make experiment-smco` writes this page: the range analysis on the workloads of the paper [SMCO, section 4]. There are \
         {repetitions} runs\nof each configuration in random order, each at the same time and on the same processor as a run of the \
         plain program. Overhead is user\nand system time over that of the plain run. Intervals are of 95 % by Student's \
         t-distribution. The base overhead of the plain copies is\nnot in the budget, because a program cannot see it: it is the row \
         *off*, and adds to the others.\n\n\
         The paper's numbers are of another machine, compiler and input: a base overhead of 4 %, and observed overheads at their \
         targets from 10 % on,\nup to 140 % for bzip2 with the global controller and 100 % with the cascade controller; 9 % at most \
         for grep [SMCO, section 4.3].\n\n"
    );
    for results in all {
        workload(&mut text, folder, results)?;
    }
    table_1(&mut text, all);
    let _ = write!(text, "## Not repeated\n\n{MISSING}");
    fs::write(page, text)
}

fn workload(text: &mut String, folder: &Path, results: &Results) -> io::Result<()> {
    let name = &results.workload.name;
    let _ = writeln!(
        text,
        "## {name}\n\nThe plain program takes {:.2} s.\n",
        results.plain_seconds
    );
    let _ = writeln!(
        text,
        "| target | observed overhead in % | own estimate in % | updates recorded | accuracy |\n|---|---|---|---|---|"
    );
    for point in &results.points {
        let estimate = point
            .estimate
            .map_or("-".to_owned(), |it| format!("{it:.2}"));
        let accuracy = match point.budget {
            Budget::Off => "-".to_owned(),
            _ => format!("{:.3}", point.accuracy),
        };
        let _ = writeln!(
            text,
            "| {} | {:.2} | {estimate} | {:.3e} | {accuracy} |",
            point.budget, point.overhead, point.updates.value
        );
    }
    text.push('\n');
    let mut figure = |number: &str, caption: &str, svg: String| -> io::Result<()> {
        let file = format!("smco-{number}-{name}.svg");
        fs::write(folder.join(&file), svg)?;
        let _ = writeln!(text, "![{caption}]({file})\n\n*{caption}*\n");
        Ok(())
    };
    figure(
        "16",
        &format!("Figure 16, {name}: observed overhead against target"),
        overhead_plot(results),
    )?;
    if let Some(point) = results
        .points
        .iter()
        .find(|it| it.budget == Budget::Target(10.0))
    {
        figure(
            "17",
            &format!("Figure 17, {name}: accuracy at a target of 10 % by number of updates"),
            accuracy_plot(point),
        )?;
    }
    for (index, (variable, buckets)) in results.histograms.iter().enumerate() {
        let rank = [
            "the most updated variable",
            "the 99th most updated variable",
        ][index.min(1)];
        let points = buckets.iter().enumerate();
        let line = Line {
            name: variable,
            points: points
                .map(|(at, count)| (0.4 * at as f64, *count, 0.0))
                .collect(),
            is_ideal: false,
        };
        let axes = Axes {
            title: rank,
            x: "time in s",
            y: "updates in 0.4 s",
        };
        figure(
            ["14a", "14b"][index.min(1)],
            &format!("Figure 14, {name}: updates of {rank} over time, everything recorded"),
            plot(&axes, &[line]),
        )?;
    }
    Ok(())
}

fn overhead_plot(results: &Results) -> String {
    let targets = results
        .points
        .iter()
        .filter_map(|point| match point.budget {
            Budget::Off => Some((0.0, point.overhead)),
            Budget::Target(percent) => Some((percent, point.overhead)),
            Budget::Full => None,
        });
    let full = results.points.iter().find(|it| it.budget == Budget::Full);
    let most = full.map_or(f64::INFINITY, |it| it.overhead.value);
    let ideal = [0.0, most.min(50.0), 50.0].map(|target| (target, target.min(most), 0.0));
    let axes = Axes {
        title: "observed overhead against target",
        x: "target in %",
        y: "observed in %",
    };
    let points = targets
        .map(|(target, mean)| (target, mean.value, mean.half))
        .collect();
    plot(
        &axes,
        &[
            Line {
                name: "observed",
                points,
                is_ideal: false,
            },
            Line {
                name: "ideal",
                points: ideal.to_vec(),
                is_ideal: true,
            },
        ],
    )
}

fn accuracy_plot(point: &Point) -> String {
    let line = |(power, mean, _): &(u32, Mean, usize)| (f64::from(*power), mean.value, mean.half);
    let mut sum = (0.0, 0.0);
    let mut cumulative = Vec::new();
    for (power, mean, count) in &point.by_updates {
        sum = (sum.0 + mean.value * *count as f64, sum.1 + *count as f64);
        cumulative.push((f64::from(*power), sum.0 / sum.1, 0.0));
    }
    let axes = Axes {
        title: "accuracy by number of updates",
        x: "power of ten of the number of updates",
        y: "accuracy",
    };
    plot(
        &axes,
        &[
            Line {
                name: "by group",
                points: point.by_updates.iter().map(line).collect(),
                is_ideal: false,
            },
            Line {
                name: "cumulative",
                points: cumulative,
                is_ideal: true,
            },
        ],
    )
}

fn table_1(text: &mut String, all: &[Results]) {
    text.push_str(
        "## Table 1: memory\n\nSizes of programs are without debug information, and without their shared libraries.\n\n\
         | program | file | resident, largest |\n|---|---|---|\n",
    );
    let kib = |path: &Path| {
        Workload::stripped_bytes(path).map_or("-".to_owned(), |bytes| {
            format!("{:.0} KiB", bytes as f64 / 1024.0)
        })
    };
    for results in all {
        let name = &results.workload.name;
        let _ = writeln!(
            text,
            "| {name}, plain | {} | {:.0} KiB |",
            kib(&results.workload.plain),
            results.plain_resident_kib
        );
        for point in &results.points {
            let _ = writeln!(
                text,
                "| {name}, {} | {} | {:.0} KiB |",
                point.budget,
                kib(&results.workload.instrumented),
                point.resident_kib
            );
        }
    }
    text.push_str(
        "\nIn the paper: bzip2 68.6 KB plain, 262 KB instrumented; resident 207 and 201 KB. grep 89.2 and 314 KB; 1260 and \
         1470 KB.\n\n",
    );
}
