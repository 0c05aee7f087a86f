// SPDX-License-Identifier: MIT OR Apache-2.0
//! Overhead of instrumented programs over programs without the pass, as targets have it.
//!
//! `cargo bench -p overhear-ranges --bench overhead -- [REPETITIONS [ROW...]]`. Rows are the
//! programs of `benches/overhead/programs`: one in a single piece and one in bursts after idleness,
//! one of four threads, one of 400 functions; and grep, if `make experiment-smco` has built it.
//! Each repetition is a pair as in the bench `smco`: both programs at the same time on one
//! processor, by user and system time.

#[path = "../smco/run.rs"]
#[expect(dead_code, reason = "the bench smco uses all of it")]
mod run;
#[path = "../smco/statistics.rs"]
#[expect(dead_code, reason = "the bench smco uses all of it")]
mod statistics;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use run::{Budget, Workload};
use statistics::{Mean, Random};

/// What each row is measured with.
const BUDGETS: [Budget; 5] = [
    Budget::Off,
    Budget::Target(2.0),
    Budget::Target(10.0),
    Budget::Target(20.0),
    Budget::Full,
];

/// Rows with a program of this bench: name, program, arguments. A run takes about a second.
const ROWS: [(&str, &str, &str); 4] = [
    ("base", "mixed", "400"),
    ("bursts", "mixed", "400 4"),
    ("threads", "threads", "6000"),
    ("functions", "functions", "40000"),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let (repetitions, chosen) = match arguments.split_first() {
        None => (5, &[][..]),
        Some((count, rows)) => match count.parse() {
            Ok(count) if count >= 2 => (count, rows),
            _ => {
                eprintln!("overhead: {count:?} is no number of repetitions; give 2 or more");
                return ExitCode::from(2);
            }
        },
    };
    let release = release_folder();
    if !release.join("ranges/overhear_ranges_pass.so").is_file() {
        println!(
            "nothing measured: {} has no parts of the range analysis; `make experiment-smco` \
             builds them",
            release.display()
        );
        return ExitCode::SUCCESS;
    }
    match measure(&release, repetitions, chosen) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overhead: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `target/release`: the parent of the folder of this bench.
fn release_folder() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors()
        .nth(2)
        .map(Path::to_owned)
        .unwrap_or_default()
}

fn measure(release: &Path, repetitions: usize, chosen: &[String]) -> Result<(), String> {
    let folder = tempfile::TempDir::new().map_err(|error| error.to_string())?;
    let mut workloads = Vec::new();
    for (name, program, arguments) in ROWS {
        if !chosen.is_empty() && !chosen.iter().any(|row| row == name) {
            continue;
        }
        let plain = build(Path::new("clang-19"), program, folder.path(), "plain")?;
        let wrapper = release.join("overhear-clang");
        let instrumented = build(&wrapper, program, folder.path(), "instrumented")?;
        workloads.push(parse(
            name,
            &format!("\"$PROGRAM\" {arguments}"),
            &plain,
            &instrumented,
        )?);
    }
    let target = release.parent().unwrap_or(release);
    let grep =
        ["plain", "instrumented"].map(|kind| target.join(format!("smco/grep-{kind}/src/grep")));
    if chosen.is_empty() || chosen.iter().any(|row| row == "grep") {
        if grep.iter().all(|program| program.is_file()) {
            let trees = format!(" {}", target.join("foreign").display()).repeat(8);
            let script =
                format!("\"$PROGRAM\" -r 'an[a-z]* uncommon[a-z ]*pattern'{trees}; test $? -le 1");
            workloads.push(parse("grep", &script, &grep[0], &grep[1])?);
        } else {
            println!("grep is not measured: `make experiment-smco` builds it");
        }
    }
    println!("overhead in per cent, {repetitions} pairs, mean with interval of 95 %");
    let mut random = Random::new();
    for workload in &workloads {
        for budget in BUDGETS {
            let mut overheads = Vec::new();
            let mut seconds = Vec::new();
            for _ in 0..repetitions {
                let [observed, plain] = workload.pair(budget, random.coin())?;
                overheads.push(100.0 * (observed.cpu_seconds / plain.cpu_seconds - 1.0));
                seconds.push(plain.cpu_seconds);
            }
            let [overhead, plain]: [Mean; 2] =
                [overheads, seconds].map(|it| it.into_iter().collect());
            println!(
                "{:10} {:6} {overhead:>16.1}   plain {plain:.2} s",
                workload.name,
                budget.to_string()
            );
        }
    }
    Ok(())
}

fn parse(name: &str, script: &str, plain: &Path, instrumented: &Path) -> Result<Workload, String> {
    let text = format!(
        "{name}={script}={}={}",
        plain.display(),
        instrumented.display()
    );
    Workload::parse(&text).ok_or_else(|| format!("{text} is no workload"))
}

fn build(compiler: &Path, program: &str, folder: &Path, kind: &str) -> Result<PathBuf, String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/overhead/programs");
    let built = folder.join(format!("{program}-{kind}"));
    let output = Command::new(compiler)
        .args(["-O2", "-g", "-pthread"])
        .arg(sources.join(format!("{program}.c")))
        .arg("-o")
        .arg(&built)
        .output()
        .map_err(|error| format!("{}: {error}", compiler.display()))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}.c was not compiled: {errors}"));
    }
    Ok(built)
}
