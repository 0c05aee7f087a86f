// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of samples: totals per thread, values per job and per sample, anomalous jobs.

use std::fmt::Write;

use overhear_event::Nanos;
use overhear_session::format::{counted, number, printable};
use overhear_session::samples::{
    JudgedReport, SampledTaskReport, SampledTotal, SampledValues, SamplerReport, SeriesReport,
};

use super::columns::Table;
use super::report::shown;
use super::width::Width;

/// Limit of the anomalies of a sampler that are printed. The page and `--json` have all that are
/// listed.
const MOST_ANOMALIES: usize = 10;

/// The samplers, for lines of this width.
pub(crate) fn render(samplers: &[SamplerReport], width: Width) -> String {
    let parts = samplers.iter().map(|sampler| self::sampler(sampler, width));
    parts.collect::<Vec<_>>().join("\n")
}

fn sampler(sampler: &SamplerReport, width: Width) -> String {
    let mut text = format!(
        "sampler {} of {}: {}, {} missed\n",
        printable(&sampler.name()),
        printable(&sampler.task),
        counted(sampler.samples, "sample", "samples"),
        sampler.missed
    );
    if !sampler.complete {
        text.push_str("  totals are lower bounds: ");
        text.push_str(&shortcomings(sampler));
        text.push('\n');
    }
    let mut tasks: Vec<&SampledTaskReport> = sampler.tasks.iter().collect();
    tasks.sort_by_key(|task| std::cmp::Reverse(task.duration_ns));
    totals(&mut text, sampler, &tasks, width);
    values(&mut text, &tasks, width);
    anomalies(&mut text, sampler);
    text
}

/// Why the totals of a sampler are lower bounds.
fn shortcomings(sampler: &SamplerReport) -> String {
    let missed = sampler.missed_by_cause.iter();
    let missed = missed.map(|(cause, missed)| format!("{missed} {}", printable(cause)));
    let refused = (sampler.refused > 0).then(|| format!("{} of too many threads", sampler.refused));
    missed.chain(refused).collect::<Vec<_>>().join(", ")
}

/// The name of a thread, or of what else was sampled.
fn task_name(task: &SampledTaskReport) -> String {
    match (task.pid, task.tid, task.comm.as_str()) {
        (0, 0, _) => "(system)".to_string(),
        (_, 0, "") => "(process)".to_string(),
        (_, 0, comm) => format!("{} (process)", printable(comm)),
        (_, _, comm) => printable(comm),
    }
}

/// An id, or a dash for none.
fn id(id: u32) -> String {
    match id {
        0 => "-".to_string(),
        id => id.to_string(),
    }
}

fn with_unit(name: &str, unit: &str) -> String {
    match unit {
        "" => printable(name),
        unit => printable(&format!("{name} [{unit}]")),
    }
}

fn totals(text: &mut String, sampler: &SamplerReport, tasks: &[&SampledTaskReport], width: Width) {
    let mut table = Table::new(&[
        ("thread", false),
        ("pid", true),
        ("tid", true),
        ("duration", true),
        ("quantity", false),
        ("total", true),
        ("per second", true),
        ("per cycle", true),
        ("per 1000 instructions", true),
        ("share", true),
    ])
    .keys(3);
    let maybe = |value: Option<f64>| value.map_or_else(|| "-".to_string(), number);
    let bound = if sampler.complete { "" } else { ">= " };
    let all = tasks.iter();
    let all = all.flat_map(|task| task.totals.iter().map(move |total| (*task, total)));
    let all: Vec<(&SampledTaskReport, &SampledTotal)> = all.collect();
    for (task, total) in all.iter().take(shown(all.len())) {
        let is_instructions = total.name == "instructions";
        table.row(vec![
            task_name(task),
            id(task.pid),
            id(task.tid),
            Nanos::from_ns(task.duration_ns).to_string(),
            with_unit(&total.name, &total.unit),
            format!("{bound}{}", total.total),
            maybe(total.per_second),
            maybe(task.ipc.filter(|_| is_instructions)),
            maybe(total.per_1000_instructions),
            total.share.map_or_else(
                || "-".to_string(),
                |share| format!("{:.2} %", share * 100.0),
            ),
        ]);
    }
    show(text, &table, all.len(), "totals", width);
}

fn values(text: &mut String, tasks: &[&SampledTaskReport], width: Width) {
    let mut table = Table::new(&[
        ("thread", false),
        ("tid", true),
        ("per", false),
        ("quantity", false),
        ("count", true),
        ("min", true),
        ("mean", true),
        ("median", true),
        ("p90", true),
        ("p99", true),
        ("max", true),
    ])
    .keys(4);
    let all = tasks.iter().flat_map(|task| {
        let of = |series: &'static str, found: &'_ Option<SeriesReport>| {
            found
                .iter()
                .flat_map(|it| it.values.clone())
                .map(move |values| (series, values))
                .collect::<Vec<_>>()
        };
        let both = of("job", &task.jobs).into_iter();
        let both = both.chain(of("sample", &task.samples));
        both.map(move |(series, values)| (*task, series, values))
    });
    let all: Vec<(&SampledTaskReport, &str, SampledValues)> = all.collect();
    for (task, series, values) in all.iter().take(shown(all.len())) {
        let value = |value: f64| match values.unit.as_str() {
            "ns" if value >= 0.0 => Nanos::from_ns(value.round() as u64).to_string(),
            _ => number(value),
        };
        let unit = match values.unit.as_str() {
            "ns" => "",
            unit => unit,
        };
        table.row(vec![
            task_name(task),
            id(task.tid),
            (*series).to_string(),
            with_unit(&values.name, unit),
            values.count.to_string(),
            value(values.min),
            value(values.mean),
            value(values.median),
            value(values.p90),
            value(values.p99),
            value(values.max),
        ]);
    }
    show(text, &table, all.len(), "values", width);
}

/// Appends a table, and the number of its rows that are left out.
fn show(text: &mut String, table: &Table, rows: usize, of: &str, width: Width) {
    if table.is_empty() {
        return;
    }
    text.push('\n');
    text.push_str(&table.render(width));
    let more = rows - shown(rows);
    if more > 0 {
        let _ = writeln!(text, "... and {more} more {of} (all of them: --json)");
    }
}

fn anomalies(text: &mut String, sampler: &SamplerReport) {
    let judged = || sampler.tasks.iter().filter_map(|task| task.judged.as_ref());
    if judged().next().is_none() {
        return;
    }
    let sum = |of: fn(&JudgedReport) -> u64| judged().map(of).sum::<u64>();
    let count = sum(|it| it.judged);
    text.push('\n');
    if count == 0 {
        let _ = writeln!(
            text,
            "anomalies: nothing was judged; a thread is judged from its job {} on",
            sampler.judged_from
        );
    } else {
        let _ = writeln!(
            text,
            "anomalies: {} of {count} judged jobs are anomalous; a thread is judged from its job {} on",
            sum(|it| it.anomalous),
            sampler.judged_from
        );
    }
    for anomaly in sampler.anomalies.iter().take(MOST_ANOMALIES) {
        let _ = writeln!(text, "  {}", printable(&anomaly.message));
    }
    let listed = sampler.anomalies.len().saturating_sub(MOST_ANOMALIES) as u64;
    let more = listed + sampler.anomalies_not_listed;
    if more > 0 {
        let _ = writeln!(text, "  ... and {more} more");
    }
    if sampler.not_judged > 0 {
        let _ = writeln!(
            text,
            "  {} jobs of too many threads were not judged",
            sampler.not_judged
        );
    }
}
