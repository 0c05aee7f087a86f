// SPDX-License-Identifier: MIT OR Apache-2.0
//! C and C++ programs: every test of `native/tests` and every example of `examples/c` and
//! `examples/cpp` is one source file, compiled by each compiler.
//!
//! The first lines of a source name its libraries, in the order of the command line: `links:
//! overhear_monitor, overhear_kernel.` Without that line it is `overhear`. With `links: nothing.`
//! the test proves that the headers suffice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::posix;
use crate::shell;
use crate::tally::{read_tap, Tally};
use crate::workspace::Workspace;

/// A compiler and its language.
#[derive(Clone, Copy, Debug)]
struct Compiler {
    program: &'static str,
    /// Suffix of its source files.
    sources: &'static str,
    standard: &'static str,
    /// Instruments with ThreadSanitizer, and then compiles only sources with the mark for it.
    threads: bool,
}

/// C tests are compiled as C11, and again as C++17 through their wrappers `NAME_cxx.cpp`; further
/// sources in C++ are programs of their own.
///
/// Sources with `sanitizes: threads` in their first lines are compiled once more by clang with
/// ThreadSanitizer (gcc's does not know fences), which ends a program with a data race by status
/// 66.
const COMPILERS: [Compiler; 5] = [
    Compiler {
        program: "gcc",
        sources: ".c",
        standard: "-std=c11",
        threads: false,
    },
    Compiler {
        program: "clang-19",
        sources: ".c",
        standard: "-std=c11",
        threads: false,
    },
    Compiler {
        program: "g++",
        sources: ".cpp",
        standard: "-std=c++17",
        threads: false,
    },
    Compiler {
        program: "clang++-19",
        sources: ".cpp",
        standard: "-std=c++17",
        threads: false,
    },
    Compiler {
        program: "clang-19",
        sources: ".c",
        standard: "-std=c11",
        threads: true,
    },
];

/// The folders of the programs that must compile and run.
const FOLDERS: [&str; 3] = ["native/tests", "examples/c", "examples/cpp"];

/// Compiles and runs every C source and every C++ wrapper of the folders against what cargo has
/// built in `profile` (`debug` or `release`).
pub(crate) fn c_tests(workspace: &Workspace, profile: &str) -> Result<Tally> {
    let mut tally = Tally::default();
    for (folder, compiler) in FOLDERS
        .iter()
        .flat_map(|folder| COMPILERS.map(|c| (folder, c)))
    {
        for source in sources(&workspace.root.join(folder), compiler.sources)? {
            if compiler.threads
                && !head_contains(&fs::read_to_string(&source)?, "sanitizes: threads")
            {
                continue;
            }
            let how = if compiler.threads { ", threads" } else { "" };
            let name = format!("{} ({}{how})", file_name(&source), compiler.program);
            if shell::on_path(compiler.program).is_none() {
                tally.skip(&name, "the compiler is not installed");
                continue;
            }
            match compile(workspace, profile, compiler, &source) {
                Ok(binary) => tally.add(run_test(workspace, &name, &binary)?),
                Err(error) => {
                    println!("{error:#}");
                    tally.fail(format!("{name}: does not compile"));
                }
            }
        }
    }
    tally.add(readme_example(workspace)?);
    tally.add(headers(workspace)?);
    tally.add(posix::header(workspace)?);
    tally.add(page_example(workspace, profile)?);
    tally.summarize(format!("C tests: {tally}"));
    Ok(tally)
}

/// Each header compiles by itself, without earlier definitions or includes. (`-pthread`, which the
/// tests need, shows the POSIX part of the C library, too.)
fn headers(workspace: &Workspace) -> Result<Tally> {
    const NAME: &str = "headers by themselves";
    let mut tally = Tally::default();
    for (ending, program, language, standard) in [
        (".h", "gcc", "c", "-std=c11"),
        (".h", "g++", "c++", "-std=c++17"),
        (".hpp", "g++", "c++", "-std=c++17"),
    ] {
        if shell::on_path(program).is_none() {
            tally.skip(NAME, "the compiler is not installed");
            continue;
        }
        for header in sources(&workspace.root.join("include/overhear"), ending)? {
            let mut command = Command::new(program);
            command.args(["-x", language, standard, "-Wall", "-Wextra", "-Werror"]);
            command.args(["-fsyntax-only", "-I"]);
            command.arg(workspace.root.join("include"));
            match shell::output(command.arg(&header)) {
                Ok(_) => tally.pass(),
                Err(error) => {
                    println!("{error:#}");
                    tally.fail(format!(
                        "{} ({program}): does not compile",
                        file_name(&header)
                    ));
                }
            }
        }
    }
    println!("{NAME}: {tally}");
    Ok(tally)
}

/// The README's example compiles as printed.
fn readme_example(workspace: &Workspace) -> Result<Tally> {
    const NAME: &str = "the README's example in C";
    let mut tally = Tally::default();
    let readme = fs::read_to_string(workspace.root.join("README.md"))?;
    let folder = workspace.target.join("native");
    fs::create_dir_all(&folder)?;
    let source = folder.join("readme.c");
    fs::write(
        &source,
        c_block(&readme).context("the README has no example in C")?,
    )?;
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]);
    command
        .arg("-I")
        .arg(workspace.root.join("include"))
        .arg(&source);
    match shell::output(&mut command) {
        Ok(_) => tally.pass(),
        Err(error) => {
            println!("{error:#}");
            tally.fail(NAME);
        }
    }
    println!("{NAME}: {tally}");
    Ok(tally)
}

/// The example of the page of POSIX trace compiles as printed, and prints the number that it has
/// recorded.
fn page_example(workspace: &Workspace, profile: &str) -> Result<Tally> {
    const PAGE: &str = "docs/posix-trace.md";
    const PRINTED: &str = "7\n";
    let mut tally = Tally::default();
    let page = fs::read_to_string(workspace.root.join(PAGE))?;
    let text = c_block(&page).with_context(|| format!("{PAGE} has no example in C"))?;
    let folder = workspace.target.join("native");
    fs::create_dir_all(&folder)?;
    let source = folder.join("posix_page.c");
    fs::write(
        &source,
        format!("/* links: overhear_posixtrace. */\n{text}\n"),
    )?;
    let printed = compile(workspace, profile, COMPILERS[0], &source)
        .and_then(|program| shell::output(&mut Command::new(program)));
    match printed {
        Ok(printed) if printed == PRINTED => tally.pass(),
        Ok(printed) => tally.fail(format!("the example of {PAGE} prints {printed:?}")),
        Err(error) => {
            println!("{error:#}");
            tally.fail(format!("the example of {PAGE}"));
        }
    }
    println!("the example of {PAGE}: {tally}");
    Ok(tally)
}

/// The first block of C in a Markdown text.
fn c_block(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("\n```c\n")?;
    Some(rest.split_once("\n```")?.0)
}

fn run_test(workspace: &Workspace, name: &str, binary: &Path) -> Result<Tally> {
    let mut command = Command::new(binary);
    let output = command
        .current_dir(&workspace.root)
        .output()
        .context("a C test cannot start")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let tally = read_tap(name, &text, output.status.code());
    println!("{name}: {tally}");
    if tally.has_failures() {
        println!(
            "{}\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(tally)
}

/// Compiles a C source for another machine, against the libraries in a folder; returns the program
/// in `folder`.
pub(crate) fn compile_for_guest(
    workspace: &Workspace,
    compiler: &str,
    libraries: &Path,
    folder: &Path,
    source: &Path,
) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let binary = folder.join(source.file_stem().unwrap_or_default());
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-O2", "-g", "-pthread", "-I"]);
    command.arg(workspace.root.join("include"));
    command.arg("-o").arg(&binary).arg(source).arg("-lm");
    link(&mut command, &fs::read_to_string(source)?, libraries);
    shell::output(&mut command)?;
    Ok(binary)
}

fn compile(
    workspace: &Workspace,
    profile: &str,
    compiler: Compiler,
    source: &Path,
) -> Result<PathBuf> {
    let kind = if compiler.threads {
        "threads"
    } else {
        compiler.program
    };
    let folder = workspace.target.join("native").join(kind);
    fs::create_dir_all(&folder)?;
    let binary = folder.join(source.file_stem().unwrap_or_default());
    let libraries = workspace.target.join(profile);
    let mut command = Command::new(compiler.program);
    command.args([
        compiler.standard,
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O2",
        "-g",
        "-pthread",
    ]);
    if compiler.threads {
        command.arg("-fsanitize=thread");
    }
    command
        .arg("-I")
        .arg(workspace.root.join("include"))
        .arg("-I")
        .arg(workspace.root.join("include/overhear/posix"))
        .arg("-o")
        .arg(&binary)
        .arg(source);
    command.arg("-lm");
    let text = fs::read_to_string(c_source(source))?;
    link(&mut command, &text, &libraries);
    shell::output(&mut command)?;
    Ok(binary)
}

/// Adds the libraries that the text of a source names.
fn link(command: &mut Command, text: &str, libraries: &Path) {
    let names = libraries_of(text);
    if !names.is_empty() {
        command
            .arg("-L")
            .arg(libraries)
            .arg(format!("-Wl,-rpath,{}", libraries.display()))
            .args(names.iter().map(|name| format!("-l{name}")))
            .arg("-ldl");
    }
}

/// The source itself, or the one that a C++ wrapper includes.
fn c_source(source: &Path) -> PathBuf {
    match file_name(source).strip_suffix("_cxx.cpp") {
        Some(name) => source.with_file_name(format!("{name}.c")),
        None => source.to_path_buf(),
    }
}

/// The libraries that a source names in its first lines.
fn libraries_of(text: &str) -> Vec<&str> {
    let mut lines = text.lines().take(FIRST_LINES);
    let list = lines.find_map(|line| line.split_once("links: "));
    let list = list.map_or("overhear", |(_, list)| list);
    let list = list.split(['.', ';']).next().unwrap_or_default();
    let names = list.split(',').map(str::trim);
    names.filter(|&name| name != "nothing").collect()
}

/// Lines at the start of a source that name its libraries and sanitizers.
const FIRST_LINES: usize = 5;

/// Whether the first lines of a source contain this text.
fn head_contains(text: &str, what: &str) -> bool {
    text.lines()
        .take(FIRST_LINES)
        .any(|line| line.contains(what))
}

/// The files of a folder with this suffix, in order; none if the folder does not exist.
fn sources(folder: &Path, end: &str) -> Result<Vec<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(Vec::new());
    };
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| file_name(file).ends_with(end));
    files.sort();
    Ok(files)
}

fn file_name(file: &Path) -> String {
    file.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::{c_block, libraries_of};

    #[test]
    fn libraries_are_linked_in_the_order_of_the_first_lines() {
        let libraries = |line: &str| libraries_of(line).join(" ");
        assert_eq!(libraries("/* A test. */"), "overhear");
        assert_eq!(libraries("/*\n * links: nothing. It is a test. */"), "");
        let two = "/* links: overhear_monitor, overhear; sanitizes: threads. */";
        assert_eq!(libraries(two), "overhear_monitor overhear");
    }

    #[test]
    fn first_block_of_c_is_found() {
        let text = "a\n\n```sh\nls\n```\n\n```c\nint a;\nint b;\n```\n\n```c\nint c;\n```\n";
        assert_eq!(c_block(text), Some("int a;\nint b;"));
        assert_eq!(c_block("no code"), None);
    }
}
