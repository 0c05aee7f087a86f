// SPDX-License-Identifier: MIT OR Apache-2.0
//! The results of a run: tables for people, JSON for programs.

use std::fmt::Write as _;

use anyhow::{ensure, Context, Result};
use serde::Serialize;

use crate::machine::Machine;
use crate::race::Outcome;

/// The page keeps the tables between these two lines.
const BEGIN: &str = "<!-- figures: begin -->";
const END: &str = "<!-- figures: end -->";

/// Suffix of the name of a contender that is identical to another one. The two results show the
/// error of the measurement.
pub(crate) const AGAIN: &str = ", again";

/// A run.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) machine: Machine,
    pub(crate) rounds: usize,
    pub(crate) skipped: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

/// A contender's figures. Times are nanoseconds per element.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) section: &'static str,
    pub(crate) name: String,
    pub(crate) median_ns: f64,
    /// A quarter of the batches took at most this long,
    pub(crate) lower_quartile_ns: f64,
    /// and a quarter at least this long.
    pub(crate) upper_quartile_ns: f64,
    pub(crate) least_ns: f64,
    pub(crate) against: Option<String>,
    /// The median by that of `against`.
    pub(crate) ratio: Option<f64>,
    pub(crate) target: Option<f64>,
    pub(crate) met: Option<bool>,
    pub(crate) batches: usize,
    /// Number of omitted batches, because the machine disturbed them,
    pub(crate) disturbed: usize,
    /// Whether too few batches were calm, so none was omitted; then no target is judged.
    pub(crate) inconclusive: bool,
}

/// The ratio of two medians; of several races, the median of their ratios.
fn ratio_of(outcome: &Outcome, other: &Outcome) -> f64 {
    let found = outcome.ratio;
    found.unwrap_or_else(|| outcome.median() / other.median())
}

/// Compares each outcome with the reference outcome that it names.
pub(crate) fn rows(outcomes: &[Outcome]) -> Vec<Row> {
    outcomes
        .iter()
        .map(|outcome| {
            let named = |name: &str| {
                outcomes
                    .iter()
                    .find(|other| other.section == outcome.section && other.name == name)
            };
            let other = outcome.against.as_ref().and_then(|name| named(name));
            let ratio = other.map(|other| ratio_of(outcome, other));
            // Two measurements of the same code differ as much as two contenders of equal cost. A
            // target of 1.00 is met within this tolerance.
            let again = other.and_then(|other| named(&format!("{}{AGAIN}", other.name)));
            let same = again.zip(other).map_or(1.0, |(again, other)| {
                let ratio = ratio_of(again, other);
                ratio.max(1.0 / ratio)
            });
            let inconclusive = [Some(outcome), other]
                .into_iter()
                .flatten()
                .any(|outcome| outcome.batches.inconclusive);
            let slack = |target: f64| if target == 1.0 { same } else { target };
            Row {
                section: outcome.section,
                name: outcome.name.clone(),
                median_ns: outcome.median(),
                lower_quartile_ns: outcome.quartiles[0],
                upper_quartile_ns: outcome.quartiles[2],
                least_ns: outcome.least,
                against: other.map(|other| other.name.clone()),
                ratio,
                target: outcome.target,
                // The printed value: the third decimal cannot miss a target of two decimals.
                met: ratio
                    .zip(outcome.target)
                    .filter(|_| !inconclusive)
                    .map(|(ratio, target)| {
                        (ratio * 100.0).round() <= (slack(target) * 100.0).round()
                    }),
                batches: outcome.batches.run,
                disturbed: outcome.batches.disturbed,
                inconclusive,
            }
        })
        .collect()
}

impl Figures {
    /// The run as Markdown.
    pub(crate) fn tables(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "{}: {}, {} CPUs ({}; work on the other one slows a CPU by {:.2}), {}, counter at {:.2} GHz; {} rounds; measured threads {}.\n",
            machine.date,
            machine.cpu,
            machine.cpus,
            if machine.one_core {
                "hyperthreads of one core"
            } else {
                "each a core, by the kernel's topology"
            },
            machine.sibling_slowdown,
            machine.kernel,
            machine.ticks_per_ns,
            self.rounds,
            if machine.fifo {
                "as SCHED_FIFO"
            } else {
                "without precedence (SCHED_FIFO is not permitted)"
            },
        );
        for skipped in &self.skipped {
            let _ = writeln!(text, "\nLeft out: {skipped}.");
        }
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = row.section;
                let _ = write!(
                    text,
                    "\n### {section}\n\n\
                     | | median ns | quartiles | ratio | of | target | met |\n\
                     |---|--:|--:|--:|---|--:|---|\n"
                );
            }
            let _ = writeln!(text, "{}", line(row));
        }
        let run: usize = self.rows.iter().map(|row| row.batches).sum();
        let conclusive = self.rows.iter().filter(|row| !row.inconclusive);
        let disturbed: usize = conclusive.map(|row| row.disturbed).sum();
        let _ = write!(
            text,
            "\nOf {run} batches {disturbed} were left out: an interference probe next to them was slow.\n"
        );
        text.push_str(&targets(&self.rows));
        text.push('\n');
        text
    }
}

/// The number of targets that are met, missed and inconclusive, and the names of the missed ones.
fn targets(rows: &[Row]) -> String {
    let with_target = || rows.iter().filter(|row| row.target.is_some());
    let judged_as = |met: Option<bool>| with_target().filter(move |row| row.met == met);
    let mut text = format!(
        "\nTargets: {}; met: {}, missed: {}, inconclusive: {} (too few calm batches).",
        with_target().count(),
        judged_as(Some(true)).count(),
        judged_as(Some(false)).count(),
        judged_as(None).count(),
    );
    for row in judged_as(Some(false)) {
        let _ = write!(
            text,
            " Missed: {} ({}): {:.2} instead of {:.2}.",
            row.name,
            row.section,
            row.ratio.unwrap_or_default(),
            row.target.unwrap_or_default(),
        );
    }
    text
}

fn line(row: &Row) -> String {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
    let met = match row.met {
        Some(true) => "yes",
        Some(false) => "**no**",
        None if row.inconclusive && row.target.is_some() => "inconclusive",
        None => "",
    };
    format!(
        "| {} | {} | {} to {} | {} | {} | {} | {met} |",
        row.name,
        figure(row.median_ns),
        figure(row.lower_quartile_ns),
        figure(row.upper_quartile_ns),
        number(row.ratio),
        row.against.as_deref().unwrap_or_default(),
        row.target
            .map_or(String::new(), |target| format!("{target:.2}")),
    )
}

/// Three significant digits.
fn figure(ns: f64) -> String {
    let decimals = match ns {
        ns if ns < 10.0 => 2,
        ns if ns < 100.0 => 1,
        _ => 0,
    };
    format!("{ns:.decimals$}")
}

/// The page with these tables instead of the old ones.
pub(crate) fn keep(page: &str, tables: &str) -> Result<String> {
    let (before, rest) = page
        .split_once(BEGIN)
        .with_context(|| format!("the page has no line {BEGIN}"))?;
    let (_, after) = rest
        .split_once(END)
        .with_context(|| format!("the page has no line {END}"))?;
    ensure!(
        !tables.contains(END),
        "the tables would end the place twice"
    );
    // In a page `<T>` would be an element of HTML.
    let tables = tables.replace('<', "&lt;").replace('>', "&gt;");
    Ok(format!("{before}{BEGIN}\n{tables}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::{figure, keep, rows, targets};
    use crate::race::{Batches, Outcome};

    fn outcome(name: &str, median: f64, target: Option<f64>) -> Outcome {
        Outcome {
            section: "one",
            name: name.to_owned(),
            quartiles: [median - 1.0, median, median + 1.0],
            least: 0.0,
            against: Some("floor".to_owned()),
            ratio: None,
            target,
            batches: Batches::default(),
        }
    }

    #[test]
    fn target_is_judged_as_printed() {
        let outcomes = [
            outcome("floor", 10.0, None),
            outcome("good", 11.04, Some(1.1)),
            outcome("bad", 11.06, Some(1.1)),
        ];
        let met: Vec<_> = rows(&outcomes).iter().map(|row| row.met).collect();
        assert_eq!(met, [None, Some(true), Some(false)]);
    }

    #[test]
    fn inconclusive_targets_are_counted_apart() {
        let mut outcomes = [
            outcome("floor", 10.0, None),
            outcome("good", 10.0, Some(1.1)),
            outcome("bad", 12.0, Some(1.1)),
            outcome("busy", 10.0, Some(1.1)),
            outcome("no target", 10.0, None),
        ];
        outcomes[3].batches.inconclusive = true;
        let text = targets(&rows(&outcomes));
        let counts = "Targets: 3; met: 1, missed: 1, inconclusive: 1 ";
        assert!(text.contains(counts), "{text}");
        assert!(
            text.ends_with(" Missed: bad (one): 1.20 instead of 1.10."),
            "{text}"
        );
    }

    #[test]
    fn equality_is_met_within_the_error_of_measurement() {
        let outcomes = [
            outcome("floor", 10.0, None),
            outcome("floor, again", 9.8, None),
            outcome("good", 10.2, Some(1.0)),
            outcome("bad", 10.3, Some(1.0)),
        ];
        let met: Vec<_> = rows(&outcomes).iter().map(|row| row.met).collect();
        assert_eq!(met, [None, None, Some(true), Some(false)]);
    }

    #[test]
    fn page_keeps_the_text_around_the_figures() {
        let page = "a\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nz\n";
        let kept = keep(page, "new\n").unwrap();
        assert_eq!(kept, page.replace("old", "new"));
        assert_eq!(keep(&kept, "new\n").unwrap(), kept);
        assert!(keep(page, "sensor<T>\n")
            .unwrap()
            .contains("\nsensor&lt;T&gt;\n"));
        assert!(keep("nothing", "new").is_err());
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!([0.451, 12.34, 117.8].map(figure), ["0.45", "12.3", "118"]);
    }
}
