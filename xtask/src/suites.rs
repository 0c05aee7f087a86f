// SPDX-License-Identifier: MIT OR Apache-2.0
//! The test suites of other projects, compiled with the pass of the range analysis.
//!
//! Each project is built by `overhear-clang` at three levels of optimisation. Its own suite must
//! succeed without observation, with all updates recorded, and with a budget; the two latter must
//! yield ranges.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::foreign_source::{unpack, Origin};
use crate::packages::{self, BUILD, RANGES, SUITES};
use crate::ranges;
use crate::shell;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// A project with a test suite. Commands are lines of the shell in its folder, with `$CC` and
/// `$CFLAGS`.
struct Project {
    name: &'static str,
    origin: Origin,
    build: &'static str,
    test: &'static str,
}

const PROJECTS: [Project; 4] = [
    Project {
        name: "bzip2",
        origin: Origin::Debian("bzip2"),
        build: "make CC=$CC CFLAGS=\"$CFLAGS -D_FILE_OFFSET_BITS=64\" bzip2",
        test: "make CC=$CC CFLAGS=\"$CFLAGS -D_FILE_OFFSET_BITS=64\" test",
    },
    Project {
        name: "zlib",
        origin: Origin::Debian("zlib"),
        build: "./configure && make",
        test: "make test",
    },
    Project {
        name: "lua",
        // Debian's package has no tests.
        origin: Origin::Git("https://github.com/lua/lua", "v5.4.4"),
        build: "make CC=$CC CFLAGS=\"$CFLAGS -std=c99 -DLUA_USE_LINUX -DLUA_COMPAT_5_3\" \
                MYLIBS='-ldl -Wl,-E' lua",
        test: "cd testes && ../lua -e_U=true all.lua",
    },
    Project {
        name: "sqlite",
        origin: Origin::Debian("sqlite3"),
        build: "./configure --with-tcl=/usr/lib/tcl8.6 && make testfixture",
        test: "./testfixture test/veryquick.test",
    },
];

const LEVELS: [&str; 3] = ["-O0", "-O2", "-O3"];

/// Budgets of the runs; none is a run outside of `overhear ranges`.
const BUDGETS: [Option<&str>; 3] = [None, Some("full"), Some("10%")];

/// Runs the suites of the projects and levels that the arguments name; of all without arguments.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<Tally> {
    packages::ensure(&[BUILD, RANGES, SUITES])?;
    let is_chosen = |names: &[&str], name: &str| {
        arguments.iter().any(|word| word == name)
            || !arguments.iter().any(|word| names.contains(&word.as_str()))
    };
    let names = PROJECTS.map(|project| project.name);
    let unknown = arguments.iter().find(|word| {
        let word = word.as_str();
        !names.contains(&word) && !LEVELS.contains(&word)
    });
    ensure!(
        unknown.is_none(),
        "there is no project or level {:?}; they are {} and {}",
        unknown.map_or("", |word| word),
        names.join(", "),
        LEVELS.join(", ")
    );
    let mut build = shell::cargo(&workspace.root);
    shell::run(build.args(["build", "-p", "overhear-ranges", "-p", "overhear-cli"]))?;
    let built = workspace.target.join("debug");
    ranges::build(&workspace.root, &built)?;
    let mut tally = Tally::default();
    for project in PROJECTS.iter().filter(|it| is_chosen(&names, it.name)) {
        let source = unpack(&workspace.target, project.name, project.origin)?;
        for level in LEVELS.iter().filter(|it| is_chosen(&LEVELS, it)) {
            let suite = Suite {
                project,
                level,
                built: &built,
                folder: workspace
                    .target
                    .join("suites")
                    .join(format!("{}{level}", project.name)),
            };
            suite.perform(&source, &mut tally);
        }
    }
    tally.summarize(format!("suites of instrumented projects: {tally}"));
    Ok(tally)
}

/// One project at one level.
struct Suite<'a> {
    project: &'a Project,
    level: &'a str,
    /// The folder of `overhear` and `overhear-clang`.
    built: &'a Path,
    folder: PathBuf,
}

impl Suite<'_> {
    fn perform(&self, source: &Path, tally: &mut Tally) {
        let name = format!("{} {}", self.project.name, self.level);
        if let Err(error) = self.build(source) {
            println!("{error:#}");
            tally.fail(format!("{name}: not built"));
            return;
        }
        for budget in BUDGETS {
            let name = format!("{name}, {}", budget.unwrap_or("without observation"));
            match self.test(budget) {
                Ok(summary) => {
                    println!("{name}: {summary}");
                    tally.pass();
                }
                Err(error) => {
                    println!("{error:#}");
                    tally.fail(name);
                }
            }
        }
    }

    fn command(&self, mut command: Command) -> Command {
        command
            .current_dir(&self.folder)
            .env("CC", self.built.join("overhear-clang"))
            .env("CFLAGS", format!("{} -g", self.level));
        command
    }

    fn build(&self, source: &Path) -> Result<()> {
        if let Some(parent) = self.folder.parent() {
            fs::create_dir_all(parent)?;
        }
        let _ = fs::remove_dir_all(&self.folder);
        shell::output(Command::new("cp").arg("-a").arg(source).arg(&self.folder))?;
        let mut build = self.command(Command::new("sh"));
        shell::output(build.args(["-c", self.project.build]))?;
        Ok(())
    }

    fn test(&self, budget: Option<&str>) -> Result<String> {
        let Some(budget) = budget else {
            let mut test = self.command(Command::new("sh"));
            shell::output(test.args(["-c", self.project.test]))?;
            return Ok("passed".to_owned());
        };
        let document = self.folder.join("ranges.json");
        let mut test = self.command(Command::new(self.built.join("overhear")));
        test.args(["ranges", "--budget", budget])
            .arg(format!("--json={}", document.display()))
            .args(["--", "sh", "-c", self.project.test]);
        shell::output(&mut test)?;
        let text = fs::read_to_string(&document)?;
        let report: serde_json::Value = serde_json::from_str(&text)?;
        let variables = report["variables"].as_array().context("no variables")?;
        let updated = variables
            .iter()
            .filter(|variable| variable["updates_seen"].as_u64() > Some(0))
            .count();
        ensure!(updated > 0, "no variable was observed");
        Ok(format!(
            "passed; {updated} of {} variables updated in {} processes",
            variables.len(),
            report["processes"]
        ))
    }
}
