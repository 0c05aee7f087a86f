// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiling and running programs of `native/ranges/tests`.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use overhear_ranges::results::{Declaration, Observed, Results};
use overhear_ranges::wrapper::Parts;
use tempfile::TempDir;

/// The wrapper, as cargo has built it.
pub(crate) const WRAPPER: &str = env!("CARGO_BIN_EXE_overhear-clang");

/// Levels of optimisation.
pub(crate) const LEVELS: [&str; 3] = ["-O0", "-O2", "-O3"];
/// Modes of instrumented programs; none is a program outside of `overhear ranges`.
pub(crate) const MODES: [Option<&str>; 4] = [None, Some("off"), Some("full"), Some("0.1")];

/// The folder of the wrapper's parts. Prints why a test is skipped where they are not built.
pub(crate) fn parts() -> Option<PathBuf> {
    let folder = Path::new(WRAPPER).with_file_name("ranges");
    if Parts::NAMES.iter().all(|name| folder.join(name).is_file()) {
        return Some(folder);
    }
    println!("skipped: the parts of the range analysis are not built; type `make ranges`");
    None
}

pub(crate) fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../native/ranges/tests")
}

pub(crate) fn program(name: &str) -> PathBuf {
    sources().join("programs").join(name)
}

/// Runs a command that must succeed; returns what it prints.
#[track_caller]
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The wrapper for the language of a source. A link gives it its other name.
pub(crate) fn wrapper(folder: &Path, source: &Path) -> Command {
    if source.extension().is_some_and(|ending| ending == "c") {
        return Command::new(WRAPPER);
    }
    let link = folder.join("overhear-clang++");
    if !link.exists() {
        std::os::unix::fs::symlink(WRAPPER, &link).unwrap();
    }
    let mut command = Command::new(link);
    command.env(
        "OVERHEAR_RANGES_LIB",
        Path::new(WRAPPER).with_file_name("ranges"),
    );
    command
}

/// Compiles a source twice: by the wrapper, and without the pass by the same compiler.
#[track_caller]
pub(crate) fn compile(folder: &Path, source: &Path, flags: &[&str]) -> (PathBuf, PathBuf) {
    let (with, without) = (folder.join("with"), folder.join("without"));
    succeed(
        wrapper(folder, source)
            .args(flags)
            .arg(source)
            .arg("-o")
            .arg(&with),
    );
    let is_c = source.extension().is_some_and(|ending| ending == "c");
    let mut plain = Command::new(if is_c { "clang-19" } else { "clang++-19" });
    succeed(plain.args(flags).arg(source).arg("-o").arg(&without));
    (with, without)
}

/// Runs an instrumented program; returns its output and its results.
pub(crate) fn run(program: &Path, mode: Option<&str>, arguments: &[&Path]) -> (Output, Results) {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_remove("OVERHEAR_RANGES")
        .env_remove("OVERHEAR_RANGES_BUDGET");
    if let Some(mode) = mode {
        command
            .env("OVERHEAR_RANGES", folder.path())
            .env("OVERHEAR_RANGES_BUDGET", mode);
    }
    let output = command.output().unwrap();
    let results = Results::read_folder(folder.path()).unwrap();
    assert_eq!(results.faults, Vec::<String>::new());
    assert_eq!(
        results.processes > 0,
        mode.is_some(),
        "{program:?} {mode:?}"
    );
    (output, results)
}

/// Output and end of a program are those of another run.
#[track_caller]
pub(crate) fn same(output: &Output, expected: &Output, what: &str) {
    let of = |output: &Output| {
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            output.status.into_raw(),
        )
    };
    assert_eq!(of(output), of(expected), "{what}");
}

/// Each range of the first results lies inside the one of the second.
#[track_caller]
pub(crate) fn inside(part: &Results, whole: &Results, what: &str) {
    for (declaration, observed) in &part.variables {
        let Some((low, high)) = observed.range else {
            continue;
        };
        let full = whole.variables[declaration];
        let (least, most) = full
            .range
            .unwrap_or_else(|| panic!("{what}: {declaration:?}"));
        assert!(
            least <= low && high <= most,
            "{what}: {declaration:?} {observed:?} {full:?}"
        );
    }
}

/// The only variable of this name.
#[track_caller]
pub(crate) fn variable<'a>(results: &'a Results, name: &str) -> (&'a Declaration, &'a Observed) {
    let mut found = results
        .variables
        .iter()
        .filter(|(declaration, _)| declaration.name == name);
    let variable = found.next().unwrap_or_else(|| panic!("{name} is missing"));
    assert!(found.next().is_none(), "{name} is there twice");
    variable
}
