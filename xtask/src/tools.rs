// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are not part of a toolchain, like subcommands of cargo and mdBook. They are
//! installed into the target folder when a verb needs them first.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::shell::{self, Missing};
use crate::workspace::Workspace;

/// Their folder.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("tools")
}

/// Whether `cargo NAME` can be had without installing it.
pub(crate) fn has(workspace: &Workspace, name: &str) -> bool {
    let program = format!("cargo-{name}");
    shell::on_path(&program).is_some() || folder(workspace).join("bin").join(program).is_file()
}

/// Lets a cargo command find the tools.
pub(crate) fn on_path_of<'a>(workspace: &Workspace, cargo: &'a mut Command) -> &'a mut Command {
    let own = folder(workspace).join("bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain([own]);
    // A folder with a colon in its name cannot be on it.
    match env::join_paths(folders) {
        Ok(path) => cargo.env("PATH", path),
        Err(_) => cargo,
    }
}

/// Installs `cargo NAME` from crates.io unless it is there.
///
/// # Errors
/// [`Missing`] if it cannot be installed, as without a network.
pub(crate) fn ensure(workspace: &Workspace, name: &str) -> Result<()> {
    if has(workspace, name) {
        return Ok(());
    }
    let package = format!("cargo-{name}");
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args(["install", "--locked", &package, "--root"]);
    shell::run(cargo.arg(folder(workspace))).map_err(|error| {
        let message = format!(
            "{package} is missing and cannot be installed ({error}); type `cargo install --locked {package}` where \
             crates.io can be reached"
        );
        Missing(message).into()
    })
}

/// A program of this version, installed from crates.io unless it is there. One of another version
/// on PATH is not used.
///
/// # Errors
/// [`Missing`] if it cannot be installed, as without a network.
pub(crate) fn program(workspace: &Workspace, name: &str, version: &str) -> Result<PathBuf> {
    let own = folder(workspace).join("bin").join(name);
    for candidate in [Some(own.clone()), shell::on_path(name)]
        .into_iter()
        .flatten()
    {
        let stated = shell::output(Command::new(&candidate).arg("--version"));
        if stated.is_ok_and(|text| has_version(&text, version)) {
            return Ok(candidate);
        }
    }
    let package = format!("{name}@{version}");
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args(["install", "--locked", &package, "--root"]);
    shell::run(cargo.arg(folder(workspace))).map_err(|error| {
        let message = format!(
            "{name} {version} is missing and cannot be installed ({error}); type `cargo install --locked {package}` \
             where crates.io can be reached"
        );
        Missing(message)
    })?;
    Ok(own)
}

/// Whether the output of `--version` names this version.
fn has_version(output: &str, version: &str) -> bool {
    output
        .split_whitespace()
        .any(|word| word.trim_start_matches('v') == version)
}

#[cfg(test)]
mod tests {
    use super::has_version;

    #[test]
    fn version_is_compared_completely() {
        assert!(has_version("mdbook v0.5.4\n", "0.5.4"));
        assert!(has_version("tool 0.5.4 (abc)", "0.5.4"));
        assert!(!has_version("mdbook v0.5.41\n", "0.5.4"));
        assert!(!has_version("", "0.5.4"));
    }
}
