// SPDX-License-Identifier: MIT OR Apache-2.0
//! Packages that depend on this crate, made for a test.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes an empty package with this dependency on `overhear`, in a folder of its own. It removes
/// the files of an earlier test, except the build results.
pub(crate) fn package(name: &str, settings: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(package.join("src"));
    fs::create_dir_all(package.join("src")).unwrap();
    let manifest = format!(
        "[package]\nname = {name:?}\nedition = \"2021\"\n[workspace]\n\
         [dependencies]\noverhear = {{ path = {here:?}{settings} }}\n[profile.dev]\ndebug = false\n"
    );
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    // The versions of the workspace, so that nothing is fetched.
    fs::copy(here.join("../../Cargo.lock"), package.join("Cargo.lock")).unwrap();
    package
}

/// A cargo command in it, which fetches nothing. All packages share their build results, because
/// their dependencies are the same.
pub(crate) fn cargo(package: &Path, command: &str) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args([command, "--offline"])
        .current_dir(package)
        .env("CARGO_TARGET_DIR", package.with_file_name("packages"));
    cargo
}
