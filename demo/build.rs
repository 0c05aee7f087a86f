// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compiles the client and the server with the C compiler (`CC`, else `cc`).
//!
//! Both become part of the one program `demo`, because cargo builds a single program for
//! `cargo run`: their `main` gets another name, and `src/programs.rs` calls it. The C library that
//! they need is the crate `overhear`, which is linked anyway. Outside this build they are ordinary
//! programs: `cc -Iinclude demo/server.c -loverhear`.

use std::path::{Path, PathBuf};
use std::process::{exit, Command};
use std::{env, io};

/// The sources, and what is done with each `main`.
const PROGRAMS: [&str; 2] = ["client", "server"];

fn main() {
    println!("cargo::rerun-if-env-changed=CC");
    println!("cargo::rerun-if-env-changed=AR");
    for input in ["client.c", "server.c", "call.h", "../include/overhear"] {
        println!("cargo::rerun-if-changed={input}");
    }
    if let Err(message) = compile() {
        eprintln!("{message}");
        exit(1);
    }
}

fn compile() -> Result<(), String> {
    let folder = PathBuf::from(cargo("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(cargo("OUT_DIR")?);
    let library = out.join("libdemo_programs.a");
    let mut objects = Vec::new();
    for name in PROGRAMS {
        let object = out.join(format!("{name}.o"));
        let mut compiler = tool("CC", "cc");
        compiler
            .args(["-std=c11", "-Wall", "-Wextra", "-O2", "-g", "-fPIC"])
            .arg(format!("-Dmain=demo_{name}_main"))
            .arg("-I")
            .arg(folder.join("../include"))
            .arg("-c")
            .arg(folder.join(format!("{name}.c")))
            .arg("-o")
            .arg(&object);
        run(compiler)?;
        objects.push(object);
    }
    // An archiver adds to what is there; objects of an older build must not stay.
    remove(&library)?;
    let mut archiver = tool("AR", "ar");
    archiver.arg("crs").arg(&library).args(&objects);
    run(archiver)?;
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static=demo_programs");
    Ok(())
}

fn tool(variable: &str, usual: &str) -> Command {
    Command::new(env::var_os(variable).unwrap_or_else(|| usual.into()))
}

fn remove(file: &Path) -> Result<(), String> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("cannot remove {}: {error}.", file.display()))
        }
        _ => Ok(()),
    }
}

fn run(mut command: Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!(
            "The demonstration has two C programs, and `{name}` was not found: install the Debian \
             package gcc, or name a compiler in CC and an archiver in AR."
        ),
        _ => format!("`{name}` could not be started: {error}."),
    })?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "`{name}` failed on the demonstration's C programs ({}):\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// A variable that cargo sets for every build script.
fn cargo(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("cargo did not set {name} for the demonstration's build."))
}
