// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules for every file of the repository: a licence line in each source, no path that exists on
//! one developer's machine only, in documents no link to a file that is not there, and no page that
//! the list of pages does not name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::workspace::Workspace;

/// Endings of the files that carry a licence line.
const SOURCES: [&str; 8] = ["rs", "c", "h", "hpp", "cpp", "js", "py", "sh"];
/// Endings of further files that are text.
const TEXTS: [&str; 6] = ["md", "toml", "html", "css", "txt", "json"];
/// Folders that hold nothing of the repository's own.
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

/// Every breach in the repository, as a sentence.
pub(crate) fn breaches(workspace: &Workspace) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(&workspace.root, &workspace.target, &mut files)?;
    files.sort();
    let mut found = Vec::new();
    let list = fs::read_to_string(workspace.root.join("docs/README.md"))?;
    for file in files {
        let name = file
            .strip_prefix(&workspace.root)
            .unwrap_or(&file)
            .display()
            .to_string();
        if is_unlisted(&name, &list) {
            found.push(format!("docs/README.md has no link to {name}."));
        }
        let ending = file.extension().unwrap_or_default().to_string_lossy();
        let source = SOURCES.contains(&&*ending);
        if source || TEXTS.contains(&&*ending) {
            let text = String::from_utf8_lossy(&fs::read(&file)?).into_owned();
            found.extend(check(&name, &text, source));
            if ending == "md" {
                let folder = file.parent().unwrap_or(&workspace.root);
                let dead = links(&text).filter(|link| !folder.join(link).exists());
                found.extend(
                    dead.map(|link| format!("{name} links to {link}, which is not there.")),
                );
            }
        }
    }
    Ok(found)
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
fn links(text: &str) -> impl Iterator<Item = &str> {
    let targets = text
        .split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0));
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    files.map(|target| target.split_once('#').map_or(target, |(file, _)| file))
}

/// Whether this is a page of the documentation that the list of pages does not link to.
fn is_unlisted(name: &str, list: &str) -> bool {
    let page = name
        .strip_prefix("docs/")
        .filter(|page| page.ends_with(".md"));
    page.is_some_and(|page| page != "README.md" && !links(list).any(|link| link == page))
}

/// Whether the line has this absolute path, not merely a longer one that contains it.
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-}>)".contains(before))
    })
}

#[cfg(test)]
mod tests {
    use super::{check, is_unlisted, links, MACHINE_PATHS};

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
            ("docs/README.md", false),
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
}
