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
    success: Success,
}

/// What a suite must do to pass.
#[derive(Clone, Copy)]
enum Success {
    /// It succeeds.
    Exit,
    /// It lists the failures, on the line with this beginning, that a build without the pass has:
    /// some of its tests depend on the file system. It refuses to run as root.
    AsWithoutPass(&'static str),
}

const PROJECTS: [Project; 4] = [
    Project {
        name: "bzip2",
        origin: Origin::Debian("bzip2"),
        build: "make CC=$CC CFLAGS=\"$CFLAGS -D_FILE_OFFSET_BITS=64\" bzip2",
        test: "make CC=$CC CFLAGS=\"$CFLAGS -D_FILE_OFFSET_BITS=64\" test",
        success: Success::Exit,
    },
    Project {
        name: "zlib",
        origin: Origin::Debian("zlib"),
        build: "./configure && make",
        test: "make test",
        success: Success::Exit,
    },
    Project {
        name: "lua",
        // Debian's package has no tests.
        origin: Origin::Git("https://github.com/lua/lua", "v5.4.4"),
        build: "make CC=$CC CFLAGS=\"$CFLAGS -std=c99 -DLUA_USE_LINUX -DLUA_COMPAT_5_3\" \
                MYLIBS='-ldl -Wl,-E' lua",
        test: "cd testes && ../lua -e_U=true all.lua",
        success: Success::Exit,
    },
    Project {
        name: "sqlite",
        origin: Origin::Debian("sqlite3"),
        build: "./configure --with-tcl=/usr/lib/tcl8.6 && make testfixture",
        test: "./testfixture test/veryquick.test",
        success: Success::AsWithoutPass("!Failures on these tests:"),
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
        let folder = workspace.target.join("suites");
        let expected = match project.success {
            Success::Exit => String::new(),
            Success::AsWithoutPass(_) => {
                let plain = Suite {
                    project,
                    level: "-O2",
                    compiler: PathBuf::from("clang-19"),
                    overhear: built.join("overhear"),
                    folder: folder.join(project.name),
                };
                plain.build(&source)?;
                plain.test(None)?.0
            }
        };
        for level in LEVELS.iter().filter(|it| is_chosen(&LEVELS, it)) {
            let suite = Suite {
                project,
                level,
                compiler: built.join("overhear-clang"),
                overhear: built.join("overhear"),
                folder: folder.join(format!("{}{level}", project.name)),
            };
            suite.perform(&source, &expected, &mut tally);
        }
    }
    tally.summarize(format!("suites of instrumented projects: {tally}"));
    Ok(tally)
}

/// One project at one level.
struct Suite<'a> {
    project: &'a Project,
    level: &'a str,
    compiler: PathBuf,
    overhear: PathBuf,
    folder: PathBuf,
}

impl Suite<'_> {
    fn perform(&self, source: &Path, expected: &str, tally: &mut Tally) {
        let name = format!("{} {}", self.project.name, self.level);
        if let Err(error) = self.build(source) {
            println!("{error:#}");
            tally.fail(format!("{name}: not built"));
            return;
        }
        for budget in BUDGETS {
            let name = format!("{name}, {}", budget.unwrap_or("without observation"));
            match self.test(budget) {
                Ok((failures, summary)) if failures == expected => {
                    println!("{name}: {summary}");
                    tally.pass();
                }
                Ok((failures, _)) => {
                    tally.fail(format!(
                        "{name}: {failures:?}, but {expected:?} without the pass"
                    ));
                }
                Err(error) => {
                    println!("{error:#}");
                    tally.fail(name);
                }
            }
        }
    }

    fn command(&self, program: &Path) -> Command {
        // An ordinary user of every Debian system.
        let is_refused = matches!(self.project.success, Success::AsWithoutPass(_));
        let mut command = if is_refused && packages::is_root() {
            let mut command = Command::new("setpriv");
            command
                .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
                .arg(program);
            command
        } else {
            Command::new(program)
        };
        self.environment(&mut command);
        command
    }

    fn environment(&self, command: &mut Command) {
        command
            .current_dir(&self.folder)
            .env("CC", &self.compiler)
            .env("CFLAGS", format!("{} -g", self.level));
    }

    fn build(&self, source: &Path) -> Result<()> {
        if let Some(parent) = self.folder.parent() {
            fs::create_dir_all(parent)?;
        }
        let _ = fs::remove_dir_all(&self.folder);
        shell::output(Command::new("cp").arg("-a").arg(source).arg(&self.folder))?;
        let mut build = Command::new("sh");
        self.environment(&mut build);
        shell::output(build.args(["-c", self.project.build]))?;
        if packages::is_root() {
            let mut owner = Command::new("chown");
            shell::output(owner.args(["-R", "nobody:nogroup"]).arg(&self.folder))?;
        }
        Ok(())
    }

    /// Runs the suite; returns its line of failures and a summary.
    fn test(&self, budget: Option<&str>) -> Result<(String, String)> {
        let document = self.folder.join("ranges.json");
        let mut test = match budget {
            None => self.command(Path::new("sh")),
            Some(budget) => {
                let mut test = self.command(&self.overhear);
                test.args(["ranges", "--budget", budget])
                    .arg(format!("--json={}", document.display()))
                    .args(["--", "sh"]);
                test
            }
        };
        test.args(["-c", self.project.test]);
        let failures = match self.project.success {
            Success::Exit => {
                shell::output(&mut test)?;
                String::new()
            }
            Success::AsWithoutPass(beginning) => {
                let output = test.output()?;
                let text = String::from_utf8_lossy(&output.stdout);
                let line = text.lines().find(|line| line.starts_with(beginning));
                ensure!(
                    output.status.success() || line.is_some(),
                    "the suite ended before its summary: {}\n{}",
                    output.status,
                    String::from_utf8_lossy(&output.stderr)
                );
                line.unwrap_or_default().to_owned()
            }
        };
        if budget.is_none() {
            return Ok((failures, "passed".to_owned()));
        }
        let text = fs::read_to_string(&document)?;
        let report: serde_json::Value = serde_json::from_str(&text)?;
        let variables = report["variables"].as_array().context("no variables")?;
        let updated = variables
            .iter()
            .filter(|variable| variable["updates_seen"].as_u64() > Some(0))
            .count();
        ensure!(updated > 0, "no variable was observed");
        let summary = format!(
            "passed; {updated} of {} variables updated in {} processes",
            variables.len(),
            report["processes"]
        );
        Ok((failures, summary))
    }
}
