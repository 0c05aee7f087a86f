// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instrumented programs print and end as without the pass, in every mode and at every level.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use overhear_ranges::results::Results;
use tempfile::TempDir;

use crate::tools::{
    compile, inside, parts, program, run, same, succeed, variable, wrapper, LEVELS, MODES, WRAPPER,
};

/// Runs a program in every mode at every level, and compares its ranges under a budget with all.
fn behaves(name: &str, flags: &[&str], is_deterministic: bool) {
    if parts().is_none() {
        return;
    }
    for level in LEVELS {
        let folder = TempDir::new().unwrap();
        let flags = [&[level], flags].concat();
        let (with, without) = compile(folder.path(), &program(name), &flags);
        let expected = Command::new(&without).output().unwrap();
        let mut full = Results::default();
        for mode in MODES {
            let what = format!("{name} {flags:?} {mode:?}");
            let (output, results) = run(&with, mode, &[]);
            same(&output, &expected, &what);
            match mode {
                Some("full") => full = results,
                Some("off") => {
                    let any = results
                        .variables
                        .values()
                        .find(|observed| observed.updates > 0);
                    assert_eq!(any, None, "{what}");
                }
                Some(_) if is_deterministic => inside(&results, &full, &what),
                _ => {}
            }
        }
        assert!(
            full.variables.values().any(|observed| observed.updates > 0),
            "{name}"
        );
    }
}

#[test]
fn threads_behave_and_every_update_is_counted() {
    behaves("threads.c", &["-pthread"], true);
    if parts().is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let (with, _) = compile(folder.path(), &program("threads.c"), &["-O2", "-pthread"]);
    let (_, results) = run(&with, Some("full"), &[]);
    // 24 threads call `step` 300 times, which writes `next` once and in 50 x 20 rounds.
    assert_eq!(variable(&results, "next").1.updates, 24 * 300 * 1001);
    assert_eq!(variable(&results, "round").1.range, Some((0, 300)));
    assert_eq!(variable(&results, "shared_low").1.updates, 3);
}

#[test]
fn recursion_behaves() {
    behaves("recursion.c", &[], true);
}

#[test]
fn fields_that_inlined_functions_write_keep_their_ranges() {
    behaves("inlining.c", &[], true);
    if parts().is_none() {
        return;
    }
    for level in LEVELS {
        let folder = TempDir::new().unwrap();
        let (with, _) = compile(folder.path(), &program("inlining.c"), &[level]);
        let (_, results) = run(&with, Some("full"), &[]);
        for (name, range) in [
            ("outer.first", (1000, 100_000)),
            ("inner.low", (-100, -1)),
            ("inner.high", (1, 100)),
            // Of the multiples of 3 up to 300, those below 256, and 258 - 256 and so on.
            ("outer.last", (2, 255)),
        ] {
            let observed = variable(&results, name).1;
            let (low, high) = observed.range.unwrap();
            assert_eq!(observed.updates, 100, "{level} {name}");
            assert_eq!((low, high), range, "{level} {name}");
        }
    }
}

#[test]
fn jumps_of_all_kinds_behave() {
    behaves("jumps.c", &[], true);
}

#[test]
fn exceptions_behave() {
    behaves("exceptions.cpp", &[], true);
}

#[test]
fn coroutines_behave() {
    behaves("coroutine.cpp", &["-std=c++20"], true);
}

#[test]
fn signal_handlers_behave() {
    behaves("signals.c", &[], false);
}

#[test]
fn forked_and_killed_children_keep_their_ranges() {
    // Process ids are variables of it, too.
    behaves("forks.c", &[], false);
    if parts().is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let (with, _) = compile(folder.path(), &program("forks.c"), &["-O2"]);
    let (_, results) = run(&with, Some("full"), &[]);
    // The parent, five children, and the program that one of them executes.
    assert_eq!(results.processes, 7);
    let (_, by_child) = variable(&results, "by_child");
    assert_eq!((by_child.range, by_child.updates), (Some((-4000, 1004)), 6));
    assert_eq!(variable(&results, "by_parent").1.updates, 5);
}

#[test]
fn static_programs_behave() {
    behaves("recursion.c", &["-static"], true);
    behaves("threads.c", &["-static", "-pthread"], true);
}

#[test]
fn killed_program_keeps_its_ranges_and_an_endless_function_is_controlled() {
    if parts().is_none() {
        return;
    }
    for (level, mode) in [("-O0", "full"), ("-O2", "full"), ("-O2", "0.1")] {
        let folder = TempDir::new().unwrap();
        let results = TempDir::new().unwrap();
        let with = folder.path().join("with");
        let source = program("endless.c");
        let mut compile = wrapper(folder.path(), &source);
        succeed(compile.arg(level).arg(&source).arg("-o").arg(&with));
        let mut child = Command::new(&with)
            .env("OVERHEAR_RANGES", results.path())
            .env("OVERHEAR_RANGES_BUDGET", mode)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        child.kill().unwrap();
        child.wait().unwrap();
        let results = Results::read_folder(results.path()).unwrap();
        let (low, high) = variable(&results, "rounds").1.range.unwrap();
        assert_eq!(low, 1, "{level} {mode}");
        if mode == "full" {
            assert!(high >= 2_000_000, "{level}: {high}");
            assert_eq!(variable(&results, "phase").1.range, Some((1, 2)), "{level}");
        } else {
            // It was entered once, and yet switched on and off.
            let share = variable(&results, "rounds").1.share().unwrap();
            assert!(high > 1000 && share < 1.0, "{high} {share}");
        }
    }
}

/// Compiles the library, and a program that loads or links it; `None` without the wrapper's parts.
fn with_library(folder: &Path, program_name: &str, instrument_program: bool) {
    let library = folder.join("liblibrary.so");
    let source = program("library.c");
    let mut compile = wrapper(folder, &source);
    compile
        .args(["-O2", "-shared", "-fPIC"])
        .arg(&source)
        .arg("-o")
        .arg(&library);
    succeed(&mut compile);
    let source = program(program_name);
    let mut compile = if instrument_program {
        wrapper(folder, &source)
    } else {
        Command::new("clang-19")
    };
    compile
        .arg("-O2")
        .arg(&source)
        .arg("-o")
        .arg(folder.join("program"));
    if program_name == "linked.c" {
        compile.arg("-L").arg(folder).arg("-llibrary");
        compile.arg(format!("-Wl,-rpath,{}", folder.display()));
    }
    succeed(&mut compile);
}

#[test]
fn unloaded_library_keeps_its_ranges_and_is_named() {
    if parts().is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    with_library(folder.path(), "loading.c", true);
    let library = folder.path().join("liblibrary.so");
    let (with, library) = (folder.path().join("program"), library.as_path());
    let (expected, _) = run(&with, None, &[library]);
    assert!(expected.status.success(), "{expected:?}");
    for mode in ["off", "full", "0.1"] {
        let (output, results) = run(&with, Some(mode), &[library]);
        same(&output, &expected, mode);
        if mode == "full" {
            // All five times that it was loaded.
            assert_eq!(variable(&results, "library_global").1.updates, 500);
        }
        if mode == "0.1" {
            assert_eq!(results.unloaded.len(), 1, "{:?}", results.unloaded);
            assert!(results.unloaded[0].ends_with("liblibrary.so"));
        }
    }
}

#[test]
fn linked_library_uses_the_runtime_of_its_program() {
    if parts().is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    with_library(folder.path(), "linked.c", true);
    let (_, results) = run(&folder.path().join("program"), Some("full"), &[]);
    assert_eq!(results.processes, 1);
    assert_eq!(variable(&results, "library_global").1.updates, 1000);
    assert_eq!(variable(&results, "total").1.updates, 1001);
}

#[test]
fn library_without_runtime_runs_plain_and_is_observed_by_preloading() {
    let Some(parts) = parts() else {
        return;
    };
    let folder = TempDir::new().unwrap();
    with_library(folder.path(), "linked.c", false);
    let alone = Command::new(folder.path().join("program"))
        .output()
        .unwrap();
    assert!(alone.status.success(), "{alone:?}");
    let results = TempDir::new().unwrap();
    let output = Command::new(folder.path().join("program"))
        .env("LD_PRELOAD", parts.join("liboverhear_ranges.so"))
        .env("OVERHEAR_RANGES", results.path())
        .env("OVERHEAR_RANGES_BUDGET", "full")
        .output()
        .unwrap();
    same(&output, &alone, "preloaded");
    let results = Results::read_folder(results.path()).unwrap();
    assert_eq!(variable(&results, "library_global").1.updates, 1000);
}

#[test]
fn wrapper_refuses_a_compiler_of_another_version() {
    let folder = TempDir::new().unwrap();
    let other = folder.path().join("clang");
    std::fs::write(&other, "#!/bin/sh\necho 14.0.6\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&other, mode).unwrap();
    let output = Command::new(WRAPPER)
        .env("OVERHEAR_CLANG", &other)
        .arg("-c")
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(
        message.contains("has version 14.0.6, but the pass is built for clang 19"),
        "{message}"
    );
}

#[test]
fn wrapper_names_a_part_that_is_missing() {
    let folder = TempDir::new().unwrap();
    let mut command = Command::new(WRAPPER);
    let output = command
        .env("OVERHEAR_RANGES_LIB", folder.path())
        .arg("-c")
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(message.contains("overhear_ranges_pass.so of the range analysis was not found"));
}

/// A library in C, and a program in C++ that uses it.
fn write_project(folder: &Path) {
    let sources = [
        (
            "part.c",
            "int part_global;\nint part(int n) { part_global = n * 2; return n + 1; }\n",
        ),
        (
            "whole.cpp",
            "extern \"C\" int part(int);\nint main() { int sum = 0; for (int i = 0; i < 9; i++) \
             sum += part(i); return sum - 45; }\n",
        ),
        (
            "CMakeLists.txt",
            "cmake_minimum_required(VERSION 3.10)\nproject(whole C CXX)\n\
             add_library(part SHARED part.c)\nadd_executable(whole whole.cpp)\n\
             target_link_libraries(whole part)\n",
        ),
        (
            "Makefile",
            "whole: whole.o libpart.a\n\t$(CXX) $(LDFLAGS) whole.o -L. -lpart -o whole\n\
             libpart.a: part.o\n\tar rc libpart.a part.o\n",
        ),
    ];
    for (name, text) in sources {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

#[test]
fn wrapper_is_the_compiler_of_make_and_cmake_builds() {
    if parts().is_none() {
        return;
    }
    let folder = TempDir::new().unwrap();
    write_project(folder.path());
    let cxx = wrapper(folder.path(), Path::new("whole.cpp"));
    let (cxx, parts) = (
        cxx.get_program().to_owned(),
        Path::new(WRAPPER).with_file_name("ranges"),
    );
    let build = folder.path().join("build");
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(folder.path())
        .env("CC", WRAPPER)
        .env("CXX", &cxx);
    let mut cmake = Command::new("cmake");
    cmake
        .arg("-S")
        .arg(folder.path())
        .arg("-B")
        .arg(&build)
        .env("CC", WRAPPER)
        .env("CXX", &cxx);
    let mut finish = Command::new("cmake");
    finish.arg("--build").arg(&build);
    for command in [&mut make, &mut cmake, &mut finish] {
        succeed(command.env("OVERHEAR_RANGES_LIB", &parts));
    }
    for program in [folder.path().join("whole"), build.join("whole")] {
        let (output, results) = run(&program, Some("full"), &[]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            variable(&results, "part_global").1.range,
            Some((0, 16)),
            "{program:?}"
        );
        assert_eq!(
            variable(&results, "sum").1.range,
            Some((0, 45)),
            "{program:?}"
        );
    }
}
