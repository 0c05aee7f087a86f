// SPDX-License-Identifier: MIT OR Apache-2.0
//! The compensation of a real run: a workload that switches a lot, with and without a monitor, in turns.
//!
//! Monitored it takes longer; what is left of that after the compensation should be nothing. The time is
//! what a quarter of the workload's laps do not exceed, by its own clock. By how much a lap becomes
//! shorter comes from the recording: between the elements that the workload writes at its begin and end, plain
//! and compensated.
//!
//! As a test it makes few pairs, and asserts what holds on any machine that is calm enough to show a difference at
//! all; where it is not it says so. With `OVERHEAR_COMPENSATION_BENCH=41` it makes so many pairs, prints
//! what came of them, and fails if the workload was too weak or the compensation has missed (`make bench`).

mod workload;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use overhear_cli::calibrate::{lower_quartile, Calibration};
use overhear_event::kernel::{SCHED_SWITCH, SCHED_WAKE};
use overhear_metrics::Estimate;
use overhear_monitor::scheduler::run_on;
use tempfile::TempDir;

use workload::{cpus, laps_in, steps_in, Work, SENSOR};

const OVERHEAR: &str = env!("CARGO_BIN_EXE_overhear");

/// The exit status of a run of which something was missed.
const INCONCLUSIVE: i32 = overhear_cli::exit::INCONCLUSIVE as i32;

/// A try that takes longer is not repeated.
const PATIENCE: Duration = Duration::from_secs(8);

/// How long a thread of the workload works with the byte.
const WORK: Duration = Duration::from_micros(6);

/// How the pairs are made.
#[derive(Clone, Copy, Debug)]
struct Plan {
    pairs: usize,
    rounds: usize,
    work: Work,
}

/// What the pairs have in common: differences by the plain run's time.
#[derive(Clone, Copy, Debug)]
struct Differences {
    /// Monitored less plain.
    uncompensated: Estimate,
    /// Monitored and compensated less plain.
    compensated: Estimate,
    /// By how much plain runs differ from their median, in the middle.
    restless: f64,
    /// The standard deviation of the prices of switches and wake-ups by their means; the larger one.
    prices_vary: f64,
}

impl Differences {
    /// Whether what is looked for can be told from what else the machine does: neither the workload alone nor
    /// the differences nor the prices vary by much of it.
    fn is_calm(&self) -> bool {
        self.restless < 0.03
            && self.prices_vary < 0.2
            && self.uncompensated.within_ns < self.uncompensated.mean_ns / 3.0
    }
}

/// A program bound to the CPU beside the workload's: everything that is not the workload. The workload
/// binds itself.
fn beside(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stderr(Stdio::piped());
    command
}

fn output(command: &mut Command) -> (i32, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let status = output.status.code().unwrap_or(-1);
    (status, text(output.stdout), text(output.stderr))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What a quarter of the laps do not exceed: what disturbs others is not what is measured.
fn undisturbed(laps: &[u64]) -> f64 {
    let laps: Vec<f64> = laps.iter().map(|lap| *lap as f64).collect();
    lower_quartile(&laps)
}

/// The workload alone.
fn plain(work: Work) -> f64 {
    let (program, arguments) = work.program();
    let mut command = beside(program);
    work.ask(command.args(arguments));
    let (status, told, complaint) = output(&mut command);
    assert_eq!(status, 0, "{complaint}");
    undisturbed(&laps_in(&told))
}

/// The lengths of the laps in a recording, between the elements that the workload has written.
fn recorded(out: &Path, options: &[&str]) -> Vec<u64> {
    let mut command = beside(OVERHEAR);
    command.arg("export").arg(out).args(options);
    command.args(["--to", "csv", "--sensor", SENSOR, "--output", "-"]);
    let (_, rows, complaint) = output(&mut command);
    let mut rows = rows.lines();
    let heads: Vec<&str> = rows
        .next()
        .unwrap_or_else(|| panic!("{complaint}"))
        .split(',')
        .collect();
    let column = heads.iter().position(|head| *head == "time_ns").unwrap();
    let times: Vec<u64> = rows
        .map(|row| row.split(',').nth(column).unwrap().parse().unwrap())
        .collect();
    times
        .chunks_exact(2)
        .map(|edges| edges[1] - edges[0])
        .collect()
}

/// The workload under a monitor: how long a lap took by its own clock, and how long it would have. `None`
/// if something was missed, as where the monitor was kept from running.
fn monitored(work: Work, calibration: &Path, out: &Path) -> Result<Option<(f64, f64)>, String> {
    let _ = std::fs::remove_dir_all(out);
    let (program, arguments) = work.program();
    let mut command = beside(OVERHEAR);
    command.args(["run", "--via", "bpf", "--quiet", "--calibration"]);
    command.arg(calibration).arg("--out").arg(out).arg("--");
    work.ask(command.arg(program).args(arguments));
    let (status, told, complaint) = output(&mut command);
    if status == INCONCLUSIVE {
        return Ok(None);
    }
    if status != 0 {
        return Err(format!("status {status}: {complaint}"));
    }
    let laps = laps_in(&told);
    let (before, after) = (recorded(out, &[]), recorded(out, &["--compensate"]));
    assert_eq!((before.len(), after.len()), (work.laps, work.laps));
    // The workload's own clock counts: by how much a lap shrinks comes from the recording.
    let shrunk = laps.iter().zip(before).zip(after);
    let compensated: Vec<u64> = shrunk
        .map(|((lap, before), after)| (lap + after).saturating_sub(before))
        .collect();
    Ok(Some((undisturbed(&laps), undisturbed(&compensated))))
}

/// A calibration of this machine as it is now. Returns by how much its prices vary.
fn calibrate(rounds: usize, file: &Path) -> Result<f64, String> {
    let mut command = beside(OVERHEAR);
    command.args(["calibrate", "--rounds", &rounds.to_string(), "--output"]);
    let (status, _, complaint) = output(command.arg(file).arg("--json"));
    if status != 0 {
        return Err(complaint);
    }
    let json = std::fs::read(file).unwrap();
    let found: Calibration = serde_json::from_slice(&json).unwrap();
    let mut varies: f64 = 0.0;
    for sensor in [SCHED_SWITCH, SCHED_WAKE] {
        let Some(cost) = found.kernel.iter().find(|cost| cost.sensor == sensor) else {
            return Err(found.notes.join("; "));
        };
        varies = varies.max(cost.firing.deviation_ns / cost.firing.mean_ns.max(1.0));
    }
    Ok(varies)
}

fn pairs(plan: Plan, place: &TempDir) -> Result<Differences, String> {
    let (file, out) = (
        place.path().join("calibration.json"),
        place.path().join("out"),
    );
    let prices_vary = calibrate(plan.rounds, &file)?;
    let (mut uncompensated, mut compensated, mut times) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..2 * plan.pairs {
        if times.len() == plan.pairs {
            break;
        }
        let before = (pair % 2 == 0).then(|| plain(plan.work));
        let Some((with, without)) = monitored(plan.work, &file, &out)? else {
            continue;
        };
        let alone = before.unwrap_or_else(|| plain(plan.work));
        times.push(alone);
        uncompensated.push(with / alone - 1.0);
        compensated.push(without / alone - 1.0);
    }
    if times.len() < plan.pairs {
        return Err("machine lateness: the monitor misses elements".to_string());
    }
    let usual = median(times.clone());
    let restless = median(
        times
            .iter()
            .map(|time| (time / usual - 1.0).abs())
            .collect(),
    );
    Ok(Differences {
        uncompensated: Estimate::of(&uncompensated).unwrap(),
        compensated: Estimate::of(&compensated).unwrap(),
        restless,
        prices_vary,
    })
}

fn percent(estimate: &Estimate) -> String {
    format!(
        "{:+.2} % ± {:.2} %",
        estimate.mean_ns * 100.0,
        estimate.within_ns * 100.0
    )
}

#[test]
fn what_observing_adds_is_taken_away() {
    let Some((cpu, other)) = cpus() else {
        println!("skipped: there is one CPU");
        return;
    };
    run_on(cpu).unwrap();
    let steps = steps_in(WORK);
    // Whatever this test starts inherits it.
    run_on(other).unwrap();
    let place = tempfile::tempdir().unwrap();
    let asked = std::env::var("OVERHEAR_COMPENSATION_BENCH").ok();
    if let Some(pairs) = asked.and_then(|pairs| pairs.parse().ok()) {
        bench(pairs, cpu, steps, &place);
        return;
    }
    let plan = Plan {
        pairs: 5,
        rounds: 3,
        work: Work {
            laps: 20,
            trips: 200,
            steps,
            cpu,
        },
    };
    let mut wrong = Vec::new();
    for _ in 0..3 {
        let begun = Instant::now();
        let found = match self::pairs(plan, &place) {
            Ok(found) => found,
            Err(reason) => {
                println!("skipped: {reason}");
                return;
            }
        };
        let (with, without) = (found.uncompensated, found.compensated);
        let told = format!(
            "uncompensated {}, compensated {}",
            percent(&with),
            percent(&without)
        );
        println!("{told}");
        if !found.is_calm() {
            // Where it takes so long, the machine will not become calm soon.
            if begun.elapsed() > PATIENCE {
                break;
            }
            continue;
        }
        assert!(with.mean_ns > 0.03, "workload too weak: {told}");
        // The prices come from few rounds here. Most of what was added has to go all the same.
        if without.mean_ns.abs() < with.mean_ns / 2.0 {
            return;
        }
        wrong.push(told);
    }
    assert!(
        wrong.len() < 3,
        "compensated three times by the wrong time: {wrong:?}"
    );
    println!(
        "skipped: machine lateness: what observing adds cannot be told from what else happens"
    );
}

/// As many pairs as asked for.
fn bench(pairs: usize, cpu: u32, steps: usize, place: &TempDir) {
    let plan = Plan {
        pairs,
        rounds: 41,
        work: Work {
            laps: 60,
            trips: 200,
            steps,
            cpu,
        },
    };
    let found = self::pairs(plan, place);
    let found = match found {
        Ok(found) => found,
        Err(reason) => {
            println!("left out: {reason}");
            return;
        }
    };
    let (with, without) = (&found.uncompensated, &found.compensated);
    println!("| {pairs} pairs, by the time without a monitor | difference, 99 % |");
    println!("|---|--:|");
    println!("| uncompensated | {} |", percent(with));
    println!("| compensated | {} |", percent(without));
    println!("target: the first at least 3 % and not 0, the second contains 0 and is within 1 %");
    println!(
        "plain runs differ by {:.2} % in the middle, prices by {:.0} %",
        found.restless * 100.0,
        found.prices_vary * 100.0
    );
    assert!(
        with.mean_ns >= 0.03 && !with.may_be_zero(),
        "workload too weak"
    );
    let farthest = without.mean_ns.abs() + without.within_ns;
    assert!(
        without.may_be_zero() && farthest <= 0.01,
        "the compensation leaves up to {:.2} %",
        farthest * 100.0
    );
}
