// SPDX-License-Identifier: MIT OR Apache-2.0
//! The licences of what is linked into Overhear's programs and libraries:
//! `THIRD_PARTY_NOTICES.txt`.
//!
//! cargo reports the linked packages and the folders of their sources; each brings its licence's
//! text along. Of a choice of licences the MIT licence is taken where its text is there. Packages
//! with the same text share it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::shell;
use crate::workspace::Workspace;

/// The file, in the repository's root.
pub(crate) const FILE: &str = "THIRD_PARTY_NOTICES.txt";
/// Packages that are installed or put into the wheel.
const SHIPPED: [&str; 7] = [
    "overhear",
    "overhear-monitor-c",
    "overhear-posix-trace",
    "overhear-cli",
    "overhear-directory",
    "overhear-kernel",
    "overhear-python",
];
/// One platform, so that the file is the same on every machine.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// C sources inside of packages, which have a licence of their own: package, name, file.
const BUNDLED: [(&str, &str, &str); 1] = [(
    "libbpf-sys",
    "libbpf (in libbpf-sys)",
    "libbpf/LICENSE.BSD-2-Clause",
)];

/// The text of the file as it should be.
///
/// # Errors
/// An error if cargo does not know the packages, or the sources of one are not on this machine.
pub(crate) fn render(workspace: &Workspace) -> Result<String> {
    let mut cargo = shell::cargo(&workspace.root);
    cargo.args(["metadata", "--format-version=1", "--locked", "--offline"]);
    let metadata = shell::output(cargo.args(["--filter-platform", PLATFORM]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = linked(&metadata).context("cargo metadata has an unknown form")?;
    // By text, so that each text is there once.
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        for (name, text) in package.licences()? {
            texts.entry(text).or_default().insert(name);
        }
    }
    let mut all: Vec<_> = texts
        .into_iter()
        .map(|(text, names)| (names, text))
        .collect();
    all.sort();
    let mut file = String::from(
        "Overhear is licensed under MIT or Apache-2.0, at your choice. Its programs and libraries contain the\n\
         following works of others, under the licences that follow each list.\n\n\
         `make notices` writes this file.\n",
    );
    for (names, text) in all {
        let line = "=".repeat(100);
        let names: Vec<String> = names.into_iter().collect();
        let _ = write!(
            file,
            "\n{line}\n{}\n{line}\n\n{}\n",
            names.join("\n"),
            text.trim_end()
        );
    }
    Ok(file)
}

/// Writes the file.
pub(crate) fn write(workspace: &Workspace) -> Result<()> {
    let text = render(workspace)?;
    fs::write(workspace.root.join(FILE), text)?;
    println!("{FILE} is written.");
    Ok(())
}

/// A third-party package.
#[derive(Debug)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    licence: &'a str,
    folder: &'a Path,
}

impl Package<'_> {
    /// Each work in it, with its licence's text.
    fn licences(&self) -> Result<Vec<(String, String)>> {
        let Self {
            name,
            version,
            licence,
            folder,
        } = self;
        let mut found: Vec<PathBuf> = fs::read_dir(folder)
            .with_context(|| format!("the sources of {name} {version} are not here; build first"))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file() && is_licence(path))
            .collect();
        found.sort();
        // One licence of a choice: the shortest text that needs no other one.
        let is_mit = |path: &PathBuf| upper_name(path).contains("MIT");
        if licence.contains("MIT") && !licence.contains(" AND ") && found.iter().any(is_mit) {
            found.retain(is_mit);
        }
        let title = format!("{name} {version} ({licence})");
        let mut texts = Vec::new();
        for path in &found {
            texts.push(text_of(path)?);
        }
        if texts.is_empty() {
            texts.push(format!(
                "The package has no text of its licence, {licence}."
            ));
        }
        let mut all = vec![(title, texts.join("\n\n"))];
        for (package, work, file) in BUNDLED {
            if package == *name {
                all.push((format!("{work} {version}"), text_of(&folder.join(file))?));
            }
        }
        Ok(all)
    }
}

fn text_of(path: &Path) -> Result<String> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&text).replace("\r\n", "\n");
    let lines: Vec<&str> = text.trim().lines().map(str::trim_end).collect();
    Ok(lines.join("\n"))
}

fn upper_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().to_uppercase()
}

fn is_licence(path: &Path) -> bool {
    let name = upper_name(path);
    let begins = [
        "LICENSE",
        "LICENCE",
        "COPYING",
        "NOTICE",
        "UNLICENSE",
        "COPYRIGHT",
    ];
    begins.iter().any(|begin| name.starts_with(begin)) && !name.ends_with(".RS")
}

/// The packages that the shipped ones are linked with, by the resolved graph.
fn linked(metadata: &Value) -> Option<Vec<Package<'_>>> {
    let text = |value: &'_ Value, key: &str| Some(value.get(key)?.as_str()?.to_owned());
    let packages = metadata.get("packages")?.as_array()?;
    let by_id: BTreeMap<&str, &Value> = packages
        .iter()
        .filter_map(|package| Some((package.get("id")?.as_str()?, package)))
        .collect();
    let mut next: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for node in metadata.get("resolve")?.get("nodes")?.as_array()? {
        let mut linked = Vec::new();
        for dependency in node.get("deps")?.as_array()? {
            let kinds = dependency.get("dep_kinds")?.as_array()?;
            // Neither build scripts nor tests are part of what is shipped.
            if kinds
                .iter()
                .any(|kind| kind.get("kind").is_some_and(Value::is_null))
            {
                linked.push(dependency.get("pkg")?.as_str()?);
            }
        }
        next.insert(node.get("id")?.as_str()?, linked);
    }
    let is_shipped = |package: &&Value| {
        let name = text(package, "name").unwrap_or_default();
        SHIPPED.contains(&name.as_str())
    };
    let shipped = packages.iter().filter(is_shipped);
    let mut queue: VecDeque<&str> = shipped.filter_map(|it| it.get("id")?.as_str()).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = queue.pop_front() {
        if seen.insert(id) && !is_macro(by_id.get(id)?) {
            queue.extend(next.get(id).into_iter().flatten());
        }
    }
    let foreign = |id: &&str| {
        by_id
            .get(id)
            .is_some_and(|it| !it["source"].is_null() && !is_macro(it))
    };
    let packages = seen.iter().filter(|id| foreign(id)).map(|id| {
        let package = by_id.get(id)?;
        let manifest = Path::new(package.get("manifest_path")?.as_str()?);
        Some(Package {
            name: package.get("name")?.as_str()?,
            version: package.get("version")?.as_str()?,
            licence: package
                .get("license")
                .and_then(Value::as_str)
                .unwrap_or("see below"),
            folder: manifest.parent()?,
        })
    });
    packages.collect()
}

/// Whether it runs in the compiler alone.
fn is_macro(package: &Value) -> bool {
    let targets = package.get("targets").and_then(Value::as_array);
    let kinds = targets
        .into_iter()
        .flatten()
        .filter_map(|it| it.get("kind"));
    kinds
        .filter_map(Value::as_array)
        .flatten()
        .any(|kind| kind == "proc-macro")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::linked;

    #[test]
    fn only_linked_packages_count() {
        let package = |name: &str, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": "registry",
                   "manifest_path": format!("/r/{name}/Cargo.toml"), "targets": [{"kind": [kind]}]})
        };
        let mut own = package("overhear-cli", "lib");
        own["source"] = json!(null);
        let dependency =
            |name: &str, kind: Option<&str>| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let node = |name: &str, deps: &[serde_json::Value]| json!({"id": name, "deps": deps});
        let metadata = json!({
            "packages": [own, package("linked", "lib"), package("below", "lib"), package("built", "lib"),
                         package("tested", "lib"), package("derive", "proc-macro"), package("syn", "lib")],
            "resolve": {"nodes": [
                node("overhear-cli", &[dependency("linked", None), dependency("built", Some("build")),
                                       dependency("tested", Some("dev")), dependency("derive", None)]),
                node("linked", &[dependency("below", None)]), node("below", &[]), node("built", &[]),
                node("tested", &[]), node("derive", &[dependency("syn", None)]), node("syn", &[]),
            ]},
        });
        let names: Vec<_> = linked(&metadata)
            .unwrap()
            .iter()
            .map(|it| it.name)
            .collect();
        assert_eq!(names, ["below", "linked"]);
    }
}
