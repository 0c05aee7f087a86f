// SPDX-License-Identifier: MIT OR Apache-2.0
//! The index of the examples: task, file in each language, tests, commands.
//!
//! Every example stands in a row of the index, together with a test that names it, and in a command
//! below. Links of a row that leave the folder lead to its tests and to pages; all others are files
//! of examples.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::sources::links;

/// The index.
const INDEX: &str = "examples/README.md";
/// Extensions of the files that are examples.
const EXAMPLES: [&str; 4] = ["c", "cpp", "rs", "py"];
/// Folders whose files are run by a test that lists the folder.
const LISTED: [&str; 2] = ["c", "cpp"];

/// Every difference between the index, the folder and the tests, as a message.
pub(crate) fn breaches(root: &Path) -> Result<Vec<String>> {
    let index = fs::read_to_string(root.join(INDEX))?;
    let folder = root.join("examples");
    let mut files = BTreeSet::new();
    collect(&folder, &folder, &mut files)?;
    let test = |link: &str| fs::read_to_string(folder.join(link)).ok();
    Ok(compare(&index, &files, test))
}

/// The files below a folder that are examples, relative to `root`.
fn collect(root: &Path, folder: &Path, files: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path: PathBuf = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if EXAMPLES.iter().any(|ending| has_ending(&path, ending)) {
            let name = path.strip_prefix(root)?;
            files.insert(name.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|other| other == ending)
}

/// Compares the index with the examples. `test` returns the text of a test, or `None` if there is
/// no such file.
fn compare(
    index: &str,
    files: &BTreeSet<String>,
    test: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let (table, commands) = index.split_once("\n## ").unwrap_or((index, ""));
    let mut found = Vec::new();
    let mut indexed = BTreeSet::new();
    for row in table.lines().filter(|line| line.starts_with('|')) {
        let is_test = |link: &&str| link.starts_with("../") && !link.ends_with(".md");
        let mut tests = Vec::new();
        for link in links(row).filter(is_test) {
            match test(link) {
                Some(text) => tests.push(text),
                None => found.push(format!(
                    "{INDEX} names the test {link}, which is not there."
                )),
            }
        }
        for example in links(row).filter(|link| !link.starts_with("../")) {
            let path = Path::new(example);
            if !EXAMPLES.iter().any(|ending| has_ending(path, ending)) {
                continue;
            }
            if !files.contains(example) {
                found.push(format!("{INDEX} names {example}, which is not there."));
            } else if !tests.iter().any(|text| runs(text, path)) {
                found.push(format!("{INDEX} names no test that runs {example}."));
            }
            if !has_command(commands, example, path) {
                found.push(format!("{INDEX} has no command for {example}."));
            }
            indexed.insert(example.to_owned());
        }
    }
    let absent = files.difference(&indexed);
    found.extend(absent.map(|file| format!("{INDEX} does not name {file}.")));
    found
}

/// Whether a test names an example, or lists its folder.
fn runs(test: &str, example: &Path) -> bool {
    let stem = example.file_stem().unwrap_or_default().to_string_lossy();
    let is_listed = LISTED.iter().any(|folder| {
        let is_in = example.parent() == Some(Path::new(folder));
        is_in && test.contains(&format!("\"examples/{folder}\""))
    });
    is_listed || has_word(test, &stem)
}

/// Whether a command has the path of an example, or the program that cargo makes of it.
fn has_command(commands: &str, example: &str, path: &Path) -> bool {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let is_built = has_ending(path, "rs") && {
        let programs = [
            format!("target/release/examples/{stem}"),
            format!("target/release/examples/lib{stem}.so"),
        ];
        programs.iter().any(|program| has_word(commands, program))
    };
    is_built || commands.contains(&format!("examples/{example}"))
}

/// Whether a text has a word, not merely a longer one that contains it.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::compare;

    const INDEX: &str = "# Examples\n\n| task | C | Rust | tests |\n|---|---|---|---|\n\
        | [first](../docs/first.md) | [a.c](c/a.c) | [a.rs](rust/a.rs) | [t.rs](../t.rs) |\n\
        | plug-in | | [b.rs](updates/b.rs), [b.toml](updates/b.toml) | [u.rs](../u.rs) |\n\n\
        ## Commands\n\ncc examples/c/a.c\ntarget/release/examples/a\ntarget/release/examples/libb.so=1\n";

    fn found(index: &str, files: &[&str], tests: [&str; 2]) -> Vec<String> {
        let files: BTreeSet<String> = files.iter().map(|&file| file.to_owned()).collect();
        let test = |link: &str| match link {
            "../t.rs" => Some(tests[0].to_owned()),
            "../u.rs" => Some(tests[1].to_owned()),
            _ => None,
        };
        compare(index, &files, test)
    }

    const FILES: [&str; 3] = ["c/a.c", "rust/a.rs", "updates/b.rs"];

    #[test]
    fn complete_index_has_no_breach() {
        let none = Vec::<String>::new();
        assert_eq!(found(INDEX, &FILES, ["run(\"a\")", "libb.so b "]), none);
    }

    #[test]
    fn example_that_the_index_omits_is_found() {
        let files = [&FILES[..], &["python/c.py"]].concat();
        assert_eq!(
            found(INDEX, &files, ["a", "b"]),
            ["examples/README.md does not name python/c.py."]
        );
    }

    #[test]
    fn indexed_example_that_does_not_exist_is_found() {
        assert_eq!(
            found(INDEX, &FILES[1..], ["a", "b"]),
            ["examples/README.md names c/a.c, which is not there."]
        );
    }

    #[test]
    fn example_without_a_test_is_found() {
        // A test that lists the folder runs the example in C only.
        assert_eq!(
            found(INDEX, &FILES, ["[\"examples/c\"]", "ab b_c"]),
            [
                "examples/README.md names no test that runs rust/a.rs.",
                "examples/README.md names no test that runs updates/b.rs."
            ]
        );
        let index = INDEX.replace("../u.rs", "../v.rs");
        assert_eq!(
            found(&index, &FILES, ["a", "b"]),
            [
                "examples/README.md names the test ../v.rs, which is not there.",
                "examples/README.md names no test that runs updates/b.rs."
            ]
        );
    }

    #[test]
    fn example_without_a_command_is_found() {
        let index = INDEX.replace("examples/libb.so", "examples/libbc.so");
        let index = index.replace("cc examples/c/a.c\n", "");
        assert_eq!(
            found(&index, &FILES, ["a", "b"]),
            [
                "examples/README.md has no command for c/a.c.",
                "examples/README.md has no command for updates/b.rs."
            ]
        );
    }
}
