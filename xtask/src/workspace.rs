// SPDX-License-Identifier: MIT OR Apache-2.0
//! cargo's metadata of this repository.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;

/// The workspace: its folder, where it builds, and its packages.
#[derive(Debug)]
pub(crate) struct Workspace {
    /// The folder of the repository.
    pub(crate) root: PathBuf,
    /// The target folder of cargo.
    pub(crate) target: PathBuf,
    /// The packages, in cargo's order.
    pub(crate) packages: Vec<Package>,
}

/// One package of the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Its dependencies in its Cargo.toml, inside the workspace and outside.
    pub(crate) dependencies: Vec<Dependency>,
}

/// A line under `[dependencies]`, `[build-dependencies]` or `[dev-dependencies]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// Only tests, examples and benches need it.
    pub(crate) dev: bool,
}

impl Workspace {
    /// Reads the metadata from cargo.
    pub(crate) fn load() -> Result<Self> {
        // As `cargo run` reports it: a folder of built things that was copied or moved along with
        // the sources must not lead back to where it was built.
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .context("start xtask by `make` or `cargo run --package xtask`")?;
        let root = PathBuf::from(package).join("..").canonicalize()?;
        let mut cargo = shell::cargo(&root);
        let text = shell::output(cargo.args(["metadata", "--format-version=1", "--no-deps"]))?;
        Self::parse(&text).context("cargo metadata has an unknown form")
    }

    fn parse(metadata: &str) -> Result<Self> {
        let metadata: Value = serde_json::from_str(metadata)?;
        Ok(Self {
            root: text(&metadata, "workspace_root")?.into(),
            target: text(&metadata, "target_directory")?.into(),
            packages: list(&metadata, "packages")?
                .iter()
                .map(package)
                .collect::<Result<_>>()?,
        })
    }
}

fn package(value: &Value) -> Result<Package> {
    let dependencies = list(value, "dependencies")?.iter().map(|dependency| {
        let dev = dependency.get("kind").and_then(Value::as_str) == Some("dev");
        Ok(Dependency {
            name: text(dependency, "name")?,
            dev,
        })
    });
    Ok(Package {
        name: text(value, "name")?,
        dependencies: dependencies.collect::<Result<_>>()?,
    })
}

fn text(value: &Value, key: &str) -> Result<String> {
    let found = value.get(key).and_then(Value::as_str);
    Ok(found
        .with_context(|| format!("no text {key:?}"))?
        .to_owned())
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    let found = value.get(key).and_then(Value::as_array);
    Ok(found.with_context(|| format!("no list {key:?}"))?)
}

#[cfg(test)]
mod tests {
    use super::{Dependency, Workspace};

    #[test]
    fn metadata_gives_packages_and_kinds_of_dependencies() {
        let workspace = Workspace::parse(
            r#"{"workspace_root": "/w", "target_directory": "/t", "packages": [{"name": "a",
                "dependencies": [{"name": "b", "kind": null}, {"name": "c", "kind": "dev"}]}]}"#,
        )
        .unwrap();
        let expected = [("b", false), ("c", true)].map(|(name, dev)| Dependency {
            name: name.to_owned(),
            dev,
        });
        assert_eq!(workspace.packages[0].dependencies, expected);
        assert!(Workspace::parse(r#"{"workspace_root": "/w"}"#).is_err());
    }
}
