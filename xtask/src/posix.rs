// SPDX-License-Identifier: MIT OR Apache-2.0
//! The POSIX trace interface [POSIX.1q]: what its header declares, and what its page lists.
//!
//! Each requirement of the standard is a check of a C program `native/tests/posix_conformance_*.c`.
//! The name of the check begins with an id, `PAGE-NUMBER`. A table of `docs/posix-trace.md` has the
//! same ids and texts; the tests of this file compare both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::shell;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Each compiler with the language of its programs.
const COMPILERS: [(&str, &str, &str); 4] = [
    ("gcc", "c", "-std=c11"),
    ("clang-19", "c", "-std=c11"),
    ("g++", "c++", "-std=c++17"),
    ("clang++-19", "c++", "-std=c++17"),
];

/// Headers that ours includes.
const INCLUDED: &str = "#include <limits.h>\n#include <pthread.h>\n#include <stddef.h>\n\
    #include <stdint.h>\n#include <sys/types.h>\n#include <time.h>\n#include <unistd.h>\n";

/// The names that the standard gives to the header, and our own.
const PREFIXES: [&str; 7] = [
    "posix_trace_",
    "POSIX_TRACE_",
    "_POSIX_TRACE",
    "TRACE_",
    "trace_",
    "oh_",
    "OH_",
];

/// A `trace.h` of another project, if it is installed: that of Frama-C.
const FOREIGN: &str = "/usr/share/frama-c/libc/trace.h";
/// The variable with the path of another one.
const FOREIGN_VARIABLE: &str = "OVERHEAR_FOREIGN_TRACE_H";

/// Checks the header by each compiler.
pub(crate) fn header(workspace: &Workspace) -> Result<Tally> {
    let mut tally = Tally::default();
    let folder = workspace.target.join("native");
    fs::create_dir_all(&folder)?;
    let root = &workspace.root;
    let tests = root.join("native/tests");
    let alone = folder.join("trace_alone.c");
    fs::write(&alone, "#include <trace.h>\n")?;
    compiles(root, &mut tally, "<trace.h> alone", &alone)?;
    let prototypes = folder.join("trace_prototypes.c");
    let text = format!(
        "#include \"{}\"\nint count(void);\nint count(void)\n{{\n    return addresses[0] != NULL;\n}}\n",
        tests.join("posix_prototypes.h").display()
    );
    fs::write(&prototypes, text)?;
    let name = "the prototypes of the standard";
    compiles(root, &mut tally, name, &prototypes)?;
    names(root, &folder, &mut tally)?;
    foreign(root, &folder, &mut tally)?;
    println!("<trace.h>: {tally}");
    Ok(tally)
}

fn command(root: &Path, compiler: (&str, &str, &str)) -> Command {
    let (program, language, standard) = compiler;
    let mut command = Command::new(program);
    command.args(["-x", language, standard, "-pthread"]);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic"]);
    for folder in ["include", "include/overhear/posix"] {
        command.arg("-I").arg(root.join(folder));
    }
    command
}

/// A file compiles without warnings by each compiler.
fn compiles(root: &Path, tally: &mut Tally, name: &str, file: &Path) -> Result<()> {
    for compiler in COMPILERS {
        let name = format!("{name} ({})", compiler.0);
        if shell::on_path(compiler.0).is_none() {
            tally.skip(&name, "the compiler is not installed");
            continue;
        }
        let mut command = command(root, compiler);
        match shell::output(command.arg("-fsyntax-only").arg(file)) {
            Ok(_) => tally.pass(),
            Err(error) => {
                println!("{error:#}");
                tally.fail(format!("{name}: does not compile"));
            }
        }
    }
    Ok(())
}

/// Whether a name is one of the header's.
fn is_ours(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// The header defines no other names of macros, functions, types and structures.
fn names(root: &Path, folder: &Path, tally: &mut Tally) -> Result<()> {
    const NAME: &str = "the names of <trace.h>";
    if shell::on_path("gcc").is_none() {
        tally.skip(NAME, "the compiler is not installed");
        return Ok(());
    }
    let macros = |text: &str, file: &str| -> Result<Vec<String>> {
        let file = folder.join(file);
        fs::write(&file, text)?;
        let mut command = command(root, COMPILERS[0]);
        let printed = shell::output(command.args(["-E", "-dM"]).arg(&file))?;
        let names = printed.lines().filter_map(|line| {
            let name = line.strip_prefix("#define ")?;
            name.split([' ', '(']).next().map(str::to_owned)
        });
        Ok(names.collect())
    };
    let others = macros(INCLUDED, "trace_others.c")?;
    let ours = macros("#include <trace.h>\n", "trace_names.c")?;
    let guard = "OVERHEAR_TRACE_H";
    let mut wrong: Vec<String> = ours
        .into_iter()
        .filter(|name| !others.contains(name) && !is_ours(name) && name != guard)
        .collect();
    let header = fs::read_to_string(root.join("include/overhear/trace.h"))?;
    let declared = declared(&header);
    wrong.extend(declared.iter().filter(|name| !is_ours(name)).cloned());
    if wrong.is_empty() && declared.len() > 50 {
        tally.pass();
    } else {
        tally.fail(format!("{NAME}: others than the standard's: {wrong:?}"));
    }
    Ok(())
}

/// The names of functions, types and structures in the text of a header.
fn declared(header: &str) -> Vec<String> {
    let mut names = Vec::new();
    for statement in statements(header) {
        let words = words(&statement);
        if let Some(at) = words.iter().position(|word| word == "struct") {
            let inner = statement.contains('{');
            names.extend(words.get(at + 1).filter(|_| inner).cloned());
        }
        if let Some((before, _)) = statement.split_once('(') {
            names.extend(self::words(before).pop());
        } else if words.first().is_some_and(|word| word == "typedef") && !statement.contains('{') {
            names.extend(words.last().cloned());
        }
    }
    names
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// The text of C between semicolons, without comments and lines of the preprocessor.
fn statements(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    let lines = plain
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .filter(|line| !line.trim_start().starts_with('#'));
    let plain: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let plain = plain.join(" ");
    plain
        .split(';')
        .map(|part| part.trim().to_owned())
        .collect()
}

/// The functions that another project declares are ours: its declarations stand beside our header.
fn foreign(root: &Path, folder: &Path, tally: &mut Tally) -> Result<()> {
    const NAME: &str = "the prototypes of another project";
    let named = std::env::var_os(FOREIGN_VARIABLE).map(PathBuf::from);
    let file = named.unwrap_or_else(|| PathBuf::from(FOREIGN));
    if !file.is_file() {
        tally.skip(NAME, "no <trace.h> of another project is installed");
        return Ok(());
    }
    let text = fs::read_to_string(&file)
        .with_context(|| format!("cannot read the header {}", file.display()))?;
    let prototypes = prototypes(&text);
    if prototypes.len() != 50 {
        tally.fail(format!("{NAME}: {} of 50", prototypes.len()));
    }
    let source = folder.join("trace_foreign.c");
    let mut text = String::from(
        "#include <trace.h>\n#ifdef __cplusplus\n#define restrict __restrict\nextern \"C\" {\n#endif\n",
    );
    for prototype in prototypes {
        text.push_str(&prototype);
        text.push_str(";\n");
    }
    text.push_str("#ifdef __cplusplus\n}\n#endif\n");
    fs::write(&source, text)?;
    compiles(root, tally, NAME, &source)
}

/// The declarations of functions `posix_trace_*` in a header.
pub(crate) fn prototypes(header: &str) -> Vec<String> {
    statements(header)
        .into_iter()
        .filter_map(|statement| {
            // What precedes the first one in its statement are macros of the header.
            let at = statement
                .rfind("extern ")
                .map_or(0, |at| at + "extern ".len());
            let declaration = &statement[at..];
            let (before, _) = declaration.split_once('(')?;
            let is_function = before
                .split_whitespace()
                .nth(1)?
                .starts_with("posix_trace_");
            is_function.then(|| declaration.to_owned())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use super::{declared, prototypes};

    /// The page with the table.
    const PAGE: &str = "docs/posix-trace.md";
    const PROGRAMS: &str = "posix_conformance_";

    /// The ids and texts of the checks in a C program.
    fn checks(source: &str) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut rest = source;
        while let Some((_, text)) = rest.split_once('"') {
            let (mut literal, mut after) = literal(text);
            // Literals that follow each other are one.
            while let Some(more) = after.trim_start().strip_prefix('"') {
                let (second, end) = self::literal(more);
                literal.push_str(&second);
                after = end;
            }
            if let Some((id, text)) = literal.split_once(' ') {
                if is_id(id) {
                    found.push((id.to_owned(), text.to_owned()));
                }
            }
            rest = after;
        }
        found
    }

    /// A literal of C from behind its first quotation mark, and what follows it.
    fn literal(text: &str) -> (String, &str) {
        let mut end = 0;
        let bytes = text.as_bytes();
        while end < bytes.len() && bytes[end] != b'"' {
            end += if bytes[end] == b'\\' { 2 } else { 1 };
        }
        (text[..end].to_owned(), &text[end + 1..])
    }

    fn is_id(text: &str) -> bool {
        let Some((page, number)) = text.rsplit_once('-') else {
            return false;
        };
        !page.is_empty()
            && page.bytes().all(|byte| byte.is_ascii_lowercase())
            && number.len() == 2
            && number.bytes().all(|byte| byte.is_ascii_digit())
    }

    /// The ids and texts of the table: its rows begin with an id in code.
    fn rows(page: &str) -> Vec<(String, String)> {
        let rows = page.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split(" | ");
            let id = cells.next()?.strip_suffix('`')?;
            let text = cells.next()?.replace('`', "");
            is_id(id).then(|| (id.to_owned(), text))
        });
        rows.collect()
    }

    fn unique(pairs: Vec<(String, String)>) -> BTreeMap<String, String> {
        let mut map = BTreeMap::new();
        for (id, text) in pairs {
            let other = map.insert(id.clone(), text.clone());
            assert!(
                other.is_none_or(|other| other == text),
                "{id} has two texts"
            );
        }
        map
    }

    #[test]
    fn page_lists_each_requirement_that_is_tested() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut tested = Vec::new();
        for entry in fs::read_dir(root.join("native/tests")).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(PROGRAMS) && name.ends_with(".c") {
                tested.extend(checks(&fs::read_to_string(entry.path()).unwrap()));
            }
        }
        let tested = unique(tested);
        assert!(tested.len() > 170, "{}", tested.len());
        let page = fs::read_to_string(root.join(PAGE)).unwrap();
        let listed = rows(&page);
        let count = listed.len();
        let listed = unique(listed);
        assert_eq!(count, listed.len(), "the page lists an id twice");
        for (id, text) in &tested {
            assert_eq!(listed.get(id), Some(text), "{id} in the table of {PAGE}");
        }
        for id in listed.keys() {
            assert!(
                tested.contains_key(id),
                "no program of native/tests checks {id}"
            );
        }
        // The numbers of a page are without gaps.
        for id in tested.keys() {
            let (page, number) = id.rsplit_once('-').unwrap();
            let before = number.parse::<u32>().unwrap() - 1;
            let previous = format!("{page}-{before:02}");
            assert!(
                before == 0 || tested.contains_key(&previous),
                "{previous} is missing"
            );
        }
    }

    #[test]
    fn checks_are_found_in_programs_and_rows() {
        let source = "check(\"a-01 One \"\n   \"and \\\"two\\\"\", x(\"y\", \"b-2 no\")); check(\"a-02 b\", 1);";
        let expected = [("a-01", "One and \\\"two\\\""), ("a-02", "b")];
        let expected = expected.map(|(id, text)| (id.to_owned(), text.to_owned()));
        assert_eq!(checks(source), expected);
        let page = "| id | requirement |\n|---|---|\n| `a-02` | b `c` | yes |\n| `x` | no |\n";
        assert_eq!(rows(page), [("a-02".to_owned(), "b c".to_owned())]);
    }

    #[test]
    fn declarations_of_headers_are_found() {
        let header = "#define A\nBEGIN\n/*@ x; */\nextern int posix_trace_a(int *restrict a,\n  int);\n\
            typedef struct oh_b { int c; } trace_b_t;\nextern void posix_trace_d(void);\ntypedef int e_t;\n";
        let found = prototypes(header);
        assert_eq!(
            found,
            [
                "int posix_trace_a(int *restrict a, int)",
                "void posix_trace_d(void)"
            ]
        );
        let names = declared(header);
        assert_eq!(names, ["posix_trace_a", "oh_b", "posix_trace_d", "e_t"]);
    }
}
