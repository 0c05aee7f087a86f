// SPDX-License-Identifier: MIT OR Apache-2.0
//! Circles of modules: files of one crate that name each other through `crate::` paths.
//!
//! A file is a module; an arrow goes from a file to the file that defines the module it names.
//! Files that reach each other along arrows are a circle: none of them can be read, moved or tested
//! without the others. Tests are left out, and so are `super::` paths, by which the parts of one
//! noun name each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::workspace::Workspace;

/// Files that a circle may have.
const MOST_FILES: usize = 3;

/// The files of a crate, by module path (`a::b`; empty for the root), with the modules that each
/// names.
type Graph = BTreeMap<String, BTreeSet<String>>;

/// The circles of all crates as lines, and the breaches as messages.
pub(crate) fn circles(workspace: &Workspace) -> Result<(Vec<String>, Vec<String>)> {
    let (mut lines, mut breaches) = (Vec::new(), Vec::new());
    let mut crates: Vec<PathBuf> = fs::read_dir(workspace.root.join("crates"))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    crates.extend(["demo", "python", "xtask"].map(|name| workspace.root.join(name)));
    crates.sort();
    for folder in crates {
        let source = folder.join("src");
        if !source.is_dir() {
            continue;
        }
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        for circle in components(&graph(&source)?) {
            let files = circle.join(", ");
            lines.push(format!("circle of {} in {name}: {files}", circle.len()));
            if circle.len() > MOST_FILES {
                breaches.push(format!(
                    "{name} has a circle of {} files, more than {MOST_FILES}: {files}.",
                    circle.len()
                ));
            }
        }
    }
    Ok((lines, breaches))
}

fn graph(source: &Path) -> Result<Graph> {
    let mut files = Vec::new();
    collect(source, &mut files)?;
    let mut texts = BTreeMap::new();
    for file in &files {
        let inside = file.strip_prefix(source).unwrap_or(file);
        if let Some(module) = module_of(inside) {
            texts.insert(module, fs::read_to_string(file)?);
        }
    }
    let modules: BTreeSet<String> = texts.keys().cloned().collect();
    Ok(texts
        .iter()
        .map(|(module, text)| {
            let mut named = names(text, &modules);
            named.remove(module);
            (module.clone(), named)
        })
        .collect())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The module that a file defines; `None` for files of tests.
fn module_of(inside: &Path) -> Option<String> {
    let mut parts: Vec<String> = inside
        .with_extension("")
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    if parts
        .iter()
        .any(|part| part == "tests" || part == "testing")
    {
        return None;
    }
    if matches!(
        parts.last().map(String::as_str),
        Some("mod" | "lib" | "main")
    ) {
        parts.pop();
    }
    Some(parts.join("::"))
}

/// The modules that the `crate::` paths of a file name, outside of its tests and comments.
fn names(text: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        // `some_crate::x` is another crate.
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        for path in paths(&code[at + "crate::".len()..]) {
            found.extend(defining(&path, modules));
        }
    }
    found
}

/// The paths of a `use`, with groups one level deep written out: `a::{b, c::D}` is `a::b` and
/// `a::c::D`.
fn paths(text: &str) -> Vec<String> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let end = text.find(|c| !is_path(c)).unwrap_or(text.len());
    let (head, rest) = text.split_at(end);
    let Some(group) = rest
        .strip_prefix('{')
        .filter(|_| head.is_empty() || head.ends_with("::"))
    else {
        return vec![head.to_owned()];
    };
    let group = group.split('}').next().unwrap_or_default();
    group
        .split(',')
        .map(|member| {
            format!(
                "{head}{}",
                member.trim().split(" as ").next().unwrap_or_default()
            )
        })
        .collect()
}

/// The longest prefix of a path that is a module with a file.
fn defining(path: &str, modules: &BTreeSet<String>) -> Option<String> {
    let parts: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
    (1..=parts.len())
        .rev()
        .map(|length| parts[..length].join("::"))
        .find(|prefix| modules.contains(prefix))
}

/// The strongly connected components of more than one module, largest first (Tarjan 1972).
fn components(graph: &Graph) -> Vec<Vec<String>> {
    let mut search = Search {
        graph,
        numbers: BTreeMap::new(),
        stack: Vec::new(),
        found: Vec::new(),
    };
    for module in graph.keys() {
        if !search.numbers.contains_key(module.as_str()) {
            search.visit(module);
        }
    }
    search
        .found
        .sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    search.found
}

struct Search<'a> {
    graph: &'a Graph,
    /// Number and lowest reachable number of each visited module.
    numbers: BTreeMap<&'a str, (usize, usize)>,
    stack: Vec<&'a str>,
    found: Vec<Vec<String>>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, module: &'a str) -> usize {
        let number = self.numbers.len();
        self.numbers.insert(module, (number, number));
        self.stack.push(module);
        let mut lowest = number;
        for next in self.graph.get(module).into_iter().flatten() {
            let Some((next, _)) = self.graph.get_key_value(next) else {
                continue;
            };
            match self.numbers.get(next.as_str()) {
                None => lowest = lowest.min(self.visit(next)),
                Some((other, _)) if self.stack.contains(&next.as_str()) => {
                    lowest = lowest.min(*other);
                }
                Some(_) => {}
            }
        }
        self.numbers.insert(module, (number, lowest));
        if lowest == number {
            let at = self.stack.iter().position(|one| *one == module);
            let circle = self.stack.split_off(at.unwrap_or_default());
            if circle.len() > 1 {
                let mut circle: Vec<String> = circle.into_iter().map(str::to_owned).collect();
                circle.sort();
                self.found.push(circle);
            }
        }
        lowest
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{components, names};

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn paths_name_the_module_that_has_a_file() {
        let modules = set(&["a", "a::b", "c", "d"]);
        let text = "use crate::a::b::Thing;\nuse crate::{c, unknown};\n// crate::d\nfn f() { other_crate::d::x() }\n";
        assert_eq!(names(text, &modules), set(&["a::b", "c"]));
        let tested = "use crate::a::{self, Thing};\n#[cfg(test)]\nmod tests { use crate::d; }\n";
        assert_eq!(names(tested, &modules), set(&["a"]));
    }

    #[test]
    fn circles_are_found_and_chains_are_none() {
        let graph = BTreeMap::from([
            ("a".to_owned(), set(&["b"])),
            ("b".to_owned(), set(&["c"])),
            ("c".to_owned(), set(&["a", "d"])),
            ("d".to_owned(), set(&["e"])),
            ("e".to_owned(), set(&[])),
        ]);
        assert_eq!(components(&graph), [["a", "b", "c"]]);
    }
}
