// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the BPF programs with clang.
//!
//! libbpf-cargo is not used: one compiler call needs no helper, and the object is embedded as it
//! is. The debug information stays in, because the type information the loader needs (BTF) is
//! made from it; directories of the build machine do not get into it.

use std::path::{Path, PathBuf};
use std::process::{exit, Command};
use std::{env, io};

const SOURCES: [&str; 5] = ["sched", "sensors", "probes", "points", "samples"];

fn main() {
    println!("cargo::rerun-if-env-changed=OVERHEAR_CLANG");
    println!("cargo::rerun-if-changed=src/bpf");
    for source in SOURCES {
        if let Err(message) = compile(source) {
            eprintln!("{message}");
            exit(1);
        }
    }
}

fn compile(source: &str) -> Result<(), String> {
    let clang = env::var("OVERHEAR_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let directory = PathBuf::from(cargo("CARGO_MANIFEST_DIR")?).join("src/bpf");
    let object = Path::new(&cargo("OUT_DIR")?).join(format!("{source}.bpf.o"));
    let target = match cargo("CARGO_CFG_TARGET_ENDIAN")?.as_str() {
        "big" => "bpfeb",
        _ => "bpfel",
    };
    let mut command = Command::new(&clang);
    command
        .current_dir(&directory)
        .args(["-target", target, "-mcpu=v3", "-std=gnu11", "-O2", "-g"])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"])
        .args(["-ffreestanding", "-nostdinc", "-fdebug-compilation-dir=."])
        .arg("-c")
        .arg(format!("{source}.bpf.c"))
        .arg("-o")
        .arg(&object);
    // Rule 4 of the program: only where the processor keeps the order of stores may the counter
    // be published by a plain one.
    if matches!(
        cargo("CARGO_CFG_TARGET_ARCH")?.as_str(),
        "x86_64" | "x86" | "s390x"
    ) {
        command.arg("-DOVERHEAR_TOTAL_STORE_ORDER");
    }
    // Where a program looks into the registers of another.
    let arch = cargo("CARGO_CFG_TARGET_ARCH")?.to_uppercase();
    command.arg(format!("-DOVERHEAR_ARCH_{arch}"));
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "overhear-kernel needs clang to compile its BPF programs, and `{clang}` was not \
             found: install the Debian package clang-19, or name another clang in OVERHEAR_CLANG."
        ),
        _ => format!("overhear-kernel could not start `{clang}`: {error}."),
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "`{clang}` refused the BPF programs of overhear-kernel ({}); clang 19 with the BPF \
         target is needed (Debian package clang-19):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// A variable that cargo sets for every build script.
fn cargo(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("cargo did not set {name} for overhear-kernel's build."))
}
