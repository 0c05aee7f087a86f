// SPDX-License-Identifier: MIT OR Apache-2.0
//! One public type name never stands in two crates with two meanings.
//!
//! Files of crates go in as text; out come messages. A type counts where it is declared, so
//! re-exports are free.

use std::collections::{BTreeMap, BTreeSet};

use crate::exceptions::{Exceptions, FILE};

/// Keywords that begin the declaration of a type.
const KINDS: [&str; 5] = ["struct ", "enum ", "trait ", "type ", "union "];

/// The public types of all crates: which crates declare each name.
#[derive(Debug, Default)]
pub(crate) struct TypeNames(BTreeMap<String, BTreeSet<String>>);

impl TypeNames {
    /// Adds a file; only sources of crates count.
    pub(crate) fn add(&mut self, file: &str, text: &str) {
        let Some((name, rest)) = file
            .strip_prefix("crates/")
            .and_then(|it| it.split_once('/'))
        else {
            return;
        };
        if !rest.starts_with("src/") || !rest.ends_with(".rs") {
            return;
        }
        for declared in text.lines().filter_map(declared) {
            let crates = self.0.entry(declared.to_owned()).or_default();
            crates.insert(name.to_owned());
        }
    }

    /// Names in two crates that the exceptions lack, and exceptions that are not needed any more.
    pub(crate) fn breaches(&self, exceptions: &Exceptions) -> Vec<String> {
        let allowed = &exceptions.shared_type_names;
        let shared = self.0.iter().filter(|(_, crates)| crates.len() > 1);
        let new = shared.filter(|(name, _)| !allowed.contains(name));
        let mut found: Vec<String> = new
            .map(|(name, crates)| {
                let crates: Vec<_> = crates.iter().map(String::as_str).collect();
                format!(
                    "The public type name {name} stands in {}; rename one of them.",
                    crates.join(" and ")
                )
            })
            .collect();
        let unneeded = allowed
            .iter()
            .filter(|name| self.0.get(*name).is_none_or(|crates| crates.len() < 2));
        found.extend(unneeded.map(|name| {
            format!(
                "{FILE} lists {name}, which stands in one crate at most; remove it from the list."
            )
        }));
        found
    }
}

/// The name of the public type that a line declares at the outermost level of its file.
fn declared(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub ")?;
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let rest = KINDS.iter().find_map(|kind| rest.strip_prefix(kind))?;
    rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .next()
}

#[cfg(test)]
mod tests {
    use super::TypeNames;
    use crate::exceptions::Exceptions;

    fn breaches(exceptions: &[&str]) -> Vec<String> {
        let mut names = TypeNames::default();
        names.add(
            "crates/a/src/lib.rs",
            "pub struct Reader<T>(T);\npub use b::Writer;\n",
        );
        names.add(
            "crates/a/src/b.rs",
            "pub(crate) struct Inner;\n    pub struct Nested;\n",
        );
        names.add(
            "crates/b/src/lib.rs",
            "pub unsafe trait Reader {}\npub enum Writer {}\n",
        );
        names.add("crates/b/tests/c.rs", "pub struct Inner;\n");
        names.add("xtask/src/main.rs", "pub struct Writer;\n");
        names.breaches(&Exceptions {
            shared_type_names: exceptions.iter().map(|&name| name.to_owned()).collect(),
        })
    }

    #[test]
    fn name_in_two_crates_is_a_breach_unless_it_is_an_exception() {
        assert_eq!(
            breaches(&[]),
            ["The public type name Reader stands in a and b; rename one of them."]
        );
        assert_eq!(breaches(&["Reader"]), Vec::<String>::new());
    }

    #[test]
    fn unneeded_exception_is_a_breach() {
        assert_eq!(
            breaches(&["Reader", "Writer"]),
            [
                "xtask/exceptions.json lists Writer, which stands in one crate at most; remove it \
                 from the list."
            ]
        );
    }
}
