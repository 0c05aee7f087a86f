// SPDX-License-Identifier: MIT OR Apache-2.0
//! Races that are run again in fresh processes.
//!
//! If a measurement depends on cache misses or on shared cache lines, it depends on the physical
//! pages of the process until the process ends: five floors of the same instructions then differ by
//! a third. More rounds in one process do not help. A few processes help, each with other pages,
//! and the median over them of each figure. A ratio is taken within each process, where both
//! alternated, and the median of these ratios counts.

use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use crate::race::{Batches, Outcome};

/// The port on which a client of Tracy listens. This process has a client at the usual port, which
/// accepts a single profiler in its life; the clients of other processes need another port.
pub(crate) const TRACY_PORT: &str = "TRACY_PORT";
const PORT_OF_OTHERS: &str = "8096";

/// Number of processes that run a part.
const PROCESSES: usize = 7;

/// Runs this part of the bench in processes of its own, and combines what they found in this
/// section.
///
/// They need the CPUs and the ports of the peers that this process is to have, so they come before
/// it takes any.
pub(crate) fn race(part: &str, section: &'static str, rounds: usize) -> Result<Vec<Outcome>> {
    let process = |_| in_a_process(part, section, rounds / PROCESSES + 1);
    let found: Vec<_> = (0..PROCESSES).map(process).collect::<Result<_>>()?;
    Ok(combine(&found))
}

fn in_a_process(part: &str, section: &'static str, rounds: usize) -> Result<Vec<Outcome>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("figures.json");
    let status = Command::new(std::env::current_exe()?)
        .args(["--only", part, "--rounds", &rounds.to_string(), "--json"])
        .arg(&file)
        .env(TRACY_PORT, PORT_OF_OTHERS)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(
        status.success(),
        "the process of part {part} failed: {status}"
    );
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    let rows = figures["rows"].as_array().context("no rows")?;
    rows.iter()
        .filter(|row| row["section"] == section)
        .map(|row| outcome(section, row).context("a row is not whole"))
        .collect()
}

fn outcome(section: &'static str, row: &Value) -> Option<Outcome> {
    let number = |name: &str| row[name].as_f64();
    Some(Outcome {
        section,
        name: row["name"].as_str()?.to_owned(),
        quartiles: [
            number("lower_quartile_ns")?,
            number("median_ns")?,
            number("upper_quartile_ns")?,
        ],
        least: number("least_ns")?,
        against: row["against"].as_str().map(str::to_owned),
        ratio: number("ratio"),
        target: row["target"].as_f64(),
        batches: Batches {
            run: row["batches"].as_u64()? as usize,
            disturbed: row["disturbed"].as_u64()? as usize,
            inconclusive: row["inconclusive"].as_bool()?,
        },
    })
}

/// The median over the processes of each figure of each contender. Processes that were too busy are
/// omitted, unless most were.
fn combine(processes: &[Vec<Outcome>]) -> Vec<Outcome> {
    let Some(first) = processes.first() else {
        return Vec::new();
    };
    let combined = |one: &Outcome| {
        let all: Vec<_> = processes
            .iter()
            .flatten()
            .filter(|other| other.name == one.name)
            .collect();
        let conclusive: Vec<_> = all.iter().filter(|it| !it.batches.inconclusive).collect();
        let inconclusive = conclusive.len() * 2 <= all.len();
        let counted = if inconclusive {
            all.iter().collect()
        } else {
            conclusive
        };
        let of = |figure: &dyn Fn(&Outcome) -> f64| {
            median(counted.iter().map(|outcome| figure(outcome)).collect())
        };
        let ratios: Vec<_> = counted.iter().filter_map(|outcome| outcome.ratio).collect();
        Outcome {
            quartiles: [0, 1, 2].map(|at| of(&|outcome| outcome.quartiles[at])),
            least: of(&|outcome| outcome.least),
            ratio: (!ratios.is_empty()).then(|| median(ratios)),
            batches: Batches {
                run: all.iter().map(|it| it.batches.run).sum(),
                disturbed: all.iter().map(|it| it.batches.disturbed).sum(),
                inconclusive,
            },
            ..one.clone()
        }
    };
    first.iter().map(combined).collect()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::combine;
    use crate::race::{Batches, Outcome};

    fn outcome(median: f64, inconclusive: bool) -> Outcome {
        Outcome {
            section: "section",
            name: "one".to_owned(),
            quartiles: [median - 1.0, median, median + 1.0],
            least: median - 2.0,
            against: Some("other".to_owned()),
            ratio: Some(median / 10.0),
            target: Some(1.0),
            batches: Batches {
                run: 10,
                disturbed: 1,
                inconclusive,
            },
        }
    }

    #[test]
    fn median_of_the_processes_counts() {
        let runs = [40.0, 90.0, 50.0].map(|median| vec![outcome(median, false)]);
        let combined = combine(&runs);
        assert_eq!(combined.len(), 1);
        assert_eq!(combined[0].quartiles, [49.0, 50.0, 51.0]);
        assert_eq!(combined[0].ratio, Some(5.0));
        assert_eq!(combined[0].batches.run, 30);
        assert_eq!(combined[0].batches.disturbed, 3);
        assert!(!combined[0].batches.inconclusive);
    }

    #[test]
    fn busy_processes_are_left_out_unless_most_were() {
        let runs = [(40.0, false), (90.0, true), (50.0, false)]
            .map(|(median, busy)| vec![outcome(median, busy)]);
        assert_eq!(combine(&runs)[0].quartiles[1], 50.0);
        let runs = [(40.0, false), (90.0, true), (50.0, true)]
            .map(|(median, busy)| vec![outcome(median, busy)]);
        assert_eq!(combine(&runs)[0].quartiles[1], 50.0);
        assert!(combine(&runs)[0].batches.inconclusive);
    }
}
