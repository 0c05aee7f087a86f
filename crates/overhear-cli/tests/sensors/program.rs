// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds and runs the C program, and reads its sensors in the report.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::{path, run_json, Ended};

/// The program `program.c`, compiled once.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| compiled("tests/sensors/program.c", "program"))
}

/// A C program of this repository, linked with the library in this test's folder. The path of its
/// source is relative to this crate's.
pub(crate) fn compiled(source: &str, name: &str) -> PathBuf {
    compiled_with(source, name, "overhear")
}

/// The same, linked with another library.
#[allow(dead_code, reason = "two suites include this file")]
pub(crate) fn compiled_with(source: &str, name: &str, library: &str) -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let libraries = here.parent().unwrap();
    assert!(
        libraries.join(format!("lib{library}.so")).exists(),
        "the library is built with this test"
    );
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // A folder per process: two runs of the suite must not overwrite each other's program.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let binary = folder.join(name);
    let output = Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread"])
        .arg("-I")
        .arg(crate_root.join("../../include"))
        .arg(crate_root.join(source))
        .arg("-o")
        .arg(&binary)
        .arg("-L")
        .arg(libraries)
        .arg(format!("-l{library}"))
        // Cargo's LD_LIBRARY_PATH names the folder above as well, whose library may be of an older
        // build than the headers; a path of the old kind comes before it.
        .arg(format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            libraries.display()
        ))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    binary
}

/// Runs the C program under `overhear run`, without kernel sensors: they have suites of their own.
#[track_caller]
pub(crate) fn run_program(arguments: &[&str]) -> (Ended, Value) {
    let command = [&[path(program())], arguments].concat();
    run_json(&["--kernel", "off"], &command)
}

#[track_caller]
pub(crate) fn number(value: &Value, name: &str) -> u64 {
    value[name]
        .as_u64()
        .unwrap_or_else(|| panic!("no number {name} in {value}"))
}

/// The one sensor of a report.
#[track_caller]
pub(crate) fn only_sensor(report: &Value) -> &Value {
    let sensors = report["sensors"].as_array().unwrap();
    assert_eq!(sensors.len(), 1, "{report:#}");
    &sensors[0]
}

/// Elements of every stream that a sensor with this id had, in the order of registration.
#[track_caller]
pub(crate) fn evaluated(report: &Value, id: &str) -> Vec<u64> {
    let sensors = report["sensors"].as_array().unwrap().iter();
    sensors
        .filter(|sensor| sensor["id"] == id)
        .map(|sensor| number(sensor, "elements"))
        .collect()
}
