// SPDX-License-Identifier: MIT OR Apache-2.0
//! The law of the house: a crate depends only on crates above it in ARCHITECTURE.md's table.
//!
//! The table goes in as text, the packages as cargo names them; out come messages, one for each
//! breach. Every crate of the table exists, and every crate that exists is in the table.

use crate::workspace::Package;

/// The columns of the table about a crate, without its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Every crate below it may use it.
    Here,
    /// It exists for tests only: tests of all crates may use it, independent of its position.
    Tests,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    name: String,
    state: State,
}

/// Every breach of the table, as a message.
pub(crate) fn breaches(table: &str, packages: &[Package]) -> Vec<String> {
    let rows = match rows(table) {
        Ok(rows) => rows,
        Err(message) => return vec![message],
    };
    let position = |name: &str| rows.iter().position(|row| row.name == name);
    let exists = |name: &str| packages.iter().any(|package| package.name == name);
    let mut found = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        if position(&row.name) != Some(index) {
            found.push(format!("{} stands in the crate table twice.", row.name));
        }
        if !exists(&row.name) {
            found.push(format!(
                "The crate table names {}, which is not a package of the workspace; remove its row.",
                row.name
            ));
        }
    }
    for package in packages {
        let Some(own) = position(&package.name) else {
            found.push(format!(
                "{} is missing from the crate table; give it a row below all it depends on.",
                package.name
            ));
            continue;
        };
        for dependency in package
            .dependencies
            .iter()
            .filter(|other| exists(&other.name))
        {
            let Some(other) = position(&dependency.name) else {
                continue;
            };
            let for_tests = dependency.dev && rows[other].state == State::Tests;
            if other >= own && !for_tests {
                found.push(format!(
                    "{} depends on {}, which does not stand above it in the crate table.",
                    package.name, dependency.name
                ));
            }
        }
    }
    found
}

/// The rows below the head `| crate | state | ...`.
fn rows(table: &str) -> Result<Vec<Row>, String> {
    let mut lines = table
        .lines()
        .skip_while(|line| cells(line) != Some(("crate", "state")));
    if lines.next().is_none() {
        return Err("There is no table with the head `| crate | state |`.".to_owned());
    }
    let rows = lines.skip(1).map_while(cells);
    rows.map(|(name, state)| {
        let state = match state {
            "here" => State::Here,
            "tests" => State::Tests,
            _ => {
                return Err(format!(
                    "The crate table has {name} for {state:?}; it must be `all` or `tests`."
                ))
            }
        };
        Ok(Row {
            name: name.trim_matches('`').to_owned(),
            state,
        })
    })
    .collect()
}

/// The first two cells of a table's line.
fn cells(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
    Some((cells.next()?, cells.next()?))
}

#[cfg(test)]
mod tests {
    use super::breaches;
    use crate::workspace::{Dependency, Package};

    const TABLE: &str = "\
Text before.

| crate | state | noun |
|---|---|---|
| `event` | here | words |
| `stream` | here | bytes |
| `suite` | tests | for all |

| other | table |
";

    fn package(name: &str, dependencies: &[(&str, bool)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|&(name, dev)| Dependency {
                name: name.to_owned(),
                dev,
            })
            .collect();
        Package {
            name: name.to_owned(),
            dependencies,
        }
    }

    fn good() -> Vec<Package> {
        vec![
            package("event", &[("serde", false), ("suite", true)]),
            package("stream", &[("event", false)]),
            package("suite", &[("stream", false)]),
        ]
    }

    #[test]
    fn correct_table_has_no_breaches() {
        assert_eq!(breaches(TABLE, &good()), Vec::<String>::new());
    }

    #[test]
    fn dependency_on_a_row_below_or_on_itself_is_a_breach_even_in_tests() {
        let mut packages = good();
        packages[0] = package("event", &[("stream", true), ("suite", false)]);
        assert_eq!(
            breaches(TABLE, &packages),
            [
                "event depends on stream, which does not stand above it in the crate table.",
                "event depends on suite, which does not stand above it in the crate table.",
            ]
        );
    }

    #[test]
    fn table_and_the_workspace_name_the_same_crates() {
        let mut packages = good();
        packages.remove(1);
        packages.push(package("novel", &[("event", false)]));
        assert_eq!(
            breaches(TABLE, &packages),
            [
                "The crate table names stream, which is not a package of the workspace; remove its \
                 row.",
                "novel is missing from the crate table; give it a row below all it depends on.",
            ]
        );
    }

    #[test]
    fn damaged_table_is_named() {
        assert_eq!(
            breaches("no table", &good()),
            ["There is no table with the head `| crate | state |`."]
        );
        let strange = TABLE.replace("tests", "soon");
        assert!(breaches(&strange, &good())[0].contains("\"soon\""));
        let twice = TABLE.replace("| `suite`", "| `event` | here | words |\n| `suite`");
        assert_eq!(
            breaches(&twice, &good()),
            ["event stands in the crate table twice."]
        );
    }
}
