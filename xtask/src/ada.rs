// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Ada packages of `packages/ada`: their constants are compared with `<trace.h>`, and their
//! tests and their example are built by gnatmake and run.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;
use crate::tally::{read_tap, Tally};
use crate::workspace::Workspace;

const RUN: &str = "the Ada packages";
/// Ada 2012, all warnings, and the style of the sources.
const SWITCHES: [&str; 5] = [
    "-gnat2012",
    "-gnatwae",
    "-gnaty3abcefhiklnprt",
    "-gnatyM100",
    "-O2",
];
/// The titles of the example's tables.
const TABLES: [&str; 3] = ["Delay Until Wakeup", "Schedule And Dispatch", "My Metric"];
/// The columns of [POSIX-metrics, figure 1].
const COLUMNS: &str = "    Task  Length  Begin Time    End Time  Int Events";
/// Tasks of the example.
const TASKS: i64 = 5;

/// Builds and runs them against what cargo has built in `profile` (`debug` or `release`).
pub(crate) fn tests(workspace: &Workspace, profile: &str) -> Result<Tally> {
    let mut tally = Tally::default();
    if shell::on_path("gnatmake").is_none() {
        tally.skip(RUN, "gnatmake is not installed");
        return Ok(tally);
    }
    let folder = workspace.target.join("ada");
    fs::create_dir_all(&folder)?;
    match constants(workspace) {
        Ok(()) => tally.pass(),
        Err(error) => tally.fail(format!("the constants of POSIX.Trace: {error:#}")),
    }
    let name = "trace_tests.adb";
    match run(workspace, profile, &folder, "tests", "trace_tests") {
        Ok((output, code)) => {
            let found = read_tap(name, &output, code);
            if found.has_failures() {
                println!("{output}");
            }
            tally.add(found);
        }
        Err(error) => tally.fail(format!("{name}: {error:#}")),
    }
    let name = "posix_metrics.adb";
    match run(workspace, profile, &folder, "examples", "posix_metrics") {
        Ok((output, Some(0))) => match check_tables(&output) {
            Ok(()) => tally.pass(),
            Err(message) => {
                println!("{output}");
                tally.fail(format!("{name}: {message}"));
            }
        },
        Ok((output, code)) => tally.add(read_tap(name, &output, code)),
        Err(error) => tally.fail(format!("{name}: {error:#}")),
    }
    println!("{RUN}: {tally}");
    tally.summarize(format!("{RUN}: {tally}"));
    Ok(tally)
}

/// Compares the constants and layouts with the header.
fn constants(workspace: &Workspace) -> Result<()> {
    let mut compiler = Command::new("gcc");
    compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
    compiler
        .arg("-I")
        .arg(workspace.root.join("include/overhear"));
    let source = workspace.root.join("packages/ada/check/constants.c");
    shell::output(compiler.arg(source)).map(drop)
}

/// Builds a program of a folder of the packages, and runs it. Returns what it prints, and its exit
/// status.
fn run(
    workspace: &Workspace,
    profile: &str,
    folder: &Path,
    sources: &str,
    program: &str,
) -> Result<(String, Option<i32>)> {
    let packages = workspace.root.join("packages/ada");
    let libraries = workspace.target.join(profile);
    let objects = folder.join(program).with_extension("obj");
    fs::create_dir_all(&objects)?;
    let binary = folder.join(program);
    let mut gnatmake = Command::new("gnatmake");
    gnatmake
        .args(["-q", "-D"])
        .arg(&objects)
        .args(SWITCHES)
        .arg(format!("-I{}", packages.join("src").display()))
        .arg(format!("-I{}", packages.join(sources).display()))
        .arg(packages.join(sources).join(format!("{program}.adb")))
        .arg("-o")
        .arg(&binary)
        .arg("-largs")
        .arg(format!("-L{}", libraries.display()))
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-loverhear_posixtrace");
    // The binder writes its files here.
    shell::output(gnatmake.current_dir(&objects))?;
    let output = Command::new(&binary)
        .arg(folder.join(format!("{program}.log")))
        .current_dir(folder)
        .output()
        .with_context(|| format!("{program} cannot start"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{}", String::from_utf8_lossy(&output.stderr));
    Ok((text, output.status.code()))
}

/// Checks the tables of the example: each has measurements, whose numbers agree.
fn check_tables(output: &str) -> Result<(), String> {
    let mut table = None;
    let mut rows = [0; TABLES.len()];
    for line in output.lines() {
        if let Some(index) = TABLES.iter().position(|title| *title == line) {
            table = Some(index);
            continue;
        }
        if line == COLUMNS || line.starts_with("lost events:") {
            continue;
        }
        let index = table.ok_or_else(|| format!("a line before the first table: {line}"))?;
        let numbers: Result<Vec<i64>, _> = line.split_whitespace().map(str::parse).collect();
        let Ok([task, length, begin, end, _]) = numbers.as_deref() else {
            return Err(format!("no row: {line}"));
        };
        // Times count from the start of the stream, and are rounded to microseconds.
        if end < begin || *length > end - begin + 2 {
            return Err(format!("longer than its times: {line}"));
        }
        rows[index] += i64::from((1..=TASKS).contains(task));
    }
    match TABLES.iter().zip(rows).find(|(_, rows)| *rows < TASKS) {
        Some((title, rows)) => Err(format!("{title} has {rows} measurements of the tasks")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{check_tables, COLUMNS, TABLES};

    fn output(row: &str) -> String {
        let table = |title| format!("{title}\n{COLUMNS}\n{}", row.repeat(5));
        TABLES.map(table).concat()
    }

    #[test]
    fn tables_need_rows_whose_numbers_agree() {
        assert_eq!(
            check_tables(&output(
                "       1      44       14393       14445           5\n"
            )),
            Ok(())
        );
        // The times are rounded, and the stream may have begun before its start has returned.
        assert_eq!(
            check_tables(&output(
                "       5      10          -3           5           5\n"
            )),
            Ok(())
        );
        for wrong in [
            "       1      55       14393       14445           5\n",
            "       1      44       14445       14393           5\n",
            "       6      44       14393       14445           5\n",
            "       1      44       14393       14445\n",
            "",
        ] {
            assert!(check_tables(&output(wrong)).is_err(), "{wrong}");
        }
        assert!(check_tables("1 2 3 4 5\n").is_err());
    }
}
