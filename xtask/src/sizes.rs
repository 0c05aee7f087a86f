// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sizes of the linked code of a program: the C libraries, and a static program with one
//! sensor.
//!
//! Everything is built and linked as `make install` does, so the figures are those of an
//! installation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::install::{link_shared, MONITORS, POSIX_TRACE, SENSORS};
use crate::shell;
use crate::workspace::Workspace;

/// The program with one sensor.
const PROGRAM: &str = "examples/c/hello_sensor.c";

/// Prints the table. `built` is the folder of the static libraries.
pub(crate) fn print(workspace: &Workspace, built: &Path) -> Result<()> {
    let folder = workspace.target.join("sizes");
    fs::create_dir_all(&folder)?;
    println!("| file | bytes | stripped |\n|---|---:|---:|");
    for library in [SENSORS, MONITORS, POSIX_TRACE] {
        let archive = built.join(format!("{library}.a"));
        let shared = folder.join(format!("{library}.so"));
        link_shared(&archive, library, &shared)?;
        row(&folder, &format!("`{library}.so`"), &shared, "--strip-all")?;
        row(
            &folder,
            &format!("`{library}.a`"),
            &archive,
            "--strip-debug",
        )?;
    }
    for library in [SENSORS, MONITORS] {
        let program = folder.join(format!("{library}-program"));
        let archive = built.join(format!("{library}.a"));
        link_static(workspace, &archive, &program)?;
        let name = format!("static program with one sensor, `{library}.a`");
        row(&folder, &name, &program, "--strip-all")?;
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Links the program with the library and the C library of the system into one file.
fn link_static(workspace: &Workspace, archive: &Path, program: &Path) -> Result<()> {
    let mut compile = Command::new("cc");
    compile
        .args(["-O2", "-static", "-Wl,--gc-sections", "-I"])
        .arg(workspace.root.join("include"))
        .arg(workspace.root.join(PROGRAM))
        .arg(archive)
        .args(["-lm", "-ldl", "-lpthread", "-o"])
        .arg(program);
    shell::output(&mut compile).with_context(|| format!("{PROGRAM} was not linked"))?;
    Ok(())
}

/// Prints the size of a file, and of its copy in `folder` without symbols.
fn row(folder: &Path, name: &str, file: &Path, how: &str) -> Result<()> {
    let name_of = file.file_name().unwrap_or_default().to_string_lossy();
    let stripped: PathBuf = folder.join(format!("{name_of}.stripped"));
    let mut strip = Command::new("strip");
    strip.arg(how).arg("-o").arg(&stripped).arg(file);
    shell::output(&mut strip)?;
    let bytes = |file: &Path| fs::metadata(file).map(|data| grouped(data.len()));
    println!("| {name} | {} | {} |", bytes(file)?, bytes(&stripped)?);
    fs::remove_file(&stripped)?;
    Ok(())
}

/// A number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_separated_by_commas() {
        assert_eq!(
            [0, 999, 1_000, 1_349_072].map(grouped),
            ["0", "999", "1,000", "1,349,072"]
        );
    }
}
