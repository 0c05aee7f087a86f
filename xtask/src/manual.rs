// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manual pages of the POSIX trace interface: one for each group of functions, and one for
//! `<trace.h>`. Each further function of a page is a file that names the page.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The folder of the pages, in the repository.
const FOLDER: &str = "packaging/man";

/// Installs the pages into a folder `man3`.
pub(crate) fn install(root: &Path, folder: &Path) -> Result<()> {
    for (name, text) in pages(root)? {
        fs::write(folder.join(format!("{name}.3")), &text)?;
        for other in names(&text).iter().filter(|other| **other != name) {
            let link = format!(".so man3/{name}.3\n");
            fs::write(folder.join(format!("{other}.3")), link)?;
        }
    }
    Ok(())
}

/// The name and the text of each page.
fn pages(root: &Path) -> Result<Vec<(String, String)>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(root.join(FOLDER))? {
        let path = entry?.path();
        let text = fs::read_to_string(&path)
            .with_context(|| format!("cannot read the manual page {}", path.display()))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        pages.push((name.into_owned(), text));
    }
    pages.sort();
    Ok(pages)
}

/// What a page describes: the names of its section NAME.
fn names(page: &str) -> Vec<&str> {
    section(page, "NAME")
        .lines()
        .filter_map(|line| line.split([',', ' ']).next())
        .collect()
}

/// The text of a section.
fn section<'a>(page: &'a str, name: &str) -> &'a str {
    let (_, text) = page
        .split_once(&format!(".SH {name}\n"))
        .unwrap_or(("", ""));
    text.split_once("\n.SH ").map_or(text, |(text, _)| text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use super::{names, pages, section, FOLDER};
    use crate::posix::prototypes;
    use crate::shell;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// A declaration without spaces that do not matter.
    fn plain(declaration: &str) -> String {
        let words: Vec<&str> = declaration.split_whitespace().collect();
        words.join(" ").replace("* restrict", "*restrict")
    }

    #[test]
    fn pages_have_the_prototypes_of_the_header() {
        let header = fs::read_to_string(root().join("include/overhear/trace.h")).unwrap();
        let header = header.replace("OH_RESTRICT_", "restrict");
        let declared: BTreeSet<String> =
            prototypes(&header).iter().map(|text| plain(text)).collect();
        assert_eq!(declared.len(), 50);
        let mut described = BTreeSet::new();
        for (name, page) in pages(&root()).unwrap() {
            let lines = section(&page, "SYNOPSIS")
                .lines()
                .filter_map(|line| line.strip_prefix(".B \"")?.strip_suffix('"'));
            let synopsis: Vec<&str> = lines.collect();
            let synopsis = synopsis.join(" ");
            let mut of_page = Vec::new();
            for declaration in synopsis.split_inclusive(';') {
                let declaration = plain(declaration.trim_end_matches(';'));
                let (before, _) = declaration.split_once('(').unwrap();
                of_page.push(before.rsplit(' ').next().unwrap().to_owned());
                assert!(described.insert(declaration), "{name}");
            }
            if name != "trace.h" {
                assert_eq!(names(&page), of_page, "{name}");
            }
        }
        assert_eq!(described, declared);
    }

    #[test]
    fn pages_are_formatted_without_warnings() {
        let checks: [(&str, &[&str]); 2] = [
            ("groff", &["-man", "-Tutf8", "-ww", "-z"]),
            ("mandoc", &["-Tlint", "-W", "warning"]),
        ];
        for (program, arguments) in checks {
            if shell::on_path(program).is_none() {
                println!("skipped: {program} is not installed");
                continue;
            }
            for (name, _) in pages(&root()).unwrap() {
                let page = root().join(FOLDER).join(format!("{name}.3"));
                let output = Command::new(program).args(arguments).arg(page).output();
                let output = output.unwrap();
                let text = [output.stdout, output.stderr].concat();
                let text = String::from_utf8_lossy(&text);
                assert!(text.is_empty() && output.status.success(), "{text}");
            }
        }
    }

    #[test]
    fn names_of_a_page_are_those_of_its_section() {
        let page = ".TH a 3\n.SH NAME\na,\nb \\- do something\n.SH LIBRARY\nc\n";
        assert_eq!(names(page), ["a", "b"]);
        assert_eq!(section(page, "LIBRARY"), "c\n");
    }
}
