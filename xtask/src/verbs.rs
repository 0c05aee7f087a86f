// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs: the actions of `make VERB`.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};

use crate::install::{kernel_library, Installation};
use crate::packages::{self, BUILD, DEMO, FUZZ, OBSERVED, RANGES, TEST};
use crate::shell::{self, Missing};
use crate::skips::Policy;
use crate::tally::{CargoReader, Tally};
use crate::workspace::Workspace;
use crate::{
    ada, bench, circles, examples, kernels, layers, manifests, mutants, native, notices, python,
    ranges, site, sizes, smco, sources, suites, tools,
};

/// Crates that neither call the system nor link C, so that miri can run them.
const PURE: [&str; 3] = ["overhear-event", "overhear-stream", "overhear-metrics"];

/// The verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Demo,
    Test,
    Python,
    Ada,
    Lint,
    Loom,
    Miri,
    Fuzz,
    Mutants,
    Deny,
    Notices,
    Bench,
    Experiment,
    ExperimentPosix,
    ExperimentBudget,
    Stress,
    Hostile,
    Mutations,
    Kills,
    Kernels,
    Naps,
    Docs,
    Install,
    Ranges,
    Suites,
    ExperimentSmco,
    ExperimentEpos,
    ExperimentAnomalies,
    Sizes,
    Clean,
}

impl Verb {
    pub(crate) const ALL: [Self; 30] = [
        Self::Demo,
        Self::Test,
        Self::Python,
        Self::Ada,
        Self::Lint,
        Self::Loom,
        Self::Miri,
        Self::Fuzz,
        Self::Mutants,
        Self::Deny,
        Self::Notices,
        Self::Bench,
        Self::Experiment,
        Self::ExperimentPosix,
        Self::ExperimentBudget,
        Self::Stress,
        Self::Hostile,
        Self::Mutations,
        Self::Kills,
        Self::Kernels,
        Self::Naps,
        Self::Docs,
        Self::Install,
        Self::Ranges,
        Self::Suites,
        Self::ExperimentSmco,
        Self::ExperimentEpos,
        Self::ExperimentAnomalies,
        Self::Sizes,
        Self::Clean,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Test => "test",
            Self::Python => "python",
            Self::Ada => "ada",
            Self::Lint => "lint",
            Self::Loom => "loom",
            Self::Miri => "miri",
            Self::Fuzz => "fuzz",
            Self::Mutants => "mutants",
            Self::Deny => "deny",
            Self::Notices => "notices",
            Self::Bench => "bench",
            Self::Experiment => "experiment",
            Self::ExperimentPosix => "experiment-posix",
            Self::ExperimentBudget => "experiment-budget",
            Self::Stress => "stress",
            Self::Hostile => "hostile",
            Self::Mutations => "mutations",
            Self::Kills => "kills",
            Self::Kernels => "kernels",
            Self::Naps => "naps",
            Self::Docs => "docs",
            Self::Install => "install",
            Self::Ranges => "ranges",
            Self::Suites => "suites",
            Self::ExperimentSmco => "experiment-smco",
            Self::ExperimentEpos => "experiment-epos",
            Self::ExperimentAnomalies => "experiment-anomalies",
            Self::Sizes => "sizes",
            Self::Clean => "clean",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// Runs the verb.
    pub(crate) fn perform(self, arguments: &[String]) -> Result<()> {
        let workspace = Workspace::load()?;
        match self {
            Self::Demo => demo(&workspace),
            Self::Test => test(&workspace),
            Self::Python => python(&workspace),
            Self::Ada => ada_packages(&workspace),
            Self::Lint => conclude(&lint(&workspace)?),
            Self::Loom => conclude(&loom(&workspace)?),
            Self::Miri => miri(&workspace),
            Self::Fuzz => fuzz(&workspace, arguments),
            Self::Mutants => conclude(&mutants::run(&workspace, arguments)?),
            Self::Deny => deny(&workspace),
            Self::Notices => notices::write(&workspace),
            Self::Bench => bench::bench(&workspace, arguments),
            Self::Experiment => bench::experiment(&workspace, arguments),
            Self::ExperimentPosix => bench::experiment_posix(&workspace, arguments),
            Self::ExperimentBudget => bench::experiment_budget(&workspace, arguments),
            Self::Stress => bench::stress(&workspace, arguments),
            Self::Hostile => bench::hostile(&workspace, arguments),
            Self::Mutations => long_form(
                &workspace,
                "mutations",
                "OVERHEAR_MUTATIONS",
                "10000",
                arguments,
            ),
            Self::Kills => long_form(&workspace, "kills", "OVERHEAR_KILLS", "1000", arguments),
            Self::Kernels => conclude(&kernels::run(&workspace, arguments)?),
            Self::Naps => bench::naps(&workspace, arguments),
            Self::Docs => docs(&workspace),
            Self::Install => install(&workspace, arguments),
            Self::Ranges => range_analysis(&workspace),
            Self::ExperimentSmco => smco::run(&workspace, arguments),
            Self::ExperimentEpos => bench::experiment_epos(&workspace, arguments),
            Self::ExperimentAnomalies => bench::experiment_anomalies(&workspace, arguments),
            Self::Suites => conclude(&suites::run(&workspace, arguments)?),
            Self::Sizes => sizes(&workspace),
            Self::Clean => shell::run(shell::cargo(&workspace.root).arg("clean")),
        }
    }
}

/// Everything that must hold before a change is accepted. All parts run, even if one fails.
fn test(workspace: &Workspace) -> Result<()> {
    packages::ensure(&[BUILD, TEST, RANGES, OBSERVED])?;
    let mut tally = Tally::default();
    // One build in one profile: the tests, the C tests and the programs under test share it.
    let mut build = shell::cargo(&workspace.root);
    if let Err(error) = shell::run(build.args(["build", "--workspace"])) {
        tally.fail(format!("{error:#}"));
        return conclude(&tally);
    }
    if let Err(error) = ranges::build(&workspace.root, &workspace.target.join("debug")) {
        tally.fail(format!("{error:#}"));
    }
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args(["test", "--workspace", "--no-fail-fast"]);
    tally.add(cargo_test("the workspace's tests", &mut cargo)?);
    tally.add(native::c_tests(workspace, "debug")?);
    tally.add(ada::tests(workspace, "debug")?);
    tally.add(python::tests(workspace)?);
    tally.add(kernels::short(workspace));
    tally.add(loom(workspace)?);
    tally.add(lint(workspace)?);
    tally.judge_skips(Policy::here());
    conclude(&tally)
}

/// A suite of the command line with another count than `make test` has.
fn long_form(
    workspace: &Workspace,
    suite: &str,
    variable: &str,
    usual: &str,
    arguments: &[String],
) -> Result<()> {
    packages::ensure(&[BUILD, TEST])?;
    let count = arguments.first().map_or(usual, String::as_str);
    let mut cargo = shell::cargo(&workspace.root);
    cargo.env(variable, count);
    cargo.args([
        "test",
        "-p",
        "overhear-cli",
        "--test",
        suite,
        "--",
        "--nocapture",
    ]);
    shell::run(&mut cargo)
}

/// The Python package alone, with the programs that its tests run.
fn python(workspace: &Workspace) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut build = shell::cargo(&workspace.root);
    shell::run(build.args(["build", "-p", "overhear-cli", "-p", "overhear-python"]))?;
    conclude(&python::tests(workspace)?)
}

/// The Ada packages alone.
fn ada_packages(workspace: &Workspace) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut build = shell::cargo(&workspace.root);
    shell::run(build.args([
        "build",
        "-p",
        "overhear-posix-trace",
        "-p",
        "overhear-kernel",
    ]))?;
    conclude(&ada::tests(workspace, "debug")?)
}

/// Checks of the sources that do not run them. Only breaches are counted.
fn lint(workspace: &Workspace) -> Result<Tally> {
    packages::ensure(&[BUILD])?;
    let mut tally = Tally::default();
    let table = fs::read_to_string(workspace.root.join("ARCHITECTURE.md"))?;
    for breach in layers::breaches(&table, &workspace.packages) {
        tally.fail(breach);
    }
    for breach in sources::breaches(workspace)? {
        tally.fail(breach);
    }
    for breach in examples::breaches(&workspace.root)? {
        tally.fail(breach);
    }
    let (circles, breaches) = circles::circles(workspace)?;
    for circle in circles {
        println!("lint: {circle}");
    }
    for breach in breaches {
        tally.fail(breach);
    }
    manifests(workspace, &mut tally)?;
    let cargo = || shell::cargo(&workspace.root);
    let mut optional = |component: &str, command: &mut Command| {
        if !shell::succeeds(cargo().args([component, "--version"])) {
            tally.skip(
                component,
                "not installed; type `rustup component add rustfmt clippy`",
            );
        } else if let Err(error) = shell::run(command) {
            tally.fail(format!("{error:#}"));
        }
    };
    optional("fmt", cargo().args(["fmt", "--all", "--check"]));
    let clippy = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    optional("clippy", cargo().args(clippy));
    if let Err(error) = reference(workspace) {
        tally.fail(format!("{error:#}"));
    }
    dependencies(workspace, &mut tally);
    if !tally.has_failures() {
        println!("lint: nothing to complain about");
    }
    Ok(tally)
}

/// Every interleaving of the protocols' models, at small capacities, of the largest with up to
/// three preemptions; then random schedules of larger ones.
fn loom(workspace: &Workspace) -> Result<Tally> {
    let mut tally = models(workspace, "loom", "--cfg loom")?;
    tally.add(models(workspace, "shuttle", "--cfg loom --cfg shuttle")?);
    Ok(tally)
}

/// The models that an explorer runs; their names contain its own.
fn models(workspace: &Workspace, explorer: &str, flags: &str) -> Result<Tally> {
    let mut cargo = shell::cargo(&workspace.root);
    // Another cfg rebuilds everything, so it has a folder of its own.
    cargo
        .env("RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", workspace.target.join(explorer));
    cargo.args([
        "test",
        "-p",
        "overhear-stream",
        "--release",
        "--lib",
        explorer,
    ]);
    cargo_test(&format!("the {explorer} models"), &mut cargo)
}

fn cargo_test(what: &str, cargo: &mut Command) -> Result<Tally> {
    let mut reader = CargoReader::default();
    let status = shell::stream(cargo.args(["--", "--show-output"]), |line| {
        reader.line(line)
    })?;
    Ok(reader.finish(what, status.success()))
}

/// Repeats the runners' summaries, lists what was skipped and what failed, and ends with the one
/// line that counts all.
fn conclude(tally: &Tally) -> Result<()> {
    tally.list();
    println!("{tally}");
    if tally.has_failures() {
        std::process::exit(1);
    }
    Ok(())
}

/// Undefined behaviour in the pure crates.
fn miri(workspace: &Workspace) -> Result<()> {
    let cargo = || shell::nightly_cargo(&workspace.root);
    if !shell::succeeds(cargo().args(["miri", "--version"])) {
        let message = "miri needs a nightly toolchain with the component miri; type \
                        `rustup toolchain install nightly --component miri,rust-src`";
        return Err(Missing(message.to_owned()).into());
    }
    let mut command = cargo();
    // Property tests look for their files in the current folder and need fewer cases here.
    command
        .env("MIRIFLAGS", "-Zmiri-disable-isolation")
        .env("PROPTEST_CASES", "16");
    command.env("CARGO_TARGET_DIR", workspace.target.join("miri"));
    command
        .args(["miri", "test"])
        .args(PURE.iter().flat_map(|name| ["-p", name]));
    shell::run(&mut command)
}

/// Arbitrary bytes for everything that parses: each target runs for the given seconds.
fn fuzz(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    let seconds: u32 = match arguments {
        [] => 60,
        [text, ..] => text
            .parse()
            .context("the seconds per target must be a number")?,
    };
    ensure!(
        workspace.root.join("fuzz").is_dir(),
        "there are no fuzz targets yet"
    );
    packages::ensure(&[BUILD, FUZZ])?;
    let cargo = || {
        let mut cargo = shell::nightly_cargo(&workspace.root);
        tools::on_path_of(workspace, &mut cargo);
        cargo
    };
    if !shell::succeeds(cargo().arg("--version")) {
        let message = "fuzzing needs a nightly toolchain; type `rustup toolchain install nightly`";
        return Err(Missing(message.to_owned()).into());
    }
    tools::ensure(workspace, "fuzz")?;
    let limit = format!("-max_total_time={seconds}");
    let mut failed = Vec::new();
    for target in shell::output(cargo().args(["fuzz", "list"]))?.split_whitespace() {
        // The fuzzer adds new inputs to the first folder, and begins with those of both.
        let [corpus, seeds] = ["corpus", "seeds"].map(|kind| format!("fuzz/{kind}/{target}"));
        std::fs::create_dir_all(workspace.root.join(&corpus))?;
        let mut run = cargo();
        run.args(["fuzz", "run", target, &corpus]);
        if workspace.root.join(&seeds).is_dir() {
            run.arg(&seeds);
        }
        run.args(["--", &limit]);
        if let Err(error) = shell::run(&mut run) {
            failed.push(format!("{target}: {error:#}"));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

/// Licences, doubles and origins of what is depended on, and known vulnerabilities where their list
/// can be fetched.
fn deny(workspace: &Workspace) -> Result<()> {
    tools::ensure(workspace, "deny")?;
    shell::run(deny_offline(workspace, &mut shell::cargo(&workspace.root)))?;
    let mut cargo = shell::cargo(&workspace.root);
    tools::on_path_of(workspace, &mut cargo);
    if !shell::succeeds(cargo.args(["deny", "fetch", "db"])) {
        let message = "the list of known vulnerabilities (RustSec) cannot be fetched, so it is not checked; type \
                        `make deny` where github.com can be reached";
        return Err(Missing(message.to_owned()).into());
    }
    let mut cargo = shell::cargo(&workspace.root);
    tools::on_path_of(workspace, &mut cargo);
    shell::run(cargo.args(["deny", "check", "--disable-fetch", "advisories"]))
}

/// The checks that need no network.
fn deny_offline<'a>(workspace: &Workspace, cargo: &'a mut Command) -> &'a mut Command {
    tools::on_path_of(workspace, cargo);
    cargo.args(["deny", "--offline", "check", "licenses", "bans", "sources"])
}

/// Checks of dependencies: the notices are up to date, and the rules of `deny.toml` hold.
fn dependencies(workspace: &Workspace, tally: &mut Tally) {
    match notices::render(workspace) {
        Ok(text) => {
            let kept = fs::read_to_string(workspace.root.join(notices::FILE)).unwrap_or_default();
            if kept != text {
                let file = notices::FILE;
                tally.fail(format!("{file} is not up to date; type `make notices`."));
            }
        }
        // For example on another architecture, whose build has not fetched all of them.
        Err(error) => println!("lint: the notices are not compared: {error:#}"),
    }
    if !tools::has(workspace, "deny") {
        println!("lint: deny.toml is not checked, because cargo-deny is not installed; `make deny` installs it");
    } else if let Err(error) =
        shell::run(deny_offline(workspace, &mut shell::cargo(&workspace.root)))
    {
        tally.fail(format!("{error:#}"));
    }
}

/// What each Cargo.toml states, and whether the oldest Rust that is promised builds the
/// dependencies. (That our own sources use nothing newer is clippy's `incompatible_msrv`.)
fn manifests(workspace: &Workspace, tally: &mut Tally) -> Result<()> {
    let readme = fs::read_to_string(workspace.root.join("README.md"))?;
    let mut cargo = shell::cargo(&workspace.root);
    match shell::output(cargo.args(["metadata", "--format-version=1", "--offline", "--locked"])) {
        Ok(metadata) => {
            for breach in manifests::breaches(&metadata, &readme)? {
                tally.fail(breach);
            }
        }
        // For example on another architecture, whose build has not fetched all of them.
        Err(error) => println!("lint: what manifests state is not checked: {error:#}"),
    }
    Ok(())
}

/// The documentation site, and the reference of all crates.
fn docs(workspace: &Workspace) -> Result<()> {
    let page = site::build(workspace)?;
    reference(workspace)?;
    println!("The documentation begins at {}.", page.display());
    println!(
        "The reference of the Rust crates begins at {}.",
        workspace.target.join("doc/overhear/index.html").display()
    );
    Ok(())
}

/// The reference of all crates; a broken link is an error.
fn reference(workspace: &Workspace) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let mut cargo = shell::cargo(&workspace.root);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    // Libraries only: the program `overhear` and the crate `overhear` would share one page.
    cargo.args(["doc", "--workspace", "--no-deps", "--lib"]);
    // The C library of monitors has the name of a Rust library, and nothing for a page.
    shell::run(cargo.args(["--exclude", "overhear-monitor-c"]))
}

/// The release, under the folder that is named, else under `/usr/local`; below `DESTDIR` if it is
/// set, as those who make packages expect.
fn install(workspace: &Workspace, arguments: &[String]) -> Result<()> {
    packages::ensure(&[BUILD])?;
    let prefix = arguments.first().map_or("/usr/local", |prefix| prefix);
    ensure!(
        Path::new(prefix).is_absolute(),
        "the prefix {prefix} must begin with a slash"
    );
    let stage = std::env::var("DESTDIR").unwrap_or_default();
    let to = PathBuf::from(format!("{stage}{prefix}"));
    build_release(
        workspace,
        &[
            "overhear-cli",
            "overhear-directory",
            "overhear-naps-preload",
        ],
    )?;
    build_libraries(workspace)?;
    build_release(workspace, &["overhear-ranges"])?;
    ranges::build(&workspace.root, &workspace.target.join("release"))?;
    let mut cargo = shell::cargo(&workspace.root);
    shell::run(cargo.args(kernel_library()))?;
    let installation = Installation {
        root: &workspace.root,
        built: &workspace.target.join("release"),
        prefix: &to,
        called: prefix.trim_end_matches('/'),
    };
    installation.perform()?;
    println!("Overhear is installed under {}.", to.display());
    if stage.is_empty() && to.starts_with("/usr") && !shell::succeeds(&mut Command::new("ldconfig"))
    {
        println!("Type `ldconfig` as root so that programs find the libraries.");
    }
    Ok(())
}

/// The compiler wrapper of the range analysis and its parts, in the profile of the tests.
fn range_analysis(workspace: &Workspace) -> Result<()> {
    packages::ensure(&[BUILD, RANGES])?;
    let mut build = shell::cargo(&workspace.root);
    shell::run(build.args(["build", "-p", "overhear-ranges", "-p", "overhear-cli"]))?;
    let built = workspace.target.join("debug");
    ranges::build(&workspace.root, &built)?;
    println!(
        "The compilers are {0}/overhear-clang and {0}/overhear-clang++.",
        built.display()
    );
    Ok(())
}

fn build_release(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args(["build", "--release"]);
    shell::run(cargo.args(packages.iter().flat_map(|name| ["-p", name])))
}

/// Builds the C libraries of sensors, of monitors and of the POSIX trace interface. Each is built
/// by itself, and after the programs: together with others it would contain features of the shared
/// crates that only the others need.
fn build_libraries(workspace: &Workspace) -> Result<()> {
    build_release(workspace, &["overhear-monitor-c"])?;
    build_release(workspace, &["overhear-posix-trace"])?;
    build_release(workspace, &["overhear"])
}

/// The sizes of the C libraries and of a static program.
fn sizes(workspace: &Workspace) -> Result<()> {
    packages::ensure(&[BUILD])?;
    build_libraries(workspace)?;
    sizes::print(workspace, &workspace.target.join("release"))
}

/// The client and server of [GRTMon, section 5.1], then an unmodified program from Debian.
fn demo(workspace: &Workspace) -> Result<()> {
    packages::ensure(&[BUILD, DEMO])?;
    let mut cargo = shell::cargo(&workspace.root);
    let parts = ["-p", "overhear", "-p", "overhear-cli", "-p", "demo"];
    shell::run(cargo.args(["build", "--release"]).args(parts))?;
    let built = workspace.target.join("release");
    let folder = workspace.target.join("demo");
    fs::create_dir_all(&folder)?;

    heading("A client and a server: where does the time of a request go?");
    shell::run(Command::new(built.join("demo")).current_dir(&workspace.root))?;

    heading("An unmodified program: xz with two threads");
    let (input, report) = (folder.join("data"), folder.join("xz"));
    write_data(&input)?;
    if report.is_dir() {
        fs::remove_dir_all(&report)?;
    }
    let mut overhear = Command::new(built.join("overhear"));
    overhear
        .arg("run")
        .arg("--out")
        .arg(&report)
        .args(["--", "xz", "-T2", "-k", "-f"])
        .arg(&input);
    shell::run(&mut overhear)?;
    fs::remove_file(&input)?;
    let page = report.join("report.html");
    if !page.is_file() {
        bail!("overhear run has left no report in {}", report.display());
    }
    println!("\nThe report of xz is {}", page.display());
    Ok(())
}

fn heading(text: &str) {
    println!("\n{text}\n{}", "=".repeat(text.len()));
}

/// Data that keeps two threads of xz busy for some seconds: four blocks of the size that xz gives
/// to a thread. One part in four is noise, which is slow to compress; the rest repeats it.
fn write_data(file: &Path) -> Result<()> {
    const PART_BYTES: usize = 64 << 10;
    const PARTS: usize = ((4 * 24) << 20) / PART_BYTES;
    let mut out = BufWriter::new(File::create(file)?);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = Vec::with_capacity(PART_BYTES);
    for part in 0..PARTS {
        if part % 4 == 0 {
            noise.clear();
            while noise.len() < PART_BYTES {
                // Marsaglia's xorshift64: the same file on every machine.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                noise.extend(state.to_le_bytes());
            }
        }
        out.write_all(&noise)?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::Verb;

    #[test]
    fn makefile_lists_exactly_these_verbs() {
        let makefile = include_str!("../../Makefile");
        let targets = makefile.lines().filter(|line| !line.starts_with('\t'));
        let listed: Vec<_> = targets
            .filter_map(|line| line.split_once(": ## "))
            .collect();
        let listed: Vec<_> = listed.iter().map(|(name, _)| *name).collect();
        assert_eq!(listed, Verb::ALL.map(Verb::name));
    }
}
