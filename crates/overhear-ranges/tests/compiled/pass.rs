// SPDX-License-Identifier: MIT OR Apache-2.0
//! The pass by itself: what it makes of sources, checked by LLVM's FileCheck.
//!
//! Each source of `native/ranges/tests/pass` has lines `RUN: COMMAND`, as LLVM's own tests have,
//! with `%clang`, `%opt`, `%filecheck`, `%plugin`, `%s` (the source) and `%t` (a scratch file).

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::tools::{parts, sources};

/// Where Debian keeps the tools of LLVM 19.
const TOOLS: &str = "/usr/lib/llvm-19/bin";

fn check(name: &str) {
    let Some(parts) = parts() else {
        return;
    };
    let tool = |name: &str| Path::new(TOOLS).join(name);
    if !tool("FileCheck").is_file() || !tool("opt").is_file() {
        println!("skipped: FileCheck and opt are not installed; they are in llvm-19-tools");
        return;
    }
    let source = sources().join("pass").join(name);
    let text = std::fs::read_to_string(&source).unwrap();
    let scratch = TempDir::new().unwrap();
    let mut runs = 0;
    for line in text
        .lines()
        .filter_map(|line| line.strip_prefix("// RUN: "))
    {
        let scratch = scratch.path().join("t").display().to_string();
        let plugin = parts.join("overhear_ranges_pass.so").display().to_string();
        let filecheck = format!("{} {}", tool("FileCheck").display(), source.display());
        let command = line
            .replace("%filecheck %s", &filecheck)
            .replace("%filecheck", &tool("FileCheck").display().to_string())
            .replace("%clang", &tool("clang").display().to_string())
            .replace("%opt", &tool("opt").display().to_string())
            .replace("%plugin", &plugin)
            .replace("%s", &source.display().to_string())
            .replace("%t", &scratch);
        let output = Command::new("bash")
            .args(["-o", "pipefail", "-c", &command])
            .output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {command}\n{errors}");
        runs += 1;
    }
    assert!(runs > 0, "{name} has no line RUN");
}

#[test]
fn copies_switch_at_entries_and_back_edges() {
    check("copies.c");
}

#[test]
fn table_names_what_is_written() {
    check("table.c");
}

#[test]
fn computed_jumps_are_guarded_in_place() {
    check("guards.c");
}

#[test]
fn excluded_functions_stay_as_they_are() {
    check("excluded.c");
}

#[test]
fn source_without_debug_information_is_named() {
    check("without_debug_information.c");
}

#[test]
fn functions_that_only_get_values_are_instrumented_on_demand() {
    check("arguments.c");
}

#[test]
fn calls_that_the_optimiser_inlines_are_inlined_before() {
    check("inlining.c");
}

#[test]
fn short_functions_leave_their_copies_to_another_one() {
    check("short.c");
}
