// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear-clang` and `overhear-clang++`: clang 19 with the pass of the range analysis, and with
//! its runtime in what is linked.
//!
//! The name by which the program is called selects the language of the linker. All arguments go to
//! clang, so it can be CC or CXX of any build.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use overhear_ranges::wrapper::{arguments, Language, Parts};

/// The version that the pass is compiled for.
const VERSION: &str = "19";

fn main() -> ExitCode {
    let mut given = std::env::args_os();
    let name = given.next().unwrap_or_default();
    let given: Vec<OsString> = given.collect();
    match start(&name, &given) {
        Ok(never) => match never {},
        Err(message) => {
            eprintln!("{}: {message}", Path::new(&name).display());
            ExitCode::FAILURE
        }
    }
}

fn start(name: &OsStr, given: &[OsString]) -> Result<std::convert::Infallible, String> {
    let is_cxx = Path::new(name)
        .file_name()
        .is_some_and(|n| n.to_string_lossy().ends_with("++"));
    let language = if is_cxx { Language::Cxx } else { Language::C };
    let compiler = compiler(language)?;
    let parts = Parts::find().map_err(|missing| missing.to_string())?;
    let error = Command::new(&compiler)
        .args(arguments(given, &parts))
        .exec();
    Err(format!(
        "the compiler {} cannot be run: {error}; install the Debian package clang-19, or name a \
         clang 19 in OVERHEAR_CLANG",
        compiler.display()
    ))
}

/// clang 19, or what the environment names, if it has that version.
fn compiler(language: Language) -> Result<PathBuf, String> {
    let Some(named) = std::env::var_os("OVERHEAR_CLANG").filter(|name| !name.is_empty()) else {
        return Ok(PathBuf::from(language.compiler()));
    };
    let output = Command::new(&named).arg("-dumpversion").output();
    let shown = Path::new(&named).display();
    let output = output.map_err(|error| {
        format!("the compiler {shown} of OVERHEAR_CLANG cannot be run: {error}")
    })?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if version.split('.').next() != Some(VERSION) {
        return Err(format!(
            "the compiler {shown} of OVERHEAR_CLANG has version {version}, but the pass is built \
             for clang {VERSION}; name a clang {VERSION}"
        ));
    }
    let mut path = PathBuf::from(&named);
    // The C++ compiler is the other name of the same program.
    if language == Language::Cxx && !named.to_string_lossy().contains("++") {
        let file = path
            .file_name()
            .map(|n| n.to_string_lossy().replace("clang", "clang++"));
        if let Some(file) = file {
            path.set_file_name(file);
        }
    }
    Ok(path)
}
