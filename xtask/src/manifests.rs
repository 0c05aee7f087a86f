// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each Cargo.toml must state, and the oldest Rust that builds the workspace.
//!
//! The output of `cargo metadata` goes in with the README; out come messages.

use anyhow::{Context, Result};
use serde_json::Value;

/// The metadata of a package for registries and users.
const STATED: [&str; 5] = ["description", "license", "keywords", "categories", "readme"];

/// Every breach, as a message.
///
/// # Errors
/// If the metadata has an unknown form.
pub(crate) fn breaches(metadata: &str, readme: &str) -> Result<Vec<String>> {
    let metadata: Value = serde_json::from_str(metadata)?;
    let packages = metadata.get("packages").and_then(Value::as_array);
    let packages = packages.context("cargo metadata has no list of packages")?;
    let is_own = |package: &&Value| package.get("source").is_none_or(Value::is_null);
    let oldest = packages
        .iter()
        .filter(is_own)
        .find_map(|package| text(package, "rust_version"));
    let Some(oldest) = oldest else {
        return Ok(vec!["No package states a rust-version.".to_owned()]);
    };
    let mut found = Vec::new();
    for package in packages.iter() {
        let name = text(package, "name").context("a package has no name")?;
        let version = text(package, "rust_version");
        if is_own(&package) {
            let lacking = STATED.iter().filter(|key| is_empty(package.get(**key)));
            found.extend(lacking.map(|key| format!("The Cargo.toml of {name} has no {key}.")));
            if version != Some(oldest) {
                found.push(format!(
                    "The Cargo.toml of {name} does not have the rust-version {oldest} of the others."
                ));
            }
        } else if version.is_some_and(|version| numbers(version) > numbers(oldest)) {
            found.push(format!(
                "{name} needs Rust {}, but the workspace states rust-version {oldest}.",
                version.unwrap_or_default()
            ));
        }
    }
    if !readme.contains(&format!("Rust {oldest}")) {
        found.push(format!(
            "README.md does not name the oldest Rust, \"Rust {oldest}\"."
        ));
    }
    Ok(found)
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(list)) => list.is_empty(),
        Some(_) => false,
    }
}

/// The numbers of a version, without zeros at the end: 1.88 and 1.88.0 are the same.
fn numbers(version: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = version.split('.').map_while(|it| it.parse().ok()).collect();
    while numbers.last() == Some(&0) {
        numbers.pop();
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::breaches;

    const OWN: &str = r#"{"name": "a", "source": null, "rust_version": "1.88", "description": "A.",
        "license": "MIT", "keywords": ["k"], "categories": ["c"], "readme": "R"}"#;

    fn found(packages: &str) -> Vec<String> {
        breaches(
            &format!(r#"{{"packages": [{packages}]}}"#),
            "Needs Rust 1.88.",
        )
        .unwrap()
    }

    #[test]
    fn complete_manifests_have_no_breaches() {
        let same = r#"{"name": "d", "source": "registry", "rust_version": "1.88.0"}"#;
        let silent = r#"{"name": "e", "source": "registry", "rust_version": null}"#;
        assert_eq!(
            found(&format!("{OWN}, {same}, {silent}")),
            Vec::<String>::new()
        );
    }

    #[test]
    fn lacking_keys_and_another_rust_version_are_named() {
        let bare = OWN
            .replace("\"a\"", "\"b\"")
            .replace("[\"k\"]", "[]")
            .replace("1.88", "1.70");
        assert_eq!(
            found(&format!("{OWN}, {bare}")),
            [
                "The Cargo.toml of b has no keywords.",
                "The Cargo.toml of b does not have the rust-version 1.88 of the others.",
            ]
        );
        let silent = OWN.replace("\"rust_version\": \"1.88\", ", "");
        assert_eq!(found(&silent), ["No package states a rust-version."]);
    }

    #[test]
    fn dependency_on_a_newer_rust_is_a_breach() {
        let newer = r#"{"name": "d", "source": "registry", "rust_version": "1.100"}"#;
        assert_eq!(
            found(&format!("{OWN}, {newer}")),
            ["d needs Rust 1.100, but the workspace states rust-version 1.88."]
        );
    }

    #[test]
    fn readme_names_the_oldest_rust() {
        let found = breaches(&format!(r#"{{"packages": [{OWN}]}}"#), "Needs Rust.").unwrap();
        assert_eq!(
            found,
            ["README.md does not name the oldest Rust, \"Rust 1.88\"."]
        );
    }
}
