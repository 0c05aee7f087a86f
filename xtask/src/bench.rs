// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs `bench`, `stress` and `hostile`: measurements that no test asserts.
//!
//! `bench` builds the package `benches` with the peers that build here, and runs it. The package is
//! a workspace of its own, so that nobody else compiles the peers. One that does not build, or
//! whose Debian package is missing, is left out with a message. Benches of single crates are
//! targets of these. `stress` runs that of `overhear-monitor` for longer than its test does.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use crate::packages::{self, BUILD, OBSERVED, PEERS};
use crate::workspace::Workspace;
use crate::{python, shell};

/// Peers that cargo fetches and builds: features of the package.
const CRATES: [&str; 3] = ["tracy", "perfetto", "iceoryx2"];
/// The peer of Debian.
const LTTNG: &str = "lttng";

/// Measures, and prints the figures. With a page as argument, keeps the tables in it.
pub(crate) fn bench(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut peers = CRATES.to_vec();
    match packages::ensure(&[PEERS]) {
        Ok(()) => peers.push(LTTNG),
        Err(reason) => println!("LTTng-UST is left out: {reason:#}"),
    }
    if !builds(workspace, &peers) {
        // Each separately, to find the failing one.
        peers.retain(|peer| {
            let built = builds(workspace, &[peer]);
            if !built {
                println!(
                    "{peer} is left out: it does not build here (cargo prints the reason above)."
                );
            }
            built
        });
    }
    let mut command = cargo(workspace, "run", &peers);
    let json = workspace.target.join("benchmarks.json");
    command.arg("--").arg("--json").arg(&json);
    if let Some(page) = arguments.first() {
        command.arg("--keep").arg(workspace.root.join(page));
    }
    let left = Leftovers::before();
    let measured = shell::run(&mut command);
    left.remove();
    measured?;
    println!("\nThe directory, many sensors and many lanes:\n");
    if let Err(reason) = crate_bench(workspace, "overhear-directory", "many_sensors") {
        println!("Left out: {reason:#}.");
    }
    println!("\nPython, a trace read into numpy arrays:\n");
    if let Err(reason) = replay_speed(workspace) {
        println!("Left out: {reason:#}.");
    }
    println!("\nMetrics over a recording, compared with other readers:\n");
    if let Err(reason) = crate_bench(workspace, "overhear-trace", "metrics_speed") {
        println!("Left out: {reason:#}.");
    }
    println!("\nThe kernel, what recording its context switches adds to them:\n");
    if let Err(reason) = crate_bench(workspace, "overhear-kernel", "switch_cost") {
        println!("Left out: {reason:#}.");
    }
    println!("\nResponse times of fifteen periodic tasks, computed and observed:\n");
    if let Err(reason) = experiment(workspace, &[]) {
        println!("Left out: {reason:#}.");
    }
    println!("\nCompensation, what is left of what a monitor adds to a run:\n");
    let compensated = compensation(workspace);
    println!("\nThe page, how long it takes to open:\n");
    if let Err(reason) = pages(workspace) {
        println!("Left out: {reason:#}.");
    }
    println!("\nThe figures for programs are in {}.", json.display());
    compensated
}

/// Runs a bench of a crate with its standard sizes.
fn crate_bench(workspace: &Workspace, package: &str, name: &str) -> Result<()> {
    let mut cargo = shell::cargo(&workspace.root);
    shell::run(cargo.args(["bench", "--quiet", "-p", package, "--bench", name]))
}

/// Builds a bench of a crate. Returns the program.
fn built_bench(workspace: &Workspace, package: &str, name: &str) -> Result<PathBuf> {
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args([
        "bench", "--quiet", "--no-run", "-p", package, "--bench", name,
    ]);
    let mut program = None;
    let status = shell::stream(cargo.arg("--message-format=json"), |line| {
        program = executable(line, name).or_else(|| program.take());
        false
    })?;
    ensure!(status.success(), "the bench {name} does not build");
    program.with_context(|| format!("cargo does not name the program of the bench {name}"))
}

/// The program of a bench, if this line of cargo's JSON names it.
fn executable(line: &str, name: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let is_bench = target["name"] == name && target["kind"][0] == "bench";
    let program = message["executable"].as_str().filter(|_| is_bench)?;
    Some(program.into())
}

/// Python's readers next to the Rust reader.
fn replay_speed(workspace: &Workspace) -> Result<()> {
    let floor = built_bench(workspace, "overhear-trace", "replay_count")?;
    python::replay_speed(workspace, &floor)
}

/// The experiment of [POSIX-metrics, section 4], for a minute or the given number of seconds: a
/// bench that is also a test. Its table is that of docs/response-times.md.
pub(crate) fn experiment(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let name = "experiment::observed_response_times_are_at_most_the_computed_ones";
    periodic_tasks(workspace, arguments, name)
}

/// The same by POSIX trace streams: a stream with a log, and metrics over that log.
pub(crate) fn experiment_posix(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let name = "posix_experiment::metrics_of_a_log_give_the_tables_of_the_experiment";
    periodic_tasks(workspace, arguments, name)
}

/// Runs a test of the suite `counts` with the fifteen tasks to its full extent.
fn periodic_tasks(workspace: &Workspace, arguments: &[String], test: &str) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let seconds = arguments.first().map_or("60", String::as_str);
    let mut cargo = shell::cargo(&workspace.root);
    cargo.env("OVERHEAR_EXPERIMENT_SECONDS", seconds).args([
        "test",
        "--quiet",
        "-p",
        "overhear-cli",
        "--test",
        "counts",
    ]);
    shell::run(cargo.args([test, "--", "--exact", "--nocapture"]))
}

/// Budgets on sensors of programs: the target against the CPU time that the programs take, with
/// this number of groups of processes for each row. Writes the page and its picture.
pub(crate) fn experiment_budget(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args([
        "bench",
        "--quiet",
        "-p",
        "overhear-cli",
        "--bench",
        "budget",
    ]);
    let page = workspace.root.join("docs/experiments/budget.md");
    cargo.arg("--").arg("--page").arg(page);
    if let Some(groups) = arguments.first() {
        cargo.args(["--groups", groups]);
    }
    shell::run(&mut cargo)
}

/// The case study of EPOS: the task set under every sampling policy, with arguments RUNS, SECONDS
/// and PARTITION (`no` leaves the CPUs to other programs, too). Writes the page.
pub(crate) fn experiment_epos(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    sampling_experiment(
        workspace,
        arguments,
        "epos::policies_are_compared_on_the_task_set",
        "docs/experiments/epos.md",
    )
}

/// Faults in the same task set, and whether samples reveal them, with arguments RUNS and SECONDS
/// before a fault. Writes the page.
pub(crate) fn experiment_anomalies(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    sampling_experiment(
        workspace,
        arguments,
        "anomalies::faults_are_found_in_samples_of_jobs",
        "docs/experiments/anomalies.md",
    )
}

/// Runs a test of the suite `experiments` to its full extent.
fn sampling_experiment(
    workspace: &Workspace,
    arguments: &[String],
    test: &str,
    page: &str,
) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut cargo = shell::cargo(&workspace.root);
    cargo.env("OVERHEAR_EXPERIMENT_PAGE", workspace.root.join(page));
    for (name, value) in ["RUNS", "SECONDS", "PARTITION"].into_iter().zip(arguments) {
        cargo.env(format!("OVERHEAR_EXPERIMENT_{name}"), value);
    }
    cargo.args(["test", "--quiet", "--release", "-p", "overhear-cli"]);
    shell::run(cargo.args([
        "--test",
        "experiments",
        "--",
        "--nocapture",
        "--exact",
        test,
    ]))
}

/// Servers under load with the preload library of `overhear naps`, each for half a minute or the
/// given number of seconds, and then what the library costs.
pub(crate) fn naps(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD, OBSERVED])?;
    let seconds = arguments.first().map_or("30", String::as_str);
    let mut cargo = shell::cargo(&workspace.root);
    cargo.env("OVERHEAR_NAPS_SECONDS", seconds);
    cargo.args([
        "test",
        "--quiet",
        "--release",
        "-p",
        "overhear-naps-preload",
    ]);
    shell::run(cargo.args(["--test", "servers", "--", "--nocapture", "--test-threads=1"]))?;
    let mut cargo = shell::cargo(&workspace.root);
    shell::run(cargo.args(["bench", "--quiet", "-p", "overhear-naps-preload"]))
}

/// A workload with many switches, with and without a monitor, in 41 pairs: a bench among the tests,
/// because these can run both.
fn compensation(workspace: &Workspace) -> Result<()> {
    let mut cargo = shell::cargo(&workspace.root);
    cargo.env("OVERHEAR_COMPENSATION_BENCH", "41");
    // The monitor's load of the other CPU slows the workload down if both share a core.
    cargo.args(["test", "--quiet", "--release", "-p", "overhear-cli"]);
    cargo.args([
        "--test",
        "compensation",
        "compensation_removes_the_cost_of_observing",
    ]);
    shell::run(cargo.args(["--", "--exact", "--nocapture"]))
}

/// Pages with the given numbers of intervals, opened in Chromium: a bench among the tests, because
/// these can make and open them.
fn pages(workspace: &Workspace) -> Result<()> {
    let mut cargo = shell::cargo(&workspace.root);
    cargo
        .env("OVERHEAR_PAGE_BENCH", "10000,1000000,5000000")
        .args(["test", "--quiet", "-p", "overhear-cli", "--test", "page"]);
    shell::run(cargo.args(["pages_of_all_sizes_open", "--", "--exact", "--nocapture"]))
}

/// A guarantee under load: the bench `stress` of `overhear-monitor`, with its arguments.
pub(crate) fn stress(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args(["bench", "-p", "overhear-monitor", "--bench", "stress", "--"]);
    shell::run(cargo.args(arguments))
}

/// A directory under attack: the waiting time of others, then the long forms of two tests, with the
/// numbers of conversations and kills in the arguments.
pub(crate) fn hostile(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let [conversations, kills] = [("50000", 0), ("1000", 1)].map(|(standard, index)| {
        let given = arguments.get(index);
        given.map_or(standard, String::as_str)
    });
    let measured = crate_bench(workspace, "overhear-directory", "hostile");
    let forms = [
        (
            "conversations",
            "OVERHEAR_TEST_CONVERSATIONS",
            conversations,
        ),
        ("kills", "OVERHEAR_TEST_KILLS", kills),
    ];
    for (test, variable, count) in forms {
        println!("\n{count} {test}:");
        let mut cargo = shell::cargo(&workspace.root);
        cargo.env(variable, count);
        cargo.args(["test", "--quiet", "-p", "overhear-directory"]);
        shell::run(cargo.args(["--test", test, "--", "--nocapture"]))?;
    }
    measured
}

/// The folder of memory that processes of peers share.
const SHARED_MEMORY: &str = "/dev/shm";
/// How the names of such files begin: LTTng's library makes its own in every process that it is
/// linked to, iceoryx2 gets the second.
const LEFT_BY_PEERS: [&str; 2] = ["lttng-ust-wait-", "overhear_bench_"];

/// Files that peers leave in shared memory. Files from before the run, or that another process
/// still uses, stay.
struct Leftovers {
    before: HashSet<PathBuf>,
}

impl Leftovers {
    fn before() -> Self {
        Self {
            before: shared_by_peers().collect(),
        }
    }

    fn remove(&self) {
        for file in shared_by_peers().filter(|file| !self.before.contains(file)) {
            if !is_mapped(&file) {
                let _ = fs::remove_file(file);
            }
        }
    }
}

fn shared_by_peers() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        LEFT_BY_PEERS.iter().any(|begin| name.starts_with(begin))
    })
}

/// Whether a process of this machine maps the file.
fn is_mapped(file: &Path) -> bool {
    let file = file.to_string_lossy();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| fs::read_to_string(process.path().join("maps")).ok())
        .any(|maps| maps.lines().any(|line| line.ends_with(&*file)))
}

fn builds(workspace: &Workspace, peers: &[&str]) -> bool {
    shell::run(&mut cargo(workspace, "build", peers)).is_ok()
}

fn cargo(workspace: &Workspace, verb: &str, peers: &[&str]) -> Command {
    let mut command = shell::cargo(&workspace.root.join("benches"));
    command
        .env("CARGO_TARGET_DIR", workspace.target.join("benches"))
        .args([verb, "--release", "--features", &peers.join(",")]);
    command
}

#[cfg(test)]
mod tests {
    use super::executable;

    #[test]
    fn program_of_a_bench_is_found_among_messages_of_cargo() {
        let line = |kind: &str, name: &str, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"kind":["{kind}"],"name":"{name}"}},"executable":{program}}}"#
            )
        };
        let found = executable(&line("bench", "stress", r#""a/stress-1""#), "stress");
        assert_eq!(found, Some("a/stress-1".into()));
        for other in [
            line("bench", "other", r#""a/other-1""#),
            line("example", "stress", r#""a/stress""#),
            line("bench", "stress", "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "text".to_owned(),
        ] {
            assert_eq!(executable(&other, "stress"), None, "{other}");
        }
    }
}
