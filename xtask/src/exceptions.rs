// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exceptions from the rules of `make lint`, in `xtask/exceptions.json`. The file may only
//! shrink.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace::Workspace;

/// Its path, from the root of the repository.
pub(crate) const FILE: &str = "xtask/exceptions.json";

/// The file's contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exceptions {
    /// Names of public types that may stand in two crates.
    pub(crate) shared_type_names: Vec<String>,
}

impl Exceptions {
    /// Reads the file.
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        let text = std::fs::read_to_string(workspace.root.join(FILE))?;
        Self::parse(&text).with_context(|| format!("{FILE} has an unknown form"))
    }

    fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)?;
        let names = value.get("shared_type_names").and_then(Value::as_array);
        let names = names.context("no list `shared_type_names`")?.iter();
        Ok(Self {
            shared_type_names: names
                .map(|name| Some(name.as_str()?.to_owned()))
                .collect::<Option<_>>()
                .context("a name in `shared_type_names` is no text")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Exceptions;

    #[test]
    fn file_is_read_completely_or_refused() {
        let text = r#"{"shared_type_names": ["Choice"]}"#;
        let exceptions = Exceptions::parse(text).unwrap();
        assert_eq!(exceptions.shared_type_names, ["Choice"]);
        assert!(Exceptions::parse("{}").is_err());
        assert!(Exceptions::parse(r#"{"shared_type_names": [1]}"#).is_err());
    }
}
