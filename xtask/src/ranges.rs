// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of the range analysis that cargo does not build: the plug-in for clang, what each
//! instrumented program or library contains, and the names under which the wrapper is called.
//!
//! ```text
//! target/PROFILE/overhear-clang++                   link to overhear-clang
//! target/PROFILE/ranges/overhear_ranges_pass.so
//! target/PROFILE/ranges/liboverhear_ranges_program.a
//! target/PROFILE/ranges/liboverhear_ranges_library.a
//! target/PROFILE/ranges/liboverhear_ranges.a        copies of cargo's
//! target/PROFILE/ranges/liboverhear_ranges.so
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::shell;

/// The compiler of the plug-in and of the parts.
const CLANG: &str = "clang-19";
const CLANGXX: &str = "clang++-19";
/// The program that knows where the headers of LLVM 19 are.
const CONFIG: &str = "llvm-config-19";

/// Builds what is older than its sources, if the headers of LLVM are installed. `built` is cargo's
/// folder of the profile.
pub(crate) fn build(root: &Path, built: &Path) -> Result<()> {
    let native = root.join("native/ranges");
    let folder = built.join("ranges");
    fs::create_dir_all(&folder)?;
    let wrapper = built.join("overhear-clang++");
    if fs::symlink_metadata(&wrapper).is_err() {
        symlink("overhear-clang", &wrapper)?;
    }
    for name in ["liboverhear_ranges.a", "liboverhear_ranges.so"] {
        let library = built.join(name);
        if library.is_file() {
            replace(&library, &folder.join(name))?;
        }
    }
    let source = native.join("module/module.c");
    for (name, flags) in [
        ("program", &[][..]),
        ("library", &["-DOVERHEAR_RANGES_LIBRARY"][..]),
    ] {
        let archive = folder.join(format!("liboverhear_ranges_{name}.a"));
        if is_newer(&archive, std::slice::from_ref(&source)) {
            continue;
        }
        let object = folder.join(format!("{name}.o"));
        let mut compile = Command::new(CLANG);
        compile
            .args(["-O2", "-fPIC", "-Wall", "-Wextra", "-Werror", "-c"])
            .args(flags);
        shell::output(compile.arg(&source).arg("-o").arg(&object))?;
        let _ = fs::remove_file(&archive);
        shell::output(Command::new("ar").arg("rc").arg(&archive).arg(&object))?;
        fs::remove_file(object)?;
    }
    plugin(&native.join("pass"), &folder)
}

fn plugin(sources: &Path, folder: &Path) -> Result<()> {
    let plugin = folder.join("overhear_ranges_pass.so");
    let of_kind = |ending: &str| -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(sources)? {
            let path = entry?.path();
            if path.extension().is_some_and(|found| found == ending) {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    };
    let (code, headers) = (of_kind("cpp")?, of_kind("h")?);
    if is_newer(&plugin, &[code.clone(), headers].concat()) {
        return Ok(());
    }
    let Ok(include) = shell::output(Command::new(CONFIG).arg("--includedir")) else {
        println!(
            "ranges: the plug-in for clang is not built, because the Debian package llvm-19-dev \
             is not installed"
        );
        return Ok(());
    };
    let new = folder.join("overhear_ranges_pass.so.new");
    let mut compile = Command::new(CLANGXX);
    compile
        .args([
            "-shared",
            "-fPIC",
            "-O2",
            "-std=c++17",
            "-fno-rtti",
            "-fno-exceptions",
        ])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
        .args([
            "-D_GNU_SOURCE",
            "-D__STDC_CONSTANT_MACROS",
            "-D__STDC_LIMIT_MACROS",
        ])
        .args(["-isystem", include.trim()])
        .args(&code)
        .arg("-o")
        .arg(&new);
    shell::output(&mut compile).context("the plug-in for clang was not built")?;
    fs::rename(new, plugin)?;
    Ok(())
}

/// Whether a file is there and newer than all of its sources.
fn is_newer(file: &Path, sources: &[PathBuf]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|status| status.modified());
    let Ok(made) = time(file) else {
        return false;
    };
    sources
        .iter()
        .all(|source| time(source).unwrap_or(SystemTime::now()) < made)
}

/// Copies a file so that a program that uses the old one keeps it.
fn replace(from: &Path, to: &Path) -> Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new)
        .and_then(|_| fs::rename(&new, to))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}
