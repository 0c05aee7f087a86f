// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules for every file of the repository.
//!
//! - Each source has a licence line, and comments of at most 100 columns.
//! - No path exists on one developer's machine only.
//! - Documents link to files and sections that exist, and the table of contents names every page.
//! - Every citation has an entry in the list of references.
//! - No public type name stands in two crates.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::exceptions::Exceptions;
use crate::names::TypeNames;
use crate::references;
use crate::workspace::Workspace;

/// Extensions of the files with a licence line.
const SOURCES: [&str; 8] = ["rs", "c", "h", "hpp", "cpp", "js", "py", "sh"];
/// Extensions of other text files.
const TEXTS: [&str; 6] = ["md", "toml", "html", "css", "txt", "json"];
/// Folders without files of the repository.
const SKIPPED: [&str; 7] = [
    "target",
    "out",
    ".git",
    "corpus",
    "artifacts",
    "node_modules",
    ".venv",
];
/// Folders of single machines; each is split here so that this file obeys its own rule.
const MACHINE_PATHS: [&str; 4] = [
    concat!("/ro", "ot/"),
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/tmp/", "target"),
];

/// The table of contents of the site.
pub(crate) const CONTENTS: &str = "docs/SUMMARY.md";
/// Columns of a comment.
const COMMENT_COLUMNS: usize = 100;

/// Every breach in the repository, as a message.
pub(crate) fn breaches(workspace: &Workspace) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(&workspace.root, &workspace.target, &mut files)?;
    files.sort();
    let list = fs::read_to_string(workspace.root.join(CONTENTS))?;
    let page = fs::read_to_string(workspace.root.join(references::PAGE))?;
    let keys = references::keys(&page);
    let exceptions = Exceptions::load(workspace)?;
    let mut found = references::page_breaches(&page);
    let mut types = TypeNames::default();
    let mut long_comments = Vec::new();
    for file in files {
        let name = file
            .strip_prefix(&workspace.root)
            .unwrap_or(&file)
            .display()
            .to_string();
        if is_unlisted(&name, &list) {
            found.push(format!("{CONTENTS} has no link to {name}."));
        }
        let ending = file.extension().unwrap_or_default().to_string_lossy();
        let source = SOURCES.contains(&&*ending);
        if source || TEXTS.contains(&&*ending) {
            let text = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
            found.extend(check(&name, &text, source));
            if source || ending == "md" {
                found.extend(references::breaches(&name, &text, &keys));
            }
            if source {
                types.add(&name, &text);
                let long = long_comment_lines(&text);
                long_comments.extend(long.map(|line| format!("{name}:{line}")));
            }
            if ending == "md" {
                let folder = file.parent().unwrap_or(&workspace.root);
                let dead = links(&text).filter(|link| !folder.join(link).exists());
                found.extend(
                    dead.map(|link| format!("{name} links to {link}, which is not there.")),
                );
                found.extend(dead_sections(&name, &file, &text));
            }
        }
    }
    found.extend(types.breaches(&exceptions));
    let wide = long_comments
        .into_iter()
        .map(|at| format!("{at} is a comment wider than {COMMENT_COLUMNS} columns."));
    found.extend(wide);
    Ok(found)
}

/// The numbers of lines that hold nothing but a comment and are too wide. A line without a space to
/// break at, a row of a table and a line of a macro in C may be.
fn long_comment_lines(text: &str) -> impl Iterator<Item = usize> + '_ {
    let long = text.lines().enumerate().filter(|(_, line)| {
        let comment = line.trim_start();
        let is_comment = ["//", "/*", "* ", "# "]
            .iter()
            .any(|begin| comment.starts_with(begin));
        let words: Vec<&str> = comment.split(' ').collect();
        let may_be_wide = words.len() < 3 || words[1] == "|" || line.ends_with('\\');
        is_comment && line.chars().count() > COMMENT_COLUMNS && !may_be_wide
    });
    long.map(|(index, _)| index + 1)
}

/// Links of a page to absent sections, as messages.
fn dead_sections(name: &str, file: &Path, text: &str) -> Vec<String> {
    let folder = file.parent().unwrap_or(file);
    let mut found = Vec::new();
    for target in targets(text) {
        let Some((page, section)) = target.split_once('#') else {
            continue;
        };
        let there = if page.is_empty() {
            Ok(text.to_owned())
        } else if page.ends_with(".md") {
            fs::read_to_string(folder.join(page))
        } else {
            continue;
        };
        // An absent page is another breach.
        if there.is_ok_and(|there| !sections(&there).any(|other| other == section)) {
            found.push(format!(
                "{name} links to the section {target}, which is not there."
            ));
        }
    }
    found
}

/// The names by which the headings of a page are linked to, as mdBook and code hosts form them.
fn sections(text: &str) -> impl Iterator<Item = String> + '_ {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let title = line.trim_start_matches('#').trim();
        // Only the text of a link in a heading counts.
        let mut plain = String::new();
        for (index, part) in title.split("](").enumerate() {
            let rest = if index == 0 {
                part
            } else {
                part.split_once(')').map_or("", |(_, rest)| rest)
            };
            plain.push_str(rest);
        }
        let letters = plain.chars().filter_map(|letter| match letter {
            letter if letter.is_whitespace() => Some('-'),
            letter if letter.is_alphanumeric() || "-_".contains(letter) => Some(letter),
            _ => None,
        });
        letters.flat_map(char::to_lowercase).collect()
    })
}

fn collect(folder: &Path, target: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, kind) = (entry.path(), entry.file_type()?);
        if kind.is_dir() {
            let name = entry.file_name();
            if path != target && !SKIPPED.iter().any(|skipped| name == *skipped) {
                collect(&path, target, files)?;
            }
        } else if kind.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn check(name: &str, text: &str, source: bool) -> Vec<String> {
    let mut found = Vec::new();
    if source
        && !text
            .lines()
            .take(5)
            .any(|line| line.contains("SPDX-License-Identifier: "))
    {
        found.push(format!(
            "{name} has no SPDX-License-Identifier in its first five lines."
        ));
    }
    for (index, line) in text.lines().enumerate() {
        for path in MACHINE_PATHS.iter().filter(|path| names_path(line, path)) {
            found.push(format!(
                "{name}:{} names {path}, a folder of one machine.",
                index + 1
            ));
        }
    }
    found
}

/// The files that a Markdown text links to, relative to its own place.
pub(crate) fn links(text: &str) -> impl Iterator<Item = &str> {
    let files = targets(text).filter(|target| !target.starts_with('#'));
    files.map(|target| target.split_once('#').map_or(target, |(file, _)| file))
}

/// What a Markdown text links to but addresses: files, sections, or sections of files.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0));
    targets.filter(|target| !target.contains("://"))
}

/// Whether this is a page of the documentation that the list of pages does not link to.
fn is_unlisted(name: &str, list: &str) -> bool {
    let page = name
        .strip_prefix("docs/")
        .filter(|page| page.ends_with(".md"));
    page.is_some_and(|page| page != "SUMMARY.md" && !links(list).any(|link| link == page))
}

/// Whether the line has this absolute path, not merely a longer one that contains it.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-}>)".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::{
        check, dead_sections, is_unlisted, links, long_comment_lines, sections, MACHINE_PATHS,
    };

    #[test]
    fn sources_need_a_licence_line_and_texts_do_not() {
        let licence = "// SPDX-License-Identifier: MIT OR Apache-2.0\n";
        assert_eq!(check("a.rs", licence, true), Vec::<String>::new());
        assert_eq!(check("a.md", "# A\n", false), Vec::<String>::new());
        assert_eq!(
            check("a.rs", "fn a() {}\n", true),
            ["a.rs has no SPDX-License-Identifier in its first five lines."]
        );
    }

    #[test]
    fn paths_of_one_machine_are_found_and_longer_ones_are_not() {
        for path in MACHINE_PATHS {
            let found = check("a.md", &format!("first\nsee {path}x\n"), false);
            assert_eq!(
                found,
                [format!("a.md:2 names {path}, a folder of one machine.")]
            );
            assert_eq!(
                check("a.md", &format!("see $DIR/a{path}x\n"), false),
                Vec::<String>::new()
            );
        }
    }

    #[test]
    fn pages_that_the_list_does_not_name_are_found() {
        let list = "- [Report](report.md): what it says";
        for (name, unlisted) in [
            ("docs/report.md", false),
            ("docs/SUMMARY.md", false),
            ("docs/pictures/matrix.svg", false),
            ("README.md", false),
            ("docs/abi/stream-layout.md", true),
        ] {
            assert_eq!(is_unlisted(name, list), unlisted, "{name}");
        }
    }

    #[test]
    fn links_to_files_are_found_without_their_sections() {
        let text = "[a](a.md), [b](../b.rs#L3), [c](https://example.org/c), [d](#d) and (e.md)";
        assert_eq!(links(text).collect::<Vec<_>>(), ["a.md", "../b.rs"]);
    }

    #[test]
    fn sections_have_the_names_of_their_headings() {
        let text = "# The `house`, and [more](a.md) of it\n\ntext\n## A_b-C 2.1\n";
        assert_eq!(
            sections(text).collect::<Vec<_>>(),
            ["the-house-and-more-of-it", "a_b-c-21"]
        );
    }

    #[test]
    fn links_to_absent_sections_are_found() {
        let text = "# Here\n[a](#here) [b](#there) [c](absent.md#x) [d](e.rs#L3)";
        assert_eq!(
            dead_sections("a.md", "a.md".as_ref(), text),
            ["a.md links to the section #there, which is not there."]
        );
    }

    #[test]
    fn wide_comments_are_found_and_wide_code_is_not() {
        let long = "word ".repeat(20);
        let text = format!(
            "// {long}\n// short\nlet a = \"{long}\"; // code\n    * {long}\n// {}\n//! | {long}\n/* {long}\\\n",
            "x".repeat(120)
        );
        assert_eq!(long_comment_lines(&text).collect::<Vec<_>>(), [1, 4]);
    }
}
