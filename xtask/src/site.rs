// SPDX-License-Identifier: MIT OR Apache-2.0
//! The documentation site: the pages below `docs/`, by mdBook.
//!
//! mdBook takes pages of one folder only, and pages here link to sources and to pages in the root.
//! So the pages are copied below the target folder first, with every file outside `docs/` that one
//! of them links to, and links are changed to these copies. The finished site needs no other file,
//! and each local link in it is checked.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::shell;
use crate::sources::{links, CONTENTS};
use crate::tools;
use crate::workspace::Workspace;

/// The version that the pages are tested with.
const MDBOOK: &str = "0.5.4";
/// The folder for files from outside `docs/`, below the copy of `docs/`.
const OUTSIDE: &str = "repository";

/// Builds the site, and returns its first page.
pub(crate) fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mdbook = tools::program(workspace, "mdbook", MDBOOK)?;
    let stage = workspace.target.join("site");
    if stage.exists() {
        fs::remove_dir_all(&stage)?;
    }
    let pages = stage.join("docs");
    copy_folder(&workspace.root.join("docs"), &pages)?;
    fs::rename(pages.join("README.md"), pages.join("index.md"))?;
    fs::copy(workspace.root.join("book.toml"), stage.join("book.toml"))?;
    let contents = fs::read_to_string(workspace.root.join(CONTENTS))?;
    let chapters: BTreeSet<PathBuf> = links(&contents)
        .filter_map(|link| resolve(Path::new(CONTENTS), link))
        .collect();
    // Chapters from outside can link to further files, until no new one is named.
    let mut seen = BTreeSet::new();
    let mut new = files(&pages, "md")?;
    while let Some(page) = new.pop() {
        let inner = page.strip_prefix(&pages)?.to_owned();
        let origin = origin(&inner);
        let text = fs::read_to_string(&page)?;
        let mut changed = text.clone();
        for link in links(&text) {
            let Some(target) = resolve(&origin, link) else {
                continue;
            };
            let source = workspace.root.join(&target);
            if !source.is_file() {
                continue;
            }
            let copy = staged(&target, chapters.contains(&target));
            if !target.starts_with("docs") && seen.insert(copy.clone()) {
                let to = pages.join(&copy);
                fs::create_dir_all(to.parent().unwrap_or(&pages))?;
                fs::copy(&source, &to)?;
                if to.extension() == Some(OsStr::new("md")) {
                    new.push(to);
                }
            }
            changed = replace_link(&changed, link, &between(&inner, &copy));
        }
        fs::write(&page, changed)?;
    }
    shell::run(Command::new(mdbook).arg("build").arg(&stage))?;
    let site = stage.join("book");
    let dead = dead_links(&site)?;
    ensure!(
        dead.is_empty(),
        "the site has dead links:\n{}",
        dead.join("\n")
    );
    Ok(site.join("index.html"))
}

/// Where a page of the copy comes from, from the root of the repository.
fn origin(inner: &Path) -> PathBuf {
    let path = match inner.strip_prefix(OUTSIDE) {
        Ok(outside) => outside.to_owned(),
        Err(_) => Path::new("docs").join(inner),
    };
    match path.file_name() {
        Some(name) if name == "index.md" => path.with_file_name("README.md"),
        _ => path,
    }
}

/// Where a file of the repository is put, below the copy of `docs/`. A README becomes the index of
/// its folder. Other files than chapters become texts, because browsers show these.
fn staged(target: &Path, is_chapter: bool) -> PathBuf {
    let (path, outside) = match target.strip_prefix("docs") {
        Ok(inner) => (inner.to_owned(), false),
        Err(_) => (Path::new(OUTSIDE).join(target), true),
    };
    if outside && !is_chapter {
        // mdBook replaces `.md` at the end of every link.
        let mut name = match path.extension() {
            Some(ending) if ending == "md" => path.with_extension("markdown"),
            _ => path,
        }
        .into_os_string();
        name.push(".txt");
        return name.into();
    }
    match path.file_name() {
        Some(name) if name == "README.md" => path.with_file_name("index.md"),
        _ => path,
    }
}

/// The file that a link of a page means, from the root of the repository; `None` outside of it.
fn resolve(page: &Path, link: &str) -> Option<PathBuf> {
    let mut path = page.parent()?.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// The link from one file to another, both below the same folder.
fn between(from: &Path, to: &Path) -> String {
    let up = from.components().count() - 1;
    format!("{}{}", "../".repeat(up), to.display())
}

/// Puts another file into each link to this one; the section stays.
fn replace_link(text: &str, from: &str, to: &str) -> String {
    let text = text.replace(&format!("]({from})"), &format!("]({to})"));
    text.replace(&format!("]({from}#"), &format!("]({to}#"))
}

/// Local links of finished pages that lead nowhere, as messages.
fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut dead = Vec::new();
    for page in files(site, "html")? {
        let text = fs::read_to_string(&page)?;
        let folder = page.parent().unwrap_or(site);
        for (_, rest) in text
            .match_indices("href=\"")
            .map(|(at, it)| text[at..].split_at(it.len()))
        {
            let link = rest.split('"').next().unwrap_or_default();
            let file = link.split(['#', '?']).next().unwrap_or_default();
            // An address, a section of the page itself, or a link of the 404 page to the root.
            if file.is_empty() || file.contains(':') || file.starts_with('/') {
                continue;
            }
            if !folder.join(file).exists() {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(dead)
}

/// All files with an extension, in subfolders as well.
fn files(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            found.extend(files(&path, ending)?);
        } else if path.extension() == Some(OsStr::new(ending)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("{} is missing", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{between, origin, replace_link, resolve, staged};

    #[test]
    fn links_are_resolved_from_their_page() {
        let resolved = |page: &str, link: &str| resolve(Path::new(page), link);
        assert_eq!(
            resolved("docs/abi/a.md", "../../crates/b.rs").as_deref(),
            Some(Path::new("crates/b.rs"))
        );
        assert_eq!(resolved("docs/a.md", "../../b.rs"), None);
        assert_eq!(resolved("docs/a.md", "/etc/b"), None);
    }

    #[test]
    fn files_have_a_target_and_chapters_are_mapped_back() {
        let put = |target: &str, is_chapter| staged(Path::new(target), is_chapter);
        let source = put("crates/b.rs", false);
        assert_eq!(source, Path::new("repository/crates/b.rs.txt"));
        assert_eq!(
            put("crates/b.md", false),
            Path::new("repository/crates/b.markdown.txt")
        );
        for (target, copy) in [
            ("ROADMAP.md", "repository/ROADMAP.md"),
            ("README.md", "repository/index.md"),
            ("docs/README.md", "index.md"),
            ("docs/abi/a.md", "abi/a.md"),
        ] {
            assert_eq!(put(target, true), Path::new(copy));
            assert_eq!(origin(Path::new(copy)), Path::new(target));
        }
        assert_eq!(
            between(Path::new("abi/a.md"), &source),
            "../repository/crates/b.rs.txt"
        );
    }

    #[test]
    fn replaced_links_keep_their_section_and_longer_ones_stay() {
        assert_eq!(
            replace_link(
                "[a](b.md) [c](b.md#d) [e](b.md.txt) b.md",
                "b.md",
                "../x.md"
            ),
            "[a](../x.md) [c](../x.md#d) [e](b.md.txt) b.md"
        );
    }
}
