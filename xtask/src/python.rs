// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python package: built as a wheel, installed in an environment of its own, tested by pytest.
//!
//! What the environment needs comes from PyPI, once, and stays in the target folder. Without
//! Python's `venv` or without PyPI the tests are skipped, and the reason is printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result};

use crate::shell;
use crate::tally::{PytestReader, Tally};
use crate::workspace::Workspace;

const RUN: &str = "the Python tests";
/// What the environment needs: to build the wheel, to run it, and to test it (`perfetto` has the
/// message definitions that judge an export). The checker of types and what it checks against are
/// pinned: another version finds other faults.
const FROM_PYPI: [&str; 6] = [
    "maturin",
    "numpy<2.5",
    "pytest",
    "perfetto",
    "mypy==1.18.2",
    "scikit-learn",
];

/// Builds the wheel with what cargo has built in the debug profile, and runs `python/tests` on it.
pub(crate) fn tests(workspace: &Workspace) -> Result<Tally> {
    let mut tally = Tally::default();
    let folder = workspace.target.join("python");
    let venv = folder.join("venv");
    if let Err(reason) = prepare(&venv) {
        tally.skip(RUN, &reason);
        return Ok(tally);
    }
    let wheel = match build(workspace, &venv, &folder.join("wheels"), "dev") {
        Ok(wheel) => wheel,
        Err(error) => {
            tally.fail(format!("the Python wheel: {error:#}"));
            return Ok(tally);
        }
    };
    let mut pip = Command::new(venv.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]);
    shell::run(pip.arg("--force-reinstall").arg(wheel))?;

    let mut pytest = Command::new(venv.join("bin/pytest"));
    pytest
        .current_dir(&workspace.root)
        .env("OVERHEAR_PROGRAM", workspace.target.join("debug/overhear"))
        // Files that editors leave in the sources must not change the result.
        .env_remove("PYTHONPATH")
        .args(["-q", "-rfEs", "--color=no", "python/tests"]);
    let mut reader = PytestReader::default();
    let status = shell::stream(&mut pytest, |line| {
        reader.line(line);
        true
    })?;
    tally.add(reader.finish(RUN, status.success()));
    tally.add(types(workspace, &venv));
    Ok(tally)
}

/// The package's types, checked as in a program that uses them.
fn types(workspace: &Workspace, venv: &Path) -> Tally {
    let mut tally = Tally::default();
    let mut mypy = Command::new(venv.join("bin/mypy"));
    mypy.current_dir(workspace.root.join("python"))
        .arg("--cache-dir")
        .arg(workspace.target.join("python/mypy"))
        .arg("overhear");
    match shell::run(&mut mypy) {
        Ok(()) => tally.pass(),
        Err(error) => tally.fail(format!("the types of the Python package: {error:#}")),
    }
    tally
}

/// Makes the environment, unless it is there. An error is the reason to skip.
fn prepare(venv: &Path) -> Result<(), String> {
    let python = venv.join("bin/python");
    let is_ready = || {
        let names = FROM_PYPI.map(|need| need.split(['=', '<']).next().unwrap_or(need));
        let modules = names.join(", ").replace("maturin, ", "");
        let modules = modules.replace("scikit-learn", "sklearn");
        shell::succeeds(Command::new(&python).args(["-c", &format!("import {modules}")]))
            && venv.join("bin/maturin").is_file()
            // Its first line is a path, which a checkout that was moved no longer has.
            && shell::succeeds(Command::new(venv.join("bin/pytest")).arg("--version"))
    };
    if is_ready() {
        return Ok(());
    }
    let mut make = Command::new("python3");
    shell::output(make.args(["-m", "venv", "--clear"]).arg(venv)).map_err(|_| {
        "Python cannot make an environment; install python3 and python3-venv".to_owned()
    })?;
    println!(
        "Installing from PyPI into {}, once: {}.",
        venv.display(),
        FROM_PYPI.join(" ")
    );
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--retries", "1"]);
    shell::output(pip.args(FROM_PYPI))
        .map_err(|error| {
            let text = format!("{error:#}");
            let last = text.lines().rev().find(|line| !line.trim().is_empty());
            format!(
                "PyPI gives no {}: {}",
                FROM_PYPI.join(", "),
                last.unwrap_or_default()
            )
        })
        .map(|_| ())
}

/// Measures how fast a trace becomes numpy arrays, in the release profile and beside what the tests
/// have installed. `floor` is the program that replays a trace in Rust.
pub(crate) fn replay_speed(workspace: &Workspace, floor: &Path) -> Result<()> {
    let folder = workspace.target.join("python");
    let venv = folder.join("venv");
    prepare(&venv).map_err(Error::msg)?;
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args(["build", "--quiet", "--release"]);
    shell::run(cargo.args(["-p", "overhear-cli", "--bins"]))?;
    let wheel = build(workspace, &venv, &folder.join("release-wheels"), "release")?;
    let packages = folder.join("release-packages");
    let python = venv.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]);
    pip.args(["--upgrade", "--target"]).arg(&packages);
    shell::run(pip.arg(wheel))?;
    let mut bench = Command::new(&python);
    bench
        .env("PYTHONPATH", &packages)
        .arg(workspace.root.join("python/benches/replay_speed.py"))
        .arg(workspace.target.join("release/overhear"))
        .arg(floor);
    shell::run(&mut bench)
}

/// The wheel, built in the workspace's target folder, so that nothing is compiled twice.
fn build(workspace: &Workspace, venv: &Path, wheels: &Path, profile: &str) -> Result<PathBuf> {
    if wheels.is_dir() {
        fs::remove_dir_all(wheels)?;
    }
    let mut maturin = Command::new(venv.join("bin/maturin"));
    maturin
        .current_dir(workspace.root.join("python"))
        .env("VIRTUAL_ENV", venv)
        .env("CARGO_TARGET_DIR", &workspace.target)
        .args(["build", "--quiet", "--profile", profile, "--out"]);
    shell::run(maturin.arg(wheels))?;
    let mut files = fs::read_dir(wheels)?.map(|entry| Ok(entry?.path()));
    files.next().context("maturin has left no wheel")?
}
