// SPDX-License-Identifier: MIT OR Apache-2.0
//! Planted faults: each must fail the test that is named for it.
//!
//! The list is `xtask/mutants.json`. A fault replaces one piece of text, which occurs exactly once
//! in its file. [`run`] checks HEAD out into a scratch worktree with a target folder of its own.
//! There each named test must pass first; then each fault is planted alone, the workspace must
//! still compile, and the named test must fail. `docs/testing.md` shows the list; a test compares
//! them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{bail, ensure, Context, Result};
use serde_json::Value;

use crate::packages::{self, BUILD};
use crate::shell;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Packages that are optimized for their longest tests. Here most of the time is spent on
/// compilation.
const NOT_OPTIMIZED: [&str; 3] = ["overhear-event", "overhear-metrics", "overhear-trace"];

/// The path of the list, from the root of the repository.
const LIST: &str = "xtask/mutants.json";

/// A fault and the test that finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mutant {
    /// The part of the system, for people.
    part: String,
    /// The file, from the root of the repository.
    file: String,
    /// Text that occurs once in the file.
    from: String,
    to: String,
    test: NamedTest,
}

/// A test of a package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NamedTest {
    package: String,
    /// `None` for the tests in the package's library.
    target: Option<String>,
    name: String,
}

impl NamedTest {
    fn command(&self, tree: &Path, target: &Path) -> Command {
        let mut cargo = shell::cargo(tree);
        cargo.env("CARGO_TARGET_DIR", target);
        for package in NOT_OPTIMIZED {
            let setting = format!("profile.dev.package.{package}.opt-level=0");
            cargo.args(["--config", &setting]);
        }
        cargo.args(["test", "--quiet", "-p", &self.package]);
        match &self.target {
            Some(target) => cargo.args(["--test", target]),
            None => cargo.arg("--lib"),
        };
        cargo
    }

    /// Builds the test, and runs it alone. `None` if it does not compile.
    fn passes(&self, tree: &Path, target: &Path) -> Result<Option<bool>> {
        if shell::output(self.command(tree, target).arg("--no-run")).is_err() {
            return Ok(None);
        }
        let mut run = self.command(tree, target);
        let run = run.args(["--", "--exact", &self.name]).output()?;
        let text = String::from_utf8_lossy(&run.stdout);
        let ran = ["1 passed", "1 failed"];
        // A process that dies (by an abort, or by a stack overflow) prints no summary.
        let is_named = ran.iter().any(|it| text.contains(it)) || run.status.code() != Some(0);
        ensure!(is_named, "{self}: there is no such test");
        Ok(Some(run.status.success()))
    }
}

impl std::fmt::Display for NamedTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let target = self.target.as_deref().unwrap_or("lib");
        write!(f, "{} ({target}): {}", self.package, self.name)
    }
}

/// Parses the list.
fn parse(text: &str) -> Result<Vec<Mutant>> {
    let list: Value = serde_json::from_str(text)?;
    let list = list.as_array().context("the list is no array")?;
    let mutant = |entry: &Value| -> Result<Mutant> {
        let text = |key: &str| {
            let found = entry.get(key).and_then(Value::as_str);
            let found = found.with_context(|| format!("an entry has no text {key:?}: {entry}"))?;
            Ok::<_, anyhow::Error>(found.to_owned())
        };
        let target = entry.get("target").and_then(Value::as_str);
        Ok(Mutant {
            part: text("part")?,
            file: text("file")?,
            from: text("from")?,
            to: text("to")?,
            test: NamedTest {
                package: text("package")?,
                target: target.map(str::to_owned),
                name: text("test")?,
            },
        })
    };
    list.iter().map(mutant).collect()
}

/// The source with the fault.
fn planted(source: &str, mutant: &Mutant) -> Result<String> {
    let count = source.matches(&mutant.from).count();
    ensure!(
        count == 1,
        "{}: `{}` occurs {count} times, not once",
        mutant.file,
        mutant.from
    );
    Ok(source.replacen(&mutant.from, &mutant.to, 1))
}

/// A worktree of HEAD, removed on drop.
struct Scratch<'a> {
    root: &'a Path,
    tree: PathBuf,
}

impl<'a> Scratch<'a> {
    fn new(root: &'a Path, folder: &Path) -> Result<Self> {
        let tree = folder.join("tree");
        let scratch = Self { root, tree };
        // The worktree of an interrupted run.
        scratch.remove();
        let mut add = scratch.git();
        add.args(["worktree", "add", "--quiet", "--detach"]);
        shell::run(add.arg(&scratch.tree).arg("HEAD"))?;
        Ok(scratch)
    }

    fn git(&self) -> Command {
        let mut git = Command::new("git");
        git.arg("-C").arg(self.root);
        git
    }

    fn remove(&self) {
        let mut remove = self.git();
        remove.args(["worktree", "remove", "--force"]);
        let _ = shell::succeeds(remove.arg(&self.tree));
        let _ = fs::remove_dir_all(&self.tree);
        let _ = shell::succeeds(self.git().args(["worktree", "prune"]));
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Plants the faults whose part, file or test contains one of these words, or all, one after the
/// other.
pub(crate) fn run(workspace: &Workspace, words: &[String]) -> Result<Tally> {
    packages::ensure(&[BUILD])?;
    let mutants = parse(&fs::read_to_string(workspace.root.join(LIST))?)?;
    let is_chosen = |mutant: &&Mutant| {
        let texts = [&mutant.part, &mutant.file, &mutant.test.name];
        let has = |word: &String| texts.iter().any(|text| text.contains(word.as_str()));
        words.is_empty() || words.iter().any(has)
    };
    let chosen: Vec<&Mutant> = mutants.iter().filter(is_chosen).collect();
    ensure!(!chosen.is_empty(), "{LIST} has no such fault");
    let folder = workspace.target.join("mutants");
    let (scratch, target) = (
        Scratch::new(&workspace.root, &folder)?,
        folder.join("target"),
    );
    let mut tally = Tally::default();
    let mut sound = BTreeSet::new();
    for test in chosen.iter().map(|it| &it.test).collect::<BTreeSet<_>>() {
        match test.passes(&scratch.tree, &target)? {
            Some(true) => {
                sound.insert(test);
            }
            Some(false) => tally.fail(format!("{test} fails without any fault")),
            None => bail!("{test} does not compile"),
        }
    }
    println!("{} tests pass without fault", sound.len());
    for mutant in chosen.into_iter().filter(|it| sound.contains(&it.test)) {
        let file = scratch.tree.join(&mutant.file);
        let source = fs::read_to_string(&file)?;
        let name = format!(
            "{}: `{}` for `{}`",
            mutant.file,
            mutant.to.trim(),
            mutant.from.trim()
        );
        fs::write(&file, planted(&source, mutant)?)?;
        let passes = mutant.test.passes(&scratch.tree, &target);
        fs::write(&file, source)?;
        match passes? {
            Some(false) => {
                println!("caught: {name}");
                tally.pass();
            }
            Some(true) => tally.fail(format!("{name}: {} does not find it", mutant.test)),
            None => tally.fail(format!("{name}: does not compile")),
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{parse, planted, Mutant, LIST};

    const BEGIN: &str = "<!-- faults: begin -->\n";
    const END: &str = "<!-- faults: end -->\n";

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn list() -> Vec<Mutant> {
        parse(&fs::read_to_string(root().join(LIST)).unwrap()).unwrap()
    }

    /// The table of `docs/testing.md`.
    fn table(mutants: &[Mutant]) -> String {
        let code = |text: &str| {
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            format!("`{}`", line.replace('|', "\\|"))
        };
        let mut table =
            "| part | file | correct | fault | test that fails |\n|---|---|---|---|---|\n"
                .to_owned();
        for mutant in mutants {
            let test = &mutant.test;
            let target = test.target.as_deref().map(|it| format!("{it}::"));
            let _ = writeln!(
                table,
                "| {} | [{}](../{}) | {} | {} | {}: `{}{}` |",
                mutant.part,
                mutant.file.rsplit('/').next().unwrap_or_default(),
                mutant.file,
                code(&mutant.from),
                match mutant.to.trim() {
                    "" => "(removed)".to_owned(),
                    text => code(text),
                },
                test.package,
                target.unwrap_or_default(),
                test.name,
            );
        }
        table
    }

    #[test]
    fn every_fault_can_be_planted() {
        let mutants = list();
        assert!(mutants.len() >= 30);
        for mutant in &mutants {
            let source = fs::read_to_string(root().join(&mutant.file)).unwrap();
            assert_ne!(planted(&source, mutant).unwrap(), source);
            let (_, test) = mutant
                .test
                .name
                .rsplit_once("::")
                .unwrap_or(("", &mutant.test.name));
            let package = root().join("crates").join(&mutant.test.package);
            assert!(has_test(&package, test), "{}", mutant.test);
        }
        let distinct: BTreeSet<_> = mutants
            .iter()
            .map(|it| (&it.file, &it.from, &it.to))
            .collect();
        assert_eq!(distinct.len(), mutants.len());
    }

    /// Whether a source below the folder has a function of this name.
    fn has_test(folder: &Path, name: &str) -> bool {
        fs::read_dir(folder).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                return has_test(&path, name);
            }
            let text = fs::read_to_string(&path).unwrap_or_default();
            text.contains(&format!("fn {name}("))
        })
    }

    /// `OVERHEAR_BLESS=1` writes the page.
    #[test]
    fn page_shows_the_list() {
        let page = root().join("docs/testing.md");
        let text = fs::read_to_string(&page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let expected = format!("{before}{BEGIN}{}{END}{after}", table(&list()));
        if std::env::var_os("OVERHEAR_BLESS").is_some() {
            fs::write(&page, &expected).unwrap();
        } else {
            assert_eq!(
                text, expected,
                "type `OVERHEAR_BLESS=1 cargo test -p xtask page_shows_the_list`"
            );
        }
    }

    #[test]
    fn text_that_does_not_occur_once_is_refused() {
        let mut mutant = list().swap_remove(0);
        mutant.from = "a".to_owned();
        assert!(planted("b", &mutant).is_err());
        assert!(planted("aa", &mutant).is_err());
        mutant.to = "c".to_owned();
        assert_eq!(planted("ba", &mutant).unwrap(), "bc");
    }
}
