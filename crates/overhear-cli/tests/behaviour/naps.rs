// SPDX-License-Identifier: MIT OR Apache-2.0
//! `overhear naps`, from arguments to the report.

use std::path::Path;
use std::process::Command;

use crate::support::{finish, overhear};

/// Whether cargo has built the preload library, which no program links.
fn library_is_built() -> bool {
    let program = Path::new(env!("CARGO_BIN_EXE_overhear"));
    let built = program
        .with_file_name("liboverhear_naps_preload.so")
        .is_file();
    if !built {
        println!("skipped: the preload library is not built; type `cargo build --workspace`");
    }
    built
}

/// Compiles a program in C, with these options.
fn compiled(program: &Path, source: &str, options: &[&str]) {
    let file = program.with_extension("c");
    std::fs::write(&file, source).unwrap();
    let mut compiler = Command::new("cc");
    let status = compiler
        .args(options)
        .arg("-o")
        .arg(program)
        .arg(file)
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn impossible_requests_have_a_message() {
    if !library_is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("static");
    compiled(&program, "int main(void) { return 0; }", &["-static"]);
    let path = program.to_str().unwrap();
    let of = |words: &[&str]| finish(&mut overhear(&[&["naps"], words].concat()));
    of(&["--", path]).has_message(5, &["it is a static program"]);
    of(&["--threshold", "1ms", "--", "true"]).has_message(2, &["the threshold 1.00 ms is less"]);
    of(&["--threshold", "0s", "--", "true"]).has_message(2, &["--threshold", "more than zero"]);
    of(&["--budget", "0%", "--", "true"]).has_message(2, &["--budget", "more than 0%"]);
    of(&["--budget", "half", "--", "true"]).has_message(2, &["--budget", "per cent"]);
    of(&["--min-size", "100", "--", "true"]).has_message(2, &["--min-size", "4096"]);
    of(&["--library", "/nowhere.so", "--", "true"]).has_message(2, &["/nowhere.so"]);
    of(&["--", "/nowhere"]).has_message(127, &["there is no such program"]);
    of(&["--machine", "--threshold", "2s", "--duration", "1s"])
        .has_message(2, &["shorter than the threshold"]);
    of(&["--html", "/nowhere/page.html", "--", "true"]).has_message(2, &["/nowhere/page.html"]);
    of(&[]).has_message(2, &["PROGRAM"]);
}

#[test]
fn report_names_function_and_exit_status() {
    if !library_is_built() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("idle");
    let source = "#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n
        __attribute__((noinline)) char *make_unused(void) {
            char *block = malloc(100000);
            memset(block, 1, 100000);
            return block;
        }
        int main(void) {
            char *block = make_unused();
            usleep(1500000);
            return block[77777] == 1 ? 7 : 1;
        }";
    compiled(&program, source, &["-O2"]);
    let path = program.to_str().unwrap();
    let threshold = ["naps", "--threshold", "300ms", "--budget", "100%"];
    let ended = finish(&mut overhear(
        &[&threshold[..], &["--json", "--", path]].concat(),
    ));
    assert_eq!(ended.status, 7, "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let process = &report["processes"][0];
    if process["backend"] == "none" {
        println!("skipped: {}", process["backend_reason"]);
        return;
    }
    let site = &process["sites"][0];
    assert_eq!(site["stack"][0]["function"], "make_unused", "{report:#}");
    assert_eq!(site["naps"], 1, "{report:#}");
    let allocation = &process["allocations"][0];
    assert_eq!(allocation["size"], 100_000);
    let nap = &allocation["naps"][0];
    let length = nap["end_ns"].as_u64().unwrap() - nap["start_ns"].as_u64().unwrap();
    assert!(length >= 300_000_000, "{report:#}");
    if process["backend"] == "move" {
        assert_eq!(nap["end"], "access");
        assert_eq!(nap["at"]["function"], "main", "{report:#}");
    }
    let page = folder.path().join("page.html");
    let html = ["--html", page.to_str().unwrap()];
    let table = finish(&mut overhear(
        &[&threshold[..], &html, &["--", path]].concat(),
    ));
    assert_eq!(table.status, 7);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains("\"function\":\"make_unused\""), "{page}");
    assert!(
        table.stderr.contains("make_unused < main"),
        "{}",
        table.stderr
    );
}

#[test]
fn program_without_large_allocations_has_an_empty_report() {
    if !library_is_built() {
        return;
    }
    let ended = finish(&mut overhear(&["naps", "--", "true"]));
    assert_eq!(ended.status, 0, "{}", ended.stderr);
    assert!(
        ended.stderr.contains("no process made an allocation"),
        "{}",
        ended.stderr
    );
}
